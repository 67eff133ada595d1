"""A study's storage: whole, and whether whoever holds a trial is still there and works."""

from __future__ import annotations

import json
import shlex
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

from sweeplab.doctor.check import Check, OpenedStudy, named
from sweeplab.errors import BadInput
from sweeplab.lab.listing import read_spec
from sweeplab.lab.storage import count_trials
from sweeplab.records.folders import StudyFolder

WHO = "who holds which trial"
NOBODY = "0"  # the process that a trial is given back to


def storage_check(study: StudyFolder) -> Check:
    """Read the study's descriptions and go through its database."""
    database = study.database
    cure = f"put a copy of it back, or move {study.path} away and run the study again"
    try:
        read_spec(study)
        json.loads(study.data_file.read_bytes())
    except (BadInput, OSError, ValueError) as error:
        return Check("storage", str(study.path), "bad", f"its description cannot be read: {error}", cure)
    if study.storage_file.exists():
        return _elsewhere(study)
    try:
        # Read-only: a missing file is not to be made here.
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
            (said,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            n_trials = connection.execute("SELECT count(*) FROM trials").fetchone()[0] if said == "ok" else 0
    except sqlite3.Error as error:
        said = str(error)
    if said != "ok":
        return Check("storage", str(database), "bad", str(said).partition("\n")[0], cure)
    return Check("storage", str(database), "ok", f"whole; trials: {n_trials}")


def _elsewhere(study: StudyFolder) -> Check:
    """Count the trials of a storage that is no file of the study's."""
    try:
        n_trials = sum(each.states.total() for each in count_trials(study).values())
    except BadInput as error:
        return Check("storage", str(study.storage_file), "bad", str(error), "start the database")
    return Check("storage", str(study.storage_file), "ok", f"answers; trials: {n_trials}")


def unstarted_checks(lab: Path) -> Iterator[Check]:
    """Yield a check where a study was killed before it had written what it is."""
    folders = [each for each in sorted((lab / "studies").glob("*/")) if not (each / "study.json").exists()]
    if folders:
        found = named("folders of studies that never started", [each.name for each in folders])
        yield Check(
            "storage", str(lab / "studies"), "warn", found, shlex.join(["rm", "-r", *map(str, folders)])
        )


def version_check(study: StudyFolder) -> Iterator[Check]:
    """Yield a check where the database is another Optuna's, whose tables this one does not read."""
    from sweeplab.sweep.trials.store import open_storage

    try:
        open_storage(study.storage_url).engine.dispose()
    except RuntimeError as error:
        cure = shlex.join(["optuna", "storage", "upgrade", "--storage", study.storage_url])
        found = str(error).partition(". ")[0]
        yield Check("storage", str(study.database), "bad", found, f"copy the file, then: {cure}")


def worker_checks(study: OpenedStudy) -> Iterator[Check]:
    """Look for trials whose worker is gone or hangs, and for a worker that keeps all others waiting."""
    leases = study.leases.all()
    trials = {trial._trial_id: each for each, trial in study.trials.items() if trial.state.name == "RUNNING"}
    names: dict[str, list[str]] = {"held": [], "waiting": [], "gone": [], "stuck": []}
    stuck = set()
    for trial_id, (cell, number) in trials.items():
        lease = leases.get(trial_id)
        standing = _standing(lease.owner, lease.expires) if lease else "gone"
        names[standing].append(f"{cell} #{number}")
        if lease and standing == "stuck":
            stuck.add(_pid(lease.owner))
    if names["stuck"]:
        found = named("trials of workers that are there and do nothing", names["stuck"])
        yield Check("workers", WHO, "bad", found, _kill(stuck, study))
    lock = study.leases.lock_holder()
    if lock and _standing(lock.owner, lock.expires) == "stuck":
        found = f"process {_pid(lock.owner)} keeps the storage's lock: no trial starts or ends"
        yield Check("workers", WHO, "bad", found, _kill({_pid(lock.owner)}, study))
    if names["gone"] and study.is_running:
        found = named("trials wait to be taken over from a worker that is gone", names["gone"])
        yield Check("workers", WHO, "ok", found)
    elif names["gone"]:
        found = named("trials of workers that are gone", names["gone"])
        yield Check("workers", WHO, "warn", found, study.run_again)
    elif not names["stuck"]:
        found = (
            f"trials being trained: {len(names['held'])}, waiting to be continued: {len(names['waiting'])}"
        )
        yield Check("workers", WHO, "ok", found)


def _standing(owner: str, expires: float) -> str:
    """Say how a holder stands: it works on what it holds, gave it back, is gone, or is there and hangs."""
    from sweeplab.sweep.trials.leases import is_dead

    if _pid(owner) == NOBODY:
        return "waiting"
    if is_dead(owner, expires):
        return "gone"
    return "held" if expires > time.time() else "stuck"


def _pid(owner: str) -> str:
    return owner.split("|")[1]


def _kill(pids: Iterable[str], study: OpenedStudy) -> str:
    """Return the command that ends processes; whoever runs the study starts others, else running it again does."""
    kill = f"kill -9 {' '.join(sorted(pids))}"
    return kill if study.is_running else f"{kill} && {study.run_again}"
