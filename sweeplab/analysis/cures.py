"""What would make a law's numbers better: the causes in its residual with their cures, and a study's next runs.

Each cause of the residual of a study's or a table's law has its cure as a command and its time. The cells of a study
are candidates for its next runs, and a study file trains the chosen ones.
"""

from __future__ import annotations

import json
import math
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sweeplab.analysis.studies import Counting, Studies, file_runs, sizes_of, tuned_runs
from sweeplab.analysis.trials import finite
from sweeplab.data.task import Sizes
from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.formatting import duration, several
from sweeplab.hyperparameters import TABLE, canonical
from sweeplab.laws.assessment import law_for
from sweeplab.laws.causes import EPOCHS, NAMED, REST, SEEDS, SHAPE, TUNING, UNKNOWN
from sweeplab.laws.choosing import along_family
from sweeplab.laws.columns import COUNTS, Array
from sweeplab.laws.cures import diagnose
from sweeplab.laws.hyperparameters.runs import SearchedRuns
from sweeplab.laws.next_runs import MOST, Candidates
from sweeplab.laws.reading import read_frame

if TYPE_CHECKING:
    import pandas as pd

    from sweeplab.analysis.trials import StudyDesign
    from sweeplab.laws.columns import Conventions
    from sweeplab.laws.points import Points
    from sweeplab.records.folders import StudyFolder
    from sweeplab.study.spec import StudySpec

AXES = ("n_layer", "n_embd", "block_size", "batch_size", "max_iters")
STEPS_UP = 3  # beyond the study's largest value of an axis, as far apart as its values are
_DRAWS = 8  # of a cell's space, to see whether its size rests on what is searched
_LONGEST = 480  # letters of an expression, a little under what a study file may have


def study_candidates(
    lab: Path | None, names: Sequence[str], axes: Mapping[str, Array] | None, counting: Counting
) -> tuple[StudySpec, Candidates]:
    """Return the study of all that could be run next, and its cells; the first of the names says how runs are made."""
    from sweeplab.lab.listing import find_study, study_names

    folders = [find_study(lab, name) for name in names]
    spec = candidate_study(folders, study_names(folders[0].lab), axes)
    return spec, cell_candidates(spec, folders[0].data.sizes, counting)


def candidate_study(
    folders: Sequence[StudyFolder], taken: Sequence[str] = (), axes: Mapping[str, Array] | None = None
) -> StudySpec:
    """Return the first study with a new name and the grid of candidates.

    The grid has its own sizes and lengths with values between and above, or the rounded `axes`. There are as many seeds
    as every cell of the study has, all unused so far: a cell that was trained before gives new information.

    Raises:
        BadInput: there is nothing to vary, an axis is not a whole number, or there are too many cells.
    """
    from sweeplab.lab.listing import read_spec
    from sweeplab.study.file.reading import read_study
    from sweeplab.study.spec import DEFAULT_TRIALS_PER_CELL, ConditionalSeed

    specs = [read_spec(folder) for folder in folders]
    spec = specs[0]
    axes = {canonical(name): values for name, values in (axes or {}).items()}
    whole = [name for name, row in TABLE.items() if row.kind == "int" and name != "seed"]
    unknown = [name for name in axes if name not in whole]
    if unknown:
        what = f"--candidates has no {unknown[0]!r} for a study"
        raise BadInput(Problem(what, ", ".join(AXES), nearest(unknown[0], whole)))
    grid = {name: sorted({round(float(value)) for value in values}) for name, values in axes.items()}
    grid = grid or {name: _extended(spec.grid[name]) for name in AXES if name in spec.grid}
    if not grid:
        what = f"the grid of {spec.name} has no size to vary; name one with --candidates"
        raise BadInput(Problem(what, ", ".join(AXES)))
    count = math.prod(len(values) for values in (spec.grid | grid).values())
    if count > MOST:
        many = f"{several(count, 'cell')} are too many"
        raise BadInput(f"{many}: at most {MOST:,}; name fewer with --candidates")
    used = [seed for one in specs for seed in one.seed_numbers]
    each_cell = sum(not isinstance(each, ConditionalSeed) for each in spec.seeds)
    seeds = list(range(max(used) + 1, max(used) + 1 + each_cell))
    trials = spec.budget.trials_per_cell or (DEFAULT_TRIALS_PER_CELL if spec.search else 1)
    overrides = [f"grid.{name}={json.dumps(values)}" for name, values in grid.items()]
    overrides += [f"seeds={json.dumps(seeds)}", f"budget={json.dumps({'trials_per_cell': trials})}"]
    numbered = (f"{spec.name}-next{number}" for number in ("", *range(2, 1000)))
    free = next(each for each in numbered if each not in taken)
    return read_study(folders[0].canonical_file, overrides, free)


