"""Seal forecasts of runs: the points to forecast, and what is sealed of each.

The points are named by the user, rows of a file, or the cells of a study file; two points are the same if they agree in
N and D. A forecast that is made when its run has started, or its loss is in the table, is sealed as late: it stays in
the ledger and never counts.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sweeplab.analysis.ledger import LedgerEntry, append, canonical
from sweeplab.analysis.studies import Counting, sizes_of
from sweeplab.errors import BadInput, Problem
from sweeplab.laws.assessment import IDENTIFIED, Assessment
from sweeplab.laws.columns import COUNTS, count_columns, read_columns
from sweeplab.laws.forecasts import NO_REGRET, Forecast, Regret, predict
from sweeplab.laws.points import Points
from sweeplab.laws.reading import read_frame
from sweeplab.records.folders import StudyFolder
from sweeplab.tracking.environment import git_of_code
from sweeplab.version import VERSION as SWEEPLAB

if TYPE_CHECKING:
    from sweeplab.data.dataset import Dataset
    from sweeplab.study.plan import Plan
    from sweeplab.study.space import Cell
    from sweeplab.study.spec import StudySpec


VERSION = 1  # of the format of a forecast
SAME = 1e-6  # two numbers within this relative distance are the same
NOT_SETTINGS = {"seed", "device", "dtype", "compile"}
_DRAWS = 64  # from a cell's search space, to see whether its size depends on what is searched


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


def study_digest(spec: StudySpec, text_digest: str) -> str:
    """Return the sha256 of a study's identity, without the path of its data and the settings that may change."""
    identity = spec.identity()
    identity["data"] = identity["data"] | {"path": None, "text": text_digest}
    return hashlib.sha256(canonical(identity)).hexdigest()


@dataclass(frozen=True)
class StartedRun:
    """A run that has started: its key, its full planned size and its start in UTC."""

    key: str
    at: Mapping[str, float]
    started: datetime

    @property
    def words(self) -> str:
        """Return when it started."""
        return f"its run {self.key} started at {self.started:%Y-%m-%d %H:%M:%S} UTC"


def started_runs(folder: StudyFolder, counting: Counting) -> list[StartedRun]:
    """Return the runs of a study in the order of their starts; empty if it has not been run."""
    starts = [run.read_start() for run in folder.runs()]
    sizes = sizes_of([{**start.values.as_dict(), **start.facts} for start in starts], counting)
    started = [
        StartedRun(start.key, at, datetime.fromtimestamp(start.started, UTC))
        for start, at in zip(starts, sizes, strict=True)
    ]
    return sorted(started, key=lambda run: run.started)


@dataclass(frozen=True)
class Place:
    """The studies that a run may belong to, with the digest of each, and how their runs are counted."""

    studies: Mapping[str, str]
    counting: Counting


@dataclass(frozen=True)
class Target:
    """A point to forecast, by role; the study of its run, if there is one, and the cells at the point.

    `seeds` is the number of runs whose mean loss is forecast, and `regret` what their values are expected to cost.
    """

    at: Mapping[str, float]
    place: Place | None = None
    cells: tuple[str, ...] = ()
    seeds: int = 1
    regret: Regret = NO_REGRET

    @property
    def words(self) -> str:
        """Return the point in words."""
        roles = [role for role in ("params", "tokens") if role in self.at] or ["flops"]
        numbers = ", ".join(f"{role} {self.at[role]:.6g}" for role in roles)
        if self.cells:
            return f"{self.cells[0]} ({numbers})"
        return numbers


def point_target(points: Points, asked: Mapping[str, float], place: Place | None) -> Target:
    """Return the target with the given numbers; C is computed as in the table's rows unless it is given.

    Raises:
        BadInput: a number that is not positive; a study's run without both N and D.
    """
    wrong = [f"{role} {number:g}" for role, number in asked.items() if not 0 < number < math.inf]
    if wrong:
        raise BadInput(*(f"{each} is not the size of a run; it must be positive" for each in wrong))
    if not asked or (place and not {"params", "tokens"} <= asked.keys()):
        raise BadInput("which run? give params and tokens together")
    at = dict(asked)
    if "flops" not in at and {"params", "tokens"} <= at.keys() & points.columns.keys():
        at["flops"] = points.flops_per_param_token * at["params"] * at["tokens"]
    return Target(at, place, seeds=round(float(np.median(points.weights))))


def file_targets(points: Points, path: Path, place: Place | None) -> list[Target]:
    """Return a target for each row of a file, by those of the columns params, tokens and flops that it has."""
    frame = read_frame(path)
    wanted = count_columns(frame)
    if not wanted:
        raise BadInput(Problem(f"{path}: no column is params, tokens or flops", ", ".join(map(str, frame))))
    columns = {role: column.values for role, column in read_columns(frame, wanted, str(path)).items()}
    targets = []
    for row, at in enumerate(frame.index):
        asked = {role: float(column[row]) for role, column in columns.items() if math.isfinite(column[row])}
        try:
            targets.append(point_target(points, asked, place))
        except BadInput as error:
            raise BadInput(f"{path}: {frame.index.name or 'row'} {at}: {error.problems[0]}") from error
    return targets


