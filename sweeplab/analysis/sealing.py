"""Seal forecasts of runs, and tell what came of them, and how many of their intervals held.

The points are named by the user, or the cells of a study file; two points are the same if they agree in N and D. A
forecast that is made when its run has started, or its loss is in the table, is sealed as late: it stays in the ledger
and never counts. The first forecast of a run counts. Its outcome is recorded in the ledger when it is first known, with
the study complete, and stays: nothing that happens to the study or the table changes it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sweeplab.analysis.ledger import (
    FILE_NAME,
    SCORED,
    LedgerEntry,
    append,
    canonical,
    read_ledger,
)
from sweeplab.analysis.studies import read_studies, run_to_come, sizes_of
from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.lab.listing import StudyState, read_spec, study_state
from sweeplab.laws.assessment import IDENTIFIED, Assessment, Forecast, predict
from sweeplab.laws.columns import CHOICES, COUNTS, PLAIN, Conventions, Counting
from sweeplab.laws.hyperparameters.excess import file_points
from sweeplab.laws.points import Points
from sweeplab.laws.sentences import Facts, Plain, Point
from sweeplab.records.folders import StudyFolder

if TYPE_CHECKING:
    from sweeplab.data.dataset import Dataset
    from sweeplab.study.plan import Plan
    from sweeplab.study.space import Space
    from sweeplab.study.spec import StudySpec


VERSION = 1  # of the format of a forecast
SAME = 1e-6  # two numbers within this relative distance are the same
# What came of a forecast, besides that it was scored.
OPEN: Final = "open"  # its run has not ended
LATE: Final = "late"  # it was made after its run started
REPEATED: Final = "repeated"  # its run was forecast before
VOID: Final = "void"  # its runs ended without a loss that could be scored
NOT_SETTINGS = {"seed", "device", "dtype", "compile"}


def same_point(one: Point, other: Point) -> bool:
    """Return whether two points agree in N and D, as far as both have them; in C if neither is in both."""
    both = [role for role in COUNTS if role in one and role in other]
    decisive = [role for role in both if role != "flops"] or both
    return bool(both) and all(
        math.isclose(one[role], other[role], rel_tol=SAME) for role in decisive
    )


def rows_at(points: Points, at: Point) -> NDArray[np.intp]:
    """Return which rows of a table are at a point."""
    table = {role: points.columns[role] for role in COUNTS if role in points.columns}
    rows = ({role: float(column[k]) for role, column in table.items()} for k in range(points.n))
    return np.flatnonzero([same_point(row, at) for row in rows])


def study_digest(spec: StudySpec, text_digest: str) -> str:
    """Return the sha256 of a study's identity, without the path of its data and the settings that may change."""
    identity = spec.identity()
    identity["data"] = identity["data"] | {"path": None, "text": text_digest}
    return hashlib.sha256(canonical(identity)).hexdigest()


class StartedRun(NamedTuple):
    """A run that has started: its full planned size, its start in UTC, and both in words."""

    at: Point
    started: datetime
    words: str


def started_runs(lab: Path, names: Iterable[str], counting: Counting) -> list[StartedRun]:
    """Return the runs of studies that have started."""
    starts = [run.read_start() for name in names for run in StudyFolder(lab, name).runs()]
    sizes = sizes_of([{**start.values.as_dict(), **start.facts} for start in starts], counting)
    runs = []
    for start, at in zip(starts, sizes, strict=True):
        when = datetime.fromtimestamp(start.started, UTC)
        runs.append(
            StartedRun(at, when, f"its run {start.key} started at {when:%Y-%m-%d %H:%M:%S} UTC")
        )
    return runs


@dataclass(frozen=True)
class Target:
    """A point to forecast, by role; the studies that its run may belong to, with their digests, and the cells there.

    `counting` is how their runs are counted, `seeds` the number of runs whose mean loss is forecast, and `regret` what
    their values are expected to cost.
    """

    at: Point
    studies: Mapping[str, str] = field(default_factory=dict)
    counting: Counting = PLAIN
    cells: tuple[str, ...] = ()
    seeds: int = 1
    regret: float = 0.0

    @property
    def words(self) -> str:
        """Return the point in words."""
        roles = [role for role in ("params", "tokens") if role in self.at] or ["flops"]
        numbers = ", ".join(f"{role} {self.at[role]:.6g}" for role in roles)
        if self.cells:
            return f"{self.cells[0]} ({numbers})"
        return numbers


