"""How far the cells of a study are, by the trials that stand in its storage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from optuna.trial import FrozenTrial, TrialState

from sweeplab.study.space import Cell

COUNTED = (TrialState.COMPLETE, TrialState.PRUNED)


@dataclass(frozen=True)
class CellCounts:
    """How far one cell is; `waiting` trials have been given their values, and `failed` not been tried again."""

    cell: Cell
    counted: int
    running: int
    waiting: int
    failed: int
    best: float | None


def count(cell: Cell, trials: Sequence[FrozenTrial]) -> CellCounts:
    """Count a cell's own trials."""
    states = Counter(trial.state for trial in trials)
    values = [
        trial.value for trial in trials if trial.state == TrialState.COMPLETE and trial.value is not None
    ]
    counted = sum(states[state] for state in COUNTED)
    running, waiting = states[TrialState.RUNNING], states[TrialState.WAITING]
    retried = {trial.user_attrs["retries"] for trial in trials if "retries" in trial.user_attrs}
    failed = sum(trial.state == TrialState.FAIL and trial.number not in retried for trial in trials)
    return CellCounts(cell, counted, running, waiting, failed, min(values, default=None))
