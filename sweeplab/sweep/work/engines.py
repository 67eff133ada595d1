"""What starts workers. The local engine runs them as processes of this machine."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sweeplab.records.folders import StudyFolder
from sweeplab.study.resources import WorkerResources
from sweeplab.sweep.work.worker import REFUSED

MOST_RESTARTS = 3
# What a worker's libraries are told.
SETTINGS = {
    # How long a thread of torch's waits for work before it sleeps. With GNU's own 300,000 a step under load took
    # ten times as long as with this; with a passive wait an undisturbed one took 1.7 times as long.
    "GOMP_SPINCOUNT": "10000",
    # Memory of a step is kept for the next one. Given back each time, as glibc does with large pieces, it came in
    # new pages: 5% of a step of 1.4M parameters, 11% with dropout.
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
}


class LocalEngine:
    """Worker processes of this machine; `events` receives what they say, each with its `worker` number.

    `name` begins the names of their logs. With `force` they work whatever code and data others work with.
    """

    def __init__(
        self,
        folder: StudyFolder,
        worker_resources: list[WorkerResources],
        name: str = "worker",
        force: bool = False,
    ) -> None:
        self._folder = folder
        self._name, self._more = name, ["--force"] if force else []
        self._resources = worker_resources
        self._processes: dict[int, subprocess.Popen[str]] = {}
        self._restarts = 0
        self.events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def __len__(self) -> int:
        return len(self._processes)

    @property
    def size(self) -> int:
        """Return how many workers there are when all are at work."""
        return len(self._resources)

    def start(self, index: int) -> None:
        """Start a worker."""
        resources = self._resources[index]
        command = [sys.executable, "-m", "sweeplab.sweep.work.worker"]
        command += [str(self._folder.lab), self._folder.name, str(resources.threads), *self._more]
        with self._log(index).open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=_environment(os.environ, resources),
            )
        self._processes[index] = process
        threading.Thread(target=self._listen, args=(index, process), daemon=True).start()

    def _listen(self, index: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with suppress(ValueError):  # a line that a kill has torn
                self.events.put({"worker": index, **json.loads(line)})
        self.events.put({"worker": index, "event": "exited", "code": process.wait()})

    def exited(self, index: int, code: int, stopping: bool) -> str | None:
        """Take note that a worker ended; start another in its place if it died, or say why it is lost."""
        process = self._processes.pop(index)
        for stream in (process.stdin, process.stdout):
            if stream:
                stream.close()
        if code == 0 or stopping:
            return None
        if code != REFUSED and self._restarts < MOST_RESTARTS:
            self._restarts += 1
            self.start(index)
            return None
        log = self._log(index)
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"worker {index} ended with code {code}: {lines[-1] if lines else 'no word'} (see {log})"

    def _log(self, index: int) -> Path:
        return self._folder.path / f"{self._name}-{index}.log"

    def stop(self) -> None:
        """Ask every worker to put its runs away at the next step and end."""
        for process in self._processes.values():
            if process.stdin and not process.stdin.closed:
                process.stdin.close()

    def kill(self) -> None:
        """End every worker at once; their trials go on from the last checkpoint when the study is run again."""
        for process in self._processes.values():
            process.kill()


def _environment(base: Mapping[str, str], resources: WorkerResources) -> dict[str, str]:
    threads = str(resources.threads)
    given = {**SETTINGS, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    if resources.gpu is not None:
        visible = [each.strip() for each in base.get("CUDA_VISIBLE_DEVICES", "").split(",") if each.strip()]
        given["CUDA_VISIBLE_DEVICES"] = visible[resources.gpu] if visible else str(resources.gpu)
    return {**base, **given}
