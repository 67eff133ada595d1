"""The data of studies; here the sizes of data and the task of a run: losses of different tasks cannot be compared."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from sweeplab.hyperparameters import AUTO, Hyperparameters

# The hyperparameters that determine what is predicted, and how hard it is.
TASK = ("family", "objective", "mask_share", "span_length", "n_labels")


class DataSizes(NamedTuple):
    """How large a study's data are: its vocabulary, the training split in tokens and in pairs, and its labels."""

    vocab_size: int
    train_tokens: int | None = None
    train_pairs: int | None = None
    n_labels: int | None = None

    def iterations(self, values: Hyperparameters) -> int | None:
        """Return the number of steps of a run's `epochs`, rounded up; None if it has no `epochs`.

        An epoch has as many sequences as the training split: for a text its tokens / block_size, otherwise its pairs.
        """
        if values.epochs is None or self.train_tokens is None:
            return None
        tokens = min(self.train_tokens, values.data_limit or self.train_tokens)
        share = tokens / self.train_tokens
        rows = (
            tokens / values.block_size if self.train_pairs is None else self.train_pairs * share
        )
        # Rounded to nine digits, so that 3 epochs of a third each are exactly one.
        return max(1, math.ceil(round(values.epochs * rows / values.batch_size, 9)))


# None before the data are read.
Sizes = DataSizes | None


def task_of(values: Hyperparameters) -> str:
    """Describe a run's task in a few words; for an unknown objective, return its name."""
    # With numpy, which is slow to import.
    from sweeplab.data.objectives import OBJECTIVES, objective_of

    if values.objective in (AUTO, *OBJECTIVES):
        return objective_of(values).task(values)
    return values.objective


def have_one_task(runs: Iterable[Hyperparameters]) -> bool:
    """Return whether all runs with these values learn the same task."""
    distinct = {tuple(getattr(values, name) for name in TASK): values for values in runs}
    return len(distinct) <= 1 or len({task_of(values) for values in distinct.values()}) == 1


def loss_unit(objectives: Iterable[str]) -> str:
    """Return the unit of these objectives' losses; that of tokens if none is given, `nats` if they differ."""
    from sweeplab.data.objectives import OBJECTIVES  # with numpy, which is slow to import
    from sweeplab.data.objectives.base import Objective

    known = {AUTO: Objective.unit} | {
        name: objective.unit for name, objective in OBJECTIVES.items()
    }
    units = {known.get(name, "units of its own") for name in objectives} or {Objective.unit}
    if len(units) == 1:
        return units.pop()
    return "nats"
