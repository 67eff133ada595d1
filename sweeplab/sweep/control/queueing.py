"""Trials that a person asks for, or wants no more: enqueued, tried again, stopped, withdrawn.

What is asked for waits in Optuna's own queue. It is tried before anything that the sampler proposes, and also in a
cell that has all of its trials: the budget says how many trials the sampler may spend, not what a person may ask for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from optuna.trial import TrialState

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.hyperparameters import TABLE
from sweeplab.lab.finding import find_trial
from sweeplab.records.folders import StudyFolder
from sweeplab.study.file.document import parse
from sweeplab.study.places import Complaints, Places, shown
from sweeplab.study.space import Cell, Space
from sweeplab.study.spec import Derived, StudySpec
from sweeplab.sweep.control.steering import Done, is_running, open_store, when
from sweeplab.sweep.trials.store import Store

# So many points of what a person leaves open are looked at: one has to meet the constraints.
PROBES = 128
MOST_LISTED = 10


def enqueue(folder: StudyFolder, words: Sequence[str]) -> Done:
    """Let trials of given values, as `name=value`, be tried next: one in every cell that these values do not exclude.

    Searched hyperparameters that are not given are left to the sampler.

    Raises:
        BadInput: a name is not the study's, or a value is none that it searches or has in its grid.
    """
    store = open_store(folder)
    given = _read(words, store.spec)
    apart = {**store.spec.grid, **store.spec.changed}  # what tells one cell from another
    chosen = [
        space
        for space in store.spaces
        if all(space.given[name] == value for name, value in given.items() if name in apart)
    ]
    if not chosen:
        raise BadInput(f"no cell of study {folder.name} has {', '.join(words)}: its constraints exclude it")
    searched = {name: value for name, value in given.items() if name in store.spec.search}
    points = [_point(space, searched) for space in chosen]
    pairs = zip(chosen, points, strict=True)
    with store.lock():
        added = [_enqueue(store, space.cell, point, {"enqueued": given}) for space, point in pairs]
    store.commands.add("enqueue", {"trials": added, "values": given})
    what = f"{_counted(added)} enqueued: {_listed(added)}; {when(folder, store)}"
    return Done(what, _withdrawals(folder, added), added)


def retry(folder: StudyFolder) -> Done:
    """Let every failed trial be tried again with the same values, as a new trial; the failed one never counts.

    Raises:
        BadInput: no trial has failed, or all that have are tried again.
    """
    store = open_store(folder)
    failed, added = [], []
    with store.lock():
        for cell in store.cells:
            trials = store.trials(cell)
            retried = {trial.user_attrs.get("retries") for trial in trials}
            for trial in trials:
                if trial.state == TrialState.FAIL and trial.number not in retried:
                    failed.append((cell.key, trial.number))
                    added.append(_enqueue(store, cell, trial.params, {"retries": trial.number}))
    if not added:
        raise BadInput(f"study {folder.name} has no failed trial that is not tried again already")
    store.commands.add("retry", {"trials": added})
    what = f"{_counted(failed)} tried again: {_listed(failed)}; {when(folder, store)}"
    return Done(what, _withdrawals(folder, added), added)


def stop_trial(folder: StudyFolder, number: int, cell: str | None = None) -> Done:
    """End a trial at its next evaluation, with its best value so far; one that has not begun is withdrawn.

    Raises:
        BadInput: there is no such trial, it has ended, or several cells have one of its number.
    """
    store = open_store(folder)
    with store.lock():
        trials = {each.key: {trial.number: trial for trial in store.trials(each)} for each in store.cells}
        key = find_trial(folder.name, trials, number, cell)
        trial = trials[key][number]
        if trial.state == TrialState.WAITING:
            store.storage.set_trial_user_attr(trial._trial_id, "withdrawn", True)
            store.storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)
    place = {"cell": key, "trial": number}
    space = next(each for each in store.spaces if each.cell.key == key)
    if trial.state == TrialState.WAITING:
        store.commands.add("withdraw", place)
        what = f"trial {number} of {key} is withdrawn: it had not begun"
        given = trial.user_attrs.get("enqueued")
        again = folder.command("study retry") if given is None else _again(folder, space.cell, given)
        return Done(what, [again], [(key, number)])
    if trial.state != TrialState.RUNNING:
        how = trial.user_attrs.get("outcome", trial.state.name.lower())
        raise BadInput(f"trial {number} of {key} has ended: {how}")
    store.commands.add("stop trial", place)
    what = f"trial {number} of {key} ends as stopped at its next evaluation, with its best value so far"
    if not is_running(folder, store.commands):
        what += f"; {when(folder, store)}"
    run = folder.run(key, number, store.spec.first_seed)
    again = _again(folder, space.cell, run.read_start().sampled if run.has_started else {})
    return Done(f"{what}; this cannot be taken back, but {again} tries its values again", [], [(key, number)])


# ------------------------------------------------------------------ what a person gives


def _read(words: Sequence[str], spec: StudySpec) -> dict[str, Any]:
    """Return `name=value` words as values of the study's grid and search, each in its hyperparameter's own type."""
    problems: list[Problem] = []
    given: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        complain = Complaints(Places())
        value = parse(text, complain)
        if not equals or complain.problems:
            problems.append(Problem(f"{word!r} gives no value", "name=value, such as learning_rate=1e-3"))
        elif name in given:
            problems.append(Problem(f"{name} is given twice"))
        elif problem := _refused(name, spec):
            problems.append(problem)
        else:
            try:
                given[name] = TABLE[name].check(value)
            except (ValueError, OverflowError):
                problems.append(Problem(f"{name} is {shown(value)}", TABLE[name].allowed))
                continue
            known = {**spec.grid, **spec.changed}.get(name)
            if known and given[name] not in known:
                allowed = " | ".join(map(shown, known))
                problems.append(Problem(f"{name} is {shown(value)}, which no cell of the study has", allowed))
    if problems:
        raise BadInput(*problems)
    return given


def _refused(name: str, spec: StudySpec) -> Problem | None:
    """Return what is wrong with giving a hyperparameter a value here, or None."""
    entry = spec.search.get(name)
    open_to_all = [
        *spec.grid,
        *spec.changed,
        *(each for each, how in spec.search.items() if not isinstance(how, Derived)),
    ]
    if isinstance(entry, Derived):
        return Problem(f"{name} follows from the others: {entry.expr.text}", ", ".join(open_to_all))
    if name in open_to_all:
        return None
    if name in TABLE:
        value = spec.fixed.get(name, TABLE[name].default)
        return Problem(f"{name} is {shown(value)} in every trial of this study", ", ".join(open_to_all))
    return Problem(f"{name!r} is unknown", ", ".join(open_to_all), nearest(name, [*open_to_all, *TABLE]))


def _point(space: Space, searched: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters to enqueue in a cell."""
    point: dict[str, Any] = {}
    problems = []
    for name, value in searched.items():
        try:
            point |= space.stored(name, value)
        except ValueError as error:
            problems.append(Problem(f"{name} is {shown(value)}", str(error)))
    if problems:
        raise BadInput(*problems)
    broken = {space.broken(values) for values in space.draws_with(point, PROBES if space.parameters else 1)}
    if None not in broken:
        rules = ", ".join(repr(rule) for rule in sorted(filter(None, broken)))
        raise BadInput(f"no trial of cell {space.cell.key} with these values meets {rules}")
    return point


