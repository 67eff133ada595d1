"""Workers as processes on this machine, each tied to this process by pipes: none outlives it, however it ends."""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psutil

from sweeplab.files import opened
from sweeplab.lab.events import WorkerExited, read_event
from sweeplab.processes import python
from sweeplab.sweep.engines.base import BEGIN, WorkerEngine, WorkerPlace


@contextmanager
def _without(blocked: signal.Signals) -> Iterator[None]:
    """Block a signal in this thread, and in the processes that it starts."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {blocked})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class LocalEngine(WorkerEngine):
    """Starts worker processes on this machine."""

    is_here = True

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._processes: dict[int, subprocess.Popen[str]] = {}
        self._prepared: set[int] = set()  # processes not told to work yet, even if they have died

    def prepare(self, indices: Sequence[int]) -> None:
        """Start processes that import what they need and wait for a line before they work.

        Ctrl-C is meant for the supervisor alone: it is blocked in them until they ignore it themselves.
        """
        for index in indices:
            with opened(self.log(index), "ab") as log, _without(signal.SIGINT):
                process = subprocess.Popen(
                    python(*self.command(index)),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env=self.environment(index),
                )
            self._processes[index] = process
            self._prepared.add(index)
            threading.Thread(target=self._read, args=(index, process), daemon=True).start()

    def start(self, indices: Sequence[int], since: float = 0.0) -> None:
        """Let prepared processes work, and start those that are missing."""
        self.prepare([index for index in indices if index not in self._prepared])
        self._prepared.difference_update(indices)
        for index in indices:
            process = self._processes.get(index)
            if process and process.stdin and not process.stdin.closed:
                with suppress(OSError):  # it has died, which `_read` reports
                    process.stdin.write(BEGIN)
                    process.stdin.flush()

    def _read(self, index: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout and process.stdin
        for line in process.stdout:
            with suppress(ValueError):  # a line that a kill has torn
                self.events.put(read_event(line, index))
        code = process.wait()
        process.stdout.close()
        process.stdin.close()
        del self._processes[index]
        self.events.put(WorkerExited(worker=index, code=code))

    def stop(self) -> None:
        """Close the processes' input: each saves its runs and exits."""
        for process in [*self._processes.values()]:
            if process.stdin and not process.stdin.closed:
                process.stdin.close()

    def kill(self) -> None:
        """Kill the processes."""
        for process in [*self._processes.values()]:
            process.kill()

    def places(self) -> list[WorkerPlace]:
        """Return the processes; `why` says of one that a signal has stopped how to continue it."""
        places = []
        for index, process in sorted(self._processes.copy().items()):
            why = ""
            with suppress(psutil.Error):
                if psutil.Process(process.pid).status() == psutil.STATUS_STOPPED:
                    why = f"stopped by a signal: kill -CONT {process.pid} continues it"
            name = f"process {process.pid}"
            places.append(
                WorkerPlace(index, "running", socket.gethostname(), name, str(self.log(index)), why)
            )
        return places
