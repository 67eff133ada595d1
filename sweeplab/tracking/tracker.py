"""The contract of trackers, and the conversion of a run's records into the numbers that they keep.

A tracker ships run folders: it reads what a worker wrote (run.json, points.jsonl, end.json, the checkpoint) and brings
the tracking up to date with it. Shipping is idempotent, so after a kill the next process simply ships again: a number's
timestamp is computed from run.json's start and the line's own wall_seconds, not taken from the clock.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Required, TypedDict

from sweeplab.hyperparameters import TABLE
from sweeplab.records.runs import (
    MEASURES,
    CurveReader,
    RunEnd,
    RunFolder,
    RunStart,
)

# What the task measures, if it does; bits per byte are the loss in another unit.
_MEASURED = tuple(name for name in MEASURES if name != "bits_per_byte")
# A point's fields -> their names in tracking. The scheduled rate is `lr`, to distinguish it from the hyperparameter.
CURVES = {
    name: name
    for name in ("train_loss", "val_loss", *_MEASURED, "grad_norm", "tokens_per_second")
} | {"learning_rate": "lr"}
BY_TOKENS = "val_loss_by_tokens"  # the curve whose steps are tokens
# MLflow's scatter charts have no logarithmic axes.
SIZE, LOG_SIZE = "n_params", "log10_n_params"
# MLflow's status of runs and studies that a killed process left, or that may continue later: a clock in the UI.
WAITING = "SCHEDULED"
# The folder in a study's folder where each worker writes its use of its machine, and MLflow's prefix of such series.
USE = "system"
# What end.json has of a run. MLflow draws a chart for every name: a run of a language model has a dozen in all.
TOTALS = (
    "best_val_loss",
    "value",
    "train_flops",
    "wall_seconds",
    *(f"best_{name}" for name in _MEASURED),
)


class StudySummary(TypedDict, total=False):
    """The state of a study, when it opens and when it closes; `best_run` is a run key, `counts` runs by state.

    `state` is "complete", "failed", or anything else for a study that can be continued. `best_value` is a value of the
    objective's `metric`, and `best_searched` has the searched values of its trial.
    """

    state: Required[str]
    metric: str
    best_value: float | None
    best_run: str | None
    best_searched: Mapping[str, Any]
    counts: Mapping[str, int]


class Description(TypedDict, total=False):
    """The description of a study when it opens: the study file's text, its plan, its environment, its state.

    `note` is Markdown, for people; `changes` has patches of what was not committed, by file name.
    """

    study: str
    changes: Mapping[str, str]
    plan: Mapping[str, Any]
    environment: Mapping[str, Any]
    params: Mapping[str, Any]
    note: str
    summary: StudySummary


class Measure(NamedTuple):
    """One number of a run: `step` counts iterations, or tokens in BY_TOKENS."""

    name: str
    value: float
    timestamp_ms: int
    step: int


class Mirror(ABC):
    """Shows the runs of one study in a tracking service; nothing is read back.

    Every method may raise TrackingUnavailable, and may be called again after it.
    """

    @abstractmethod
    def open(self, description: Description) -> str:
        """Find or create the study, bring its description up to date, and return its id."""

    @abstractmethod
    def ship(self, folder: Path) -> bool:
        """Bring tracking up to date with a run's folder; return whether the run has ended and is completely sent."""

    def ship_use(self) -> None:  # noqa: B027 - some services watch machines by themselves
        """Send what the workers have written of the use of their machines since the last call."""

    @abstractmethod
    def close(self, summary: StudySummary) -> None:
        """Write the study's state and best values."""


@dataclass
class RunMeasures:
    """Reads a run's numbers as they are written, each once."""

    folder: RunFolder
    start: RunStart

    def __post_init__(self) -> None:
        self._curve, self._iterations = CurveReader(self.folder), set[int]()

    @property
    def started_ms(self) -> int:
        """Return when the run was first admitted, in ms since 1970."""
        return round(self.start.started * 1000)

    def facts(self) -> list[Measure]:
        """Return the numbers known before the run's first step."""
        size = self.start.facts.get(SIZE)
        known = {SIZE: size, LOG_SIZE: math.log10(size)} if size else {}
        return self._new(known, step=0, wall_seconds=0.0)

    def totals(self, end: RunEnd) -> list[Measure]:
        """Return the totals of end.json."""
        record = end.as_json()
        values = {name: record.get(name) for name in TOTALS}
        values |= {
            f"best_{name}": value for name, value in end.best.items() if name not in MEASURES
        }
        return self._new(values, end.iteration, end.wall_seconds)

    def new_points(self) -> Iterator[list[Measure]]:
        """Yield the new points of the curve, each as the list of its numbers.

        If a run repeated an iteration after a kill, the first record counts.
        """
        for point in self._curve.new_points():
            if point.iteration in self._iterations:
                continue
            self._iterations.add(point.iteration)
            measures = self._new(
                {tracked: getattr(point, name) for name, tracked in CURVES.items()}
                | dict(point.extra),
                point.iteration,
                point.wall_seconds,
            )
            if measures:
                by_tokens = self._new(
                    {BY_TOKENS: point.val_loss}, point.train_tokens, point.wall_seconds
                )
                yield measures + by_tokens

    def _new(
        self, values: Mapping[str, float | None], step: int, wall_seconds: float
    ) -> list[Measure]:
        timestamp_ms = round((self.start.started + wall_seconds) * 1000)
        return [
            # MLflow stores an infinity as 1.8e308, which spoils every chart with it; a NaN leaves a gap.
            Measure(
                name, float(value) if math.isfinite(value) else math.nan, timestamp_ms, step
            )
            for name, value in values.items()
            if value is not None
        ]


def rounded(start: RunStart) -> dict[str, str]:
    """Return the searched values that are no integers with the four digits that a column of a table has room for."""
    return {
        name: str(float(f"{value:.4g}"))
        for name, value in start.sampled.items()
        if isinstance(value, float) and name in TABLE
    }


def run_name(start: RunStart) -> str:
    """Return a name that distinguishes a run: its cell, its trial, and its seed if that is not 0."""
    name = f"{start.cell} #{start.trial}"
    if start.seed:
        return f"{name} seed {start.seed}"
    return name
