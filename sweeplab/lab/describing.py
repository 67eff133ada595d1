"""A study in other words: what tracking stores about it, which of its models to register, a study file of one trial."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sweeplab.errors import BadInput, TrackingUnavailable
from sweeplab.lab.identity import DIGEST_CHARACTERS
from sweeplab.lab.listing import StudyTrials, Trial, find_metric, read_spec, tracking_uri_of
from sweeplab.lab.moving import Done
from sweeplab.records.folders import StudyFolder
from sweeplab.records.notes import write_note
from sweeplab.study.file.template import study_file
from sweeplab.study.problems import LENGTHS
from sweeplab.tracking import open_tracker

if TYPE_CHECKING:
    from sweeplab.study.plan import Plan
    from sweeplab.study.spec import StudySpec
    from sweeplab.tracking.models import Published
    from sweeplab.tracking.tracker import Description, StudySummary


def describe(spec: StudySpec, folder: StudyFolder, plan: Plan) -> Description:
    """Return what tracking stores about a study before it runs."""
    from sweeplab.tracking.environment import environment

    where = environment(spec.source and spec.source.parent)
    return {
        "study": folder.read_study(),
        "plan": plan.as_dict(),
        "environment": where | {"data": plan.data.as_dict(), "baselines": folder.baselines},
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
    """Return a study's state: its runs by state, and its best trial; no single best if its tasks differ."""
    summary: StudySummary = {
        "state": state,
        "counts": folder.states(),
        "metric": find_metric(folder),
        "elapsed_seconds": folder.elapsed_seconds,
    }
    by_task = StudyTrials(folder).by_task()
    if len(by_task) == 1:
        best = by_task[0][0]
        summary["best_value"], summary["best_run"] = best.value, best.start.key
        summary["best_searched"] = best.start.sampled
    return summary


def publish(folder: StudyFolder, cell: str | None = None, name: str | None = None) -> Published:
    """Register the model of the best trial, of the study or of a cell, in MLflow's registry, with the alias `best`.

    Raises:
        BadInput: there is no such trial or cell, or the trial kept no checkpoint.
        TrackingUnavailable: MLflow does not answer.
    """
    from sweeplab.tracking.models import publish_model

    best = StudyTrials(folder).find(cell)
    losses = {run: end.best_val_loss or math.inf for run, end in zip(best.runs, best.ends, strict=True)}
    kept = [run for run in losses if run.checkpoint()]
    if not kept:
        keep = "track: {checkpoints: best} keeps one"
        raise BadInput(f"trial {best.number} in cell {best.cell} kept no checkpoint; {keep}")
    lowest = min(kept, key=losses.__getitem__)
    return publish_model(folder.lab, folder.name, tracking_uri_of(folder), lowest, name or folder.name)


def keep_note(
    folder: StudyFolder, text: str, tags: Sequence[str] = (), trial: tuple[str, int] | None = None
) -> Done:
    """Keep a note of a study or of a trial, given by cell and number, and show it in MLflow.

    Raises:
        BadInput: there is no such trial, or the note is too long.
    """
    note = write_note(folder, text, tags, trial)
    about = f"trial {trial[1]} in cell {trial[0]}" if trial else folder.name
    kept = f"the note of {about} is kept"
    try:
        tracker = open_tracker(folder.lab, folder.name, tracking_uri_of(folder))
        runs = trial and [run for run in folder.runs() if (run.cell, run.trial) == trial]
        tracker.annotate(note.text, note.tags, runs)
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
    study, data = spec.as_written(), folder.read(folder.data_file)
    order, offset = spec.seed_numbers, min(trial.seeds) - min(spec.seed_numbers)
    values = trial.values | dict.fromkeys(LENGTHS[1:])  # max_iters alone says how long
    written: Mapping[str, Any] = {
        "name": _name(trial),
        "plugins": [{"file": each.file, "sha256": each.sha256} for each in spec.plugins],
        "data": study["data"],
        "fixed": values | {name: list(value) for name, value in values.items() if isinstance(value, tuple)},
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
    tokens = data["token_digest"][:DIGEST_CHARACTERS]
    what = f"Trial {trial.number} in cell {trial.cell} of study {folder.name}: {trial.state}, {value}."
    return study_file(written, [what, f"Its tokens have the sha256 {tokens}….", again])


def _name(trial: Trial) -> str:
    name, end = trial.study.name, f"-{trial.number}"
    if trial.cell != "all":
        name += "-" + re.sub(r"[^\w.-]+", "", trial.cell.replace(",", "-"))
    return name[: 100 - len(end)] + end  # the longest name of a study
