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
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from sweeplab.analysis.ledger import SCORED, LedgerEntry, append, canonical, read_ledger
from sweeplab.analysis.studies import file_points, read_studies, run_to_come, sizes_of
from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.lab.listing import StudyState, read_spec, study_state
from sweeplab.laws.assessment import IDENTIFIED, NO_REGRET, Assessment, Forecast, Regret, predict
from sweeplab.laws.columns import CHOICES, COUNTS, Conventions, Counting
from sweeplab.laws.points import Points
from sweeplab.records.folders import StudyFolder

if TYPE_CHECKING:
    from sweeplab.data.dataset import Dataset
    from sweeplab.study.plan import Plan
    from sweeplab.study.space import Cell
    from sweeplab.study.spec import StudySpec


VERSION = 1  # of the format of a forecast
SAME = 1e-6  # two numbers within this relative distance are the same
# What came of a forecast, besides that it was scored.
OPEN: Final = "open"  # its run has not ended
LATE: Final = "late"  # it was made after its run started
REPEATED: Final = "repeated"  # its run was forecast before
VOID: Final = "void"  # its runs ended without a loss that could be scored
NOT_SETTINGS = {"seed", "device", "dtype", "compile"}


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
    from sweeplab.lab.studies import check_same_study
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
    from sweeplab.study.space import Space

    plan, cells, dataset = planned
    place = Place({spec.name: study_digest(spec, plan.data.text_digest)}, counting)
    targets: list[Target] = []
    left_out = {}
    for cell in cells:
        space = Space(spec, cell, dataset.sizes)
        run = run_to_come(space)
        if run is None:
            left_out[cell.key] = "its size is known only once a trial is sampled"
            continue
        (size,) = sizes_of([run], counting)
        same = [at for at, other in enumerate(targets) if same_point(other.at, size)]
        if same:
            other = targets[same[0]]
            seeds = min(other.seeds, len(space.seeds))
            targets[same[0]] = replace(other, cells=(*other.cells, cell.key), seeds=seeds)
        else:
            targets.append(Target(size, place, (cell.key,), len(space.seeds)))
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


def seal(
    ledger: Path,
    names: Sequence[str],
    counting: Counting,
    assessment: Assessment,
    lab: Path,
    forecasts: Sequence[tuple[Target, Forecast]],
) -> tuple[tuple[LedgerEntry, ...], list[str]]:
    """Seal forecasts from the studies or the file of these `names`; return their entries, and what is to be known.

    Started runs are looked up in the studies of `lab`.

    Raises:
        BadInput: the ledger is broken or cannot be written.
    """
    runs: list[StartedRun] = []
    if place := forecasts[0][0].place:
        runs = [run for name in place.studies for run in started_runs(StudyFolder(lab, name), place.counting)]
    law, points = assessment.law, assessment.raw
    contents, warnings = [], []
    for target, predicted in forecasts:
        late = _late(target, points, names, runs)
        if late:
            warnings.append(f"{target.words}: {late}; this forecast is kept, and never counts")
        elif predicted.verdict.verdict != IDENTIFIED:
            warnings.append(f"{target.words}: {predicted.verdict.verdict}: {predicted.verdict.reason}")
        run = asdict(target.place) if target.place else {"studies": {}, "counting": None}
        contents.append(
            {
                "version": VERSION,
                "source": {"names": list(names), "counting": asdict(counting)},
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
                "late": late,
            }
        )
    return append(ledger, contents), warnings


def _late(target: Target, points: Points, names: Sequence[str], runs: Sequence[StartedRun]) -> str:
    """Return why a forecast comes too late; empty if it comes in time."""
    for run in runs:
        if same_point(run.at, target.at):
            return run.words
    known = rows_at(points, target.at)
    if known.size and (target.place is None or set(target.place.studies) & set(names)):
        return f"{names[0]} has its loss already, {points.columns['loss'][known[0]]:.4g}"
    return ""


@dataclass(frozen=True)
class Outcome:
    """A sealed forecast and what came of it: the measured loss of a scored one, or why there is none."""

    entry: LedgerEntry
    state: str
    why: str = ""
    loss: float | None = None
    source: str = ""  # of a loss that the ledger does not have yet

    @property
    def is_held(self) -> bool | None:
        """Return whether the interval holds the loss; None where there is none."""
        predicted = self.entry.forecast["predicted"]
        if self.loss is None:
            return None
        return bool(predicted["low"] <= self.loss <= predicted["high"])

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values: the entry as it was sealed, then its outcome, and log(loss / predicted)."""
        entry, predicted, error = self.entry, self.entry.forecast["predicted"]["loss"], None
        if self.loss is not None and predicted is not None:
            error = math.log(self.loss / predicted)
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


def verify(path: Path, lab: Path, study: str = "", against: Path | None = None) -> tuple[Outcome, ...]:
    """Check a ledger, record the outcomes that are newly known, and return that of each forecast.

    Forecasts about a file's rows are scored `against` its later state, read as for the forecast. With a `study`, only
    what is about it is returned.

    Raises:
        BadInput: the ledger is broken or of another version, it has nothing of the study, or the file cannot be read.
    """
    results = outcomes(read_ledger(path), lab, against)
    new = [
        {"number": outcome.entry.number, "source": outcome.source, "score": {"outcome": outcome.loss}}
        for outcome in results
        if outcome.source
    ]
    if new:
        append(path, new, SCORED)
    return of_study(results, study)


def outcomes(entries: Iterable[LedgerEntry], lab: Path, against: Path | None = None) -> tuple[Outcome, ...]:
    """Return what came of each forecast of a ledger's entries, without recording it."""
    forecasts, recorded = list[LedgerEntry](), dict[int, Mapping[str, Any]]()
    for entry in entries:
        if entry.scored:
            recorded.setdefault(entry.scored["number"], entry.scored)
        elif entry.forecast.get("version") != VERSION:
            raise BadInput(f"line {entry.number} of the ledger is a forecast of another version of sweeplab")
        else:
            forecasts.append(entry)
    tables: dict[str, Points] = {}
    results: list[Outcome] = []
    for entry in forecasts:
        first = next((each.entry.number for each in results if _same_run(each.entry, entry)), None)
        if entry.forecast.get("late"):
            results.append(Outcome(entry, LATE, entry.forecast["late"]))
        elif first is not None:
            results.append(Outcome(entry, REPEATED, f"forecast {first} is of the same run"))
        elif entry.number in recorded:
            score = recorded[entry.number]
            results.append(Outcome(entry, SCORED, f"by {score['source']}", score["score"]["outcome"]))
        elif _names(entry):
            results.append(_of_study_run(entry, lab, tables))
        else:
            results.append(_of_row(entry, against, tables))
    return tuple(results)


