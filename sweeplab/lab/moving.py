"""A study under another name, or out of the way: nothing is deleted, and each says how to take it back."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager

from filelock import Timeout
from sqlalchemy import text

from sweeplab.errors import BadInput
from sweeplab.files import write_whole
from sweeplab.lab.database import open_database
from sweeplab.records.folders import StudyFolder
from sweeplab.lab.identity import as_written
from sweeplab.lab.listing import study_names, tracking_uri_of
from sweeplab.study.file.reading import read_study
from sweeplab.study.spec import StudySpec
from sweeplab.sweep.control.steering import Done
from sweeplab.sweep.work.supervisor import LOOK_SECONDS
from sweeplab.tracking.moving import Moving


def remove_study(folder: StudyFolder) -> Done:
    """Move a study's folder to the lab's trash, and its experiment to MLflow's deleted ones.

    Raises:
        BadInput: somebody runs it.
        TrackingUnavailable: MLflow does not answer; nothing has been moved.
    """
    with _alone(folder):
        kept_as = f"{folder.name}-{time.strftime('%Y%m%d-%H%M%S')}"
        trash = folder.lab / "trash" / kept_as
        restore = Moving(folder.lab, folder.name, tracking_uri_of(folder)).delete(kept_as)
        trash.parent.mkdir(exist_ok=True)
        folder.path.rename(trash)
    undo = [shlex.join(["mv", str(trash), str(folder.path)]), *restore]
    return Done(f"{folder.name} is removed: its folder is {trash} now", undo)


def rename_study(folder: StudyFolder, new: str) -> Done:
    """Give a study another name: in its folder, its storage and MLflow. Called again after a failure it goes on.

    Raises:
        BadInput: somebody runs it, or the name is taken or is none.
        TrackingUnavailable: MLflow does not answer.
    """
    spec = read_study(folder.canonical_file, name=new)
    if new == folder.name or new in study_names(folder.lab):
        raise BadInput(f"a study {new!r} stands in {folder.lab}; give another name")
    renamed = StudyFolder(folder.lab, new)
    if renamed.path.exists():
        raise BadInput(
            f"{renamed.path} is there, of a study that never began; remove it or give another name"
        )
    with _alone(folder):
        Moving(folder.lab, folder.name, spec.track.uri).rename(new)
        _rename_in_storage(folder, new)
        _rename_in_files(folder, spec)
        folder.path.rename(renamed.path)
    what = f"{folder.name} is {new} now; a study file that says `name: {folder.name}` would begin another one"
    return Done(what, [renamed.command("study rename", folder.name)])


@contextmanager
def _alone(folder: StudyFolder) -> Iterator[None]:
    try:
        lock = folder.supervisor_lock.acquire(timeout=LOOK_SECONDS, poll_interval=0.05, blocking=True)
    except Timeout:
        what = f"study {folder.name} is running; {folder.command('study stop')} ends its run first"
        raise BadInput(what) from None
    with lock:
        yield


def _rename_in_storage(folder: StudyFolder, new: str) -> None:
    """Rename the cells' Optuna studies, for which Optuna has no call of its own."""
    engine = open_database(folder.storage_url)
    with engine.begin() as connection:
        names = connection.execute(text("SELECT study_name FROM studies")).scalars().all()
        for name in names:
            if name.startswith(f"{folder.name}/"):
                values = {"old": name, "new": new + name[len(folder.name) :]}
                connection.execute(
                    text("UPDATE studies SET study_name = :new WHERE study_name = :old"), values
                )
    engine.dispose()


def _rename_in_files(folder: StudyFolder, spec: StudySpec) -> None:
    write_whole(folder.canonical_file, json.dumps(as_written(spec), indent=1).encode())
    written = folder.study_file.read_text(encoding="utf-8")
    renamed = re.sub(r"(?m)^name:.*$", f"name: {spec.name}", written, count=1)
    write_whole(folder.study_file, renamed.encode())
    plan = json.loads(folder.plan_file.read_text(encoding="utf-8")) | {"name": spec.name}
    write_whole(folder.plan_file, json.dumps(plan).encode())
