"""Runs as tables, the input of every law, figure and export. Columns and their types are defined in one place."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeplab.data.objectives import SETTINGS
from sweeplab.errors import BadInput, DamagedFile, Problem
from sweeplab.files import write_whole
from sweeplab.hyperparameters import CONDITIONS, TABLE, Hyperparameters
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import BEST_MEASURES, END_MEASURES, RunState
from sweeplab.tracking import open_tracker
from sweeplab.tracking.mlflow import MLflowTracker
from sweeplab.tracking.tracker import CURVES as TRACKED
from sweeplab.tracking.tracker import TrackedRun
from sweeplab.train.run import train_tokens

if TYPE_CHECKING:
    import pandas as pd

KEY = ("study", "cell", "trial", "seed")
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
METRICS = tuple(name for name in COLUMNS if name not in {*KEY, "state", "run_id"})

# A pair such as betas stays the text "(0.9, 0.95)": no file format has a column of pairs.
_KINDS = {"int": "Int64", "float": "float64", "bool": "boolean", "str": "string", "floats": "string"}
HYPERPARAMETERS = {name: _KINDS[row.kind] for name, row in TABLE.items() if name not in COLUMNS}

CURVES = {
    "cell": "string",
    "trial": "Int64",
    "seed": "Int64",
    "iteration": "Int64",
    "train_tokens": "Int64",
    "metric": "string",
    "value": "float64",
}  # one row per point

_NOTHING = ("", "None", "nan")
# Types that need no parsing for a column's type: most columns of most tables.
_AT_ONCE = {"int64": {"Int64", "float64"}, "Int64": {"Int64"}, "float64": {"float64"}}
_AT_ONCE |= {"bool": {"boolean"}, "boolean": {"boolean"}}
_TRUTH = {True: True, False: False, "True": True, "False": False}
_WORDS = {"Int64": "a whole number", "float64": "a number", "boolean": "True or False"}


def runs_table(lab: Path, name: str, uri: str | None = None) -> pd.DataFrame:
    """Return a study's runs from tracking, one row per run in any state: COLUMNS, MEASURED, then the hyperparameters.

    Values that tracking omits because they do not apply to a run come from the run's own record, or are missing.

    Raises:
        BadInput: tracking has no such study, or has invalid values.
        TrackingUnavailable: tracking does not answer.
    """
    import pandas as pd

    rows = [
        {"study": name, "cell": run.cell, "trial": run.trial, "seed": run.seed, "state": run.state}
        | {metric: run.metrics.get(metric) for metric in METRICS}
        | {"run_id": run.run_id}
        | {metric: run.metrics[metric] for metric in MEASURED if metric in run.metrics}
        | _not_said(StudyFolder(lab, name), run)
        | {each: text for each, text in run.values.items() if each not in COLUMNS}
        for run in _in_order(open_tracker(lab, name, uri))
    ]
    given = dict.fromkeys(each for row in rows for each in row)
    measured = (each for each in MEASURED if each in given)
    columns = dict.fromkeys([*COLUMNS, *measured, *HYPERPARAMETERS, *given])
    return validate(pd.DataFrame(rows, columns=list(columns), dtype=object))


def _not_said(folder: StudyFolder, run: TrackedRun) -> dict[str, Any]:
    """Return the values of a run that do not apply to it, from its record in the lab; empty without a record."""
    try:
        values = folder.run(run.cell, run.trial, run.seed).read_start().values
    except DamagedFile:
        return {}
    missing = CONDITIONS.keys() - run.values.keys()
    return {
        name: getattr(values, name) for name in CONDITIONS if name in missing and not TABLE[name].automatic
    }


def curves_table(
    lab: Path, name: str, uri: str | None = None, metrics: Sequence[str] = ("train_loss", "val_loss")
) -> pd.DataFrame:
    """Return the points of a study's curves, tidy, one row per point: CURVES.

    Raises:
        BadInput: tracking has no such study.
        TrackingUnavailable: tracking does not answer.
    """
    import pandas as pd

    tracker = open_tracker(lab, name, uri)
    runs = _in_order(tracker)
    ids = [run.run_id for run in runs]
    histories = {metric: tracker.histories(ids, TRACKED.get(metric, metric)) for metric in metrics}
    rows = []
    for run in runs:
        tokens = _tokens_at(run.values)
        rows += [
            (run.cell, run.trial, run.seed, point.step, tokens(point.step), metric, point.value)
            for metric, points in histories.items()
            for point in points[run.run_id]
        ]
    return pd.DataFrame(rows, columns=list(CURVES)).astype(CURVES)


def _tokens_at(texts: Mapping[str, str]) -> Callable[[int], int]:
    """Return a function from iteration to tokens read, for a run of these values."""
    kinds: Mapping[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str}
    names = ("batch_size", "batch_warmup_iters", *SETTINGS)
    given = {name: texts[name] for name in names if texts.get(name, "None") not in _NOTHING}
    values = Hyperparameters.of({name: kinds[TABLE[name].kind](text) for name, text in given.items()})
    return lambda iteration: train_tokens(values, iteration)


def validate(frame: pd.DataFrame) -> pd.DataFrame:
    """Return `frame` with every known column in its type and place; unknown columns stay, at the end.

    No row and no column is dropped. Text is parsed to the column's type, so a table survives a round trip through
    CSV unchanged.

    Raises:
        BadInput: every column that is missing or has a wrong value, unknown states, two rows of one run.
    """
    import pandas as pd

    problems = [Problem(f"column {name!r} is missing") for name in COLUMNS if name not in frame]
    checked = {}
    for name, dtype in (COLUMNS | MEASURED | HYPERPARAMETERS).items():
        if name in frame:
            checked[name], wrong = _typed(frame[name], dtype)
            if name in KEY:
                wrong |= checked[name].isna()
            problems += _wrong(frame[name], wrong, f"column {name!r}", _WORDS.get(dtype, ""))
    typed = frame.assign(**checked)
    if "state" in checked:
        problems += _wrong(
            frame["state"], ~typed["state"].isin([*RunState]), "column 'state'", ", ".join(RunState)
        )
    if set(KEY) <= checked.keys():
        parts = typed[list(KEY)].dropna().astype(str)
        rows = parts.itertuples(index=False, name=None)
        keys = pd.Series(map("/".join, rows), index=parts.index, dtype=object)
        problems += _wrong(keys, keys.duplicated(), "run", "each run once")
    if problems:
        raise BadInput(*problems)
    return typed[[*checked, *(name for name in frame if name not in checked)]]


def pairs_of(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table for Python, with pairs such as betas as tuples instead of text."""
    names = [name for name, row in TABLE.items() if row.kind == "floats" and name in frame]
    texts = {name: frame[name].astype(object) for name in names}
    return frame.assign(
        **{name: column.map(ast.literal_eval, na_action="ignore") for name, column in texts.items()}
    )


