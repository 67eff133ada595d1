"""Worker processes: the pool that a process keeps on a study, and what one worker does.

A worker is `python -m sweeplab.sweep.work.worker LAB NAME THREADS [--force]`. It prints one JSON object per line for
the process that started it. Once its standard input is closed, or one of LEAVING_SIGNALS has come, it saves its runs at
the next step and exits: so it never outlives that process, however that ends. A second signal ends it at once. It
refuses a study that others train with other code or data, except with `--force`.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from sweeplab.errors import StorageUnavailable
from sweeplab.lab.events import (
    Event,
    StudyNotice,
    TrialEnded,
    WorkerDone,
    WorkerExited,
    WorkerReady,
    event_line,
    read_event,
)
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import RunState
from sweeplab.study.plan import WorkerResources
from sweeplab.train.devices import n_out_of_memory

if TYPE_CHECKING:
    from sweeplab.sweep.trials.store import Store

# The exit code of a worker that refused the study, or has lost its storage: starting it again is no use.
REFUSED = 2
# A worker that was stopped, or died, has followed no command to its end: any command starts it again.
NO_REVISION = -1
POLL_SECONDS = 0.2
# How long workers that have lost the storage may take to save their runs.
LEAVE_SECONDS = 60.0
# So many workers that die alike, with no trial finished between, are the last.
MOST_ALIKE = 5
# What a batch system sends before it ends a job, or takes its machine away; SIGHUP, when the terminal has gone.
LEAVING_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
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


class WorkerPool:
    """The workers that this process keeps on a study, in step with the study's commands.

    A worker that has nothing to do, or is to pause, exits, which frees all that it held, a GPU's memory too. It says
    which revision of the commands it knew; a later command starts it again. A worker that dies is replaced, unless
    MOST_ALIKE died alike with no trial finished between. `on_event` gets every event, with the number of its
    `worker`. `name` begins the names of the logs. `shortage` says by how much runs exceed the memory, if they do.
    """

    def __init__(
        self,
        folder: StudyFolder,
        resources: Sequence[WorkerResources],
        store: Store,
        on_event: Callable[[Event], None],
        name: str = "worker",
        force: bool = False,
        shortage: str = "",
    ) -> None:
        self._shortage, self._n_out_of_memory = shortage, n_out_of_memory()
        self._folder, self._resources, self._store, self._on_event = folder, resources, store, on_event
        self._name, self._options = name, ["--force"] if force else []
        self._processes: dict[int, subprocess.Popen[str]] = {}
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        # The revision that each worker without a process knew, and that each says it knows before it exits.
        self._exited = dict.fromkeys(range(len(resources)), NO_REVISION)
        self._done: dict[int, int] = {}
        self._deaths: list[str] = []  # how workers died since the last trial that did not fail
        self.failures: list[str] = []

    def __len__(self) -> int:
        return len(self._processes)

    @property
    def has_new_command(self) -> bool:
        """Say whether the study is to run and was given a command that some worker exited without knowing."""
        state = self._store.commands.state
        return state.phase == "run" and any(known < state.revision for known in self._exited.values())

    def start(self) -> None:
        """Start the workers that exited without knowing the latest command."""
        revision = self._store.commands.state.revision
        for index in [index for index, known in self._exited.items() if known < revision]:
            del self._exited[index]
            self._start(index)

    def forget_revisions(self) -> None:
        """Let the next `start` start every worker that has exited."""
        self._exited = dict.fromkeys(self._exited, NO_REVISION)

    def _start(self, index: int) -> None:
        resources = self._resources[index]
        arguments = [str(self._folder.lab), self._folder.name, str(resources.threads), *self._options]
        with self._log(index).open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "sweeplab.sweep.work.worker", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=_environment(os.environ, resources),
            )
        self._processes[index] = process
        threading.Thread(target=self._read, args=(index, process), daemon=True).start()

    def _read(self, index: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with suppress(ValueError):  # a line that a kill has torn
                self._events.put(read_event(line, index))
        self._events.put(WorkerExited(worker=index, code=process.wait()))

    def listen(self, stopping: bool) -> None:
        """Handle the workers' events for some time; one that dies, unless all are `stopping`, is replaced."""
        tick = time.monotonic() + POLL_SECONDS
        with suppress(queue.Empty):
            while (left := tick - time.monotonic()) > 0:
                event = self._events.get(timeout=left)
                match event:
                    case WorkerDone(worker=int(index)):
                        self._done[index] = event.revision
                    case WorkerExited(worker=int(index)):
                        self._handle_exit(index, event.code, stopping)
                    case TrialEnded() if event.ending.outcome is not RunState.FAILED:
                        self._deaths.clear()
                self._on_event(event)

    def _handle_exit(self, index: int, code: int, stopping: bool) -> None:
        process = self._processes.pop(index)
        for stream in (process.stdin, process.stdout):
            if stream:
                stream.close()
        if code == 0 or stopping:
            self._exited[index] = self._done.pop(index, NO_REVISION)
            return
        log = self._log(index)
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        death = f"code {code}: {lines[-1] if lines else 'its log is empty'}"
        if code == -signal.SIGKILL and (self._shortage or n_out_of_memory() > self._n_out_of_memory):
            said = self._shortage or "the kernel has ended processes for want of it"
            death = f"code {code}: out of memory, probably: {said}"
        self._deaths.append(death)
        if code != REFUSED and self._deaths.count(death) < MOST_ALIKE:
            self._start(index)
            return
        n_alike = "" if code == REFUSED else f"{MOST_ALIKE} workers in a row ended alike; "
        self.failures.append(f"{n_alike}worker {index} ended with {death} (see {log})")

    def _log(self, index: int) -> Path:
        return self._folder.path / f"{self._name}-{index}.log"

    @property
    def waited_for(self) -> str:
        """Say which workers there still are, and which of them a signal has stopped."""
        words = []
        for index, process in sorted(self._processes.items()):
            word = f"worker {index} (process {process.pid})"
            with suppress(psutil.Error):
                if psutil.Process(process.pid).status() == psutil.STATUS_STOPPED:
                    word += f", which a signal has stopped: kill -CONT {process.pid} lets it go on"
            words.append(word)
        return "; ".join(words)

    def stop(self) -> None:
        """Ask every worker to save its runs at the next step and exit."""
        for process in self._processes.values():
            if process.stdin and not process.stdin.closed:
                process.stdin.close()

    def leave(self) -> None:
        """Let every worker save its runs and exit, though the storage, which is lost, is not told of it."""
        self.stop()
        ends = time.monotonic() + LEAVE_SECONDS
        while self._processes and time.monotonic() < ends:
            self.listen(stopping=True)

    def kill(self) -> None:
        """Kill every worker; their trials continue from the last checkpoint when the study is run again."""
        for process in self._processes.values():
            process.kill()


