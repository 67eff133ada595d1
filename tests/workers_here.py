"""Workers in threads of the test's own process, with the real store, runner, supervisor and tracking.

A worker's process costs its imports, 2.4 seconds of a processor each: tests have processes where those are the subject.
"""

import os
import socket
import threading
import traceback
from contextlib import contextmanager

import pytest

from sweeplab.lab.events import WorkerExited
from sweeplab.records.folders import WorkerPlace
from sweeplab.sweep import engines
from sweeplab.sweep.engines import WorkerEngine
from sweeplab.sweep.worker import Starter, work


class Here(Starter):
    """This process: no signal is heard, and no input read."""

    def __init__(self):
        self.closed = threading.Event()

    def follow(self, folder, commands):
        pass

    def exit_code(self, folder, commands):
        return 0


class ThreadEngine(WorkerEngine):
    """Runs each worker in a thread; who is killed is asked to leave."""

    is_here = True

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self._starters = {}
        self._threads = []

    def start(self, indices, since=0.0):
        for index in indices:
            self._starters[index] = Here()
            thread = threading.Thread(
                target=self._work, args=(index, self._starters[index]), daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _work(self, index, starter):
        code = 1
        with self.log(index).open("a") as log:
            try:
                code = work(starter, self.folder, self.resources[index].threads)
            except Exception:
                log.write(traceback.format_exc())
        del self._starters[index]
        self.events.put(WorkerExited(worker=index, code=code))

    def stop(self):
        for starter in [*self._starters.values()]:
            starter.closed.set()

    kill = stop

    def close(self):
        for thread in self._threads:
            thread.join()

    def places(self):
        host, name = socket.gethostname(), f"process {os.getpid()}"
        return [
            WorkerPlace(index, "running", host, name, str(self.log(index)))
            for index in [*self._starters]
        ]


@contextmanager
def workers_here():
    """Let studies of engine local have their workers in this process."""
    import torch

    n_threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "LocalEngine", ThreadEngine)
        yield
    torch.set_num_threads(n_threads)
