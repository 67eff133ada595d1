"""The choice among trials: by the loss that is expected of their searched values, not by the lowest that was seen.

The loss of one seed is a draw: the lowest of many is low by luck. The surrogate of `laws/surrogate.py`, over the
searched values and the sizes of all cells, gives the expected loss of each trial; each run is a row, so that trials
with several seeds, and trials that repeat the values of another, count more. Too few trials for a surrogate are ranked
by their values, the means over their seeds.

A trial is not distinguishable from the chosen one if its expected loss is higher by less than the standard deviation of
the chosen one's mean over its seeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, Self

import numpy as np

from sweeplab.formatting import several, several_named
from sweeplab.hyperparameters import TABLE, is_number
from sweeplab.laws.surrogate import Columns, Floats, condition, fit_scales
from sweeplab.study.problems import LENGTHS

# The fewest runs, and the fewest for each column, for which the expected loss is nearer the truth than the value seen.
FEWEST, FEWEST_A_COLUMN = 6, 2
# The trials that are ranked by their expected losses, the lowest and some of the others, and the runs to which the
# surrogate's scales are fitted: a fit to more would take seconds.
MOST_TRIALS, MOST_FITTED = 300, 60
LEVEL_90 = 1.645  # standard deviations of a normal 90% interval
Values = Mapping[str, Any]
Place = tuple[str, int]  # a trial's cell and number


@dataclass(frozen=True)
class SearchAxis:
    """One value of a trial as columns: a number in one column, or a choice in one indicator for each value.

    A number's column is (transformed - middle) / half; `is_log` transforms it. A missing value is the middle.
    """

    name: str
    is_searched: bool
    choices: tuple[Any, ...] = ()
    is_log: bool = False
    middle: float = 0.0
    half: float = 1.0

    @classmethod
    def of_range(cls, name: str, low: float, high: float, is_log: bool) -> Self:
        """Return the axis of a searched range."""
        if is_log:
            low, high = math.log(low), math.log(high)
        return cls(name, True, (), is_log, (low + high) / 2, max((high - low) / 2, 1e-12))

    def columns(self, values: Sequence[Any]) -> Floats:
        """Return the columns of some values [n, …]; None is missing."""
        if self.choices:
            return np.array(
                [[float(value == choice) for choice in self.choices] for value in values]
            )
        transform = math.log if self.is_log else float
        shares = [
            value is not None and (transform(value) - self.middle) / self.half
            for value in values
        ]
        return np.array(shares, float)[:, None]


class Axes:
    """The axes of a table of trials, searched ones and those of the cells' sizes."""

    def __init__(self, axes: Sequence[SearchAxis]) -> None:
        self._axes = axes
        widths = [len(axis.choices) or 1 for axis in axes]
        is_searched = np.repeat([axis.is_searched for axis in axes], widths)
        is_number = np.repeat([not axis.choices for axis in axes], widths)
        self.columns = Columns(is_searched.astype(bool), is_number.astype(bool))

    def rows(self, sizes: Sequence[Values], searched: Sequence[Values]) -> Floats:
        """Return the rows [n, d] of trials, by the values of their cells and their searched values."""
        columns = [
            axis.columns(
                [
                    of_trial.get(axis.name)
                    for of_trial in (searched if axis.is_searched else sizes)
                ]
            )
            for axis in self._axes
        ]
        return np.hstack([np.empty((len(sizes), 0)), *columns])


def axes_of_rows(rows: Sequence[Values], is_searched: bool) -> Iterator[SearchAxis]:
    """Yield the axes of what varies among the searched values of trials, or among the values of cells.

    A cell without a value is unlike the others; a trial without one has no place on its axis.
    """
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name) for row in rows if name in row or not is_searched]
        yield from axes_of_values(name, values, is_searched)


def axes_of_values(name: str, values: Sequence[Any], is_searched: bool) -> Iterator[SearchAxis]:
    """Yield the axis of a list of values: numbers stay numbers; none if there is only one value."""
    unlike = list(dict.fromkeys(values))
    if len(unlike) < 2:
        return
    if not all(map(is_number, unlike)):
        yield SearchAxis(name, is_searched, tuple(unlike))
        return
    is_log = min(unlike) > 0
    numbers = np.log(unlike) if is_log else np.array(unlike, dtype=float)
    if is_searched:
        yield SearchAxis.of_range(name, min(unlike), max(unlike), is_log)
    else:
        yield SearchAxis(name, False, (), is_log, float(numbers.mean()), float(numbers.std()))


