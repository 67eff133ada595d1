"""What limited a study's best trials: a range that ends too early, a budget too short, n-grams that are better.

Each finding needs evidence, so that noise alone causes none: a trend of trials or evaluations (Mann and Kendall), and
a size that matters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
        return _find(folder.read(folder.canonical_file), trials, cell)
    except DamagedFile:
        return []


def _find(study: Mapping[str, Any], trials: StudyTrials, cell: str | None) -> list[Finding]:
    best = {key: trial for key, trial in trials.best_of_cells().items() if cell in (None, key)}
    if not best:
        return []
    ended = [trial for trial in trials.all if trial.ending and trial.ending.outcome.counts_towards_budget]
    folder = trials.folder
    findings = [*_ends_of_ranges(study["search"], best, ended, folder)]
    # A plugin's metric is neither in an n-gram's unit nor a loss that has to fall.
    if study["objective"]["metric"] == "val_loss":
        findings += [*_above_n_grams(folder.baselines, best), *_still_falling(best)]
    return findings


def _ends_of_ranges(
    search: Mapping[str, Mapping[str, Any]],
    best: Mapping[str, Trial],
    ended: Sequence[Trial],
    folder: StudyFolder,
) -> Iterator[Finding]:
    """Yield the ranges at whose end best trials lie, where losses fall towards it and it could go further."""
    for name, entry in search.items():
        for end, sign in (("min", -1), ("max", 1)):
            if end not in entry or "divides" in entry:
                continue
            if any(bound is not None and math.isclose(bound, entry[end]) for bound in _bounds(name, end)):
                continue
            near = {
                cell: trial.start.sampled[name]
                for cell, trial in best.items()
                if name in trial.start.sampled
                and sign * (_place(entry, trial.start.sampled[name]) - 0.5) >= 0.5 - NEAR_END
            }
            if near and _trend_in_cells(name, entry, ended) * sign <= -TREND:
                word, how = {"min": ("lower", "lower"), "max": ("upper", "raise")}[end]
                to, command = widened(name, entry, end), folder.command("extend", "--widen", name)
                limits = f"{written(entry['min'])} to {written(entry['max'])}"
                yield Finding(
                    "end of range",
                    tuple(near),
                    name,
                    f"{name} {_extent(near.values())}{_of(near, best)} is at the {word} end of its range ({limits}), "
                    "and losses fall towards it",
                    f"{how} search.{name}.{end} to {written(to)}: {command}",
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
        if name in trial.start.sampled:
            rank = (2, 0, 0.0)
            if trial.value is not None and trial.state is not RunState.DIVERGED:
                rank = (0, 0, trial.value) if trial.has_value else (1, -trial.ends[0].iteration, trial.value)
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


def _above_n_grams(
    baselines: Mapping[str, Mapping[str, Any]], best: Mapping[str, Trial]
) -> Iterator[Finding]:
    losses = {cell: trial.value for cell, trial in best.items() if trial.value is not None}
    above = [cell for cell, loss in losses.items() if cell in baselines and loss > baselines[cell]["loss"]]
    if not above or len(above) < len(best):
        return
    lowest = min(above, key=lambda cell: losses[cell])
    loss, baseline = losses[lowest], baselines[lowest]["loss"]
    which = "each cell's best trial" if len(above) > 1 else "the best trial"
    length = _length_of(best[lowest])
    yield Finding(
        "above n-grams",
        tuple(above),
        length,
        f"{which} has a loss above that of n-grams ({loss:.4f}, n-grams {baseline:.4f})",
        f"raise {length}, or the model's size",
        {"loss": loss, "n_grams": baseline},
    )


def _still_falling(best: Mapping[str, Trial]) -> Iterator[Finding]:
    every = {cell: _fall(trial) for cell, trial in best.items()}
    falls = {cell: fall for cell, fall in every.items() if fall is not None}
    if falls:
        share = _extent(falls.values(), "{:.1%}".format)
        length = _length_of(best[next(iter(falls))])
        lengths = _extent(getattr(best[cell].start.values, length) for cell in falls)
        yield Finding(
            "still falling",
            tuple(falls),
            length,
            f"the loss{_of(falls, best)} still fell by {share} in the last quarter of training",
            f"raise {length} ({lengths})",
            {"fall": max(falls.values())},
        )


def _length_of(trial: Trial) -> str:
    values = trial.start.values
    return next((name for name in LENGTHS[1:] if getattr(values, name)), LENGTHS[0])


def _extent(values: Iterable[float], write: Callable[[float], str] = written) -> str:
    ordered = sorted(values)
    low, high = write(ordered[0]), write(ordered[-1])
    if low == high:
        return low
    return f"{low} to {high}"


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


def _of(cells: Mapping[str, Any], best: Mapping[str, Trial]) -> str:
    if len(best) == 1:
        return " of the best trial"
    if len(cells) == len(best):
        return " of each cell's best trial"
    return f" of the best trial of {several_named([*cells])}"
