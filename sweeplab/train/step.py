"""One training step of a stack: losses, gradients, clipping, the update and the sums of the curve.

`TrainStep` is the only code that takes a step. The ways to take it differ in where it runs: `EagerStep` calls it,
`StagedStep` calls it on a GPU, and `program.py` compiles it.

Legend: K live runs, P the row size, B sequences, T positions, S sites of dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate, chain, islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sweeplab.data.batches import Batch, changed
from sweeplab.data.objectives.base import Objective
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.model.blocks import Dropout, MaskInputs
from sweeplab.model.layout import BLOCK, Layout
from sweeplab.train.optimizers import Optimizer, Rates, Rows

if TYPE_CHECKING:
    from jaxtyping import Float

    from sweeplab.train.member import Point

    Losses = Float[Tensor, "K"]

# Every part that is copied to a device starts at a multiple of this many bytes, so that it can be viewed as any dtype.
ALIGNMENT = 16

Columns = Mapping[str, Tensor]
Autocast = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class StepInputs:
    """What a step reads, and the rows by name [K, …] that it changes in place.

    numbers: [K, n] float64, the runs' hyperparameters for this step; `names` has the names of the columns.
    masks: the inputs of each micro-batch's dropout masks at `sites`; `elements` are the hashes of a mask's elements.
    """

    rows: Mapping[str, Tensor]
    batch: Batch
    names: Sequence[str]
    numbers: Float[Tensor, "K n"]
    masks: Sequence[MaskInputs]
    sites: Sequence[str]
    elements: Tensor

    @cached_property
    def columns(self) -> dict[str, Tensor]:
        """Return each hyperparameter of all runs [K] by its name."""
        return dict(zip(self.names, self.numbers.unbind(1), strict=True))

    @property
    def parts(self) -> list[Tensor]:
        """Return the tensors that differ from step to step [K, …]: the batch, the numbers and the mask inputs."""
        return [
            *(part for part in self.batch if part is not None),
            self.numbers,
            *chain(*self.masks),
        ]

    def tensors(self) -> list[Tensor]:
        """Return all tensors in the order that `with_tensors` takes them."""
        tensors = [*self.rows.values(), *self.parts]
        if self.sites:
            tensors.append(self.elements)
        return tensors

    def with_tensors(self, tensors: Iterable[Tensor]) -> StepInputs:
        """Return inputs of the same structure with other tensors."""
        left = iter(tensors)
        rows = dict(zip(self.rows, islice(left, len(self.rows)), strict=True))
        batch, numbers = changed(self.batch, lambda _: next(left)), next(left)
        masks = [MaskInputs(*islice(left, len(mask))) for mask in self.masks]
        return StepInputs(
            rows, batch, self.names, numbers, masks, self.sites, next(left, self.elements)
        )

    def placed(self, device: torch.device) -> StepInputs:
        """Return the inputs with all parts on a device."""
        tensors = (tensor.to(device, non_blocking=True) for tensor in self.tensors())
        return self.with_tensors(tensors)


class TrainingLoss:
    """Each run's training loss, with the arguments that these values need; `names` are the hyperparameters it takes.

    `losses` computes a transformer's losses, and may be compiled.
    """

    def __init__(
        self, losses: Callable[..., Tensor], objective: Objective, like: Hyperparameters
    ) -> None:
        self.losses, self._objective = losses, objective
        self._smooths, self._routes = like.label_smoothing > 0, like.n_expert > 1
        self._fixed: dict[str, Any] = {
            "dense": objective.dense,
            "candidates": objective.n_candidates,
        }
        if objective.has_own("loss"):
            self._fixed["loss"] = objective.loss
        self.names = [
            *objective.hyperparameters,
            "label_smoothing",
            "router_balance",
            "router_z",
        ]

    def __call__(
        self,
        weights: Mapping[str, Tensor],
        batch: Batch,
        dropout: Dropout | None,
        columns: Columns,
    ) -> Losses:
        """Return the loss of each run on a batch."""
        *hyperparameters, smoothing, balance, z = (
            columns[f"loss.{name}"].float() for name in self.names
        )
        arguments = {**self._fixed, "hyperparameters": hyperparameters}
        if self._smooths:
            arguments["smoothing"] = smoothing
        if self._routes:
            arguments["router"] = balance, z
        return self.losses(weights, batch, dropout, **arguments)

    def parts(self, batch: Batch, n_parts: int) -> Iterator[tuple[Batch, Tensor | None]]:
        """Yield each micro-batch and its share of the batch's losses; a whole batch has no share."""
        if n_parts == 1:
            yield batch, None
            return
        n_losses = self._objective.n_losses(batch)
        for index in range(n_parts):
            part = changed(batch, lambda whole: whole.chunk(n_parts, dim=1)[index])  # noqa: B023
            yield part, self._objective.n_losses(part) / n_losses


