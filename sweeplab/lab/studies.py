"""A lab's studies as wholes: what identifies one, what tracking stores about it, how it is renamed, removed and noted.

The study's folder has the values in force (study.json) and the file as it was last read (study.yaml). Nothing is
deleted, and every step tells how to undo it.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sweeplab.errors import BadInput, TrackingUnavailable
from sweeplab.files import TRASH, make_folder, sync_folder, write_whole
from sweeplab.lab.listing import (
    StudyTrials,
    Trial,
    find_metric,
    read_spec,
    tracking_uri_of,
)
from sweeplab.lab.storage import rename_studies
from sweeplab.records.folders import DataDescription, StudyFolder
from sweeplab.records.kept import write_note
from sweeplab.records.runs import write_json
from sweeplab.study.file.reading import read_study
from sweeplab.study.file.template import study_file
from sweeplab.study.problems import LENGTHS, shown
from sweeplab.tracking import open_tracker
from sweeplab.tracking.experiment import rename_experiment
from sweeplab.version import VERSION

if TYPE_CHECKING:
    from sweeplab.study.plan import Plan
    from sweeplab.study.spec import StudySpec
    from sweeplab.tracking.models import Published
    from sweeplab.tracking.tracker import Description, StudySummary

DIGEST_CHARACTERS = 12


class Difference(NamedTuple):
    """A place in two records, as keys joined by dots, and the value of each there, None if it has none."""

    place: str
    a: Any
    b: Any


def differences(a: Any, b: Any, place: str = "") -> list[Difference]:
    """Return where two nested mappings differ, in the order of their keys."""
    if a == b:
        return []
    if not isinstance(a, Mapping) or not isinstance(b, Mapping):
        return [Difference(place, a, b)]
    changed = []
    for key in dict.fromkeys([*a, *b]):
        changed += differences(a.get(key), b.get(key), f"{place}.{key}".lstrip("."))
    return changed


def check_same_study(spec: StudySpec, folder: StudyFolder, data: DataDescription) -> None:
    """Refuse to continue a study whose new results could not be compared with its old ones.

    `data` describes the corpus as it is now.

    Raises:
        BadInput: data, fixed, search, constraints, objective, seeds or plugins differ; says how, and offers --name.
        DamagedFile: a file of the study is damaged.
    """
    if not folder.has_started:
        return
    known, ours, was = folder.read(folder.canonical_file), spec.as_written(), folder.data
    changes = list[str]()
    for place, a, b in differences(_identity(ours), _identity(known)):
        changes.append(f"{place} is {_said(a)} and was {_said(b)}")
    has_other_text = (data.text_digest, data.token_digest) != (
        was.text_digest,
        was.token_digest,
    )
    if has_other_text and ours["data"] == known["data"]:
        changes.append("the text of the corpus has changed")
    if data.init_digest != was.init_digest:
        changes.append("the weights that it starts from have changed")
    if changes:
        what = f"another study named {spec.name} exists in {folder.lab}: {'; '.join(changes)}"
        raise BadInput(f"{what}; give this one a --name of its own")
    folder.check_whole()


def _identity(study: Mapping[str, Any]) -> dict[str, Any]:
    """Return what identifies a study: of plugins their digests, not the rows that they have added."""
    from sweeplab.study.spec import IDENTITY

    identity = {part: study.get(part) for part in IDENTITY}
    identity["plugins"] = [
        {name: value for name, value in plugin.items() if name != "rows"}
        for plugin in study.get("plugins") or ()
    ]
    return identity


def _said(value: Any) -> str:
    if value is None:
        return "not given"
    return shown(value)


def write_study(spec: StudySpec, folder: StudyFolder, data: DataDescription) -> None:
    """Store the study file as the user wrote it and as it was parsed (which workers read), and its data's digests.

    A study that continues from its own folder keeps its file.
    """
    understood = json.dumps(spec.as_written(), indent=1)
    if spec.source != folder.canonical_file:
        write_whole(folder.study_file, (spec.text if spec.source else understood).encode())
    write_json(folder.data_file, data)
    write_whole(folder.canonical_file, understood.encode())


def code_versions() -> dict[str, str]:
    """Return the versions of the code that this process works with; of sweeplab's sources the start of their digest."""
    root, digest = Path(__file__).parents[1], hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        digest.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes() + b"\0")
    return {
        "sweeplab": VERSION,
        "sources": digest.hexdigest()[:DIGEST_CHARACTERS],
        "torch": version("torch"),
        "python": platform.python_version(),
    }


