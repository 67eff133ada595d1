"""The outcomes of sealed forecasts, their scores, and the calibration of their intervals.

The first score of a forecast counts: it is recorded in the ledger with the rows that it rests on. Later scores, of
other rows, are recorded too, and counted as attempts; nothing that happens to the study or the table removes one.

The runs of a study have start times, and a forecast must be earlier than all of them. A table has no times: the rows of
that time are found by their digests, and must all be there, unchanged, without the forecast's own row among them.

The continuous ranked probability score is that of `laws/forecasts.py`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sweeplab.analysis import sealing
from sweeplab.analysis.ledger import SCORED as SCORE_ENTRY
from sweeplab.analysis.ledger import VERSION, LedgerEntry, append
from sweeplab.analysis.sealing import Place, StartedRun
from sweeplab.analysis.studies import Counting, file_points, read_studies
from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.formatting import counts, several
from sweeplab.lab.listing import read_spec
from sweeplab.laws.columns import Array, Conventions
from sweeplab.laws.forecasts import LAST_POINT, LAW, LOG_LINE, Normal
from sweeplab.laws.intervals import LEVEL, share_interval
from sweeplab.laws.points import Points
from sweeplab.records.folders import StudyFolder

SCORED: Final = "scored"
OPEN: Final = "open"  # its run has not ended
VOID: Final = "void"  # its runs ended without a loss that could be scored
REFUSED: Final = "refused"  # it was made after its run started, or the opposite cannot be proved
LEVELS = (0.5, 0.8, 0.9, 0.95)


@dataclass(frozen=True)
class Score:
    """The score of a forecast: `error_log` is log(outcome / predicted), `error_nats` outcome - predicted; None if the
    law did not identify the loss, and so predicted no value.

    `crps` has the scores of the law and of the naive forecasts that could be made, in log units.
    """

    outcome: float
    error_log: float | None
    error_nats: float | None
    covered: bool
    pit: float
    crps: dict[str, float]


def score(predicted: Mapping[str, Any], naive: Mapping[str, Any], outcome: float) -> Score:
    """Return the score of a sealed prediction for the measured loss."""
    at, loss = math.log(outcome), predicted["loss"]
    law = Normal(**predicted["log_loss"])
    others = {name: Normal(**said["log_loss"]) for name, said in naive.items() if said["log_loss"]}
    errors: tuple[float | None, float | None] = (None, None)
    if loss is not None:
        errors = (at - math.log(loss), outcome - loss)
    covered = predicted["low"] <= outcome <= predicted["high"]
    crps = {name: forecast.crps(at) for name, forecast in ({LAW: law} | others).items()}
    return Score(outcome, *errors, covered, law.pit(at), crps)


@dataclass(frozen=True)
class Outcome:
    """A sealed forecast and its outcome; `why` explains a state without a score, or adds to the score.

    `basis` is what a score rests on that is not recorded yet; `attempts` counts the scores of unlike rows.
    """

    entry: LedgerEntry
    state: str
    why: str = ""
    score: Score | None = None
    basis: Mapping[str, Any] = field(default_factory=dict)
    attempts: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values: the entry as it was sealed, then its outcome."""
        entry = self.entry
        return {
            "number": entry.number,
            "sealed": entry.sealed.isoformat(),
            "sha256": entry.sha256,
            "forecast": entry.forecast,
            "state": self.state,
            "why": self.why,
            "score": asdict(self.score) if self.score else None,
            "attempts": self.attempts,
        }


class LabRuns:
    """The runs of a lab's studies so far; each study is read once."""

    def __init__(self, lab: Path) -> None:
        self._lab = lab
        self._digest = cache(self._digest_now)
        self._read: dict[str, tuple[list[StartedRun], Points | str]] = {}

    def outcome(self, entry: LedgerEntry, place: Place) -> Outcome:
        """Return the outcome of a forecast of a study's run."""
        digests = {name: self._digest(name) for name in place.studies}
        other = [name for name, now in digests.items() if now not in (None, place.studies[name])]
        if other:
            return Outcome(entry, VOID, f"another study named {other[0]} now stands in {self._lab}")
        names = [name for name, now in digests.items() if now]
        if not names:
            return Outcome(entry, OPEN, f"no study {' or '.join(digests)} has been run in {self._lab}")
        all_runs, points = self._reading(names, place.counting)
        runs = [run for run in all_runs if sealing.same_point(run.at, entry.forecast["at"])]
        if not runs:
            return Outcome(entry, OPEN, "its run has not started")
        if runs[0].started <= entry.sealed:
            when = f"it was sealed at {sealing.time_in_words(entry.sealed)}"
            return Outcome(entry, REFUSED, f"made after: {when}, and {sealing.started_in_words(runs)}")
        unended, still, why = sum(run.ended is None for run in runs), "", points
        if unended:
            have = "has" if unended == 1 else "have"
            still = f"{unended} of its {several(len(runs), 'run')} {have} not ended"
        if isinstance(points, Points):
            why, rows = "no loss at that size in its records", sealing.rows_at(points, entry.forecast["at"])
            if rows.size:
                return _scored(entry, points, rows, "the study", still)
        if still:
            return Outcome(entry, OPEN, still)
        states = counts(Counter(str(run.state) for run in runs))
        return Outcome(entry, VOID, f"its runs have ended ({states}), but: {why}")

    def _digest_now(self, name: str) -> str | None:
        """The digest of a study; None if it has not been run."""
        folder = StudyFolder(self._lab, name)
        if not (folder.canonical_file.exists() and folder.data_file.exists()):
            return None
        return sealing.study_digest(read_spec(folder), folder.data.text_digest)

    def _reading(self, names: Sequence[str], counting: Counting) -> tuple[list[StartedRun], Points | str]:
        key = repr((sorted(names), counting))
        if key not in self._read:
            folders = [StudyFolder(self._lab, name) for name in names]
            started = [run for folder in folders for run in sealing.started_runs(folder, counting)]
            points: Points | str
            try:
                studies = read_studies(self._lab, names).only(counting.where)
                points = studies.points(counting.columns, counting.conventions)
            except BadInput as error:
                points = "; ".join(map(str, error.problems))
            self._read[key] = sorted(started, key=lambda run: run.started), points
        return self._read[key]


