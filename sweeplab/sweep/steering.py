"""The commands that a study's owner gives from any process; each reports what was done, and how to undo it.

Trials that a person enqueues wait in Optuna's own queue. They are tried before anything that the sampler proposes, even
in a cell that has used up its trials: the budget limits the sampler, not the person.
"""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.files import make_folder, opened, read_bytes, write_whole
from sweeplab.formatting import duration, several, written
from sweeplab.hyperparameters import TABLE, canonical
from sweeplab.lab.findings import find_limits
from sweeplab.lab.listing import StudyTrials, find_trial, read_spec
from sweeplab.lab.storage import SEED_OFFSET
from sweeplab.lab.studies import Done
from sweeplab.processes import python, python_environment
from sweeplab.records.folders import StudyFolder, named_cell, some_of
from sweeplab.records.runs import RunState
from sweeplab.study.file.entries import parse_value
from sweeplab.study.file.reading import read_study
from sweeplab.study.problems import shown
from sweeplab.study.space import Cell, Space
from sweeplab.study.spec import StudySpec
from sweeplab.study.values import Derived
from sweeplab.sweep.engines import engine_class
from sweeplab.sweep.planning import check_reach
from sweeplab.sweep.trials.cells import SEEDS_APART
from sweeplab.sweep.trials.sharing import Commands, is_running
from sweeplab.sweep.trials.store import Store, open_store

# How many random points are drawn for the values that a person leaves open: one must meet the constraints.
PROBES = 128
LOOK_SECONDS = 0.2
# Of a cell's trials are tried again where its range was widened and no budget is named.
MORE = 0.5


def detach(spec: StudySpec, lab: Path, words: Sequence[str]) -> str:
    """Run a study by `sweeplab` with these arguments, without this terminal; return the process and its log.

    Returns once the study is run.

    Raises:
        BadInput: the study does not start, or is running already; with the last line of the log.
    """
    folder = StudyFolder(lab, spec.name)
    if folder.is_run:
        raise BadInput(f"study {folder.name} is running; {folder.command('stop')} stops it")
    check_reach(spec, lab)
    log = folder.lab / "logs" / f"{folder.name}.log"
    command = python("-m", "sweeplab", *words)
    engine_class(spec.engine.type).check(spec.engine)
    make_folder(log.parent)
    with opened(log, "ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=python_environment(),
            start_new_session=True,
        )
    # A dashboard outlives the processes that it starts: without this they would stay zombies.
    waiting = Thread(target=process.wait, daemon=True)
    waiting.start()
    while waiting.is_alive():
        if folder.is_run and folder.canonical_file.exists():
            return f"process {process.pid}, log {log}"
        waiting.join(LOOK_SECONDS)
    lines = read_bytes(log).decode("utf-8", "replace").strip().splitlines() or [f"see {log}"]
    if process.returncode:
        raise BadInput(lines[-1].removeprefix("error: "))
    return f"it has ended already, log {log}"


def _when(folder: StudyFolder, store: Store) -> str:
    limit = store.budget.time
    commands = store.commands
    if limit is not None and folder.elapsed_seconds >= limit:
        return f"its time budget is used up: {folder.command('extend', '--time', 'TIME')} gives it more"
    if not is_running(folder, commands):
        return f"{folder.command('resume')} runs it"
    if commands.state.phase == "pause":
        return f"once {folder.command('resume')} continues it"
    return "its workers follow this after their next evaluation"


def stop(folder: StudyFolder) -> Done:
    """Stop a study: every worker saves its runs at its next evaluation, and the supervisor ends.

    Raises:
        BadInput: nobody runs the study.
    """
    _commands_of_running(folder).set_phase("stop")
    what = f"{folder.name} stops: its workers save their runs at their next evaluation"
    return Done(what, [folder.command("resume")])


def pause(folder: StudyFolder) -> Done:
    """Pause a study: every worker saves its runs at its next evaluation and frees its memory, until `resume`.

    Raises:
        BadInput: nobody runs the study, or it is paused.
    """
    commands = _commands_of_running(folder)
    if commands.state.phase == "pause":
        raise BadInput(
            f"study {folder.name} is paused; {folder.command('resume')} continues it"
        )
    commands.set_phase("pause")
    what = f"{folder.name} pauses: its workers save their runs at their next evaluation and free their memory"
    return Done(what, [folder.command("resume")])


