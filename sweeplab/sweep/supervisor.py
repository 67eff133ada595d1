"""Run a study: check it, start its workers, and send their numbers to tracking.

The supervisor trains nothing. Workers share the trials through the store; a thread here sends what they write into
their run folders, so tracking never delays training or commands. The worker pool decides when a worker is started,
replaced or given up; an engine does the rest.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeplab.errors import BadInput, StorageUnavailable, TrackingUnavailable
from sweeplab.files import make_folder, write_whole
from sweeplab.lab.events import (
    Event,
    Notices,
    StudyNotice,
    Tick,
    TrialEnded,
    TrialEvent,
    WorkerExited,
)
from sweeplab.lab.listing import read_spec
from sweeplab.lab.studies import (
    check_same_study,
    code_versions,
    describe,
    summarize,
    versions,
    write_study,
)
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import RunState
from sweeplab.study.inputs import write_baselines
from sweeplab.study.plan import Plan, memory_shortage
from sweeplab.study.problems import reaches_in_words
from sweeplab.study.spec import StudySpec
from sweeplab.sweep.engines import (
    LEFT,
    NO_REVISION,
    REFUSED,
    UNSEEN,
    WorkerEngine,
    engine_class,
)
from sweeplab.sweep.planning import check_reach, make_plan
from sweeplab.sweep.progress import LOOK_SECONDS, StudyProgress, Watched
from sweeplab.sweep.shipping import Shipping, notify_end, open_targets
from sweeplab.sweep.trials.sharing import OUTAGE_SECONDS, Availability, Command
from sweeplab.sweep.trials.warm_start import add_warm_starts, read_warm_starts
from sweeplab.tracking import open_mirrors, open_tracker
from sweeplab.tracking.environment import git_of_code

if TYPE_CHECKING:
    from sweeplab.sweep.trials.store import Store


POLL_SECONDS = 0.2
# How often tracking and the disk are checked.
CHECK_SECONDS = 5.0
# How long workers that have lost the storage may take to save their runs.
LEAVE_SECONDS = 60.0
# After so many workers that die the same way, with no trial finished between, no more are started.
MOST_ALIKE = 5


class WorkerPool:
    """The workers that this process keeps on a study, in step with the study's commands.

    A worker that has nothing to do, or has to pause, exits, which frees all that it held, GPU memory included. It
    certainly knew the commands from before its start; a later command starts it again. A worker that dies is replaced,
    unless MOST_ALIKE died the same way with no trial finished between. `on_event` gets every event of the engine.
    """

    def __init__(
        self, engine: WorkerEngine, store: Store, on_event: Callable[[Event], None]
    ) -> None:
        self._engine = engine
        self._store = store
        self._on_event = on_event
        # The revision of the commands that each exited worker knew, and that each running one certainly knows.
        self._exited = dict.fromkeys(range(len(engine.resources)), NO_REVISION)
        self._known: dict[int, int] = {}
        self.deaths: list[str] = []  # how workers died since the last trial that did not fail
        self.failures: list[str] = []

    def __len__(self) -> int:
        return len(self._known)

    def uninformed(self) -> list[int]:
        """Return the exited workers that do not know the latest command."""
        revision = self._store.commands.state.revision
        return [index for index, known in self._exited.items() if known < revision]

    def start(self, indices: Sequence[int]) -> None:
        """Start workers that have exited."""
        state = self._store.commands.state
        for index in indices:
            self._exited.pop(index, None)
            self._known[index] = state.revision
        self._engine.start(indices, state.started)

    def start_exited(self) -> None:
        """Start every worker that has exited, whatever it knew."""
        self.start([*self._exited])

    def listen(self, stopping: bool) -> None:
        """Handle the workers' events for POLL_SECONDS; replace a worker that dies, unless all are `stopping`."""
        tick = time.monotonic() + POLL_SECONDS
        with suppress(queue.Empty):
            while (left := tick - time.monotonic()) > 0:
                event = self._engine.events.get(timeout=left)
                if isinstance(event, WorkerExited):
                    self._handle_exit(event.worker, event.code, stopping)
                self._on_event(event)

    def _handle_exit(self, index: int, code: int, stopping: bool) -> None:
        known = self._known.pop(index)
        if code in (0, LEFT) or stopping:
            self._exited[index] = known if code == 0 else NO_REVISION
            return
        if code == UNSEEN and not self._known and not any(self._engine.folder.runs()):
            raise BadInput(self._engine.last_words(index))
        death = f"code {code}: {self._engine.last_words(index)}"
        self.deaths.append(death)
        failure = f"worker {index} ended with {death} (see {self._engine.log(index)})"
        if code in (REFUSED, UNSEEN):
            self.failures.append(failure)
        elif self.deaths.count(death) < MOST_ALIKE:
            self.start([index])
        else:
            self.failures.append(f"{MOST_ALIKE} workers in a row died the same way; {failure}")

    def leave(self) -> None:
        """Let every worker save its runs and exit after the storage is lost, without reporting to it."""
        self._engine.stop()
        ends = time.monotonic() + LEAVE_SECONDS
        while len(self) and time.monotonic() < ends:
            self.listen(stopping=True)


