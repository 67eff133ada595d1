"""Follow a study that another process runs: its progress and its log; or join it with one more worker."""

from __future__ import annotations

import os
import platform
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from sweeplab.errors import BadInput, StorageUnavailable
from sweeplab.files import GrowingFile
from sweeplab.formatting import several_named, yaml_text
from sweeplab.lab.events import Event, EventStream, OnLook, StudyNotice, Tick, TrialClaimed, TrialEnded
from sweeplab.lab.identity import version_differences, versions
from sweeplab.lab.listing import find_metric, read_spec, study_state
from sweeplab.lab.storage import open_database
from sweeplab.records.folders import StudyFolder, WorkerPlace
from sweeplab.study.plan import Plan, WorkerResources
from sweeplab.study.plugins import check_imported
from sweeplab.study.spec import Engine
from sweeplab.sweep.engines.local import LocalEngine
from sweeplab.sweep.trials.availability import OUTAGE_SECONDS, Availability
from sweeplab.sweep.trials.commands import Command, Commands, is_running
from sweeplab.sweep.work.pool import WorkerPool
from sweeplab.sweep.work.progress import CellProgress, StudyProgress

if TYPE_CHECKING:
    from sweeplab.sweep.trials.store import Store

LOOK_SECONDS = 0.5
# How often Slurm is asked whether the job that is to run a study has started.
QUEUE_LOOK_SECONDS = 1.0
# How often a joined worker looks whether the study is still run by somebody.
JOINED_LOOK_SECONDS = 2.0
# Phases that have another name in the log.
PHASES = {"run": "resume", "over": "time budget used up", "closing": "nothing left to do, or interrupted"}


def read_plan(folder: StudyFolder) -> Plan:
    """Return the plan that a study was last started with."""
    return Plan.from_dict(folder.read(folder.plan_file))


class Watched:
    """A study that any process runs: its commands, and its progress as its folder tells it.

    `hear` gets the runs that had not ended, as in `EventStream`.
    """

    def __init__(self, folder: StudyFolder, hear: OnLook = lambda run, points, end: None) -> None:
        self.folder, self.commands, self._stream = folder, Commands.open(folder), EventStream(folder, hear)
        self.progress = StudyProgress(read_plan(folder), {})
        self._has_begun = False

    def news(self) -> Iterator[Event]:
        """Yield what has happened since the last call; the progress has taken it in."""
        for command in self.commands.read():
            if command.kind == "start":
                self._has_begun = False
            elif command.kind == "reopen" and self._stream.reopen(*command.reopened):
                self.progress.reopen(command.value["cell"])
        events = [*(self._stream.new() if self._has_begun else self._stream.past())]
        for event in events:
            self.progress.take_in(event)
            yield event
        if not self._has_begun:
            self._begin(events)
        self.progress.follow(self.commands.state)
        self.progress.state = study_state(self.folder)

    def _begin(self, past: Sequence[Event]) -> None:
        """Take over the plan and the counts with which the study was last started."""
        progress, start = self.progress, self.commands.state.start
        progress.begin(read_plan(self.folder), start.given, past)
        for cell in progress.plan.cells:
            progress.cells.setdefault(cell.cell, CellProgress())
        progress.started = time.monotonic() - (time.time() - start.given)
        progress.elapsed_before = start.elapsed_before
        progress.done_before = min(start.done_before, progress.counted)
        self._has_begun = True


def wait_for_job(folder: StudyFolder, say: Callable[[str], None]) -> None:
    """Wait while a job that is to run a study is in its cluster's queue; `say` gets what the queue says of it."""
    if read_spec(folder).engine.type != "slurm":
        return
    from sweeplab.sweep.engines.slurm import SlurmFailure, heads_in_queue

    before = ""
    while not folder.is_run:
        try:
            words = heads_in_queue().get(folder.name, "")
        except SlurmFailure:
            words = before  # a busy cluster may answer later; one that never did has no job to wait for
        if not words:
            return
        if words != before:
            say(f"{folder.name} waits: {words}")
        before = words
        time.sleep(QUEUE_LOOK_SECONDS)


def watch_study(folder: StudyFolder, listen: Callable[[Event, StudyProgress], None]) -> str | None:
    """Follow a study until it ends; `listen` gets every event, and a `Tick` twice a second.

    Return how it ended: complete, interrupted or failed; None if its supervisor was killed or nobody runs it.
    """
    watched = Watched(folder)
    progress, commands = watched.progress, watched.commands
    deque(watched.news(), maxlen=0)  # the past
    while folder.is_run:
        progress.places = folder.workers
        if progress.phase != "run":
            progress.clear_live()  # the study's folder does not say when a run was saved
        listen(Tick(), progress)
        time.sleep(LOOK_SECONDS)
        for event in watched.news():
            listen(event, progress)
    commands.read()
    return commands.state.status


class LogLine(TypedDict):
    """A line of a study's log: its time (seconds since 1970, None if unknown), its source, and its text."""

    time: float | None
    source: str
    text: str