def cell_candidates(spec: StudySpec, sizes: Sizes, counting: Counting) -> Candidates:
    """Return the cells of a study with N, D and C counted like the points, and the FLOPs of all runs of each.

    Cells whose size depends on what is searched are left out.

    Raises:
        BadInput: no cell is left; a column that is unknown before a run has ended.
    """
    from sweeplab.study.rules import facts
    from sweeplab.study.space import Space, cells

    rows, kept = [], []
    for cell in cells(spec, sizes)[0]:
        space = Space(spec, cell, sizes)
        drawn = [each for each in space.draws(_DRAWS) if space.broken(each) is None]
        known = [facts(each) for each in drawn]
        if known and all(each == known[0] for each in known):
            rows.append(drawn[0].as_dict() | known[0]._asdict())
            kept.append(cell.values)
    if not rows:
        raise BadInput(f"no cell of {spec.name} has a size before its trials are sampled")
    counted = sizes_of(rows, counting)
    columns = {role: np.array([each[role] for each in counted]) for role in COUNTS}
    runs = len(spec.seeds) * (spec.budget.trials_per_cell or 1)
    cost = runs * np.array([float(row["train_flops"]) for row in rows])
    return Candidates(columns, cost, tuple(kept), weight=len(spec.seeds))


def next_study_text(
    spec: StudySpec, chosen: Sequence[Mapping[str, Any]], times: Sequence[int], why: str
) -> str:
    """Return the study file of some cells of a study; a cell chosen several times gets as many seeds.

    Constraints select the cells from a full grid. `why` is its first line.
    """
    from sweeplab.study.file.template import study_file

    kept: dict[str, Any]
    if spec.cells:
        kept = {"grid": {}, "cells": [dict(zip(cell, _plain(cell.values()), strict=True)) for cell in chosen]}
    else:
        used = {name: {cell[name] for cell in chosen} for name in spec.grid}
        grid = {name: [each for each in values if each in used[name]] for name, values in spec.grid.items()}
        kept = {"grid": {name: _plain(values) for name, values in grid.items()}}
        kept["constraints"] = [*spec.constraints, *_only(chosen, grid)]
    written = spec.as_written()
    kept["seeds"] = [*written["seeds"], *_more_seeds(spec, chosen, times)]
    return study_file(written | kept, [why])


def _extended(values: Iterable[int]) -> list[int]:
    """An axis with a value between each two and some above the last, all multiples of their common divisor."""
    distinct = sorted(set(values))
    if len(distinct) < 2:
        return distinct
    unit = math.gcd(*distinct)
    step = (distinct[-1] / distinct[0]) ** (1 / (len(distinct) - 1))
    between = [math.sqrt(low * high) for low, high in pairwise(distinct)]
    above = [distinct[-1] * step**power for power in range(1, STEPS_UP + 1)]
    return sorted({*distinct, *(max(unit, round(each / unit) * unit) for each in (*between, *above))})


def _only(chosen: Sequence[Mapping[str, Any]], grid: Mapping[str, Sequence[Any]]) -> list[str]:
    """Constraints that leave exactly these cells of a grid: the allowed values after each prefix of a cell."""
    constraints, names = [], list(grid)
    for depth, name in enumerate(names):
        following: dict[tuple[Any, ...], set[Any]] = defaultdict(set)
        for cell in chosen:
            following[tuple(map(cell.get, names[:depth]))].add(cell[name])
        for beginning, allowed in following.items():
            without = [value for value in grid[name] if value not in allowed]
            if not without:
                continue
            other = [f"{before} != {value!r}" for before, value in zip(names, beginning, strict=False)]
            allowed_ones = (f"{name} == {value!r}" for value in grid[name] if value in allowed)
            only = " or ".join([*other, *allowed_ones])
            if len(only) <= _LONGEST:
                constraints.append(only)
            else:
                constraints += [" or ".join([*other, f"{name} != {value!r}"]) for value in without]
    return constraints


