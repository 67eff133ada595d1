"""Bring finished trials from elsewhere into a study's cells, before the first trial of each.

They are Optuna's trials, which a sampler models like its own, and bear a mark. They count towards no budget and are
never the study's best. Pruners see nothing of their curves: those that ended have none in the storage, and those
that were cut short have their last value alone, by which TPE ranks them and no pruner judges. Only the pruners'
`n_startup_trials` counts them.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from optuna.trial import FrozenTrial, TrialState, create_trial

from sweeplab.files import write_whole
from sweeplab.lab.tally import WARM_START
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import RunState
from sweeplab.sweep.trials.known import Known, Source
from sweeplab.sweep.trials.store import Store

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


def bring_in(store: Store, sources: Sequence[Source], folder: StudyFolder) -> None:
    """Add the trials to the cells that have none of their own; those that are there already are not added again."""
    by_cell: dict[int, list[tuple[str, Known]]] = defaultdict(list)
    for source in sources:
        for known in source.known:
            by_cell[known.cell.index].append((source.name, known))
    for index, trials in by_cell.items():
        study = store.study(store.cells[index])
        there = study.get_trials(deepcopy=False)
        if any(WARM_START not in trial.user_attrs for trial in there):
            continue  # the cell has begun
        distributions = store.spaces[index].distributions()
        held = {_content(trial) for trial in there}
        for name, known in trials:
            trial = _as_trial(name, known, distributions)
            if _content(trial) not in held:
                held.add(_content(trial))
                study.add_trial(trial)
    _write_down(store, folder)


def _as_trial(source: str, known: Known, distributions: dict[str, BaseDistribution]) -> FrozenTrial:
    row = known.row
    is_valued = RunState(row.outcome).has_value
    last: dict[int, float] = {}
    if not is_valued and row.iteration is not None and row.value is not None and math.isfinite(row.value):
        last[row.iteration] = row.value
    return create_trial(
        state=TrialState.COMPLETE if is_valued else TrialState.PRUNED,
        value=row.value if is_valued else None,
        params=known.parameters,
        distributions={name: distributions[name] for name in known.parameters},
        user_attrs={WARM_START: {"from": source, "place": row.place}, "outcome": row.outcome},
        intermediate_values=last,
    )


def _content(trial: FrozenTrial) -> str:
    """Return what makes a trial the same as another, wherever either was found."""
    return json.dumps(
        [
            sorted(trial.params.items()),
            trial.state.name,
            trial.values,
            sorted(trial.intermediate_values.items()),
        ]
    )


def _write_down(store: Store, folder: StudyFolder) -> None:
    """Write down what stands in the storage by now, for those who look at the study without it."""
    cells: dict[str, dict[str, int]] = {}
    for cell in store.cells:
        trials = store.study(cell).get_trials(deepcopy=False)
        marks = [trial.user_attrs[WARM_START] for trial in trials if WARM_START in trial.user_attrs]
        sources = Counter(mark["from"] for mark in marks)
        if sources:
            cells[cell.key] = dict(sources)
    if cells or folder.warm_start_file.exists():
        write_whole(folder.warm_start_file, json.dumps(cells, indent=1).encode())
