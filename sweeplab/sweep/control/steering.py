"""What a study's owner can ask of it from any process; each says what was done, and how to take it back."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from sweeplab.errors import BadInput, Problem
from sweeplab.files import write_whole
from sweeplab.lab.identity import as_written
from sweeplab.lab.listing import read_spec
from sweeplab.records.folders import StudyFolder
from sweeplab.study.cells import cells
from sweeplab.study.file.reading import read_study
from sweeplab.study.plan import check_grid_sampler
from sweeplab.sweep.trials.commands import Commands
from sweeplab.sweep.trials.store import Store


@dataclass(frozen=True)
class Done:
    """What was done, and the commands that take it back; `trials` are those that it concerns, as cell and number."""

    what: str
    undo: list[str]
    trials: list[tuple[str, int]] = field(default_factory=list)


def open_store(folder: StudyFolder, allow_plugins: bool = False) -> Store:
    """Open a study's storage as the study stands in its folder."""
    spec = read_spec(folder, allow_plugins)
    vocab_size = json.loads(folder.data_file.read_text(encoding="utf-8"))["vocab_size"]
    store = Store(spec, cells(spec, vocab_size)[0], vocab_size, folder.storage_url)
    store.poll_commands()
    return store


def is_running(folder: StudyFolder, commands: Commands) -> bool:
    """Say whether the study is run by a process that still reads commands."""
    return folder.is_run and commands.state.phase not in ("closing", "ended")


def when(folder: StudyFolder, store: Store) -> str:
    """Say when what was asked for is done."""
    limit, commands = store.budget.time, store.commands
    if limit is not None and folder.elapsed_seconds >= limit:
        return f"its time is over: {folder.command('study extend', '--time', 'TIME')} gives it more"
    if not is_running(folder, commands):
        return f"{folder.command('study resume')} runs it"
    if commands.state.phase == "pause":
        return f"once {folder.command('study resume')} lets it go on"
    return "its workers know within an evaluation"


def stop(folder: StudyFolder) -> Done:
    """Let every worker put its runs away at its next evaluation, and the study's run end.

    Raises:
        BadInput: nobody runs the study.
    """
    _commands_of_running(folder).set_phase("stop")
    what = f"{folder.name} stops: its workers put their runs away at their next evaluation"
    return Done(what, [folder.command("study resume")])


def pause(folder: StudyFolder) -> Done:
    """Let every worker put its runs away at its next evaluation and free what it holds, until `resume`.

    Raises:
        BadInput: nobody runs the study, or it is paused.
    """
    commands = _commands_of_running(folder)
    if commands.state.phase == "pause":
        raise BadInput(f"study {folder.name} is paused; {folder.command('study resume')} lets it go on")
    commands.set_phase("pause")
    what = f"{folder.name} pauses: its workers put their runs away at their next evaluation and free their memory"
    return Done(what, [folder.command("study resume")])


def resume(folder: StudyFolder) -> Done | None:
    """Let a study that was paused, or is about to stop, go on; None where it has to be run anew.

    Raises:
        BadInput: it is running, or its run is just ending.
    """
    commands = Commands.open(folder.storage_url)
    if not folder.is_run:
        return None
    if commands.state.phase in ("run", "over"):
        raise BadInput(f"study {folder.name} is running and not paused")
    if not is_running(folder, commands):
        raise BadInput(
            f"the run of study {folder.name} is just ending; the same command then goes on with it"
        )
    before = commands.state.phase
    commands.set_phase("run")
    return Done(f"{folder.name} goes on", [folder.command(f"study {before}")])


def extend(folder: StudyFolder, trials_per_cell: str | None, time: str | None) -> Done:
    """Give a study another budget: totals, as in its file; "none" takes a limit away.

    Raises:
        BadInput: nothing is given, or what is given is no budget.
    """
    options = {"trials_per_cell": trials_per_cell, "time": time}
    given = {name: "null" if text == "none" else text for name, text in options.items() if text is not None}
    if not given:
        raise BadInput(Problem("nothing to extend by", "--trials-per-cell N, --time such as 2h"))
    store = open_store(folder)
    with store.lock():  # another such command may change another part of the budget
        before = read_spec(folder).budget.model_dump()
        try:
            asked = [f"budget.{name}={text}" for name, text in given.items()]
            spec = read_study(folder.canonical_file, asked)
        except BadInput as error:
            raise BadInput(*map(_by_option, error.problems)) from error
        check_grid_sampler(spec, store.spaces)
        after = spec.budget.model_dump()
        write_whole(folder.canonical_file, json.dumps(as_written(spec), indent=1).encode())
        store.commands.add("budget", after)
    store.poll_commands()
    changes = ", ".join(f"{name} {_said(after[name])} (was {_said(before[name])})" for name in given)
    back = [word for name in given for word in (_option(name), _said(before[name]))]
    what = f"{folder.name} has {changes}"
    if spec.budget.trials_per_cell is not None:
        to_go = sum(max(0, spec.budget.trials_per_cell - each.counted) for each in store.counts())
        what += f": {to_go} trials to go"
    return Done(f"{what}; {when(folder, store)}", [folder.command("study extend", *back)])


def _commands_of_running(folder: StudyFolder) -> Commands:
    commands = Commands.open(folder.storage_url)
    if is_running(folder, commands):
        return commands
    store = open_store(folder)
    done = sum(each.counted for each in store.counts())
    if store.budget.time is not None and folder.elapsed_seconds >= store.budget.time:
        next_step = f"{done} trials done; {when(folder, store)}"
    elif store.has_room():
        next_step = f"{done} trials done; {folder.command('study resume')} goes on with it"
    else:
        more = folder.command("study extend", "--trials-per-cell", "N")
        next_step = f"it has all of its {done} trials; {more} gives it more"
    raise BadInput(f"study {folder.name} is not running: {next_step}")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _by_option(problem: Problem) -> Problem:
    what = problem.what
    for name in ("trials_per_cell", "time"):
        what = what.replace(f"-o budget.{name}=", f"{_option(name)} ")
    return Problem(what, problem.allowed, problem.nearest)


def _said(value: Any) -> str:
    return "none" if value is None else f"{int(value)}s" if isinstance(value, float) else str(value)
