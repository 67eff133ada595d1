"""A transformer of any family, as a stack: every weight has a leading run dimension.

Legend: K runs, B sequences a batch, T positions, S positions of a source, C n_embd, V vocabulary, N = B*T.
A lone run is a stack of one. Nothing a run computes depends on its neighbors, its row or K: products are
batched over K, attention folds K into its batch, losses are means within a run.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from sweeplab.data.batches import NO_TARGET, Batch
from sweeplab.model.activations import ACTIVATIONS, by_run
from sweeplab.model.attention import ATTENTION, cross_kind
from sweeplab.model.attention.base import AttentionMask
from sweeplab.model.blocks import KVCache, Normed, Pass, Routing, Source, Weights, product, through
from sweeplab.model.dropout import Dropout, Site
from sweeplab.model.layout import Layout
from sweeplab.model.positions import POSITIONS
from sweeplab.model.shape import ModelShape, Side

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from sweeplab.model.blocks import Tokens

# bfloat16 products with odd sizes can be many times slower: the head's columns are padded to a multiple of this.
PADDED_VOCABULARY = 8


class Transformer:
    """Computes logits and losses of a stack of runs from their weights; keeps none itself.

    Weights are the layout's views; a batch's tensors have a leading K. `mixed` is for CPUs with matrix units: large
    products are of bfloat16; attention, norms, the residual stream and losses stay float32, and so do small products.
    """

    def __init__(self, shape: ModelShape, mixed: bool = False) -> None:
        self.shape, self.mixed = shape, mixed
        self.layout = Layout(shape)

    @cached_property
    def sites(self) -> dict[str, Site]:
        """Return every place of the model where something may be dropped, by name.

        Kinds are embedding, attention (weights), residual, and depth (a sub-layer of a sequence), whose chance rises
        linearly over a side's layers (Huang et al., "Deep networks with stochastic depth", 2016).
        """
        found: dict[str, tuple[str, float]] = {}
        depths: dict[str, tuple[str, float]] = {}
        for side in reversed(self.shape.of_family.sides):
            found[f"{side.prefix}embedding"] = ("embedding", 1.0)
            n_layer = self.shape.layers(side)
            for layer in range(n_layer):
                block = f"{side.prefix}blocks.{layer}"
                for part in side.sub_layers:
                    if part != "feed_forward" and ATTENTION[self.shape.attention].has_scores:
                        found[f"{block}.{part}"] = ("attention", 1.0)
                    found[f"{block}.{part}.residual"] = ("residual", 1.0)
                    depths[f"{block}.{part}.depth"] = ("depth", (layer + 1) / n_layer)
        return {name: Site(index, *of) for index, (name, of) in enumerate({**found, **depths}.items())}

    def most_dropped(self, n_sequences: int) -> int:
        """Return the most elements that one mask of a run has: activations, or attention weights."""
        shape, length = self.shape, self.shape.block_size
        kinds = {ATTENTION[shape.attention], cross_kind(shape.attention)}
        weights = max(
            kind.n_weights(shape, length, length, side.causal) if kind.has_scores else 0
            for kind in kinds
            for side in shape.of_family.sides
        )
        return n_sequences * max(length * shape.n_embd, shape.n_head * weights)

    def losses(
        self,
        w: Weights,
        batch: Batch,
        dropout: Dropout | None = None,
        smoothing: Float[Tensor, "K"] | None = None,
        router: tuple[Float[Tensor, "K"], Float[Tensor, "K"]] | None = None,
        beta: Float[Tensor, "K"] | None = None,
        dense: bool = False,
        candidates: int = 0,
    ) -> Float[Tensor, "K"]:
        """Return each run's mean cross-entropy in nats over its counted targets: those that are not -1.

        `smoothing` is the share of a target's probability spread over all tokens; `router` has the weights of the
        routers' losses, balance and z, which are added. With `beta` the batch is of preferences, and the loss the mean
        over them of what `preference_losses` has. `dense` promises that every target counts, `candidates` that
        it is one of so many tokens, the vocabulary's last: where there are some, no other token can be found. With
        one candidate the batch is of scores, and the loss their mean squared error.
        """
        p = self._pass(w, batch, dropout)
        logits, targets = among(self.computed(p, batch), batch.targets, candidates)
        if beta is None and candidates == 1:
            assert batch.reference is not None  # a batch of scores has it
            losses = F.mse_loss(scores(logits, targets), batch.reference, reduction="none").mean(dim=1)
        elif beta is None:
            losses = cross_entropy(logits, targets, smoothing, dense)
        else:
            assert batch.reference is not None  # a batch of preferences has it
            margins = reward_margins(logits, targets, batch.reference, beta)
            losses = preference_losses(margins, smoothing).mean(dim=1)
        if router is not None:
            balance, z = router
            for routing in p.routings:
                losses = losses + balance * routing.balance + z * routing.z
        return losses

    def logits(self, w: Weights, batch: Batch, dropout: Dropout | None = None) -> Float[Tensor, "K N V"]:
        """Return logits of a batch, of at most block_size positions."""
        return self.computed(self._pass(w, batch, dropout), batch)

    def next_logits(self, w: Weights, batch: Batch, cache: KVCache | None = None) -> Float[Tensor, "K B V"]:
        """Return logits of the token after each sequence of a batch without padding.

        With a cache the inputs are only the tokens after those that it has; it takes them in, and keeps what was made
        of the source the first time.
        """
        p = self._pass(w, batch, cache=cache)
        read = self._read(p, batch)
        last = read.x.view(p.n_runs, p.n_sequences, -1, self.shape.n_embd)[:, :, -1]
        if cache:
            cache.length += batch.inputs.shape[2]
        return self._head(p, read._replace(x=last))

    def routings(self, w: Weights, batch: Batch) -> list[Routing]:
        """Return how each layer's router chose on a batch, the encoder's layers first."""
        p = self._pass(w, batch)
        self.computed(p, batch)
        return p.routings

    def encoded(self, p: Pass, batch: Batch) -> Source:
        """Return what an encoder_decoder's encoder makes of a batch's source [K, B*S, C], and its mask."""
        side = self.shape.of_family.sides[0]
        assert batch.source is not None  # an encoder_decoder's batch has one
        mask = self._mask(p, side, batch.source, batch.source_lengths)
        encoded = through(p, side, batch.source, mask, None).whole()
        return encoded, AttentionMask(False, mask.n_runs, mask.present)

    def computed(self, p: Pass, batch: Batch) -> Float[Tensor, "K N V"]:
        """Return the logits of a pass over a batch."""
        return self._head(p, self._read(p, batch))

    def _pass(
        self, w: Weights, batch: Batch, dropout: Dropout | None = None, cache: KVCache | None = None
    ) -> Pass:
        n_runs, n_sequences, _ = batch.inputs.shape
        return Pass(self.shape, w, n_runs, n_sequences, dropout, cache, self.mixed)

    def _read(self, p: Pass, batch: Batch) -> Normed:
        """Take a batch through the side that has the head."""
        side = self.shape.of_family.sides[-1]
        source = p.cache.source if p.cache else None
        if side.crosses and source is None:
            source = self.encoded(p, batch)
            if p.cache:
                p.cache.source = source
        mask = self._mask(p, side, batch.inputs, batch.lengths)
        return through(p, side, batch.inputs, mask, source)

    def _mask(self, p: Pass, side: Side, tokens: Tokens, lengths: Int[Tensor, "K B"] | None) -> AttentionMask:
        """Return what a side's positions see of each other."""
        encoding, present = POSITIONS[self.shape.positions].bias, None
        if lengths is not None:
            present = torch.arange(tokens.shape[2], device=tokens.device) < lengths.reshape(-1, 1)
        bias = partial(encoding, p.w, self.shape, side.prefix, side.causal) if encoding else None
        return AttentionMask(side.causal, p.n_runs, present, bias)

    def _head(self, p: Pass, read: Normed) -> Float[Tensor, "K n V"]:
        shape, w = self.shape, p.w
        if shape.of_family.transforms:
            wide = p.linear("head.transform", read)
            activation = ACTIVATIONS["gelu" if shape.is_gated else shape.activation]  # without a gate
            read = p.normed("head.norm", by_run(activation.apply, wide, p.n_runs))
        weight = w["token_embedding"] if shape.tie_weights else w["head.weight"]
        if shape.tie_scale:
            weight = weight * shape.n_embd**-0.5
        if shape.width_ratio != 1.0:
            weight = weight / shape.width_ratio
        v = shape.vocab_size
        kind = read.x.device.type
        is_half = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
        missing = -v % PADDED_VOCABULARY if is_half else 0
        if missing:
            weight = F.pad(weight, (0, 0, 0, missing))
        logits = product(read, weight.transpose(1, 2), mixed=p.mixed)[:, :, :v]
        if "head.bias" in w:
            logits = logits + w["head.bias"][:, None]
        return p.note("logits", logits.contiguous())