def autocast_of(like: Hyperparameters) -> Autocast:
    """Return the context in which a run's passes compute; on a CPU the transformer chooses the products in bfloat16."""
    if like.dtype == "bfloat16" and like.device != "cpu":
        return partial(torch.autocast, like.device, torch.bfloat16)
    return nullcontext


@dataclass(frozen=True)
class TrainStep:
    """A training step of runs of one shape, in `n_parts` micro-batches."""

    layout: Layout
    optimizer: Optimizer
    loss: TrainingLoss
    autocast: Autocast
    n_parts: int

    def __call__(self, inputs: StepInputs, buffers: Sequence[Rows] = ()) -> Losses:
        """Take the step, and return the losses."""
        losses, gradient = self.differentiate(inputs, buffers)
        self.update_(inputs, losses, gradient)
        return losses

    def differentiate(
        self, inputs: StepInputs, buffers: Sequence[Rows] = ()
    ) -> tuple[Losses, Rows]:
        """Return the losses and their gradient; gradients are written into `buffers`, that of the first part into one.

        The losses of micro-batches are weighted by their numbers of targets, so that their sum equals the loss of the
        whole batch. Only the routers' balance loss differs: it is a product of means within each micro-batch.
        """
        views = self.layout.views(inputs.rows["weights"].detach())
        leaves = {name: view.requires_grad_() for name, view in views.items()}
        for index, (batch, share) in enumerate(self.loss.parts(inputs.batch, self.n_parts)):
            dropout = None
            if inputs.masks:
                dropout = Dropout(inputs.masks[index], inputs.sites, inputs.elements)
            with self.autocast():
                of_part = self.loss(leaves, batch, dropout, inputs.columns)
            if share is not None:
                of_part = of_part * share
            pieces = torch.autograd.grad(of_part.sum(), list(leaves.values()))
            buffer = buffers[min(index, 1)] if buffers else None
            gradient_of_part = self.layout.gather(pieces, buffer)
            if index == 0:
                losses, gradient = of_part.detach(), gradient_of_part
            else:
                losses = losses + of_part.detach()
                gradient.add_(gradient_of_part)
        return losses, gradient

    @torch.no_grad()
    def update_(self, inputs: StepInputs, losses: Losses, gradient: Rows) -> None:
        """Clip the gradient, update the weights, and add to the sums of the curve."""
        rows, columns = inputs.rows, inputs.columns
        norms = gradient_norms(gradient)
        clip_(gradient, norms, columns["limit"].float())
        state = {name: rows[name] for name in self.optimizer.buffers()}
        self.optimizer.update_(rows["weights"], gradient, state, Rates.of(columns))
        rows["loss"].add_(losses[:, None])
        rows["norm"].add_(norms[:, None])


def gradient_norms(gradient: Rows) -> Losses:
    """Return the norm of each row of a gradient, computed block by block.

    Over a whole row, a float32 sum would lose several digits, and its bits would depend on the other rows.
    """
    blocks = torch.linalg.vector_norm(gradient.view(gradient.shape[0], -1, BLOCK), dim=2)
    norms: Tensor = torch.linalg.vector_norm(blocks, dim=1)
    return norms


