"""The models of a study, or of hyperparameters alone: their parameters part by part, and the coordinate check."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sweeplab.data import DataSizes, Sizes
from sweeplab.errors import BadInput, Problem
from sweeplab.formatting import several
from sweeplab.hyperparameters import AUTO, TABLE, Hyperparameters
from sweeplab.lab.listing import file_of
from sweeplab.model import accounting
from sweeplab.model.shape import ModelShape
from sweeplab.study.file.reading import read_plain, read_study
from sweeplab.study.file.resolve import preset
from sweeplab.study.inputs import study_dataset
from sweeplab.study.plan import sample_cell
from sweeplab.study.space import FEW, spaces_named
from sweeplab.study.spec import StudySpec
from sweeplab.train.devices import settle_devices

# Samples of a cell's space; the median one by size is shown.
PROBES = 64
# A spec without a file needs a data section; the data are not read.
DATA = {"corpus": "python-docs", "tokenizer": "byte"}
# The widths, as multiples of mup_base_width.
TIMES = (1, 2, 4, 8)
STEPS = 4  # of each model in the coordinate check


@dataclass(frozen=True)
class Sized:
    """A model to count: the name of its cell or preset, its shape, and notes on it."""

    name: str
    shape: ModelShape
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return its parameters part by part, fit for JSON."""
        shape = self.shape
        return {
            "model": self.name,
            "total": accounting.n_params(shape),
            "active": accounting.n_params_active(shape),
            "parts": [
                {**asdict(term), "parameters": term.count} for term in accounting.terms(shape)
            ],
            "notes": list(self.notes),
        }


def model_of(name: str, overrides: Sequence[str] = ()) -> Sized:
    """Return the model of a preset, with `name=value` overrides.

    Raises:
        BadInput: an override is wrong, or the overrides describe several models.
    """
    spec = read_plain({"name": name, "data": DATA}, [f"--preset {name}", *overrides])
    sizes, published = None, preset(name)
    if spec.fixed.get("vocab_size", AUTO) == AUTO and published.vocab_size is not None:
        sizes = DataSizes(published.vocab_size)
    shapes = _shapes(spec, sizes)
    if len(shapes) > 1:
        raise BadInput(
            Problem(
                f"these are {several(len(shapes), 'model')}", "one value per hyperparameter"
            )
        )
    (shape,) = shapes.values()
    is_published = all(each.startswith("vocab_size=") for each in overrides)
    return Sized(name, shape, published.notes if is_published else ())


def models_of(
    file: Path, overrides: Sequence[str] = (), cell: str | None = None
) -> list[Sized]:
    """Return the models of a study's cells, each the median by size of the models sampled in the cell.

    Raises:
        BadInput: the file is wrong, its data are missing, or it has no such cell.
    """
    spec = read_study(file_of(file), overrides)
    shapes = _shapes(spec, study_dataset(spec).sizes, cell)
    return [Sized(key, shape) for key, shape in shapes.items()]


def _shapes(spec: StudySpec, sizes: Sizes, cell: str | None = None) -> dict[str, ModelShape]:
    return {
        space.cell.key: ModelShape.of(sample_cell(spec, space, PROBES).median)
        for space in spaces_named(spec, sizes, cell)
    }


def check_coordinates(
    file: Path,
    overrides: Sequence[str],
    cell: str | None,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Train a study's model for `STEPS` in each width and parametrization; `say` gets each one.

    Return the sizes of activations by parametrization, width, step and layer, the power of the width that each grows
    with, and the layer whose activations depend most on the width after the last step, by parametrization. Searched
    hyperparameters have the same value in all of them. The widths are multiples of mup_base_width.

    Raises:
        BadInput: the study is wrong, has several cells, or does not allow one of the widths.
    """
    from sweeplab.train.coordinates import Coordinate, coordinates, growth

    spec = read_study(file, overrides)
    data = study_dataset(spec)
    base = int(spec.fixed.get("mup_base_width", TABLE["mup_base_width"].default))
    models = []
    for parametrization, factor in itertools.product(TABLE["parametrization"].choices, TIMES):
        changes = [*overrides, f"parametrization={parametrization}", f"n_embd={base * factor}"]
        models.append(_values_of(read_study(file, changes), data.sizes, cell))
    rows = list[Coordinate]()
    for values in models:
        say(f"{values.parametrization}, n_embd {values.n_embd}")
        rows += coordinates(values, data.training(values), STEPS)
    powers: list[dict[str, Any]] = [
        {"parametrization": parametrization, "step": step, "layer": layer, "power": power}
        for (parametrization, step, layer), power in growth(rows).items()
    ]
    at_last = [row for row in powers if row["step"] == STEPS]
    at_last.sort(key=lambda row: math.inf if math.isnan(row["power"]) else abs(row["power"]))
    steepest = {row["parametrization"]: row for row in at_last}
    return {
        "study": spec.name,
        "sizes": [row._asdict() for row in rows],
        "powers": powers,
        "steepest": steepest,
    }


def _values_of(spec: StudySpec, sizes: Sizes, cell: str | None) -> Hyperparameters:
    spaces = spaces_named(spec, sizes, cell)
    if len(spaces) > 1:
        keys = " | ".join(space.cell.key for space in spaces[:FEW])
        what = f"{spec.name} has {several(len(spaces), 'cell')} besides its widths"
        raise BadInput(Problem(what, f"--cell {keys}"))
    samples = sample_cell(spec, spaces[0], PROBES)
    return settle_devices(samples.valid[0])
