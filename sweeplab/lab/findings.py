"""What limited a study's best trials: a range that ends too early, a budget too short, n-grams that are better.

Each finding needs evidence, so that noise alone causes none: a trend of trials or evaluations (Mann and Kendall), and
a size that matters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from statistics import fmean, median
from typing import Any, Literal

from sweeplab.errors import DamagedFile
from sweeplab.formatting import several_named, written
from sweeplab.hyperparameters import TABLE
from sweeplab.lab.listing import StudyTrials, Trial
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import RunState
from sweeplab.study.problems import LENGTHS

# A value lies at the end of its range if it is at most this share of the range's width away, and losses fall
# towards it: in standard errors of Kendall's S, exceeded by chance in one case of 70.
NEAR_END, TREND = 0.05, 2.2
# A loss still falls if it fell by this share within the last quarter of its training.
FALL, LAST, FEWEST_EVALUATIONS = 0.01, 0.25, 5

Pairs = Sequence[tuple[float, float]]
Kind = Literal["end of range", "above n-grams", "still falling"]


@dataclass(frozen=True)
class Finding:
    """One finding about the best trials of `cells`: what it is, and what to change in the study's file.

    `name` is the hyperparameter concerned, `numbers` are those that the text gives.
    """

    kind: Kind
    cells: tuple[str, ...]
    name: str
    what: str
    change: str
    numbers: Mapping[str, float] = field(default_factory=dict)

    def in_words(self) -> str:
        """Return the finding and the change in one line."""
        return f"{self.what}; {self.change}"

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values, also where commands print JSON."""
        return asdict(self)


def find_limits(trials: StudyTrials, cell: str | None = None) -> list[Finding]:
    """Return what limited the best trial of each cell of a study, or of one cell.

    Of damaged records, which `doctor` names, it finds nothing.
    """
    folder = trials.folder
    try:
        study = folder.read(folder.canonical_file)
        best = {key: trial for key, trial in trials.best_of_cells().items() if cell in (None, key)}
        ended = [trial for trial in trials.all if trial.ending and trial.ending.outcome.counts_towards_budget]
    except DamagedFile:
        return []
    if not best:
        return []
    findings = []
    for name, entry in study["search"].items():
        if "min" in entry and "divides" not in entry:
            findings += [_end_of_range(name, entry, end, best, ended, folder) for end in ("min", "max")]
    # A plugin's metric is neither in an n-gram's unit nor a loss that has to fall.
    if study["objective"]["metric"] == "val_loss":
        findings += [_above_n_grams(folder.baselines, best), _still_falling(best)]
    return [finding for finding in findings if finding]


def _end_of_range(
    name: str,
    entry: Mapping[str, Any],
    end: str,
    best: Mapping[str, Trial],
    ended: Sequence[Trial],
    folder: StudyFolder,
) -> Finding | None:
    """Find best trials at an end of a range towards which losses fall, and which could lie further."""
    if any(bound is not None and math.isclose(bound, entry[end]) for bound in _bounds(name, end)):
        return None
    near: dict[str, float] = {}
    for cell, trial in best.items():
        if name in trial.start.sampled:
            value = trial.start.sampled[name]
            distance = _place(entry, value) if end == "min" else 1 - _place(entry, value)
            if distance <= NEAR_END:
                near[cell] = value
    fall = -_trend_in_cells(name, entry, ended)
    if not near or (fall if end == "max" else -fall) < TREND:
        return None
    word, change = ("lower", "lower") if end == "min" else ("upper", "raise")
    to, command = widened(name, entry, end), folder.command("extend", "--widen", name)
    limits = f"{written(entry['min'])} to {written(entry['max'])}"
    return Finding(
        "end of range",
        tuple(near),
        name,
        f"{name} {_extent(near.values())} of {_best_in(near, best)} is at the {word} end of its range ({limits}), "
        "and losses fall towards it",
        f"{change} search.{name}.{end} to {written(to)}: {command}",
        {"min": entry["min"], "max": entry["max"], f"{end} to take": to},
    )


def _bounds(name: str, end: str) -> tuple[float | None, float | None]:
    """Return how far this end of a hyperparameter's range can go, inclusive and exclusive."""
    row = TABLE[name]
    return {"min": (row.low, row.above), "max": (row.high, row.below)}[end]


def widened(name: str, entry: Mapping[str, Any], end: str) -> float:
    """Return where an end of a range should lie if the best values are near it, within the bounds of the table.

    The range grows by half of its width, on its own scale, and at least three times on a logarithmic one.
    """
    low, high = entry["min"], entry["max"]
    share = (high - low) / 2
    value: float = low - share if end == "min" else high + share
    if entry.get("log"):
        factor = max(3.0, math.sqrt(high / low))
        value = low / factor if end == "min" else high * factor
    value = float(f"{value:.2g}")
    closest = max if end == "min" else min
    inclusive, exclusive = _bounds(name, end)
    if inclusive is not None:
        value = closest(value, inclusive)
    if exclusive is not None and closest(value, exclusive) == exclusive:
        value = (exclusive + entry[end]) / 2
    if isinstance(entry[end], int):
        return float(round(value))
    return value


