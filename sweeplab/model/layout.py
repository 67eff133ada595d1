"""Where each weight of a run lies in its row of the stack's one flat buffer.

A stack holds its weights as one tensor [K, P]: a run is a row, a weight is a view. Matrices come first, so
that the ones that decay are a prefix; the row is padded to whole blocks, over which norms are taken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from sweeplab.model.accounting import n_params
from sweeplab.model.declaring import declared
from sweeplab.model.parametrization import std_factor
from sweeplab.model.shape import ModelShape
from sweeplab.model.weights import Weight

BLOCK = 1024


class Layout:
    """The order of a model's weights in a row, and the ways in and out of it."""

    def __init__(self, shape: ModelShape) -> None:
        self.shape = shape
        self.weights: Sequence[Weight] = sorted(declared(shape), key=lambda weight: not weight.decays)
        self.n_params = sum(weight.size for weight in self.weights)
        self.n_decayed = sum(weight.size for weight in self.weights if weight.decays)
        if self.n_params != n_params(shape):
            raise AssertionError(f"{self.n_params} weights, but accounting says {n_params(shape)}")

    @cached_property
    def row_size(self) -> int:
        """Return the length of a row: the parameters, padded to whole blocks."""
        return -(-self.n_params // BLOCK) * BLOCK

    @cached_property
    def _sizes(self) -> list[int]:
        return [*(weight.size for weight in self.weights), self.row_size - self.n_params]

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Split rows [K, row_size] into weights [K, *shape] by name, without copying."""
        n_runs = flat.shape[0]
        pieces = torch.split(flat, self._sizes, dim=1)
        return {
            weight.name: piece.view(n_runs, *weight.shape)
            for weight, piece in zip(self.weights, pieces, strict=False)
        }

    def gather(self, pieces: Sequence[Tensor], out: Tensor) -> None:
        """Copy one tensor [K, *shape] a weight, in their order, into rows [K, row_size] with padding of zeros.

        Into a buffer that is there, and not by differentiating with respect to the rows themselves: autograd
        would put them together in fresh memory each time, which costs several times as much.
        """
        n_runs = out.shape[0]
        torch.cat([piece.reshape(n_runs, -1) for piece in pieces], dim=1, out=out[:, : self.n_params])
        out[:, self.n_params :].zero_()  # a run that diverged here may have left a NaN behind

    def row_of(self, weights: Mapping[str, Tensor]) -> Tensor:
        """Return a run's weights by name as its row [row_size]."""
        row = torch.zeros(1, self.row_size)
        for name, view in self.views(row).items():
            view.copy_(weights[name])
        return row[0]

    def initial_row(self, seed: int) -> Tensor:
        """Draw a run's initial weights [row_size] from a generator of its own, on the CPU on any machine."""
        generator = torch.Generator().manual_seed(seed)
        row = torch.zeros(1, self.row_size)
        for weight, view in zip(self.weights, self.views(row).values(), strict=True):
            if weight.std is None:
                view.fill_(weight.fill)
            elif weight.uniform:
                bound = weight.std * math.sqrt(3.0)
                view.uniform_(-bound, bound, generator=generator)
            else:
                factor = std_factor(weight.name, len(weight.shape), self.shape.width_ratio)
                view.normal_(0.0, weight.std * factor, generator=generator)
        return row[0]
