"""Runs as tables, the input of every law, figure and export. Columns and their types are defined in one place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeplab.errors import BadInput, Problem
from sweeplab.files import write_whole
from sweeplab.hyperparameters import AUTO, CONDITIONS, TABLE
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import (
    BEST_MEASURES,
    END_MEASURES,
    CurvePoint,
    CurveReader,
    RunFolder,
    RunState,
)

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = {
    "study": "string",
    "cell": "string",
    "trial": "Int64",
    "seed": "Int64",
    "state": "string",
    "best_val_loss": "float64",
    "final_val_loss": "float64",
    "value": "float64",
    "n_params": "Int64",
    "n_params_active": "Int64",
    "n_params_non_embedding": "Int64",
    "train_tokens": "Int64",
    "train_flops": "float64",
    "wall_seconds": "float64",
    "iterations": "Int64",
    "run_id": "string",
}  # one row per run; whole numbers are Int64, which knows a missing one
# Columns that a table has if any run has them.
MEASURED = dict.fromkeys((*BEST_MEASURES, *END_MEASURES), "float64")

# A pair such as betas stays the text "(0.9, 0.95)": no file format has a column of pairs.
_KINDS = {
    "int": "Int64",
    "float": "float64",
    "bool": "boolean",
    "str": "string",
    "floats": "string",
}
HYPERPARAMETERS = {name: _KINDS[row.kind] for name, row in TABLE.items() if name not in COLUMNS}

_PLACE = {
    "cell": "string",
    "trial": "Int64",
    "seed": "Int64",
    "iteration": "Int64",
    "train_tokens": "Int64",
}
# One row per line of a run's record; `run` counts the runs in their order.
POINTS = {"run": "int64"} | _PLACE
POINTS |= {
    field.name: "float64"
    for field in fields(CurvePoint)
    if field.name not in (*_PLACE, "extra")
}
CURVES = _PLACE | {"metric": "string", "value": "float64"}  # one row per point

# What a row takes from a run's end, under the same name.
_ENDS = (
    "best_val_loss",
    "final_val_loss",
    "value",
    "train_tokens",
    "train_flops",
    "wall_seconds",
)
_AUTOMATIC = {name: applies for name, applies in CONDITIONS.items() if TABLE[name].automatic}
_PAIRS = tuple(name for name, row in TABLE.items() if row.kind == "floats")
_VALUES = attrgetter(*list(POINTS)[4:])


def runs_table(lab: Path, name: str) -> pd.DataFrame:
    """Return a study's runs from their records, one row per run in any state: COLUMNS, MEASURED, the hyperparameters.

    Automatic hyperparameters that do not apply to a run are missing; others have the value that the run was given.

    Raises:
        BadInput: the study has not been run, or a record is damaged.
    """
    import pandas as pd

    folder = StudyFolder(lab, name)
    unfinished = folder.unfinished
    rows = [_row(name, run, unfinished) for run in _in_order(folder)]
    of_plugins = [name for row in rows for name in row if name.startswith("best_")]
    measured = MEASURED | dict.fromkeys(
        (name for name in of_plugins if name not in COLUMNS), "float64"
    )
    measured = {
        name: dtype for name, dtype in measured.items() if any(name in row for row in rows)
    }
    columns = {
        column: pd.array([row.get(column) for row in rows], dtype=dtype)  # type: ignore[call-overload]
        for column, dtype in (COLUMNS | measured | HYPERPARAMETERS).items()
    }
    return pd.DataFrame(columns)


def _row(study: str, run: RunFolder, unfinished: RunState) -> dict[str, Any]:
    start, end = run.read_start(), run.read_end()
    row = dict(vars(start.values))
    for name, applies in _AUTOMATIC.items():
        if row[name] == AUTO or not applies(start.values):
            row[name] = None
    row |= {name: str(row[name]) for name in _PAIRS if row[name] is not None}
    row |= start.facts
    row |= {"study": study, "cell": start.cell, "trial": start.trial, "seed": start.seed}
    row |= {"state": str(unfinished), "run_id": run.tracked_id or None}
    if end:
        row |= {name: getattr(end, name) for name in _ENDS}
        row |= {"state": str(end.state), "iterations": end.iteration}
        if end.state is RunState.DIVERGED:  # it has the iteration of that, and no loss
            return row | dict.fromkeys(("best_val_loss", "final_val_loss", "value"))
        measures = {name: getattr(end, name) for name in END_MEASURES}
        row |= {name: loss for name, loss in measures.items() if loss is not None}
        row |= {f"best_{name}": measure for name, measure in end.best.items()}
    return row


def points_table(lab: Path, name: str) -> pd.DataFrame:
    """Return all points of a study's curves, one row per line of a run's record: POINTS, then a plug-in's measures.

    Raises:
        BadInput: the study has not been run.
    """
    import pandas as pd

    points = [
        ((at, run.cell, run.trial, run.seed), point)
        for at, run in enumerate(_in_order(StudyFolder(lab, name)))
        for point in CurveReader(run).new_points()
    ]
    rows = [(*place, *_VALUES(point)) for place, point in points]
    table = pd.DataFrame(rows, columns=list(POINTS)).astype(POINTS)
    of_plugins = dict.fromkeys(measure for _, point in points for measure in point.extra)
    for measure in of_plugins:
        values = [point.extra.get(measure) for _, point in points]
        table[measure] = pd.array(values, dtype="float64")
    return table


def curves_table(
    lab: Path,
    name: str,
    metrics: Sequence[str] = ("train_loss", "val_loss"),
    points: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Return the points of a study's curves, tidy, one row per point: CURVES.

    `points` is the study's `points_table`, if it has been read. If a run repeated an iteration after a kill, the first
    record counts.

    Raises:
        BadInput: the study has not been run.
    """
    import pandas as pd

    if points is None:
        points = points_table(lab, name)
    tables = []
    for metric in metrics:
        measured = points.assign(metric=metric, value=points.get(metric, float("nan")))
        tables.append(measured[measured["value"].notna()].drop_duplicates(["run", "iteration"]))
    table = pd.concat([each[["run", *CURVES]] for each in tables], ignore_index=True)
    order = table["metric"].map({metric: at for at, metric in enumerate(metrics)})
    table = table.assign(order=order).sort_values(["run", "order", "iteration"], kind="stable")
    return table[list(CURVES)].reset_index(drop=True).astype(CURVES)


