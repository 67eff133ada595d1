"""Run a study: check it, start its workers, bring their numbers to tracking, write the report.

The supervisor trains nothing. Workers share the trials among themselves through the store; what they write down
in their runs' folders is shipped from here, so tracking is never on the training path.
"""

from __future__ import annotations

import queue
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import Timeout

from sweeplab.errors import BadInput
from sweeplab.study.description import describe, summarise
from sweeplab.study.engines import Allotment, LocalEngine
from sweeplab.study.folder import StudyFolder
from sweeplab.study.identity import check_same_study, write_study
from sweeplab.study.plan import Plan, make_plan
from sweeplab.tracking.tracker import TRACKERS, Tracker, TrackingUnavailable

if TYPE_CHECKING:
    from sweeplab.study.spec import StudySpec
    from sweeplab.study.store import Store

Event = dict[str, Any]
SHIP_SECONDS = 5.0
POLL_SECONDS = 0.2


@dataclass
class Progress:
    """What the supervisor knows of a running study: enough for a view, and for the final word."""

    plan: Plan
    cells: dict[str, dict[str, Any]]
    live: dict[tuple[str, int], Event] = field(default_factory=dict)
    states: dict[str, int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    done_before: int = 0
    elapsed_before: float = 0.0

    @property
    def counted(self) -> int:
        """Return how many trials count towards the budget by now."""
        return sum(cell["counted"] for cell in self.cells.values())

    def take_in(self, event: Event) -> None:
        """Follow one event of a worker."""
        kind = event["event"]
        if kind in ("claimed", "evaluated", "ended", "lost"):
            trial = (event["cell"], event["trial"])
            if kind in ("ended", "lost"):
                self.live.pop(trial, None)
            else:
                self.live[trial] = event
        if kind == "ended":
            cell, outcome, value = self.cells[event["cell"]], event["outcome"], event["value"]
            self.states[outcome] = self.states.get(outcome, 0) + 1
            if outcome == "failed":
                self.errors.append(
                    f"trial {event['trial']} of {event['cell']} failed: {_last_line(event['error'])}"
                )
                return
            cell["counted"] += 1
            if outcome in ("complete", "stopped") and (cell["best"] is None or value < cell["best"]):
                cell["best"], cell["best_trial"] = value, event["trial"]
        elif kind == "error":
            self.errors.append(event["message"])


@dataclass(frozen=True)
class Ending:
    """How a study stands after it was run: `status` is complete, interrupted or failed."""

    folder: StudyFolder
    status: str
    errors: list[str]


def run_study(
    spec: StudySpec,
    lab: Path,
    listen: Callable[[Event, Progress], None] = lambda event, progress: None,
    interrupts: Callable[[], int] = lambda: 0,
) -> Ending:
    """Run a study to the end of its budget, or go on with it.

    `listen` hears every event of a worker and, several times a second, `{"event": "tick"}`. `interrupts` counts
    how often the user asked to stop: once puts the runs away at their next step, twice ends the workers at once.

    Raises:
        BadInput: the study cannot start, or another one of its name stands in the lab.
    """
    plan, cells, _ = make_plan(spec, lab)
    folder = StudyFolder(lab, spec.name)
    check_same_study(spec, folder, plan.data)
    made = _make(folder)
    with _only_one(folder):
        write_study(spec, folder, plan.data)
        from sweeplab.study.store import Store

        store = Store.create(spec, cells, plan.data["vocab_size"], folder.storage_url)
        tracker = TRACKERS["mlflow"](lab, spec.name, spec.track.uri)
        supervisor = _Supervisor(spec, folder, plan, store, tracker, listen, interrupts)
        try:
            return supervisor.run()
        except BadInput:
            _unmake(folder, made)
            raise


@contextmanager
def _only_one(folder: StudyFolder) -> Iterator[None]:
    """Hold the study for this process: two that ship the same runs would double them."""
    lock = folder.supervisor_lock
    try:
        lock.acquire()
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
        listen: Callable[[Event, Progress], None],
        interrupts: Callable[[], int],
    ) -> None:
        self.spec, self.folder, self.store, self.tracker = spec, folder, store, tracker
        self.listen, self.interrupts = listen, interrupts
        cells = {each.cell.key: {"counted": each.counted, "best": each.best} for each in store.counts()}
        self.progress = Progress(plan, cells)
        self.progress.done_before = self.progress.counted
        self.progress.elapsed_before = folder.elapsed_seconds
        self.engine = LocalEngine(folder, [Allotment(**each) for each in plan.workers])
        self.elapsed = folder.elapsed_seconds
        self.is_over_time = False

    def run(self) -> Ending:
        self._open_tracking()
        started = time.monotonic()
        try:
            if self._has_work() and not self.interrupts():
                self.engine.start()
            self._follow(started)
        finally:
            self.engine.kill()
        return self._finish()

    def _open_tracking(self) -> None:
        try:
            self.tracker.open(describe(self.spec, self.folder, self.progress.plan))
        except TrackingUnavailable as error:
            raise BadInput(f"{error}; track: {{uri: …}} or MLFLOW_TRACKING_URI name another place") from error

    def _has_work(self) -> bool:
        limit = self.spec.budget.trials_per_cell
        if self.spec.budget.time is not None and self.elapsed >= self.spec.budget.time:
            return False
        return any(each.running or limit is None or each.counted < limit for each in self.store.counts())

    def _follow(self, started: float) -> None:
        """Listen to the workers until the last has ended, shipping what they write."""
        shipped, asked = time.monotonic(), 0
        while len(self.engine):
            tick = time.monotonic() + POLL_SECONDS
            with suppress(queue.Empty):
                while (left := tick - time.monotonic()) > 0:
                    self._take_in(self.engine.events.get(timeout=left))
            self.listen({"event": "tick"}, self.progress)
            now = time.monotonic()
            limit = self.spec.budget.time
            if limit is not None and self.elapsed + now - started > limit and not self.is_over_time:
                self.is_over_time = True
                self.engine.stop()
            if (times := self.interrupts()) > asked:
                asked = times
                self.engine.stop() if times == 1 else self.engine.kill()
            if now - shipped > SHIP_SECONDS:
                self._ship()
                self.folder.write_elapsed(self.elapsed + now - started)
                shipped = time.monotonic()
        self.folder.write_elapsed(self.elapsed + time.monotonic() - started)

    def _take_in(self, event: Event) -> None:
        if event["event"] == "exited":
            stopping = bool(self.interrupts()) or self.is_over_time
            if lost := self.engine.exited(event["worker"], event["code"], stopping):
                self.progress.errors.append(lost)
        self.progress.take_in(event)
        self.listen(event, self.progress)

    def _ship(self) -> list[str]:
        """Bring tracking up to date with every run, and return what it could not take: the next time it may."""
        refused = []
        for run in self.folder.runs():
            try:
                self.tracker.ship(run.path)
            except TrackingUnavailable as error:
                refused.append(str(error))
        return refused

    def _finish(self) -> Ending:
        errors = list(self.progress.errors)
        if refused := self._ship():
            kept = f"what it lacks is kept in {self.folder.path} and sent when the study is run again"
            return Ending(self.folder, "failed", [*errors, f"{refused[0]}; {kept}"])
        left = not self.is_over_time and any(each.running for each in self.store.counts())
        cut_short = (left or self.interrupts()) and self._has_work()
        status = "interrupted" if cut_short else "failed" if errors else "complete"
        try:
            self.tracker.close(summarise(self.folder, status))
        except TrackingUnavailable as error:
            return Ending(self.folder, "failed", [*errors, str(error)])
        return Ending(self.folder, status, errors)


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


def _last_line(text: str | None) -> str:
    return (text or "").strip().splitlines()[-1] if text else ""
