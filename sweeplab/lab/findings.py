"""What limited a study's best trials: a range that ends too early, or a training after which n-grams are better.

A range needs evidence, so that noise alone causes no finding: a trend of the trials' losses (Mann and Kendall) towards
its end.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

from sweeplab.formatting import several_named, written
from sweeplab.hyperparameters import TABLE
from sweeplab.lab.listing import StudyTrials, Trial
from sweeplab.records.runs import RunState
from sweeplab.study.problems import LENGTHS

# A value lies at the end of its range if it is at most this share of the range's width away, and losses fall
# towards it: in standard errors of Kendall's S, exceeded by chance in one case of 70.
NEAR_END, TREND = 0.05, 2.2


@dataclass(frozen=True)
class Finding:
    """One finding about the best trials of `cells`: what it is, and what to change in the study's file.

    `name` is the hyperparameter concerned, `end` the end of its range, min or max. `limit` is where this end should
    lie, or the loss of n-grams.
    """

    kind: Literal["end of range", "above n-grams"]
    cells: tuple[str, ...]
    name: str
    what: str
    change: str
    limit: float
    end: str = ""

    def in_words(self) -> str:
        """Return the finding and the change in one line."""
        return f"{self.what}; {self.change}"


def find_limits(trials: StudyTrials, cell: str | None = None) -> list[Finding]:
    """Return what limited the best trial of each cell of a study, or of one cell."""
    folder = trials.folder
    study = folder.read(folder.canonical_file)
    best = {key: trial for key, trial in trials.best_of_cells().items() if cell in (None, key)}
    if not best:
        return []
    findings = list[Finding]()
    for name, entry in study["search"].items():
        if "min" in entry:
            for end in ("min", "max"):
                findings += _end_of_range(name, entry, end, best, trials)
    # A plugin's metric is not in an n-gram's unit.
    if study["objective"]["metric"] == "val_loss":
        findings += _above_n_grams(folder.baselines, best)
    return findings


def _end_of_range(
    name: str,
    entry: Mapping[str, Any],
    end: str,
    best: Mapping[str, Trial],
    trials: StudyTrials,
) -> Iterator[Finding]:
    """Find best trials at an end of a range towards which losses fall, and which could lie further."""
    to = widened(name, entry, end)
    if math.isclose(to, entry[end]):
        return
    near: dict[str, float] = {}
    # In each cell the distances from the end, with ranks of the losses.
    by_cell: dict[str, list[tuple[float, Any]]] = defaultdict(list)
    for trial in trials.all:
        value, ending = trial.start.sampled.get(name), trial.ending
        if value is None or ending is None or not ending.outcome.counts_towards_budget:
            continue
        distance = _distance(entry, end, value)
        if trial is best.get(trial.cell) and distance <= NEAR_END:
            near[trial.cell] = value
        # Trials that were pruned come after the others: those that came further first, then by their last losses.
        # Those that diverged share the last rank.
        rank = (2, 0, 0.0)
        if trial.has_value:
            rank = (0, 0, trial.value or 0.0)
        elif trial.state is RunState.PRUNED and trial.value is not None:
            rank = (1, -trial.ends[0].iteration, trial.value)
        by_cell[trial.cell].append((distance, rank))
    if not near or trend(by_cell.values()) < TREND:
        return
    word, change = ("lower", "lower") if end == "min" else ("upper", "raise")
    values = dict.fromkeys(written(value) for value in (min(near.values()), max(near.values())))
    what = f"{name} {' to '.join(values)} of {_best_in(near, best)} is at the {word} end of its range"
    what += f" ({written(entry['min'])} to {written(entry['max'])}), and losses fall towards it"
    change += (
        f" search.{name}.{end} to {written(to)}: "
        f"{trials.folder.command('extend', '--widen', name)}"
    )
    yield Finding("end of range", tuple(near), name, what, change, to, end)


def widened(name: str, entry: Mapping[str, Any], end: str) -> float:
    """Return where an end of a range should lie if the best values are near it, within the bounds of the table.

    The range grows by half of its width, on its own scale, and at least three times on a logarithmic one.
    """
    low, high, row = entry["min"], entry["max"], TABLE[name]
    step, factor = (high - low) / 2, 1.0
    if entry.get("log"):
        step, factor = 0.0, max(3.0, math.sqrt(high / low))
    value: float = high * factor + step
    closest = min
    inclusive, exclusive = row.high, row.below
    if end == "min":
        value, closest = low / factor - step, max
        inclusive, exclusive = row.low, row.above
    value = float(f"{value:.2g}")
    if inclusive is not None:
        value = closest(value, inclusive)
    if exclusive is not None and closest(value, exclusive) == exclusive:
        value = (exclusive + entry[end]) / 2
    if isinstance(entry[end], int):
        return float(round(value))
    return value


def _distance(entry: Mapping[str, Any], end: str, value: float) -> float:
    """Return how far a value lies from an end of its range, as a share of the range."""
    scale: Callable[[float], float] = float
    if entry.get("log"):
        scale = math.log
    width = scale(entry["max"]) - scale(entry["min"])
    return abs(scale(value) - scale(entry[end])) / width


def trend(groups: Iterable[Sequence[tuple[float, Any]]]) -> float:
    """Return Kendall's S of y over x, added over groups of pairs, in its standard errors without a trend."""
    total, variance = 0, 0.0
    for pairs in groups:
        for (x, y), (other_x, other_y) in combinations(pairs, 2):
            if x != other_x and y != other_y:
                total += 1 if (x < other_x) == (y < other_y) else -1
        n = len(pairs)
        variance += n * (n - 1) * (2 * n + 5) / 18
    return total / math.sqrt(variance) if variance else 0.0


def _above_n_grams(
    baselines: Mapping[str, Mapping[str, Any]], best: Mapping[str, Trial]
) -> Iterator[Finding]:
    """Find that in every cell the best trial has a loss above that of n-grams."""
    losses = {cell: trial.value or 0.0 for cell, trial in best.items()}
    if not all(
        cell in baselines and loss > baselines[cell]["loss"] for cell, loss in losses.items()
    ):
        return
    lowest = min(losses, key=losses.__getitem__)
    loss, baseline, values = (
        losses[lowest],
        baselines[lowest]["loss"],
        best[lowest].start.values,
    )
    length = next(name for name in LENGTHS if getattr(values, name))
    what = f"{_best_in(losses, best)} has a loss above that of n-grams ({loss:.4f}, n-grams {baseline:.4f})"
    change = f"raise {length}, or the model's size"
    yield Finding("above n-grams", tuple(losses), length, what, change, baseline)


def _best_in(cells: Mapping[str, Any], best: Mapping[str, Trial]) -> str:
    if len(cells) == len(best) > 1:
        return "each cell's best trial"
    return f"the best trial of {several_named([*cells])}"
