"""What halving by kept rungs prunes beside what Optuna's own halving does, over studies drawn at random."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.pruners import SuccessiveHalvingPruner

from sweeplab.sweep.trials.halving import Rungs, with_rungs
from sweeplab.sweep.trials.storage import TrialStorage

OPTIONS: list[dict[str, Any]] = [
    {"reduction_factor": 2},
    {"reduction_factor": 4, "min_early_stopping_rate": 1},
    {"reduction_factor": 3, "bootstrap_count": 5},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_what_is_pruned_is_what_optuna_prunes(options: dict[str, Any], tmp_path: Path) -> None:
    draw = random.Random(str(options))
    pruner = SuccessiveHalvingPruner(min_resource=10, **options)
    storage = TrialStorage(f"sqlite:///{tmp_path}/trials.db")
    with storage.transaction():
        pass
    study_id = storage.create_new_study([optuna.study.StudyDirection.MINIMIZE], "own")
    cell = storage.cell(study_id)
    known: dict[int, Rungs] = {}

    def rungs() -> Rungs:
        if id(cell) not in known or draw.random() < 0.05:  # or they are read from the first trial on again
            known[id(cell)] = Rungs(cell)
        return known[id(cell)]

    own = optuna.load_study(study_name="own", storage=storage, pruner=with_rungs(pruner, rungs))
    theirs = optuna.create_study(pruner=pruner)
    running: dict[int, tuple[optuna.Trial, optuna.Trial, int]] = {}
    n_pruned = n_kept = 0
    while len(theirs.trials) < 40 or running:
        if len(theirs.trials) < 40 and (len(running) < 6 or draw.random() < 0.2):
            pair = own.ask(), theirs.ask()
            assert pair[0].number == pair[1].number
            running[pair[0].number] = (*pair, 0)
        number = draw.choice([*running])
        one, other, step = running.pop(number)
        step += draw.choice([5, 10, 10, 30])  # several rungs at once, and reports between two
        value = draw.choice([draw.random(), draw.random(), 0.25, float("nan"), float("inf")])
        with storage.transaction():
            one.report(value, step)
            decided = one.should_prune()
        other.report(value, step)
        assert decided == other.should_prune()
        n_pruned += decided
        n_kept += not decided
        if decided or step >= 100:
            state = optuna.trial.TrialState.PRUNED if decided else optuna.trial.TrialState.COMPLETE
            if draw.random() < 0.1:
                state = optuna.trial.TrialState.FAIL
            told = draw.random() if state == optuna.trial.TrialState.COMPLETE else None
            own.tell(one, told, state=state)
            theirs.tell(other, told, state=state)
        else:
            running[number] = (one, other, step)
    assert n_pruned > 15 and n_kept > 15
    storage.engine.dispose()
