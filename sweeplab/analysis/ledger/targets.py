"""The targets of forecasts: points named by the user, or every cell of a study file; and runs that have started.

A forecast is made before all runs at its point. Two points are the same if they agree in N and D.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sweeplab.analysis.ledger.chain import canonical
from sweeplab.analysis.points import counted
from sweeplab.errors import BadInput, Problem
from sweeplab.laws.columns import COUNTS, NUMBERS, guessed_columns, own_columns, read_columns
from sweeplab.laws.conventions import Conventions
from sweeplab.laws.points import Points
from sweeplab.laws.reading import read_frame

if TYPE_CHECKING:
    from sweeplab.records.folders import StudyFolder
    from sweeplab.study.spec import StudySpec

SAME = 1e-6  # two numbers within this relative distance are the same
_MARK_BYTES = 8
_NOT_SETTINGS = {"seed", "device", "dtype", "compile"}
_DRAWS = 64  # from a cell's search space, to see whether its size depends on what is searched


@dataclass(frozen=True)
class Counting:
    """How a table is counted: its conventions, the columns named by the user, and the filter of rows."""

    conventions: Conventions = field(default_factory=Conventions)
    columns: Mapping[str, str] = field(default_factory=dict)
    where: str = ""


def sizes_of(runs: Sequence[Mapping[str, Any]], counting: Counting) -> list[dict[str, float]]:
    """Return N, D and C of runs from their hyperparameters and facts, counted like a study's points.

    Raises:
        BadInput: a column that is unknown before a run has ended.
    """
    import pandas as pd

    if not runs:
        return []
    frame = pd.DataFrame(list(runs)).assign(best_val_loss=math.nan, final_val_loss=math.nan)
    table, _ = counted(frame, replace(counting.conventions, loss=""))
    named = {role: role for role in COUNTS if role in table}
    named |= {role: name for role, name in counting.columns.items() if role in COUNTS}
    found = {role: column.values for role, column in read_columns(table, named, "a run to come").items()}
    if "flops" not in found:
        found["flops"] = 6 * found["params"] * found["tokens"]
    return [{role: float(found[role][at]) for role in COUNTS} for at in range(len(runs))]


def same_point(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    """Return whether two points agree in N and D, as far as both have them; in C if neither is in both."""
    both = [role for role in COUNTS if role in one and role in other]
    decisive = [role for role in both if role != "flops"] or both
    return bool(both) and all(math.isclose(one[role], other[role], rel_tol=SAME) for role in decisive)


def rows_at(points: Points, at: Mapping[str, float]) -> NDArray[np.intp]:
    """Return which rows of a table are at a point."""
    table = {role: points.columns[role] for role in COUNTS if role in points.columns}
    rows = ({role: float(column[k]) for role, column in table.items()} for k in range(points.n))
    return np.flatnonzero([same_point(row, at) for row in rows])


def _row_digests(points: Points) -> list[bytes]:
    """Return the sha256 of each row's numbers, weight and group."""
    values = (points.columns[role] for role in NUMBERS if role in points.columns)
    table = np.column_stack([*values, points.weights]).astype("<f8")
    rows = zip(table, points.groups or ("",) * points.n, strict=True)
    return [hashlib.sha256(row.tobytes() + group.encode()).digest() for row, group in rows]


def data_digest(points: Points) -> str:
    """Return the sha256 of a table's rows in any order."""
    roles = [role for role in NUMBERS if role in points.columns]
    return hashlib.sha256(canonical(roles) + b"".join(sorted(_row_digests(points)))).hexdigest()


def row_marks(points: Points) -> list[str]:
    """Return a short digest of each row, in order, to check later whether a table had that row."""
    return [row[:_MARK_BYTES].hex() for row in _row_digests(points)]


def study_digest(spec: StudySpec, text_digest: str) -> str:
    """Return the sha256 of a study's identity, without the path of its data and the settings that may change."""
    identity = spec.identity()
    identity["data"] = identity["data"] | {"path": None, "text": text_digest}
    return hashlib.sha256(canonical(identity)).hexdigest()


@dataclass(frozen=True)
class StartedRun:
    """A run that has started: its key, its full planned size, its start, end and state; times in UTC."""

    key: str
    at: Mapping[str, float]
    started: datetime
    ended: datetime | None
    state: str | None
    values: Mapping[str, Any] = field(default_factory=dict)
    is_own: bool = True  # of a study that the forecast names


def started_runs(folder: StudyFolder, counting: Counting) -> list[StartedRun]:
    """Return the runs of a study in the order of their starts; empty if it has not been run."""
    runs = [(run.read_start(), run.read_end()) for run in folder.runs()]
    sizes = sizes_of([{**start.values.as_dict(), **start.facts} for start, _ in runs], counting)
    found = []
    for (start, end), at in zip(runs, sizes, strict=True):
        started = datetime.fromtimestamp(start.started, UTC)
        ended = datetime.fromtimestamp(start.started + end.wall_seconds, UTC) if end else None
        state = end.state if end else None
        found.append(StartedRun(start.key, at, started, ended, state, start.values.as_dict()))
    return sorted(found, key=lambda run: run.started)


def started_in_words(runs: Sequence[StartedRun]) -> str:
    """Describe the first run that ended, or else the first that started."""
    ended = sorted((run for run in runs if run.ended), key=lambda run: run.ended or run.started)
    first = (ended or runs)[0]
    said = f"its run {first.key} started at {time_in_words(first.started)}"
    return f"{said} and ended ({first.state}) at {time_in_words(first.ended)}" if first.ended else said


