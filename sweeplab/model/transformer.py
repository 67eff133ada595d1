"""Compute the logits and losses of a stack of transformers of any family.

Legend: K runs, B sequences per batch, T positions, S positions of a source, C n_embd, V vocab_size, N = B*T.
A single run is a stack of one. No result of a run depends on the other runs, its row or K: products are batched over K,
attention folds K into its batch dimension, and losses are means within a run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from sweeplab.data.batches import NO_TARGET, Batch
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.model.attention import AttentionMask, by_run, n_weights, position_bias, windows
from sweeplab.model.blocks import (
    Dropout,
    KVCache,
    Normed,
    Pass,
    Site,
    Weights,
    at_least_float32,
    forward_side,
    product,
)
from sweeplab.model.kernels import token_losses
from sweeplab.model.layout import Layout
from sweeplab.model.shape import ACTIVATIONS, ModelShape, Side, check_logits, make_module

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from sweeplab.model.blocks import Tokens

    PerRun = Float[Tensor, "K"]
    Logits = Float[Tensor, "K N V"]

# bfloat16 products of odd sizes can be many times slower, so the head's columns are padded to a multiple of this.
PADDED_VOCABULARY = 8


class Transformer:
    """Computes the logits and losses of a stack of runs; the caller holds the weights.

    Weights are the layout's views. A batch's tensors have a leading K. `mixed` is for CPUs with matrix units: large
    products are in bfloat16; small products, attention, norms, the residual stream and losses stay in float32.
    """

    caches = True  # whether next_logits takes a cache

    def __init__(self, shape: ModelShape, mixed: bool = False) -> None:
        self.shape, self.mixed = shape, mixed
        self.layout = Layout(shape)

    @property
    def max_length(self) -> int:
        """Return how many tokens the model can read at most, 0 for no limit."""
        if self.shape.positions == "learned":
            return self.shape.block_size
        return 0

    @cached_property
    def sites(self) -> dict[str, Site]:
        """Return every place of dropout in the model, by name: of embeddings, attention weights and residuals."""
        kinds: dict[str, str] = {}
        for side in reversed(self.shape.of_family.sides):
            kinds[f"{side.prefix}embedding"] = "embedding"
            for layer, part in itertools.product(
                range(self.shape.layers(side)), side.sub_layers
            ):
                name = f"{side.prefix}blocks.{layer}.{part}"
                if part != "feed_forward":
                    kinds[name] = "attention"
                kinds[f"{name}.residual"] = "residual"
        return {name: Site(index, kind) for index, (name, kind) in enumerate(kinds.items())}

    def max_mask_size(self, n_sequences: int) -> int:
        """Return the largest number of elements in one run's dropout mask: of activations or attention weights."""
        shape, length = self.shape, self.shape.block_size
        weights = max(
            n_weights(length, length, side.causal, window)
            for side in shape.of_family.sides
            for window in {*windows(shape, side), None}
        )
        return n_sequences * max(length * shape.n_embd, shape.n_head * weights)

    def losses(
        self,
        w: Weights,
        batch: Batch,
        dropout: Dropout | None = None,
        smoothing: PerRun | None = None,
        router: tuple[PerRun, PerRun] | None = None,
        hyperparameters: Sequence[PerRun] = (),
        dense: bool = False,
        candidates: int = 0,
        loss: Callable[..., PerRun] | None = None,
    ) -> PerRun:
        """Return each run's mean cross-entropy in nats over its counted targets: those that are not -1.

        `smoothing` is the share of a target's probability that is spread over all tokens. `router` has the weights of
        the routers' balance and z losses, which are added. `dense` promises that every target counts. With `candidates`
        only the last `candidates` tokens can be predicted. An objective with a loss of its own gives `loss` in place of
        the cross-entropy, and its `hyperparameters`.
        """
        p = self._pass(w, batch, dropout)
        logits, targets = candidate_logits(self.forward(p, batch), batch.targets, candidates)
        if loss is None:
            losses = cross_entropy(logits, targets, smoothing, dense)
        else:
            losses = loss(logits, batch._replace(targets=targets), smoothing, *hyperparameters)
        if router is not None:
            balance, z = router
            for routing in p.routings:
                losses = losses + balance * routing.balance + z * routing.z
        return losses

    def logits(self, w: Weights, batch: Batch) -> Logits:
        """Return the logits of a batch with at most block_size positions."""
        return self.forward(self._pass(w, batch), batch)

    def next_logits(
        self, w: Weights, batch: Batch, cache: KVCache | None = None
    ) -> Float[Tensor, "K B V"]:
        """Return the logits of the token after each sequence of a batch without padding.

        With a cache the inputs are only the tokens after the cached ones, and are added to it. The first call also
        caches the encoder's output.
        """
        p = self._pass(w, batch, cache=cache)
        hidden = self._last_hidden(p, batch)
        last = hidden.x.view(p.n_runs, p.n_sequences, -1, self.shape.n_embd)[:, :, -1]
        if cache:
            cache.length += batch.inputs.shape[2]
        return self._head(p, hidden._replace(x=last))

    def forward(self, p: Pass, batch: Batch) -> Logits:
        """Return the logits of a pass over a batch."""
        return self._head(p, self._last_hidden(p, batch))

    def _pass(
        self,
        w: Weights,
        batch: Batch,
        dropout: Dropout | None = None,
        cache: KVCache | None = None,
    ) -> Pass:
        n_runs, n_sequences, _ = batch.inputs.shape
        return Pass(self.shape, w, n_runs, n_sequences, dropout, cache, self.mixed)

    def _last_hidden(self, p: Pass, batch: Batch) -> Normed:
        encoder, side = self.shape.of_family.sides[0], self.shape.of_family.sides[-1]
        source = p.cache.source if p.cache else None
        if side.has_cross and source is None:
            assert batch.source is not None  # an encoder_decoder's batch has one
            mask = self._mask(p, encoder, batch.source, batch.source_lengths)
            encoded = forward_side(p, encoder, batch.source, mask, None).affine()
            source = encoded, AttentionMask(False, mask.present)
            if p.cache:
                p.cache.source = source
        mask = self._mask(p, side, batch.inputs, batch.lengths)
        return forward_side(p, side, batch.inputs, mask, source)

    def _mask(
        self, p: Pass, side: Side, tokens: Tokens, lengths: Int[Tensor, "K B"] | None
    ) -> AttentionMask:
        mask = AttentionMask(side.causal)
        if lengths is not None:
            mask.present = torch.arange(
                tokens.shape[2], device=tokens.device
            ) < lengths.reshape(-1, 1)
        if self.shape.positions in ("alibi", "relative"):
            mask.bias = partial(position_bias, p.w, self.shape, side.prefix, side.causal)
        return mask

    def _head(self, p: Pass, hidden: Normed) -> Float[Tensor, "K n V"]:
        shape, w = self.shape, p.w
        if shape.of_family.transforms:
            transformed = p.linear("head.transform", hidden)
            # The head has no gate.
            activation = ACTIVATIONS["gelu" if shape.is_gated else shape.activation]
            hidden = p.normalize("head.norm", by_run(activation.apply, transformed, p.n_runs))
        weight = w["token_embedding" if shape.tie_weights else "head.weight"]
        if shape.tie_scale:
            weight = weight * shape.n_embd**-0.5
        if shape.width_ratio != 1.0:
            weight = weight / shape.width_ratio
        v = shape.vocab_size
        kind = hidden.x.device.type
        if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
            weight = F.pad(weight, (0, 0, 0, -v % PADDED_VOCABULARY))
        logits = product(hidden, weight.transpose(1, 2), mixed=p.mixed)[:, :, :v]
        if "head.bias" in w:
            logits = logits + w["head.bias"][:, None]
        return p.note("logits", logits.contiguous())


