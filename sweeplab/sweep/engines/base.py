"""What every engine does: start n workers, tell of each one's end, stop and kill them, say where each runs.

An engine has no policy: whether a worker that ended is started again is for the worker pool to say. A worker is told
apart by its index. What happens is put on `events`, from any thread: what a worker says, if there is a pipe, and in
any case one `WorkerExited` for every worker that was started, once it has ended.

Of its trials a worker without a pipe tells by their runs' folders alone, which the supervisor reads.
"""

from __future__ import annotations

import os
import queue
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from sweeplab.lab.events import Event
from sweeplab.records.folders import StudyFolder, WorkerPlace
from sweeplab.study.plan import WorkerResources
from sweeplab.study.spec import Engine

__all__ = [
    "BEGIN",
    "LEAVE",
    "LEFT",
    "NO_REVISION",
    "REFUSED",
    "SETTINGS",
    "UNSEEN",
    "WorkerEngine",
    "WorkerPlace",
]

WORKER = "sweeplab.sweep.work.worker"
# What a worker that was stopped, or died, has followed of the study's commands: any command starts it again.
NO_REVISION = -1
# The exit code of a worker that refused the study, or has lost its storage: starting it again is no use.
REFUSED = 2
# Of a worker that does not see the study's folder from where it runs.
UNSEEN = 66
# Of one that was asked to leave by its machine, and has put its runs away: the study goes on, and so may the worker.
LEFT = 75
# The lines on a worker's input that let it work, and that ask it to save its runs and end, as the input's end does.
BEGIN, LEAVE = "begin\n", "leave\n"
# The environment of a worker's libraries.
SETTINGS = {
    # How long a thread of torch's waits for work before it sleeps. With GNU's own 300,000 a step under load took
    # ten times as long as with this; with a passive wait an undisturbed one took 1.7 times as long.
    "GOMP_SPINCOUNT": "10000",
    # Without it MKL chooses a product by where in memory its operands lie, on some processors: then the bits of a run
    # depend on its row in the stack.
    "MKL_CBWR": "AUTO",
    # Memory of a step is kept for the next one. Given back each time, as glibc does with large pieces, it came in
    # new pages: 5% of a step of 1.4M parameters, 11% with dropout.
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
}


class WorkerEngine(ABC):
    """Starts the workers of one study, each with the resources of its index; `name` begins the names of their logs."""

    # Whether its workers run on this machine, and take their part of it.
    is_here: ClassVar[bool] = False

    def __init__(
        self,
        folder: StudyFolder,
        spec: Engine,
        resources: Sequence[WorkerResources],
        name: str = "worker",
        force: bool = False,
    ) -> None:
        self.folder, self.spec, self.resources = folder, spec, resources
        self.name, self.force = name, force
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    @classmethod  # noqa: B027 - most need nothing
    def check(cls, spec: Engine) -> None:
        """Make sure that the engine can start workers from here.

        Raises:
            BadInput: it cannot; says what is missing, and the cure.
        """

    @staticmethod  # noqa: B027 - where the pool alone starts workers again
    def come_back() -> None:
        """Let this worker, which was asked to leave and ends with LEFT, be started again where the engine can.

        Called in the worker itself. Else its end is told with that code, and the pool starts another one.
        """

    def prepare(self, indices: Sequence[int]) -> None:  # noqa: B027 - elsewhere a machine is taken only to train
        """Let workers get ready, where that takes nothing from anyone: they claim no trial before they are started."""

    @abstractmethod
    def start(self, indices: Sequence[int], since: float = 0.0) -> None:
        """Start workers that are not running; returns before they do.

        `since` is when the supervisor started that they belong to: under another one they do not go on.
        """

    @abstractmethod
    def stop(self) -> None:
        """Ask every worker to save its runs at its next step and end; one that has not begun does not begin."""

    @abstractmethod
    def kill(self) -> None:
        """End every worker at once; returns before they have ended."""

    @abstractmethod
    def places(self) -> list[WorkerPlace]:
        """Return where each worker is that was started and has not ended, in the order of their indices."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Let go of what the engine itself holds; no worker is left by then, or all were killed."""

    def log(self, index: int) -> Path:
        """Return the file that has what a worker writes."""
        return self.folder.path / f"{self.name}-{index}.log"

    def last_words(self, index: int) -> str:
        """Return the last line of a worker's log."""
        try:
            lines = self.log(index).read_text(encoding="utf-8", errors="replace").strip().splitlines()
        except OSError as error:
            return f"its log cannot be read: {error.strerror}"
        return lines[-1] if lines else "its log is empty"

    def command(self, index: int, since: float | None = None) -> list[str]:
        """Return what starts a worker, after the Python that runs it; with `since`, one without pipes."""
        options = ["--force"] if self.force else []
        options += [] if since is None else [f"--engine={self.spec.type}", f"--since={since!r}"]
        threads = str(self.resources[index].threads)
        return ["-m", WORKER, *options, "--", str(self.folder.lab), self.folder.name, threads]

    def environment(self, index: int, base: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return the environment of a worker where this process has `base`."""
        resources = self.resources[index]
        threads = str(resources.threads)
        environment = {**base, **SETTINGS, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        if resources.gpu is not None:
            visible = [
                each.strip() for each in base.get("CUDA_VISIBLE_DEVICES", "").split(",") if each.strip()
            ]
            environment["CUDA_VISIBLE_DEVICES"] = visible[resources.gpu] if visible else str(resources.gpu)
        return environment
