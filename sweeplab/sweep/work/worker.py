"""One worker process: `python -m sweeplab.sweep.work.worker LAB NAME THREADS [--force]`.

It prints one JSON object a line for whoever started it, and stops at the next step once its standard input
is closed: so it never outlives its supervisor, however that ends. It works on no study that others work on with
other code or data, but with `--force`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

# The exit code of a worker that would not work: starting it again is no use.
REFUSED = 2
# What a worker read of the commands before it was told to leave says nothing of what it would do if started again.
TOLD_TO_LEAVE = -1


def main(lab: str, name: str, threads: str, force: str = "") -> int:
    """Work on a study until it has no more trials or standard input is closed; return the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor is told, and closes our input
    closed = threading.Event()

    def watch() -> None:
        sys.stdin.read()
        closed.set()

    threading.Thread(target=watch, daemon=True).start()

    # Whatever else prints goes to the log: our output is for events alone.
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def emit(event: dict[str, Any]) -> None:
        try:
            print(json.dumps(event), file=events, flush=True)
        except BrokenPipeError:  # nobody listens any more: put the runs away, and fail none of them
            closed.set()

    import torch

    from sweeplab.lab.versions import differences, versions
    from sweeplab.records.folders import StudyFolder
    from sweeplab.runs.sample import keep_sample
    from sweeplab.study.cells import cells
    from sweeplab.study.datasets import study_dataset
    from sweeplab.study.file.reading import read_study
    from sweeplab.sweep.trials.store import Store
    from sweeplab.sweep.work.runner import Runner

    torch.set_num_threads(int(threads))
    folder = StudyFolder(Path(lab), name)
    # Whoever runs the study has allowed these plugins, with these digests.
    spec = read_study(folder.canonical_file, allow_plugins=True)
    dataset = study_dataset(spec)
    vocab_size = dataset.tokenizer.vocab_size
    store = Store(spec, cells(spec, vocab_size)[0], vocab_size, folder.storage_url)
    store.poll_commands()
    theirs = store.commands.state.start.get("versions", {})
    if not force and (different := differences(versions(dataset.token_digest), theirs)):
        others = "the study's other workers have another version of"
        print(f"{others} {', '.join(different)}; --force works with them all the same", file=sys.stderr)
        return REFUSED
    emit({"event": "ready"})
    Runner(spec, store, dataset, folder, emit, closed.is_set).work()
    if not closed.is_set():
        keep_sample(folder, dataset)
    emit({"event": "done", "revision": TOLD_TO_LEAVE if closed.is_set() else store.commands.state.revision})
    return 0


if __name__ == "__main__":
    os._exit(main(*sys.argv[1:]))  # all is written: taking torch down piece by piece takes half a second
