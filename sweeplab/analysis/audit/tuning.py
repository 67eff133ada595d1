"""Checks of the tuning: whether each size tried several values of a hyperparameter, and where its best lies."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sweeplab.analysis.audit.evidence import CLEAR, FOUND, UNKNOWN, Evidence, Finding
from sweeplab.study.spec import Choices, Range

if TYPE_CHECKING:
    import pandas as pd

    from sweeplab.study.spec import SearchSpec

EDGE = 0.05  # of a range, at either end
_TRIED = ("complete", "stopped", "pruned", "diverged")


@dataclass(frozen=True)
class Tuned:
    """A hyperparameter that has a best value at each size; `across` is what its values are compared within."""

    name: str
    because: str
    across: tuple[str, ...] = ("study", "model", "planned_tokens")

    def is_tuned(self, evidence: Evidence) -> Finding:
        """Find points whose size has tried only one value."""
        if self.name not in evidence.runs or evidence.runs[self.name].isna().all():
            return Finding(UNKNOWN, f"the runs do not say their {self.name}")
        tried = self._tried(evidence)
        alone = [len(values) < 2 for values in tried]
        names = evidence.names(alone)
        if not names:
            return Finding(CLEAR, f"every size tried {min(map(len, tried))} values or more of {self.name}")
        values = sorted({each for values in tried for each in values}, key=_order)
        if len(values) == 1:
            said = f"{self.name} is {_said(values[0])} in every run: {self.because}"
        elif all(alone):
            said = f"{self.name} goes from {_said(values[0])} to {_said(values[-1])}, and no size tried two"
        else:
            said = f"{self.name} has one value in {len(names)} of {evidence.points.n} points: {self.because}"
        return Finding(FOUND, said, names, evidence.without(names))

    def is_inside(self, evidence: Evidence) -> Finding:
        """Find points whose best value lies at the end of what was tried."""
        if self.name not in evidence.runs or evidence.runs[self.name].isna().all():
            return Finding(UNKNOWN, f"the runs do not say their {self.name}")
        sides = []
        for values, (_, best) in zip(self._tried(evidence), evidence.table.iterrows(), strict=True):
            spec = evidence.search.get(str(best["study"]), {}).get(self.name)
            sides.append(_side(best[self.name], spec, values))
        judged = [side for side in sides if side is not None]
        if not judged:
            return Finding(UNKNOWN, f"no size tried three values of {self.name}: there is no inside to be in")
        names = evidence.names([bool(side) for side in sides])
        if not names:
            return Finding(CLEAR, f"the best {self.name} lies inside of its range in {_all(judged)}")
        low, high = judged.count("low"), judged.count("high")
        where = " and ".join(
            f"{count} at the {end}" for count, end in ((low, "low"), (high, "high")) if count
        )
        return Finding(
            FOUND,
            f"the best {self.name} lies at an end of its range in {len(names)} of {_all(judged)}, {where}: "
            "a better one may lie beyond",
            names,
            evidence.without(names),
        )

    def _tried(self, evidence: Evidence) -> list[set[Any]]:
        """Return the values that each point was chosen among, [n]."""
        runs = evidence.runs[evidence.runs["state"].astype(str).isin(_TRIED)]
        by = list(self.across)
        groups = {key: set(group[self.name].dropna()) for key, group in runs.groupby(by, sort=False)}
        keys: pd.DataFrame = evidence.table[by]
        return [groups.get(tuple(key), set()) for key in keys.itertuples(index=False)]


TUNED = {
    "learning-rate": Tuned("learning_rate", "larger models mostly want a lower one"),
    "batch-size": Tuned("batch_size", "longer trainings mostly want a larger one", ("study", "model")),
    "betas": Tuned("betas", "small batches mostly want a longer memory"),
}


def _side(best: Any, spec: SearchSpec | None, tried: set[Any]) -> str | None:
    """Return low or high where the best value is at an end, "" where it is inside, None where that is not known."""
    if isinstance(spec, Range):
        scale = np.log if spec.log else np.asarray
        low, high, at = (float(scale(float(each))) for each in (spec.min, spec.max, best))
        place = (at - low) / (high - low)
        return "low" if place <= EDGE else "high" if place >= 1 - EDGE else ""
    values = spec.values if isinstance(spec, Choices) else tuple(tried)
    sides = [
        _side_among(part, column)
        for part, column in zip(_parts(best), zip(*map(_parts, values), strict=True), strict=True)
    ]
    known = [side for side in sides if side is not None]
    return next((side for side in known if side), "") if known else None


def _side_among(best: float, values: Sequence[float]) -> str | None:
    distinct = sorted(set(values))
    if len(distinct) < 3:
        return None
    return "low" if best <= distinct[0] else "high" if best >= distinct[-1] else ""


def _parts(value: Any) -> tuple[float, ...]:
    """Return the numbers of a value: betas are two, and stand in a table as text."""
    read = ast.literal_eval(value) if isinstance(value, str) else value
    return tuple(map(float, read)) if isinstance(read, tuple | list) else (float(read),)


def _order(value: Any) -> tuple[float, ...]:
    return _parts(value)


def _said(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def _all(judged: Sequence[str]) -> str:
    return f"{len(judged)} point{'s' if len(judged) > 1 else ''} with a range"