def resume(folder: StudyFolder) -> Done | None:
    """Continue a study that was paused, or is about to stop; return None if nobody runs it: it has to be run again.

    Raises:
        BadInput: it is running, or its supervisor is just ending.
    """
    if not folder.is_run:
        return None
    commands = Commands.open(folder)
    commands.read()
    phase = commands.state.phase
    if phase in ("run", "over"):
        raise BadInput(f"study {folder.name} is running and not paused")
    if not is_running(folder, commands):
        raise BadInput(
            f"study {folder.name} is just ending; give the same command again in a moment"
        )
    commands.set_phase("run")
    return Done(f"{folder.name} continues", [folder.command(phase)])


def extend(
    folder: StudyFolder,
    trials_per_cell: int | str | None,
    time: str | None,
    widen: str | None = None,
) -> Done:
    """Change a study's budget; values are totals, as in its file, and "none" removes a limit.

    `widen` names a searched range that grows at the ends where the best values lie.

    Raises:
        BadInput: nothing is given, a value is not a valid budget, or the range cannot be widened.
    """
    options = {"trials_per_cell": trials_per_cell, "time": time}
    limits = {name: text for name, text in options.items() if text is not None}
    if widen is None:
        if not limits:
            allowed = "--trials-per-cell N, --time such as 2h, --widen HYPERPARAMETER, --next"
            raise BadInput(Problem("nothing to extend by", allowed))
        return _extend_budget(folder, limits)
    what = _widen(folder, widen)
    per_cell = read_spec(folder).budget.trials_per_cell
    if not limits and per_cell is not None:
        limits = {"trials_per_cell": per_cell + math.ceil(per_cell * MORE)}
    if not limits:
        return Done(f"{what}; {_when(folder, open_store(folder))}", [])
    extended = _extend_budget(folder, limits)
    return Done(f"{what}; {extended.what}", extended.undo)


def _rewrite(folder: StudyFolder, changes: Mapping[str, Any]) -> StudySpec:
    """Write other values into a study at some places; return the study."""
    spec = read_study(
        folder.canonical_file, [f"{place}={value}" for place, value in changes.items()]
    )
    write_whole(folder.canonical_file, json.dumps(spec.as_written(), indent=1).encode())
    return spec


def _extend_budget(folder: StudyFolder, limits: Mapping[str, int | str]) -> Done:
    store = open_store(folder)
    changes = {
        f"budget.{name}": "null" if text == "none" else text for name, text in limits.items()
    }
    # Another such command may change another part of it.
    with store.storage.transaction() as connection:
        before = read_spec(folder).budget.model_dump()
        after = _rewrite(folder, changes).budget.model_dump()
        store.commands.add_in(connection, "budget", after)
    store.poll_commands()
    words = list[str]()
    back = list[str]()
    for name in limits:
        words.append(f"{name} {_said(after[name])} (was {_said(before[name])})")
        back += [f"--{name.replace('_', '-')}", _said(before[name])]
    return Done(
        f"{folder.name} has {', '.join(words)}; {_when(folder, store)}",
        [folder.command("extend", *back)],
    )


def grow(
    folder: StudyFolder, chosen: Sequence[tuple[Mapping[str, Any], int]], why: str
) -> Done:
    """Add runs to a study: each is a cell, by its values of the grid, and how many trials it is to have more.

    A cell that the study lacks is added, with the trials of its budget. In one that it has, the chosen trial is trained
    again on other seeds, on top of the budget. `why` says what the runs are for.

    Raises:
        BadInput: the study is running, as its workers know its cells.
    """
    _refuse_running(folder)
    store = open_store(folder)
    best = StudyTrials(folder).best_of_cells()
    new = []
    added = list[tuple[str, int]]()
    with store.storage.transaction():
        for values, times in chosen:
            cell = next((each for each in store.cells if each.values == values), None)
            if cell is None:
                new.append(dict(values))
            elif cell.key in best:
                number = best[cell.key].number
                params = next(
                    trial.params for trial in store.trials(cell) if trial.number == number
                )
                for _ in range(times):
                    trials = store.trials(cell)
                    known = [
                        trial.params or trial.system_attrs.get("fixed_params")
                        for trial in trials
                    ]
                    offset = SEEDS_APART * known.count(params)
                    added.append(_enqueue(store, cell, params, {SEED_OFFSET: offset}))
        if new:
            cells = json.dumps([*(dict(cell.values) for cell in store.cells), *new])
            _rewrite(folder, {"grid": "{}", "cells": cells})
    if added:
        store.commands.add("enqueue", {"trials": added})
    parts = []
    if new:
        named = [",".join(f"{name}={value}" for name, value in cell.items()) for cell in new]
        parts.append(f"{several(len(new), 'more size')} ({some_of(named)})")
    if added:
        parts.append(
            f"the best of {several(len({cell for cell, _ in added}), 'size')} again on other seeds"
        )
    return Done(
        f"{folder.name} has {' and '.join(parts)}, {why}", _withdrawals(folder, added), added
    )