def point_target(
    points: Points, asked: Point, studies: Mapping[str, str], counting: Counting
) -> Target:
    """Return the target with the given numbers; C is computed as in the table's rows unless it is given.

    Raises:
        BadInput: a study's run without both N and D.
    """
    if not asked or (studies and not {"params", "tokens"} <= asked.keys()):
        raise BadInput("which run? give params and tokens together")
    at = dict(asked)
    if "flops" not in at and {"params", "tokens"} <= at.keys() & points.columns.keys():
        at["flops"] = points.flops_per_param_token * at["params"] * at["tokens"]
    return Target(at, studies, counting, seeds=round(float(np.median(points.weights))))


def cell_targets(
    spec: StudySpec, lab: Path, counting: Counting
) -> tuple[Sequence[Target], Mapping[str, str]]:
    """Return the points of a study's cells as `size_targets` does, if the study could go on in the lab.

    Raises:
        BadInput: the study could not start, or another of its name stands in the lab.
    """
    from sweeplab.lab.studies import check_same_study
    from sweeplab.sweep.planning import make_plan

    planned = make_plan(spec, lab)
    check_same_study(spec, StudyFolder(lab, spec.name), planned[0].data)
    return size_targets(spec, planned, counting)


def size_targets(
    spec: StudySpec, planned: tuple[Plan, Sequence[Space], Dataset], counting: Counting
) -> tuple[Sequence[Target], Mapping[str, str]]:
    """Return the points of a study's cells, and the reason for each cell without one: its size is sampled.

    `planned` is what `make_plan` returns.
    """
    plan, spaces, _ = planned
    studies = {spec.name: study_digest(spec, plan.data.text_digest)}
    targets: list[Target] = []
    left_out = {}
    for space in spaces:
        cell, run = space.cell.key, run_to_come(space)
        if run is None:
            left_out[cell] = "its size is known only once a trial is sampled"
            continue
        (size,) = sizes_of([run], counting)
        targets.append(Target(size, studies, counting, (cell,), len(space.seeds)))
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
            forecasts.append(
                (target, predict(assessment, target.at, target.seeds, target.regret))
            )
        except BadInput as refused:
            left_out[target.words] = "; ".join(map(str, refused.problems))
    if not forecasts:
        raise BadInput(*(f"{words}: {why}" for words, why in left_out.items()))
    return forecasts, left_out


def entry_of(assessment: Assessment, forecast: Forecast) -> Plain:
    """Return the forecast of a run's loss as plain values."""
    shown = (forecast.loss, forecast.low, forecast.high)
    entry = forecast.verdict.entry(shown, "the loss of a run")
    return entry | {"law": assessment.law.name}


