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

from sweeplab.analysis.ledger import targets
from sweeplab.analysis.ledger.chain import SCORED as SCORE_ENTRY
from sweeplab.analysis.ledger.chain import Entry, append
from sweeplab.analysis.ledger.targets import Counting, Place, StartedRun
from sweeplab.analysis.points import file_points
from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.formatting import counts
from sweeplab.lab.listing import read_spec
from sweeplab.laws.columns import Array
from sweeplab.laws.conventions import Conventions
from sweeplab.laws.estimation.intervals import LEVEL, share_interval
from sweeplab.laws.forecasts import LAST_POINT, LAW, LOG_LINE, Normal
from sweeplab.laws.points import Points
from sweeplab.records.folders import StudyFolder

VERSION: Final = 1  # of the format of a forecast
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
    return Score(
        outcome=outcome,
        error_log=None if loss is None else at - math.log(loss),
        error_nats=None if loss is None else outcome - loss,
        covered=predicted["low"] <= outcome <= predicted["high"],
        pit=law.pit(at),
        crps={name: each.crps(at) for name, each in ({LAW: law} | others).items()},
    )


@dataclass(frozen=True)
class Outcome:
    """A sealed forecast and its outcome; `why` explains a state without a score, or adds to the score.

    `basis` is what a score rests on that is not recorded yet; `attempts` counts the scores of unlike rows.
    """

    entry: Entry
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


class Runs:
    """The runs of a lab's studies so far; each study is read once."""

    def __init__(self, lab: Path) -> None:
        self._lab = lab
        self._digest = cache(self._digest_now)
        self._read: dict[str, tuple[list[StartedRun], Points | str]] = {}

    def outcome(self, entry: Entry, place: Place) -> Outcome:
        """Return the outcome of a forecast of a study's run.

        Raises:
            TrackingUnavailable: tracking does not answer.
        """
        digests = {name: self._digest(name) for name in place.studies}
        if other := [name for name, now in digests.items() if now not in (None, place.studies[name])]:
            return Outcome(entry, VOID, f"another study named {other[0]} now stands in {self._lab}")
        names = [name for name, now in digests.items() if now]
        if not names:
            return Outcome(entry, OPEN, f"no study {' or '.join(digests)} has been run in {self._lab}")
        all_runs, points = self._reading(names, place.counting)
        runs = [run for run in all_runs if targets.same_point(run.at, entry.forecast["at"])]
        if not runs:
            return Outcome(entry, OPEN, "its run has not started")
        if runs[0].started <= entry.sealed:
            when = f"it was sealed at {targets.time_in_words(entry.sealed)}"
            return Outcome(entry, REFUSED, f"made after: {when}, and {targets.started_in_words(runs)}")
        unended = sum(run.ended is None for run in runs)
        still = f"{unended} of its {len(runs)} runs have not ended" if unended else ""
        if isinstance(points, Points) and (found := targets.rows_at(points, entry.forecast["at"])).size:
            return _scored(entry, points, found, "the study", still)
        if still:
            return Outcome(entry, OPEN, still)
        states = counts(Counter(str(run.state) for run in runs))
        why = points if isinstance(points, str) else "no loss at that size in tracking"
        return Outcome(entry, VOID, f"its runs have ended ({states}), but: {why}")

    def _digest_now(self, name: str) -> str | None:
        """Return the digest of a study; None if it has not been run."""
        folder = StudyFolder(self._lab, name)
        if not (folder.canonical_file.exists() and folder.data_file.exists()):
            return None
        return targets.study_digest(read_spec(folder), folder.data.text_digest)

    def _reading(self, names: Sequence[str], counting: Counting) -> tuple[list[StartedRun], Points | str]:
        """Return the started runs in the order of their start, and the points, or why there are none."""
        from sweeplab.analysis.studies import read_studies

        key = repr((sorted(names), counting))
        if key not in self._read:
            folders = [StudyFolder(self._lab, name) for name in names]
            started = [run for folder in folders for run in targets.started_runs(folder, counting)]
            points: Points | str
            try:
                studies = read_studies(self._lab, names).only(counting.where)
                points = studies.points(counting.columns, counting.conventions)
            except BadInput as error:
                points = "; ".join(map(str, error.problems))
            self._read[key] = sorted(started, key=lambda run: run.started), points
        return self._read[key]


