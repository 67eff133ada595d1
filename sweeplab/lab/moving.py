"""A study under another name, or out of the way: nothing is deleted, and what is done says how to undo it."""

from __future__ import annotations

import json
import re
import shlex
import time
from dataclasses import dataclass, field
from pathlib import Path

from sweeplab.errors import BadInput
from sweeplab.files import sync_folder, write_whole
from sweeplab.lab.listing import check_free, read_spec, tracking_uri_of
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
    """Give a study another name: in MLflow, its storage, its files and its folder.

    What is to be done is written down first: cut off, it is finished by `finish_renaming`.

    Raises:
        BadInput: somebody runs it, or the name is taken or is none; nothing is changed.
        TrackingUnavailable: MLflow does not answer.
    """
    read_spec(folder)
    read_study(folder.canonical_file, name=new)
    check_free(folder.lab, new)
    if (there := StudyFolder(folder.lab, new).path).exists():
        what = f"{there} is there, of a study that never started; remove it or give another name"
        raise BadInput(what)
    with folder.held(_in_use(folder)):
        write_whole(folder.renaming_file, json.dumps({"from": folder.name, "to": new}).encode())
        return _rename(folder, folder.name, new)


def finish_renaming(lab: Path, name: str) -> Done | None:
    """Finish the renaming of a study from a name, or to it, that was cut off; None where there is none.

    Raises:
        BadInput: somebody runs the study.
        TrackingUnavailable: MLflow does not answer.
    """
    for file in (lab / "studies").glob("*/renaming.json"):
        folder = StudyFolder(lab, file.parent.name)
        said = folder.read(file)
        if name in said.values():
            with folder.held(_in_use(folder)):
                return _rename(folder, said["from"], said["to"])
    return None


def _rename(folder: StudyFolder, old: str, new: str) -> Done:
    """Go through all that has a study's name; each step finds out what of it is done."""
    spec, renamed = read_study(folder.canonical_file, name=new), StudyFolder(folder.lab, new)
    try:
        rename_experiment(folder.lab, old, spec.track.uri, new)
    except BadInput:  # before anything is renamed
        folder.renaming_file.unlink()
        raise
    _rename_in_storage(folder, old, new)
    _rename_in_files(folder, spec)
    if folder.name != new:
        folder.path.rename(renamed.path)
        sync_folder(renamed.path.parent)
    renamed.renaming_file.unlink()
    what = f"{old} is {new} now; a study file that says `name: {old}` would start another one"
    return Done(what, [renamed.command("study rename", old)])


def _in_use(folder: StudyFolder) -> str:
    return f"study {folder.name} is running; {folder.command('study stop')} ends its run first"


def _rename_in_storage(folder: StudyFolder, old: str, new: str) -> None:
    """Rename the cells' Optuna studies, for which Optuna has no call of its own."""
    from sqlalchemy import text

    engine = open_database(folder.storage_url)
    with engine.begin() as connection:
        names = connection.execute(text("SELECT study_name FROM studies")).scalars().all()
        for name in names:
            if name.startswith(f"{old}/"):
                values = {"old": name, "new": new + name[len(old) :]}
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
