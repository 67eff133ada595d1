"""The worker pool: decides when a worker is started, replaced or given up; an engine does the rest."""

from __future__ import annotations

import queue
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from sweeplab.errors import BadInput
from sweeplab.lab.events import Event, TrialEnded, WorkerDone, WorkerExited
from sweeplab.records.runs import RunState
from sweeplab.sweep.engines.base import LEFT, NO_REVISION, REFUSED, UNSEEN, WorkerEngine
from sweeplab.train.devices import n_out_of_memory

if TYPE_CHECKING:
    from sweeplab.sweep.trials.store import Store

POLL_SECONDS = 0.2
# How long workers that have lost the storage may take to save their runs.
LEAVE_SECONDS = 60.0
# After so many workers that die the same way, with no trial finished between, no more are started.
MOST_ALIKE = 5


class WorkerPool:
    """The workers that this process keeps on a study, in step with the study's commands.

    A worker that has nothing to do, or has to pause, exits, which frees all that it held, GPU memory included. It
    reports which revision of the commands it knew; a later command starts it again. A worker that dies is replaced,
    unless MOST_ALIKE died the same way with no trial finished between. `on_event` gets every event, with the index of
    its `worker`. `shortage` says by how much runs exceed the memory, if they do.
    """

    def __init__(
        self, engine: WorkerEngine, store: Store, on_event: Callable[[Event], None], shortage: str = ""
    ) -> None:
        self._shortage, self._n_out_of_memory = shortage, n_out_of_memory()
        self._engine, self._store, self._on_event = engine, store, on_event
        # The revision of the commands that each exited worker knew, and that each running one certainly knows.
        self._exited = dict.fromkeys(range(len(engine.resources)), NO_REVISION)
        self._known: dict[int, int] = {}
        self._deaths: list[str] = []  # how workers died since the last trial that did not fail
        self.failures: list[str] = []

    def __len__(self) -> int:
        return len(self._known)

    @property
    def has_new_command(self) -> bool:
        """Return whether the study should run and has a command that some exited worker does not know."""
        state = self._store.commands.state
        return state.phase == "run" and any(known < state.revision for known in self._exited.values())

    def start(self) -> None:
        """Start the exited workers that do not know the latest command."""
        revision = self._store.commands.state.revision
        self._start([index for index, known in self._exited.items() if known < revision])

    def _start(self, indices: Sequence[int]) -> None:
        state = self._store.commands.state
        for index in indices:
            self._exited.pop(index, None)
            self._known[index] = state.revision
        self._engine.start(indices, state.start.given)

    def forget_revisions(self) -> None:
        """Let the next `start` start every worker that has exited."""
        self._exited = dict.fromkeys(self._exited, NO_REVISION)

    def listen(self, stopping: bool) -> None:
        """Handle the workers' events for POLL_SECONDS; replace a worker that dies, unless all are `stopping`."""
        tick = time.monotonic() + POLL_SECONDS
        with suppress(queue.Empty):
            while (left := tick - time.monotonic()) > 0:
                event = self._engine.events.get(timeout=left)
                match event:
                    case WorkerDone(worker=int(index)):
                        self._known[index] = event.revision
                    case WorkerExited(worker=int(index)):
                        self._handle_exit(index, event.code, stopping)
                    case TrialEnded():
                        self.note_end(event)
                self._on_event(event)

    def note_end(self, event: TrialEnded) -> None:
        """Record that a trial has ended, so that deaths of workers before it do not count as in a row."""
        if event.ending.outcome is not RunState.FAILED:
            self._deaths.clear()

    def _handle_exit(self, index: int, code: int, stopping: bool) -> None:
        known = self._known.pop(index)
        if code in (0, LEFT) or stopping:
            self._exited[index] = {0: known}.get(code, NO_REVISION)
            return
        if code == UNSEEN and not self._known and not any(self._engine.folder.runs()):
            raise BadInput(self._engine.last_words(index))
        death = f"code {code}: {self._engine.last_words(index)}"
        if code == -signal.SIGKILL and (self._shortage or n_out_of_memory() > self._n_out_of_memory):
            why = self._shortage or "the kernel has killed processes to free memory"
            death = f"code {code}: probably out of memory: {why}"
        self._deaths.append(death)
        if code not in (REFUSED, UNSEEN) and self._deaths.count(death) < MOST_ALIKE:
            self._start([index])
            return
        n_alike = f"{MOST_ALIKE} workers in a row died the same way; " * (code not in (REFUSED, UNSEEN))
        self.failures.append(f"{n_alike}worker {index} ended with {death} (see {self._engine.log(index)})")

    def leave(self) -> None:
        """Let every worker save its runs and exit after the storage is lost, without reporting to it."""
        self._engine.stop()
        ends = time.monotonic() + LEAVE_SECONDS
        while len(self) and time.monotonic() < ends:
            self.listen(stopping=True)