@dataclass(frozen=True)
class StudyEnd:
    """The state of a study after it was run: `status` is complete, interrupted or failed."""

    folder: StudyFolder
    status: str
    errors: list[str]


def run_study(
    spec: StudySpec,
    lab: Path,
    listen: Callable[[Event, StudyProgress], None] = lambda event, progress: None,
    interrupts: Callable[[], int] = lambda: 0,
) -> StudyEnd:
    """Run a study to the end of its budget, or continue it.

    `listen` gets every event of a worker and, several times a second, a `Tick`. `interrupts` counts how often the
    user asked to stop: once saves the runs at their next step, twice kills the workers.

    Raises:
        BadInput: the study cannot start, or the lab has another study of its name.
    """
    check_reach(spec, lab)
    targets = open_targets(spec)
    engine = engine_class(spec.engine.type)
    engine.check(spec.engine)
    plan, _, dataset = make_plan(spec, lab)
    folder = StudyFolder(lab, spec.name)
    check_same_study(spec, folder, plan.data)
    from sweeplab.lab.storage import choose_storage
    from sweeplab.sweep.trials.store import Store

    with _held(folder):
        # First, as it may refuse the study: `detach` takes one that is held for one that runs.
        choose_storage(folder, is_shared=not engine.is_here)
        write_whole(folder.plan_file, json.dumps(plan.as_dict()).encode())
        code = {**code_versions(), "git": git_of_code()}
        write_whole(folder.code_file, json.dumps(code).encode())
        shortage = (
            memory_shortage(plan.cells, plan.workers, plan.device) if engine.is_here else ""
        )
        notices = [reaches_in_words(plan.reaches), plan.mirror, shortage]
        create = partial(Store.create, spec, plan.data.sizes, folder.storage_url)
        store = Availability(spec.name).retry(create)
        write_baselines(folder, store.spaces, dataset)
        write_study(spec, folder, plan.data)  # from here on the lab has the complete study
        if spec.warm_start:
            add_warm_starts(store, read_warm_starts(spec, folder, store.spaces, plan.data))
        supervisor = _Supervisor(folder, plan, store, targets, listen, interrupts)
        return supervisor.run([notice for notice in notices if notice])