def _environment(base: Mapping[str, str], resources: WorkerResources) -> dict[str, str]:
    threads = str(resources.threads)
    environment = {**base, **SETTINGS, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    if resources.gpu is not None:
        visible = [each.strip() for each in base.get("CUDA_VISIBLE_DEVICES", "").split(",") if each.strip()]
        environment["CUDA_VISIBLE_DEVICES"] = visible[resources.gpu] if visible else str(resources.gpu)
    return environment


def leaving_signals() -> list[signal.Signals]:
    """Return the signals at which this process puts its runs away: not those that it was started to ignore (nohup)."""
    return [each for each in LEAVING_SIGNALS if signal.getsignal(each) != signal.SIG_IGN]


def main(lab: str, name: str, threads: str, force: str = "") -> int:
    """Work on a study until it has no more trials or standard input is closed; return the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor is interrupted, and closes our input
    closed = threading.Event()
    signaled = threading.Event()

    def hear(_number: int, _frame: object) -> None:
        if signaled.is_set():
            os._exit(1)
        signaled.set()
        closed.set()

    for each in leaving_signals():
        signal.signal(each, hear)

    def wait_for_close() -> None:
        sys.stdin.read()
        closed.set()

    threading.Thread(target=wait_for_close, daemon=True).start()

    # Whatever else prints goes to the log: our output is for events alone.
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def emit(event: Event) -> None:
        try:
            print(event_line(event), file=events, flush=True)
        except BrokenPipeError:  # nobody listens any more: save the runs, and fail none of them
            closed.set()

    import torch

    from sweeplab.lab.identity import version_differences, versions
    from sweeplab.runs.generating import keep_sample
    from sweeplab.study.inputs import study_dataset
    from sweeplab.sweep.trials.availability import OUTAGE_SECONDS
    from sweeplab.sweep.trials.store import open_store
    from sweeplab.sweep.work.runner import Runner

    torch.set_num_threads(int(threads))
    folder = StudyFolder(Path(lab), name)
    # By their digests: whoever runs the study has allowed them.
    store = open_store(folder, allow_plugins=True)
    dataset = study_dataset(store.spec)
    theirs = store.commands.state.start.versions
    if not force and (different := version_differences(versions(dataset.token_digest), theirs)):
        others = "the study's other workers have another version of"
        print(f"{others} {', '.join(different)}; --force works with them all the same", file=sys.stderr)
        return REFUSED
    emit(WorkerReady())
    store.availability.limit, store.availability.stopping = OUTAGE_SECONDS, closed.is_set
    store.availability.say = lambda message: emit(StudyNotice(message=message))
    try:
        Runner(store.spec, store, dataset, folder, emit, closed.is_set).work()
    except StorageUnavailable as error:
        with suppress(OSError):  # on a full disk the log has no room either
            print(error, file=sys.stderr, flush=True)
        return REFUSED
    if not closed.is_set():
        keep_sample(folder, dataset)
    emit(WorkerDone(revision=NO_REVISION if closed.is_set() else store.commands.state.revision))
    return 0


if __name__ == "__main__":
    os._exit(main(*sys.argv[1:]))  # all is written: taking torch down piece by piece takes half a second