def _place(entry: Mapping[str, Any], value: float) -> float:
    low, high = entry["min"], entry["max"]
    if entry.get("log"):
        low, high, value = map(math.log, (low, high, value))
    if high <= low:
        return 0.5
    return float((value - low) / (high - low))


def _trend_in_cells(name: str, entry: Mapping[str, Any], ended: Sequence[Trial]) -> float:
    """Measure the trend of losses over a hyperparameter, within each cell and over all cells together.

    Trials that were pruned come after the others: those that came further first, then by their last losses. Those
    that diverged share the last rank.
    """
    by_cell: dict[str, list[tuple[float, Any]]] = {}
    for trial in ended:
        if name not in trial.start.sampled:
            continue
        rank = (2, 0, 0.0)
        if trial.has_value:
            rank = (0, 0, trial.value or 0.0)
        elif trial.state is RunState.PRUNED and trial.value is not None:
            rank = (1, -trial.ends[0].iteration, trial.value)
        by_cell.setdefault(trial.cell, []).append((_place(entry, trial.start.sampled[name]), rank))
    return trend(by_cell.values())


def trend(groups: Iterable[Sequence[tuple[float, Any]]]) -> float:
    """Return Kendall's S of y over x, added over groups of pairs, in its standard errors without a trend."""
    total, variance = 0, 0.0
    for pairs in groups:
        for (x, y), (other_x, other_y) in combinations(pairs, 2):
            total += ((other_x > x) - (other_x < x)) * ((other_y > y) - (other_y < y))
        n = len(pairs)
        variance += n * (n - 1) * (2 * n + 5) / 18
    if variance:
        return total / math.sqrt(variance)
    return 0.0


def _above_n_grams(baselines: Mapping[str, Mapping[str, Any]], best: Mapping[str, Trial]) -> Finding | None:
    """Find that in every cell the best trial has a loss above that of n-grams."""
    losses = {}
    for cell, trial in best.items():
        if trial.value is None or cell not in baselines or trial.value <= baselines[cell]["loss"]:
            return None
        losses[cell] = trial.value
    lowest = min(losses, key=losses.__getitem__)
    loss, baseline, length = losses[lowest], baselines[lowest]["loss"], _length_of(best[lowest])
    return Finding(
        "above n-grams",
        tuple(losses),
        length,
        f"{_best_in(losses, best)} has a loss above that of n-grams ({loss:.4f}, n-grams {baseline:.4f})",
        f"raise {length}, or the model's size",
        {"loss": loss, "n_grams": baseline},
    )


def _still_falling(best: Mapping[str, Trial]) -> Finding | None:
    """Find best trials whose loss still fell at the end of training."""
    falls = {cell: fall for cell, trial in best.items() if (fall := _fall(trial)) is not None}
    if not falls:
        return None
    length = _length_of(best[next(iter(falls))])
    lengths = _extent(getattr(best[cell].start.values, length) for cell in falls)
    return Finding(
        "still falling",
        tuple(falls),
        length,
        f"the loss of {_best_in(falls, best)} still fell by {max(falls.values()):.1%} in the last quarter of training",
        f"raise {length} ({lengths})",
        {"fall": max(falls.values())},
    )


def _length_of(trial: Trial) -> str:
    values = trial.start.values
    return next((name for name in LENGTHS[1:] if getattr(values, name)), LENGTHS[0])


def _extent(values: Iterable[float]) -> str:
    ordered = sorted(values)
    low, high = written(ordered[0]), written(ordered[-1])
    return low if low == high else f"{low} to {high}"


def _fall(trial: Trial) -> float | None:
    """Measure the share by which a trial's loss fell in its last quarter; None if it did not fall, or stopped early."""
    if any(end.state is not RunState.COMPLETE for end in trial.ends):
        return None
    by_iteration: dict[int, list[float]] = {}
    for run in trial.runs:
        for point in run.points():
            if point.val_loss is not None:
                by_iteration.setdefault(point.iteration, []).append(point.val_loss)
    means = [(at, fmean(losses)) for at, losses in sorted(by_iteration.items())]
    return fall_at_end(means)


def fall_at_end(curve: Pairs) -> float | None:
    """Return the share by which a curve falls in its last quarter; None if it falls by less than FALL, or by chance.

    It is the median of all slopes (Theil and Sen) of the evaluations of the last quarter, or of the last
    FEWEST_EVALUATIONS, which may reach back to the middle of the curve.
    """
    if not curve:
        return None
    end = curve[-1][0]
    last = [point for point in curve if point[0] >= (1 - LAST) * end]
    if len(last) < FEWEST_EVALUATIONS:
        last = [point for point in curve[-FEWEST_EVALUATIONS:] if point[0] >= end / 2]
    if len(last) < FEWEST_EVALUATIONS or trend([last]) > -TREND:
        return None
    slope = median((b - a) / (y - x) for (x, a), (y, b) in combinations(last, 2))
    fall = -slope * LAST * end / abs(last[-1][1])
    if fall >= FALL:
        return fall
    return None


def _best_in(cells: Mapping[str, Any], best: Mapping[str, Trial]) -> str:
    if len(best) == 1:
        return "the best trial"
    if len(cells) == len(best):
        return "each cell's best trial"
    return f"the best trial of {several_named([*cells])}"