def _more_seeds(
    spec: StudySpec, chosen: Sequence[Mapping[str, Any]], times: Sequence[int]
) -> list[dict[str, Any]]:
    """The seeds of cells that are run more than once: as few entries as the length of an expression allows."""
    first, n_seeds = spec.first_seed + len(spec.seeds), len(spec.seeds)
    entries: list[dict[str, Any]] = []
    for repeat in range(1, max(times)):
        parts: list[str] = []
        for cell in (cell for cell, count in zip(chosen, times, strict=True) if count > repeat):
            one = _is_cell(cell)
            if parts and len(f"{parts[-1]} or {one}") <= _LONGEST:
                parts[-1] += f" or {one}"
            else:
                parts.append(one)
        for when in parts:
            entries += [{"seed": first + len(entries) + k, "when": when} for k in range(n_seeds)]
    return entries


def _is_cell(cell: Mapping[str, Any]) -> str:
    return " and ".join(f"{name} == {value!r}" for name, value in cell.items())


def _plain(values: Iterable[Any]) -> list[Any]:
    return [list(value) if isinstance(value, tuple) else value for value in values]


_MINUTES = 600  # seconds from which times are whole minutes
# The column that would split a cause from the others.
_WOULD = {
    SEEDS: "a column seed, with several of each point, would",
    SHAPE: "columns n_layer and n_embd, with unlike shapes of one size, would",
    TUNING: "a column learning_rate, with several of each point, would",
    EPOCHS: "a column epochs or unique_tokens would",
}


def study_causes(
    points: Points,
    runs: pd.DataFrame,
    table: pd.DataFrame,
    conventions: Conventions,
    designs: Mapping[str, StudyDesign],
    studies: Studies | None = None,
    asked: Counting | None = None,
) -> dict[str, Any]:
    """Return the causes in the residual of a study's law, as plain values; without `studies` cures have no command.

    `table` has a row for each point; `asked` is how the user counts, which commands repeat.
    """
    trials = None
    with suppress(BadInput, KeyError):  # nothing was searched, or no number
        trials = tuned_runs(runs, "the study", studies.design if studies else None, conventions)
    lengths = {name: design.train_tokens for name, design in designs.items()}
    tokens = table["study"].astype(str).map(lengths)
    passes = finite(table, "train_tokens").to_numpy(float) / tokens.to_numpy(float, na_value=np.nan)
    seconds = finite(table, "wall_seconds").to_numpy(float)
    causes = _diagnosed(points, trials, passes, len(runs) / points.n, seconds)
    if studies and "causes" in causes:
        name, spec = next(iter(studies.specs.items()))
        cells = [{axis: row[axis] for axis in spec.grid if axis in row} for row in table.to_dict("records")]
        command = partial(study_command, name, spec, cells)
        add_commands(causes, ",".join(studies.specs), asked or Counting(), command)
    return causes


def file_causes(path: Path, counting: Counting) -> dict[str, Any]:
    """Return the causes in the residual of the law of a table's file, as plain values."""
    points = along_family(counting.of_file(path))
    trials = None
    with suppress(BadInput):  # a table of points, or nothing was searched
        trials = file_runs(path, counting.columns, {}, counting.where, counting.conventions)
    frame = read_frame(path)
    word = str(frame.index.name or "row")
    rows = [str(name).removeprefix(f"{word} ") for name in points.names]
    used = frame.set_axis([str(at) for at in frame.index]).reindex(rows)
    runs_each = 1.0 if points.n_rows is None else float(points.n_rows.mean())
    seconds = finite(used, "wall_seconds").to_numpy(float)
    causes = _diagnosed(points, trials, points.passes, runs_each, seconds)
    add_commands(causes, str(path), counting)
    return causes


def _diagnosed(
    points: Points, trials: SearchedRuns | None, passes: Array | None, runs_each: float, seconds: Array
) -> dict[str, Any]:
    """The diagnosis as plain values with a sentence; `why` there is none if no law can be fitted."""
    try:
        diagnosis = diagnose(points, trials, passes, runs_each=runs_each)
    except BadInput as error:
        why = str(error.problems[0])
        none: dict[str, Any] = {"law": None, "fitted": "", "number": None, "causes": []}
        return none | {"n_points": points.n, "sentence": f"no law: {why}"}
    flops = points.columns.get("flops")
    pace = None
    if flops is not None and np.isfinite(seconds).all():
        pace = float(seconds.sum() / flops.sum())
    plain = diagnosis.as_dict(pace)
    for cause in plain["causes"]:
        if cause["state"] == UNKNOWN:
            cause["why"] = f"{cause['why']}: {_WOULD[cause['name']]} tell"
    return plain | {"fitted": law_for(points).name, "sentence": in_words(plain)}