def _of_table(entry: Entry, path: Path, points: Points) -> Outcome:
    """Return the outcome of a forecast made from an earlier state of a file, which may have grown since."""
    found = targets.rows_at(points, entry.forecast["at"])
    if not found.size:
        return Outcome(entry, OPEN, f"{path} has no row of it")
    data = entry.forecast["data"]
    then = np.isin(targets.row_marks(points), data["rows"])
    if then[found].any():
        return Outcome(entry, REFUSED, "made after: its row was in the table when it was sealed")
    if targets.data_digest(points.only(then)) != data["digest"]:
        why = f"only {then.sum()} of the {data['n_points']} rows it was made from are unchanged in {path}"
        return Outcome(entry, REFUSED, f"{why}, so its own row may have been among them")
    n_rows = 1 if points.n_rows is None else int(points.n_rows[found].sum())
    how = "mean" if points.conventions.get("rows", "").startswith("the mean") else "best"
    return _scored(entry, points, found, path.name, f"the {how} of {n_rows} rows" if n_rows > 1 else "")


def outcomes(
    entries: Sequence[Entry],
    lab: Path,
    against: Path | None = None,
    counting: Counting | None = None,
    recorded: Mapping[int, Sequence[Entry]] | None = None,
) -> tuple[Outcome, ...]:
    """Return the outcome of each forecast; those about a file's rows are scored `against` its later state.

    `recorded` are the scores in the ledger, by the number of their forecast; the first one counts. Without a `counting`
    the file is read as for the forecast; its filter of rows is always that of the forecast.

    Raises:
        BadInput: the file cannot be read with the given columns or those of the forecast; an entry has an unknown
            format version.
        TrackingUnavailable: tracking does not answer.
    """
    runs = Runs(lab)
    tables: dict[str, Points] = {}
    found = []
    for entry in entries:
        if entry.forecast.get("version") != VERSION:
            raise BadInput(f"entry {entry.number} of the ledger has a format other than version {VERSION}")
        run = entry.forecast["run"]
        if run["studies"]:
            found.append(runs.outcome(entry, Place(run["studies"], _counting(run["counting"]))))
        elif against:
            then = _counting(entry.forecast["source"]["counting"])
            how = replace(counting, where=then.where) if counting else then
            if (key := repr(how)) not in tables:
                tables[key] = file_points(against, how.columns, how.conventions, how.where)
            found.append(_of_table(entry, against, tables[key]))
        else:
            name = entry.forecast["source"]["names"][0]
            found.append(
                Outcome(entry, OPEN, f"laws verify --against FILE scores it when {name} has its row")
            )
    return tuple(_with_recorded(outcome, (recorded or {}).get(outcome.entry.number, ())) for outcome in found)


def record(path: Path, found: Sequence[Outcome]) -> tuple[Entry, ...]:
    """Append the scores that rest on rows of which the ledger has no score yet.

    Raises:
        BadInput: the ledger cannot be written.
    """
    new = [{"number": outcome.entry.number, **outcome.basis} for outcome in found if outcome.basis]
    return append(path, new, SCORE_ENTRY) if new else ()


