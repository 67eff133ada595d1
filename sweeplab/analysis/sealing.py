"""Seal forecasts of runs: the points to forecast, and what is sealed of each.

The points are named by the user, or the cells of a study file; two points are the same if they agree in N and D. A
forecast that is made when its run has started, or its loss is in the table, is sealed as late: it stays in the ledger
and never counts.
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
from sweeplab.errors import BadInput
from sweeplab.laws.assessment import IDENTIFIED, Assessment
from sweeplab.laws.columns import COUNTS
from sweeplab.laws.forecasts import NO_REGRET, Forecast, Regret, predict
from sweeplab.laws.points import Points
from sweeplab.records.folders import StudyFolder

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
    starts = sorted((run.read_start() for run in folder.runs()), key=lambda start: start.started)
    sizes = sizes_of([{**start.values.as_dict(), **start.facts} for start in starts], counting)
    return [
        StartedRun(start.key, at, datetime.fromtimestamp(start.started, UTC))
        for start, at in zip(starts, sizes, strict=True)
    ]


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


def cell_targets(
    spec: StudySpec, lab: Path, counting: Counting
) -> tuple[Sequence[Target], Mapping[str, str]]:
    """Return the points of a study's cells as `size_targets` does, if the study could go on in the lab.

    Raises:
        BadInput: the study could not start, or another of its name stands in the lab.
    """
    from sweeplab.lab.identity import check_same_study
    from sweeplab.sweep.planning import make_plan

    planned = make_plan(spec, lab)
    check_same_study(spec, StudyFolder(lab, spec.name), planned[0].data)
    return size_targets(spec, planned, counting)


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
        if not sizes or any(size != sizes[0] for size in sizes):
            left_out[cell.key] = "its size is known only once a trial is sampled"
            continue
        for at, other in enumerate(targets):
            if same_point(other.at, sizes[0]):
                seeds = min(other.seeds, len(space.seeds))
                targets[at] = replace(other, cells=(*other.cells, cell.key), seeds=seeds)
                break
        else:
            targets.append(Target(sizes[0], place, (cell.key,), len(space.seeds)))
    return targets, left_out


def forecasts_of(
    assessment: Assessment, targets: Sequence[Target]
) -> tuple[list[tuple[Target, Forecast]], dict[str, str]]:
    """Return each target with its forecast, and why others have none.

    Raises:
        BadInput: none has one, with the reason for each.
    """
    forecasts, left_out = [], {}
    for target in targets:
        try:
            forecasts.append((target, predict(assessment, target.at, target.seeds, target.regret)))
        except BadInput as refused:
            left_out[target.words] = "; ".join(map(str, refused.problems))
    if not forecasts:
        raise BadInput(*(f"{words}: {why}" for words, why in left_out.items()))
    return forecasts, left_out


@dataclass(frozen=True)
class PointSource:
    """Where the points come from: the names of studies or of a file, and how it was counted."""

    names: tuple[str, ...]
    counting: Counting


def seal(
    ledger: Path,
    source: PointSource,
    assessment: Assessment,
    lab: Path,
    forecasts: Sequence[tuple[Target, Forecast]],
) -> tuple[tuple[LedgerEntry, ...], list[str]]:
    """Seal forecasts; return their entries, and what is to be known of them.

    Started runs are looked up in the studies of `lab`.

    Raises:
        BadInput: the ledger is broken or cannot be written.
    """
    runs: list[StartedRun] = []
    if place := forecasts[0][0].place:
        runs = [run for name in place.studies for run in started_runs(StudyFolder(lab, name), place.counting)]
    contents, warnings = [], []
    for target, predicted in forecasts:
        late = _late(target, assessment.raw, source, runs)
        if late:
            warnings.append(f"{target.words}: {late}; this forecast is kept, and never counts")
        elif predicted.verdict.verdict != IDENTIFIED:
            warnings.append(f"{target.words}: {predicted.verdict.verdict}: {predicted.verdict.reason}")
        contents.append(_content(source, assessment, target, predicted) | {"late": late})
    return append(ledger, contents), warnings


def _late(target: Target, points: Points, source: PointSource, runs: Sequence[StartedRun]) -> str:
    """Return why a forecast comes too late; empty if it comes in time."""
    for run in runs:
        if same_point(run.at, target.at):
            return run.words
    known = rows_at(points, target.at)
    if known.size and (target.place is None or set(target.place.studies) & set(source.names)):
        return f"{source.names[0]} has its loss already, {points.columns['loss'][known[0]]:.4g}"
    return ""


def _content(
    source: PointSource, assessment: Assessment, target: Target, predicted: Forecast
) -> dict[str, Any]:
    run = asdict(target.place) if target.place else {"studies": {}, "counting": None}
    law, points = assessment.law, assessment.raw
    return {
        "version": VERSION,
        "source": asdict(source),
        "run": run | {"cells": list(target.cells), "seeds": target.seeds},
        "at": dict(target.at),
        "predicted": asdict(predicted),
        "fit": {
            "law": law.name,
            "formula": law.formula,
            "numbers": {each.quantity.name: each.as_dict() for each in assessment.estimates},
            "form": assessment.misfit.status,
            "sigma": assessment.fit.sigma,
            "warnings": list(assessment.warnings),
        },
        "data": {"n_points": points.n, "dropped": points.dropped, "conventions": points.conventions},
    }
