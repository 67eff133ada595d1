"""One forward pass of a stack: its weights, its products, its KV cache, and a side's blocks of sub-layers.

A side is embeddings, then blocks, each of whose sub-layers is added to the residual stream. Every weight has a leading
K. Legend: K runs, B sequences, T positions, S positions of a source, C n_embd, O another width, H n_head, G n_kv_head,
D head_dim, F d_ff, E n_expert, A n_expert_active, V vocab_size, N = B*T.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from sweeplab.model.accounting import is_large_product
from sweeplab.model.activations import ACTIVATIONS, NORMS, by_run
from sweeplab.model.attention import ATTENTION, cross_kind, query_factor
from sweeplab.model.attention.base import AttentionKind, AttentionMask, Cached, Drop, for_queries
from sweeplab.model.dropout import Dropout
from sweeplab.model.positions import POSITIONS
from sweeplab.model.shape import ModelShape, Side

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    Stream = Float[Tensor, "K N C"]  # the residual stream, and what is added to it
    Product = Float[Tensor, "K N O"]
    Tokens = Int[Tensor, "K B T"]
    Present = Bool[Tensor, "KB T"] | None  # False on padding
    Value = Float[Tensor, "*value"]
    Shares = Float[Tensor, "K N A"]
    Chosen = Int[Tensor, "K N A"]
    Mixed = Float[Tensor, "KB H T D"]
    # Queries, keys and values.
    Heads = tuple[Mixed, Float[Tensor, "KB G S D"], Float[Tensor, "KB G S D"]]

Weights = Mapping[str, Tensor]
# What the encoder made of a source [K, B*S, C], and its mask.
Source = tuple[Tensor, AttentionMask]


@dataclass
class KVCache:
    """What a decoder keeps of the positions that it has read, so that no token is read twice.

    cached: by the name of a sub-layer, tensors [K*B, …]; of cross-attention the source's keys and values.
    source: what the encoder made of a source, and its mask.
    """

    length: int = 0
    cached: dict[str, Cached] = field(default_factory=dict)
    source: Source | None = None

    def choose(self, rows: Int[Tensor, "B"]) -> None:
        """Go on with these of a lone run's sequences, each as often as it is named."""
        self.cached = {name: tuple(each[rows] for each in cached) for name, cached in self.cached.items()}


class Normed(NamedTuple):
    """What a product reads: x, and the gain and bias of the norm before it, not yet applied."""

    x: Float[Tensor, "K N C"]
    gain: Float[Tensor, "K C"] | None = None
    bias: Float[Tensor, "K C"] | None = None

    def whole(self) -> Stream:
        """Return x with gain and bias applied."""
        x = self.x if self.gain is None else self.x * self.gain[:, None]
        return x if self.bias is None else x + self.bias[:, None]


class Routing(NamedTuple):
    """How a layer's router chose in each run: its two losses, and the share of choices of each of E experts."""

    balance: Float[Tensor, "K"]
    z: Float[Tensor, "K"]
    use: Float[Tensor, "K E"]