def in_words(causes: Mapping[str, Any]) -> str:
    """Say in one line what keeps a number from being identified, and the cheapest cure."""
    number = causes["number"]
    if not number:
        return "no exponent of the law has an interval"
    half, verdict = f"{number['name']} ±{number['half_width']:.2g}", number["verdict"]
    first = next((each for each in causes["causes"] if each["state"] == NAMED), None)
    words = f"{half} is {verdict}; no cause stands out in the residual of {causes['residual']:.2%}"
    if first:
        ends = f"{first['low']:.0%} to {first['high']:.0%}"
        share = f"{first['share']:.0%} ({ends}) of the residual of {causes['residual']:.2%}"
        words = f"{half} is {verdict}; {share} is {first['name']}"
    else:
        first = next(each for each in causes["causes"] if each["name"] == REST)
    cure = first["cure"]
    if not cure:
        return words
    after = ""
    if cure["half_width"] is not None:
        after = f": ±{number['half_width']:.2g} becomes ±{cure['half_width']:.2g}"
    return f"{words}; cure: {cure['words']}, {time_of(cure)}{after}"


def time_of(cure: Mapping[str, Any]) -> str:
    """Write the time of a cure's runs, or their FLOPs if no time is known."""
    seconds = cure["seconds"]
    if seconds is not None:
        return duration(60 * round(seconds / 60) if seconds > _MINUTES else seconds)
    return f"{cure['flops']:.2g} FLOPs"


def add_commands(
    causes: Mapping[str, Any],
    source: str,
    asked: Counting,
    command: Callable[[Mapping[str, Any]], str | None] = lambda change: None,
) -> None:
    """Give every cure its command, or None: of the laws of a table or study `source`, or what `command` returns.

    `asked` is how the user counts, which the commands of laws repeat.
    """
    for cause in causes["causes"]:
        if not cause["cure"]:
            continue
        change, number = cause["cure"]["change"], causes["number"]
        if "compare" in change:
            words = ["compare", source]
        elif "flops" in change:
            law, budget = causes["law"], f"{change['flops']:.3g}"
            words = ["next", source, "--law", law, "--flops", budget, "--quantity", number["name"]]
        else:
            cause["cure"]["command"] = command(change)
            continue
        cause["cure"]["command"] = shlex.join(["sweeplab", "laws", *words, *asked.options()])


def study_command(
    name: str, spec: StudySpec, cells: list[dict[str, Any]], change: Mapping[str, Any]
) -> str | None:
    """Return the command of a cure of a study with these `cells`, one a point; None if one is too long to write."""
    if "trials" in change:
        return f"sweeplab study extend {name} --trials-per-cell {2 * (spec.budget.trials_per_cell or 1)}"
    begin = f"sweeplab study run {name} --name {name}-"
    if "seeds" in change:
        first = max(spec.seed_numbers) + 1
        seeds = f"{begin}seeds -o 'seeds={list(range(first, first + change['seeds']))}'"
        if len(change["rows"]) == len(cells):
            return seeds
        chosen = (cells[at] for at in change["rows"])
        only = " or ".join(map(_is_cell, chosen))
        if not cells[0] or len(only) > _LONGEST:
            return None
        return f"{seeds} -o 'constraints={json.dumps([*spec.constraints, only])}'"
    if "n_layer" in change:
        widths = ",".join(map(str, change["new"]))
        return f"{begin}depth --grid n_layer={change['n_layer']} --grid n_embd={widths}"
    if "name" in change:
        searched = spec.search[change["name"]]
        low = change.get("min", getattr(searched, "min", None))
        high = change.get("max", getattr(searched, "max", None))
        return f"{begin}wide --search {change['name']}={low:g}..{high:g}"
    if "tokens" in change:
        return f"{begin}corpus -o data.corpus=FOLDER"
    # Whole numbers only, as max_iters is one.
    hundredths = round(100 * change["tokens_per_param"])
    length = f"n_params * {hundredths} // (100 * batch_size * block_size)"
    return f"{begin}tokens -o 'search.max_iters={{expr: {length}}}'"
