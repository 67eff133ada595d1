"""A run's records as tracking has them: numbers, each at its step, each once, with a time that never changes.

The time of a number follows from run.json's start and the line's own wall_seconds, not from the clock, so
that shipping the same line again gives the same point again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from sweeplab.records.runs import BEST_MEASURES, MEASURES, CurveReader, RunEnd, RunFolder, RunStart

CURVES = ("train_loss", "val_loss", *MEASURES, "learning_rate", "grad_norm", "tokens_per_second")
LOSSES_BY_TOKENS = ("train_loss", "val_loss")
BY_TOKENS = "_by_tokens"  # ends the name of a metric whose steps are tokens
FACTS = ("n_params", "n_params_active", "n_params_non_embedding")
TOTALS = {
    "train_tokens": "train_tokens",
    "train_flops": "train_flops",
    "wall_seconds": "wall_seconds",
    "best_val_loss": "best_val_loss",
    "final_val_loss": "final_val_loss",
    "iterations": "iteration",
    "value": "value",
    **{name: name for name in BEST_MEASURES},
}  # a metric's name -> its name in end.json


class Measure(NamedTuple):
    """One number of a run: `step` counts iterations, or tokens where the name ends in `_by_tokens`."""

    name: str
    value: float
    timestamp_ms: int
    step: int


@dataclass
class RunMeasures:
    """Reads a run's numbers as they come.

    `tracked` has the last step of every metric that tracking has; what is read is entered there.
    """

    folder: RunFolder
    start: RunStart
    tracked: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._curve = CurveReader(self.folder)

    @property
    def started_ms(self) -> int:
        """Return when the run was first admitted, in ms since 1970."""
        return _ms(self.start.started)

    def facts(self) -> list[Measure]:
        """Return what is known of the run before its first step, but for what tracking has."""
        return self._new({name: self.start.facts.get(name) for name in FACTS}, step=0, wall_seconds=0.0)

    def totals(self, end: RunEnd) -> list[Measure]:
        """Return what end.json adds up to, but for what tracking has."""
        values = {name: getattr(end, source) for name, source in TOTALS.items()}
        return self._new(values, end.iteration, end.wall_seconds)

    def new_points(self) -> Iterator[list[Measure]]:
        """Yield the new points of the curve, each as its numbers that tracking lacks.

        Of an iteration that a run went through again after a kill the first time counts.
        """
        for point in self._curve.new_points():
            values = {name: getattr(point, name) for name in CURVES}
            measures = self._new(values, point.iteration, point.wall_seconds)
            by_tokens = [
                measure._replace(name=measure.name + BY_TOKENS, step=point.train_tokens)
                for measure in measures
                if measure.name in LOSSES_BY_TOKENS
            ]
            if measures:
                yield measures + by_tokens

    def _new(self, values: Mapping[str, float | None], step: int, wall_seconds: float) -> list[Measure]:
        timestamp_ms = _ms(self.start.started + wall_seconds)
        measures = [
            # MLflow keeps an infinity as 1.8e308, which spoils every chart it stands in; a NaN leaves a gap.
            Measure(name, float(value) if math.isfinite(value) else math.nan, timestamp_ms, step)
            for name, value in values.items()
            if value is not None and step > self.tracked.get(name, -1)
        ]
        self.tracked.update({measure.name: step for measure in measures})
        return measures


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