@dataclass(frozen=True)
class Tried:
    """A trial that ended by itself: the values of its cell, its searched values, and the loss of each seed."""

    cell: str
    number: int
    value: float
    sizes: Values
    searched: Values
    losses: Sequence[float]
    seeds: Sequence[int]

    @classmethod
    def of(
        cls,
        place: Place,
        value: float,
        sizes: Values,
        searched: Values,
        losses: Mapping[int, float | None],
    ) -> Self:
        """Return a trial with the losses by seed at the evaluation of its value, if they are known.

        A plugin's metric is known as the mean over seeds only. Values of the cell that are tuned, such as the learning
        rate, are searched ones like those of a search.
        """
        searched = {
            **searched,
            **{name: value for name, value in sizes.items() if is_tuned(name)},
        }
        sizes = {name: value for name, value in sizes.items() if name not in searched}
        known = [loss for loss in losses.values() if loss is not None and math.isfinite(loss)]
        if (
            len(known) < len(losses)
            or not known
            or not math.isclose(fmean(known), value, rel_tol=1e-6)
        ):
            known = [value]
        # JSON has lists for the pairs of a run's record.
        pairs = {
            name: tuple(value) for name, value in searched.items() if isinstance(value, list)
        }
        return cls(*place, value, sizes, searched | pairs, known, [*losses])

    @property
    def place(self) -> Place:
        """Return its cell and number."""
        return self.cell, self.number


@dataclass(frozen=True)
class Expected:
    """The expected loss of a trial's values, with its 90% interval, and the spread of one seed, relative."""

    value: float
    low: float
    high: float
    spread: float


@dataclass(frozen=True)
class Choice:
    """The chosen trial of a cell, or of several.

    `expected` is None if `why` says that the lowest value counts. `rivals` are the trials that cannot be distinguished
    from it; `n_seeds` is the number of runs with its values. It was chosen among `n_trials`.
    """

    place: Place
    value: float
    expected: Expected | None
    n_seeds: int
    rivals: tuple[Place, ...]
    why: str
    n_trials: int

    def as_dict(self) -> dict[str, Any]:
        """Return the value seen and the expected one as plain data, with what cannot be distinguished from it."""
        rivals = [{"cell": cell, "trial": number} for cell, number in self.rivals]
        expected = self.expected and asdict(self.expected)
        return {
            "value": self.value,
            "expected": expected,
            "n_seeds": self.n_seeds,
            "not_distinguishable": rivals,
            "why_lowest": self.why,
        }

    def in_words(self, command: str) -> list[str]:
        """Say by what the trial was chosen, and what cannot be distinguished from it; `command` would."""
        if self.expected is None:
            return [f"chosen by the lowest value seen: {self.why}"] if self.n_trials > 1 else []
        one = self.expected
        sentences = [
            f"chosen by the expected value, {one.value:.4f} ({one.low:.4f} to {one.high:.4f})"
        ]
        if self.rivals:
            names = [f"{cell}/{number}" for cell, number in self.rivals]
            sentences.append(
                f"not distinguishable from trial {several_named(names)}: the spread between "
                f"seeds is {one.spread:.1%}; {command} trains them on more seeds"
            )
        return sentences


@dataclass(frozen=True)
class Ranking:
    """The trials in order, the chosen one first, with the expected losses; none of them if `why` is said."""

    order: tuple[Tried, ...]
    expected: Mapping[Place, Expected]
    why: str = ""

    def choice(self, cell: str | None = None) -> Choice | None:
        """Return the chosen trial, of a cell or of all; None if there is none."""
        among = [trial for trial in self.order if cell in (None, trial.cell)]
        if not among:
            return None
        best, first = among[0], first_of_same(among)
        same = [
            each
            for each in among
            if (each.cell, first[each.place]) == (best.cell, first[best.place])
        ]
        n_seeds = sum(len(trial.losses) for trial in same)
        expected, rivals = self.expected.get(best.place), list[Place]()
        if expected:
            reach = expected.value * math.exp(expected.spread / math.sqrt(n_seeds))
            for trial in among:
                other = self.expected.get(trial.place)
                if other and other.value < reach and trial not in same:
                    rivals.append(trial.place)
        return Choice(
            best.place, best.value, expected, n_seeds, tuple(rivals), self.why, len(among)
        )


