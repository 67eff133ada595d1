"""The contract of an engine: start n workers, report each one's end, stop and kill them, report where each runs.

An engine has no policy: the worker pool decides whether a worker that ended is restarted. Workers are identified by
their index. An engine puts on `events`, from any thread, one `WorkerExited` for every started worker once it has ended.

Workers report their trials through run folders, which the supervisor reads. Each engine is a file here, which is
imported only where a study asks for it, as its libraries may not be installed; local processes are at the end here.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from sweeplab.files import opened, read_bytes
from sweeplab.lab.events import Event, WorkerExited
from sweeplab.processes import python, python_environment
from sweeplab.records.folders import StudyFolder, WorkerPlace
from sweeplab.study.plan import WorkerResources
from sweeplab.study.spec import Engine

# The class of each engine type. A study file names the type; study/spec.py lists the keys of each.
ENGINES = {"local": "LocalEngine", "slurm": "SlurmEngine", "ray": "RayEngine"}
# The revision of the study's commands that a stopped or dead worker is said to know: any command restarts it.
NO_REVISION = -1
# The exit code of a worker that refused the study, or has lost its storage: restarting it is no use.
REFUSED = 2
# The exit code of a worker that does not see the study's folder from its machine.
UNSEEN = 66
# The exit code of a worker whose machine asked it to leave, once its runs are saved: it may be restarted elsewhere.
LEFT = 75
# The environment variable with a worker's index.
NUMBER = "SWEEPLAB_WORKER"
# The environment of a worker's libraries.
SETTINGS = {
    # How long one of torch's threads waits for work before it sleeps. With GNU's default of 300,000 a step under load
    # took ten times as long as with this value; with a passive wait an undisturbed step took 1.7 times as long.
    "GOMP_SPINCOUNT": "10000",
    # Without it MKL, on some processors, chooses its matrix-product kernel by the memory address of the operands: then
    # the bits of a run depend on its row in the stack.
    "MKL_CBWR": "AUTO",
    # Keep a step's memory for the next one. glibc returns large blocks each time, and fresh pages then cost 5% of a
    # step of 1.4M parameters, 11% with dropout.
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
}


def engine_class(name: str) -> type[WorkerEngine]:
    """Return the class of an engine type."""
    place = __name__ if name == "local" else f"{__name__}.{name}"
    engine: type[WorkerEngine] = getattr(import_module(place), ENGINES[name])
    return engine


def begin(
    words: Sequence[str], environment: Mapping[str, str], log: Path
) -> subprocess.Popen[str]:
    """Start a worker's process; at the end of its input, a pipe, it saves its runs and exits."""
    with opened(log, "ab") as printed:
        return subprocess.Popen(
            python(*words),
            stdin=subprocess.PIPE,
            stdout=printed,
            stderr=printed,
            text=True,
            env=environment,
        )


class WorkerEngine(ABC):
    """Starts the workers of one study, each with the resources of its index."""

    # Whether its workers run on this machine and use its resources.
    is_here: ClassVar[bool] = False

    def __init__(
        self, folder: StudyFolder, spec: Engine, resources: Sequence[WorkerResources]
    ) -> None:
        self.folder = folder
        self.spec = spec
        self.resources = resources
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    @classmethod  # noqa: B027 - most need nothing
    def check(cls, spec: Engine) -> None:
        """Make sure that the engine can start workers from here.

        Raises:
            BadInput: it cannot; the message names what is missing, and the cure.
        """

    @staticmethod  # noqa: B027 - for engines whose workers only the pool restarts
    def come_back() -> None:
        """Ask the engine to restart this process, a worker that ends with LEFT.

        If the engine cannot, it reports that exit code of a worker, and the pool starts another one.
        """

    @abstractmethod
    def start(self, indices: Sequence[int], since: float = 0.0) -> None:
        """Start workers that are not running; returns before they run.

        `since` is the time at which their supervisor started: they do not work for another one.
        """

    @abstractmethod
    def stop(self) -> None:
        """Ask every worker to save its runs at its next step and exit; one that has not begun does not begin."""

    @abstractmethod
    def kill(self) -> None:
        """Kill every worker; returns before they have ended."""

    @abstractmethod
    def places(self) -> list[WorkerPlace]:
        """Return the place of every worker that was started and has not ended, by index."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release the engine's own resources; by then every worker has ended or was killed."""

    def log(self, index: int) -> Path:
        """Return a worker's log file."""
        return self.folder.path / f"worker-{index}.log"

    def last_words(self, index: int) -> str:
        """Return the last line of a worker's log."""
        try:
            text = read_bytes(self.log(index)).decode("utf-8", "replace").strip()
        except OSError as error:
            return f"its log cannot be read: {error.strerror}"
        return (text or "its log is empty").splitlines()[-1]

    def unseen_from(self, node: str | None) -> str:
        """Return that a node does not see the lab, and what helps."""
        cure = "several nodes need a lab on a disk that all of them share (--lab, SWEEPLAB_LAB)"
        return f"{node} does not see {self.folder.lab}: {cure}"

    def command(self, index: int, since: float | None = None) -> list[str]:
        """Return the arguments for Python that start a worker; with `since`, a worker without a pipe."""
        options: list[str] = []
        if since is not None:
            options += [f"--engine={self.spec.type}", f"--since={since!r}"]
        threads = str(self.resources[index].threads)
        return [
            "-m",
            "sweeplab.sweep.worker",
            *options,
            "--",
            str(self.folder.lab),
            self.folder.name,
            threads,
        ]

    def environment(self, index: int, base: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return the environment of a worker, derived from `base`."""
        resources = self.resources[index]
        threads = str(resources.threads)
        variables = python_environment(
            base, **SETTINGS, OMP_NUM_THREADS=threads, MKL_NUM_THREADS=threads
        )
        variables[NUMBER] = str(index)
        if resources.gpu is not None:
            visible = base.get("CUDA_VISIBLE_DEVICES", "").replace(",", " ").split()
            variables["CUDA_VISIBLE_DEVICES"] = (
                visible[resources.gpu] if visible else str(resources.gpu)
            )
        elif not (self.is_here or self.spec.gpus_per_worker):
            # All train on the same kind of device, wherever they run.
            variables["CUDA_VISIBLE_DEVICES"] = ""
        return variables


class LocalEngine(WorkerEngine):
    """Starts workers as processes on this machine, each tied to this process by a pipe: none outlives it."""

    is_here = True

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._processes: dict[int, subprocess.Popen[str]] = {}

    def start(self, indices: Sequence[int], since: float = 0.0) -> None:
        """Start processes, in which Ctrl-C, meant for the supervisor alone, is blocked until they ignore it."""
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
        """Return the processes."""
        places = []
        for index, process in sorted(self._processes.copy().items()):
            where = (socket.gethostname(), f"process {process.pid}", str(self.log(index)))
            places.append(WorkerPlace(index, "running", *where))
        return places
