"""What a study tells tracking of itself: what it was to do, and how it stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sweeplab.lab.best import Trial, best_by_task, has_one_task, read_trials
from sweeplab.records.folders import StudyFolder
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


def summarize(folder: StudyFolder, state: str) -> Summary:
    """Return how a study stands: its runs by state, and its best trials; of unlike tasks none is best of all."""
    by_task = best_by_task(folder, read_trials(folder))
    best = by_task[0][0] if by_task and has_one_task(folder) else None
    share = -(-N_BEST // max(1, len(by_task)))
    return {
        "state": state,
        "counts": folder.states(),
        "metric": folder.read(folder.canonical_file)["objective"]["metric"],
        "best_value": best.value if best else None,
        "best_run": best.start.key if best else None,
        "best_trials": [_described(trial) for own in by_task for trial in own[:share]],
    }


def _described(trial: Trial) -> dict[str, Any]:
    """Return what tracking shows of one of the best trials: a run of it, its value, its size, what was sampled."""
    start = trial.start
    return {"key": start.key, "value": trial.value, "n_params": start.facts["n_params"], **start.sampled}


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
        f"{budget}{cells}: {size} parameters, {data.corpus} by {data.tokenizer}, "
        f"{data.train_tokens:,} tokens to train on.",
    ]
    if searched := spec.as_written()["search"]:
        lines += ["", "| searched | |", "|---|---|"]
        lines += [f"| {name} | {_in_words(search)} |" for name, search in searched.items()]
    return "\n".join(lines)


def _in_words(search: Mapping[str, Any]) -> str:
    return ", ".join(name if value is True else f"{name} {value}" for name, value in search.items())
