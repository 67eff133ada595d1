"""Seal forecasts of runs: the targets, the checks before a forecast is sealed, and what is sealed.

The targets are points named by the user, rows of a file, or every cell of a study file. A forecast is made before all
runs at its point; two points are the same if they agree in N and D. A table that is too small for a back-test gets a
warning.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sweeplab.analysis.ledger import VERSION, LedgerEntry, append, canonical
from sweeplab.analysis.studies import Counting, sizes_of
from sweeplab.errors import BadInput, Problem
from sweeplab.lab.listing import study_names
from sweeplab.laws.assessment import IDENTIFIED, Assessment
from sweeplab.laws.columns import COUNTS, NUMBERS, count_columns, read_columns
from sweeplab.laws.forecasts import (
    INTERVAL_ONLY,
    METHOD,
    NO_REGRET,
    Forecast,
    Regret,
    naive_forecasts,
    predict,
)
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


SAME = 1e-6  # two numbers within this relative distance are the same
_MARK_BYTES = 8
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


def _row_digests(points: Points) -> list[bytes]:
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
    ended: datetime | None = None
    state: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    is_own: bool = True  # of a study that the forecast names


def started_runs(folder: StudyFolder, counting: Counting) -> list[StartedRun]:
    """Return the runs of a study in the order of their starts; empty if it has not been run."""
    runs = [(run.read_start(), run.read_end()) for run in folder.runs()]
    sizes = sizes_of([{**start.values.as_dict(), **start.facts} for start, _ in runs], counting)
    started = []
    for (start, end), at in zip(runs, sizes, strict=True):
        begun = datetime.fromtimestamp(start.started, UTC)
        run = StartedRun(start.key, at, begun, values=start.values.as_dict())
        if end:
            ended = datetime.fromtimestamp(start.started + end.wall_seconds, UTC)
            run = replace(run, ended=ended, state=end.state)
        started.append(run)
    return sorted(started, key=lambda run: run.started)


def started_in_words(runs: Sequence[StartedRun]) -> str:
    """Describe the first run that ended, or else the first that started."""
    ended = sorted((run for run in runs if run.ended), key=lambda run: run.ended or run.started)
    first = (ended or runs)[0]
    words = f"its run {first.key} started at {time_in_words(first.started)}"
    if first.ended:
        words += f" and ended ({first.state}) at {time_in_words(first.ended)}"
    return words


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

    `seeds` is the number of runs whose mean loss is forecast, and `regret` what their values are expected to
    cost. `settings` are the hyperparameters that the run will have for certain, and `text` the digest of
    its data: a run of the lab that has both is the same run, whatever its study.
    """

    at: Mapping[str, float]
    place: Place | None = None
    cells: tuple[str, ...] = ()
    seeds: int = 1
    regret: Regret = NO_REGRET
    settings: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""

    @property
    def words(self) -> str:
        """Return the point in words."""
        roles = [role for role in ("params", "tokens") if role in self.at] or ["flops"]
        numbers = ", ".join(f"{role} {self.at[role]:.6g}" for role in roles)
        if self.cells:
            return f"{self.cells[0]} ({numbers})"
        return numbers


def point_target(points: Points, asked: Mapping[str, float | None], place: Place | None) -> Target:
    """Return the target with the given numbers; C is computed as in the table's rows unless it is given.

    Raises:
        BadInput: a number that is not positive; a study's run without both N and D.
    """
    at = {role: float(number) for role, number in asked.items() if number is not None}
    wrong = [f"--{role} {number:g}" for role, number in at.items() if not 0 < number < math.inf]
    if wrong:
        raise BadInput(*(f"{each} is not the size of a run; it must be positive" for each in wrong))
    if place and not {"params", "tokens"} <= at.keys():
        raise BadInput("which run of the study? give --params and --tokens together, or --study FILE")
    if not at:
        raise BadInput("which run? give --params and --tokens, or --study FILE")
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
        values, *others = (each.as_dict() for each in drawn)
        common = [name for name in values if all(other[name] == values[name] for other in others)]
        settings = {name: values[name] for name in common if name not in NOT_SETTINGS}
        new = Target(
            sizes[0], place, (cell.key,), len(space.seeds), settings=settings, text=plan.data.text_digest
        )
        for at, there in enumerate(targets):
            if same_point(there.at, new.at):
                cells_there = (*there.cells, cell.key)
                targets[at] = replace(new, cells=cells_there, seeds=min(new.seeds, there.seeds))
                break
        else:
            targets.append(new)
    return targets, left_out


@dataclass(frozen=True)
class PointSource:
    """Where the points come from: the names of studies or of a file, and how it was counted."""

    names: tuple[str, ...]
    is_file: bool
    counting: Counting


@dataclass(frozen=True)
class Sealed:
    """The sealed entries, and the reason of each target that was left out."""

    entries: tuple[LedgerEntry, ...]
    left_out: Mapping[str, str]
    warnings: tuple[str, ...]