def among(logits: Float[Tensor, "K N V"], targets: Tokens, candidates: int) -> tuple[Tensor, Tokens]:
    """Return the logits of the last `candidates` tokens, and targets counted from the first of them; all if none."""
    if not candidates:
        return logits, targets
    first = logits.shape[-1] - candidates
    return logits[..., first:].contiguous(), torch.where(targets == NO_TARGET, NO_TARGET, targets - first)


def cross_entropy(
    logits: Float[Tensor, "K N V"],
    targets: Tokens,
    smoothing: Float[Tensor, "K"] | None = None,
    dense: bool = False,
) -> Float[Tensor, "K"]:
    """Return each run's mean over its counted targets: see `losses`."""
    n_runs, flat = targets.shape[0], targets.reshape(-1)
    given = _log_softmax(logits)
    each = F.nll_loss(given, flat, reduction="none", ignore_index=NO_TARGET)
    if smoothing is not None:
        even = -given.mean(dim=-1)
        share = smoothing.to(each.dtype).repeat_interleave(flat.shape[0] // n_runs)
        each = each + share * (even * (flat != NO_TARGET) - each)
    each = each.view(n_runs, -1)
    if dense:
        return each.mean(dim=1)
    return each.sum(dim=1) / (flat != NO_TARGET).view(n_runs, -1).sum(dim=1).clamp(min=1)


def _log_softmax(logits: Float[Tensor, "K N V"]) -> Float[Tensor, "K*N V"]:
    logits = logits.flatten(0, 1)
    return (logits if logits.dtype == torch.float64 else logits.float()).log_softmax(dim=-1)


def scores(logits: Float[Tensor, "K N 1"], targets: Tokens) -> Float[Tensor, "K B"]:
    """Return the logit at each sequence's one counted target."""
    found = logits if logits.dtype == torch.float64 else logits.float()
    return torch.where(targets == NO_TARGET, 0.0, found.view(targets.shape)).sum(dim=2)


def log_probabilities(logits: Float[Tensor, "K N V"], targets: Tokens) -> Float[Tensor, "K B"]:
    """Return the log-probability of each sequence's counted targets, all together."""
    each = F.nll_loss(_log_softmax(logits), targets.reshape(-1), reduction="none", ignore_index=NO_TARGET)
    return -each.view(targets.shape).sum(dim=2)


def reward_margins(
    logits: Float[Tensor, "K N V"], targets: Tokens, reference: Float[Tensor, "K B"], beta: Float[Tensor, "K"]
) -> Float[Tensor, "K B/2"]:
    """Return by how much the reward of each chosen answer is above that of the rejected one, the sequence after it.

    An answer's reward is beta times what its log-probability has gained on the `reference`'s, that of the run's start:
    what a policy that is best for some reward and close to the start says of it (Rafailov et al. 2023, eq. 5).
    """
    rewards = beta[:, None] * (log_probabilities(logits, targets) - reference)
    return rewards[:, 0::2] - rewards[:, 1::2]


def preference_losses(
    margins: Float[Tensor, "K P"], smoothing: Float[Tensor, "K"] | None = None
) -> Float[Tensor, "K P"]:
    """Return the losses of direct preference optimization, -log sigmoid(margin) (Rafailov et al. 2023, eq. 7).

    They are the nats that a Bradley-Terry model with these rewards needs to say which answer is chosen: log 2 at the
    start. `smoothing` is the share of preferences taken to be the wrong way round (Mitchell 2023, conservative DPO).
    """
    losses = -F.logsigmoid(margins)
    return losses if smoothing is None else losses + smoothing[:, None] * margins
