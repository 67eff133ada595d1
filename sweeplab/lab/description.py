"""What a study tells tracking of itself: what it was to do, and how it stands."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import RunFolder, RunStart
from sweeplab.lab.identity import as_written
from sweeplab.lab.listing import has_one_task, task_in
from sweeplab.tracking.tracker import Description, Summary

if TYPE_CHECKING:
    from sweeplab.study.plan import Plan
    from sweeplab.study.spec import StudySpec

N_BEST = 20


def describe(spec: StudySpec, folder: StudyFolder, plan: Plan) -> Description:
    """Return what tracking keeps of a study that is about to be run."""
    from sweeplab.tracking.environment import environment

    where = environment(spec.source.parent if spec.source else None)
    return {
        "study": folder.study_file.read_text(encoding="utf-8"),
        "plan": plan.as_dict(),
        "environment": where | {"data": plan.data, "baselines": folder.baselines},
        "params": {
            "sampler": plan.sampler,
            "pruner": plan.pruner,
            "seeds": str(spec.written_seeds),
            "budget": spec.budget.model_dump_json(),
        },
        "note": plan_in_words(spec, plan),
        "summary": summarize(folder, "running"),
    }


def summarize(folder: StudyFolder, state: str) -> Summary:
    """Return how a study stands: its runs by state, and its best trials; of unlike tasks none is best of all."""
    trials = best_trials(folder)
    best = trials[0] if trials and has_one_task(folder) else {"value": None, "key": None}
    return {
        "state": state,
        "counts": folder.states(),
        "best_val_loss": best["value"],
        "best_run": best["key"],
        "best_trials": trials,
    }


def best_trials(folder: StudyFolder, most: int = N_BEST) -> list[dict[str, Any]]:
    """Return the trials of the lowest values, best first: a run of it, its value, its size, what was sampled.

    Where runs are to find unlike things these are the best of each.
    """
    trials: dict[tuple[str, int], tuple[float, RunFolder]] = {}
    for run in folder.runs():
        end = run.read_end()
        if end and end.ending.outcome.has_value and end.value is not None:
            # All runs of a trial have its value, the mean over its seeds.
            trials.setdefault((run.cell, run.trial), (end.value, run))
    by_task: dict[str, list[tuple[float, RunFolder]]] = defaultdict(list)
    task = task_in(folder)
    for value, run in trials.values():
        by_task[task(run)].append((value, run))
    share = -(-most // max(1, len(by_task)))
    found = [
        trial for own in by_task.values() for trial in heapq.nsmallest(share, own, key=lambda each: each[0])
    ]
    return [_trial(value, run.read_start()) for value, run in found]


def _trial(value: float, start: RunStart) -> dict[str, Any]:
    return {"key": start.key, "value": value, "n_params": start.facts["n_params"], **start.sampled}


def plan_in_words(spec: StudySpec, plan: Plan) -> str:
    """Write what the study is to do, in Markdown."""
    sizes = sorted(cell.n_params for cell in plan.cells)
    size = f"{sizes[0]:,}" + (f" to {sizes[-1]:,}" if sizes[-1] > sizes[0] else "")
    budget = "" if plan.trials is None else f"{plan.trials:,} trials ({plan.runs:,} runs) in "
    cells = f"{len(plan.cells)} cells" if len(plan.cells) > 1 else "one cell"
    data = plan.data
    lines = [
        "## Plan",
        "",
        f"{budget}{cells}: {size} parameters, {data['corpus']} by {data['tokenizer']}, "
        f"{data['train_tokens']:,} tokens to train on.",
    ]
    if searched := as_written(spec)["search"]:
        lines += ["", "| searched | |", "|---|---|"]
        lines += [f"| {name} | {_in_words(search)} |" for name, search in searched.items()]
    return "\n".join(lines)


def _in_words(search: Mapping[str, Any]) -> str:
    return ", ".join(name if value is True else f"{name} {value}" for name, value in search.items())
