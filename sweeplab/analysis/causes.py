"""The residual of a study's or a table's law by its causes, each with its cure as a command and its time."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sweeplab.analysis.studies import Counting, Studies, file_runs, tuned_runs
from sweeplab.analysis.trials import finite
from sweeplab.errors import BadInput
from sweeplab.formatting import duration
from sweeplab.laws.assessment import law_for
from sweeplab.laws.causes import EPOCHS, NAMED, REST, SEEDS, SHAPE, TUNING, UNKNOWN
from sweeplab.laws.choosing import along_family
from sweeplab.laws.columns import Array
from sweeplab.laws.cures import diagnose
from sweeplab.laws.hyperparameters.runs import Runs
from sweeplab.laws.reading import read_frame

if TYPE_CHECKING:
    import pandas as pd

    from sweeplab.analysis.trials import StudyDesign
    from sweeplab.laws.columns import Conventions
    from sweeplab.laws.points import Points
    from sweeplab.study.spec import StudySpec

_LONGEST = 480  # letters of an expression, a little under what a study file may have
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
    causes = _diagnosed(
        points,
        trials,
        passes,
        len(runs) / points.n,
        finite(table, "wall_seconds").to_numpy(float),
    )
    if studies and "causes" in causes:
        name, spec = next(iter(studies.specs.items()))
        cells = [{axis: row[axis] for axis in spec.grid if axis in row} for row in table.to_dict("records")]
        add_commands(
            causes, ",".join(studies.specs), asked or Counting(), partial(study_command, name, spec, cells)
        )
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
    n_rows = points.n_rows if points.n_rows is not None else np.ones(points.n)
    causes = _diagnosed(
        points,
        trials,
        points.passes,
        float(n_rows.mean()),
        finite(used, "wall_seconds").to_numpy(float),
    )
    add_commands(causes, str(path), counting)
    return causes


def _diagnosed(
    points: Points, trials: Runs | None, passes: Array | None, runs_each: float, seconds: Array
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
        only = " or ".join(
            " and ".join(f"{axis} == {value!r}" for axis, value in cell.items()) for cell in chosen
        )
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
