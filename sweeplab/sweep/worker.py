"""The program of one worker: open the study, train its trials, and leave when asked to.

A worker is `python -m sweeplab.sweep.worker [--engine TYPE --since TIME] LAB NAME THREADS`. It leaves when its
standard input is closed: it saves its runs at the next step and exits. One of LEAVING_SIGNALS has the same effect. With
`--since` it has no pipe, and works for the supervisor that started at that time. It reports through the folders of its
runs and of the study. It refuses a study that others train with other code or data.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from sweeplab.errors import BadInput, StorageUnavailable
from sweeplab.files import make_folder, opened
from sweeplab.hyperparameters import AUTO
from sweeplab.lab.events import StudyNotice, write_notice
from sweeplab.permissions import work_for_parent
from sweeplab.records.folders import StudyFolder
from sweeplab.sweep.engines import LEFT, NUMBER, REFUSED, engine_class
from sweeplab.tracking.tracker import USE

if TYPE_CHECKING:
    from sweeplab.sweep.trials.sharing import Commands

# What a batch system sends before it ends a job or takes its machine away; SIGHUP comes when the terminal closes.
LEAVING_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
# How often a worker without pipes checks that somebody runs the study; after TIMES_LOOKED negative checks it leaves.
LOOK_SECONDS, TIMES_LOOKED = 2.0, 2
USE_SECONDS = 10.0  # between two samples, as MLflow's own


def leaving_signals() -> list[signal.Signals]:
    """Return the signals at which this process saves its runs and leaves, without those that nohup made it ignore."""
    return [each for each in LEAVING_SIGNALS if signal.getsignal(each) != signal.SIG_IGN]


class Starter:
    """The process that started this worker. Once `closed` is set the worker saves its runs and exits.

    On this machine it holds our input open as long as we may work. Elsewhere, where
    it began to run the study at `since`, it gives its commands through the study's storage. A batch system may signal
    several times before it kills, so there only SIGKILL ends the worker at once.
    """

    def __init__(self, since: float | None = None) -> None:
        self.closed = threading.Event()
        self._since = since
        self._was_signaled = False
        # The supervisor handles Ctrl-C, and closes our input.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        for number in leaving_signals():
            signal.signal(number, self._hear)
        if since is None:
            threading.Thread(target=self._read_input, daemon=True).start()

    def _hear(self, _number: int, _frame: object) -> None:
        # A second signal ends the worker at once.
        if self._was_signaled and self._since is None:
            os._exit(1)
        self._was_signaled = True
        self.closed.set()

    def _read_input(self) -> None:
        sys.stdin.read()  # until it is closed
        self.closed.set()

    def follow(self, folder: StudyFolder, commands: Commands) -> None:
        """Set `closed` when the process elsewhere that started this worker is gone."""

        def watch() -> None:
            n_gone = 0
            while n_gone < TIMES_LOOKED:
                n_gone = 0 if self._is_run(folder, commands) else n_gone + 1
                time.sleep(LOOK_SECONDS)
            self.closed.set()

        if self._since is not None:
            threading.Thread(target=watch, daemon=True).start()

    def _is_run(self, folder: StudyFolder, commands: Commands) -> bool:
        try:
            return folder.is_run and commands.state.started == self._since
        except OSError:  # a disk that is unavailable for a while
            return True

    def exit_code(self, folder: StudyFolder, commands: Commands) -> int:
        """Return LEFT if only the machine asked a worker elsewhere to leave, and the study goes on; else 0."""
        if self._since is None or not self._was_signaled:
            return 0
        with suppress(StorageUnavailable):
            commands.read()
        goes_on = commands.state.phase == "run" and self._is_run(folder, commands)
        return LEFT if goes_on else 0


def _say(message: str) -> None:
    with suppress(OSError):  # on a full disk the log has no room either
        print(message, file=sys.stderr, flush=True)


def write_use(folder: StudyFolder, ended: threading.Event) -> None:
    """Write what this worker uses of its machine into the study's folder, until it has `ended`.

    CPU is in per cent of one core; a GPU's utilization has the work of other processes too, and needs nvidia-ml-py.
    """
    import torch

    process = psutil.Process()
    place = folder.path / USE
    process.cpu_percent()  # measures from here on
    while not ended.wait(USE_SECONDS):
        used = {
            "time": time.time(),
            "cpu_utilization_percentage": process.cpu_percent(),
            "memory_usage_megabytes": process.memory_info().rss / 1e6,
        }
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            used["gpu_memory_usage_megabytes"] = torch.cuda.memory_reserved() / 1e6
            with suppress(Exception):  # whatever the driver's library may raise
                used["gpu_utilization_percentage"] = torch.cuda.utilization()
        # Such as a full disk, or a link in the folder's place.
        with suppress(OSError, BadInput):
            make_folder(place)
            with opened(place / f"worker-{os.environ.get(NUMBER, 0)}.jsonl", "ab") as file:
                file.write(f"{json.dumps(used)}\n".encode())


def work(starter: Starter, folder: StudyFolder, threads: int) -> int:
    """Work on a study until it has no more trials or the worker has to leave; return the exit code."""
    from sweeplab.lab.studies import version_differences, versions
    from sweeplab.study.inputs import study_dataset
    from sweeplab.sweep.loop import Loop
    from sweeplab.sweep.trials.sharing import OUTAGE_SECONDS, Availability
    from sweeplab.sweep.trials.store import open_store
    from sweeplab.train.devices import cuda_count

    closed = starter.closed
    # What it says is for the log alone: whoever runs the study notices it too.
    availability = Availability(folder.name, OUTAGE_SECONDS, _say, closed.is_set)
    # Plugins are checked by their digests: whoever runs the study has allowed them.
    store = open_store(folder, allow_plugins=True, wait=availability)
    plan = folder.read(folder.plan_file)
    store.n_workers = len(plan["workers"])
    if AUTO in store.spec.devices:  # the plan's kind of device holds on every machine
        if plan["device"] == "cpu":
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        elif not cuda_count():
            _say("the study trains on GPUs, and there is no CUDA device here")
            return REFUSED
    import torch

    torch.set_num_threads(threads)
    dataset = study_dataset(store.spec)
    theirs = store.commands.state.versions
    different = version_differences(versions(dataset.token_digest), theirs)
    if different:
        _say(f"the study's other workers have another version of {', '.join(different)}")
        return REFUSED
    starter.follow(folder, store.commands)
    threading.Thread(target=write_use, args=(folder, closed), daemon=True).start()
    name = uuid.uuid4().hex

    def emit(notice: StudyNotice) -> None:
        _say(notice.message)
        with suppress(OSError):  # such as a full disk; the log has it too
            write_notice(folder, name, notice)

    Loop(store, dataset, folder, emit, closed.is_set).run()
    return starter.exit_code(folder, store.commands)


def main(words: Sequence[str]) -> int:
    """Run a worker with the options of its command line; return its exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", default="local")
    parser.add_argument("--since", type=float)
    parser.add_argument("lab", type=Path)
    parser.add_argument("name")
    parser.add_argument("threads", type=int)
    asked = parser.parse_args(words)
    work_for_parent()
    try:
        code = work(Starter(asked.since), StudyFolder(asked.lab, asked.name), asked.threads)
    except StorageUnavailable as error:
        code = REFUSED
        _say(str(error))
    if code == LEFT:
        engine_class(asked.engine).come_back()
    return code


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))  # everything is written: unloading torch takes half a second