def export(frame: pd.DataFrame, path: Path) -> None:
    """Write a table to a .csv or .parquet file, atomically.

    Raises:
        BadInput: another suffix, or a path that cannot be written.
    """
    content = _CONTENTS.get(path.suffix)
    if content is None:
        raise BadInput(Problem(f"{path}: no table has the suffix {path.suffix!r}", " or ".join(_CONTENTS)))
    try:
        write_whole(path, content(frame))
    except OSError as error:
        raise BadInput(f"{path}: cannot be written: {error.strerror or error}") from error


_CONTENTS: dict[str, Callable[[Any], bytes]] = {
    ".csv": lambda frame: frame.to_csv(index=False).encode(),
    ".parquet": lambda frame: frame.to_parquet(index=False),
}


def _in_order(tracker: MLflowTracker) -> list[TrackedRun]:
    return sorted(tracker.runs(), key=lambda run: (_natural(run.cell), run.trial, run.seed))


def _typed(column: pd.Series[Any], dtype: str) -> tuple[pd.Series[Any], pd.Series[bool]]:
    """Return the column in its type, and which of its values could not be parsed."""
    import pandas as pd

    if dtype in _AT_ONCE.get(str(column.dtype), ()):
        return column.astype(dtype), pd.Series(False, index=column.index)  # type: ignore[call-overload]
    there = column.notna() & ~column.isin(_NOTHING)
    given = column.astype(object).where(there, None)
    if dtype == "string":
        return given.astype("string"), ~there & False
    if dtype == "boolean":
        truth = given.map(_TRUTH)
        return truth.astype("boolean"), there & truth.isna()
    numbers = pd.to_numeric(given, errors="coerce").astype("float64")
    wrong = there & numbers.isna()
    if dtype == "Int64":
        wrong |= there & (numbers % 1 != 0)
    return numbers.mask(wrong).astype(dtype), wrong  # type: ignore[call-overload]


def _wrong(column: pd.Series[Any], wrong: pd.Series[bool], where: str, allowed: str) -> list[Problem]:
    wrong = wrong.fillna(True).astype(bool)
    if not wrong.any():
        return []
    rows = column[wrong]
    more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
    return [Problem(f"{where}: {rows.iloc[0]!r} in row {rows.index[0]}{more}", allowed)]


def _natural(text: str) -> list[tuple[float, str]]:
    """Return a key that sorts numbers within a text as numbers: n_embd=32 before n_embd=128."""
    parts = re.split(r"(\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)", text)
    return [(float(part), "") if at % 2 else (0.0, part) for at, part in enumerate(parts)]