def cell_targets(
    spec: StudySpec, lab: Path, counting: Counting
) -> tuple[Sequence[Target], Mapping[str, str]]:
    """Return the points of a study's cells as `size_targets` does, if the study could go on in the lab.

    Raises:
        BadInput: the study could not start, or another of its name stands in the lab.
    """
    from sweeplab.lab.identity import check_same_study
    from sweeplab.sweep.planning import make_plan

    plan, cells, dataset = make_plan(spec, lab)
    check_same_study(spec, StudyFolder(lab, spec.name), plan.data)
    return size_targets(spec, (plan, cells, dataset), counting)


def size_targets(
    spec: StudySpec, planned: tuple[Plan, Sequence[Cell], Dataset], counting: Counting
) -> tuple[Sequence[Target], Mapping[str, str]]:
    """Return the points of a study's cells, and the reason for each cell without one: its size is sampled.

    `planned` is what `make_plan` returns. Cells that differ only in what is tuned, such as the learning rate, are one
    point: a law describes the best.
    """
    from sweeplab.study.rules import facts
    from sweeplab.study.space import Space

    plan, cells, dataset = planned
    place = Place({spec.name: study_digest(spec, plan.data.text_digest)}, counting)
    targets: list[Target] = []
    left_out = {}
    for cell in cells:
        space = Space(spec, cell, dataset.sizes)
        drawn = [each for each in space.draws(_DRAWS) if space.broken(each) is None]
        sizes = sizes_of([each.as_dict() | facts(each)._asdict() for each in drawn], counting)
        varying = [role for role in COUNTS if len({each[role] for each in sizes}) > 1]
        if not sizes or varying:
            what = " and ".join(varying) or "size"
            left_out[cell.key] = f"its {what} is known only once a trial is sampled"
            continue
        there = next((at for at, other in enumerate(targets) if same_point(other.at, sizes[0])), None)
        if there is None:
            targets.append(Target(sizes[0], place, (cell.key,), len(space.seeds)))
            continue
        other = targets[there]
        seeds = min(other.seeds, len(space.seeds))
        targets[there] = replace(other, cells=(*other.cells, cell.key), seeds=seeds)
    return targets, left_out


@dataclass(frozen=True)
class PointSource:
    """Where the points come from: the names of studies or of a file, and how it was counted."""

    names: tuple[str, ...]
    is_file: bool
    counting: Counting


@dataclass(frozen=True)
class Sealed:
    """The sealed entries, the reason of each target that was left out, and what is to be known of the others."""

    entries: tuple[LedgerEntry, ...]
    left_out: Mapping[str, str]
    warnings: tuple[str, ...]


def seal(
    ledger: Path, source: PointSource, assessment: Assessment, lab: Path, wanted: Sequence[Target]
) -> Sealed:
    """Seal a forecast of every target that the law can forecast; started runs are looked up in the studies of `lab`.

    Raises:
        BadInput: no target is left, with the reason for each; the ledger is broken or cannot be written.
    """
    runs: list[StartedRun] = []
    if wanted and wanted[0].place:
        place = wanted[0].place
        runs = [run for name in place.studies for run in started_runs(StudyFolder(lab, name), place.counting)]
    forecasts, left_out, warnings = [], {}, []
    for target in wanted:
        try:
            predicted = predict(assessment, target.at, target.seeds, target.regret)
        except BadInput as error:
            left_out[target.words] = "; ".join(map(str, error.problems))
            continue
        late = _late(target, assessment.raw, source, runs)
        if late:
            warnings.append(f"{target.words}: {late}; this forecast is kept, and never counts")
        elif predicted.verdict.verdict != IDENTIFIED:
            warnings.append(f"{target.words}: {predicted.verdict.verdict}: {predicted.verdict.reason}")
        forecasts.append(_forecast(source, assessment, target, predicted) | {"late": late})
    if not forecasts:
        raise BadInput(*(f"{words}: {why}" for words, why in left_out.items()))
    return Sealed(append(ledger, forecasts), left_out, tuple(warnings))


def _late(target: Target, points: Points, source: PointSource, runs: Sequence[StartedRun]) -> str:
    """Return why a forecast comes too late; empty if it comes in time."""
    started = next((run for run in runs if same_point(run.at, target.at)), None)
    if started:
        return started.words
    known = rows_at(points, target.at)
    if known.size and (target.place is None or set(target.place.studies) & set(source.names)):
        return f"{source.names[0]} has its loss already, {points.columns['loss'][known[0]]:.4g}"
    return ""


def _forecast(
    source: PointSource, assessment: Assessment, target: Target, predicted: Forecast
) -> dict[str, Any]:
    points, fit = assessment.raw, assessment.fit
    run: dict[str, Any] = {"studies": {}, "counting": None}
    if target.place:
        run = asdict(target.place)
    return {
        "version": VERSION,
        "source": asdict(source),
        "run": run | {"cells": list(target.cells), "seeds": target.seeds},
        "at": dict(target.at),
        "predicted": asdict(predicted),
        "fit": {
            "law": fit.law.name,
            "formula": fit.law.formula,
            "numbers": {each.quantity.name: each.as_dict() for each in assessment.estimates},
            "form": assessment.misfit.status,
            "sigma": fit.sigma,
            "warnings": list(assessment.warnings),
        },
        "data": {
            "n_points": points.n,
            "dropped": dict(points.dropped),
            "conventions": dict(points.conventions),
        },
        # The commit, and whether it is dirty, where the code lies in a repository of its own.
        "code": {"sweeplab": SWEEPLAB, **(git_of_code() or {"commit": None, "dirty": None})},
    }
