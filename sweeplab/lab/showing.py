"""Plain data about one study or one trial, and about how two of them differ, for display."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from socket import gethostname
from statistics import fmean
from typing import Any

from sweeplab.data import task_of
from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.formatting import several_named
from sweeplab.hyperparameters import TABLE
from sweeplab.lab.findings import find_limits
from sweeplab.lab.listing import (
    StudyTrials,
    Trial,
    cell_limits,
    find_metric,
    read_budget,
    study_state,
)
from sweeplab.lab.storage import TrialCounts, count_trials
from sweeplab.records.folders import StudyFolder, WorkerPlace, command_in, named_cell
from sweeplab.records.kept import read_notes
from sweeplab.records.runs import (
    MEASURES,
    RunFolder,
    RunStart,
    RunState,
    run_key,
)


def places_in_words(places: Sequence[WorkerPlace]) -> str:
    """Say how many workers are queued, and how many run on which machine; an empty text if all run here."""
    if all((place.state, place.node) == ("running", gethostname()) for place in places):
        return ""
    numbers = Counter[str]()
    for place in places:
        queued = f"queued ({place.why})" if place.why else "queued"
        numbers[f"running on {place.node}" if place.state == "running" else queued] += 1
    return f"workers: {several_named([f'{count} {how}' for how, count in sorted(numbers.items())])}"


def show_study(folder: StudyFolder, only: str | None = None) -> dict[str, Any]:
    """Return a study's cells with their trials, runs by state and best values, its best run, and what failed.

    `trials` counts the trials that use up the budget, of `n_trials` in all (null if only time or FLOPs end the study; a
    cell has no more trials than points), `enqueued` those that run next. `removed` has the values that only older
    versions train, `workers` the place of each worker that runs or is queued. Values are of the `metric`. Cells stand
    in the order of the grid, former cells last. `findings` say what limited the best trials. With `only`, all is about
    this cell. What is no plain value has an `as_dict`, or is a dataclass.

    Raises:
        BadInput: the study has no such cell.
    """
    # Read without a check, as it was checked when it was run: the rules of samplers import Optuna.
    plan, ranked = folder.read(folder.plan_file), StudyTrials(folder)
    by_cell: dict[str, list[Trial]] = {cell["cell"]: [] for cell in plan["cells"]}
    for trial in ranked.all:
        by_cell.setdefault(trial.cell, []).append(trial)
    if only is not None:
        only = named_cell(folder.name, by_cell, only)
        by_cell = {only: by_cell[only]}
    counts, limits = count_trials(folder), cell_limits(folder)
    cells, failures, removed = [], [], set()
    for cell, trials in by_cell.items():
        count = counts.get(cell, TrialCounts())
        cells.append(
            _cell_row(ranked, cell, trials, count.counted)
            | {"n_trials": limits.get(cell), "enqueued": count.states["enqueued"]}
        )
        for trial in trials:
            for name, value in trial.values.items():
                if value in TABLE[name].removed:
                    removed.add(f"{name}={value}")
            if trial.ending is None:
                continue
            # Of a traceback the last line.
            error = (trial.ending.error or "").strip().rpartition("\n")[2]
            for seed, state in trial.ending.states.items():
                if state is RunState.FAILED:
                    key = run_key(cell, trial.number, seed)
                    failures.append({"key": key, "error": error})
    best, ended = None, ranked.ranked(only)
    if ended:
        chosen = ended[0]
        best = {
            "key": chosen.start.key,
            "value": chosen.value,
            "sampled": chosen.start.sampled,
            "folder": str(chosen.runs[0].path),
            "choice": ranked.choice(only),
        }
    return {
        "name": folder.name,
        "state": study_state(folder),
        "metric": plan["metric"],
        "trials_per_cell": read_budget(folder)["trials_per_cell"],
        "cells": cells,
        "notes": read_notes(folder),
        "reaches": plan.get("reaches", []),
        "removed": sorted(removed),
        "workers": folder.workers,
        "best": best,
        "findings": find_limits(ranked, only),
        "failures": failures,
    }


def _cell_row(
    ranked: StudyTrials, cell: str, trials: Sequence[Trial], n_counted: int
) -> dict[str, Any]:
    states, unfinished = Counter[RunState](), ranked.folder.unfinished
    for trial in trials:
        states.update(end.state for end in trial.ends)
        states[unfinished] += len(trial.runs) - len(trial.ends)
    row: dict[str, Any] = {"cell": cell, "n_params": None, "trials": n_counted}
    if trials:
        row["n_params"] = trials[0].start.facts["n_params"]
    for state in RunState:
        if state.is_finished or state is unfinished:
            row[state] = states[state]
    row |= dict.fromkeys(("best_value", "expected", *MEASURES))
    ended, choice = ranked.ranked(cell), ranked.choice(cell)
    if choice and choice.expected:
        row["expected"] = choice.expected.value
    if ended:
        best = ended[0]
        row["best_value"] = best.value
        measured = defaultdict(list)
        for end in best.ends:
            for name, value in end.best.items():
                measured[name].append(value)
        row |= {name: fmean(values) for name, values in measured.items()}
    return row


def trial_rows(
    ranked: StudyTrials, cell: str | None = None, sort: str | None = None
) -> list[dict[str, Any]]:
    """Return a row per trial of a study, or of a cell: the best first, then those without a value.

    With `sort` they are in the order of that column, the lowest first.

    Raises:
        BadInput: there is no such cell or column.
    """
    cell, metric = ranked.cell_named(cell), find_metric(ranked.folder)
    trials = ranked.ranked(cell)
    trials += [
        trial for trial in ranked.all if trial not in trials and cell in (None, trial.cell)
    ]
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

    def place(row: Mapping[str, Any]) -> tuple[bool, bool, Any]:
        value = row.get(sort)
        # A column may have numbers and words, such as auto.
        return value is None, isinstance(value, str), value or 0

    return sorted(rows, key=place)


def commands_about(
    study: StudyFolder,
    objective: str,
    cell: str | None = None,
    number: object = None,
    seed: object = 0,
) -> dict[str, str]:
    """Return the commands that generate with a trial, train it again and open its study, by what they do.

    The trial, with an objective, is the best of its study or of the `cell`, or the one with a `number` and a seed.
    """
    run, which = study.name, list[str]()
    if cell is not None:
        run += f"/{cell}"
        which += ["--cell", cell]
    if number is not None:
        run += f"/{number}-{seed}"
        which += ["--trial", str(number)]
    use = ["predict", run, "TEXT"]
    if objective in ("masked", "span"):
        use = ["generate", run, "--prompt", "The [MASK] is"]
    elif objective in ("next_token", "pairs"):
        use = ["generate", run, "--prompt", "The "]
    file = f"{study.name}-best.yaml"
    again = command_in(study.lab, "run", file)
    return {
        "generate": command_in(study.lab, *use),
        "rerun": f"{study.command('best', *which, '--output', file)} && {again}",
        "open": study.command("ui"),
    }


def show_trial(folder: StudyFolder, number: int, cell: str | None = None) -> dict[str, Any]:
    """Return a trial's hyperparameters with their origins, and each of its runs: curve, end, checkpoint.

    Raises:
        BadInput: no trial of this number has started, or several cells have one.
    """
    trial = StudyTrials(folder).find(cell, number)
    study = folder.read(folder.canonical_file)  # checked when it was run
    return {
        "study": folder.name,
        "cell": trial.cell,
        "trial": number,
        "state": trial.state,
        "metric": find_metric(folder),
        "value": trial.value,
        "error": trial.ending and trial.ending.error,
        "facts": trial.start.facts,
        "hyperparameters": [
            {"name": name, "value": value, "from": _origin(name, study, trial.start)}
            for name, value in trial.values.items()
        ],
        "runs": [_run(run, folder.unfinished) for run in trial.runs],
    }


def _origin(name: str, study: Mapping[str, Any], start: RunStart) -> str:
    if name in start.grid:
        return "grid"
    if name in (start.enqueued or {}):
        return "enqueued"
    if name in start.sampled:
        return "searched"
    if "expr" in study["search"].get(name, {}):
        return "derived"
    return "fixed" if name in study["fixed"] else "default"


def _run(run: RunFolder, unfinished: RunState) -> dict[str, Any]:
    points, end, checkpoint = run.points(), run.read_end(), run.checkpoint()
    return {
        "key": run_key(run.cell, run.trial, run.seed),
        "seed": run.seed,
        "state": end.state if end else unfinished,
        "stop_reason": end and end.stop_reason,
        "iteration": points[-1].iteration if points else 0,
        "best_val_loss": end and end.best_val_loss,
        "whole_val_loss": end and end.whole_val_loss,
        "curve": [
            {
                name: getattr(point, name)
                for name in ("iteration", "train_loss", "val_loss", "learning_rate")
            }
            for point in points
        ],
        "checkpoint": checkpoint and str(checkpoint),
        "folder": str(run.path),
    }


def differ(a: StudyFolder, b: StudyFolder) -> dict[str, Any]:
    """Return how two studies differ, as plain data: by kind, a list of `place`, `a` and `b`.

    Results are the best values of every cell of either study, whether they differ or not. They have no `change` if
    tokens or tasks differ.
    """
    # Which checks study files, by a library slow to import.
    from sweeplab.lab.studies import differences

    answer: dict[str, Any] = {"a": a.name, "b": b.name}
    for kind, file in (("file", "study"), ("data", "data"), ("code", "code")):
        one_file, other_file = (
            study.read(study.path / f"{file}.json") | {"name": None} for study in (a, b)
        )
        answer[kind] = [change._asdict() for change in differences(one_file, other_file)]
    has_same_tokens = a.data.token_digest == b.data.token_digest
    ours, theirs = StudyTrials(a).best_of_cells(), StudyTrials(b).best_of_cells()
    answer["results"] = []
    for cell in dict.fromkeys([*ours, *theirs]):
        one, other = ours.get(cell), theirs.get(cell)
        row: dict[str, Any] = {
            "place": cell,
            "a": one and one.value,
            "b": other and other.value,
            "change": None,
        }
        if (
            one
            and other
            and has_same_tokens
            and task_of(one.start.values) == task_of(other.start.values)
        ):
            row["change"] = row["b"] - row["a"]
        answer["results"].append(row)
    return answer


def differ_in_trials(a: Trial, b: Trial) -> list[dict[str, Any]]:
    """Return in what two trials differ: their hyperparameters, then how they ended."""
    ends = ("state", "value")
    one, other = (
        {**trial.values, "state": str(trial.state), "value": trial.value} for trial in (a, b)
    )
    return [
        {"name": name, "a": value, "b": other.get(name)}
        for name, value in one.items()
        if name in ends or value != other.get(name)
    ]
