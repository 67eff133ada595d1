"""All that is known of one trial, from what stands in its runs' folders."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from sweeplab.hyperparameters import AUTO, TABLE
from sweeplab.lab.finding import find_trial
from sweeplab.records.folders import RunFolder, StudyFolder

CHECKPOINTS = ("best", "last")


def show_trial(folder: StudyFolder, number: int, cell: str | None = None) -> dict[str, Any]:
    """Return a trial's hyperparameters with their origins, and each of its runs: curve, end, checkpoint, time.

    Raises:
        BadInput: no trial of this number has begun, or several cells have one.
    """
    numbers: dict[str, set[int]] = defaultdict(set)
    for run in folder.runs():
        numbers[run.path.parent.name].add(int(run.path.name.rpartition("-")[0]))
    key = find_trial(folder.name, numbers, number, cell)
    runs = sorted(folder.runs_of(key, number), key=lambda run: int(run.path.name.rpartition("-")[2]))
    described = runs[0].description
    study = folder.read(folder.canonical_file)  # which was checked when it was run
    ending = next((outcome["ending"] for run in runs if (outcome := run.outcome)), None)
    return {
        "study": folder.name,
        "cell": key,
        "trial": number,
        "state": ending["outcome"] if ending else folder.unended,
        "metric": study["objective"]["metric"],
        "value": ending["value"] if ending else None,
        "error": ending["error"] if ending else None,
        "retries": described.get("retries"),
        "facts": described["facts"],
        "hyperparameters": _hyperparameters(study, described),
        "runs": [_run(run, folder.unended) for run in runs],
    }


def _hyperparameters(study: Mapping[str, Any], described: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"name": name, "value": value, "from": _origin(name, value, study, described)}
        for name, value in described["values"].items()
        if name != "seed"
    ]


def _origin(name: str, value: Any, study: Mapping[str, Any], described: Mapping[str, Any]) -> str:
    """Say where a hyperparameter's value came from."""
    if name in described.get("enqueued", {}) and name in described["sampled"]:
        return "enqueued"
    if name in described["sampled"]:
        return "searched"
    if name in study["grid"]:
        return "grid"
    if any(name in changes and changes[name] == value for changes in study.get("cells", ())):
        return "cells"
    if name in study["search"] and "expr" in study["search"][name]:
        return "derived"
    fixed = study["fixed"]
    origin, given = ("fixed", fixed[name]) if name in fixed else ("default", TABLE[name].default)
    return f"{origin}, auto" if given == AUTO and value != AUTO else origin


def _run(run: RunFolder, unended: str) -> dict[str, Any]:
    described, outcome, points = run.description, run.outcome or {}, run.points()
    wall_seconds = points[-1]["wall_seconds"] if points else 0.0
    evaluations = [point["eval_seconds"] for point in points if "eval_seconds" in point]
    evaluation = sum(evaluations) if evaluations else None
    ended = outcome["ended"] if outcome else time.time()
    checkpoint = next((run.path / name for name in CHECKPOINTS if (run.path / name).is_dir()), None)
    return {
        "key": described["key"],
        "seed": described["seed"],
        "state": outcome.get("state", unended),
        "stop_reason": outcome.get("stop_reason"),
        "iteration": points[-1]["iteration"] if points else 0,
        "best_val_loss": outcome.get("best_val_loss"),
        "curve": [
            {name: point.get(name) for name in ("iteration", "train_loss", "val_loss", "learning_rate")}
            for point in points
        ],
        "checkpoint": str(checkpoint) if checkpoint else None,
        "seconds": {
            "waiting": max(0.0, ended - described["started"] - wall_seconds),
            "training": None if evaluation is None else wall_seconds - evaluation,
            "evaluation": evaluation,
            "total": wall_seconds,
        },
        "folder": str(run.path),
    }
