"""The runs of studies, or of a file, whose searched values are compared across sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sweeplab.analysis.studies import counted
from sweeplab.analysis.table import COLUMNS, validate
from sweeplab.analysis.trials import StudyDesign, searched_of
from sweeplab.laws.columns import Conventions
from sweeplab.laws.hyperparameters.runs import Runs, runs_of_frame
from sweeplab.laws.reading import read_frame
from sweeplab.records.runs import RunState

if TYPE_CHECKING:
    import pandas as pd


def tuned_runs(
    runs: pd.DataFrame,
    source: str,
    design: StudyDesign | None = None,
    conventions: Conventions | None = None,
    columns: Mapping[str, str] | None = None,
    named: Mapping[str, str] | None = None,
) -> Runs:
    """Return the runs of studies that ended, with the values that their files search; a row per seed.

    Raises:
        BadInput: the errors of `runs_of_frame`.
    """
    ended = runs[[RunState(state).has_value for state in runs["state"]]]
    table, words_of = counted(ended, conventions or Conventions())
    roles = {role: role for role in ("params", "tokens", "loss") if role in table} | dict(columns or {})
    read = runs_of_frame(table, source, roles, named, only=searched_of(ended, design))
    left = {"without an end": len(runs) - len(ended)}
    meanings = {role: words for role, words in words_of.items() if role in read.said}
    return replace(read, said={**read.said, **meanings}, dropped={**left, **read.dropped})


def file_runs(
    path: Path,
    columns: Mapping[str, str] | None = None,
    named: Mapping[str, str] | None = None,
    where: str = "",
    conventions: Conventions | None = None,
) -> Runs:
    """Return the runs of a file; one that `study export` wrote holds runs of studies, unless `columns` are named.

    Raises:
        BadInput: the errors of `read_frame` and of `runs_of_frame`.
    """
    frame = read_frame(path)
    if columns or not COLUMNS.keys() <= set(map(str, frame)):
        return runs_of_frame(frame, str(path), columns, named, where)
    return tuned_runs(validate(frame), str(path), None, conventions, columns, named)