def log_lines(folder: StudyFolder, follow: bool = False) -> Iterator[LogLine]:
    """Yield the events of a study in order, and the lines of its workers' logs.

    With `follow`, continue until nobody runs the study.
    """
    stream = EventStream(folder)
    commands = Commands(open_database(folder.storage_url), Availability(folder.name))
    started: set[tuple[str, int]] = set()  # a trial starts with the first of its runs
    logs: dict[Path, GrowingFile] = {}
    places: dict[int, str] = {}
    events, is_last, metric = stream.past(), not follow, find_metric(folder)
    while True:
        known = [(command.given, "study", _in_words(command)) for command in commands.read()]
        for event in events:
            if isinstance(event, TrialClaimed) and event.place not in started:
                started.add(event.place)
                known.append((event.started, "trial", f"{event.cell} trial {event.trial} started"))
            elif isinstance(event, TrialEnded):
                text = f"{event.cell} trial {event.trial} {_ended(event, metric)}"
                known.append((event.ended, "trial", text))
        for at, source, text in sorted(known, key=lambda line: line[0]):
            yield LogLine(time=at, source=source, text=text)
        now = {place.worker: _where(place) for place in folder.workers}
        for worker, where in now.items():
            if where != places.get(worker):
                yield LogLine(time=None, source=f"worker-{worker}", text=where)
        places = now
        for file in [folder.run_log, *sorted(folder.path.glob("worker-*.log"))]:
            added = logs.setdefault(file, GrowingFile(file)).new_lines()
            for text in added.decode("utf-8", "replace").splitlines():
                yield LogLine(time=None, source=file.stem, text=text)
        if is_last:
            return
        is_last = not folder.is_run
        time.sleep(LOOK_SECONDS)
        events = stream.new()


def _ended(event: TrialEnded, metric: str) -> str:
    ending = event.ending
    value = "" if ending.value is None else f", {metric} {ending.value:.4f}"
    error = f": {ending.error.strip().splitlines()[-1]}" if ending.error else ""
    return f"{ending.outcome}{value} ({event.stop_reason or ''}){error}"


def _where(place: WorkerPlace) -> str:
    state = f"{place.state} on {place.node}" if place.node else place.state
    return ", ".join(filter(None, (state, place.process, place.why)))


def _in_words(command: Command) -> str:
    value = command.value
    match command.kind:
        case "start":
            return f"started on {value['host']}, process {value['pid']}"
        case "ended":
            return f"ended: {value}"
        case "wanted":
            return str(PHASES.get(value, value))
        case "budget":
            limits = ", ".join(f"{name} {each:g}" for name, each in value.items() if each is not None)
            return f"extend: {limits}"
        case "stop trial" | "prune trial" | "withdraw" | "reopen":
            return f"{command.kind.split()[0]} trial {value['trial']} in cell {value['cell']}"
        case "enqueue" | "retry":
            values = ", ".join(f"{name} {yaml_text(each)}" for name, each in value.get("values", {}).items())
            trials = several_named([f"trial {number} in cell {cell}" for cell, number in value["trials"]])
            return ", with ".join(filter(None, (f"{command.kind} {trials}", values)))
    return f"{command.kind} {yaml_text(value)}"


def join_study(
    folder: StudyFolder,
    force: bool,
    listen: Callable[[Event], None],
    interrupts: Callable[[], int],
    allow_plugins: bool = False,
) -> list[str]:
    """Run one more worker on a study until the study's supervisor ends, and return the worker's failures.

    Its runs are in the study's folder like all others, and the study's supervisor sends them to tracking.
    `interrupts` counts how often the user asked to stop: once saves the worker's runs, twice kills it.

    Raises:
        BadInput: nobody runs the study, or it is run with other code or data, or on another machine.
        StorageUnavailable: the storage has not answered for too long; the worker has saved its runs.
    """
    from sweeplab.sweep.trials.store import open_store  # Optuna with it: slow to import

    store = open_store(folder, allow_plugins)
    check_imported(store.spec)
    _check_can_join(folder, store, force)
    like = read_plan(folder).workers[0]
    resources = WorkerResources(like.threads, None if like.gpu is None else 0)
    name = f"worker-{platform.node()}-{os.getpid()}"
    engine = LocalEngine(folder, Engine(), [resources], name, force)
    pool = WorkerPool(engine, store, listen)
    store.availability.limit = OUTAGE_SECONDS
    store.availability.say = lambda message: listen(StudyNotice(message=message))
    looked = time.monotonic()
    try:
        pool.start()
        while len(pool) or not (interrupts() or pool.failures or not is_running(folder, store.commands)):
            pool.listen(stopping=bool(interrupts()))
            store.poll_commands()
            if pool.has_new_command and not interrupts():
                pool.start()
            times = interrupts()
            if times:
                {1: engine.stop}.get(times, engine.kill)()
            if time.monotonic() - looked > JOINED_LOOK_SECONDS:
                looked = time.monotonic()
                if not folder.is_run:
                    engine.stop()
    except StorageUnavailable:
        pool.leave()
        raise
    finally:
        engine.kill()
    return pool.failures


def _check_can_join(folder: StudyFolder, store: Store, force: bool) -> None:
    from sweeplab.study.inputs import study_dataset  # numpy with it

    start = store.commands.state.start
    if not is_running(folder, store.commands):
        raise BadInput(f"study {folder.name} is not running; {folder.command('study resume')} runs it")
    dataset = study_dataset(store.spec)
    different = version_differences(versions(dataset.token_digest), start.versions)
    if different and not force:
        what = f"study {folder.name} is run with another version of {', '.join(different)}"
        raise BadInput(f"{what}; results from here would not be comparable: --force joins it anyway")
