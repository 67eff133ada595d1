"""N, D and C of runs and of points, and when two are the same point.

What a forecast was made from, as digests: of the exact points, of each row, of the study.

Which runs of a study have begun, and when: a forecast is made before all of those at its point.

What is forecast: a point that a person names, or every cell of a study file.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sweeplab.analysis.columns import read_columns
from sweeplab.analysis.conventions import Conventions, counted
from sweeplab.analysis.ledger.chain import canonical
from sweeplab.analysis.points import NUMBERS, Points
from sweeplab.errors import BadInput

if TYPE_CHECKING:
    from sweeplab.records.folders import StudyFolder
    from sweeplab.study.spec import StudySpec


SIZES = ("params", "tokens", "flops")
SAME = 1e-6  # two numbers within this share are one


@dataclass(frozen=True)
class Counting:
    """How a table counts: its conventions, and the columns that were named instead of theirs."""

    conventions: Conventions = field(default_factory=Conventions)
    columns: Mapping[str, str] = field(default_factory=dict)


def sizes_of(runs: Sequence[Mapping[str, Any]], counting: Counting) -> list[dict[str, float]]:
    """Return N, D and C of runs from their hyperparameters and facts, counted as a study's points are.

    Raises:
        BadInput: a column that is not known of a run before it has ended.
    """
    import pandas as pd

    if not runs:
        return []
    frame = pd.DataFrame([{**run, "best_val_loss": math.nan, "final_val_loss": math.nan} for run in runs])
    table, _ = counted(frame, replace(counting.conventions, loss=""), None)
    named = {role: role for role in SIZES if role in table} | {
        role: name for role, name in counting.columns.items() if role in SIZES
    }
    found = {role: column.values for role, column in read_columns(table, named, "a run to come").items()}
    if "flops" not in found:
        found["flops"] = 6 * found["params"] * found["tokens"]
    return [{role: float(found[role][at]) for role in SIZES} for at in range(len(runs))]


def same_point(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    """Return whether two points agree in N and D, as far as both say them; in C where neither does."""
    both = [role for role in SIZES if role in one and role in other]
    decisive = [role for role in both if role != "flops"] or both
    return bool(both) and all(math.isclose(one[role], other[role], rel_tol=SAME) for role in decisive)


def rows_at(points: Points, at: Mapping[str, float]) -> NDArray[np.intp]:
    """Return which rows of a table are at a point."""
    table = {role: points.columns[role] for role in SIZES if role in points.columns}
    rows = ({role: float(column[k]) for role, column in table.items()} for k in range(points.n))
    return np.flatnonzero([same_point(row, at) for row in rows])


_MARK_BYTES = 8


def data_digest(points: Points) -> str:
    """Return the sha256 of a table's rows in any order: what every row says, its weight and its group."""
    roles = [role for role in NUMBERS if role in points.columns]
    return hashlib.sha256(canonical(roles) + b"".join(sorted(_rows(points)))).hexdigest()


def row_marks(points: Points) -> list[str]:
    """Return a short digest of each row, in order: to tell later whether a table had that row."""
    return [row[:_MARK_BYTES].hex() for row in _rows(points)]


def study_digest(spec: StudySpec, text_digest: str) -> str:
    """Return the sha256 of what makes a study the one it is: all but where its data lie, and what may change."""
    identity = spec.canonical()["identity"]
    identity["data"] = identity["data"] | {"path": None, "text": text_digest}
    return hashlib.sha256(canonical(identity)).hexdigest()


def code_version() -> dict[str, Any]:
    """Return sweeplab's version and, where it lies in a repository of its own, the commit and whether it is dirty."""
    import sweeplab
    from sweeplab.tracking.environment import git_of_code

    commit = git_of_code() or {"commit": None, "dirty": None}
    return {"sweeplab": sweeplab.__version__, **commit}


def _rows(points: Points) -> list[bytes]:
    roles = [role for role in NUMBERS if role in points.columns]
    table = np.column_stack([*(points.columns[role] for role in roles), points.weights]).astype("<f8")
    groups = points.groups or ("",) * points.n
    return [
        hashlib.sha256(row.tobytes() + group.encode()).digest()
        for row, group in zip(table, groups, strict=True)
    ]


@dataclass(frozen=True)
class BegunRun:
    """A run that has begun: its key, its size when it is whole, when it began and how and when it ended, in UTC."""

    key: str
    at: Mapping[str, float]
    began: datetime
    ended: datetime | None
    state: str | None


def begun_runs(folder: StudyFolder, counting: Counting) -> list[BegunRun]:
    """Return the runs of a study, the first to begin first; it may not have been run at all."""
    runs = [(run.read_start(), run.read_end()) for run in folder.runs()]
    sizes = sizes_of([{**start.values.as_dict(), **start.facts} for start, _ in runs], counting)
    found = [
        BegunRun(
            key=start.key,
            at=at,
            began=_utc(start.started),
            ended=_utc(start.started + end.wall_seconds) if end else None,
            state=end.state if end else None,
        )
        for (start, end), at in zip(runs, sizes, strict=True)
    ]
    return sorted(found, key=lambda run: run.began)