def export(frame: pd.DataFrame, path: Path) -> None:
    """Write a table to a .csv or .parquet file, atomically.

    Raises:
        BadInput: another suffix, or a path that cannot be written.
    """
    if path.suffix == ".csv":
        content = frame.to_csv(index=False).encode()
    elif path.suffix == ".parquet":
        content = frame.to_parquet(index=False)
    else:
        raise BadInput(
            Problem(f"{path}: no table has the suffix {path.suffix!r}", ".csv or .parquet")
        )
    try:
        write_whole(path, content)
    except OSError as error:
        raise BadInput(f"{path}: cannot be written: {error.strerror or error}") from error


def check_run(folder: StudyFolder) -> None:
    """Make sure that a study has been run.

    Raises:
        BadInput: it has not.
    """
    if not folder.has_started:
        raise BadInput(f"study {folder.name} has not been run in {folder.lab}")


def _in_order(folder: StudyFolder) -> list[RunFolder]:
    check_run(folder)
    cells = cache(_natural)
    return sorted(folder.runs(), key=lambda run: (cells(run.cell), run.trial, run.seed))


def _natural(text: str) -> list[tuple[float, str]]:
    """A key that sorts numbers within a text as numbers: n_embd=32 before n_embd=128."""
    parts = re.split(r"(\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)", text)
    return [(float(part), "") if at % 2 else (0.0, part) for at, part in enumerate(parts)]