@dataclass
class Pass:
    """The weights of a pass over K runs of B sequences, what it drops, and how its routers chose, layer by layer.

    With a cache the tokens of a causal side come after those that it has, and are added to it. The layers share what
    rotates queries and keys of a length. Where precision is `mixed`, large products are of bfloat16.
    """

    shape: ModelShape
    w: Weights
    n_runs: int
    n_sequences: int
    dropout: Dropout | None = None
    cache: KVCache | None = None
    mixed: bool = False
    routings: list[Routing] = field(default_factory=list)
    rotations: dict[int, Callable[[Tensor], Tensor]] = field(default_factory=dict)

    def note(self, name: str, value: Value) -> Value:
        """Return the value of a named step, which a pass that records its steps keeps."""
        return value

    def routed(self, name: str, x: Stream, shares: Shares, chosen: Chosen) -> None:
        """Hear which experts tokens x are given to, and their shares; a pass that records keeps them."""

    def positions(self, length: int) -> range:
        """Return the positions of the next tokens."""
        start = self.cache.length if self.cache else 0
        return range(start, start + length)

    def normed(self, name: str, x: Stream) -> Normed:
        """Normalize x; the gain and bias wait for the product.

        With a cache they do not: a token that comes alone is smaller than any weight.
        """
        normed = NORMS[self.shape.norm].apply(x, self.shape.norm_eps)
        found = Normed(normed, self.w[f"{name}.gain"], self.w.get(f"{name}.bias"))
        return Normed(found.whole()) if self.cache else found

    def linear(self, name: str, read: Normed) -> Product:
        """Multiply by a matrix [K, C, O] and add its bias, if it has one."""
        return product(read, self.w[f"{name}.weight"], self.w.get(f"{name}.bias"), self.mixed)

    def linear_of(self, name: str, run: int, expert: int, x: Float[Tensor, "n C"]) -> Float[Tensor, "n O"]:
        """Multiply the tokens that one expert of a run got by its matrix [C, O]."""
        return torch.mm(x, self.w[f"{name}.weight"][run, expert])

    def attend(self, name: str, kind: AttentionKind, heads: Heads, mask: AttentionMask) -> Mixed:
        """Return the weighted values of heads of queries, keys and values."""
        shape, (q, k, v) = self.shape, heads
        if (factor := query_factor(shape)) != 1.0:
            q = q * factor
        if self.cache and mask.causal:
            cached = self.cache.cached.get(name)
            mixed, self.cache.cached[name] = kind.attend_cached(q, k, v, shape, mask, cached)
            return mixed
        drop: Drop = None
        if self.dropout and self.dropout.drops(name):
            drop = partial(self.dropout, site=name)
        return kind.attend(q, for_queries(k, shape), for_queries(v, shape), shape, mask, drop)

    def drop(self, x: Stream, site: str) -> Stream:
        """Drop elements of x at a site."""
        return self.dropout(x, site) if self.dropout else x

    def added(self, x: Stream, update: Stream, branch: str) -> Stream:
        """Add what a sub-layer computed to the residual stream x, dropping elements and whole sequences."""
        if self.dropout is None:
            return x + update
        update = self.dropout(update, f"{branch}.residual")
        if self.dropout.drops(site := f"{branch}.depth"):
            kept = self.dropout.mask(self.n_sequences, site)[:, :, None]
            update = (update.view(self.n_runs, self.n_sequences, -1) * kept).view(x.shape)
        return x + update


def product(
    read: Normed,
    weight: Float[Tensor, "K C O"],
    bias: Float[Tensor, "K O"] | None = None,
    mixed: bool = False,
) -> Product:
    """Multiply what a norm left [K, N, C] by a weight and add a bias; in bfloat16 where it is `mixed` and that pays.

    The norm's gain and bias are moved into the product, (x g + b) W = x (g W) + b W: there are fewer weights than
    activations, and a step spends less on them.
    """
    bias = None if bias is None else bias[:, None]
    if read.bias is not None:
        shift = read.bias[:, None]
        bias = torch.bmm(shift, weight) if bias is None else torch.baddbmm(bias, shift, weight)
    if read.gain is not None:
        weight = read.gain[:, :, None] * weight
    x = read.x
    if mixed and is_large_product(x.shape[1], weight.shape[1] * weight.shape[2]):
        x, weight, bias = x.bfloat16(), weight.bfloat16(), None if bias is None else bias.bfloat16()
    elif x.dtype != weight.dtype:  # of a product in bfloat16
        x = x.to(weight.dtype)
    return torch.bmm(x, weight) if bias is None else torch.baddbmm(bias, x, weight)


def through(p: Pass, side: Side, tokens: Tokens, mask: AttentionMask, source: Source | None) -> Normed:
    """Take tokens through a side: [K, N, C], with a last norm where the model has one."""
    x = _embedded(p, side, tokens)
    for layer in range(p.shape.layers(side)):
        x = _block(p, f"{side.prefix}blocks.{layer}", x, mask, source)
    return p.normed(f"{side.prefix}final_norm", x) if p.shape.final_norm else Normed(x)