def _of_table(entry: LedgerEntry, path: Path, points: Points) -> Outcome:
    rows = sealing.rows_at(points, entry.forecast["at"])
    if not rows.size:
        return Outcome(entry, OPEN, f"{path} has no row of it")
    data = entry.forecast["data"]
    then = np.isin(sealing.row_marks(points), data["rows"])
    if then[rows].any():
        return Outcome(entry, REFUSED, "made after: its row was in the table when it was sealed")
    if sealing.data_digest(points.only(then)) != data["digest"]:
        why = f"only {then.sum()} of the {several(data['n_points'], 'row')} it was made from are unchanged in {path}"
        return Outcome(entry, REFUSED, f"{why}, so its own row may have been among them")
    why = ""
    if points.n_rows is not None and points.n_rows[rows].sum() > 1:
        how = "mean" if points.conventions["rows"].startswith("the mean") else "best"
        why = f"the {how} of {several(int(points.n_rows[rows].sum()), 'row')}"
    return _scored(entry, points, rows, path.name, why)


def outcomes(
    entries: Sequence[LedgerEntry],
    lab: Path,
    against: Path | None = None,
    counting: Counting | None = None,
    recorded: Mapping[int, Sequence[LedgerEntry]] | None = None,
) -> tuple[Outcome, ...]:
    """Return the outcome of each forecast; those about a file's rows are scored `against` its later state.

    `recorded` are the scores in the ledger, by the number of their forecast; the first one counts. Without a `counting`
    the file is read as for the forecast; its filter of rows is always that of the forecast.

    Raises:
        BadInput: the file cannot be read with the given columns or those of the forecast; an entry has an unknown
            format version.
    """
    runs, scored = LabRuns(lab), []
    tables: dict[str, Points] = {}
    for entry in entries:
        if entry.forecast.get("version") != VERSION:
            raise BadInput(f"entry {entry.number} of the ledger has a format other than version {VERSION}")
        run = entry.forecast["run"]
        if run["studies"]:
            outcome = runs.outcome(entry, Place(run["studies"], _counting(run["counting"])))
        elif against:
            then = _counting(entry.forecast["source"]["counting"])
            how = replace(counting or then, where=then.where)
            if repr(how) not in tables:
                tables[repr(how)] = file_points(against, how.columns, how.conventions, how.where)
            outcome = _of_table(entry, against, tables[repr(how)])
        else:
            name = entry.forecast["source"]["names"][0]
            outcome = Outcome(entry, OPEN, f"laws verify --against FILE scores it when {name} has its row")
        scored.append(_with_recorded(outcome, (recorded or {}).get(entry.number, ())))
    return tuple(scored)


def record(path: Path, outcomes: Sequence[Outcome]) -> tuple[LedgerEntry, ...]:
    """Append the scores that rest on rows of which the ledger has no score yet."""
    new = [{"number": outcome.entry.number, **outcome.basis} for outcome in outcomes if outcome.basis]
    if new:
        return append(path, new, SCORE_ENTRY)
    return ()