def seal(
    ledger: Path,
    source: PointSource,
    assessment: Assessment,
    lab: Path,
    wanted: Sequence[Target],
    left_out: Mapping[str, str] | None = None,
) -> Sealed:
    """Seal a forecast of every target, except those that have started or that the law cannot forecast.

    Started runs are looked up in the studies of `lab`; `left_out` has reasons for targets left out before.

    Raises:
        BadInput: no target is left, with the reason for each; the ledger is broken or cannot be written.
    """
    runs = _started(lab, wanted[0]) if wanted else []
    forecasts, left_out, warnings = [], dict(left_out or {}), list(assessment.warnings)
    first = assessment.tests[0]
    if not len(first.errors):
        warnings.append(f"intervals assume that the form is right: {first.words}")
    for target in wanted:
        try:
            _refuse_known(target, assessment.raw, source, runs)
            predicted = predict(assessment, target.at, target.seeds, target.regret)
        except BadInput as error:
            left_out[target.words] = "; ".join(map(str, error.problems))
            continue
        forecasts.append(_forecast(source, assessment, target, predicted))
        verdict = predicted.verdict
        if verdict.verdict != IDENTIFIED:
            weak = f"the loss is {verdict.verdict} ({verdict.reason})"
            if verdict.verdict == INTERVAL_ONLY:
                weak = verdict.reason
            warnings.append(f"{target.words}: {weak}; the forecast is sealed with this verdict")
    if not forecasts:
        raise BadInput(*(f"{words}: {why}" for words, why in left_out.items()))
    return Sealed(append(ledger, forecasts), left_out, tuple(dict.fromkeys(warnings)))


def _started(lab: Path, target: Target) -> list[StartedRun]:
    """The runs that have started in the studies of a target, and in all others of the lab with its text."""
    if target.place is None:
        return []
    counting = target.place.counting
    runs = [run for name in target.place.studies for run in started_runs(StudyFolder(lab, name), counting)]
    if not target.settings:
        return runs
    for name in study_names(lab):
        folder = StudyFolder(lab, name)
        is_other = name not in target.place.studies and folder.data_file.exists()
        if is_other and folder.data.text_digest == target.text:
            started = started_runs(folder, counting)
            runs += [replace(run, key=f"{name}/{run.key}", is_own=False) for run in started]
    return runs


def _refuse_known(target: Target, points: Points, source: PointSource, runs: Sequence[StartedRun]) -> None:
    started = [
        run
        for run in runs
        if same_point(run.at, target.at) and (run.is_own or target.settings.items() <= run.values.items())
    ]
    if started:
        raise BadInput(f"{started_in_words(started)}; a forecast must be made before its run starts")
    known = rows_at(points, target.at)
    if known.size and (target.place is None or set(target.place.studies) & set(source.names)):
        loss = points.columns["loss"][known[0]]
        raise BadInput(f"{source.names[0]} has its loss already, {loss:.4g}; a forecast must be made before")


def _forecast(
    source: PointSource, assessment: Assessment, target: Target, predicted: Forecast
) -> dict[str, Any]:
    points, fit = assessment.raw, assessment.fit
    estimates = {estimate.quantity.name: estimate for estimate in assessment.estimates}
    largest = {role: float(points.columns[role].max()) for role in COUNTS if role in points.columns}
    parameters = {name: value for name, value in fit.medians.items() if estimates[name].identified}
    run: dict[str, Any] = {"studies": {}, "counting": None}
    # A file has no times of its own: digests of its rows record what was in it.
    rows: list[str] | None = sorted(row_marks(points))
    if target.place:
        run, rows = asdict(target.place), None
    return {
        "version": VERSION,
        "source": asdict(source),
        "run": run | {"cells": list(target.cells), "seeds": target.seeds},
        "at": dict(target.at),
        "beyond": {role: target.at[role] / most for role, most in largest.items() if role in target.at},
        "predicted": asdict(predicted) | {"method": METHOD},
        "naive": {name: asdict(naive) for name, naive in naive_forecasts(points, target.at).items()},
        "fit": {
            "law": fit.law.name,
            "formula": fit.law.formula,
            "parameters": parameters,
            "form": {"status": assessment.misfit.status, "sentences": list(assessment.misfit.sentences)},
            "verdicts": {name: estimate.verdict.verdict for name, estimate in estimates.items()},
            "sigma": fit.sigma,
            "warnings": list(assessment.warnings),
        },
        "data": {
            "digest": data_digest(points),
            "n_points": points.n,
            "dropped": dict(points.dropped),
            "conventions": dict(points.conventions),
            "rows": rows,
        },
        # The commit, and whether it is dirty, where the code lies in a repository of its own.
        "code": {"sweeplab": SWEEPLAB, **(git_of_code() or {"commit": None, "dirty": None})},
    }
