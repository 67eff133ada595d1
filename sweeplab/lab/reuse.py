"""Study files made from a study: the study under another name, or one of its trials to be trained again."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sweeplab.errors import BadInput
from sweeplab.hyperparameters import AUTO
from sweeplab.lab.identity import DIGEST_CHARACTERS
from sweeplab.lab.listing import Trial, check_free, read_spec
from sweeplab.records.folders import StudyFolder
from sweeplab.study.file.document import REMOVED, edited
from sweeplab.study.file.reading import read_study, read_text
from sweeplab.study.file.template import study_file
from sweeplab.study.plan import CPU_STACK_BELOW_PARAMS
from sweeplab.study.problems import Location
from sweeplab.study.rules import facts

if TYPE_CHECKING:
    from sweeplab.study.spec import StudySpec

LONGEST_NAME = 100
# Parts of a study file that can be written in several ways, so that a change replaces the whole part.
_WHOLE = ("sampler", "pruner")


def clone_text(folder: StudyFolder, name: str, overrides: Sequence[str] = ()) -> str:
    """Return the file of a study as it was last run, with another name and `name=value` overrides.

    Comments and unchanged parts stay as the user wrote them. Paths become absolute. Plugins are listed by their files
    only, to be imported anew.

    Raises:
        BadInput: the name is taken or not allowed, or an override is wrong.
    """
    check_free(folder.lab, name)
    wanted = read_study(folder.canonical_file, overrides, name).as_written()
    # Read the study without importing its plugins: the names of their parts are recorded.
    known = [f"plugins={json.dumps(wanted['plugins'])}"] if "plugins" in wanted else []
    if known:
        wanted["plugins"] = [each["file"] for each in wanted["plugins"]]
    written = folder.study_file.read_text(encoding="utf-8-sig")
    try:
        said = read_text(written, folder.study_file, known).as_written()
        text = edited(written, _changes(said, wanted))
        if known or read_text(text, folder.study_file).as_written() == wanted:
            return text
    except BadInput:  # the file is a complete study only with the overrides of its run
        pass
    return study_file(wanted, [f"Study {folder.name}, as {name}"])


def _changes(said: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[Location, Any]:
    """Return what to set and remove in the file of the study `said` to get the study `wanted`."""
    changes: dict[Location, Any] = {}
    for part in dict.fromkeys([*said, *wanted]):
        old, new = said.get(part), wanted.get(part)
        if old == new:
            continue
        if part in _WHOLE or not isinstance(old, dict) or not isinstance(new, dict):
            changes[part,] = REMOVED if new is None else new
            continue
        for key in dict.fromkeys([*old, *new]):
            if key not in new or (new[key] is None and part != "fixed"):  # in fixed null switches it off
                changes[part, key] = REMOVED
            elif key not in old or old[key] != new[key]:
                changes[part, key] = new[key]
    return changes


def rerun_text(trial: Trial) -> str:
    """Return a study file of one trial that fixes all of its hyperparameters, also those of this machine.

    On a CPU it reproduces the loss bit for bit, and says so if that is certain: a run's numbers depend on its
    hyperparameters, its seed, its data and, in larger models, the number of threads. A trial that was cut short is
    trained to its end.
    """
    folder = trial.study
    spec = read_spec(folder)
    study, data = spec.as_written(), folder.read(folder.data_file)
    order = spec.seed_numbers
    # As the study file has it: runs of an earlier version recorded a default project.
    values = {**trial.values, "wandb_project": spec.fixed.get("wandb_project"), "epochs": None}
    written: Mapping[str, Any] = {
        "name": _name(trial),
        "plugins": [{"file": each.file, "sha256": each.sha256} for each in spec.plugins],
        "data": study["data"],
        "fixed": {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()},
        "objective": study["objective"],
        "budget": {"trials_per_cell": 1},
        "pruner": "none",
        "seeds": sorted(trial.seeds, key=order.index),  # the last bit of their mean depends on the order
        "engine": {"workers": 1, "threads": trial.start.threads},
        "track": study["track"],
        "init_from": study.get("init_from"),
    }
    said = f"{spec.objective.metric} {trial.value!r}" if trial.value is not None else "no value"
    if trial.is_cut_short:
        again = "It was cut short, and is trained to its end here."
    elif _is_exact(trial, spec):
        again = "On this machine, with the same packages, it comes to this value again, to the last bit."
    else:
        again = "It comes to this value again, up to the rounding of sums over several threads or on a GPU."
    comments = [
        f"Trial {trial.number} in cell {trial.cell} of study {folder.name}: {trial.state}, {said}.",
        f"Its text has the sha256 {data['text_digest'][:DIGEST_CHARACTERS]}…, "
        f"its tokens {data['token_digest'][:DIGEST_CHARACTERS]}….",
        again,
    ]
    return study_file(written, comments)


def _name(trial: Trial) -> str:
    cell = "" if trial.cell == "all" else "-" + re.sub(r"[^\w.-]+", "", trial.cell.replace(",", "-"))
    end = f"-{trial.number}"
    return f"{trial.study.name}{cell}"[: LONGEST_NAME - len(end)] + end


def _is_exact(trial: Trial, spec: StudySpec) -> bool:
    """Return whether a rerun has the same bits: with several threads, a larger model's depend on its stack's size."""
    values, threads = trial.start.values, trial.start.threads
    was_alone = len(trial.seeds) == 1 and spec.engine.stack in (AUTO, 1)
    is_small = facts(values).n_params < CPU_STACK_BELOW_PARAMS
    return values.device == "cpu" and (threads == 1 or was_alone or is_small)
