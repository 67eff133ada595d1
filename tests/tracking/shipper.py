"""Ship in processes of their own that die on the way: a line of input a process, forked with MLflow loaded.

A job is {"lab", "study", "folders", "die": [moment, n], "in_open", "cache"}. Its process kills itself with SIGKILL
"before" or "after" the n-th commit that writes to the database, counted from the opening of the study or
from the end of it; without "die" it ends by itself, or is killed from outside. Its pid is printed. A line
with that pid waits for its end, and its exit code is printed.
"""

import json
import os
import signal
import sys
from pathlib import Path

import mlflow.store.tracking.sqlalchemy_store  # noqa: F401 - loaded once, before any fork
from sqlalchemy import event
from sqlalchemy.engine import Engine
from sqlalchemy.engine.default import DefaultDialect

from sweeplab.tracking.mlflow import MLflowTracker


def die_at(moment, n):
    left, writes = [n], [False]
    commit = DefaultDialect.do_commit

    def executed(_connection, _cursor, statement, *_):
        writes[0] |= statement.startswith(("INSERT", "UPDATE", "DELETE"))

    def commit_or_die(dialect, connection):
        left[0] -= writes[0]
        writes[0] = False
        if left[0] == 0 and moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        commit(dialect, connection)
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(Engine, "before_cursor_execute", executed)
    DefaultDialect.do_commit = commit_or_die


def work(job):
    in_open, die = job.get("in_open", False), job.get("die")
    os.environ |= {"SWEEPLAB_CACHE": job["cache"]} if "cache" in job else {}
    tracker = MLflowTracker(Path(job["lab"]), job["study"])
    if die and in_open:
        die_at(*die)
    tracker.open({"params": {"sampler": "tpe"}, "study": "name: s\n"})
    if die and not in_open:
        die_at(*die)
    for folder in job["folders"]:
        tracker.ship(Path(folder))


for line in sys.stdin:
    order = json.loads(line)
    if isinstance(order, int):
        print(os.waitstatus_to_exitcode(os.waitpid(order, 0)[1]), flush=True)
        continue
    pid = os.fork()
    if pid == 0:
        try:
            work(order)
        except BaseException as error:
            print(f"failed: {error!r}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    print(pid, flush=True)
