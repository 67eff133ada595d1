"""Finished trials from elsewhere, and whether they fit a study: what a warm start is made of.

A trial fits where the study would train it just so: a cell of the same values, the searched values inside their
ranges, and all else that moves a loss equal. A table that does not say a hyperparameter is taken to agree.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeplab.errors import BadInput, Problem
from sweeplab.hyperparameters import TABLE, Hyperparameter
from sweeplab.lab.listing import find_study, read_spec
from sweeplab.records.runs import RunState
from sweeplab.study.parameters import Scalar
from sweeplab.study.places import shown
from sweeplab.study.space import Cell, Space
from sweeplab.study.spec import TABLE_SUFFIX
from sweeplab.train.devices import settle_devices

if TYPE_CHECKING:
    from sweeplab.study.spec import Objective, StudySpec

# Outcomes of trials that a sampler can learn from.
LEARNABLE = {state for state in RunState if state.counts_towards_budget}
# Which column of a table values a trial: the first that is there; losses where the study values a trial by them.
VALUES, LOSSES = ("value",), ("val_loss",)
# A loss does not rest on these.
_IDLE = frozenset(
    row.name
    for row in TABLE.values()
    if row.category in ("logging", "generation") or row.name in ("seed", "device", "compile")
)
_CLOSE = 1e-9  # between a number and itself, written with 10 digits or more
_MOST_PLACES = 5


@dataclass(frozen=True)
class Row:
    """A trial of another study, or a line of a table; `iteration` is where it ended, if that is known."""

    place: str
    values: Mapping[str, Any]
    outcome: str
    value: float | None
    iteration: int | None = None


@dataclass(frozen=True)
class Known:
    """A row that fits: the cell that it comes into, and its parameters as Optuna stores them."""

    row: Row
    cell: Cell
    parameters: dict[str, Scalar]


@dataclass(frozen=True)
class Source:
    """A study, or a table at its absolute path: its rows that fit, and why the others do not, with their places."""

    name: str
    known: list[Known]
    refused: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Return what a plan says of the source, fit for JSON."""
        return {"from": self.name, "trials": len(self.known), "refused": self.refused}


def read_warm_starts(
    spec: StudySpec, lab: Path, spaces: Sequence[Space], data: Mapping[str, Any], gone: Collection[str] = ()
) -> list[Source]:
    """Return what a study starts from; a source that is not there any more is left out where `gone` names it.

    `data` describes the study's own corpus.

    Raises:
        BadInput: a source cannot be read, is of other data, or has no row that fits; says which rows and why.
    """
    found: list[Source] = []
    problems: list[Problem] = []
    for index, name in enumerate(spec.warm_starts):
        try:
            found.append(_fitted(name, list(_rows(spec, lab, name, data)), spaces))
        except _Gone as error:
            problems += [] if name in gone else [_placed(spec, index, each) for each in error.problems]
        except BadInput as error:
            problems += [_placed(spec, index, each) for each in error.problems]
    if problems:
        raise BadInput(*problems)
    return found


class _Gone(BadInput):
    """There is nothing where a source should be."""


def _placed(spec: StudySpec, index: int, problem: Problem) -> Problem:
    return spec.problem(("warm_start", index), problem.what, problem.allowed, problem.nearest)


def _fitted(name: str, rows: Sequence[Row], spaces: Sequence[Space]) -> Source:
    known, refused = [], defaultdict[str, list[str]](list)
    for row in rows:
        try:
            cell, parameters = _fit(row, spaces)
        except _Unfit as reason:
            refused[str(reason)].append(row.place)
        else:
            known.append(Known(row, cell, parameters))
    reasons = [f"{_places(places)}: {reason}" for reason, places in refused.items()]
    if not known:
        raise BadInput(f"no trial of {name} fits: {'; '.join(reasons) or 'it has none'}")
    return Source(name, known, reasons)


def _places(places: Sequence[str]) -> str:
    some = ", ".join(places[:_MOST_PLACES]) + (", …" if len(places) > _MOST_PLACES else "")
    return f"{len(places)} ({some})" if len(places) > 1 else some


# ------------------------------------------------------------------ does a row fit?


class _Unfit(Exception):  # noqa: N818 - a finding, not a failure
    """Says why a row does not fit, in words that are the same for all rows of this kind."""


