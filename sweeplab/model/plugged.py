"""Compute the logits and losses of a plugin's model, behind the calls of the transformer.

The caller holds the weights, as rows of a stack: each of its runs is computed by itself, by the module as a function of
its parameters. What the module draws in training, such as dropout masks, depends on the run's seed and its step alone,
so that a run continues with the same bits; evaluations draw nothing.

Legend: K runs, B sequences, T positions, V vocab_size.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.func import functional_call

from sweeplab.data.batches import Batch
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.model.blocks import Dropout, KVCache, Pass, Site, Weights
from sweeplab.model.layout import Layout
from sweeplab.model.modules import check_logits, make_module
from sweeplab.model.shape import ModelShape
from sweeplab.model.transformer import Transformer

if TYPE_CHECKING:
    from jaxtyping import Float

_SITE = "module"


class PluggedModel(Transformer):
    """Computes as a `Transformer` does, with the module that a plugin makes from a run's hyperparameters.

    Raises:
        BadInput: the module cannot be made.
        ValueError: its parameters depend on other values than its shape's and its own rows.
    """

    caches = False

    def __init__(self, values: Hyperparameters, mixed: bool = False) -> None:
        self.shape, self.mixed = ModelShape.of(values), mixed
        self.layout = Layout(self.shape)
        self._module = make_module(values)
        self._device, self._is_checked = torch.device("cpu"), False
        sizes = {name: tuple(parameter.shape) for name, parameter in self._module.named_parameters()}
        if sizes != {weight.name: weight.shape for weight in self.layout.weights}:
            allowed = "parameters that depend on the model's hyperparameters and its own alone"
            raise ValueError(f"model {self.shape.model} has other parameters in this run; allowed: {allowed}")

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

    def forward(self, p: Pass, batch: Batch) -> Float[Tensor, "K N V"]:
        """Return the logits of a pass over a batch; with dropout as in training.

        Raises:
            ValueError: the module returns other logits, or changes a buffer, which no snapshot keeps.
        """
        runs = [
            self._of_run({name: weight[run] for name, weight in p.w.items()}, tokens, p.dropout, run)
            for run, tokens in enumerate(batch.inputs)
        ]
        return torch.stack([logits.flatten(0, 1) for logits in runs])

    def next_logits(self, w: Weights, batch: Batch, cache: KVCache | None = None) -> Float[Tensor, "K B V"]:
        """Return the logits of the token after each sequence; every token is read again."""
        logits = self.logits(w, batch)
        return logits.view(*batch.inputs.shape, -1)[:, :, -1]

    def _of_run(self, w: Weights, tokens: Tensor, dropout: Dropout | None, run: int) -> Tensor:
        if tokens.device != self._device:
            self._module.to(tokens.device)
            self._device = tokens.device
        self._module.train(dropout is not None)
        buffers = {}
        if dropout and not self._is_checked:
            buffers = {name: buffer.clone() for name, buffer in self._module.named_buffers()}
        half = torch.autocast("cpu", torch.bfloat16) if self.mixed else nullcontext()
        with half, self._drawing(dropout.key(_SITE, run) if dropout else None):
            logits = functional_call(self._module, dict(w), (tokens,))
        for name, before in buffers.items():
            if not torch.equal(before, self._module.get_buffer(name)):
                what = f"forward of model {self.shape.model} changes its buffer {name}"
                raise ValueError(f"{what}, which no snapshot keeps; allowed: buffers that stay as they are")
        self._is_checked = self._is_checked or dropout is not None
        return check_logits(self.shape.model, logits, (*tokens.shape, self.shape.vocab_size))

    @contextmanager
    def _drawing(self, seed: int | None) -> Iterator[None]:
        """Let torch's generators start from a seed, and restore them; without one nothing is drawn."""
        if seed is None:
            yield
            return
        devices = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(seed)
            yield


def model_of(values: Hyperparameters, mixed: bool = False) -> Transformer:
    """Return what computes a run: sweeplab's transformer, or the module of a plugin."""
    shape = ModelShape.of(values)
    if shape.is_plugin:
        return PluggedModel(values, mixed)
    return Transformer(shape, mixed)
