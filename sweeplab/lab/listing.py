"""The studies of a lab, and how far each is, from what stands in its folder."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from sweeplab.data.task import TASK, have_one_task, task_of
from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.records.folders import StudyFolder, lab_folder
from sweeplab.records.runs import MEASURES, RunEnd, RunFolder, RunStart, RunState
from sweeplab.lab.tally import tallies

if TYPE_CHECKING:
    from sweeplab.study.spec import StudySpec


_Run = tuple[RunFolder, RunStart, RunEnd | None]

MOST_NAMED = 10
_CELLS_NAMED = 3


def study_names(lab: Path) -> list[str]:
    """Return the names of a lab's studies."""
    return sorted(file.parent.name for file in (lab / "studies").glob("*/study.json"))


def find_study(lab: Path | None, name: str) -> StudyFolder:
    """Return a study's folder.

    Raises:
        BadInput: there is no such study; offers the nearest name.
    """
    folder = lab_folder(lab)
    names = study_names(folder)
    if name not in names:
        if not names:
            raise BadInput(
                f"no study {name!r} in {folder}, which has none; --lab or SWEEPLAB_LAB name another lab"
            )
        known = f"{', '.join(names[:MOST_NAMED])}{', …' if len(names) > MOST_NAMED else ''}"
        raise BadInput(Problem(f"no study {name!r} in {folder}", known, nearest(name, names)))
    return StudyFolder(folder, name)


def read_spec(folder: StudyFolder, allow_plugins: bool = False) -> StudySpec:
    """Return the study as it was last run; without its plugins only the names of their parts are known."""
    from sweeplab.study.file.reading import read_study

    return read_study(folder.canonical_file, allow_plugins=allow_plugins)


def tracking_uri_of(folder: StudyFolder) -> str | None:
    """Return the tracking URI that the study file names, if it names one."""
    return read_spec(folder).track.uri


def study_rows(lab: Path) -> list[dict[str, Any]]:
    """Return a row a study: its trials by state, its best value, where it lies."""
    rows = []
    for name in study_names(lab):
        folder = StudyFolder(lab, name)
        cells = tallies(folder).values()
        states = sum((each.states for each in cells), Counter[str]())
        best = min((each.best for each in cells if each.best is not None), default=None)
        rows.append(
            {
                "name": name,
                "trials": sum(states.values()),
                "states": dict(states),
                "best_value": best if best is not None and has_one_task(folder) else None,
                "folder": str(folder.path),
            }
        )
    return rows


def has_one_task(folder: StudyFolder) -> bool:
    """Say whether all runs of a study are to find one thing; they are read only where its plan lets them differ."""
    cells = folder.read(folder.plan_file)["cells"]
    may_differ = any(name in TASK for cell in cells for name in (*cell["values"], *cell["search"]))
    return not may_differ or have_one_task(run.read_start().values for run in folder.runs())


def task_in(folder: StudyFolder) -> Callable[[RunFolder], str]:
    """Return what says of a study's run what it is to find; nothing is read of it where all are to find one thing."""
    if has_one_task(folder):
        return lambda run: ""
    return lambda run: task_of(run.read_start().values)


def states_in_words(states: Mapping[str, int]) -> str:
    """Write how many runs or trials are in each state."""
    return ", ".join(f"{count} {state}" for state, count in sorted(states.items()))


def show_study(folder: StudyFolder) -> dict[str, Any]:
    """Return a study's cells with their trials, runs by state and best values, its best run, and what failed.

    `trials` are those that count towards the budget, `enqueued` those that wait to be tried next, `known` those that
    a warm start brought in, `baselines` what counting alone makes of each cell's data.
    Cells stand in the order of the grid; those that it no longer has come last. There is no best among runs that
    were to find unlike things.
    """
    # What was checked when it was run is read as it stands: the rules of samplers alone take Optuna to import.
    plan, study = map(folder.read, (folder.plan_file, folder.canonical_file))
    unfinished = folder.unfinished
    runs = [(run, run.read_start(), run.read_end()) for run in folder.runs()]  # files are read once
    by_cell: dict[str, list[_Run]] = {cell["cell"]: [] for cell in plan["cells"]}
    for run in runs:
        by_cell.setdefault(run[1].cell, []).append(run)
    started_from, known, baselines = _started_from(folder), tallies(folder), folder.baselines
    return {
        "name": folder.name,
        "metric": plan["metric"],
        "trials_per_cell": study["budget"]["trials_per_cell"],
        "cells": [
            _cell_row(cell, own, unfinished)
            | {"enqueued": known[cell].states["enqueued"] if cell in known else 0}
            | {"known": sum(started_from.get(cell, {}).values())}
            | {"baseline": baselines[cell]["loss"] if cell in baselines else None}
            for cell, own in by_cell.items()
        ],
        "warm_start": started_from,
        "baselines": baselines,
        "best": _best(runs),
        "failures": [
            {"key": start.key, "error": (end.error or "").strip().rpartition("\n")[2]}
            for _, start, end in runs
            if end and end.state is RunState.FAILED
        ],
    }


def baselines_in_words(baselines: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Say what n-grams reach, a line for each of the cells that differ in it."""
    cells: dict[str, list[str]] = {}
    for cell, each in baselines.items():
        said = f"{each['loss']:.4f} nats/token, by {each['method']}, order {each['order']}"
        cells.setdefault(said, []).append(cell)
    return [
        f"n-gram baseline{'' if len(cells) == 1 else ' of ' + _cells_in_words(own)}: {said}"
        for said, own in cells.items()
    ]


def _cells_in_words(cells: list[str]) -> str:
    more = len(cells) - _CELLS_NAMED
    return ", ".join(cells) if more <= 0 else f"{', '.join(cells[:_CELLS_NAMED])} and {more} more cells"


def _started_from(folder: StudyFolder) -> dict[str, dict[str, int]]:
    """Return how many trials of each source came into which cell, counted in no other number."""
    return folder.read(folder.warm_start_file) if folder.warm_start_file.exists() else {}


def _cell_row(cell: str, runs: list[_Run], unfinished: RunState) -> dict[str, Any]:
    ends = [end for _, _, end in runs if end]
    valued = [end for end in ends if end.state.has_value and end.value is not None]
    best = min((end.value for end in valued if end.value is not None), default=None)
    of_best = [end for end in valued if end.value == best]
    states = Counter(end.state if end else unfinished for _, _, end in runs)
    shown = [*(state for state in RunState if state.is_finished), unfinished]
    return {
        "cell": cell,
        "n_params": runs[0][1].facts["n_params"] if runs else None,
        "trials": len({start.trial for _, start, end in runs if end and end.state.counts_towards_budget}),
        **{str(state): states[state] for state in shown},
        "best_val_loss": best,
        **{name: _mean_of(of_best, f"best_{name}") for name in MEASURES},
    }


def _mean_of(ends: Sequence[RunEnd], name: str) -> float | None:
    """Return the mean over a trial's seeds of what each has."""
    found = [value for end in ends if (value := getattr(end, name)) is not None]
    return mean(found) if found else None


def _best(runs: list[_Run]) -> dict[str, Any] | None:
    """Return the run of the lowest value; of runs that were to find unlike things there is none."""
    if not have_one_task(start.values for _, start, _ in runs):
        return None
    valued = [(end.value, run, start) for run, start, end in runs if end and end.state.has_value]
    if not valued:
        return None
    value, run, start = min(valued, key=lambda each: each[0] if each[0] is not None else math.inf)
    return {"key": start.key, "value": value, "sampled": start.sampled, "folder": str(run.path)}
