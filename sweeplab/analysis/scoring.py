"""The outcomes of sealed forecasts, and how many of their intervals hold them.

The first forecast of a run counts, if it was sealed before the run started. Its outcome is recorded in the ledger when
it is first known, with the study complete, and stays: nothing that happens to the study or the table changes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from sweeplab.analysis.ledger import SCORED as OUTCOME
from sweeplab.analysis.ledger import LedgerEntry, append, read_ledger
from sweeplab.analysis.sealing import VERSION, rows_at, same_point, started_runs, study_digest
from sweeplab.analysis.studies import Counting, read_studies
from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.lab.listing import StudyState, read_spec, study_state
from sweeplab.laws.columns import Conventions
from sweeplab.laws.points import Points
from sweeplab.records.folders import StudyFolder

SCORED: Final = "scored"
OPEN: Final = "open"  # its run has not ended
LATE: Final = "late"  # it was made after its run started
REPEATED: Final = "repeated"  # its run was forecast before
VOID: Final = "void"  # its runs ended without a loss that could be scored
UNCOUNTED = (LATE, REPEATED, VOID)


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
        append(path, new, OUTCOME)
    return of_study(results, study)


def outcomes(entries: Iterable[LedgerEntry], lab: Path, against: Path | None = None) -> tuple[Outcome, ...]:
    """Return what came of each forecast of a ledger's entries, without recording it."""
    recorded: dict[int, Mapping[str, Any]] = {}
    forecasts = []
    for entry in entries:
        if entry.scored:
            recorded.setdefault(entry.scored["number"], entry.scored)
            continue
        if entry.forecast.get("version") != VERSION:
            raise BadInput(f"line {entry.number} of the ledger is a forecast of another version of sweeplab")
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
        elif entry.forecast["run"]["studies"]:
            results.append(_of_study_run(entry, lab, tables))
        else:
            results.append(_of_row(entry, against, tables))
    return tuple(results)


def of_study(results: Sequence[Outcome], study: str) -> tuple[Outcome, ...]:
    """Return the outcomes of forecasts about a study's runs, or made from it; of all without a name."""
    names = {each.entry.number: {*_names(each.entry), *_sources(each.entry)} for each in results}
    about = tuple(each for each in results if not study or study in names[each.entry.number])
    if study and not about:
        known = sorted(set[str]().union(*names.values()))
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
            tables[key] = studies.points(counting.columns, counting.conventions)
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
        tables[key] = counting.of_file(against)
    return _scored(entry, tables[key], against.name, OPEN, f"{against.name} has no row of it")


def _scored(entry: LedgerEntry, points: Points, source: str, otherwise: str, why: str) -> Outcome:
    rows = rows_at(points, entry.forecast["at"])
    if not rows.size:
        return Outcome(entry, otherwise, why)
    logs = np.log(points.columns["loss"][rows])
    loss = math.exp(float(np.average(logs, weights=points.weights[rows])))
    return Outcome(entry, SCORED, f"by {source}", loss, source)


def _counting(fields: Mapping[str, Any]) -> Counting:
    return Counting(Conventions(**fields["conventions"]), fields["columns"], fields.get("where", ""))


@dataclass(frozen=True)
class Calibration:
    """How many of `n` scored forecasts held; `low` and `high` are the 90% interval of that share (Clopper, Pearson)."""

    n: int
    held: int
    low: float
    high: float


def calibrate(results: Iterable[Outcome]) -> Calibration:
    """Return how many of the scored forecasts held."""
    from scipy.stats import binomtest

    scored = [outcome for outcome in results if outcome.state == SCORED]
    held = sum(bool(outcome.is_held) for outcome in scored)
    if not scored:
        return Calibration(0, 0, 0.0, 1.0)
    share = binomtest(held, len(scored)).proportion_ci(0.9)
    return Calibration(len(scored), held, float(share.low), float(share.high))
