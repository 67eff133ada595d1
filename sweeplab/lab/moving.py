"""A study under another name, or out of the way: nothing is deleted, and what is done says how to undo it."""

from __future__ import annotations

import json
import re
import shlex
import time
from dataclasses import dataclass, field

from sweeplab.errors import BadInput
from sweeplab.files import write_whole
from sweeplab.lab.listing import check_free, tracking_uri_of
from sweeplab.lab.storage import open_database
from sweeplab.records.folders import StudyFolder
from sweeplab.study.file.reading import read_study
from sweeplab.study.spec import StudySpec
from sweeplab.tracking.experiment import delete_experiment, rename_experiment


@dataclass(frozen=True)
class Done:
    """What was done, and the commands that take it back; `trials` are those that it concerns, as cell and number."""

    what: str
    undo: list[str]
    trials: list[tuple[str, int]] = field(default_factory=list)


def remove_study(folder: StudyFolder) -> Done:
    """Move a study's folder to the lab's trash, and its experiment to MLflow's deleted ones.

    Raises:
        BadInput: somebody runs it.
        TrackingUnavailable: MLflow does not answer; nothing has been moved.
    """
    with folder.held(_in_use(folder)):
        kept_as = f"{folder.name}-{time.strftime('%Y%m%d-%H%M%S')}"
        trash = folder.lab / "trash" / kept_as
        restore = delete_experiment(folder.lab, folder.name, tracking_uri_of(folder), kept_as)
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
    check_free(folder.lab, new)
    renamed = StudyFolder(folder.lab, new)
    if renamed.path.exists():
        what = f"{renamed.path} is there, of a study that never started; remove it or give another name"
        raise BadInput(what)
    with folder.held(_in_use(folder)):
        rename_experiment(folder.lab, folder.name, spec.track.uri, new)
        _rename_in_storage(folder, new)
        _rename_in_files(folder, spec)
        folder.path.rename(renamed.path)
    what = f"{folder.name} is {new} now; a study file that says `name: {folder.name}` would start another one"
    return Done(what, [renamed.command("study rename", folder.name)])


def _in_use(folder: StudyFolder) -> str:
    return f"study {folder.name} is running; {folder.command('study stop')} ends its run first"


def _rename_in_storage(folder: StudyFolder, new: str) -> None:
    """Rename the cells' Optuna studies, for which Optuna has no call of its own."""
    from sqlalchemy import text

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
    write_whole(folder.canonical_file, json.dumps(spec.as_written(), indent=1).encode())
    written = folder.study_file.read_text(encoding="utf-8")
    renamed = re.sub(r"(?m)^name:.*$", f"name: {spec.name}", written, count=1)
    write_whole(folder.study_file, renamed.encode())
    plan = folder.read(folder.plan_file) | {"name": spec.name}
    write_whole(folder.plan_file, json.dumps(plan).encode())
