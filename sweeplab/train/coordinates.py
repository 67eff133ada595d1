"""The coordinate check of muP: how large activations are, by width and step.

Yang, Hu et al. 2022, figure 5 and appendix D.1: models of several widths take a few steps alike; where a
parametrization is right, the mean absolute size of a layer's activations after them does not depend on the width.
Under `standard` with Adam some grow, the logits first. Before the first step muP's logits fall as the root of the
width, which is as it should be.

Departures: every product's output is measured on one fixed batch, the head's and those inside of a block alike, that
of experts over all tokens that they got; attention's scores are not, for its kernel does not show them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from statistics import linear_regression
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from sweeplab.data.batches import Batch, Split, changed
from sweeplab.data.objectives import make_objective
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.train.run import Run
from sweeplab.train.stack import Stack

PRODUCTS = (torch.bmm, torch.baddbmm)
EXPERTS_PRODUCT = torch.mm
_DROPPING = ("dropout", "embedding_dropout", "attention_dropout", "residual_dropout", "stochastic_depth")


class Coordinate(NamedTuple):
    """The mean absolute activation behind a layer's weight, after `step` steps at a width; a row of the figure."""

    parametrization: str
    n_embd: int
    step: int
    layer: str
    size: float


class _Watched(Mapping[str, Tensor]):
    """Weights that remember which of them was read last."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self._weights = weights
        self.last = ""

    def __getitem__(self, name: str) -> Tensor:
        weight = self._weights[name]
        if weight.dim() > 2:  # with the run's dimension: no gain and no bias
            self.last = name
        return weight

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


class _Sizes(TorchFunctionMode):
    """Notes the size of every product by the weight that was read before it.

    The last product of a weight counts, or all those of experts, each of which has its part of the weight.
    """

    def __init__(self, weights: _Watched) -> None:
        super().__init__()
        self._weights = weights
        self._sums: dict[str, tuple[float, int]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in PRODUCTS or func is EXPERTS_PRODUCT:
            name = self._weights.last
            total, count = self._sums.get(name, (0.0, 0)) if func is EXPERTS_PRODUCT else (0.0, 0)
            self._sums[name] = total + float(result.abs().sum()), count + result.numel()
        return result

    def found(self) -> dict[str, float]:
        """Return the mean absolute size by weight."""
        return {name: total / count for name, (total, count) in self._sums.items()}


def coordinates(values: Hyperparameters, tokens: Split, n_steps: int) -> Iterator[Coordinate]:
    """Train for `n_steps` at the full learning rate and yield the sizes at each step, the start's among them.

    `values` are a run's effective hyperparameters; dropout and the warm-ups are left out.
    """
    values = values.replace(
        **dict.fromkeys(_DROPPING, 0.0), warmup_iters=0, batch_warmup_iters=0, lr_decay=False, ema=0.0,
        patience=None, compile=False, eval_interval=1, eval_tokens=1, eval_full=False, log_interval=1,
        max_iters=n_steps,
    )  # fmt: skip
    stack = Stack(values, tokens, tokens)
    stack.admit(Run("run", values))
    probe = next(make_objective(tokens, values).evaluation(1))
    batch = changed(probe, lambda each: torch.from_numpy(each[None]).to(values.device))
    while len(stack):
        for record in stack.advance():
            weights = {name: each[None].to(values.device) for name, each in stack.weights("run").items()}
            for layer, size in _sizes(stack, weights, batch).items():
                yield Coordinate(values.parametrization, values.n_embd, record.iteration, layer, size)
            if record.state != "running":
                stack.release("run")


@torch.no_grad()
def _sizes(stack: Stack, weights: Mapping[str, Tensor], batch: Batch) -> dict[str, float]:
    watched = _Watched(weights)
    sizes = _Sizes(watched)
    with sizes:
        stack.transformer.losses(watched, batch)
    return sizes.found()


def growth(rows: Iterable[Coordinate]) -> dict[tuple[str, int, str], float]:
    """Return the power of the width by which activations go, by parametrization, step and layer.

    The slope of a straight line through the logarithms; 0 is flat, NaN where a size has no logarithm.
    """
    points = defaultdict(list)
    for row in rows:
        size = math.log(row.size) if row.size > 0 and math.isfinite(row.size) else math.nan
        points[row.parametrization, row.step, row.layer].append((math.log(row.n_embd), size))
    return {key: linear_regression(*zip(*found, strict=True)).slope for key, found in points.items()}
