"""A study's model in several widths, under each parametrization: the coordinate check."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeplab.errors import BadInput, Problem
from sweeplab.hyperparameters import TABLE
from sweeplab.runs.models import PROBES
from sweeplab.study.cells import FEW, cells_named
from sweeplab.study.datasets import placed_dataset
from sweeplab.study.file.reading import read_study
from sweeplab.study.plan import sample_cell
from sweeplab.study.space import Space
from sweeplab.train.devices import settle_devices

if TYPE_CHECKING:
    from sweeplab.study.spec import StudySpec
    from sweeplab.train.coordinates import Coordinate

# Times mup_base_width, unless widths are given.
TIMES = (1, 2, 4, 8)


@dataclass(frozen=True)
class CoordinateCheck:
    """How large activations are by parametrization, width, step and layer, and by which power of the width they go.

    `powers` is by parametrization, step and layer, 0 where the width does not matter; `values` are what all runs have
    alike of what the study searches.
    """

    study: str
    values: Mapping[str, Any]
    widths: Sequence[int]
    n_steps: int
    rows: Sequence[Coordinate]
    powers: Mapping[tuple[str, int, str], float]

    def steepest(self, parametrization: str) -> tuple[str, float]:
        """Return the layer whose activations go the most with the width after the last step, and its power."""
        last = {
            layer: power
            for (of, step, layer), power in self.powers.items()
            if of == parametrization and step == self.n_steps
        }
        return max(last.items(), key=lambda each: math.inf if math.isnan(each[1]) else abs(each[1]))

    @property
    def parametrizations(self) -> list[str]:
        """Return what is compared, in order."""
        return list(dict.fromkeys(row.parametrization for row in self.rows))

    @property
    def layers(self) -> list[str]:
        """Return the layers from the first to the last."""
        return list(dict.fromkeys(row.layer for row in self.rows))


def check_coordinates(
    file: Path,
    overrides: Sequence[str],
    cell: str | None,
    widths: Sequence[int],
    n_steps: int,
    heard: Callable[[str], None] = lambda what: None,
) -> CoordinateCheck:
    """Train a study's model for some steps in each width and parametrization; `heard` is told which is at work.

    What the study searches has one and the same value everywhere. Without widths they are multiples of mup_base_width.

    Raises:
        BadInput: the study is wrong, has several cells, or cannot have one of the widths.
    """
    from sweeplab.train.coordinates import coordinates, growth

    spec = read_study(file, overrides)
    data = placed_dataset(spec)
    base = int(spec.fixed.get("mup_base_width", TABLE["mup_base_width"].default))
    widths = list(widths) or [base * each for each in TIMES]
    if len(widths) < 2:
        raise BadInput(Problem(f"one width, {widths[0]}", "two or more"))
    models = [
        _values(read_study(file, [*overrides, *changes]), data.tokenizer.vocab_size, cell)
        for parametrization in TABLE["parametrization"].choices
        for width in widths
        for changes in [(f"parametrization={parametrization}", f"n_embd={width}")]
    ]
    rows: list[Coordinate] = []
    for values in models:
        heard(f"{values['parametrization']}, n_embd {values['n_embd']}")
        rows += coordinates(values, data.train, n_steps)
    searched = {
        name: models[0][name] for name in spec.search if len({str(each[name]) for each in models}) == 1
    }
    return CoordinateCheck(spec.name, searched, widths, n_steps, rows, growth(rows))


def _values(spec: StudySpec, vocab_size: int, cell: str | None) -> dict[str, Any]:
    """Return the effective hyperparameters of a study's one cell, at the first point of what is searched."""
    found = cells_named(spec, vocab_size, cell)
    if len(found) > 1:
        keys = " | ".join(each.key for each in found[:FEW])
        raise BadInput(Problem(f"{spec.name} has {len(found)} cells besides its widths", f"--cell {keys}"))
    samples = sample_cell(spec, Space(spec, found[0], vocab_size), PROBES)
    return settle_devices(samples.valid[0])