def seal(
    names: Sequence[str],
    counting: Counting,
    assessment: Assessment,
    lab: Path,
    forecasts: Sequence[tuple[Target, Forecast]],
) -> tuple[tuple[LedgerEntry, ...], list[str]]:
    """Seal forecasts from the studies or the file of these `names`; return their entries, and what is to be known.

    The ledger, and the studies whose started runs are looked up, are those of `lab`.

    Raises:
        BadInput: the ledger is broken or cannot be written.
    """
    law, points, first = assessment.law, assessment.raw, forecasts[0][0]
    runs = started_runs(lab, first.studies, first.counting)
    contents, warnings = [], []
    for target, predicted in forecasts:
        known = rows_at(points, target.at)
        late = next((run.words for run in runs if same_point(run.at, target.at)), "")
        if not late and known.size and (not target.studies or target.studies.keys() & {*names}):
            late = f"{names[0]} has its loss already, {points.columns['loss'][known[0]]:.4g}"
        if late:
            warnings.append(f"{target.words}: {late}; this forecast is kept, and never counts")
        elif predicted.verdict.verdict != IDENTIFIED:
            warnings.append(
                f"{target.words}: {predicted.verdict.verdict}: {predicted.verdict.words}"
            )
        contents.append(
            {
                "version": VERSION,
                "source": {"names": list(names), "counting": asdict(counting)},
                "run": {
                    "studies": dict(target.studies),
                    "counting": asdict(target.counting),
                    "cells": list(target.cells),
                    "seeds": target.seeds,
                },
                "at": dict(target.at),
                "predicted": asdict(predicted),
                "fit": {
                    "law": law.name,
                    "formula": law.formula,
                    "numbers": {
                        each.quantity.name: each.as_dict() for each in assessment.estimates
                    },
                    "form": assessment.misfit.status,
                    "sigma": assessment.fit.sigma,
                    "warnings": list(assessment.warnings),
                },
                "data": {
                    "n_points": points.n,
                    "dropped": points.dropped,
                    "conventions": points.conventions,
                },
                "late": late,
            }
        )
    return append(lab / FILE_NAME, contents), warnings


@dataclass(frozen=True)
class Outcome:
    """A sealed forecast and what came of it: the measured loss of a scored one, or why there is none."""

    entry: LedgerEntry
    state: str
    why: str = ""
    loss: float | None = None
    source: str = ""  # of a loss that the ledger does not have yet

    @property
    def names(self) -> list[str]:
        """Return the studies that the run may belong to, and where the forecast is from."""
        forecast = self.entry.forecast
        return [*forecast["run"]["studies"], *forecast["source"]["names"]]

    @property
    def is_held(self) -> bool | None:
        """Return whether the interval holds the loss; None where there is none."""
        predicted = self.entry.forecast["predicted"]
        if self.loss is None:
            return None
        return bool(predicted["low"] <= self.loss <= predicted["high"])

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values: the entry as it was sealed, then its outcome, and log(loss / predicted)."""
        entry, error = self.entry, None
        if self.loss is not None:
            error = math.log(self.loss / entry.forecast["predicted"]["loss"])
        return {
            "number": entry.number,
            "sealed": entry.sealed.isoformat(),
            "sha256": entry.sha256,
            "forecast": entry.forecast,
            "state": self.state,
            "why": self.why,
            "loss": self.loss,
            "error": error,
            "held": self.is_held,
        }


def verify(lab: Path, study: str = "", against: Path | None = None) -> tuple[Outcome, ...]:
    """Check a lab's ledger, record the outcomes that are newly known, and return that of each forecast.

    Forecasts about a file's rows are scored `against` its later state, read as for the forecast. With a `study`, only
    what is about it, or made from it, is returned.

    Raises:
        BadInput: the ledger is broken or of another version, it has nothing of the study, or the file cannot be read.
    """
    path = lab / FILE_NAME
    results = outcomes(read_ledger(path), lab, against)
    new = [
        {
            "number": outcome.entry.number,
            "source": outcome.source,
            "score": {"outcome": outcome.loss},
        }
        for outcome in results
        if outcome.source
    ]
    if new:
        append(path, new, SCORED)
    if not study:
        return results
    about = tuple(each for each in results if study in each.names)
    if not about:
        known = sorted({name for each in results for name in each.names})
        what = f"the ledger has no forecast of {study!r}"
        raise BadInput(Problem(what, ", ".join(known), nearest(study, known)))
    return about


def outcomes(
    entries: Iterable[LedgerEntry], lab: Path, against: Path | None = None
) -> tuple[Outcome, ...]:
    """Return what came of each forecast of a ledger's entries, without recording it."""
    forecasts, recorded = list[LedgerEntry](), dict[int, Facts]()
    for entry in entries:
        if entry.scored:
            recorded.setdefault(entry.scored["number"], entry.scored)
        elif entry.forecast.get("version") != VERSION:
            raise BadInput(
                f"line {entry.number} of the ledger is a forecast of another version of sweeplab"
            )
        else:
            forecasts.append(entry)
    tables: dict[str, Points] = {}
    results: list[Outcome] = []
    for entry in forecasts:
        first = next(
            (each.entry.number for each in results if _same_run(each.entry, entry)), None
        )
        if entry.forecast.get("late"):
            results.append(Outcome(entry, LATE, entry.forecast["late"]))
        elif first is not None:
            results.append(Outcome(entry, REPEATED, f"forecast {first} is of the same run"))
        elif entry.number in recorded:
            score = recorded[entry.number]
            results.append(
                Outcome(entry, SCORED, f"by {score['source']}", score["score"]["outcome"])
            )
        elif entry.forecast["run"]["studies"]:
            results.append(_of_study_run(entry, lab, tables))
        elif against is None:
            (name,) = entry.forecast["source"]["names"]
            why = f"laws verify --against FILE scores it when {name} has its row"
            results.append(Outcome(entry, OPEN, why))
        else:
            counting = _counting(entry.forecast["source"]["counting"])
            if repr(counting) not in tables:
                tables[repr(counting)] = file_points(against, counting)
            name = against.name
            results.append(
                _scored(entry, tables[repr(counting)], name, OPEN, f"{name} has no row of it")
            )
    return tuple(results)