def _embedded(p: Pass, side: Side, tokens: Tokens) -> Stream:
    shape, prefix = p.shape, side.prefix
    n_runs, n_sequences, length = tokens.shape
    c, v = shape.n_embd, shape.vocab_size
    own = "source_embedding" in p.w and not side.crosses
    table = p.w["source_embedding" if own else "token_embedding"]
    row = torch.arange(0, n_runs * v, v, device=tokens.device).view(n_runs, 1, 1)
    x = F.embedding(tokens + row, table.reshape(n_runs * v, c))
    if shape.scale_embedding:
        x = x * math.sqrt(c)
    p.note(f"{prefix}token_embedding", x)
    if add := POSITIONS[shape.positions].add:
        x = x + p.note(f"{prefix}position_embedding", add(p.w, shape, prefix, p.positions(length), x))
    if shape.n_token_types:
        name = f"{prefix}token_type_embedding"
        x = x + p.note(name, p.w[name][:, None, :1])  # all tokens are of the first type
    x = p.note(f"{prefix}embedding", x).view(n_runs, n_sequences * length, c)
    if shape.embedding_norm:
        x = p.normed(f"{prefix}embedding_norm", x).whole()
    return p.drop(x, f"{prefix}embedding")


def _block(p: Pass, name: str, x: Stream, mask: AttentionMask, source: Source | None) -> Stream:
    attend = partial(self_attention, p, f"{name}.attention", mask)
    parts: dict[str, Callable[[Normed], Tensor]] = {"attention": attend}
    if source:
        parts["cross"] = partial(cross_attention, p, f"{name}.cross", *source)
    if p.shape.n_expert > 1:
        parts["feed_forward"] = partial(experts, p, f"{name}.feed_forward", mask.present)
    else:
        parts["feed_forward"] = partial(feed_forward, p, f"{name}.feed_forward")
    read = p.normed(f"{name}.attention_norm", x) if p.shape.parallel_block else None
    for part, compute in parts.items():
        branch, norm = f"{name}.{part}", f"{name}.{part}_norm"
        if p.shape.norm_position == "post":
            x = p.normed(norm, p.added(x, compute(Normed(x)), branch)).whole()
        else:
            x = p.added(x, compute(read or p.normed(norm, x)), branch)
    return x


def self_attention(p: Pass, name: str, mask: AttentionMask, read: Normed) -> Stream:
    """Let the positions of each sequence attend to each other."""
    shape = p.shape
    widths = (shape.n_head, shape.n_kv_head, shape.n_kv_head)
    q, k, v = _heads(p, p.linear(f"{name}.qkv", read), sum(widths)).split_with_sizes(widths, dim=1)
    q, k = _head_normed(p, f"{name}.q_norm", q), _head_normed(p, f"{name}.k_norm", k)
    if rotation := POSITIONS[shape.positions].rotation:
        length = q.shape[2]
        if length not in p.rotations:
            p.rotations[length] = rotation(shape, p.positions(length), q)
        q, k = p.rotations[length](q), p.rotations[length](k)
    return _projected(p, name, p.attend(name, ATTENTION[shape.attention], (q, k, v), mask))


def cross_attention(
    p: Pass, name: str, source: Float[Tensor, "K BS C"], mask: AttentionMask, read: Normed
) -> Stream:
    """Let the positions of each sequence attend to its source, wherever that stands.

    A cache keeps the source's keys and values [K*B, G, S, D] from the first time on.
    """
    q = _head_normed(p, f"{name}.q_norm", _heads(p, p.linear(f"{name}.q", read), p.shape.n_head))
    if p.cache and name in p.cache.cached:
        k, v = p.cache.cached[name]
    else:
        k, v = _heads(p, p.linear(f"{name}.kv", Normed(source)), 2 * p.shape.n_kv_head).chunk(2, dim=1)
        k = _head_normed(p, f"{name}.k_norm", k)
        if p.cache:
            p.cache.cached[name] = k, v
    return _projected(p, name, p.attend(name, cross_kind(p.shape.attention), (q, k, v), mask))


def _heads(p: Pass, x: Float[Tensor, "K N nD"], count: int) -> Float[Tensor, "KB n T D"]:
    """Cut x into n heads; attention is not in bfloat16, which is several times slower there on a CPU."""
    x = x.float() if p.mixed else x
    return x.view(p.n_runs * p.n_sequences, -1, count, p.shape.head_dim).transpose(1, 2)


def _head_normed(p: Pass, name: str, x: Float[Tensor, "KB n T D"]) -> Float[Tensor, "KB n T D"]:
    """Return queries or keys normed by head, where the model does that."""
    if not p.shape.qk_norm:
        return x
    by_run = NORMS["rmsnorm"].apply(x, p.shape.norm_eps).view(p.n_runs, -1, *x.shape[1:])
    return p.note(name, (by_run * p.w[f"{name}.gain"][:, None, None, None]).view(x.shape))