def _widen(folder: StudyFolder, name: str) -> str:
    """Widen a searched range at the ends where the best values lie; return what was done."""
    search = folder.read(folder.canonical_file)["search"]
    ranges = [key for key, entry in search.items() if "min" in entry]
    if name not in ranges:
        what = f"--widen: study {folder.name} searches no range of {name}"
        raise BadInput(Problem(what, ", ".join(ranges) or "none", nearest(name, ranges)))
    _refuse_running(folder)
    entry = search[name]
    trials = StudyTrials(folder)
    was = f"{written(entry['min'])} to {written(entry['max'])}"
    ends: dict[str, float] = {}
    for finding in find_limits(trials):
        if finding.name == name and finding.end:
            ends[finding.end] = finding.limit
    if not ends:
        raise BadInput(f"--widen: no best {name} lies at an end of its range, {was}")
    new = {**entry, **ends}
    if new == entry:
        raise BadInput(f"--widen: {name} has its widest range already, {was}")
    with open_store(folder).storage.transaction():
        _rewrite(folder, {f"search.{name}.{end}": value for end, value in ends.items()})
    n_ended = sum(
        1 for trial in trials.all if trial.ending and trial.ending.outcome.counts_towards_budget
    )
    return (
        f"{folder.name} searches {name} from {written(new['min'])} to {written(new['max'])} (was {was}); its "
        f"{several(n_ended, 'trial')} stay and count towards trials_per_cell"
    )


def _refuse_running(folder: StudyFolder) -> None:
    if folder.is_run:
        what = f"study {folder.name} is running, and its workers know its cells and ranges"
        raise BadInput(f"{what}; {folder.command('stop')} stops it first")


def _commands_of_running(folder: StudyFolder) -> Commands:
    commands = Commands.open(folder)
    commands.read()
    if is_running(folder, commands):
        return commands
    store = open_store(folder)
    what = f"study {folder.name} is not running"
    if store.has_room():
        raise BadInput(f"{what}; {_when(folder, store)}")
    more = folder.command("extend", "--trials-per-cell", "N")
    raise BadInput(f"{what}: it has all of its trials; {more} gives it more")


def _said(value: Any) -> str:
    if isinstance(value, float):
        return duration(value)
    return "none" if value is None else str(value)


def enqueue(
    folder: StudyFolder, words: Sequence[str], cell: str | None = None, dry_run: bool = False
) -> Done:
    """Enqueue trials with given values (`name=value`), to be tried next: one in every cell that has these values.

    The sampler chooses the searched hyperparameters that are not given. A `cell` narrows it to that one; with `dry_run`
    nothing is enqueued.

    Raises:
        BadInput: a name is neither searched nor in the grid, there is no such cell, or a value is not allowed.
    """
    store = open_store(folder)
    values = _read(words, store.spec)
    if cell is not None:
        cell = named_cell(folder.name, [each.key for each in store.cells], cell)
    searched = {name: value for name, value in values.items() if name in store.spec.search}
    points = []
    for space in store.spaces:
        fits = all(
            space.given[name] == value for name, value in values.items() if name not in searched
        )
        if fits and cell in (None, space.cell.key):
            points.append((space.cell, _point(space, searched)))
    if not points:
        raise BadInput(
            f"no cell of study {folder.name} has {', '.join(words)}: its constraints exclude it"
        )
    if dry_run:
        cells = some_of([of.key for of, _ in points])
        return Done(
            f"{several(len(points), 'trial')} would be enqueued: one in each of {cells}", []
        )
    with store.storage.transaction():
        added = [_enqueue(store, of, point, {"enqueued": values}) for of, point in points]
    store.commands.add("enqueue", {"trials": added, "values": values})
    trials = some_of([f"trial {number} in cell {cell}" for cell, number in added])
    what = f"{several(len(added), 'trial')} enqueued: {trials}; {_when(folder, store)}"
    return Done(what, [" && ".join(_withdrawals(folder, added))], added)