def of_study(results: Sequence[Outcome], study: str) -> tuple[Outcome, ...]:
    """Return the outcomes of forecasts about a study's runs, or made from it; of all without a name."""
    if not study:
        return tuple(results)
    names = [{*_names(each.entry), *_sources(each.entry)} for each in results]
    about = tuple(each for each, named in zip(results, names, strict=True) if study in named)
    if not about:
        known = sorted(set[str]().union(*names))
        what = f"the ledger has no forecast of {study!r}"
        raise BadInput(Problem(what, ", ".join(known), nearest(study, known)))
    return about


def _names(entry: LedgerEntry) -> list[str]:
    return list(entry.forecast["run"]["studies"])


def _sources(entry: LedgerEntry) -> list[str]:
    return list(entry.forecast["source"]["names"])


def _same_run(one: LedgerEntry, other: LedgerEntry) -> bool:
    """Whether two forecasts are of one run: of the same studies, or of no study and from the same table."""
    if _names(one) != _names(other) or not same_point(one.forecast["at"], other.forecast["at"]):
        return False
    return bool(_names(one)) or _sources(one) == _sources(other)


def _of_study_run(entry: LedgerEntry, lab: Path, tables: dict[str, Points]) -> Outcome:
    """What came of a forecast of a study's run; `tables` keeps what was read."""
    run, counting, runs = entry.forecast["run"], _counting(entry.forecast["run"]["counting"]), []
    folders = [StudyFolder(lab, name) for name in run["studies"]]
    folders = [folder for folder in folders if folder.data_file.exists()]
    for folder in folders:
        if study_digest(read_spec(folder), folder.data.text_digest) != run["studies"][folder.name]:
            return Outcome(entry, VOID, f"another study named {folder.name} now stands in {lab}")
        runs += [each for each in started_runs(folder, counting) if same_point(each.at, entry.forecast["at"])]
    if not runs:
        return Outcome(entry, OPEN, "its run has not started")
    first = min(runs, key=lambda each: each.started)
    if first.started <= entry.sealed:
        return Outcome(entry, LATE, first.words)
    try:
        for folder in folders:
            state = study_state(folder)
            if state not in (StudyState.COMPLETE, StudyState.FAILED):
                return Outcome(entry, OPEN, f"study {folder.name} is {state}")
        names = [folder.name for folder in folders]
        key = repr((names, counting))
        if key not in tables:
            studies = read_studies(lab, names).only(counting.where)
            tables[key] = studies.points(counting)
    except BadInput as error:
        return Outcome(entry, OPEN, "; ".join(map(str, error.problems)))
    return _scored(entry, tables[key], "its study", VOID, "its runs ended without a loss")


def _of_row(entry: LedgerEntry, against: Path | None, tables: dict[str, Points]) -> Outcome:
    """What came of a forecast of a table's row."""
    if against is None:
        why = f"laws verify --against FILE scores it when {_sources(entry)[0]} has its row"
        return Outcome(entry, OPEN, why)
    counting = _counting(entry.forecast["source"]["counting"])
    key = repr(counting)
    if key not in tables:
        tables[key] = file_points(against, counting)
    return _scored(entry, tables[key], against.name, OPEN, f"{against.name} has no row of it")


def _scored(entry: LedgerEntry, points: Points, source: str, otherwise: str, why: str) -> Outcome:
    rows = rows_at(points, entry.forecast["at"])
    if not rows.size:
        return Outcome(entry, otherwise, why)
    forecast, measured = entry.forecast["data"]["conventions"].get("loss"), points.conventions.get("loss")
    if forecast != measured:
        return Outcome(
            entry, OPEN, f"the forecast is of another loss ({forecast}) than {source}'s ({measured})"
        )
    logs = np.log(points.columns["loss"][rows])
    loss = math.exp(float(np.average(logs, weights=points.weights[rows])))
    return Outcome(entry, SCORED, f"by {source}", loss, source)


def _counting(sealed: Mapping[str, Any]) -> Counting:
    conventions = {name: how for name, how in sealed["conventions"].items() if name in CHOICES}
    return Counting(Conventions(**conventions), sealed["columns"], sealed.get("where", ""))


def calibrate(results: Iterable[Outcome]) -> dict[str, float]:
    """Return how many of the `n` scored forecasts held, and the 90% interval of that share (Clopper, Pearson)."""
    from scipy.stats import binomtest

    held = [bool(outcome.is_held) for outcome in results if outcome.state == SCORED]
    low, high = 0.0, 1.0
    if held:
        low, high = map(float, binomtest(sum(held), len(held)).proportion_ci(0.9))
    return {"n": len(held), "held": sum(held), "low": low, "high": high}
