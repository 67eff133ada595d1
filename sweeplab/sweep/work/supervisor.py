"""Run a study: check it, start its workers, bring their numbers to tracking, write the report.

The supervisor trains nothing. Workers share the trials among themselves through the store; what they write down
in their runs' folders is shipped from here, so tracking is never on the training path.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import Timeout

from sweeplab.errors import BadInput
from sweeplab.files import write_whole
from sweeplab.lab.description import describe, summarize
from sweeplab.lab.feed import Event, Feed
from sweeplab.lab.identity import check_same_study, write_study
from sweeplab.lab.versions import code_versions, machine, versions
from sweeplab.records.folders import StudyFolder
from sweeplab.study.datasets import write_baselines
from sweeplab.study.plan import Plan
from sweeplab.sweep.planning import make_plan, warm_starts
from sweeplab.sweep.work.progress import CellProgress, Notifier, StudyProgress
from sweeplab.sweep.work.worker import WorkerPool
from sweeplab.tracking.tracker import TRACKERS, Tracker, TrackingUnavailable, mirrors

if TYPE_CHECKING:
    from sweeplab.study.spec import StudySpec
    from sweeplab.sweep.trials.store import Store

SHIP_SECONDS = 5.0
# Whoever only looks whether a study is run holds its lock for an instant.
LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class StudyEnd:
    """How a study stands after it was run: `status` is complete, interrupted or failed."""

    folder: StudyFolder
    status: str
    errors: list[str]


def run_study(
    spec: StudySpec,
    lab: Path,
    listen: Callable[[Event, StudyProgress], None] = lambda event, progress: None,
    interrupts: Callable[[], int] = lambda: 0,
) -> StudyEnd:
    """Run a study to the end of its budget, or go on with it.

    `listen` hears every event of a worker and, several times a second, `{"event": "tick"}`. `interrupts` counts
    how often the user asked to stop: once puts the runs away at their next step, twice ends the workers at once.

    Raises:
        BadInput: the study cannot start, or another one of its name stands in the lab.
    """
    notifier = Notifier(spec)
    plan, cells, dataset = make_plan(spec, lab)
    folder = StudyFolder(lab, spec.name)
    check_same_study(spec, folder, plan.data)
    made = _make(folder)
    with _only_one(folder):
        write_whole(folder.plan_file, json.dumps(plan.as_dict()).encode())
        write_whole(folder.code_file, json.dumps(code_versions()).encode())
        from sweeplab.lab.database import choose_storage
        from sweeplab.sweep.trials.store import Store

        try:
            choose_storage(folder)
        except BadInput:
            _unmake(folder, made)
            raise
        store = Store.create(spec, cells, plan.data["vocab_size"], folder.storage_url)
        write_baselines(folder, store.spaces, dataset)
        write_study(spec, folder, plan.data)  # from here on the lab has the study, and whole
        if spec.warm_start:
            from sweeplab.sweep.trials.warm_start import bring_in

            bring_in(store, warm_starts(spec, folder, store.spaces, plan.data), folder)
        tracker = TRACKERS["mlflow"](lab, spec.name, spec.track.uri)
        supervisor = _Supervisor(spec, folder, plan, store, tracker, notifier, listen, interrupts)
        try:
            return supervisor.run()
        except BadInput:
            _unmake(folder, made)
            raise


@contextmanager
def _only_one(folder: StudyFolder) -> Iterator[None]:
    """Hold the study for this process: two that ship the same runs would double them."""
    try:
        lock = folder.supervisor_lock.acquire(timeout=LOOK_SECONDS, poll_interval=0.05, blocking=True)
    except Timeout:
        what = f"study {folder.name} is being run by another process; wait for it or give another --name"
        raise BadInput(what) from None
    with lock:
        yield


class _Supervisor:
    def __init__(
        self,
        spec: StudySpec,
        folder: StudyFolder,
        plan: Plan,
        store: Store,
        tracker: Tracker,
        notifier: Notifier,
        listen: Callable[[Event, StudyProgress], None],
        interrupts: Callable[[], int],
    ) -> None:
        self.spec, self.folder, self.store, self.tracker = spec, folder, store, tracker
        self.shown = [tracker, *mirrors(spec.fixed, folder.path)]
        self.notifier = notifier
        self.listen, self.interrupts = listen, interrupts
        cells = {each.cell.key: CellProgress(each.counted, each.best) for each in store.counts()}
        self.progress = StudyProgress(plan, cells)
        self.progress.done_before = self.progress.counted
        self.progress.elapsed_before = folder.elapsed_seconds
        self.pool, self.commands = WorkerPool(folder, plan.workers, store, self._hear), store.commands
        self._ours: set[tuple[str, int]] = set()  # trials that workers of this process have in hand
        self._ended: set[tuple[str, int]] = set()
        self._feed = Feed(folder)
        self.elapsed = folder.elapsed_seconds
        self.is_over_time = False

    def run(self) -> StudyEnd:
        self.commands.add("start", self._start())
        status = "interrupted"
        try:
            self._open_tracking()
            list(self._feed.past())
            self._poll(0.0)
            self._follow()
            ending = self._finish()
            status = ending.status
        except Exception as error:
            self._notify("failed", [f"{type(error).__name__}: {error}"])
            raise
        finally:
            self.pool.kill()
            self.commands.add("ended", status)
        self._notify(status, ending.errors)
        return StudyEnd(self.folder, status, [*ending.errors, *self.notifier.errors])

    def _notify(self, status: str, errors: list[str]) -> None:
        if self.spec.notify:  # a summary reads every run's folder
            self.notifier.notify_end(self.folder, status, summarize(self.folder, status), errors)

    def _start(self) -> dict[str, Any]:
        """Return what others may want to know of who runs the study from here on."""
        return {
            "versions": versions(self.progress.plan.data["token_digest"]),
            "machine": machine(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "done_before": self.progress.done_before,
            "elapsed_before": self.elapsed,
        }

    def _open_tracking(self) -> None:
        description = describe(self.spec, self.folder, self.progress.plan)
        try:
            for each in self.shown:
                each.open(description)
        except TrackingUnavailable as error:
            raise BadInput(f"{error}; track: {{uri: …}} or MLFLOW_TRACKING_URI name another place") from error

    def _has_work(self) -> bool:
        return not self._is_time_over() and self.store.has_room()

    def _is_time_over(self) -> bool:
        limit = self.store.budget.time
        return limit is not None and self.elapsed >= limit

    def _follow(self) -> None:
        """Keep workers on the study until there is nothing left for any, shipping what they write."""
        shipped = now = time.monotonic()
        times = 0
        while self._goes_on():
            self.pool.listen(stopping=bool(self.interrupts()) or self.is_over_time)
            self._poll(time.monotonic() - now)
            now = time.monotonic()
            self.listen({"event": "tick"}, self.progress)
            if self.interrupts() > times:
                times = self.interrupts()
                if times == 1:
                    self.commands.set_phase("stop")  # for workers of other commands
                self.pool.stop() if times == 1 else self.pool.kill()
            if now - shipped > SHIP_SECONDS:
                self._ship()
                self._hear_of_others()
                self.notifier.notify_if_idle(self.commands.state.phase)
                self.folder.write_elapsed(self.elapsed)
                shipped = time.monotonic()
        self.folder.write_elapsed(self.elapsed)

    def _poll(self, seconds: float) -> None:
        """Let time pass, and do what has been asked for since the last time."""
        is_idle = self.commands.state.phase == "pause" and not len(self.pool)
        if is_idle:
            self.progress.started += seconds  # how fast trials come is told without it
        else:
            self.elapsed += seconds
        if self.store.poll_commands():
            self.progress.follow(self.commands.state)
        self.is_over_time = self._is_time_over()
        if self.is_over_time and self.commands.state.phase == "run":
            self.commands.set_phase("over")  # for workers of other commands
            self.pool.stop()
        elif not self.is_over_time and self.commands.state.phase == "over":
            self.commands.set_phase("run")
        if self.pool.has_new_command and not self.interrupts() and self._has_work():
            self.pool.start()

    def _goes_on(self) -> bool:
        """Say whether there is somebody to listen to, or to wait for; else the study is closing."""
        if len(self.pool):
            return True
        now = self.commands.state
        if self.interrupts() and not (self.interrupts() == 1 and self.store.n_held()):
            self.commands.set_phase("closing")
            return False
        if now.phase == "pause" or self.store.n_held():  # by workers of other commands
            return True
        if now.phase == "run" and not self.pool.failures and self.store.n_running() and self._has_work():
            self.pool.forget_revisions()  # such a worker died, and nobody holds its trials
            return True
        return not self.commands.set_phase("closing", after=now.revision)

    def _hear(self, event: Event) -> None:
        """Take in what a worker says."""
        if "trial" in event:
            trial = event["cell"], event["trial"]
            is_away = event["event"] in ("ended", "lost", "requeued")
            self._ours.discard(trial) if is_away else self._ours.add(trial)
        self._take_in(event)
        if event["event"] == "requeued":
            self._rest(event)

    def _hear_of_others(self) -> None:
        """Take in what workers of other commands have left in the study's folder."""
        for event in self._feed.news():
            if event["event"] == "ended" or (event["cell"], event["trial"]) not in self._ours:
                self._take_in(event)

    def _take_in(self, event: Event) -> None:
        """Follow an event; an end that was heard from the worker stands in the folder too, and counts once."""
        if "trial" in event and (trial := (event["cell"], event["trial"])) in self._ended:
            return
        if event["event"] == "ended":
            self._ended.add(trial)
        self.notifier.note_event()
        self.progress.take_in(event)
        self.listen(event, self.progress)

    def _ship(self) -> list[str]:
        """Bring tracking up to date with every run, and return what it could not take: the next time it may."""
        refused = []
        for run in self.folder.runs():
            for each in self.shown:
                try:
                    each.ship(run.path)
                except TrackingUnavailable as error:
                    refused.append(str(error))
        return refused

    def _rest(self, event: Event) -> None:
        """Let tracking show the runs of a trial that was put away as waiting, with all their points."""
        for run in self.folder.runs_of(event["cell"], event["trial"]):
            with suppress(TrackingUnavailable):
                self.tracker.ship(run.path)
                self.tracker.wait(run.path)

    def _finish(self) -> StudyEnd:
        for _ in range(2):  # an end is told no earlier than the look after the one that found the run
            self._hear_of_others()
        errors = [*self.progress.errors, *self.pool.failures]
        if refused := self._ship():
            kept = f"what it lacks is kept in {self.folder.path} and sent when the study is run again"
            return StudyEnd(self.folder, "failed", [*errors, f"{refused[0]}; {kept}"])
        left = not self.is_over_time and any(each.running for each in self.store.counts())
        was_stopped = self.interrupts() or self.commands.state.phase == "stop"
        cut_short = (left or was_stopped) and self._has_work()
        status = "interrupted" if cut_short else "failed" if errors else "complete"
        summary = summarize(self.folder, status)
        try:
            for each in self.shown:
                each.close(summary)
            if self.folder.sample.exists():
                self.tracker.attach(self.folder.sample, "sample")
        except TrackingUnavailable as error:
            return StudyEnd(self.folder, "failed", [*errors, str(error)])
        return StudyEnd(self.folder, status, errors)


def _make(folder: StudyFolder) -> list[Path]:
    """Make the study's folder and return the folders that were not there, the innermost first."""
    missing = [each for each in (folder.path, *folder.path.parents) if not each.exists()]
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot write {folder.path}: {error.strerror}; --lab names another folder") from error
    return missing


def _unmake(folder: StudyFolder, made: list[Path]) -> None:
    """Remove the folders that `_make` made, but for what another study has put there since."""
    if folder.path in made:
        shutil.rmtree(folder.path)
    if folder.lab in made and not any((folder.lab / "studies").iterdir()):
        shutil.rmtree(folder.lab)
    for each in made:
        with suppress(OSError):
            each.rmdir()
