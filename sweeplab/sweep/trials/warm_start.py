"""Warm starts: finished trials of other studies, added to a study's cells before the first trial of each.

A trial fits if the study would train it identically: a cell has the same values, the searched values are inside their
ranges, and everything else that affects the loss is equal.

A fitting trial becomes a marked Optuna trial, which the sampler models like the study's own. It counts towards no
budget and is never the study's best. Pruners do not see its curve and count it only in `n_startup_trials`: in the
storage a completed trial has no curve, and a pruned one only its last value, by which TPE ranks it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sweeplab.errors import BadInput, Problem
from sweeplab.hyperparameters import TABLE
from sweeplab.lab.listing import StudyTrials, Trial, find_study, read_spec
from sweeplab.lab.storage import WARM_START
from sweeplab.records.folders import DataDescription, StudyFolder, some_of
from sweeplab.records.runs import RunState
from sweeplab.study.problems import shown
from sweeplab.study.space import Space
from sweeplab.study.spec import StudySpec
from sweeplab.study.values import Scalar
from sweeplab.train.devices import settle_devices

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from sweeplab.sweep.trials.store import Store

# Hyperparameters that do not affect the loss.
_IDLE = frozenset(
    row.name
    for row in TABLE.values()
    if row.category in ("logging", "generation") or row.name in ("seed", "device", "compile")
)


@dataclass(frozen=True)
class WarmStartSource:
    """A study: its fitting trials, and the reasons and places of the others.

    Each fitting trial is an Optuna trial with the index of its cell.
    """

    name: str
    fitting: list[tuple[int, FrozenTrial]]
    refused: list[str]


def read_warm_starts(
    spec: StudySpec, folder: StudyFolder, spaces: Sequence[Space], data: DataDescription
) -> list[WarmStartSource]:
    """Read a study's warm-start sources.

    `data` describes the study's own corpus.

    Raises:
        BadInput: a source cannot be read, is of other data, or has no fitting trial; with the trials and reasons.
    """
    sources: list[WarmStartSource] = []
    problems: list[Problem] = []
    for index, name in enumerate(spec.warm_start):
        try:
            sources.append(
                _fitted(name, _finished_trials(spec, folder.lab, name, data), spaces)
            )
        except BadInput as error:
            place = ("warm_start", index)
            problems += [
                spec.problem(place, x.what, x.allowed, x.nearest) for x in error.problems
            ]
    if problems:
        raise BadInput(*problems)
    return sources


def _finished_trials(
    spec: StudySpec, lab: Path, name: str, data: DataDescription
) -> list[Trial]:
    if name == spec.name:
        raise BadInput("a study cannot start from itself")
    folder = find_study(lab, name)
    theirs = read_spec(folder)
    if theirs.objective != spec.objective:
        how = [f"{each.objective.label}, {each.objective.at}" for each in (theirs, spec)]
        raise BadInput(f"study {name} values trials by {how[0]}, this study by {how[1]}")
    described = folder.data
    if described.token_digest != data.token_digest:
        raise BadInput(
            f"study {name} was trained on other tokens: its losses cannot be compared"
        )
    if described.init_digest != data.init_digest:
        raise BadInput(
            f"study {name} started from other weights: its losses cannot be compared"
        )
    return StudyTrials(folder).all


def _fitted(name: str, trials: Iterable[Trial], spaces: Sequence[Space]) -> WarmStartSource:
    fitting = []
    refused = defaultdict[str, list[str]](list)
    reasons = list[str]()
    for trial in trials:
        place = f"{trial.cell}/{trial.number}"
        try:
            space, parameters = _fit(trial, spaces)
        except ValueError as error:
            refused[str(error)].append(place)
        else:
            mark = {"from": name, "place": place}
            fitting.append((space.cell.index, _optuna_trial(mark, trial, space, parameters)))
    for reason, places in refused.items():
        which = places[0] if len(places) == 1 else f"{len(places)} ({some_of(places)})"
        reasons.append(f"{which}: {reason}")
    if not fitting:
        raise BadInput(f"no trial of {name} fits: {'; '.join(reasons) or 'it has none'}")
    return WarmStartSource(name, fitting, reasons)


def _fit(trial: Trial, spaces: Sequence[Space]) -> tuple[Space, dict[str, Scalar]]:
    """Return the space of the cell that a trial fits, and the trial's parameters as Optuna stores them.

    Raises:
        ValueError: it fits no cell; the message is the same for all trials with the same reason.
    """
    theirs = trial.values
    value = trial.value
    if not trial.state.counts_towards_budget:
        raise ValueError(f"not finished (state {trial.state})")
    if trial.state.has_value and (value is None or not math.isfinite(value)):
        raise ValueError("no finite value")
    agreeing = [
        space
        for space in spaces
        if all(theirs[name] == value for name, value in space.cell.values.items())
    ]
    if not agreeing:
        grid = [
            name
            for name in spaces[0].cell.values
            if all(name in each.cell.values for each in spaces)
        ]
        raise ValueError(
            f"no cell has {', '.join(f'{name}={shown(theirs[name])}' for name in grid)}"
        )
    # A cell without changes agrees with all trials.
    space = max(agreeing, key=lambda space: len(space.cell.values))
    parameters, ours = space.fitted(theirs)
    for name, value in settle_devices(ours).applicable().items():
        if name not in _IDLE and theirs[name] != value:
            raise ValueError(f"{name} is {shown(theirs[name])} there and {shown(value)} here")
    rule = space.broken(ours)
    if rule:
        raise ValueError(f"breaks {rule.text}")
    return space, parameters


def _optuna_trial(
    mark: Mapping[str, str], trial: Trial, space: Space, parameters: Mapping[str, Scalar]
) -> FrozenTrial:
    from optuna.trial import TrialState, create_trial  # slow to import

    outcome = trial.state
    state, value, last = TrialState.PRUNED, None, dict[int, float]()
    if outcome.has_value:
        state, value = TrialState.COMPLETE, trial.value
    # Samplers prefer pruned trials with a later last step: a diverged one gets no step.
    elif outcome is RunState.PRUNED and trial.value is not None:
        last = {trial.ends[0].iteration: trial.value}
    return create_trial(
        state=state,
        value=value,
        params=dict(parameters),
        distributions={name: space.parameters[name].distribution() for name in parameters},
        user_attrs={WARM_START: mark, "outcome": str(outcome)},
        intermediate_values=last,
    )


def add_warm_starts(store: Store, sources: Sequence[WarmStartSource]) -> None:
    """Add the fitting trials to cells that have no trials of their own; trials added before are not added again."""
    with store.storage.transaction():
        for cell in store.cells:
            study = store.study(cell)
            marks = [
                trial.user_attrs.get(WARM_START) for trial in study.get_trials(deepcopy=False)
            ]
            if not all(marks):  # the cell has started
                continue
            for source in sources:
                for index, trial in source.fitting:
                    mark = trial.user_attrs[WARM_START]
                    if index == cell.index and mark not in marks:
                        marks.append(mark)
                        study.add_trial(trial)