def first_of_same(trials: Sequence[Tried]) -> dict[Place, int]:
    """Return for each trial the number of the first one in its cell with its values, itself unless it repeats another.

    Trials with a common seed differ, if only in values that are not known: nothing is trained twice.
    """
    firsts: dict[Any, tuple[int, set[int]]] = {}
    numbers: dict[Place, int] = {}
    for trial in sorted(trials, key=lambda trial: trial.number):
        key = (trial.cell, *sorted(trial.searched.items()))
        number, seeds = firsts.setdefault(key, (trial.number, set()))
        if seeds.intersection(trial.seeds):
            number = trial.number
        numbers[trial.place] = number
        seeds.update(trial.seeds)
    return numbers


def is_tuned(name: str) -> bool:
    """Return whether a hyperparameter is tuned: it defines neither a model nor the length of its training."""
    row = TABLE.get(name)
    defines_model = row is not None and row.shape and row.category in ("data", "model")
    return not defines_model and name not in LENGTHS


def rank(trials: Sequence[Tried]) -> Ranking:
    """Rank trials of one task by their expected losses; trials with the same values by the value seen."""
    lowest_first = sorted(trials, key=lambda trial: (trial.value, *trial.place))
    sizes, searched = [trial.sizes for trial in trials], [trial.searched for trial in trials]
    axes = Axes([*axes_of_rows(searched, True), *axes_of_rows(sizes, False)])
    why = _too_little(trials, axes)
    if why:
        return Ranking(tuple(lowest_first), {}, why)
    half = MOST_TRIALS // 2
    rest = lowest_first[half:]
    kept = [*lowest_first[:half], *rest[:: max(1, math.ceil(len(rest) / half))]]
    x = axes.rows([trial.sizes for trial in kept], [trial.searched for trial in kept])
    runs = np.repeat(np.arange(len(kept)), [len(trial.losses) for trial in kept])
    y = np.log([loss for trial in kept for loss in trial.losses])
    fitted = np.random.default_rng(0).permutation(len(y))[:MOST_FITTED]
    extra = np.zeros(len(y))
    scales = fit_scales(axes.columns, x[runs][fitted], y[fitted], extra[fitted])
    surrogate = condition(scales, x[runs], y, extra)
    # Few rows shrink the noise towards its prior: the errors of rows predicted from all others tell by how much.
    wider = max(1.0, float(np.sqrt(np.mean(surrogate.errors**2))))
    mean, sd = surrogate.marginal(x)
    sd, spread = wider * sd, wider * surrogate.scales.noise_sd(x)
    expected = {}
    for at, trial in enumerate(kept):
        middle, reach = float(mean[at]), LEVEL_90 * float(sd[at])
        value, low, high = math.exp(middle), math.exp(middle - reach), math.exp(middle + reach)
        expected[trial.place] = Expected(value, low, high, float(spread[at]))
    ordered = sorted(
        kept, key=lambda trial: (expected[trial.place].value, trial.value, *trial.place)
    )
    left = [trial for trial in lowest_first if trial.place not in expected]
    return Ranking((*ordered, *left), expected)


def _too_little(trials: Sequence[Tried], axes: Axes) -> str:
    n_runs = sum(len(trial.losses) for trial in trials)
    needed = max(FEWEST, FEWEST_A_COLUMN * len(axes.columns.is_searched))
    if any(loss <= 0 for trial in trials for loss in trial.losses):
        return "values of 0 and below have no surrogate"
    if not axes.columns.is_searched.any():
        return "nothing searched varies"
    if n_runs < needed:
        return f"{several(n_runs, 'run')} are too few for a surrogate, which needs {needed}"
    return ""
