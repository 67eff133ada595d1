"""The best trial of a study, or of a cell, or the one that is asked for; and the study file that trains it again."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.hyperparameters import TABLE
from sweeplab.lab.finding import find_trial
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import RunFolder, RunState
from sweeplab.lab.identity import as_written
from sweeplab.lab.listing import read_spec, task_in
from sweeplab.study.resources import CPU_STACK_BELOW_PARAMS
from sweeplab.study.rules import facts
from sweeplab.study.file.writing import study_file
from sweeplab.study.written import AUTO, Replicate

if TYPE_CHECKING:
    from sweeplab.study.spec import StudySpec

DIGEST_CHARACTERS = 12
LONGEST_NAME = 100


@dataclass(frozen=True)
class Trial:
    """One trial that has ended; `values` are all of its effective hyperparameters but for the seed.

    `threads` are those of the process that trained it. A trial `is_cut_short`
    whose end did not follow from its own curve: pruned, stopped by its owner, or not ended.
    """

    study: str
    cell: str
    trial: int
    outcome: RunState
    value: float | None
    seeds: list[int]
    sampled: Mapping[str, Any]
    values: dict[str, Any]
    threads: int
    is_cut_short: bool
    runs: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Return the trial as plain data for JSON."""
        return asdict(self)


def find_best(folder: StudyFolder, cell: str | None = None, number: int | None = None) -> Trial:
    """Return the trial of the lowest value, in a cell or in all; with `number` that trial, however it ended.

    Raises:
        BadInput: there is no such trial or cell, none has ended yet, several cells have one of this number, or
            cells whose runs find unlike things are compared.
    """
    runs = _runs(folder)
    if number is not None:
        numbers: dict[str, list[int]] = defaultdict(list)
        for key, each in runs:
            numbers[key].append(each)
        place = find_trial(folder.name, numbers, number, cell), number
        return _trial(folder, *place, runs[place])
    keys = sorted({key for key, _ in runs})
    if cell is not None and cell not in keys:
        raise BadInput(
            Problem(f"study {folder.name} has no runs in cell {cell!r}", ", ".join(keys), nearest(cell, keys))
        )
    by_task = _best_places(runs, task_in(folder), cell)
    if not by_task:
        where = f" in cell {cell}" if cell is not None else ""
        raise BadInput(f"no trial of study {folder.name}{where} has come to its end yet")
    if len(by_task) > 1:
        what = f"the cells of study {folder.name} find unlike things, so that none is best of all; one is to be named"
        raise BadInput(Problem(what, ", ".join(keys)))
    return _trial(folder, *by_task[0], runs[by_task[0]])


def find_best_of_tasks(folder: StudyFolder) -> list[Trial]:
    """Return the trial of the lowest value of each thing that the study's runs are to find."""
    runs = _runs(folder)
    return [_trial(folder, *place, runs[place]) for place in _best_places(runs, task_in(folder))]


def _runs(folder: StudyFolder) -> dict[tuple[str, int], list[RunFolder]]:
    """Return the runs of each trial, by its cell and number."""
    runs: dict[tuple[str, int], list[RunFolder]] = defaultdict(list)
    for run in folder.runs():
        runs[run.cell, run.trial].append(run)
    return runs


def _best_places(
    runs: Mapping[tuple[str, int], list[RunFolder]],
    task: Callable[[RunFolder], str],
    cell: str | None = None,
) -> list[tuple[str, int]]:
    """Return the cell and number of the best trial of each task that has one which ended."""
    best: dict[str, tuple[float, tuple[str, int]]] = {}
    for place, each in runs.items():
        end = each[0].read_end() if cell in (None, place[0]) else None
        if end and end.ending.outcome.has_value and end.value is not None:
            found = task(each[0])
            best[found] = min((end.value, place), best.get(found, (math.inf, place)))
    return [place for _, place in best.values()]


def _trial(folder: StudyFolder, cell: str, number: int, runs: list[RunFolder]) -> Trial:
    starts = sorted((run.read_start() for run in runs), key=lambda each: each.seed)
    first, end = starts[0], runs[0].read_end()
    return Trial(
        study=folder.name,
        cell=cell,
        trial=number,
        outcome=end.ending.outcome if end else folder.unfinished,
        value=end.value if end else None,
        seeds=[each.seed for each in starts],
        sampled=first.sampled,
        values={name: value for name, value in first.values.items() if name != "seed"},
        threads=first.threads,
        is_cut_short=not end or not end.ending.outcome.has_value or end.is_asked_for,
        runs=[str(run.path) for run in runs],
    )


def rerun_text(folder: StudyFolder, trial: Trial) -> str:
    """Return the study file of one trial, all of whose hyperparameters are fixed, this machine's included.

    On a CPU it comes to the same loss, bit for bit, and says so where that is certain: what a run computes rests on
    its hyperparameters, its seed, its data and, in larger models, the number of threads. A trial that was cut short
    goes on to its end.
    """
    spec = read_spec(folder)
    study = as_written(spec)
    data = json.loads(folder.data_file.read_text(encoding="utf-8"))
    order = [each.seed if isinstance(each, Replicate) else each for each in spec.seeds]
    written: Mapping[str, Any] = {
        "name": _name(trial),
        "plugins": [{"file": each.file, "sha256": each.sha256} for each in spec.plugins],
        "data": study["data"],
        "fixed": {name: trial.values[name] for name in TABLE if name in trial.values},
        "objective": study["objective"],
        "budget": {"trials_per_cell": 1},
        "pruner": "none",
        "seeds": sorted(trial.seeds, key=order.index),  # a mean's last bit rests on their order
        "engine": {"workers": 1, "threads": trial.threads},
        "track": study["track"],
        "init_from": study.get("init_from"),
    }
    said = f"{spec.objective.metric} {trial.value!r}" if trial.value is not None else "no value"
    comments = [
        f"Trial {trial.trial} of cell {trial.cell} of study {folder.name}: {trial.outcome}, {said}.",
        f"Its text has the sha256 {data['text_digest'][:DIGEST_CHARACTERS]}…, "
        f"its tokens {data['token_digest'][:DIGEST_CHARACTERS]}….",
    ]
    if trial.is_cut_short:
        comments.append("It was cut short, and is trained to its end here.")
    elif _is_exact(trial, spec):
        again = "it comes to this value again, to the last bit"
        comments.append(f"On this machine, with the same packages, {again}.")
    else:
        comments.append(
            "It comes to this value again, but for what sums over several threads, or a GPU, round."
        )
    return study_file(written, comments)


def _name(trial: Trial) -> str:
    cell = "" if trial.cell == "all" else "-" + re.sub(r"[^\w.-]+", "", trial.cell.replace(",", "-"))
    end = f"-{trial.trial}"
    return f"{trial.study}{cell}"[: LONGEST_NAME - len(end)] + end


def _is_exact(trial: Trial, spec: StudySpec) -> bool:
    """Say whether a rerun has the same bits: on several threads, those of a larger model rest on its stack's size."""
    was_alone = len(trial.seeds) == 1 and spec.engine.stack in (AUTO, 1)
    is_small = facts(trial.values)["n_params"] < CPU_STACK_BELOW_PARAMS
    return trial.values["device"] == "cpu" and (trial.threads == 1 or was_alone or is_small)
