"""Workers as processes on this machine, each tied to this process by a pipe: none outlives it, however it ends."""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psutil

from sweeplab.lab.events import WorkerExited
from sweeplab.records.folders import WorkerPlace
from sweeplab.sweep.engines import WorkerEngine, begin


class LocalEngine(WorkerEngine):
    """Starts worker processes on this machine."""

    is_here = True

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._processes: dict[int, subprocess.Popen[str]] = {}

    def start(self, indices: Sequence[int], since: float = 0.0) -> None:
        """Start processes; Ctrl-C, meant for the supervisor alone, is blocked in them until they ignore it themselves."""
        for index in indices:
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                process = begin(self.command(index), self.environment(index), self.log(index))
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            self._processes[index] = process
            threading.Thread(target=self._await_end, args=(index, process), daemon=True).start()

    def _await_end(self, index: int, process: subprocess.Popen[str]) -> None:
        assert process.stdin
        code = process.wait()
        process.stdin.close()
        del self._processes[index]
        self.events.put(WorkerExited(worker=index, code=code))

    def stop(self) -> None:
        """Close the processes' input: each saves its runs and exits."""
        for process in [*self._processes.values()]:
            if process.stdin:
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
            where = (socket.gethostname(), f"process {process.pid}", str(self.log(index)), why)
            places.append(WorkerPlace(index, "running", *where))
        return places