def time_in_words(time: datetime) -> str:
    """Format a time for reading."""
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"


@dataclass(frozen=True)
class Place:
    """The studies that a run may belong to, with the digest of each, and how their runs are counted."""

    studies: Mapping[str, str]
    counting: Counting


@dataclass(frozen=True)
class Target:
    """A point to forecast, by role; the study of its run, if there is one, and the cells at the point.

    `seeds` is the number of runs whose mean loss is forecast. `settings` are the hyperparameters that the run will have
    for certain, and `text` the digest of its data: a run of the lab that has both is the same run, whatever its study.
    """

    at: Mapping[str, float]
    place: Place | None = None
    cells: tuple[str, ...] = ()
    seeds: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""

    @property
    def words(self) -> str:
        """Return the point in words."""
        roles = [role for role in ("params", "tokens") if role in self.at] or ["flops"]
        numbers = ", ".join(f"{role} {self.at[role]:.6g}" for role in roles)
        return f"{self.cells[0]} ({numbers})" if self.cells else numbers


def point_target(points: Points, asked: Mapping[str, float | None], place: Place | None) -> Target:
    """Return the target with the given numbers; C is computed as in the table's rows unless it is given.

    Raises:
        BadInput: a number that is not positive; a study's run without both N and D.
    """
    at = {role: float(number) for role, number in asked.items() if number is not None}
    if wrong := [f"--{role} {number:g}" for role, number in at.items() if not 0 < number < math.inf]:
        raise BadInput(*(f"{each} is not the size of a run; it must be positive" for each in wrong))
    if place and not {"params", "tokens"} <= at.keys():
        raise BadInput("which run of the study? give --params and --tokens together, or --study FILE")
    if not at:
        raise BadInput("which run? give --params and --tokens, or --study FILE")
    if "flops" not in at and {"params", "tokens"} <= at.keys() & points.columns.keys():
        at["flops"] = points.flops_per_param_token * at["params"] * at["tokens"]
    return Target(at, place, seeds=round(float(np.median(points.weights))))


def file_targets(points: Points, path: Path, place: Place | None) -> list[Target]:
    """Return a target for each row of a file, by those of the columns params, tokens and flops that it has.

    Raises:
        BadInput: no such file, none of the columns, or a row that `point_target` refuses.
    """
    frame = read_frame(path)
    known = [str(name) for name in frame]
    named = guessed_columns(known) | own_columns(known)
    wanted = {role: named[role] for role in COUNTS if role in named}
    if not wanted:
        raise BadInput(Problem(f"{path}: no column is params, tokens or flops", ", ".join(known)))
    columns = {role: column.values for role, column in read_columns(frame, wanted, str(path)).items()}
    found = []
    for row, at in enumerate(frame.index):
        asked = {role: float(column[row]) for role, column in columns.items() if math.isfinite(column[row])}
        try:
            found.append(point_target(points, asked, place))
        except BadInput as error:
            raise BadInput(f"{path}: {frame.index.name or 'row'} {at}: {error.problems[0]}") from error
    return found


def cell_targets(
    spec: StudySpec, lab: Path, counting: Counting
) -> tuple[Sequence[Target], Mapping[str, str]]:
    """Return the points of a study's cells, and the reason for each cell without one: its size is sampled.

    Cells that differ only in what is tuned, such as the learning rate, are one point: a law describes the best.

    Raises:
        BadInput: the study could not start, or another of its name stands in the lab.
    """
    from sweeplab.lab.identity import check_same_study
    from sweeplab.records.folders import StudyFolder
    from sweeplab.study.rules import facts
    from sweeplab.study.space import Space
    from sweeplab.sweep.planning import make_plan

    plan, cells, dataset = make_plan(spec, lab)
    check_same_study(spec, StudyFolder(lab, spec.name), plan.data)
    place = Place({spec.name: study_digest(spec, plan.data.text_digest)}, counting)
    targets: list[Target] = []
    left_out = {}
    for cell in cells:
        space = Space(spec, cell, dataset.sizes)
        drawn = [each for each in space.draws(_DRAWS) if space.broken(each) is None]
        sizes = sizes_of([each.as_dict() | facts(each)._asdict() for each in drawn], counting)
        varying = [role for role in sizes[0] if len({each[role] for each in sizes}) > 1] if sizes else []
        if not sizes or varying:
            what = " and ".join(varying) or "size"
            left_out[cell.key] = f"its {what} is known only once a trial is sampled"
            continue
        settings = _settings([each.as_dict() for each in drawn])
        new = Target(sizes[0], place, (cell.key,), len(space.seeds), settings, plan.data.text_digest)
        there = next((known for known in targets if same_point(known.at, new.at)), None)
        if there is None:
            targets.append(new)
        else:
            both = replace(new, cells=(*there.cells, cell.key), seeds=min(new.seeds, there.seeds))
            targets[targets.index(there)] = both
    return targets, left_out


def _settings(drawn: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what all trials drawn from a cell have in common, without the seed and what depends on the machine."""
    first, *others = drawn
    return {
        name: value
        for name, value in first.items()
        if name not in _NOT_SETTINGS and all(other[name] == value for other in others)
    }
