"""Plain data about the lab, for display: its studies, one study, one trial, and how two studies differ."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from socket import gethostname
from statistics import fmean
from typing import Any

from sweeplab.data.task import task_of
from sweeplab.errors import BadInput, DamagedFile, Problem, nearest
from sweeplab.formatting import counts, several, several_named
from sweeplab.hyperparameters import AUTO, TABLE
from sweeplab.lab.findings import find_limits
from sweeplab.lab.identity import differences, read_orders
from sweeplab.lab.listing import (
    StudyState,
    StudyTrials,
    Trial,
    cell_limits,
    find_metric,
    has_one_task,
    pick_trial,
    read_budget,
    read_trials,
    study_state,
)
from sweeplab.lab.storage import TrialCounts, count_trials
from sweeplab.records.folders import StudyFolder, WorkerPlace, named_cell
from sweeplab.records.notes import read_notes
from sweeplab.records.runs import (
    MEASURES,
    RunFolder,
    RunStart,
    RunState,
    read_gradients,
    run_key,
)

# ------------------------------------------------------------------ studies


def study_row(folder: StudyFolder, job: str = "") -> dict[str, Any]:
    """Return a study's state, its trials by state, its best value and its folder.

    `state` is that of `study_state`, or queued with a `job` that is to run the study; `last` is when the last trial
    ended or started, in this machine's time, and `age` the seconds since; `best_value` is that of the chosen trial.
    """
    cells = count_trials(folder).values()
    states = sum((each.states for each in cells), Counter[str]())
    best = goal = planned = age = None
    state = StudyState.INTERRUPTED
    with suppress(DamagedFile):  # `show` and `doctor` say what is wrong
        if read_budget(folder)["trials_per_cell"] is not None:
            planned = sum(limit or 0 for limit in cell_limits(folder).values())
        state = StudyState.QUEUED if job else study_state(folder)
        metric = find_metric(folder)
        goal = f"{'highest' if metric.startswith('-') else 'lowest'} {metric.removeprefix('-')}"
        by_task = StudyTrials(folder).by_task()
        if len(by_task) == 1:
            best = by_task[0][0].value
    last = max((each.last for each in cells), default="") or None
    if last:
        age = max(0.0, (datetime.now() - datetime.fromisoformat(last)).total_seconds())
    return {
        "name": folder.name,
        "state": state,
        "done": sum(each.counted for each in cells),
        "planned": planned,
        "goal": goal,
        "last": last,
        "age": age,
        "trials": sum(states.values()),
        "states": dict(states),
        "best_value": best,
        "folder": str(folder.path),
    }


def places_in_words(places: Sequence[WorkerPlace]) -> str:
    """Say how many workers are queued, and how many run on which machine; an empty text if all run here."""
    if all((place.state, place.node) == ("running", gethostname()) for place in places):
        return ""
    numbers = Counter[str]()
    for place in places:
        queued = f"queued ({place.why})" if place.why else "queued"
        numbers[f"running on {place.node}" if place.state == "running" else queued] += 1
    return f"workers: {several_named([f'{count} {how}' for how, count in sorted(numbers.items())])}"


def states_in_words(states: Mapping[str, int]) -> str:
    """Write how many runs or trials are in each state."""
    return counts(dict(sorted(states.items())))


def show_study(folder: StudyFolder, only: str | None = None, job: str = "") -> dict[str, Any]:
    """Return a study's cells with their trials, runs by state and best values, its best run, and what failed.

    `trials` counts the trials that use up the budget, of `n_trials` in all (null if only time or FLOPs end the study;
    a cell has no more trials than points), `enqueued` those that run next, `known` those of a warm start. `baselines`
    has the n-gram baseline of each cell, `removed` the values that only older versions train, `workers` the place of
    each worker that runs or is queued. Values are of the `metric`. Cells stand in the order of the grid, former cells
    last. If tasks differ there is no best. `findings` say
    what limited the best trials. With `only`, all is about this cell. `job` says what is known of one that waits in
    a cluster's queue to run the study.

    Raises:
        BadInput: the study has no such cell.
    """
    # Read without a check, as it was checked when it was run: the rules of samplers import Optuna.
    plan = folder.read(folder.plan_file)
    ranked, counts, baselines = StudyTrials(folder), count_trials(folder), folder.baselines
    trials, limits = ranked.all, cell_limits(folder)
    by_cell: dict[str, list[Trial]] = {cell["cell"]: [] for cell in plan["cells"]}
    for trial in trials:
        by_cell.setdefault(trial.cell, []).append(trial)
    if only is not None:
        only = named_cell(folder.name, by_cell, only)
        trials = by_cell[only]
        by_cell = {only: trials}
        baselines = {cell: baseline for cell, baseline in baselines.items() if cell == only}
    # By cell, how many trials came from each source; no other number counts them.
    warm_start = folder.read_if_written(folder.warm_start_file)
    cells = []
    for cell, members in by_cell.items():
        row = _cell_row(ranked, cell, members)
        row["enqueued"] = counts.get(cell, TrialCounts()).states["enqueued"]
        row["n_trials"] = limits.get(cell)
        row["known"] = sum(warm_start.get(cell, {}).values())
        row["baseline"] = baselines.get(cell, {}).get("loss")
        cells.append(row)
    best, of_task, choice = None, ranked.by_task(only), ranked.choice(only)
    if of_task and has_one_task(folder):
        chosen = of_task[0][0]
        best = {
            "key": chosen.start.key,
            "value": chosen.value,
            "sampled": chosen.start.sampled,
            "folder": str(chosen.runs[0].path),
            "choice": choice and choice.as_dict(),
            "choice_in_words": choice and choice.in_words(folder.command("confirm")),
        }
    failures = []
    for trial in trials:
        for seed, state in trial.ending.states.items() if trial.ending else ():
            if trial.ending and state is RunState.FAILED:
                last_line = (trial.ending.error or "").strip().rpartition("\n")[2]
                failures.append({"key": run_key(trial.cell, trial.number, seed), "error": last_line})
    return {
        "name": folder.name,
        "state": StudyState.QUEUED if job else study_state(folder),
        "job": job or None,
        "metric": plan["metric"],
        "trials_per_cell": read_budget(folder)["trials_per_cell"],
        "cells": cells,
        "orders": [asdict(order) for order in read_orders(folder) if order.value != order.file],
        "notes": {place: note.text for place, note in read_notes(folder).items() if note.text},
        "warm_start": warm_start,
        "baselines": baselines,
        "reaches": plan.get("reaches", []),
        "removed": _removed_choices(trials),
        "mirror": plan.get("mirror") or None,
        "workers": [worker.as_dict() for worker in folder.workers],
        "best": best,
        "findings": [finding.as_dict() for finding in find_limits(ranked, only)],
        "failures": failures,
    }


def trial_rows(ranked: StudyTrials, cell: str | None = None, sort: str | None = None) -> list[dict[str, Any]]:
    """Return a row per trial of a study, or of a cell: the best first, then those without a value.

    With `sort` they are in the order of that column, the lowest first.

    Raises:
        BadInput: there is no such cell or column.
    """
    cell = ranked.cell_named(cell)
    trials = [trial for of_task in ranked.by_task(cell) for trial in of_task]
    trials += [trial for trial in ranked.all if trial not in trials and cell in (None, trial.cell)]
    metric = find_metric(ranked.folder)
    rows = list[dict[str, Any]]()
    for trial in trials:
        row = {
            "cell": trial.cell,
            "trial": trial.number,
            "state": str(trial.state),
            metric: None if trial.state is RunState.DIVERGED else trial.value,
            "seeds": len(trial.seeds),
            "iteration": max((end.iteration for end in trial.ends), default=None),
        }
        rows.append(row | dict(trial.start.sampled))
    if sort is None:
        return rows
    known = list(dict.fromkeys(name for row in rows for name in row))
    if sort not in known:
        what = f"--sort {sort}: the trials have no such column"
        raise BadInput(Problem(what, ", ".join(known), nearest(sort, known)))
    return sorted(rows, key=lambda row: (row.get(sort) is None, row.get(sort) or 0))


def _removed_choices(trials: Sequence[Trial]) -> list[str]:
    """Return the values of the trials, as `attention=linear`, that older versions could train and this one cannot."""
    rows = {name: row.removed for name, row in TABLE.items() if row.removed}
    removed = set()
    for trial in trials:
        for name, values in rows.items():
            value = getattr(trial.start.values, name)
            if value in values:
                removed.add(f"{name}={value}")
    return sorted(removed)


def _cell_row(ranked: StudyTrials, cell: str, trials: list[Trial]) -> dict[str, Any]:
    by_task, choice, unfinished = ranked.by_task(cell), ranked.choice(cell), ranked.folder.unfinished
    best, measured = None, dict.fromkeys(MEASURES)
    if len(by_task) == 1:
        best = by_task[0][0]
        measured |= dict.fromkeys(name for end in best.ends for name in end.best)
    states = Counter(end.state for trial in trials for end in trial.ends)
    states[unfinished] += sum(len(trial.runs) - len(trial.ends) for trial in trials)
    shown = [*(state for state in RunState if state.is_finished), unfinished]
    return {
        "cell": cell,
        "n_params": next((trial.start.facts["n_params"] for trial in trials), None),
        "trials": sum(trial.ending.outcome.counts_towards_budget for trial in trials if trial.ending),
        **{str(state): states[state] for state in shown},
        "best_value": best and best.value,
        "expected": choice and choice.expected and choice.expected.value,
        **{name: best and _mean_over_seeds(best, f"best_{name}") for name in measured},
    }


def _mean_over_seeds(trial: Trial, name: str) -> float | None:
    ends = [end.as_json() for end in trial.ends]
    values = [end[name] for end in ends if end.get(name) is not None]
    return float(fmean(values)) if values else None


def how_to_use(trial: Trial, cell: str | None = None, number: int | None = None) -> dict[str, str]:
    """Return the commands that generate with a trial, train it again and open its study, by what they do.

    The trial is the best of its study or of the `cell`, or the one with the `number`.
    """
    if number is not None:
        cell = trial.cell
    return commands_about(trial.study, trial.start.values.objective, cell, number, trial.seeds[0])


def commands_about(
    study: StudyFolder, objective: str, cell: str | None = None, number: object = None, seed: object = 0
) -> dict[str, str]:
    """Return the commands of `how_to_use` for a trial with an objective; a `number` needs its cell and seed."""
    run, which = study.name, list[str]()
    if cell is not None:
        run, which = f"{study.name}/{cell}", ["--cell", cell]
    if number is not None:
        run, which = f"{run}/{number}-{seed}", [*which, "--trial", str(number)]
    file, of_run = f"{study.name}-best.yaml", StudyFolder(study.lab, run)
    again = StudyFolder(study.lab, file).command("run")
    use: tuple[str, ...] = ("predict", "TEXT")
    if objective in ("masked", "span"):
        use = ("generate", "--prompt", "The [MASK] is")
    elif objective in ("next_token", "pairs"):
        use = ("generate", "--prompt", "The ")
    return {
        "generate": of_run.command(*use),
        "rerun": f"{study.command('best', *which, '--output', file)} && {again}",
        "open": study.command("ui"),
    }


def baselines_in_words(baselines: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Say which loss n-grams reach: one line for all cells with the same baseline."""
    cells: dict[str, list[str]] = {}
    for cell, baseline in baselines.items():
        order, unit = baseline["order"], baseline.get("unit", "nats/token")
        text = f"{baseline['loss']:.4f} {unit}, by {baseline['method']}"
        if unit == "nats/token" and "n_counted" in baseline:
            text += f", counted in {several(baseline['n_counted'], 'token')}"
        text += f", order {order}"
        cells.setdefault(text, []).append(cell)
    if len(cells) == 1:
        return [f"n-gram baseline: {text}" for text in cells]
    return [f"n-gram baseline of {several_named(names)}: {text}" for text, names in cells.items()]