def clip_(gradient: Rows, norms: Losses, limits: Losses) -> None:
    """Scale the rows whose norm is above their own limit down to it; an infinite limit leaves a row unchanged."""
    factors = torch.where(limits.isinf(), 1.0, limits / (norms + 1e-6))
    gradient.mul_(factors.clamp_(max=1.0)[:, None])


# ------------------------------------------------------------------ ways to take a step

# Takes a step: changes the rows among its inputs, the others of which are on the host.
StepWay = Callable[[StepInputs], object]


class EagerStep:
    """Operation by operation. Gradients are written into buffers, which is faster than into new memory."""

    def __init__(self, step: TrainStep, rows: Mapping[str, Tensor]) -> None:
        self._step, self._device = step, rows["weights"].device
        self.buffers = [torch.zeros_like(rows["weights"]) for _ in range(min(step.n_parts, 2))]

    def __call__(self, inputs: StepInputs) -> None:
        """Take the step."""
        if self._device.type != "cpu":
            inputs = inputs.placed(self._device)
        live = [buffer[: len(inputs.numbers)] for buffer in self.buffers]
        self._step(inputs, live)


class StagedStep:
    """On a GPU, with one copy of all inputs to it, and without waiting for it.

    A step computes a power of two of rows, its bucket, so that few shapes are ever seen. The rows after the live runs
    get the inputs of the first run. Their results are never read, because a new run overwrites its whole row.
    """

    def __init__(self, step: TrainStep, rows: Mapping[str, Tensor]) -> None:
        self._step, self._rows, self._device = step, rows, rows["weights"].device

    def __call__(self, inputs: StepInputs) -> None:
        """Copy the inputs, and take the step."""
        n_live = len(inputs.numbers)
        n_rows = bucket(n_live, len(self._rows["weights"]))
        padded = [
            torch.cat([part, part[:1].expand(n_rows - n_live, *part.shape[1:])])
            for part in inputs.parts
        ]
        *offsets, size = accumulate(
            (-(-part.nbytes // ALIGNMENT) * ALIGNMENT for part in padded), initial=0
        )
        # New memory each time: torch reuses it when the copy has finished.
        host = torch.empty(size, dtype=torch.uint8, pin_memory=self._device.type == "cuda")
        for offset, part in zip(offsets, padded, strict=True):
            host[offset : offset + part.nbytes] = part.contiguous().view(torch.uint8).view(-1)
        copied = host.to(self._device, non_blocking=True)
        placed = [
            copied[offset : offset + part.nbytes].view(part.dtype).view(part.shape)
            for offset, part in zip(offsets, padded, strict=True)
        ]
        rows = (self._rows[name][:n_rows] for name in inputs.rows)
        self._step(inputs.with_tensors([*rows, *placed, inputs.elements]))


def bucket(n_live: int, capacity: int) -> int:
    """Return the number of rows that a step of n_live runs computes: the next power of two, at most the capacity."""
    return min(capacity, 1 << (n_live - 1).bit_length())


class LayerNorms:
    """Adds the norms of each layer's gradient, update and weights to the points of the curve that a step gives runs.

    This takes a second backward pass, because a step clips and overwrites its gradient, and a program hides it.
    """

    def __init__(self, step: TrainStep, rows: Mapping[str, Tensor]) -> None:
        self._step, self._weights = step, rows["weights"]
        self._before: dict[int, tuple[dict[str, float], Tensor]] = {}

    def before(self, inputs: StepInputs, rows: Sequence[int]) -> None:
        """Keep the norms of the layers' gradients, and the weights; `rows` are those of the runs that get a point."""
        _, gradient = self._step.differentiate(inputs.placed(self._weights.device))
        norms = self._step.layout.layer_norms
        self._before = {row: (norms(gradient[row]), self._weights[row].clone()) for row in rows}

    def after(self, points: Mapping[int, Point]) -> None:
        """Compare the weights with those before."""
        norms = self._step.layout.layer_norms
        for row, point in points.items():
            gradients, weights = self._before[row]
            updates, sizes = norms(self._weights[row] - weights), norms(weights)
            point["layers"] = {
                name: (size, updates[name], sizes[name]) for name, size in gradients.items()
            }
