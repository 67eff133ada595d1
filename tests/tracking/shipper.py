"""Ship in processes of their own that die on the way: one a line of standard input, forked with MLflow loaded.

A job is {"lab", "study", "folders", "die": [moment, n]}: kill -9 itself at the n-th commit of the database,
"before" it or "after" it, in "open" or in "ship"; without "die" the process ends by itself, or is killed from
outside. Prints the pid when the job begins; it is waited for when the next line comes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import mlflow.store.tracking.sqlalchemy_store  # noqa: F401 - loaded once, before any fork
from sqlalchemy import event
from sqlalchemy.orm import Session

from sweeplab.tracking.mlflow import MLflowTracker


def die_at(moment: str, n: int) -> None:
    left = [n]

    def count(_: Session) -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(Session, f"{moment}_commit", count)


def work(job: dict[str, Any]) -> None:
    in_open, die = job.get("in_open", False), job.get("die")
    tracker = MLflowTracker(Path(job["lab"]), job["study"])
    if die and in_open:
        die_at(*die)
    tracker.open({"params": {"sampler": "tpe"}, "study": "name: s\n"})
    if die and not in_open:
        die_at(*die)
    for folder in job["folders"]:
        tracker.ship(Path(folder))


for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        try:
            work(json.loads(line))
        except BaseException as error:
            print(f"failed: {error!r}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    print(pid, flush=True)
    if sys.stdin.readline() == "wait\n":
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
