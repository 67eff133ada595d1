"""The input of the audit's checks (runs, points, exponents under another choice), and their findings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from sweeplab.analysis.points import points_of_trials, select_trials, study_points
from sweeplab.analysis.trials import Selection, StudyDesign, with_models
from sweeplab.errors import BadInput
from sweeplab.laws.assessment import Estimate, assess, find_law
from sweeplab.laws.columns import Array, numbers
from sweeplab.laws.conventions import Conventions
from sweeplab.laws.points import Points

if TYPE_CHECKING:
    import pandas as pd

FOUND: Final = "found"
CLEAR: Final = "clear"
UNKNOWN: Final = "cannot be told"
_LAWS = ("chinchilla", "power-n", "power-d")  # the first that the points allow
_SHOWN = ("value", "low", "high", "verdict", "why")


@dataclass(frozen=True)
class Effect:
    """The exponents before and after a change; `why` says why there are none."""

    change: str
    n_points: int = 0
    before: Mapping[str, Estimate] = field(default_factory=dict)
    after: Mapping[str, Estimate] = field(default_factory=dict)
    why: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values: each exponent before and after, and whether the two differ by more than noise.

        The value of an exponent that is not identified is null.
        """
        both = {name: (old, self.after[name]) for name, old in self.before.items() if name in self.after}
        exponents = {
            name: {"before": _shown(old), "after": _shown(new), "differs": _differs(old, new)}
            for name, (old, new) in both.items()
        }
        return {"change": self.change, "n_points": self.n_points, "exponents": exponents, "why": self.why}


@dataclass(frozen=True)
class Finding:
    """The result of a check: a sentence, the points affected, and the effects on the exponents."""

    state: str
    sentence: str
    points: tuple[str, ...] = ()
    effects: tuple[Effect, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return vars(self) | {"effects": [effect.as_dict() for effect in self.effects]}


@dataclass(frozen=True)
class AuditTable:
    """The runs of a study, its points, and a function that counts them by other conventions.

    `designs` has the grid and search space of each study; empty if they are not recorded.
    """

    runs: pd.DataFrame
    chosen: Selection
    points: Points
    conventions: Conventions
    designs: Mapping[str, StudyDesign]
    recount: Callable[[Conventions], Points]

    @cached_property
    def used(self) -> pd.DataFrame:
        """Return the runs of the points, one row per run; `point` names it."""
        runs = self.chosen.runs
        return runs[runs["point"].isin(self.points.names)]

    @cached_property
    def table(self) -> pd.DataFrame:
        """Return one row per point, by its name: its first seed's settings, the mean of its seeds' numbers."""
        return self.chosen.table.set_index("point").loc[list(self.points.names)]

    def numbers(self, name: str) -> Array:
        """Return a column's number for each point, [n]; true is 1, missing is NaN."""
        return numbers(self.table, name)

    def names(self, touched: Sequence[bool] | NDArray[np.bool_]) -> tuple[str, ...]:
        """Return the names of the points marked in `touched`, [n]."""
        return tuple(name for name, here in zip(self.points.names, touched, strict=True) if here)

    def found(self, sentence: str, names: tuple[str, ...]) -> Finding:
        """Return a finding about some points, with the exponents without these points."""
        keep = np.array([name not in names for name in self.points.names])
        change = f"without {(~keep).sum()} of {len(keep)} points"
        if keep.any():
            effect = self._effect(change, lambda: self.points.only(keep))
        else:
            effect = Effect(change, why="every point is affected: there is no fit without them")
        return Finding(FOUND, sentence, names, (effect,))

    def counting(self, words: str, **choices: str) -> tuple[Effect, ...]:
        """Return the exponents under other conventions, which `words` describe."""
        return (self._effect(words, lambda: self.recount(replace(self.conventions, **choices))),)

    @cached_property
    def base(self) -> tuple[str, dict[str, Estimate], str]:
        """Return the law whose exponents are compared, its exponents, and why there are none."""
        why = []
        for name in _LAWS:
            try:
                return name, _exponents(self.points, name), ""
            except BadInput as error:
                why.append(str(error.problems[0]))
        return "", {}, why[-1]

    def _effect(self, change: str, other: Callable[[], Points]) -> Effect:
        law, before, why = self.base
        if not law:
            return Effect(change, why=why)
        try:
            points = other()
            return Effect(change, points.n, before, _exponents(points, law))
        except BadInput as error:
            return Effect(change, why=str(error.problems[0]))


def gather(
    runs: pd.DataFrame,
    designs: Mapping[str, StudyDesign] | None = None,
    conventions: Conventions | None = None,
) -> AuditTable:
    """Return the checks' input for runs as `runs_table` returns them.

    Raises:
        BadInput: no run has ended, or the runs are refused.
    """
    settled = conventions or Conventions()
    chosen, columns, said = select_trials(runs, None, settled)
    return AuditTable(
        runs=with_models(runs),
        chosen=chosen,
        points=points_of_trials(chosen, columns, said),
        conventions=settled,
        designs=designs or {},
        recount=lambda how: study_points(runs, None, how),
    )


def share(value: float) -> str:
    """Format a share: 12%, 0.4%."""
    return f"{value:.0%}" if value >= 0.1 else f"{100 * value:.2g}%"


def ends(values: Array) -> str:
    """Format the range of some shares, as one number if both ends read the same."""
    return " to ".join(dict.fromkeys((share(float(values.min())), share(float(values.max())))))


def _exponents(points: Points, law: str) -> dict[str, Estimate]:
    estimates = assess(points, find_law(law), others=()).estimates
    return {each.quantity.name: each for each in estimates if each.quantity.kind == "exponent"}


def _shown(estimate: Estimate) -> dict[str, Any]:
    said = estimate.as_dict()
    return {name: said[name] for name in _SHOWN}


def _differs(before: Estimate, after: Estimate) -> bool | None:
    """Return whether each value is outside of the other's interval; None if one of them has no value.

    Both intervals count, because fewer points move a number by more than the interval of all points allows.
    """
    if not (before.identified and after.identified):
        return None
    pairs = ((before.interval, after.interval.value), (after.interval, before.interval.value))
    return not any(ends.low <= value <= ends.high for ends, value in pairs)