def _projected(p: Pass, name: str, mixed: Mixed) -> Stream:
    joined = mixed.transpose(1, 2).reshape(p.n_runs, -1, p.shape.n_head * p.shape.head_dim)
    return p.linear(f"{name}.out", Normed(joined))


def feed_forward(p: Pass, name: str, read: Normed) -> Stream:
    """Up-project, activate and down-project each token."""
    hidden = _hidden(p.shape.activation, p.n_runs, lambda part: p.linear(f"{name}.{part}", read))
    return p.linear(f"{name}.down", Normed(p.note(f"{name}.hidden", hidden)))


def _hidden(activation: str, n_runs: int, project: Callable[[str], Tensor]) -> Tensor:
    """Return a(up x), or gated a(gate x) * up x, of a token's projections."""
    part = ACTIVATIONS[activation]
    hidden = by_run(part.apply, project("gate" if part.gated else "up"), n_runs)
    return hidden * project("up") if part.gated else hidden


def experts(p: Pass, name: str, present: Present, read: Normed) -> Stream:
    """Give each token to A of E feed-forward layers and add what they return, weighed by the router.

    `present` is False on padding. No token is dropped. Each expert of each run is a product of its own over the tokens
    that it got: their number depends on no neighbor, and only what is chosen is computed.
    """
    x = read.whole()
    shares, chosen = _route(p, name, present, x)
    active = p.shape.n_expert_active
    # Each run's choices sorted by expert: their tokens lie together, and `back` undoes it.
    order = chosen.flatten(1).argsort(dim=1, stable=True)
    back = order.argsort(dim=1)
    # How many tokens each expert gets: what a layer waits for the device once for, whatever the number of runs.
    counts = F.one_hot(chosen, p.shape.n_expert).sum(dim=(1, 2)).tolist()
    updates = []
    for run, tokens in enumerate(x.unbind()):
        given = torch.split(tokens.repeat_interleave(active, dim=0)[order[run]], counts[run])
        answers = torch.cat([_answer(p, name, run, expert, each) for expert, each in enumerate(given)])
        taken = answers[back[run]].view(-1, active, x.shape[-1])
        updates.append((taken * shares[run][:, :, None]).sum(dim=1))
    return torch.stack(updates)


def _answer(p: Pass, name: str, run: int, expert: int, x: Float[Tensor, "n C"]) -> Float[Tensor, "n C"]:
    """Return one expert's feed-forward of the tokens that it got."""
    hidden = _hidden(p.shape.activation, 1, lambda part: p.linear_of(f"{name}.{part}", run, expert, x))
    return p.linear_of(f"{name}.down", run, expert, hidden)


def _route(p: Pass, name: str, present: Present, x: Stream) -> tuple[Shares, Chosen]:
    """Return each token's shares of its best experts and which they are; note the router's losses.

    The chosen ones' probabilities are made to sum to one; a lone one's is kept as it is, for else the router would
    learn nothing from it. The losses are over what is no padding. Balance (Fedus et al., "Switch transformers",
    2021): E sum_e f_e P_e, of the part of the choices that an expert got and its mean probability. z (Zoph et al.,
    "ST-MoE", 2022): the mean square of the logits' log-sum-exp.
    """
    logits = p.linear(f"{name}.router", Normed(x))
    logits = logits if logits.dtype == torch.float64 else logits.float()
    given = logits.softmax(dim=-1)
    shares, chosen = given.topk(p.shape.n_expert_active, dim=-1)
    if p.shape.n_expert_active > 1:
        shares = shares / shares.sum(dim=-1, keepdim=True)
    counted = torch.ones_like(given[:, :, :1])
    if present is not None:
        counted = counted * present.view(p.n_runs, -1, 1)
    part = counted / counted.sum(dim=1, keepdim=True)
    use = (F.one_hot(chosen, p.shape.n_expert).sum(dim=2) * part).sum(dim=1) / p.shape.n_expert_active
    balance = p.shape.n_expert * (use * (given * part).sum(dim=1)).sum(dim=1)
    z = ((logits - logits.log_softmax(dim=-1))[:, :, :1].square() * part).sum(dim=(1, 2))
    p.routings.append(Routing(balance, z, use))
    p.routed(name, x, shares, chosen)
    return shares, chosen
