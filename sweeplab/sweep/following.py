"""Follow a study that another process runs: its progress and its log."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypedDict

from sweeplab.files import GrowingFile
from sweeplab.formatting import several_named, yaml_text
from sweeplab.lab.events import Event, EventStream, OnLook, Tick, TrialClaimed, TrialEnded
from sweeplab.lab.listing import find_metric, read_spec, study_state
from sweeplab.lab.storage import open_database
from sweeplab.records.folders import StudyFolder
from sweeplab.study.plan import Plan
from sweeplab.sweep.progress import StudyProgress
from sweeplab.sweep.trials.sharing import Availability, Command, Commands

LOOK_SECONDS = 0.5
# How often Slurm is asked whether the job that is to run a study has started.
QUEUE_LOOK_SECONDS = 1.0
# Phases that have another name in the log.
PHASES = {"run": "resume", "over": "time budget used up", "closing": "nothing left to do, or interrupted"}


def read_plan(folder: StudyFolder) -> Plan:
    """Return the plan that a study was last started with."""
    return Plan.from_dict(folder.read(folder.plan_file))


class Watched:
    """A study that any process runs: its commands, and its progress as its folder tells it.

    `hear` gets the runs that had not ended, as in `EventStream`.
    """

    def __init__(
        self,
        folder: StudyFolder,
        hear: OnLook = lambda run, points, end: None,
        commands: Commands | None = None,
    ) -> None:
        self.folder, self.commands = folder, commands or Commands.open(folder)
        self._stream = EventStream(folder, hear)
        self.progress = StudyProgress(read_plan(folder), {})
        self._has_begun = False

    def news(self, commands: Sequence[Command] | None = None) -> Iterator[Event]:
        """Yield what has happened since the last call; the progress has taken it in.

        `commands` are those that the caller has read since then.
        """
        for command in self.commands.read() if commands is None else commands:
            if command.kind == "start":
                self._has_begun = False
            elif command.kind == "reopen" and self._stream.reopen(*command.reopened):
                self.progress.reopen(command.value["cell"])
        progress, start = self.progress, self.commands.state.start
        events = [*(self._stream.new(latest_only=not self._has_begun))]
        for event in events:
            progress.take_in(event)
            yield event
        if not self._has_begun:
            self._has_begun = True
            progress.begin(read_plan(self.folder), start.given, events)
            progress.started = time.monotonic() - (time.time() - start.given)
            progress.elapsed_before = start.elapsed_before
            progress.done_before = min(start.done_before, progress.counted)
        progress.follow(self.commands.state)
        if commands is None:  # else the caller runs the study, and `follow` tells its state
            progress.state = study_state(self.folder)


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
    stream, metric = EventStream(folder), find_metric(folder)
    commands = Commands(open_database(folder.storage_url), Availability(folder.name))
    started: set[tuple[str, int]] = set()  # a trial starts with the first of its runs
    logs: dict[Path, GrowingFile] = {}
    places: dict[int, str] = {}
    events, is_last = stream.new(latest_only=True), not follow
    while True:
        lines = [LogLine(time=each.given, source="study", text=_in_words(each)) for each in commands.read()]
        for event in events:
            name = f"{event.cell} trial {event.trial}"
            if isinstance(event, TrialClaimed) and event.place not in started:
                started.add(event.place)
                lines.append(LogLine(time=event.started, source="trial", text=f"{name} started"))
            elif isinstance(event, TrialEnded):
                text = f"{name} {_ended(event, metric)}"
                lines.append(LogLine(time=event.ended, source="trial", text=text))
        yield from sorted(lines, key=lambda line: line["time"] or 0.0)
        for place in folder.workers:
            where = ", ".join(filter(None, (place.state, place.node, place.process, place.why)))
            if where != places.get(place.worker):
                places[place.worker] = where
                yield LogLine(time=None, source=f"worker-{place.worker}", text=where)
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
            return f"{command.kind} {trials}" + (f", with {values}" if values else "")
    return f"{command.kind} {yaml_text(value)}"