def runs_at(runs: Iterable[BegunRun], at: Mapping[str, float]) -> list[BegunRun]:
    """Return the runs at a point."""
    return [run for run in runs if same_point(run.at, at)]


def begun_in_words(runs: Sequence[BegunRun]) -> str:
    """Say what the first to end of some runs has come to, or that the first of them has begun."""
    ended = sorted((run for run in runs if run.ended), key=lambda run: run.ended or run.began)
    first = (ended or runs)[0]
    said = f"its run {first.key} began at {time_in_words(first.began)}"
    return f"{said} and ended ({first.state}) at {time_in_words(first.ended)}" if first.ended else said


def time_in_words(time: datetime) -> str:
    """Write a time as people read it."""
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


_DRAWS = 64  # of a cell's space, to see whether its size depends on what is searched


@dataclass(frozen=True)
class Place:
    """The studies that a run may belong to, with the digest of each, and how their runs are counted."""

    studies: Mapping[str, str]
    counting: Counting


@dataclass(frozen=True)
class Target:
    """A point to forecast, by role; where its run will be, if it is a study's, and the cells that are there.

    `seeds` is of how many runs the loss will be the mean.
    """

    at: Mapping[str, float]
    place: Place | None = None
    cells: tuple[str, ...] = ()
    seeds: int = 1

    @property
    def words(self) -> str:
        """Return the point as a person reads it."""
        roles = [role for role in ("params", "tokens") if role in self.at] or ["flops"]
        numbers = ", ".join(f"{role} {self.at[role]:.6g}" for role in roles)
        return f"{self.cells[0]} ({numbers})" if self.cells else numbers


@dataclass(frozen=True)
class CellTargets:
    """The cells of a study file as targets, and why others are none, by cell."""

    targets: tuple[Target, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)


def point_target(points: Points, asked: Mapping[str, float | None], place: Place | None) -> Target:
    """Return the target that a person names by its numbers; C is that of the table's rows unless it is given.

    Raises:
        BadInput: a number that is not positive; a study's run that is not named by both N and D.
    """
    at = {role: float(number) for role, number in asked.items() if number is not None}
    wrong = [
        f"--{role} {number:g} is no size of a run; it takes a positive number"
        for role, number in at.items()
        if not 0 < number < math.inf
    ]
    if not wrong and place and not {"params", "tokens"} <= at.keys():
        wrong.append("which run of the study? --params and --tokens together say it, or --study FILE")
    if not wrong and not at:
        wrong.append("which run? --params and --tokens say it, or --study FILE")
    if wrong:
        raise BadInput(*wrong)
    if "flops" not in at and {"params", "tokens"} <= at.keys() & points.columns.keys():
        at["flops"] = points.flops_per_param_token * at["params"] * at["tokens"]
    return Target(at, place, seeds=round(float(np.median(points.weights))))


def cell_targets(spec: StudySpec, lab: Path, counting: Counting) -> CellTargets:
    """Return the points of a study's cells; left out are those whose size is known only once a trial is sampled.

    Cells that differ only in what is tuned, such as the learning rate, are one point: the law is of the best.

    Raises:
        BadInput: the study could not start, or another of its name stands in the lab.
    """
    from sweeplab.lab.identity import check_same_study
    from sweeplab.records.folders import StudyFolder
    from sweeplab.study.space import Space, facts
    from sweeplab.sweep.planning import make_plan

    plan, cells, dataset = make_plan(spec, lab)
    check_same_study(spec, StudyFolder(lab, spec.name), plan.data)
    place = Place({spec.name: study_digest(spec, plan.data["text_digest"])}, counting)
    targets: list[Target] = []
    left_out = {}
    for cell in cells:
        space = Space(spec, cell, dataset.tokenizer.vocab_size)
        drawn = space.draws(_DRAWS if space.parameters else 1)
        sizes = sizes_of([each | facts(each) for each in drawn if space.broken(each) is None], counting)
        varying = [role for role in sizes[0] if len({each[role] for each in sizes}) > 1] if sizes else []
        if not sizes or varying:
            left_out[cell.key] = (
                f"its {' and '.join(varying) or 'size'} is known only once a trial is sampled"
            )
            continue
        new = Target(sizes[0], place, (cell.key,), len(space.seeds))
        at = next((k for k, known in enumerate(targets) if same_point(known.at, new.at)), None)
        if at is None:
            targets.append(new)
        else:
            cells_there = (*targets[at].cells, cell.key)
            targets[at] = Target(new.at, place, cells_there, min(new.seeds, targets[at].seeds))
    return CellTargets(tuple(targets), left_out)