def stop_trial(folder: StudyFolder, number: int, cell: str | None = None) -> Done:
    """Stop a trial at its next evaluation, with its best value so far; withdraw it if it has not started.

    Raises:
        BadInput: there is no such trial, it has ended, or several cells have one of its number.
    """
    store = open_store(folder)
    with store.storage.transaction():
        of, trial = _find(store, number, cell)
        if trial.state == TrialState.WAITING:
            trial_id = store.trial_id(of, number)
            store.storage.set_trial_user_attr(trial_id, "withdrawn", True)
            store.storage.set_trial_state_values(trial_id, TrialState.FAIL)
    place = {"cell": of.key, "trial": number}
    name = f"trial {number} in cell {of.key}"
    if trial.state == TrialState.WAITING:
        store.commands.add("withdraw", place)
        values = trial.user_attrs.get("enqueued")
        again = list[str]()
        if values is not None:
            words = [
                f"{key}={json.dumps(value)}" for key, value in (values | of.values).items()
            ]
            again = [folder.command("enqueue", *words)]
        return Done(f"{name} is withdrawn: it had not started", again, [(of.key, number)])
    if trial.state != TrialState.RUNNING:
        raise BadInput(
            f"{name} has ended: {trial.user_attrs.get('outcome', trial.state.name.lower())}"
        )
    store.commands.add("stop trial", place)
    what = f"{name} ends as stopped at its next evaluation, with its best value so far"
    if not is_running(folder, store.commands):
        what += f"; {_when(folder, store)}"
    return Done(what, [], [(of.key, number)])


def resume_trial(folder: StudyFolder, number: int, cell: str | None = None) -> Done:
    """Continue a pruned trial to its end, from its snapshot if it has one; it is not pruned again.

    Raises:
        BadInput: there is no such trial, it was not pruned, or several cells have one of its number.
    """
    store = open_store(folder)
    with store.storage.transaction() as connection:
        of, trial = _find(store, number, cell)
        key = of.key
        how = trial.user_attrs.get("outcome", trial.state.name.lower())
        if how != RunState.PRUNED or not store.promote(connection, of, trial):
            raise BadInput(f"trial {number} in cell {key} was not pruned: {how}")
    store.poll_commands()
    # If this process dies first, the trial's next worker does this.
    for run in folder.runs_of(key, number):
        run.take_back_end(trial.last_step or 0)
    what = f"trial {number} in cell {key}, pruned at iteration {trial.last_step or 0}, continues to its end"
    (stop,) = _withdrawals(folder, [(key, number)])
    return Done(f"{what}; {_when(folder, store)}; {stop} stops it earlier", [], [(key, number)])


def _find(store: Store, number: int, cell: str | None) -> tuple[Cell, FrozenTrial]:
    trials = {
        (each.key, trial.number): (each, trial)
        for each in store.cells
        for trial in store.trials(each)
    }
    return trials[find_trial(store.spec.name, trials, number, cell)]


def _read(words: Sequence[str], spec: StudySpec) -> dict[str, Any]:
    """Parse `name=value` words into values of the study's grid and search, each of its hyperparameter's type."""
    apart = {**spec.grid, **spec.changed}
    sampled = [name for name, how in spec.search.items() if not isinstance(how, Derived)]
    known = [*apart, *sampled]
    values: dict[str, Any] = {}
    for word in words:
        name, _, text = word.partition("=")
        name = canonical(name)
        if not text:
            raise BadInput(
                Problem(f"{word!r} lacks a value", "name=value, such as learning_rate=1e-3")
            )
        if name not in known:
            what = f"{name!r} is neither in the grid nor searched in this study"
            raise BadInput(Problem(what, ", ".join(known), nearest(name, known)))
        try:
            value = values[name] = parse_value(TABLE[name], text)
        except ValueError:
            raise BadInput(Problem(f"{name} is {shown(text)}", TABLE[name].allowed)) from None
        if name in apart and value not in apart[name]:
            allowed = " | ".join(map(shown, apart[name]))
            raise BadInput(
                Problem(f"{name} is {shown(value)}, which no cell of the study has", allowed)
            )
    return values


def _point(space: Space, searched: Mapping[str, Any]) -> dict[str, Any]:
    point: dict[str, Any] = {}
    for name, value in searched.items():
        try:
            point |= space.stored(name, value)
        except ValueError as error:
            raise BadInput(Problem(f"{name} is {shown(value)}", str(error))) from None
    broken = [space.broken(values) for values in space.draws(PROBES, point)]
    if None not in broken:
        rules = ", ".join(sorted({repr(rule.text) for rule in broken if rule}))
        raise BadInput(f"no trial of cell {space.cell.key} with these values meets {rules}")
    return point


def _enqueue(
    store: Store, cell: Cell, point: Mapping[str, Any], attributes: Mapping[str, Any]
) -> tuple[str, int]:
    study = store.study(cell)
    study.enqueue_trial(dict(point), dict(attributes))
    return cell.key, max(trial.number for trial in study.get_trials(deepcopy=False))


def _withdrawals(folder: StudyFolder, trials: Sequence[tuple[str, int]]) -> list[str]:
    """Return the commands that stop or withdraw trials."""
    names = [f"{folder.name}/{cell}/{number}" for cell, number in trials]
    return [StudyFolder(folder.lab, name).command("stop") for name in names]
