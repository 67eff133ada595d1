"""Where seeds lie far apart: the part of a searched value's range in which trainings are not stable.

The spread between seeds grows with the learning rate, at first slowly and beyond some value several times over. The
trials with several seeds are split by a searched value where two normal spreads of the log loss about their trials'
means are most likely; the range above (or below) the split is unstable if its spread exceeds UNSTABLE times that of the
rest, its floor, by more than chance (an F-test).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sweeplab.formatting import rounded

UNSTABLE = 3.0
CHANCE = 0.01
FEWEST = 2  # degrees of freedom on each side of a split


@dataclass(frozen=True)
class Unstable:
    """A range of a searched value that is unstable: `side` ("above" or "below") of the last stable value, `edge`.

    `spread` is the standard deviation of a seed's log loss in it, `floor` that in the rest of the range.
    """

    name: str
    side: str
    edge: float
    spread: float
    floor: float

    def holds(self, value: Any) -> bool:
        """Return whether a value lies in the range."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if self.side == "above":
            return value > self.edge
        return value < self.edge

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)

    def in_words(self) -> str:
        """Say where the value is unstable."""
        return (
            f"{self.name} is unstable {self.side} {rounded(self.edge)}: the spread between seeds is {self.spread:.1%} "
            f"there, and {self.floor:.1%} in the rest of its range"
        )


def unstable_ranges(runs: Sequence[tuple[Mapping[str, Any], Sequence[float]]]) -> list[Unstable]:
    """Return the unstable ranges of searched values; `runs` has the values and the losses of each configuration."""
    known = [(values, losses) for values, losses in runs if len(losses) > 1 and min(losses) > 0]
    names = dict.fromkeys(name for values, _ in known for name in values)
    return [found for name in names for found in _of_value(name, known)]


def _of_value(name: str, runs: Sequence[tuple[Mapping[str, Any], Sequence[float]]]) -> Iterator[Unstable]:
    from scipy.special import fdtrc

    squares: dict[float, float] = defaultdict(float)
    freedom: dict[float, int] = defaultdict(int)
    for values, losses in runs:
        value = values.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        logs = [math.log(loss) for loss in losses]
        mean = sum(logs) / len(logs)
        squares[value] += sum((log - mean) ** 2 for log in logs)
        freedom[value] += len(logs) - 1
    best: tuple[float, Unstable] | None = None
    ordered = sorted(squares)
    for at in range(1, len(ordered)):
        sides = {"below": ordered[:at], "above": ordered[at:]}
        n = {side: sum(freedom[value] for value in there) for side, there in sides.items()}
        variance = {side: sum(squares[value] for value in there) / n[side] for side, there in sides.items()}
        if min(n.values()) < FEWEST or min(variance.values()) <= 0:
            continue
        unlikely = sum(n[side] * math.log(variance[side]) for side in sides)
        side, rest = sorted(sides, key=lambda side: -variance[side])
        edge = ordered[at - 1] if side == "above" else ordered[at]
        ratio = variance[side] / variance[rest]
        splits = len(ordered) - 1  # one of them is chosen
        is_clear = ratio > UNSTABLE**2 and splits * 2 * float(fdtrc(n[side], n[rest], ratio)) < CHANCE
        if is_clear and (best is None or unlikely < best[0]):
            spread, floor = math.sqrt(variance[side]), math.sqrt(variance[rest])
            best = unlikely, Unstable(name, side, edge, spread, floor)
    if best:
        yield best[1]