def versions(token_digest: str) -> dict[str, str]:
    """Return the versions that this process works with, of code and data."""
    return {**code_versions(), "data": token_digest[:DIGEST_CHARACTERS]}


def version_differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Say in which parts two processes differ; parts that only one of them names are ignored."""
    return [
        f"{name} ({here} here, {there} there)"
        for name, here, there in differences(ours, theirs)
        if here and there
    ]


@dataclass(frozen=True)
class Done:
    """What was done, and the commands that undo it; `trials` are the trials concerned, as cell and number."""

    what: str
    undo: list[str]
    trials: Sequence[tuple[str, int]] = ()


def remove_study(folder: StudyFolder) -> Done:
    """Move a study's folder to the lab's trash, and mark its experiment as deleted in MLflow.

    Raises:
        BadInput: the study is running.
        TrackingUnavailable: MLflow does not answer; the study stays.
    """
    trash = folder.lab / TRASH / f"{folder.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    with folder.held(_in_use(folder)):
        rename_experiment(
            folder.lab, folder.name, tracking_uri_of(folder), trash.name, is_deleted=True
        )
        make_folder(trash.parent)
        folder.path.rename(trash)
        sync_folder(trash.parent)
    undo = [
        shlex.join(["mv", "-T", str(trash), str(folder.path)]),
        folder.command("doctor", "--repair"),
    ]
    return Done(f"{folder.name} was removed: its folder is now {trash}", undo)


def rename_study(folder: StudyFolder, new: str) -> Done:
    """Give a study another name: in MLflow, then its folder, then its storage and files, which `repair` can finish.

    Raises:
        BadInput: the study is running, or the name is taken or not allowed; nothing is changed.
        TrackingUnavailable: MLflow does not answer; nothing is changed.
    """
    old, renamed = folder.name, StudyFolder(folder.lab, new)
    folder.read_study()
    read_study(folder.canonical_file, [f"--name {new}"])
    if renamed.path.exists():
        raise BadInput(f"{renamed.path} exists already; give another name")
    with folder.held(_in_use(folder)):
        rename_experiment(folder.lab, old, tracking_uri_of(folder), new)
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
            if file.exists():  # a plan is written after the storage
                write_json(file, folder.read(file) | {"name": folder.name})
    return True


def _in_use(folder: StudyFolder) -> str:
    return f"study {folder.name} is running; stop it first: {folder.command('stop')}"


def describe(spec: StudySpec, folder: StudyFolder, plan: Plan) -> Description:
    """Return what tracking stores about a study before it runs."""
    from sweeplab.tracking.environment import changes, environment

    repository = spec.source and spec.source.parent
    about = {"data": plan.data.as_dict(), "baselines": folder.baselines}
    return {
        "study": folder.read_study(),
        "changes": changes(repository) if spec.track.diff else {},
        "plan": plan.as_dict(),
        "environment": environment(repository) | about,
        "params": {
            "sampler": plan.sampler,
            "pruner": plan.pruner,
            "seeds": str(spec.as_written()["seeds"]),
            "budget": spec.budget.model_dump_json(),
        },
        "note": f"## Plan\n\n```\n{plan!r}\n```",
        "summary": summarize(folder, "running"),
    }


def summarize(folder: StudyFolder, state: str) -> StudySummary:
    """Return a study's state: its runs by state, and its best trial."""
    summary: StudySummary = {
        "state": state,
        "counts": folder.states(),
        "metric": find_metric(folder),
    }
    ranked = StudyTrials(folder).ranked()
    if ranked:
        best = ranked[0]
        summary["best_value"], summary["best_run"] = best.value, best.start.key
        summary["best_searched"] = best.start.sampled
    return summary


