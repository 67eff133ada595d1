"""What a run's folder says, read as a tracker needs it: each point once, with a time that never changes.

The time of a number follows from run.json's start and the line's own wall_seconds, not from the clock, so
that shipping the same line again gives the same point again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sweeplab.tracking.tracker import Measure

# What an evaluation finds besides the loss, where the task or the model has it.
MEASURES = ("bits_per_byte", "exact_match", "pseudo_perplexity", "expert_use_max", "expert_use_entropy")
METRICS = (
    "train_loss",
    "val_loss",
    *MEASURES,
    "learning_rate",
    "grad_norm",
    "tokens_per_second",
)
BY_TOKENS = ("train_loss", "val_loss")
OVER_TOKENS = "_by_tokens"  # ends the name of a metric whose steps are tokens
REQUIRED = {"iteration", "train_tokens", "wall_seconds"}
# What it found where the loss was lowest.
BEST_MEASURES = tuple(f"best_{name}" for name in MEASURES)
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


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file, or None when there is no such file."""
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    return content


@dataclass
class RunFolder:
    """Read a run's numbers as they come.

    `tracked` has the last step of every metric that tracking has; what is read is entered there.
    """

    path: Path
    run: Mapping[str, Any]
    tracked: dict[str, int] = field(default_factory=dict)
    _offset: int = 0

    @property
    def started_ms(self) -> int:
        """Return when the run was first admitted, in ms since 1970."""
        return _ms(self.run["started"])

    @property
    def key(self) -> str:
        """Return the run's key inside its study."""
        return str(self.run["key"])

    @property
    def place(self) -> tuple[str, int, int]:
        """Return the run's cell key, trial number and seed."""
        cell, trial, seed = self.key.rsplit("/", 2)
        return cell, int(trial), int(seed)

    def checkpoint(self) -> Path | None:
        """Return the folder of the weights to keep, if the run has one."""
        return next((self.path / name for name in ("best", "last") if (self.path / name).is_dir()), None)

    def facts(self) -> list[Measure]:
        """Return what is known of the run before its first step, but for what tracking has."""
        facts = self.run.get("facts", {})
        return self._new({name: facts.get(name) for name in FACTS}, step=0, wall_seconds=0.0)

    def totals(self, end: Mapping[str, Any]) -> list[Measure]:
        """Return what end.json adds up to, but for what tracking has."""
        values = {name: end.get(source) for name, source in TOTALS.items()}
        return self._new(values, step=end.get("iteration") or 0, wall_seconds=end.get("wall_seconds") or 0.0)

    def points(self) -> Iterator[list[Measure]]:
        """Yield the new lines of points.jsonl, each as its numbers that tracking lacks.

        A line still being written is left for the next call. One that was cut off by a kill is skipped, and
        so are iterations gone through again after it: the first time counts.
        """
        try:
            with (self.path / "points.jsonl").open("rb") as file:
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.split(b"\n"):
            point = _point(line)
            if point is None:
                continue
            values = {name: point.get(name) for name in METRICS}
            measures = self._new(values, step=point["iteration"], wall_seconds=point["wall_seconds"])
            by_tokens = [
                measure._replace(name=measure.name + OVER_TOKENS, step=point["train_tokens"])
                for measure in measures
                if measure.name in BY_TOKENS
            ]
            if measures:
                yield measures + by_tokens

    def _new(self, values: Mapping[str, float | None], step: int, wall_seconds: float) -> list[Measure]:
        timestamp_ms = _ms(self.run["started"] + wall_seconds)
        measures = [
            Measure(name, _finite(value), timestamp_ms, step)
            for name, value in values.items()
            if value is not None and step > self.tracked.get(name, -1)
        ]
        self.tracked.update({measure.name: step for measure in measures})
        return measures


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _finite(value: float) -> float:
    # MLflow keeps an infinity as 1.8e308, which spoils every chart it stands in; a NaN leaves a gap.
    return float(value) if math.isfinite(value) else math.nan


def _point(line: bytes) -> dict[str, Any] | None:
    # Points are flat: after a cut-off line without its newline, the last brace opens the whole one.
    try:
        point = json.loads(line[max(line.rfind(b"{"), 0) :])
    except ValueError:
        return None
    return point if isinstance(point, dict) and point.keys() >= REQUIRED else None
