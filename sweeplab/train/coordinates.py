"""The coordinate check of muP: the size of activations by width and step.

Yang, Hu et al. 2022, figure 5 and appendix D.1: models of several widths take the same few steps. If a parametrization
is correct, the mean absolute activation of each layer then does not depend on the width. Under `standard` with Adam,
some activations grow with the width, the logits most. Before the first step muP's logits fall as the root of the width,
as they should.

Departures: the output of every matrix product is measured, on one fixed batch: of the head, and inside the blocks; for
experts over all tokens routed to them. Attention scores are not measured, because the kernel does not return them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from statistics import linear_regression
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from sweeplab.data.batches import Split, changed
from sweeplab.data.objectives import make_objective
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.model.blocks import Normed, Pass
from sweeplab.model.shape import ModelShape, check_transformer
from sweeplab.train.run import TrainingRun
from sweeplab.train.stack import Stack

if TYPE_CHECKING:
    from jaxtyping import Float

_DROPOUT = ("dropout", "embedding_dropout", "attention_dropout", "residual_dropout")


class Coordinate(NamedTuple):
    """The mean absolute output of a layer's weight, after `step` steps at a width."""

    parametrization: str
    n_embd: int
    step: int
    layer: str
    size: float


@dataclass
class _MeasuringPass(Pass):
    """A pass that sums the absolute outputs of each weight's products, and counts them; over all experts together."""

    sizes: dict[str, tuple[float, int]] = field(default_factory=dict)

    def _measure(self, weight: str, product: Tensor) -> Tensor:
        total, count = self.sizes.get(weight, (0.0, 0))
        self.sizes[weight] = total + float(product.abs().sum()), count + product.numel()
        return product

    def linear(self, name: str, normed: Normed) -> Float[Tensor, "K N O"]:
        return self._measure(f"{name}.weight", super().linear(name, normed))

    def expert_mm(self, name: str, run: int, expert: int, x: Float[Tensor, "n C"]) -> Float[Tensor, "n O"]:
        return self._measure(f"{name}.weight", super().expert_mm(name, run, expert, x))

    def note(self, name: str, value: Tensor) -> Tensor:
        head = "token_embedding" if self.shape.tie_weights else "head.weight"
        if name == "logits":
            return self._measure(head, value)
        return value


def coordinates(values: Hyperparameters, tokens: Split, n_steps: int) -> Iterator[Coordinate]:
    """Train for `n_steps` at the full learning rate, and yield the sizes of activations at each step, from step 0.

    `values` are a run's effective hyperparameters; dropout and warm-ups are turned off.
    """
    check_transformer(ModelShape.of(values), "a coordinate check")
    values = values.replace(
        **dict.fromkeys(_DROPOUT, 0.0), warmup_iters=0, lr_decay=False, ema=0.0,
        patience=None, compile=False, eval_interval=1, eval_tokens=1, eval_full=False, log_interval=1,
        max_iters=n_steps,
    )  # fmt: skip
    stack = Stack(values, tokens, tokens)
    stack.admit(TrainingRun("run", values))
    probe = make_objective(tokens, values).training(0, 0)
    batch = changed(probe, lambda part: torch.from_numpy(part[None]).to(values.device))
    while len(stack):
        for record in stack.advance():
            weights = {name: weight[None].to(values.device) for name, weight in stack.weights("run").items()}
            p = _MeasuringPass(stack.transformer.shape, weights, 1, values.batch_size)
            with torch.no_grad():
                stack.transformer.forward(p, batch)
            at = values.parametrization, values.n_embd, record.iteration
            for layer, (total, count) in p.sizes.items():
                yield Coordinate(*at, layer, total / count)
            if record.state != "running":
                stack.release("run")


def growth(rows: Iterable[Coordinate]) -> dict[tuple[str, int, str], float]:
    """Return the exponent of the width with which activations grow, by parametrization, step and layer.

    It is the slope of log size against log width: 0 is flat, NaN means that a size is 0 or not finite.
    """
    points = defaultdict(list)
    for row in rows:
        size = math.log(row.size) if row.size > 0 and math.isfinite(row.size) else math.nan
        points[row.parametrization, row.step, row.layer].append((math.log(row.n_embd), size))
    return {key: linear_regression(*zip(*pairs, strict=True)).slope for key, pairs in points.items()}
