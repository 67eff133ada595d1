"""The program of one worker: open the study, train its trials, and leave when asked to.

A worker is `python -m sweeplab.sweep.work.worker [--force] [--apart] [--engine TYPE --since TIME] LAB NAME THREADS`. It
prints one JSON object per line for the process that started it, begins when a line arrives on its standard input, and
leaves when that is closed: it saves its runs at the next step and exits. One of LEAVING_SIGNALS has the same effect.
With `--since` it has no pipes, and works for the supervisor that started at that time. With `--apart` LAB is a folder
of the worker's own, whose files are sent to the lab. It refuses a study that others train with other code or data,
except with `--force`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from sweeplab.errors import StorageUnavailable
from sweeplab.hyperparameters import AUTO
from sweeplab.lab.events import StudyNotice, WorkerDone, WorkerReady
from sweeplab.permissions import work_for_parent
from sweeplab.records.folders import StudyFolder
from sweeplab.sweep.engines import engine_class
from sweeplab.sweep.engines.base import LEFT, NO_REVISION, REFUSED
from sweeplab.sweep.engines.copies import RunFiles, SentRunFiles
from sweeplab.sweep.work.starter import Elsewhere, Pipes, Starter


def work(starter: Starter, folder: StudyFolder, threads: int, force: bool, is_apart: bool = False) -> int:
    """Work on a study until it has no more trials or the worker has to leave; return the exit code."""
    from sweeplab.data.dataset import open_cached
    from sweeplab.lab.identity import version_differences, versions
    from sweeplab.runs.generating import keep_sample
    from sweeplab.study.inputs import cached_data, study_dataset
    from sweeplab.sweep.trials.availability import OUTAGE_SECONDS, Availability
    from sweeplab.sweep.trials.store import open_store
    from sweeplab.sweep.work.runner import Runner
    from sweeplab.train.devices import cuda_count

    closed = starter.closed
    availability = Availability(folder.name, OUTAGE_SECONDS)
    availability.say = lambda message: starter.emit(StudyNotice(message=message))
    availability.stopping = closed.is_set
    # Plugins are checked by their digests: whoever runs the study has allowed them.
    store = open_store(folder, allow_plugins=True, wait=availability)
    if AUTO in store.spec.devices:  # the plan's kind of device holds on every machine
        if folder.read(folder.plan_file)["device"] == "cpu":
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        elif not cuda_count():
            print("the study trains on GPUs, and there is no CUDA device here", file=sys.stderr)
            return REFUSED
    import torch

    torch.set_num_threads(threads)
    dataset = open_cached(cached_data(folder, store.spec)) if is_apart else study_dataset(store.spec)
    if dataset is None:
        print("the study's tokens on this machine are missing or incomplete", file=sys.stderr)
        return 1
    theirs = store.commands.state.start.versions
    if not force and (different := version_differences(versions(dataset.token_digest), theirs)):
        others = "the study's other workers have another version of"
        print(f"{others} {', '.join(different)}; --force works with them anyway", file=sys.stderr)
        return REFUSED
    starter.await_start()
    starter.follow(folder, store.commands)
    starter.emit(WorkerReady())
    files = SentRunFiles(starter.ask) if is_apart and isinstance(starter, Pipes) else RunFiles()
    Runner(store.spec, store, dataset, folder, starter.emit, closed.is_set, files).work()
    if not closed.is_set() and not is_apart:
        keep_sample(folder, dataset)
    starter.emit(WorkerDone(revision=NO_REVISION if closed.is_set() else store.commands.state.revision))
    return starter.exit_code(store.commands)


def main(words: Sequence[str]) -> int:
    """Run a worker with the options of its command line; return its exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--force", action="store_true")
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--engine", default="local")
    parser.add_argument("--since", type=float)
    parser.add_argument("lab", type=Path)
    parser.add_argument("name")
    parser.add_argument("threads", type=int)
    asked = parser.parse_args(words)
    work_for_parent()
    starter = Pipes() if asked.since is None else Elsewhere(asked.since)
    try:
        code = work(starter, StudyFolder(asked.lab, asked.name), asked.threads, asked.force, asked.apart)
    except StorageUnavailable as error:
        code = REFUSED
        with suppress(OSError):  # on a full disk the log has no room either
            print(error, file=sys.stderr, flush=True)
    if code == LEFT:
        engine_class(asked.engine).come_back()
    return code


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))  # everything is written: unloading torch takes half a second
