"""Rename, remove and restore studies: nothing is deleted, and every step tells how to undo it."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.files import TRASH, make_folder, sync_folder, write_whole
from sweeplab.lab.listing import check_free, read_spec, tracking_uri_of
from sweeplab.lab.storage import rename_studies
from sweeplab.records.folders import StudyFolder, is_name
from sweeplab.study.file.reading import read_study
from sweeplab.tracking.experiment import delete_experiment, rename_experiment, restore_experiment


@dataclass(frozen=True)
class Done:
    """What was done, and the commands that undo it; `trials` are the trials concerned, as cell and number."""

    what: str
    undo: list[str]
    trials: list[tuple[str, int]] = field(default_factory=list)


def remove_study(folder: StudyFolder) -> Done:
    """Move a study's folder to the lab's trash, and mark its experiment as deleted in MLflow.

    Raises:
        BadInput: the study is running.
        TrackingUnavailable: MLflow does not answer; the study stays.
    """
    trash = folder.lab / TRASH / f"{folder.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    with folder.held(_in_use(folder)):
        delete_experiment(folder.lab, folder.name, tracking_uri_of(folder), trash.name)
        make_folder(trash.parent)
        folder.path.rename(trash)
        sync_folder(trash.parent)
    undo = [folder.command("rm", "--undo")]
    return Done(f"{folder.name} was removed: its folder is now {trash}", undo)


def restore_study(lab: Path, name: str) -> Done:
    """Undo a study's last removal; if interrupted, the same call continues it.

    Raises:
        BadInput: the trash has no such study, or another study has its name by now.
        TrackingUnavailable: MLflow does not answer.
    """
    pattern = re.compile(rf"{re.escape(name)}-\d{{8}}-\d{{6}}")
    kept = sorted(each.name for each in (lab / TRASH).glob("*/") if pattern.fullmatch(each.name))
    if not kept:
        names = {each.name[:-16] for each in (lab / TRASH).glob("*/") if is_name(each.name[:-16])}
        raise BadInput(Problem(f"the trash has no study {name!r}", ", ".join(names), nearest(name, names)))
    check_free(lab, name)
    folder, trash = StudyFolder(lab, name), StudyFolder(lab, f"../trash/{kept[-1]}")
    restore_experiment(lab, name, tracking_uri_of(trash), kept[-1])
    trash.path.rename(folder.path)
    sync_folder(folder.path.parent)
    return Done(f"{name} is back, as it was", [folder.command("rm")])


def rename_study(folder: StudyFolder, new: str) -> Done:
    """Give a study another name: in MLflow, then its folder, then its storage and files, which `repair` can finish.

    Raises:
        BadInput: the study is running, or the name is taken or not allowed; nothing is changed.
        TrackingUnavailable: MLflow does not answer; nothing is changed.
    """
    old, renamed = folder.name, StudyFolder(folder.lab, new)
    spec = read_spec(folder)
    folder.read_study()
    read_study(folder.canonical_file, name=new)
    check_free(folder.lab, new)
    if renamed.path.exists():
        what = f"{renamed.path} exists, from a study that never started; remove it or give another name"
        raise BadInput(what)
    with folder.held(_in_use(folder)):
        rename_experiment(folder.lab, old, spec.track.uri, new)
        folder.path.rename(renamed.path)
        sync_folder(renamed.path.parent)
    finish_renaming(renamed)
    what = f"{old} is now {new}; a study file with `name: {old}` would start a new study"
    return Done(what, [renamed.command("rename", old, "--yes")])


def finish_renaming(folder: StudyFolder) -> bool:
    """Write the name of a study's folder to its storage and files; return whether it was another.

    Its typed file is written last: while it has another name, the study is refused.
    """
    if folder.stored_name == folder.name:
        return False
    with folder.held(_in_use(folder)):
        rename_studies(folder.storage_url, f"{folder.stored_name}/", f"{folder.name}/")
        text = re.sub(r"(?m)^name:.*$", f"name: {folder.name}", folder.read_study(), count=1)
        write_whole(folder.study_file, text.encode())
        for file in (folder.plan_file, folder.canonical_file):
            write_whole(file, json.dumps(folder.read(file) | {"name": folder.name}, indent=1).encode())
    return True


def _in_use(folder: StudyFolder) -> str:
    return f"study {folder.name} is running; stop it first: {folder.command('stop')}"
