"""Gradient flow of a run on disk: gradients.jsonl, one line per point of its curve if `track` asks for it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sweeplab.files import GrowingFile
from sweeplab.records.runs import RunFolder, append_lines, finite_or_none

Norms = tuple[float | None, float | None, float | None]


@dataclass(frozen=True)
class GradientPoint:
    """The norms in one step of each layer's gradient (before clipping), update and weights, in the order of the layers.

    `iteration` counts the steps including this one. A norm that is not finite is None.
    """

    iteration: int
    layers: Mapping[str, Norms]


def append_gradients(folder: RunFolder, points: Iterable[GradientPoint]) -> None:
    """Append points to a run's file."""
    lines = [
        {
            "iteration": point.iteration,
            **{name: list(map(finite_or_none, own)) for name, own in point.layers.items()},
        }
        for point in points
    ]
    if lines:
        append_lines(folder.gradients_file, map(json.dumps, lines))


def read_gradients(folder: RunFolder) -> list[GradientPoint]:
    """Return a run's points by iteration; if it repeated an iteration after a kill, the first record counts."""
    lines = GrowingFile(folder.gradients_file).new_lines().split(b"\n")
    found = {point.iteration: point for line in reversed(lines) if (point := _point(line))}
    return [found[iteration] for iteration in sorted(found)]


def _point(line: bytes) -> GradientPoint | None:
    try:
        said = json.loads(line)
        at = int(said.pop("iteration"))
        layers = {
            name: (*(None if each is None else float(each) for each in own),) for name, own in said.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):  # a kill may have cut the line off
        return None
    if any(len(own) != 3 for own in layers.values()):
        return None
    return GradientPoint(at, {name: (g, u, w) for name, (g, u, w) in layers.items()})
