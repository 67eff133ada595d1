"""A trial's value over its seeds: what the mean of their losses at equal iterations is worth."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal


class SeedCurves:
    """The losses of a trial's runs; one that has ended counts with its last loss from then on.

    `worth` makes what is reported of a mean loss and its iteration.
    """

    def __init__(
        self, seeds: Iterable[int], worth: Callable[[float, int], float] = lambda loss, iteration: loss
    ) -> None:
        self._worth = worth
        self._losses: dict[int, dict[int, float]] = {seed: {} for seed in seeds}
        self._ended: set[int] = set()
        self.means: dict[int, float] = {}

    def add(self, seed: int, iteration: int, loss: float, ended: bool = False) -> list[tuple[int, float]]:
        """Take in a loss and return the iterations whose mean is known by it, with that mean, in order."""
        self._losses[seed][iteration] = loss
        if ended:
            self._ended.add(seed)
        new = []
        for each in sorted({i for losses in self._losses.values() for i in losses} - set(self.means)):
            losses = [self._at(seed, each) for seed in self._losses]
            if any(loss is None for loss in losses):
                break
            mean = sum(loss for loss in losses if loss is not None) / len(losses)
            self.means[each] = self._worth(mean, each)
            new.append((each, self.means[each]))
        return new

    def _at(self, seed: int, iteration: int) -> float | None:
        losses = self._losses[seed]
        if iteration in losses:
            return losses[iteration]
        last = max(losses, default=None)
        return losses[last] if last is not None and seed in self._ended and last < iteration else None

    def value(self, at: Literal["best", "final"]) -> float | None:
        """Return the trial's value: its lowest mean, or the last one."""
        if not self.means:
            return None
        return min(self.means.values()) if at == "best" else self.means[max(self.means)]