def publish(folder: StudyFolder, cell: str | None = None) -> Published:
    """Register the model of the best trial, of the study or of a cell, in MLflow's registry, with the alias `best`.

    Raises:
        BadInput: there is no such trial or cell, or the trial kept no checkpoint.
        TrackingUnavailable: MLflow does not answer.
    """
    from sweeplab.tracking.models import publish_model

    best = StudyTrials(folder).find(cell)
    run = best.runs[0]
    if not run.checkpoint():
        keep = "track: {checkpoints: best} keeps one"
        raise BadInput(f"trial {best.number} in cell {best.cell} kept no checkpoint; {keep}")
    return publish_model(folder.lab, folder.name, tracking_uri_of(folder), run)


def keep_note(folder: StudyFolder, text: str, trial: tuple[str, int] | None = None) -> Done:
    """Keep a note of a study or of a trial, given by cell and number, and show it in MLflow.

    Raises:
        BadInput: there is no such trial, or the note is too long.
    """
    text = text.strip()
    write_note(folder, text, trial)
    about = f"trial {trial[1]} in cell {trial[0]}" if trial else folder.name
    kept = f"the note of {about} is kept"
    try:
        tracker = open_tracker(folder.lab, folder.name, tracking_uri_of(folder))
        tracker.annotate(text, trial and folder.runs_of(*trial))
    except (BadInput, TrackingUnavailable) as error:
        return Done(f"{kept}, but MLflow does not show it: {error}", [])
    return Done(kept, [])


def rerun_text(trial: Trial) -> str:
    """Return a study file of one trial that fixes all of its hyperparameters, also those of this machine.

    On a CPU it reproduces the loss bit for bit: a run's numbers depend on its hyperparameters, its seed, its data and,
    in larger models with several threads, the stack. A trial that was cut short is trained to its end.
    """
    folder = trial.study
    spec = read_spec(folder)
    study = spec.as_written()
    order, offset = spec.seed_numbers, min(trial.seeds) - min(spec.seed_numbers)
    values = trial.values | dict.fromkeys(LENGTHS[:-1])  # max_iters alone says how long
    written: Mapping[str, Any] = {
        "name": _name(trial),
        "plugins": [{"file": each.file, "sha256": each.sha256} for each in spec.plugins],
        "data": study["data"],
        "fixed": values,
        "objective": study["objective"],
        "budget": {"trials_per_cell": 1},
        "pruner": "none",
        # The last bit of their mean depends on the order.
        "seeds": sorted(trial.seeds, key=lambda seed: order.index(seed - offset)),
        "engine": {"workers": 1, "threads": trial.start.threads},
        "track": study["track"],
        "init_from": study.get("init_from"),
    }
    value = "no value" if trial.value is None else f"{spec.objective.label} {trial.value!r}"
    again = "On one CPU with the same packages it comes to this value again; otherwise up to the rounding of sums."
    if trial.is_cut_short:
        again = "It was cut short, and is trained to its end here."
    tokens = folder.data.token_digest[:DIGEST_CHARACTERS]
    what = f"Trial {trial.number} in cell {trial.cell} of study {folder.name}: {trial.state}, {value}."
    return study_file(written, [what, f"Its tokens have the sha256 {tokens}….", again])


def _name(trial: Trial) -> str:
    name, end = trial.study.name, f"-{trial.number}"
    if trial.cell != "all":
        name += "-" + re.sub(r"[^\w.-]+", "", trial.cell.replace(",", "-"))
    return name[: 100 - len(end)] + end  # the longest name of a study
