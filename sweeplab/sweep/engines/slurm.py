"""Workers as a job array on a Slurm cluster, submitted by sbatch with a shell script of four lines.

A job gets a signal LEAVE_BEFORE seconds before its time limit, and when Slurm preempts or requeues it: its worker then
saves its runs, and the job is requeued under the same job ID, without this process. A worker is reported as ended only
when it is gone for good. A worker learns from the study's storage that the study is to stop, or immediately by SIGHUP.
No worker begins on a node that does not see the lab's folder.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from sweeplab.errors import BadInput, Problem
from sweeplab.files import opened
from sweeplab.lab.events import WorkerExited
from sweeplab.processes import python
from sweeplab.records.folders import WorkerPlace
from sweeplab.study.spec import LEAVE_BEFORE, Engine
from sweeplab.sweep.engines import NUMBER, UNSEEN, WorkerEngine

# How often Slurm is asked for its queue: its controller serves other users too.
POLL_SECONDS = 2.0
# How long one of Slurm's commands may take: a busy controller answers late.
ANSWER_SECONDS = 100.0
COLUMNS = ("ArrayJobID", "ArrayTaskID", "State", "NodeList", "Reason", "exit_code")
CLUSTER = "a machine of the cluster, such as its login node, or --engine local"
# The states of a job that waits to run.
QUEUED = (
    "PENDING",
    "CONFIGURING",
    "REQUEUED",
    "REQUEUE_HOLD",
    "REQUEUE_FED",
    "SPECIAL_EXIT",
    "RESV_DEL_HOLD",
)
RUNNING = (
    "RUNNING",
    "COMPLETING",
    "SUSPENDED",
    "STOPPED",
    "SIGNALING",
    "STAGE_OUT",
    "RESIZING",
)
# {log} lacks the worker's number. A failed redirection does not end the shell if it is that of `true`.
SCRIPT = """\
#!/bin/sh
log={log}-$SLURM_ARRAY_TASK_ID.log
true 2>/dev/null >>"$log" || exit {unseen}
{number}=$SLURM_ARRAY_TASK_ID exec {command} >>"$log" 2>&1
"""


class SlurmFailure(Exception):  # noqa: N818 - shown as Slurm words it
    """One of Slurm's commands failed; holds its error message."""


class NoCluster(SlurmFailure):
    """No Slurm cluster answers here; says why, and the cure."""

    def __init__(self, why: str) -> None:
        super().__init__(f"no Slurm cluster answers here: {why}; run this on {CLUSTER}")


class _Task(NamedTuple):
    state: str
    node: str
    reason: str
    code: int


def ask(
    *words: str, script: str | None = None, environment: dict[str, str] | None = None
) -> str:
    """Return what one of Slurm's commands prints.

    Raises:
        NoCluster: there is no cluster, or it does not answer.
        SlurmFailure: the command failed.
    """
    try:
        done = subprocess.run(
            words,
            input=script,
            env=environment,
            capture_output=True,
            text=True,
            timeout=ANSWER_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoCluster(f"{words[0]} does not answer: {error}") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"{words[0]} failed"]
        kind = re.compile(r"^(\w+: (error|fatal)|allocation failure): ")
        first, last = kind.sub("", lines[0]), kind.sub("", lines[-1])
        if ": fatal: " in lines[-1] or "Unable to contact" in last:
            raise NoCluster(last)
        raise SlurmFailure(first)
    return done.stdout.strip()


def _job_options(spec: Engine, threads: int, gpus: float) -> list[str]:
    """Return sbatch's options for a job of one worker."""
    options = [
        "--requeue",
        "--output=/dev/null",
        "--open-mode=append",
        f"--cpus-per-task={threads}",
        f"--signal=B:USR1@{LEAVE_BEFORE}",
    ]
    options += [f"--time={-(-spec.time // 60):.0f}"] if spec.time else []
    options += [f"--gres=gpu:{gpus:.0f}"] if gpus else []
    options += [f"--partition={spec.partition}"] if spec.partition else []
    return options


def _queue(jobs: Iterable[str]) -> dict[tuple[str, int], _Task]:
    """Return what squeue says of the tasks of job arrays, by job and number."""
    columns = ",".join(f"{column}:|" for column in COLUMNS)
    words = ("squeue", "--noheader", "--array", "--states=all", f"--jobs={','.join(jobs)}")
    try:
        rows = ask(*words, f"--Format={columns}").splitlines()
    except SlurmFailure as error:
        if "Invalid job id" not in str(error):
            raise
        rows = []  # it has forgotten them
    tasks = {}
    for row in rows:
        job, task, state, node, reason, status = row.split("|")[: len(COLUMNS)]
        if task.isdecimal():
            code = os.waitstatus_to_exitcode(int(status))
            tasks[job, int(task)] = _Task(state, node, reason.strip("()"), code)
    return tasks


