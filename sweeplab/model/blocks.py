"""The forward pass of a stack: embeddings, blocks of attention and feed-forward layers, and the KV cache.

Each sub-layer of a block adds its output to the residual stream. Every weight has a leading dimension K.
Legend: K runs, B sequences, T positions, S positions of a source, C n_embd, O another width, H n_head, G n_kv_head,
D head_dim, F d_ff, E n_expert, A n_expert_active, V vocab_size, N = B*T.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from sweeplab.model.accounting import is_large_product
from sweeplab.model.attention import (
    AttentionMask,
    Cached,
    Drop,
    Turns,
    added_positions,
    attend,
    attend_cached,
    by_run,
    query_factor,
    rotation,
    windows,
)
from sweeplab.model.kernels import normalized_heads, rotated_heads
from sweeplab.model.shape import ACTIVATIONS, NORMS, ModelShape, Side

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    Stream = Float[Tensor, "K N C"]  # the residual stream, and the outputs of sub-layers
    Product = Float[Tensor, "K N O"]
    Tokens = Int[Tensor, "K B T"]
    Present = Bool[Tensor, "KB T"] | None  # False on padding
    Value = Float[Tensor, "*value"]
    Shares = Float[Tensor, "K N A"]
    Chosen = Int[Tensor, "K N A"]
    Out = Float[Tensor, "KB H T D"]  # of attention
    # Queries, keys and values.
    Heads = tuple[
        Float[Tensor, "KB H T D"], Float[Tensor, "KB G S D"], Float[Tensor, "KB G S D"]
    ]

Weights = Mapping[str, Tensor]
# The encoder's output [K, B*S, C], and the mask of the source.
Source = tuple[Tensor, AttentionMask]


# ------------------------------------------------------------------ dropout

# Masks depend only on (seed, iteration, site, element). A counter-based hash replaces the random generator: a run's
# masks are the same in any row of any stack on any device, and no generator state is saved. Each element's hash is
# computed once, so a mask costs two multiplications per element. Mixing constants: lowbias32 of Wellons, "Prospecting
# for hash functions" (2018), here on wrapping int32.
_MIX = (0x7FEB352D, -0x7B935975)  # 0x7feb352d and 0x846ca68b as int32
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _splitmix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def element_hashes(count: int, device: torch.device) -> Int[Tensor, "{count}"]:
    """Return int32 hashes of the elements 0, 1, 2 …; steps only read them, so they are computed once."""
    mixed = _splitmix(np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN)
    return torch.from_numpy((mixed >> np.uint64(32)).astype(np.uint32).view(np.int32)).to(
        device
    )


@dataclass(frozen=True)
class Site:
    """A place of dropout in a model: its number and its kind."""

    index: int
    kind: str


class MaskInputs(NamedTuple):
    """The inputs of a step's masks: keys, thresholds and scales [K, S] of S sites.

    A threshold is the smallest int32 hash of a kept element, and a scale is the factor of kept elements.
    """

    keys: Int[Tensor, "K S"]
    thresholds: Int[Tensor, "K S"]
    scales: Float[Tensor, "K S"]


def mask_inputs(
    seeds: Sequence[int],
    iterations: Sequence[int],
    rates: Sequence[Mapping[str, float]],
    sites: Collection[Site],
) -> MaskInputs:
    """Return the inputs of the masks of K runs, each with its own seed, iteration and dropout rates.

    `seeds` are the runs' dropout keys (63 bits). `rates` has each run's probability in [0, 1) by kind of site.
    """
    with np.errstate(over="ignore"):
        state = np.array(seeds, np.uint64) + np.array(iterations, np.uint64) * _GOLDEN
        numbers = np.array([site.index + 1 for site in sites], np.uint64) * np.uint64(
            0xD1B54A32D192ED03
        )
        keys = _splitmix(_splitmix(state)[:, None] + numbers) >> np.uint64(32)
    by_run = tuple(tuple([run.get(site.kind, 0.0) for site in sites]) for run in rates)
    return MaskInputs(
        torch.from_numpy(keys.astype(np.uint32).view(np.int32)), *_thresholds_and_scales(by_run)
    )


@lru_cache(64)  # consecutive steps ask for the same rates
def _thresholds_and_scales(rates: tuple[tuple[float, ...], ...]) -> tuple[Tensor, Tensor]:
    rate = np.array(rates, np.float64)
    thresholds = torch.from_numpy((rate * 2.0**32 - 2.0**31).astype(np.int32))
    return thresholds, torch.from_numpy(1.0 / (1.0 - rate)).float()


class Dropout:
    """The dropout of one pass of a stack of K runs: the masks of some sites of the model.

    `elements` has the hashes of at least as many elements as a run has at one site.
    """

    def __init__(
        self, inputs: MaskInputs, sites: Iterable[str], elements: Int[Tensor, "n"]
    ) -> None:
        self._elements, self._n_runs = elements, inputs.keys.shape[0]
        columns = zip(*(torch.split(part, 1, dim=1) for part in inputs), strict=True)
        self._dropped = dict(zip(sites, columns, strict=True))

    def drops(self, site: str) -> bool:
        """Return whether elements may be dropped at a site."""
        return site in self._dropped

    def key(self, site: str, run: int) -> int:
        """Return the key of a run's mask at a site: a number of 32 bits, which differs from step to step."""
        return int(self._dropped[site][0][run, 0])

    def mask(self, count: int, site: str) -> Float[Tensor, "K {count}"]:
        """Return the factor of each of a run's `count` elements at a site: 0, or 1 / (1 - p)."""
        keys, threshold, scale = self._dropped[site]
        hashed = self._elements[:count] ^ keys
        hashed.mul_(_MIX[0])
        # An arithmetic shift clears the sign bit; the next product sets it again.
        hashed ^= hashed >> 15
        hashed.mul_(_MIX[1])
        mask: Tensor = (hashed >= threshold) * scale
        return mask

    def __call__(self, x: Tensor, site: str) -> Tensor:
        """Drop elements of x [K * n, …] (run-major) at a site, and scale the kept ones by 1 / (1 - p)."""
        if site not in self._dropped:
            return x
        return x * self.mask(x.numel() // self._n_runs, site).view(x.shape)


# ------------------------------------------------------------------ the pass


@dataclass
class KVCache:
    """A decoder's cache of the positions that it has read, so that it reads no token twice.

    cached: tensors [K*B, …] by the name of a sub-layer; cross-attention caches the keys and values of the source.
    source: the encoder's output and the mask of the source.
    """

    length: int = 0
    cached: dict[str, Cached] = field(default_factory=dict)
    source: Source | None = None

    def reorder(self, rows: Int[Tensor, "B"]) -> None:
        """Keep these of a single run's sequences, each as often as `rows` lists it."""
        self.cached = {
            name: tuple(part[rows] for part in cached) for name, cached in self.cached.items()
        }


class Normed(NamedTuple):
    """A normalized x whose gain and bias are not applied yet; `product` applies them."""

    x: Float[Tensor, "K N C"]
    gain: Float[Tensor, "K C"] | None = None
    bias: Float[Tensor, "K C"] | None = None

    def affine(self) -> Stream:
        """Return x with gain and bias applied."""
        x = self.x
        if self.gain is not None:
            x = x * self.gain[:, None]
        if self.bias is None:
            return x
        return x + self.bias[:, None]


class Routing(NamedTuple):
    """The losses of one layer's router in each run."""

    balance: Float[Tensor, "K"]
    z: Float[Tensor, "K"]


@dataclass
class Pass:
    """A forward pass over n_runs runs of n_sequences sequences.

    With a cache, the tokens of a causal side follow the cached ones, and their keys and values are added to the cache.
    `routings` has the routers' losses, layer by layer. `rotations` holds the rotation for each length, which all layers
    share. With `mixed`, large products are computed in bfloat16.
    """

    shape: ModelShape
    w: Weights
    n_runs: int
    n_sequences: int
    dropout: Dropout | None = None
    cache: KVCache | None = None
    mixed: bool = False
    routings: list[Routing] = field(default_factory=list)
    rotations: dict[int, Turns] = field(default_factory=dict)

    def note(self, name: str, value: Value) -> Value:
        """Return the value of a named step; subclasses record it."""
        return value

    def note_routing(self, name: str, x: Stream, shares: Shares, chosen: Chosen) -> None:
        """Do nothing; subclasses record the experts `chosen` for tokens x, and their shares."""

    def positions(self, length: int) -> range:
        """Return the positions of the next `length` tokens."""
        start = self.cache.length if self.cache else 0
        return range(start, start + length)

    def normalize(self, name: str, x: Stream) -> Normed:
        """Normalize x; the next product applies gain and bias.

        With a cache they are applied at once: one token has fewer elements than any weight.
        """
        x = NORMS[self.shape.norm](x, self.shape.norm_eps)
        normed = Normed(x, self.w[f"{name}.gain"], self.w.get(f"{name}.bias"))
        if self.cache:
            return Normed(normed.affine())
        return normed

    def linear(self, name: str, normed: Normed) -> Product:
        """Multiply by a matrix [K, C, O], and add its bias if it has one."""
        bias = self.w.get(f"{name}.bias")
        return self.note(name, product(normed, self.w[f"{name}.weight"], bias, self.mixed))

    def float_linear(self, name: str, normed: Normed) -> Product:
        """Return `linear` in float32 with `mixed`: on a CPU, attention in bfloat16 is several times slower."""
        x = self.linear(name, normed)
        return x.float() if self.mixed else x

    def attend(
        self, name: str, heads: Heads, mask: AttentionMask, window: int | None = None
    ) -> Out:
        """Return the attention output of all heads, before the output projection."""
        factor, (q, k, v) = query_factor(self.shape), heads
        if factor != 1.0:
            q = q * factor
        if self.cache and mask.causal:
            cached = self.cache.cached.get(name)
            output, self.cache.cached[name] = attend_cached(q, k, v, mask, window, cached)
            return output
        drop: Drop = None
        if self.dropout and self.dropout.drops(name):
            drop = partial(self.dropout, site=name)
        return attend(q, k, v, mask, window, drop)

    def drop(self, x: Stream, site: str) -> Stream:
        """Apply dropout to x at a site."""
        if self.dropout:
            return self.dropout(x, site)
        return x

    def add_residual(self, x: Stream, update: Stream, branch: str) -> Stream:
        """Add a sub-layer's output to the residual stream x, with dropout."""
        total = x + self.drop(update, f"{branch}.residual")
        if not self.shape.parallel_block:
            self.note(f"{branch}.added", total)
        return total


def product(
    normed: Normed,
    weight: Float[Tensor, "K C O"],
    bias: Float[Tensor, "K O"] | None = None,
    mixed: bool = False,
) -> Product:
    """Multiply a norm's output [K, N, C] by a weight and add a bias; with `mixed`, large products are in bfloat16.

    The norm's gain g and bias b are applied to the weight: (x g + b) W = x (g W) + b W. This is faster, because weights
    have fewer elements than x.
    """
    x, bias = normed.x, None if bias is None else bias[:, None]
    if normed.bias is not None:
        bias = _affine(normed.bias[:, None], weight, bias)
    if normed.gain is not None:
        weight = normed.gain[:, :, None] * weight
    if mixed and is_large_product(x.shape[1], weight.shape[1] * weight.shape[2]):
        return _affine(
            x.bfloat16(), weight.bfloat16(), None if bias is None else bias.bfloat16()
        )
    # X may be the result of a bfloat16 product.
    return _affine(x.to(weight.dtype), weight, bias)


def _affine(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if bias is None:
        return torch.bmm(x, weight)
    return torch.baddbmm(bias, x, weight)


def at_least_float32(x: Tensor) -> Tensor:
    """Return x in float32 if its numbers are shorter."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def forward_side(
    p: Pass, side: Side, tokens: Tokens, mask: AttentionMask, source: Source | None
) -> Normed:
    """Return a side's output for tokens, [K, N, C], after the final norm where the model has one."""
    x = _embed(p, side, tokens)
    for layer, window in enumerate(windows(p.shape, side)):
        x = _block(p, f"{side.prefix}blocks.{layer}", window, x, mask, source)
    if p.shape.final_norm:
        return p.normalize(f"{side.prefix}final_norm", x)
    return Normed(x)


def _embed(p: Pass, side: Side, tokens: Tokens) -> Stream:
    shape, prefix = p.shape, side.prefix
    n_runs, n_sequences, length = tokens.shape
    c, v = shape.n_embd, shape.vocab_size
    table = p.w["token_embedding"]
    if not side.has_cross:
        table = p.w.get("source_embedding", table)
    first_row = torch.arange(0, n_runs * v, v, device=tokens.device).view(n_runs, 1, 1)
    x = F.embedding(tokens + first_row, table.reshape(n_runs * v, c))
    if shape.scale_embedding:
        x = x * math.sqrt(c)
    p.note(f"{prefix}token_embedding", x)
    added = added_positions(p.w, shape, prefix, p.positions(length), x)
    if added is not None:
        x = x + p.note(f"{prefix}position_embedding", added.expand_as(x))
    if shape.n_token_types:
        name = f"{prefix}token_type_embedding"
        # All tokens have the first type.
        x = x + p.note(name, p.w[name][:, None, :1].expand_as(x))
    x = p.note(f"{prefix}embedding", x).view(n_runs, n_sequences * length, c)
    if shape.embedding_norm:
        x = p.normalize(f"{prefix}embedding_norm", x).affine()
    return p.drop(x, f"{prefix}embedding")


def _block(
    p: Pass,
    name: str,
    window: int | None,
    x: Stream,
    mask: AttentionMask,
    source: Source | None,
) -> Stream:
    attend = partial(self_attention, p, f"{name}.attention", mask, window)
    parts: dict[str, Callable[[Normed], Tensor]] = {"attention": attend}
    if source:
        parts["cross"] = partial(cross_attention, p, f"{name}.cross", *source)
    parts["feed_forward"] = partial(feed_forward, p, f"{name}.feed_forward")
    if p.shape.n_expert > 1:
        parts["feed_forward"] = partial(experts, p, f"{name}.feed_forward", mask.present)
    start = x
    shared = p.normalize(f"{name}.attention_norm", x) if p.shape.shares_norm else None
    for part, compute in parts.items():
        branch, norm = f"{name}.{part}", f"{name}.{part}_norm"
        if p.shape.norm_position == "post":
            x = p.normalize(norm, p.add_residual(x, compute(Normed(x)), branch)).affine()
        else:
            read = start if p.shape.parallel_block else x
            x = p.add_residual(x, compute(shared or p.normalize(norm, read)), branch)
    if p.shape.parallel_block:
        p.note(f"{name}.attention.added", x)  # of both sub-layers
    return x


def self_attention(
    p: Pass, name: str, mask: AttentionMask, window: int | None, normed: Normed
) -> Stream:
    """Return the self-attention of each sequence, after the output projection."""
    shape = p.shape
    n_head, n_kv_head = shape.n_head, shape.n_kv_head
    x = p.float_linear(f"{name}.qkv", normed)
    x, values = x.split_with_sizes(
        [(n_head + n_kv_head) * shape.head_dim, n_kv_head * shape.head_dim], dim=2
    )
    x = _normalize_heads(p, name, x, {"q": n_head, "k": n_kv_head})
    if shape.positions == "rotary":
        length = x.shape[1] // p.n_sequences
        if length not in p.rotations:
            p.rotations[length] = rotation(shape, p.positions(length), x)
        sequences = x.reshape(p.n_runs * p.n_sequences, -1)
        x = rotated_heads(sequences, p.rotations[length]).view(x.shape)
    (q, k), (v,) = _heads(p, x, [n_head, n_kv_head]), _heads(p, values)
    return _out_projection(p, name, p.attend(name, (q, k, v), mask, window))


def cross_attention(
    p: Pass,
    name: str,
    source: Float[Tensor, "K BS C"],
    mask: AttentionMask,
    normed: Normed,
) -> Stream:
    """Return the attention of each sequence to its source, after the output projection; no positions are encoded.

    The first call with a cache stores the keys and values of the source, [K*B, G, S, D].
    """
    n_kv_head = p.shape.n_kv_head
    (q,) = _heads(
        p, _normalize_heads(p, name, p.float_linear(f"{name}.q", normed), {"q": p.shape.n_head})
    )
    cached = p.cache.cached if p.cache else {}
    if name not in cached:
        keys, values = p.float_linear(f"{name}.kv", Normed(source)).chunk(2, dim=2)
        keys = _normalize_heads(p, name, keys, {"k": n_kv_head})
        cached[name] = _heads(p, keys) + _heads(p, values)
    k, v = cached[name]
    return _out_projection(p, name, p.attend(name, (q, k, v), mask))


def _heads(p: Pass, x: Product, counts: Sequence[int] = ()) -> tuple[Tensor, ...]:
    """Split x into groups of heads [K*B, count, T, D]."""
    heads = x.reshape(
        p.n_runs * p.n_sequences, -1, x.shape[2] // p.shape.head_dim, p.shape.head_dim
    )
    return heads.transpose(1, 2).split_with_sizes([*counts] or [heads.shape[2]], dim=1)


def _normalize_heads(p: Pass, name: str, x: Product, counts: Mapping[str, int]) -> Product:
    """Normalize the heads of x, `counts` of each role, if the model has qk_norm."""
    if not p.shape.qk_norm:
        return x
    gains = [p.w[f"{name}.{role}_norm.gain"].repeat(1, count) for role, count in counts.items()]
    x = normalized_heads(x, torch.cat(gains, dim=1), p.shape.head_dim, p.shape.norm_eps)
    for role, heads in zip(counts, _heads(p, x, [*counts.values()]), strict=True):
        p.note(f"{name}.{role}_norm", heads)
    return x


def _out_projection(p: Pass, name: str, heads: Out) -> Stream:
    joined = heads.transpose(1, 2).reshape(p.n_runs, -1, p.shape.n_head * p.shape.head_dim)
    return p.linear(f"{name}.out", Normed(joined))


def feed_forward(p: Pass, name: str, normed: Normed) -> Stream:
    """Return a feed-forward layer's output: up projection, activation, down projection."""
    hidden = _hidden(
        p.shape.activation, p.n_runs, lambda part: p.linear(f"{name}.{part}", normed)
    )
    return p.linear(f"{name}.down", Normed(p.note(f"{name}.hidden", hidden)))


def _hidden(activation: str, n_runs: int, project: Callable[[str], Tensor]) -> Tensor:
    """Return a(up(x)), or with a gate a(gate(x)) * up(x); `project` computes a projection of x by its name."""
    part = ACTIVATIONS[activation]
    hidden = by_run(part.apply, project("gate" if part.gated else "up"), n_runs)
    if part.gated:
        return hidden * project("up")
    return hidden


def experts(p: Pass, name: str, present: Present, normed: Normed) -> Stream:
    """Route each token to A of E feed-forward layers, and return the sum of their outputs, weighted by the router.

    `present` is False on padding. No token is dropped. Each expert of each run multiplies only its own tokens, so the
    result does not depend on the other runs, and no unused expert is computed.
    """
    x = normed.affine()
    shares, chosen = _route(p, name, present, x)
    active = p.shape.n_expert_active
    # Sort each run's choices by expert, so that an expert's tokens are adjacent; `inverse` restores the order.
    order = chosen.flatten(1).argsort(dim=1, stable=True)
    inverse = order.argsort(dim=1)
    # The number of tokens per expert. This waits for the device, but only once per layer for all runs.
    counts = F.one_hot(chosen, p.shape.n_expert).sum(dim=(1, 2)).tolist()
    updates = []
    for run, tokens in enumerate(x.unbind()):
        by_expert = torch.split(
            tokens.repeat_interleave(active, dim=0)[order[run]], counts[run]
        )
        outputs = torch.cat(
            [_expert(p, name, run, expert, some) for expert, some in enumerate(by_expert)]
        )
        by_token = outputs[inverse[run]].view(-1, active, x.shape[-1])
        updates.append((by_token * shares[run][:, :, None]).sum(dim=1))
    return torch.stack(updates)


def _expert(
    p: Pass, name: str, run: int, expert: int, x: Float[Tensor, "n C"]
) -> Float[Tensor, "n C"]:
    def weight(part: str) -> Tensor:
        return p.w[f"{name}.{part}.weight"][run, expert]

    return torch.mm(
        _hidden(p.shape.activation, 1, lambda part: torch.mm(x, weight(part))), weight("down")
    )


def _route(p: Pass, name: str, present: Present, x: Stream) -> tuple[Shares, Chosen]:
    """Return the A best experts of each token and their shares; append the router's losses to `routings`.

    The shares are the experts' probabilities, scaled to sum to one. With A = 1 the probability is not scaled, because
    the router would otherwise get no gradient. Padding is left out of the losses. Balance loss (Fedus et al., "Switch
    transformers", 2021): E sum_e f_e P_e, where f_e is the share of choices that expert e gets and P_e its mean
    probability. z loss (Zoph et al., "ST-MoE", 2022): the mean square of the logits' log-sum-exp.
    """
    logits = at_least_float32(p.linear(f"{name}.router", Normed(x)))
    probabilities = logits.softmax(dim=-1)
    shares, chosen = probabilities.topk(p.shape.n_expert_active, dim=-1)
    if p.shape.n_expert_active > 1:
        shares = shares / shares.sum(dim=-1, keepdim=True)
    counted = torch.ones_like(probabilities[:, :, :1])
    if present is not None:
        counted = counted * present.view(p.n_runs, -1, 1)
    part = counted / counted.sum(dim=1, keepdim=True)
    use = (F.one_hot(chosen, p.shape.n_expert).sum(dim=2) * part).sum(
        dim=1
    ) / p.shape.n_expert_active
    balance = p.shape.n_expert * (use * (probabilities * part).sum(dim=1)).sum(dim=1)
    z = ((logits - logits.log_softmax(dim=-1))[:, :, :1].square() * part).sum(dim=(1, 2))
    p.routings.append(Routing(balance, z))
    p.note_routing(name, x, shares, chosen)
    return shares, chosen