def candidate_logits(logits: Logits, targets: Tokens, count: int) -> tuple[Tensor, Tokens]:
    """Return the logits of the last `count` tokens, with targets numbered from the first one; 0 changes nothing."""
    if not count:
        return logits, targets
    first = logits.shape[-1] - count
    return logits[..., first:].contiguous(), torch.where(
        targets == NO_TARGET, NO_TARGET, targets - first
    )


def cross_entropy(
    logits: Logits,
    targets: Tokens,
    smoothing: PerRun | None = None,
    dense: bool = False,
) -> PerRun:
    """Return each run's mean cross-entropy over its counted targets; see `Transformer.losses`."""
    flat, logits = targets.flatten(1), at_least_float32(logits)
    counted = flat != NO_TARGET
    losses = token_losses(logits, flat.clamp(min=0))
    if smoothing is not None:
        uniform = (
            losses
            + logits.gather(2, flat.clamp(min=0)[:, :, None])[:, :, 0]
            - logits.mean(dim=-1)
        )
        losses = losses + smoothing.to(losses.dtype)[:, None] * (uniform - losses)
    if dense:
        return losses.mean(dim=1)
    return losses.masked_fill(~counted, 0.0).sum(dim=1) / counted.sum(dim=1).clamp(min=1)


# ------------------------------------------------------------------ a plugin's model


