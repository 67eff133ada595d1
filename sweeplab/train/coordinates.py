"""The coordinate check of muP: the size of activations by width and step.

Yang, Hu et al. 2022, figure 5 and appendix D.1: models of several widths take the same few steps. If a parametrization
is correct, the mean absolute activation of each layer then does not depend on the width. Under `standard` with Adam,
some activations grow with the width, the logits most. Before the first step muP's logits fall as the root of the width,
as they should.

Departure: the output of every matrix product is measured, on one fixed batch: of the head, and inside the blocks; every
expert computes all tokens.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from statistics import linear_regression
from typing import NamedTuple

from sweeplab.data.batches import Split
from sweeplab.data.objectives import make_objective
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.model.shape import ModelShape, check_transformer
from sweeplab.model.tracing import trace
from sweeplab.train.run import TrainingRun
from sweeplab.train.stack import Stack


class Coordinate(NamedTuple):
    """The mean absolute output of a layer's weight, after `step` steps at a width."""

    parametrization: str
    n_embd: int
    step: int
    layer: str
    size: float


def coordinates(values: Hyperparameters, tokens: Split, n_steps: int) -> Iterator[Coordinate]:
    """Train for `n_steps` at the full learning rate, and yield the sizes of activations at each step, from step 0.

    `values` are a run's effective hyperparameters; dropout and warm-ups are turned off.
    """
    check_transformer(ModelShape.of(values), "a coordinate check")
    values = values.replace(
        embedding_dropout=0.0,
        attention_dropout=0.0,
        residual_dropout=0.0,
        warmup_iters=0,
        lr_decay=False,
        patience=None,
        compile=False,
        eval_interval=1,
        eval_tokens=1,
        eval_full=False,
        max_iters=n_steps,
    )
    stack = Stack(values, tokens, tokens)
    stack.admit(TrainingRun("run", values))
    probe = make_objective(tokens, values).training(0, 0)
    head = "token_embedding" if values.tie_weights else "head.weight"
    while len(stack):
        for record in stack.advance():
            weights = stack.weights("run")
            for name, value in trace(stack.transformer.shape, weights, probe):
                layer = head if name == "logits" else f"{name}.weight"
                if layer in weights:
                    size = float(value.abs().mean())
                    yield Coordinate(
                        values.parametrization, values.n_embd, record.iteration, layer, size
                    )
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
    return {
        key: linear_regression(*zip(*pairs, strict=True)).slope for key, pairs in points.items()
    }