class _Supervisor:
    """Keeps workers on a study until no work is left, and sends what they write to tracking."""

    def __init__(
        self,
        folder: StudyFolder,
        plan: Plan,
        store: Store,
        targets: Mapping[str, Any],
        listen: Callable[[Event, StudyProgress], None],
        interrupts: Callable[[], int],
    ) -> None:
        self.folder = folder
        self.plan = plan
        self.store = store
        self.targets = targets
        self.listen = listen
        self.interrupts = interrupts
        self.spec = store.spec
        self.commands = store.commands
        availability = store.availability
        availability.limit = OUTAGE_SECONDS
        availability.say = lambda message: self._take_in(StudyNotice(message=message))
        availability.stopping = lambda: interrupts() > 1
        self.tracker = open_tracker(folder.lab, folder.name, self.spec.track.uri)
        self.trackers = [self.tracker, *open_mirrors(self.spec.fixed, folder.path)]
        self.shipping = Shipping(folder, self.trackers)
        self.elapsed = folder.elapsed_seconds
        self.watched = Watched(folder, commands=self.commands)
        self.notices = Notices(folder)
        self.progress = self.watched.progress
        self.engine = engine_class(self.spec.engine.type)(
            folder, self.spec.engine, plan.workers
        )
        self.pool = WorkerPool(self.engine, store, self._take_in)
        self._unread: list[Command] = []  # commands that the progress has not followed yet
        self._last_notice = ""

    def run(self, notices: Sequence[str]) -> StudyEnd:
        """Show the user the `notices`, then run the study to its end; one that is complete is left as it is."""
        self.commands.read()
        # It came to its end before, tracking has all of it, and nobody is to hear of it: MLflow is slow to import.
        is_done = self.commands.state.status == "complete" and not (
            self._has_work() or self.spec.notify
        )
        if is_done:
            is_done = len(self.trackers) == 1 and self.tracker.is_complete(
                run.path for run in self.folder.runs()
            )
        known = versions(self.plan.data.token_digest)
        start = {"versions": known, "host": socket.gethostname(), "pid": os.getpid()}
        self.commands.add("start", start)
        budget = read_spec(self.folder).budget
        if budget != self.spec.budget:  # the study was extended after its file was read
            self.commands.add("budget", budget.model_dump())
        status = "interrupted"
        try:
            # Something to read while tracking is opened.
            self.listen(Tick(), self.progress)
            for notice in notices:
                self._take_in(StudyNotice(message=notice))
            if is_done:
                status = "complete"
                return StudyEnd(self.folder, status, [])
            description = describe(self.spec, self.folder, self.plan)
            try:
                for tracker in self.trackers:
                    tracker.open(description)
            except TrackingUnavailable as error:
                cure = "set another track: {uri: …} or MLFLOW_TRACKING_URI"
                raise BadInput(f"{error}; {cure}") from error
            deque(self.watched.news(self.store.poll_commands()), maxlen=0)  # the past
            self.progress.clear_live()
            self.progress.errors.clear()
            self.shipping.start()
            self._poll_commands()
            self._supervise()
            status, errors = self._finish()
        except StorageUnavailable:
            self.pool.leave()
            raise
        except Exception as error:
            notify_end(
                self.targets, self.folder, "failed", [f"{type(error).__name__}: {error}"]
            )
            raise
        finally:
            self.engine.kill()
            self.engine.close()
            self.shipping.stop()  # before anyone else may ship the study
            self.commands.add("ended", status)
        unsent = notify_end(self.targets, self.folder, status, errors)
        return StudyEnd(self.folder, status, [*errors, *unsent])

    def _supervise(self) -> None:
        looked = checked = now = time.monotonic()
        n_interrupts = 0
        # A worker in a queue may begin to run before the first look.
        self._look_at_places()
        self.listen(Tick(), self.progress)
        while self._goes_on():
            self.pool.listen(stopping=bool(self.interrupts()) or self._is_over_time)
            before, now = now, time.monotonic()
            self._look_at_places()
            is_queued = {place.state for place in self.progress.places} == {"queued"}
            is_paused = self.commands.state.phase == "pause" and not len(self.pool)
            if not is_queued and not is_paused:
                self.elapsed += now - before
            self._poll_commands()
            self.listen(Tick(), self.progress)
            if self.interrupts() > n_interrupts:
                n_interrupts = self.interrupts()
                if n_interrupts == 1:
                    self.commands.set_phase("stop")  # for workers elsewhere
                    self.engine.stop()
                else:
                    self.engine.kill()
            if now - looked > LOOK_SECONDS:
                self._read_feed()
                looked = time.monotonic()
            if not len(self.pool) and self.progress.live and not self.store.n_held():
                self._read_feed()
                # No worker holds the trials that were running: they wait for one.
                self.progress.clear_live()
            if now - checked > CHECK_SECONDS:
                self.shipping.check()
                self._write_elapsed()
                checked = time.monotonic()
        self._write_elapsed()

    def _look_at_places(self) -> None:
        places = self.engine.places()
        if places != self.progress.places:
            self.progress.places = places
            self.progress.follow(self.commands.state)
            # Such as a full disk: others then see the places of before.
            with suppress(OSError):
                self.folder.write_workers(places)

    def _write_elapsed(self) -> None:
        self.store.availability.attempt(
            lambda: self.folder.write_elapsed(self.elapsed), "records"
        )

    def _goes_on(self) -> bool:
        """Set the phase to closing where there are no workers to listen to or to wait for; return whether there are."""
        if len(self.pool):
            return True
        state = self.commands.state
        if self.interrupts() and not (self.interrupts() == 1 and self.store.n_held()):
            self.commands.set_phase("closing")
            return False
        if state.phase == "pause" or self.store.n_held():  # by workers of an earlier supervisor
            return True
        if (
            state.phase == "run"
            and not self.pool.failures
            and self.store.n_running()
            and self._has_work()
        ):
            self.pool.start_exited()  # a worker elsewhere died, and nobody holds its trials
            return True
        return not self.commands.set_phase("closing", after=state.revision)

    def _has_work(self) -> bool:
        return not self._is_over_time and self.store.has_room()

    @property
    def _is_over_time(self) -> bool:
        limit = self.store.budget.time
        return limit is not None and self.elapsed >= limit

    def _poll_commands(self) -> None:
        """Carry out new commands, and stop the workers when the time budget is used up."""
        commands = self.store.poll_commands()
        if commands:
            self._unread += commands
            self.progress.follow(self.commands.state)
        phase = self.commands.state.phase
        if self._is_over_time and phase == "run":
            self.commands.set_phase("over")  # for workers elsewhere
            self.engine.stop()
        elif not self._is_over_time and phase == "over":
            self.commands.set_phase("run")
        runs = self.commands.state.phase == "run" and not self.interrupts()
        if runs and self.pool.uninformed() and self._has_work():
            self.pool.start(self.pool.uninformed())

    def _read_feed(self) -> None:
        for notice in self.notices.new():
            self._take_in(notice)
        commands, self._unread = self._unread, []
        for event in self.watched.news(commands):
            if isinstance(event, TrialEnded) and event.ending.outcome is not RunState.FAILED:
                self.pool.deaths.clear()
            self.listen(event, self.progress)
            if isinstance(event, TrialEvent):
                self.shipping.hear(event)

    def _take_in(self, event: Event) -> None:
        """Take in an event that the folders of the runs do not tell."""
        # Several workers may send the same notice, seconds apart.
        if isinstance(event, StudyNotice):
            if event.message == self._last_notice:
                return
            self._last_notice = event.message
        self.progress.take_in(event)
        self.listen(event, self.progress)

    def _finish(self) -> tuple[str, list[str]]:
        # The stream looks for the end of a run only after it has found the run.
        for _ in range(2):
            self._read_feed()
        errors = [*self.progress.errors, *self.pool.failures]
        refused = self.shipping.finish()
        if refused:
            kept = f"what it lacks stays in {self.folder.path} and is sent when the study is run again"
            return "failed", [*errors, f"{refused[0]}; {kept}"]
        left = not self._is_over_time and self.store.n_running()
        was_stopped = self.interrupts() or self.commands.state.phase == "stop"
        cut_short = (left or was_stopped) and self._has_work()
        status = "interrupted" if cut_short else "complete"
        if errors and not cut_short:
            status = "failed"
        summary = summarize(self.folder, status)
        try:
            for tracker in self.trackers:
                tracker.close(summary)
        except TrackingUnavailable as error:
            return "failed", [*errors, str(error)]
        return status, errors


@contextmanager
def _held(folder: StudyFolder) -> Iterator[None]:
    """Create the study's folder and lock it; remove it if the study is refused before it has runs."""
    is_new = not folder.path.exists()
    make_folder(folder.path)
    running = f"study {folder.name} is being run by another process; wait for it or give another --name"
    with folder.held(running):  # two processes that ship the same runs would duplicate them
        try:
            yield
        except BadInput:
            # Such as when the storage was lost while the study trained.
            if is_new and not any(folder.runs()):
                shutil.rmtree(folder.path)
            raise
