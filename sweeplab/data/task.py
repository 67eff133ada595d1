"""What a run learns: its task, and how much text there is to learn from.

Losses of unlike tasks cannot be compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from sweeplab.hyperparameters import AUTO, Hyperparameters

# The hyperparameters that decide what is predicted, and how hard it is.
TASK = ("family", "objective", "mask_share", "span_length", "n_labels")


class DataSizes(NamedTuple):
    """How large a study's data are: its vocabulary, the training split in tokens and in pairs, and its labels."""

    vocab_size: int
    train_tokens: int | None = None
    train_pairs: int | None = None
    n_labels: int | None = None

    @classmethod
    def of(cls, sizes: DataSizes | int | None) -> DataSizes | None:
        """Return sizes of which only the vocabulary may be known, or nothing."""
        return cls(sizes) if isinstance(sizes, int) else sizes

    def iterations(self, values: Hyperparameters) -> int | None:
        """Return how many steps a run's `epochs` take, the last one begun counted; None where it gives none.

        An epoch is as many sequences as the training split has: of a text its tokens over block_size, or its pairs.
        """
        if values.epochs is None or self.train_tokens is None:
            return None
        tokens = min(self.train_tokens, values.data_limit or self.train_tokens)
        share = tokens / self.train_tokens
        rows = tokens / values.block_size if self.train_pairs is None else self.train_pairs * share
        # To nine digits: 3 epochs of a third each are one.
        return max(1, math.ceil(round(values.epochs * rows / values.batch_size, 9)))


# What is known of the data: a number is a vocabulary, and all else unknown.
Sizes = DataSizes | int | None


def task_of(values: Hyperparameters) -> str:
    """Return a run's task in a few words; that of an objective which is not known is its name."""
    from sweeplab.data.objectives import OBJECTIVES, objective_of  # with numpy, which is slow to import

    is_known = values.objective in (AUTO, *OBJECTIVES)
    return objective_of(values).task(values) if is_known else values.objective


def have_one_task(runs: Iterable[Hyperparameters]) -> bool:
    """Say whether runs with these values learn one task."""
    distinct = {tuple(getattr(values, name) for name in TASK): values for values in runs}
    return len(distinct) <= 1 or len({task_of(values) for values in distinct.values()}) == 1


def loss_unit(objectives: Iterable[str]) -> str:
    """Return the unit of losses of these objectives, that of tokens where none is known; of unlike ones `nats`."""
    from sweeplab.data.objectives import OBJECTIVES  # with numpy, which is slow to import
    from sweeplab.data.objectives.base import Objective

    units = {OBJECTIVES.get(name, Objective).unit for name in objectives} or {Objective.unit}
    return units.pop() if len(units) == 1 else "nats"