def _fit(row: Row, spaces: Sequence[Space]) -> tuple[Cell, dict[str, Scalar]]:
    """Return the cell of a row and its parameters.

    Raises:
        _Unfit: it has none.
    """
    if row.outcome not in LEARNABLE:
        raise _Unfit(f"{row.outcome}, not finished")
    if RunState(row.outcome).has_value and (row.value is None or not math.isfinite(row.value)):
        raise _Unfit("without a value that is a number")
    grid = [name for name in spaces[0].cell.values if all(name in each.cell.values for each in spaces)]
    for name in grid:
        if name not in row.values:
            raise _Unfit(f"without {name}, which is in the grid")
    agreeing = [space for space in spaces if _agrees(row.values, space.cell.values)]
    if not agreeing:
        raise _Unfit(f"no cell has {', '.join(f'{name}={shown(row.values[name])}' for name in grid)}")
    space = max(agreeing, key=lambda each: len(each.cell.values))  # one that changes nothing agrees with all
    try:
        parameters, ours = space.fitted(row.values)
    except ValueError as error:
        raise _Unfit(str(error)) from error
    settled = settle_devices(ours)
    for name, value in row.values.items():
        if name not in _IDLE and not _same(value, settled[name]):
            raise _Unfit(f"{name} is {shown(value)} there and {shown(settled[name])} here")
    if rule := space.broken(ours):
        raise _Unfit(f"breaks {rule}")
    return space.cell, parameters


def _agrees(values: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(name in values and _same(values[name], value) for name, value in wanted.items())


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(_same, one, other))
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (one, other))
    return math.isclose(one, other, rel_tol=_CLOSE) if numbers else bool(one == other)


# ------------------------------------------------------------------ where rows come from


def _rows(spec: StudySpec, lab: Path, source: str, data: Mapping[str, Any]) -> Iterator[Row]:
    if source.endswith(TABLE_SUFFIX):
        return _table_rows(Path(source), spec.objective)
    return _study_rows(spec, lab, source, data)


def _study_rows(spec: StudySpec, lab: Path, name: str, data: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the trials of another study, each by the run of its first seed."""
    if name == spec.name:
        raise BadInput("a study does not start from itself")
    try:
        folder = find_study(lab, name)
    except BadInput as error:
        raise _Gone(*error.problems) from error
    theirs = read_spec(folder)
    if theirs.objective != spec.objective:
        told = [f"{each.objective.metric}, {each.objective.at}" for each in (theirs, spec)]
        raise BadInput(f"study {name} values a trial by {told[0]}, and this one by {told[1]}")
    described = json.loads(folder.data_file.read_text(encoding="utf-8"))
    if described["token_digest"] != data["token_digest"]:
        raise BadInput(f"study {name} was trained on other tokens: its losses cannot be compared")
    if described.get("init_digest") != data.get("init_digest"):
        raise BadInput(f"study {name} started from other weights: its losses cannot be compared")
    seen = set()
    for run in folder.runs():
        place = f"{run.cell}/{run.trial}"
        if place in seen:
            continue
        seen.add(place)
        values, end = run.read_start().values, run.read_end()
        if end:
            yield Row(place, values, end.ending.outcome, end.value, end.iteration)
        else:
            yield Row(place, values, folder.unfinished, None)


def _table_rows(file: Path, objective: Objective) -> Iterator[Row]:
    """Yield the rows of a table as `study export` writes it, or of any with the names of hyperparameters.

    Of a table that has a row a run, the first of each trial's.
    """
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.DictReader(lines)
            known = list(reader.fieldnames or ())
            rows = [(reader.line_num, row) for row in reader]
    except FileNotFoundError:
        raise _Gone(f"no such file: {file}") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{file} cannot be read as a table: {error}") from error
    losses = (*LOSSES, f"{objective.at}_val_loss") if objective.metric == "val_loss" else ()
    columns = (*VALUES, *losses)
    column = next((name for name in columns if name in known), None)
    if column is None:
        raise BadInput(Problem(f"{file} does not say what its trials came to", " | ".join(columns)))
    seen = set()
    for line, row in rows:
        if (trial := tuple(row.get(name) for name in ("study", "cell", "trial"))) != (None, None, None):
            if trial in seen:
                continue
            seen.add(trial)
        values = {name: text for name, text in row.items() if name in TABLE and text is not None}
        read = {
            name: _read(TABLE[name], text) for name, text in values.items() if text or TABLE[name].optional
        }
        iteration = _number(row.get("iterations") or "")
        yield Row(
            f"line {line}",
            read,
            row.get("state") or "complete",
            _number(row[column] or ""),
            None if iteration is None or not math.isfinite(iteration) else int(iteration),
        )


def _read(row: Hyperparameter, text: str) -> Any:
    """Return a cell of a table as its hyperparameter's own type; as the text that it is where it is none."""
    if row.kind == "floats":
        return _typed(row.name, [_number(part) for part in re.split(r"[\s,]+", text.strip("()[] "))])
    if text in ("", "None") and row.optional:
        return None
    plain: dict[str, Any] = {"True": True, "true": True, "False": False, "false": False}
    number = _number(text) if row.kind in ("int", "float") else None
    return _typed(row.name, plain.get(text, text if number is None else number))


def _typed(name: str, value: Any) -> Any:
    try:
        return TABLE[name].check(value)
    except (ValueError, OverflowError):
        return value  # it fits nowhere, and is said as it is


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
