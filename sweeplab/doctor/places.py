"""Disk, lab, and whether tracking answers."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sweeplab.doctor.check import Check, Verdict
from sweeplab.errors import BadInput
from sweeplab.tracking.connection import database_file, tracking_uri, without_password
from sweeplab.tracking.experiment import count_studies
from sweeplab.tracking.tracker import TrackingUnavailable

BAD_BYTES, WARN_BYTES = 200 * 2**20, 2 * 2**30
# SQLite's write-ahead log needs memory that its readers share: no file system over a network has that.
REMOTE = {"nfs", "nfs4", "cifs", "smbfs", "smb3", "afs", "9p", "lustre", "glusterfs", "fuse.sshfs"}


def lab_checks(lab: Path) -> Iterator[Check]:
    """Yield whether the lab can be written, on what, and with how much room."""
    place = next(each for each in (lab, *lab.parents) if each.exists())
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        cure = "--lab or SWEEPLAB_LAB name another folder"
        yield Check("lab", str(lab), "bad", f"cannot be written: {error.strerror}", cure)
        return
    system = file_system(place)
    if system in REMOTE:
        cure = "move the lab to a local disk: SQLite breaks where several machines write to one file"
        yield Check("lab", str(lab), "warn", f"lies on {system}", cure)
    else:
        yield Check("lab", str(lab), "ok", "can be written" if place == lab else "will be made")
    yield disk_check(place, shutil.disk_usage(place).free)


def disk_check(place: Path, free: int) -> Check:
    """Judge the room that is left."""
    verdict: Verdict = "bad" if free < BAD_BYTES else "warn" if free < WARN_BYTES else "ok"
    cure = "" if verdict == "ok" else "make room, or set track: {checkpoints: none}"
    return Check("disk", str(place), verdict, f"{free / 2**30:.1f} GiB free", cure)


def file_system(place: Path) -> str:
    """Return the kind of file system that a folder lies on."""
    import psutil

    mounts = {Path(each.mountpoint): each.fstype for each in psutil.disk_partitions(all=True)}
    resolved = place.resolve()
    return next((mounts[each] for each in (resolved, *resolved.parents) if each in mounts), "")


def tracking_check(lab: Path, uri: str | None = None) -> Check:
    """Ask tracking for its studies."""
    try:
        uri = tracking_uri(lab, uri)
    except BadInput as error:
        cure = "MLFLOW_TRACKING_URI or track: {uri: …} name a place that MLflow knows"
        return Check("tracking", "MLFLOW_TRACKING_URI", "bad", str(error), cure)
    looked_at, database = without_password(uri), database_file(uri)
    if database and not database.exists():
        return Check("tracking", looked_at, "ok", "will be made by the first study that is run")
    try:
        count = count_studies(lab, uri)
    except TrackingUnavailable as error:
        found = str(error).removeprefix(f"{looked_at}: ")
        return Check(
            "tracking", looked_at, "bad", found, _tracking_cure(found, looked_at, database is not None)
        )
    return Check("tracking", looked_at, "ok", f"answers; studies: {count}")


def _tracking_cure(found: str, place: str, is_file: bool) -> str:
    if "database schema" in found:
        return f"copy the database, then: mlflow db upgrade {place}"
    if is_file:
        return "put the database's copy back, or move it away and run the studies again: they send all that they have"
    return "start the server; training goes on without it, and the numbers follow on the next run"