def _with_recorded(outcome: Outcome, scores: Sequence[Entry]) -> Outcome:
    """Return the outcome with the first recorded score, if there is one, and the number of attempts."""
    is_new = bool(outcome.basis) and not any(
        entry.scored["rows"] == outcome.basis["rows"] for entry in scores
    )
    basis, attempts = (outcome.basis if is_new else {}), len(scores) + is_new
    if not scores:
        return replace(outcome, attempts=attempts)
    first = scores[0]
    words = [f"by {first.scored['source']} at {targets.time_in_words(first.sealed)}"]
    if first.scored["why"]:
        words.append(first.scored["why"])
    losses = [entry.scored["score"]["outcome"] for entry in scores[1:]]
    losses += [outcome.basis["score"]["outcome"]] if is_new else []
    if losses:
        later = ", ".join(f"{loss:.4g}" for loss in losses)
        words.append(f"{attempts} attempts: later ones, of other rows, gave {later}; the first counts")
    if outcome.state in (REFUSED, VOID):
        words.append(f"now it would be {outcome.state}: {outcome.why}")
    crps = first.scored["score"]["crps"]  # canonical JSON has sorted the forecasters
    crps = {name: crps[name] for name in (LAW, LAST_POINT, LOG_LINE) if name in crps}
    score = Score(**first.scored["score"] | {"crps": crps})
    return Outcome(outcome.entry, SCORED, "; ".join(words), score, basis, attempts)


def of_study(entries: Sequence[Entry], name: str) -> list[Entry]:
    """Return the entries about a study's runs, or made from it.

    Raises:
        BadInput: there is none; offers the nearest name.
    """
    named = [{*entry.forecast["run"]["studies"], *entry.forecast["source"]["names"]} for entry in entries]
    found = [entry for entry, names in zip(entries, named, strict=True) if name in names]
    if not found:
        known = sorted(set[str]().union(*named))
        what = f"the ledger has no forecast of {name!r}"
        raise BadInput(Problem(what, ", ".join(known), nearest(name, known)))
    return found


def _scored(entry: Entry, points: Points, rows: NDArray[np.intp], source: str, why: str = "") -> Outcome:
    """Return the outcome scored by the geometric mean loss of some rows."""
    logs = np.log(points.columns["loss"][rows])
    loss = math.exp(float(np.average(logs, weights=points.weights[rows])))
    scored = score(entry.forecast["predicted"], entry.forecast["naive"], loss)
    marks = targets.row_marks(points)
    basis = {
        "source": source,
        "digest": targets.data_digest(points),
        "rows": [marks[row] for row in rows],
        "names": [points.names[row] for row in rows],
        "why": why,
        "score": asdict(scored),
    }
    return Outcome(entry, SCORED, why, scored, basis)


def _counting(said: Mapping[str, Any]) -> Counting:
    return Counting(Conventions(**said["conventions"]), said["columns"], said.get("where", ""))


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


def calibrate(found: Iterable[Outcome]) -> Calibration:
    """Return the calibration over the outcomes with a score; without any, coverage is empty."""
    every = [(each.entry.forecast, each.score) for each in found if each.score]
    first: dict[Any, tuple[dict[str, Any], Score]] = {}
    for forecast, scored_one in every:
        # One run has one size and one loss, to the bit, whatever the name of its study.
        first.setdefault((*sorted(forecast["at"].items()), scored_one.outcome), (forecast, scored_one))
    scored = list(first.values())
    pit = np.array([own.pit for _, own in scored])
    fits = {(said["data"]["digest"], said["fit"]["law"], said["fit"]["delta"]) for said, _ in scored}
    verdicts = np.array([said["predicted"]["verdict"]["verdict"] for said, _ in scored], object)
    skill = {}
    for name in (LAST_POINT, LOG_LINE):
        if both := [own.crps for _, own in scored if name in own.crps]:
            law, naive = (float(np.mean([each[who] for each in both])) for who in (LAW, name))
            skill[name] = Skill(len(both), law, naive, law / naive if naive > 0 else None)
    return Calibration(
        n=len(scored),
        n_forecasts=len(every),
        n_fits=len(fits),
        coverage=tuple(_coverage(level, pit) for level in LEVELS) if scored else (),
        by_verdict={each: _coverage(LEVEL, pit[verdicts == each]) for each in dict.fromkeys(verdicts)},
        pit=tuple(map(float, pit)),
        crps=skill,
    )


def _coverage(level: float, pit: Array) -> Coverage:
    n, covered = len(pit), int((np.abs(2 * pit - 1) <= level).sum())
    return Coverage(level, covered, n, *share_interval(covered, n), share=covered / n)
