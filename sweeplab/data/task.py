"""What a run learns: its task. Losses of unlike tasks cannot be compared."""

from __future__ import annotations

from collections.abc import Iterable

from sweeplab.hyperparameters import AUTO, Hyperparameters

# The hyperparameters that decide what is predicted, and how hard it is.
TASK = ("family", "objective", "mask_share", "span_length")


def task_of(values: Hyperparameters) -> str:
    """Return a run's task in a few words; that of an objective which is not known is its name."""
    from sweeplab.data.objectives import OBJECTIVES, objective_of  # with numpy, which is slow to import

    values = Hyperparameters.of(values)
    is_known = values.objective in (AUTO, *OBJECTIVES)
    return objective_of(values).task(values) if is_known else values.objective


def have_one_task(runs: Iterable[Hyperparameters]) -> bool:
    """Say whether runs with these values learn one task."""
    distinct = {tuple(values[name] for name in TASK): values for values in runs}
    return len(distinct) <= 1 or len({task_of(values) for values in distinct.values()}) == 1