# ------------------------------------------------------------------ what becomes of it


def _enqueue(
    store: Store, cell: Cell, point: Mapping[str, Any], attributes: Mapping[str, Any]
) -> tuple[str, int]:
    """Add a trial to Optuna's queue, under the storage's lock; return its cell and number."""
    study = store.study(cell)
    study.enqueue_trial(dict(point), dict(attributes))
    return cell.key, max(trial.number for trial in study.get_trials(deepcopy=False))


def _withdrawals(folder: StudyFolder, trials: Sequence[tuple[str, int]]) -> list[str]:
    return [folder.command("trial stop", str(number), "--cell", cell) for cell, number in trials]


def _again(folder: StudyFolder, cell: Cell, given: Mapping[str, Any]) -> str:
    """Return the command that asks for a trial of these values in this cell."""
    words = [f"{name}={json.dumps(value)}" for name, value in {**given, **cell.values}.items()]
    return folder.command("study enqueue", *words)


def _counted(trials: Sequence[tuple[str, int]]) -> str:
    return f"{len(trials)} trial{'s' if len(trials) != 1 else ''}"


def _listed(trials: Sequence[tuple[str, int]]) -> str:
    some = ", ".join(f"{number} of {cell}" for cell, number in trials[:MOST_LISTED])
    return f"{some}, …" if len(trials) > MOST_LISTED else some
