"""A study's supervisor without a terminal: a session of its own on this machine, or a job of the cluster."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from threading import Thread

from sweeplab.errors import BadInput
from sweeplab.records.folders import StudyFolder
from sweeplab.study.spec import Engine
from sweeplab.sweep.engines import engine_class

LOOK_SECONDS = 0.2
# The option with which a supervisor that is a job is queued again when the job's time is over.
COME_BACK = "--come-back"


def detach(folder: StudyFolder, engine: Engine, words: Sequence[str]) -> str:
    """Run `sweeplab` with these words so that it outlives this terminal, and say what runs it.

    Returns once it runs the study; a job, as soon as it is queued.

    Raises:
        BadInput: the study does not start, or is run already; with the last words of who tried.
    """
    if folder.is_run:
        raise BadInput(f"study {folder.name} is running; {folder.command('study stop')} stops it")
    engine_class(engine.type).check(engine)
    log = folder.lab / "logs" / f"{folder.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "sweeplab", *words]
    if engine.type == "slurm":
        from sweeplab.sweep.engines.slurm import SlurmFailure, ask, job_options

        script = f"#!/bin/sh\nexec {shlex.join([*command, COME_BACK])} >>{shlex.quote(str(log))} 2>&1\n"
        name = f"--job-name=sweeplab-{folder.name}"
        try:
            job = ask("sbatch", "--parsable", name, *job_options(engine, 1), script=script).partition(";")[0]
        except SlurmFailure as error:
            raise BadInput(f"the engine slurm: {error}") from error
        return f"job {job}, log {log}"
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    # A dashboard outlives what it started, which would stay a zombie.
    Thread(target=process.wait, daemon=True).start()
    while process.poll() is None:
        if folder.is_run and folder.canonical_file.exists():
            return f"process {process.pid}, log {log}"
        time.sleep(LOOK_SECONDS)
    said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    if process.returncode:
        raise BadInput(said[-1].removeprefix("error: ") if said else f"see {log}")
    return f"it has ended already, log {log}"