def _with_recorded(outcome: Outcome, scores: Sequence[LedgerEntry]) -> Outcome:
    if not scores:
        return replace(outcome, attempts=int(bool(outcome.basis)))
    losses = [entry.scored["score"]["outcome"] for entry in scores]
    basis: Mapping[str, Any] = {}
    if outcome.basis and all(entry.scored["rows"] != outcome.basis["rows"] for entry in scores):
        basis = outcome.basis
        losses.append(basis["score"]["outcome"])
    first = scores[0]
    words = [f"by {first.scored['source']} at {sealing.time_in_words(first.sealed)}"]
    if first.scored["why"]:
        words.append(first.scored["why"])
    if losses[1:]:
        later = ", ".join(f"{loss:.4g}" for loss in losses[1:])
        attempts = several(len(losses), "attempt")
        words.append(f"{attempts}: later ones, of other rows, gave {later}; the first counts")
    if outcome.state in (REFUSED, VOID):
        words.append(f"now it would be {outcome.state}: {outcome.why}")
    crps = first.scored["score"]["crps"]  # canonical JSON has sorted the forecasters
    crps = {name: crps[name] for name in (LAW, LAST_POINT, LOG_LINE) if name in crps}
    score = Score(**first.scored["score"] | {"crps": crps})
    return Outcome(outcome.entry, SCORED, "; ".join(words), score, basis, len(losses))


def of_study(entries: Sequence[LedgerEntry], name: str) -> list[LedgerEntry]:
    """Return the entries about a study's runs, or made from it."""
    named = [{*entry.forecast["run"]["studies"], *entry.forecast["source"]["names"]} for entry in entries]
    about = [entry for entry, names in zip(entries, named, strict=True) if name in names]
    if not about:
        known = sorted(set[str]().union(*named))
        what = f"the ledger has no forecast of {name!r}"
        raise BadInput(Problem(what, ", ".join(known), nearest(name, known)))
    return about


def _scored(
    entry: LedgerEntry, points: Points, rows: NDArray[np.intp], source: str, why: str = ""
) -> Outcome:
    logs = np.log(points.columns["loss"][rows])
    loss = math.exp(float(np.average(logs, weights=points.weights[rows])))
    scored = score(entry.forecast["predicted"], entry.forecast["naive"], loss)
    marks = sealing.row_marks(points)
    basis = {
        "source": source,
        "digest": sealing.data_digest(points),
        "rows": [marks[row] for row in rows],
        "names": [points.names[row] for row in rows],
        "why": why,
        "score": asdict(scored),
    }
    return Outcome(entry, SCORED, why, scored, basis)


def _counting(fields: Mapping[str, Any]) -> Counting:
    return Counting(Conventions(**fields["conventions"]), fields["columns"], fields.get("where", ""))


@dataclass(frozen=True)
class Coverage:
    """The number and share of outcomes inside the central intervals of one level.

    `low` and `high` are the 90% interval of the share (Clopper and Pearson 1934).
    """

    level: float
    covered: int
    n: int
    low: float
    high: float
    share: float


@dataclass(frozen=True)
class Skill:
    """The mean CRPS of the law and of a naive forecast, over the forecasts that have both, in log units.

    `ratio` is the law's CRPS over the naive one: under 1 the law is better.
    """

    n: int
    law: float
    naive: float
    ratio: float | None


@dataclass(frozen=True)
class Calibration:
    """The scored forecasts of `n` distinct runs, of each the first; `n_forecasts` counts all.

    `pit` has the predicted probability of a loss below the outcome, per run; `by_verdict` the coverage of the sealed
    intervals by verdict. Forecasts from one fit have correlated errors: `n_fits` counts distinct fits.
    """

    n: int
    n_forecasts: int
    n_fits: int
    coverage: tuple[Coverage, ...]
    by_verdict: Mapping[str, Coverage]
    pit: tuple[float, ...]
    crps: Mapping[str, Skill]


def calibrate(outcomes: Iterable[Outcome]) -> Calibration:
    """Return the calibration over the outcomes with a score; without any, coverage is empty."""
    every = [(outcome.entry.forecast, outcome.score) for outcome in outcomes if outcome.score]
    first: dict[Any, tuple[dict[str, Any], Score]] = {}
    for forecast, scored_one in every:
        # One run has one size and one loss, to the bit, whatever the name of its study.
        first.setdefault((*sorted(forecast["at"].items()), scored_one.outcome), (forecast, scored_one))
    scored = list(first.values())
    pit = np.array([own.pit for _, own in scored])
    fits = {(said["data"]["digest"], said["fit"]["law"]) for said, _ in scored}
    verdicts = np.array([said["predicted"]["verdict"]["verdict"] for said, _ in scored], object)
    skill = {}
    for name in (LAST_POINT, LOG_LINE):
        both = [own.crps for _, own in scored if name in own.crps]
        if both:
            law, naive = (float(np.mean([crps[who] for crps in both])) for who in (LAW, name))
            skill[name] = Skill(len(both), law, naive, law / naive if naive > 0 else None)
    return Calibration(
        n=len(scored),
        n_forecasts=len(every),
        n_fits=len(fits),
        coverage=tuple(_coverage(level, pit) for level in LEVELS if scored),
        by_verdict={name: _coverage(LEVEL, pit[verdicts == name]) for name in dict.fromkeys(verdicts)},
        pit=tuple(map(float, pit)),
        crps=skill,
    )


def _coverage(level: float, pit: Array) -> Coverage:
    n, covered = len(pit), int((np.abs(2 * pit - 1) <= level).sum())
    return Coverage(level, covered, n, *share_interval(covered, n), share=covered / n)
