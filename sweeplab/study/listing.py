"""The studies of a lab, and how far each is, from what stands in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.study.folder import StudyFolder, lab_folder

if TYPE_CHECKING:
    from sweeplab.study.spec import StudySpec


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
        known = ", ".join(names[:10]) or "none yet"
        raise BadInput(Problem(f"no study {name!r} in {folder}", f"{known}", nearest(name, names)))
    return StudyFolder(folder, name)


def read_spec(folder: StudyFolder) -> StudySpec:
    """Return the study as it was last run."""
    from sweeplab.study.reading import read_study

    return read_study(folder.canonical_file)


def tracking_uri_of(folder: StudyFolder) -> str | None:
    """Return the tracking URI that the study file names, if it names one."""
    return read_spec(folder).track.uri


def study_rows(lab: Path) -> list[dict[str, Any]]:
    """Return a row a study: its runs by state, its best value, where it lies."""
    rows = []
    for name in study_names(lab):
        folder = StudyFolder(lab, name)
        states = folder.states()
        best = _best(folder)
        rows.append(
            {
                "name": name,
                "runs": sum(states.values()),
                "states": ", ".join(f"{count} {state}" for state, count in sorted(states.items())),
                "best_val_loss": best["value"] if best else None,
                "folder": str(folder.path),
            }
        )
    return rows


def show_study(folder: StudyFolder) -> dict[str, Any]:
    """Return a study's cells with their trials by outcome and best value, and its best run."""
    cells: dict[str, dict[str, Any]] = {}
    for run in folder.runs():
        described, outcome = run.description, run.outcome
        row = cells.setdefault(
            described["cell"],
            {"cell": described["cell"], "n_params": described["facts"]["n_params"], "trials": set()}
            | dict.fromkeys(("complete", "stopped", "pruned", "diverged", "failed", "waiting"), 0)
            | {"best_val_loss": None},
        )
        row["trials"].add(described["trial"])
        row[outcome["state"] if outcome else "waiting"] += 1
        if outcome and outcome["state"] in ("complete", "stopped"):
            row["best_val_loss"] = min(filter(None, (row["best_val_loss"], outcome["value"])))
    rows = [{**row, "trials": len(row["trials"])} for row in cells.values()]
    return {"name": folder.name, "cells": rows, "best": _best(folder)}


def _best(folder: StudyFolder) -> dict[str, Any] | None:
    found = []
    for run in folder.runs():
        outcome = run.outcome
        if outcome and outcome["state"] in ("complete", "stopped"):
            described = run.description
            found.append(
                {"key": described["key"], "value": outcome["value"], "sampled": described["sampled"]}
                | {"folder": str(run.path)}
            )
    return min(found, key=lambda each: each["value"], default=None)
