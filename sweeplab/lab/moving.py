"""Rename, remove and restore studies: nothing is deleted, and every step tells how to undo it."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sweeplab.errors import BadInput, Problem, TrackingUnavailable, nearest
from sweeplab.files import sync_folder, write_whole
from sweeplab.lab.listing import check_free, read_spec, tracking_uri_of
from sweeplab.lab.storage import open_database
from sweeplab.records.folders import StudyFolder, is_name
from sweeplab.records.runs import reading
from sweeplab.study.file.reading import read_study
from sweeplab.study.spec import StudySpec
from sweeplab.tracking.experiment import delete_experiment, rename_experiment, restore_experiment


@dataclass(frozen=True)
class Done:
    """What was done, and the commands that undo it; `trials` are the trials concerned, as cell and number."""

    what: str
    undo: list[str]
    trials: list[tuple[str, int]] = field(default_factory=list)


def remove_study(folder: StudyFolder) -> Done:
    """Move a study's folder to the lab's trash, and mark its experiment as deleted in MLflow.

    The plan is written to a file first, so that `finish_moving` can finish an interrupted removal.

    Raises:
        BadInput: the study is running.
        TrackingUnavailable: MLflow does not answer; the study stays.
    """
    with folder.held(_in_use(folder)):
        move = Move("remove", folder.name, f"{folder.name}-{time.strftime('%Y%m%d-%H%M%S')}")
        move.write(folder)
        return _remove(folder, move)


def rename_study(folder: StudyFolder, new: str) -> Done:
    """Give a study another name: in MLflow, its storage, its files and its folder.

    The plan is written to a file first, so that `finish_moving` can finish an interrupted renaming.

    Raises:
        BadInput: the study is running, or the name is taken or not allowed; nothing is changed.
        TrackingUnavailable: MLflow does not answer.
    """
    read_spec(folder)
    read_study(folder.canonical_file, name=new)
    check_free(folder.lab, new)
    if (there := StudyFolder(folder.lab, new).path).exists():
        what = f"{there} exists, from a study that never started; remove it or give another name"
        raise BadInput(what)
    with folder.held(_in_use(folder)):
        move = Move("rename", folder.name, new)
        move.write(folder)
        return _rename(folder, move)


def restore_study(lab: Path, name: str) -> Done:
    """Undo a study's last removal; if interrupted, the same call continues it.

    Raises:
        BadInput: the trash has no such study, or another study has its name by now.
        TrackingUnavailable: MLflow does not answer.
    """
    pattern = re.compile(rf"{re.escape(name)}-\d{{8}}-\d{{6}}")
    kept = sorted(each.name for each in (lab / "trash").glob("*/") if pattern.fullmatch(each.name))
    if not kept:
        names = {each.name[:-16] for each in (lab / "trash").glob("*/")}
        raise BadInput(Problem(f"the trash has no study {name!r}", ", ".join(names), nearest(name, names)))
    check_free(lab, name)
    folder, trash = StudyFolder(lab, name), StudyFolder(lab, f"../trash/{kept[-1]}")
    restore_experiment(lab, name, tracking_uri_of(trash), kept[-1])
    trash.path.rename(folder.path)
    sync_folder(folder.path.parent)
    return Done(f"{name} is back, as it was", [folder.command("study rm")])


@dataclass(frozen=True)
class Move:
    """A renaming or removal in several stores; `new` is the study's new name, or its folder's name in the trash."""

    what: Literal["rename", "remove"]
    old: str
    new: str

    @classmethod
    def read(cls, folder: StudyFolder, file: Path) -> Move:
        """Read a plan: its names are of folders in the lab.

        Raises:
            DamagedFile: it is not a plan.
        """
        with reading(file, folder.cure_of(file)):
            move = cls(**folder.read(file))
        if move.what not in ("rename", "remove") or not (is_name(move.old) and is_name(move.new)):
            raise folder.damaged(file, "it does not name a study and its new name")
        return move

    def write(self, folder: StudyFolder) -> None:
        """Write the plan to a file of the study."""
        write_whole(folder.moving_file, json.dumps(vars(self)).encode())
        sync_folder(folder.path)


def finish_moving(lab: Path, name: str) -> Done | None:
    """Finish an interrupted renaming or removal of a study; None if there is none.

    A renaming is found by either name.

    Raises:
        BadInput: the study is running.
        TrackingUnavailable: MLflow does not answer.
    """
    for file in (*lab.glob("studies/*/moving.json"), *lab.glob("trash/*/moving.json")):
        folder = StudyFolder(lab, file.parent.name)
        move = Move.read(folder, file)
        if file.is_relative_to(lab / "trash"):
            if name == move.old:
                return _remove(StudyFolder(lab, move.old), move)
        elif name in (move.old, move.new):
            with folder.held(_in_use(folder)):
                return (_rename if move.what == "rename" else _remove)(folder, move)
    return None


def _remove(folder: StudyFolder, move: Move) -> Done:
    """Remove a study from MLflow and from its folder; each step first checks whether it is done already."""
    trash = folder.lab / "trash" / move.new
    there = folder if folder.moving_file.exists() else StudyFolder(folder.lab, f"../trash/{move.new}")
    try:
        delete_experiment(folder.lab, folder.name, tracking_uri_of(there), move.new)
    except TrackingUnavailable:  # forget the plan: its owner may go on with the study
        there.moving_file.unlink()
        raise
    if there is folder:
        trash.parent.mkdir(exist_ok=True)
        folder.path.rename(trash)
        sync_folder(trash.parent)
    (trash / folder.moving_file.name).unlink()
    undo = [folder.command("study rm", "--undo")]
    return Done(f"{folder.name} was removed: its folder is now {trash}", undo)


def _rename(folder: StudyFolder, move: Move) -> Done:
    """Rename a study wherever its name is stored; each step first checks what is done already."""
    old, new = move.old, move.new
    spec, renamed = read_study(folder.canonical_file, name=new), StudyFolder(folder.lab, new)
    try:
        rename_experiment(folder.lab, old, spec.track.uri, new)
    except BadInput:  # before anything is renamed
        folder.moving_file.unlink()
        raise
    _rename_in_storage(folder, old, new)
    _rename_in_files(folder, spec)
    if folder.name != new:
        folder.path.rename(renamed.path)
        sync_folder(renamed.path.parent)
    renamed.moving_file.unlink()
    what = f"{old} is now {new}; a study file with `name: {old}` would start a new study"
    return Done(what, [renamed.command("study rename", old)])


def _in_use(folder: StudyFolder) -> str:
    return f"study {folder.name} is running; stop it first: {folder.command('study stop')}"


def _rename_in_storage(folder: StudyFolder, old: str, new: str) -> None:
    """Rename the cells' Optuna studies, with SQL, since Optuna has no call for it."""
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