def is_close(one: float | None, other: float | None) -> bool:
    """Return whether two records hold the same number, up to rounding in text; NaN equals NaN."""
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=1e-9) or (math.isnan(one) and math.isnan(other))


# ------------------------------------------------------------------ one trial


def show_trial(folder: StudyFolder, number: int, cell: str | None = None) -> dict[str, Any]:
    """Return a trial's hyperparameters with their origins, and each of its runs: curve, end, checkpoint, time.

    Raises:
        BadInput: no trial of this number has started, or several cells have one.
    """
    trial = pick_trial(folder, read_trials(folder), number, cell)
    study = folder.read(folder.canonical_file)  # checked when it was run
    return {
        "study": folder.name,
        "cell": trial.cell,
        "trial": number,
        "state": trial.state,
        "metric": find_metric(folder),
        "value": trial.value,
        "error": trial.ending and trial.ending.error,
        "retries": trial.start.retries,
        "facts": trial.start.facts,
        "hyperparameters": [
            {"name": name, "value": value, "from": _origin(name, value, study, trial.start)}
            for name, value in trial.values.items()
        ],
        "runs": [_run(run, folder.unfinished) for run in trial.runs],
    }


def _origin(name: str, value: Any, study: Mapping[str, Any], start: RunStart) -> str:
    if name in start.sampled:
        if name in (start.enqueued or {}):
            return "enqueued"
        return "searched"
    if name in study["grid"]:
        return "grid"
    if any(name in changes and changes[name] == value for changes in study.get("cells", ())):
        return "cells"
    if name in study["search"] and "expr" in study["search"][name]:
        return "derived"
    origin, written = "default", TABLE[name].default
    if name in study["fixed"]:
        origin, written = "fixed", study["fixed"][name]
    if written == AUTO and value != AUTO:
        return f"{origin}, auto"
    return origin