class SlurmEngine(WorkerEngine):
    """Submits a job array, and follows it in Slurm's queue."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._jobs: dict[int, str] = {}  # the array of each worker that has not ended
        self._tasks: dict[int, _Task] = {}
        self._ends: dict[int, str] = {}  # how workers ended that did not exit by themselves
        self._is_stopping = False
        self._thread: threading.Thread | None = None

    @classmethod
    def check(cls, spec: Engine) -> None:
        """Check by `sbatch --test-only` that Slurm would accept the job of a worker; errors have Slurm's message."""
        if not shutil.which("sbatch"):
            raise BadInput(Problem("the engine slurm: there is no sbatch here", CLUSTER))
        options = _job_options(spec, spec.threads_elsewhere, spec.gpus_per_worker)
        try:
            ask("sbatch", "--test-only", *options, "--wrap=true")
        except NoCluster as error:
            raise BadInput(f"the engine slurm: {error}") from error
        except SlurmFailure as error:
            raise BadInput(Problem(f"the engine slurm: {error}", "what sinfo lists")) from error

    @staticmethod
    def come_back() -> None:
        """Requeue this job, unless it was canceled or somebody else is requeueing it."""
        job = os.environ.get("SLURM_JOB_ID")
        try:
            if (
                job
                and ask("squeue", "--noheader", f"--jobs={job}", "--Format=State") == "RUNNING"
            ):
                ask("scontrol", "requeue", job)
        except SlurmFailure as error:
            print(f"this job cannot be requeued: {error}", file=sys.stderr, flush=True)

    def start(self, indices: Sequence[int], since: float = 0.0) -> None:
        """Submit a job array; raise BadInput with Slurm's message if it is rejected."""
        if not indices:
            return
        command = shlex.join(python(*self.command(indices[0], since)))
        for index in indices:
            opened(self.log(index), "ab").close()  # the shell would follow a link
        log = shlex.quote(str(self.folder.path / "worker"))
        options = _job_options(
            self.spec, self.resources[indices[0]].threads, self.spec.gpus_per_worker
        )
        tasks = ",".join(map(str, indices))
        name = f"--job-name=sweeplab-{self.folder.name}"
        words = ("sbatch", "--parsable", name, f"--array={tasks}", *options)
        script = SCRIPT.format(log=log, unseen=UNSEEN, number=NUMBER, command=command)
        try:
            job = ask(
                *words, script=script, environment=self.environment(indices[0])
            ).partition(";")[0]
        except SlurmFailure as error:
            raise BadInput(f"the engine slurm: {error}") from error
        with self._lock:
            self._is_stopping = False
            self._jobs |= dict.fromkeys(indices, job)
            self._tasks |= dict.fromkeys(indices, _Task("PENDING", "", "", 0))
        if not self._thread:
            self._thread = threading.Thread(target=self._follow, name="slurm", daemon=True)
            self._thread.start()

    def _follow(self) -> None:
        while not self._is_over.wait(POLL_SECONDS):
            with self._lock:
                jobs = self._jobs.copy()
            if not jobs:
                continue
            try:
                tasks = _queue(set(jobs.values()))
            except SlurmFailure:  # it is asked again
                continue
            for index, job in jobs.items():
                # squeue lists tasks that were canceled before they began as one row, not by number.
                task = tasks.get((job, index), _Task("CANCELLED", "", "", 0))
                with self._lock:
                    if self._jobs.get(index) != job:
                        continue
                    self._tasks[index] = task
                    if task.state in (*QUEUED, *RUNNING):
                        continue
                    del self._jobs[index]
                code = task.code
                self._ends[index] = ""
                if code == UNSEEN:
                    self._ends[index] = self.unseen_from(task.node)
                elif task.state not in ("COMPLETED", "FAILED"):
                    where = f" on {task.node}" if task.node else ""
                    self._ends[index] = f"Slurm says {task.state}{where}"
                    code = code or -signal.SIGKILL
                self.events.put(WorkerExited(worker=index, code=code))
            if self._is_stopping:
                self._tell_to_stop()

    def stop(self) -> None:
        """Cancel queued jobs, and tell running workers immediately to leave."""
        self._is_stopping = True
        self._tell_to_stop()

    def _tell_to_stop(self) -> None:
        with self._lock:
            states = {
                f"{job}_{index}": self._tasks[index].state for index, job in self._jobs.items()
            }
        queued = [name for name, state in states.items() if state in QUEUED]
        running = [name for name, state in states.items() if state == "RUNNING"]
        # Such as for jobs that began or ended meanwhile: they are told the next time.
        with suppress(SlurmFailure):
            if queued:
                ask("scancel", "--state=PENDING", *queued)
            if running:
                ask("scancel", "--batch", "--signal=HUP", *running)

    def kill(self) -> None:
        """Kill running jobs, and cancel queued ones."""
        with self._lock:
            jobs = sorted({*self._jobs.values()})
        with suppress(SlurmFailure):  # for jobs that have ended
            if jobs:
                ask("scancel", "--signal=KILL", *jobs)

    def places(self) -> list[WorkerPlace]:
        """Return the tasks that are queued or running."""
        places = []
        with self._lock:
            for index, job in sorted(self._jobs.items()):
                task = self._tasks[index]
                where = WorkerPlace(
                    index, "running", task.node, f"job {job}_{index}", str(self.log(index))
                )
                if task.state in QUEUED:
                    where = replace(where, state="queued", why=task.reason)
                elif task.state != "RUNNING":
                    where = replace(where, why=task.state.lower())
                places.append(where)
        return places

    def last_words(self, index: int) -> str:
        """Return how Slurm ended a worker, or the last line of its log."""
        return self._ends.get(index) or super().last_words(index)

    def close(self) -> None:
        """Stop following the queue."""
        self._is_over.set()
