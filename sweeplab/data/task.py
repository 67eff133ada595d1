"""What a run learns: its task. Losses of unlike tasks cannot be compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

# The hyperparameters that decide what is predicted, and how hard it is.
TASK = ("family", "objective", "mask_share", "span_length")


def task_of(values: Mapping[str, Any]) -> str:
    """Return a run's task in a few words; that of an objective which is not known is its name."""
    from sweeplab.data.objectives import known_objective  # with numpy, which is slow to import

    objective = known_objective(values)
    return objective.task(values) if objective else str(values["objective"])


def have_one_task(runs: Iterable[Mapping[str, Any]]) -> bool:
    """Say whether runs with these values learn one task."""
    distinct = {tuple(values[name] for name in TASK): values for values in runs}
    return len(distinct) <= 1 or len({task_of(values) for values in distinct.values()}) == 1