def _run(run: RunFolder, unfinished: RunState) -> dict[str, Any]:
    start, points, end, checkpoint = run.read_start(), run.points(), run.read_end(), run.checkpoint()
    evaluations = [point.eval_seconds for point in points if point.eval_seconds is not None]
    total, evaluation = (points[-1].wall_seconds if points else 0.0), sum(evaluations)
    gradients = read_gradients(run)
    row = {
        "key": start.key,
        "seed": start.seed,
        "state": end.state if end else unfinished,
        "stop_reason": end and end.stop_reason,
        "iteration": points[-1].iteration if points else 0,
        "best_val_loss": end and end.best_val_loss,
        "whole_val_loss": end and end.whole_val_loss,
        "curve": [
            {name: getattr(point, name) for name in ("iteration", "train_loss", "val_loss", "learning_rate")}
            for point in points
        ],
        "checkpoint": checkpoint and str(checkpoint),
        "series": run.series(),
        "seconds": {"training": total - evaluation, "evaluation": evaluation, "total": total},
        "folder": str(run.path),
    }
    if gradients:
        row["gradient_flow"] = [asdict(point) for point in gradients]
    return row


# ------------------------------------------------------------------ two studies


def differ(a: StudyFolder, b: StudyFolder) -> dict[str, Any]:
    """Return how two studies differ, as plain data: by kind, a list of `place`, `a` and `b`.

    Results are the best values of every cell of either study, whether they differ or not. They have no `change` if
    texts or tasks differ; for the same text with other tokens they are in bits per byte, as `measure` says.
    """
    ours, theirs = (each.read(each.data_file) for each in (a, b))
    one, other = (each.read(each.canonical_file) | {"name": None} for each in (a, b))
    parts = {"file": (one, other), "data": (ours, theirs), "code": (a.read(a.code_file), b.read(b.code_file))}
    measure = "value" if ours["token_digest"] == theirs["token_digest"] else "best_bits_per_byte"
    of_a, of_b = (StudyTrials(study).best_of_cells() for study in (a, b))
    results = list[dict[str, Any]]()
    for cell in dict.fromkeys([*of_a, *of_b]):
        pair = [best[cell] for best in (of_a, of_b) if cell in best]
        row: dict[str, Any] = {"place": cell, "a": None, "b": None, "change": None}
        if cell in of_a:
            row["a"] = _mean_over_seeds(of_a[cell], measure)
        if cell in of_b:
            row["b"] = _mean_over_seeds(of_b[cell], measure)
        is_one_task = len({task_of(trial.start.values) for trial in pair}) == 1
        if row["a"] and row["b"] and is_one_task and ours["text_digest"] == theirs["text_digest"]:
            row["change"] = row["b"] - row["a"]
        results.append(row)
    return {
        "a": a.name,
        "b": b.name,
        **{part: [change._asdict() for change in differences(*both)] for part, both in parts.items()},
        "measure": measure,
        "precision": {study.name: study.dtype for study in (a, b) if a.dtype != b.dtype},
        "results": results,
    }


def differ_in_trials(a: Trial, b: Trial) -> list[dict[str, Any]]:
    """Return in what two trials differ: their hyperparameters, then how they ended."""
    rows = [{"name": name, "a": value, "b": b.values.get(name)} for name, value in a.values.items()]
    rows = [row for row in rows if row["a"] != row["b"]]
    rows.append({"name": "state", "a": str(a.state), "b": str(b.state)})
    rows.append({"name": "value", "a": a.value, "b": b.value})
    return rows
