"""A study's storage: whole, and whether whoever holds a trial is still there."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator

from sweeplab.study.doctor.check import Check, Patient, named
from sweeplab.study.folder import StudyFolder

NOBODY = "0"  # the process that a trial is given back to


def storage_check(study: StudyFolder) -> Check:
    """Read the study's descriptions and go through its database."""
    database = study.path / "trials.db"
    cure = f"put a copy of it back, or move {study.path} away and run the study again"
    for file in (study.canonical_file, study.data_file):
        try:
            json.loads(file.read_bytes())
        except (OSError, ValueError) as error:
            return Check("storage", str(file), "bad", f"cannot be read: {error}", cure)
    try:
        # Read-only: a missing file is not to be made here.
        connection = sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)
        try:
            (said,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            n_trials = connection.execute("SELECT count(*) FROM trials").fetchone()[0] if said == "ok" else 0
        finally:
            connection.close()
    except sqlite3.Error as error:
        said = str(error)
    if said != "ok":
        return Check("storage", str(database), "bad", str(said).partition("\n")[0], cure)
    return Check("storage", str(database), "ok", f"whole; trials: {n_trials}")


def stale_leases(patient: Patient) -> Iterator[Check]:
    """Look for trials whose worker is gone, and for leases of trials that have ended."""
    from sweeplab.study.leases import is_dead

    looked_at = "who holds which trial"
    leases = patient.leases.all()
    gone, waiting, held, running = [], [], [], set()
    for (cell, number), trial in patient.trials.items():
        if trial.state.name != "RUNNING":
            continue
        running.add(trial._trial_id)
        lease = leases.get(trial._trial_id)
        name = f"{cell} #{number}"
        if lease is None:
            gone.append(name)
        elif lease.owner.split("|")[1] == NOBODY:
            waiting.append(name)
        elif is_dead(lease.owner, lease.expires):
            gone.append(name)
        else:
            held.append(name)
    ended = [trial_id for trial_id in leases if trial_id not in running]
    if gone and patient.is_running:
        found = named("trials wait to be taken over from a worker that is gone", gone)
        yield Check("workers", looked_at, "ok", found)
    elif gone:
        yield Check(
            "workers", looked_at, "warn", named("trials of workers that are gone", gone), patient.run_again
        )
    else:
        found = f"trials worked on: {len(held)}, waiting to be gone on with: {len(waiting)}"
        yield Check("workers", looked_at, "ok", found)
    if ended and not patient.is_running:
        yield Check(
            "leases",
            looked_at,
            "ok",
            f"left over from trials that have ended: {len(ended)}; they harm nothing",
        )