_SITE = "module"


class PluggedModel(Transformer):
    """Computes as a `Transformer` does, with the module that a plugin makes from a run's hyperparameters.

    Each run is computed by itself, by the module as a function of its parameters. What the module draws in training,
    such as dropout masks, depends on the run's seed and its step alone, so that a run continues with the same bits;
    evaluations draw nothing.

    Raises:
        BadInput: the module cannot be made.
        ValueError: its parameters depend on other values than its shape's and its own rows.
    """

    caches = False

    def __init__(self, values: Hyperparameters, mixed: bool = False) -> None:
        self.shape, self.mixed = ModelShape.of(values), mixed
        self.layout = Layout(self.shape)
        self._module = make_module(values)
        self._is_checked = False
        sizes = {
            name: tuple(parameter.shape) for name, parameter in self._module.named_parameters()
        }
        if sizes != {weight.name: weight.shape for weight in self.layout.weights}:
            allowed = "parameters that depend on the model's hyperparameters and its own alone"
            raise ValueError(
                f"model {self.shape.model} has other parameters in this run; allowed: {allowed}"
            )

    @property
    def max_length(self) -> int:
        """Return block_size: a module need not be defined beyond it."""
        return self.shape.block_size

    @cached_property
    def sites(self) -> dict[str, Site]:
        """Return one place, whose key of a step is the seed of all that the module draws in it."""
        return {_SITE: Site(0, _SITE)}

    def max_mask_size(self, n_sequences: int) -> int:
        """Return 0: the module makes its own masks."""
        return 0

    def forward(self, p: Pass, batch: Batch) -> Logits:
        """Return the logits of a pass over a batch; with dropout as in training.

        Raises:
            ValueError: the module returns other logits, or changes a buffer, which no snapshot keeps.
        """
        runs = [
            self._of_run(
                {name: weight[run] for name, weight in p.w.items()}, tokens, p.dropout, run
            )
            for run, tokens in enumerate(batch.inputs)
        ]
        return torch.stack([logits.flatten(0, 1) for logits in runs])

    def next_logits(
        self, w: Weights, batch: Batch, cache: KVCache | None = None
    ) -> Float[Tensor, "K B V"]:
        """Return the logits of the token after each sequence; every token is read again."""
        logits = self.logits(w, batch)
        return logits.view(*batch.inputs.shape, -1)[:, :, -1]

    def _of_run(self, w: Weights, tokens: Tensor, dropout: Dropout | None, run: int) -> Tensor:
        """Return the logits of a run; in training torch's generators start from the run's key and are restored."""
        self._module.to(tokens.device).train(dropout is not None)
        buffers = {}
        if dropout and not self._is_checked:
            buffers = {name: buffer.clone() for name, buffer in self._module.named_buffers()}
        devices = [tokens.device] if tokens.is_cuda else []
        half = torch.autocast("cpu", torch.bfloat16) if self.mixed else nullcontext()
        with half, torch.random.fork_rng(devices, enabled=dropout is not None):
            if dropout:
                torch.manual_seed(dropout.key(_SITE, run))
            logits = functional_call(self._module, dict(w), (tokens,))
        for name, before in buffers.items():
            if not torch.equal(before, self._module.get_buffer(name)):
                what = f"forward of model {self.shape.model} changes its buffer {name}"
                raise ValueError(
                    f"{what}, which no snapshot keeps; allowed: buffers that stay as they are"
                )
        self._is_checked = self._is_checked or dropout is not None
        return check_logits(self.shape.model, logits, (*tokens.shape, self.shape.vocab_size))


def model_of(values: Hyperparameters, mixed: bool = False) -> Transformer:
    """Return what computes a run: sweeplab's transformer, or the module of a plugin."""
    shape = ModelShape.of(values)
    if shape.is_plugin:
        return PluggedModel(values, mixed)
    return Transformer(shape, mixed)
