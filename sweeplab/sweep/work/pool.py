"""The workers that one process keeps on a study, in step with what is asked of it.

A worker that has nothing to do, or is to pause, ends: all that it held is free then, a GPU's memory too. It says
up to which order it had read; a command after that one starts it again.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from sweeplab.lab.feed import Event
from sweeplab.sweep.work.worker import TOLD_TO_LEAVE

if TYPE_CHECKING:
    from sweeplab.sweep.trials.store import Store
    from sweeplab.sweep.work.engines import LocalEngine

POLL_SECONDS = 0.2


class WorkerPool:
    """Workers of one engine on one store; `hear` receives every event of theirs."""

    def __init__(self, engine: LocalEngine, store: Store, hear: Callable[[Event], None]) -> None:
        self._engine, self._store, self._hear = engine, store, hear
        # The workers that are not at work, and the last command that each had read.
        self._away = dict.fromkeys(range(engine.size), TOLD_TO_LEAVE)
        self._done: dict[int, int] = {}
        self.failures: list[str] = []

    def __len__(self) -> int:
        return len(self._engine)

    @property
    def is_wanted(self) -> bool:
        """Say whether the study is to run and has got a command that some worker left without knowing of."""
        now = self._store.commands.state
        return now.phase == "run" and any(seen < now.revision for seen in self._away.values())

    def start(self) -> None:
        """Start the workers that a command has come for since they left."""
        revision = self._store.commands.state.revision
        for index in [index for index, seen in self._away.items() if seen < revision]:
            del self._away[index]
            self._engine.start(index)

    def recall(self) -> None:
        """Let the next `start` start every worker that is away."""
        self._away = dict.fromkeys(self._away, TOLD_TO_LEAVE)

    def listen(self, stopping: bool) -> None:
        """Hear the workers for some time; one that dies, unless all are `stopping`, is replaced."""
        tick = time.monotonic() + POLL_SECONDS
        with suppress(queue.Empty):
            while (left := tick - time.monotonic()) > 0:
                self._take_in(self._engine.events.get(timeout=left), stopping)

    def _take_in(self, event: Event, stopping: bool) -> None:
        worker = event.get("worker", 0)
        if event["event"] == "done":
            self._done[worker] = event["revision"]
        elif event["event"] == "exited":
            if lost := self._engine.exited(worker, event["code"], stopping):
                self.failures.append(lost)
            elif event["code"] == 0 or stopping:
                self._away[worker] = self._done.pop(worker, TOLD_TO_LEAVE)
        self._hear(event)

    def stop(self) -> None:
        """Ask every worker to put its runs away at the next step and end."""
        self._engine.stop()

    def kill(self) -> None:
        """End every worker at once."""
        self._engine.kill()
