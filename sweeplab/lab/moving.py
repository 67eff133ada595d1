"""A study under another name, as a copy of its file or as itself, or out of the way.

Nothing is deleted, and what is done says how to take it back.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sweeplab.errors import BadInput
from sweeplab.files import write_whole
from sweeplab.lab.listing import check_free, tracking_uri_of
from sweeplab.lab.storage import open_database
from sweeplab.records.folders import StudyFolder
from sweeplab.study.file.document import REMOVED, edited
from sweeplab.study.file.reading import read_study, read_text
from sweeplab.study.file.template import study_file
from sweeplab.study.problems import Location
from sweeplab.study.spec import StudySpec
from sweeplab.tracking.experiment import MovedExperiment

# Parts of a study file that are written in more than one way, so that a change of one replaces it all.
_WHOLE = ("sampler", "pruner")


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
        restore = MovedExperiment(folder.lab, folder.name, tracking_uri_of(folder)).delete(kept_as)
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
        raise BadInput(
            f"{renamed.path} is there, of a study that never started; remove it or give another name"
        )
    with folder.held(_in_use(folder)):
        MovedExperiment(folder.lab, folder.name, spec.track.uri).rename(new)
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


def clone_text(folder: StudyFolder, name: str, overrides: Sequence[str] = ()) -> str:
    """Return the study file of a study as it was last run, with another name and `name=value` overrides.

    Comments and all that does not change stay as the user wrote them. Paths are absolute, and what plugins provide
    is left out: they are imported anew.

    Raises:
        BadInput: the name is taken or is none, or an override is wrong.
    """
    check_free(folder.lab, name)
    wanted = read_study(folder.canonical_file, overrides, name).as_written()
    # The names of its parts are known without its plugins.
    known = [f"plugins={json.dumps(wanted['plugins'])}"] if "plugins" in wanted else []
    if known:
        wanted["plugins"] = [each["file"] for each in wanted["plugins"]]
    written = folder.study_file.read_text(encoding="utf-8-sig")
    try:
        said = read_text(written, folder.study_file, known).as_written()
        text = edited(written, _changes(said, wanted))
        if known or read_text(text, folder.study_file).as_written() == wanted:
            return text
    except BadInput:  # the file says a whole study only with the overrides of its run
        pass
    return study_file(wanted, [f"Study {folder.name}, as {name}"])


def _changes(said: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[Location, Any]:
    """Return what is to be set and removed in a file that says one study so that it says another."""
    changes: dict[Location, Any] = {}
    for part in dict.fromkeys([*said, *wanted]):
        old, new = said.get(part), wanted.get(part)
        if old == new:
            continue
        if part in _WHOLE or not isinstance(old, dict) or not isinstance(new, dict):
            changes[part,] = REMOVED if new is None else new
            continue
        for key in dict.fromkeys([*old, *new]):
            if key not in new or (new[key] is None and part != "fixed"):  # there null switches a thing off
                changes[part, key] = REMOVED
            elif key not in old or old[key] != new[key]:
                changes[part, key] = new[key]
    return changes