def _same_run(one: LedgerEntry, other: LedgerEntry) -> bool:
    """Whether two forecasts are of one run: of the same studies, or of no study and from the same table."""
    first, second = one.forecast, other.forecast
    studies, others = [*first["run"]["studies"]], [*second["run"]["studies"]]
    if studies != others or not same_point(first["at"], second["at"]):
        return False
    return bool(studies) or first["source"]["names"] == second["source"]["names"]


def _of_study_run(entry: LedgerEntry, lab: Path, tables: dict[str, Points]) -> Outcome:
    """What came of a forecast of a study's run; `tables` keeps what was read."""
    run = entry.forecast["run"]
    counting, names = _counting(run["counting"]), []
    for name, digest in run["studies"].items():
        folder = StudyFolder(lab, name)
        if not folder.data_file.exists():
            continue
        if study_digest(read_spec(folder), folder.data.text_digest) != digest:
            return Outcome(entry, VOID, f"another study named {name} now stands in {lab}")
        names.append(name)
    runs = [
        each
        for each in started_runs(lab, names, counting)
        if same_point(each.at, entry.forecast["at"])
    ]
    if not runs:
        return Outcome(entry, OPEN, "its run has not started")
    first = min(runs, key=lambda each: each.started)
    if first.started <= entry.sealed:
        return Outcome(entry, LATE, first.words)
    try:
        for name in names:
            state = study_state(StudyFolder(lab, name))
            if state not in (StudyState.COMPLETE, StudyState.FAILED):
                return Outcome(entry, OPEN, f"study {name} is {state}")
        key = repr((names, counting))
        if key not in tables:
            tables[key] = read_studies(lab, names).only(counting.where).points(counting)
    except BadInput as error:
        return Outcome(entry, OPEN, "; ".join(map(str, error.problems)))
    return _scored(entry, tables[key], "its study", VOID, "its runs ended without a loss")


def _scored(
    entry: LedgerEntry, points: Points, source: str, otherwise: str, why: str
) -> Outcome:
    rows = rows_at(points, entry.forecast["at"])
    if not rows.size:
        return Outcome(entry, otherwise, why)
    forecast = entry.forecast["data"]["conventions"].get("loss")
    measured = points.conventions.get("loss")
    if forecast != measured:
        return Outcome(
            entry,
            OPEN,
            f"the forecast is of another loss ({forecast}) than {source}'s ({measured})",
        )
    logs = np.log(points.columns["loss"][rows])
    loss = math.exp(float(np.average(logs, weights=points.weights[rows])))
    return Outcome(entry, SCORED, f"by {source}", loss, source)


def _counting(sealed: Facts) -> Counting:
    conventions = {name: how for name, how in sealed["conventions"].items() if name in CHOICES}
    return Counting(Conventions(**conventions), sealed["columns"], sealed.get("where", ""))
