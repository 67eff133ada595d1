"""All that is known of one trial, from what stands in its runs' folders."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from sweeplab.hyperparameters import AUTO, TABLE
from sweeplab.lab.finding import find_trial
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import RunFolder, RunStart, RunState


def show_trial(folder: StudyFolder, number: int, cell: str | None = None) -> dict[str, Any]:
    """Return a trial's hyperparameters with their origins, and each of its runs: curve, end, checkpoint, time.

    Raises:
        BadInput: no trial of this number has begun, or several cells have one.
    """
    numbers: dict[str, set[int]] = defaultdict(set)
    for run in folder.runs():
        numbers[run.cell].add(run.trial)
    key = find_trial(folder.name, numbers, number, cell)
    runs = sorted(folder.runs_of(key, number), key=lambda run: run.seed)
    start = runs[0].read_start()
    study = folder.read(folder.canonical_file)  # which was checked when it was run
    ending = next((end.ending for run in runs if (end := run.read_end())), None)
    return {
        "study": folder.name,
        "cell": key,
        "trial": number,
        "state": ending.outcome if ending else folder.unfinished,
        "metric": study["objective"]["metric"],
        "value": ending.value if ending else None,
        "error": ending.error if ending else None,
        "retries": start.retries,
        "facts": start.facts,
        "hyperparameters": _hyperparameters(study, start),
        "runs": [_run(run, folder.unfinished) for run in runs],
    }


def _hyperparameters(study: Mapping[str, Any], start: RunStart) -> list[dict[str, Any]]:
    return [
        {"name": name, "value": value, "from": _origin(name, value, study, start)}
        for name, value in start.values.items()
        if name != "seed"
    ]


def _origin(name: str, value: Any, study: Mapping[str, Any], start: RunStart) -> str:
    """Say where a hyperparameter's value came from."""
    if name in start.sampled:
        return "enqueued" if name in (start.enqueued or {}) else "searched"
    if name in study["grid"]:
        return "grid"
    if any(name in changes and changes[name] == value for changes in study.get("cells", ())):
        return "cells"
    if name in study["search"] and "expr" in study["search"][name]:
        return "derived"
    fixed = study["fixed"]
    origin, given = ("fixed", fixed[name]) if name in fixed else ("default", TABLE[name].default)
    return f"{origin}, auto" if given == AUTO and value != AUTO else origin


def _run(run: RunFolder, unfinished: RunState) -> dict[str, Any]:
    start, end, points, checkpoint = run.read_start(), run.read_end(), run.points(), run.checkpoint()
    wall_seconds = points[-1].wall_seconds if points else 0.0
    evaluations = [point.eval_seconds for point in points if point.eval_seconds is not None]
    evaluation = sum(evaluations) if evaluations else None
    ended = end.ended if end else time.time()
    return {
        "key": start.key,
        "seed": start.seed,
        "state": end.state if end else unfinished,
        "stop_reason": end.stop_reason if end else None,
        "iteration": points[-1].iteration if points else 0,
        "best_val_loss": end.best_val_loss if end else None,
        "curve": [
            {name: getattr(point, name) for name in ("iteration", "train_loss", "val_loss", "learning_rate")}
            for point in points
        ],
        "checkpoint": str(checkpoint) if checkpoint else None,
        "seconds": {
            "waiting": max(0.0, ended - start.started - wall_seconds),
            "training": None if evaluation is None else wall_seconds - evaluation,
            "evaluation": evaluation,
            "total": wall_seconds,
        },
        "folder": str(run.path),
    }
