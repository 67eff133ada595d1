"""What tracking stores about a study: its plan, its state, and which of its models to register."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from sweeplab.errors import BadInput
from sweeplab.formatting import several
from sweeplab.lab.listing import (
    Trial,
    best_by_task,
    find_best,
    find_metric,
    has_one_task,
    read_trials,
    tracking_uri_of,
)
from sweeplab.lab.showing import how_to_use
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import RunFolder

if TYPE_CHECKING:
    from sweeplab.study.plan import Plan
    from sweeplab.study.spec import StudySpec
    from sweeplab.tracking.models import Published
    from sweeplab.tracking.tracker import Description, StudySummary

_N_BEST = 20


def describe(spec: StudySpec, folder: StudyFolder, plan: Plan) -> Description:
    """Return what tracking stores about a study before it runs."""
    from sweeplab.tracking.environment import environment

    where = environment(spec.source.parent if spec.source else None)
    return {
        "study": folder.study_file.read_text(encoding="utf-8"),
        "plan": plan.as_dict(),
        "environment": where | {"data": plan.data.as_dict(), "baselines": folder.baselines},
        "params": {
            "sampler": plan.sampler,
            "pruner": plan.pruner,
            "seeds": str(spec.as_written()["seeds"]),
            "budget": spec.budget.model_dump_json(),
        },
        "note": plan_in_words(spec, plan),
        "summary": summarize(folder, "running"),
    }


def summarize(folder: StudyFolder, state: str) -> StudySummary:
    """Return a study's state: its runs by state, and its best trials; no single best if its tasks differ."""
    by_task = best_by_task(folder, read_trials(folder))
    best = by_task[0][0] if by_task and has_one_task(folder) else None
    share = -(-_N_BEST // max(1, len(by_task)))
    shown = [(trial.start, trial.value) for own in by_task for trial in own[:share]]
    return {
        "state": state,
        "counts": folder.states(),
        "metric": find_metric(folder),
        "best_value": best.value if best else None,
        "best_run": best.start.key if best else None,
        "best_trials": [
            {"key": start.key, "value": value, "n_params": start.facts["n_params"], **start.sampled}
            for start, value in shown
        ],
        "elapsed_seconds": folder.elapsed_seconds,
        "checkpoints": best_checkpoints(by_task),
        "commands": _how_to_go_on(folder, best, state),
    }


def best_checkpoints(by_task: Iterable[Sequence[Trial]]) -> dict[str, RunFolder]:
    """Return by cell the run with the lowest loss, among the seeds of the cell's best trial with a checkpoint."""
    found: dict[str, RunFolder] = {}
    for trial in (each for own in by_task for each in own):
        if trial.cell not in found:
            kept = [(end, run) for run in trial.runs if run.checkpoint() and (end := run.read_end())]
            if kept:
                found[trial.cell] = min(kept, key=lambda each: each[0].best_val_loss or math.inf)[1]
    return found


def _how_to_go_on(folder: StudyFolder, best: Trial | None, state: str) -> list[str]:
    """Return the commands that come next: continue an incomplete study, else use its best trial."""
    if state != "complete":
        return [folder.command("run")]
    used = [how_to_use(best)["generate"], folder.command("study publish")] if best else []
    return [*used, folder.command("study confirm")]


def publish(folder: StudyFolder, cell: str | None = None, name: str | None = None) -> Published:
    """Register the model of the best trial, of the study or of a cell, in MLflow's registry, with the alias `best`.

    Raises:
        BadInput: there is no such trial or cell, or the trial kept no checkpoint.
        TrackingUnavailable: MLflow does not answer.
    """
    from sweeplab.tracking.models import publish_model

    best = find_best(folder, cell)
    found = best_checkpoints([[best]])
    if not found:
        keep = "track: {checkpoints: best} keeps one"
        raise BadInput(f"trial {best.number} in cell {best.cell} kept no checkpoint; {keep}")
    uri = tracking_uri_of(folder)
    return publish_model(folder.lab, folder.name, uri, found[best.cell], name or folder.name)


def plan_in_words(spec: StudySpec, plan: Plan) -> str:
    """Write a study's plan in Markdown."""
    sizes = sorted(cell.n_params for cell in plan.cells)
    size = f"{sizes[0]:,}" + (f" to {sizes[-1]:,}" if sizes[-1] > sizes[0] else "")
    budget = (
        ""
        if plan.trials is None
        else f"{several(plan.trials, 'trial')} ({several(plan.runs or 0, 'run')}) in "
    )
    cells = f"{len(plan.cells)} cells" if len(plan.cells) > 1 else "one cell"
    data = plan.data
    lines = [
        "## Plan",
        "",
        f"{budget}{cells}: {size} parameters, {data.corpus} by {data.tokenizer}, "
        f"{data.train_tokens:,} tokens to train on.",
    ]
    if searched := spec.as_written()["search"]:
        lines += ["", "| searched | |", "|---|---|"]
        for name, search in searched.items():
            said = ", ".join(key if value is True else f"{key} {value}" for key, value in search.items())
            lines.append(f"| {name} | {said} |")
    return "\n".join(lines)
