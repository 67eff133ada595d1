"""The trials of a page: the text for one under the cursor, and the details that a click opens."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pandas import DataFrame

from sweeplab.analysis.trials import TRIAL, grid_of, searched_of, trials_table
from sweeplab.formatting import written
from sweeplab.lab.showing import commands_about
from sweeplab.records.folders import StudyFolder
from sweeplab.report.data import ReportData, RunPages

MOST_TRIALS = 2000
# All curves together have at most this many points, to keep a page small; longer curves are thinned.
MOST_POINTS = 20_000
# How a mark names its trial: the study (if the page has several), the cell and the number.
Key = tuple[str, str, int]


@dataclass(frozen=True)
class PageTrials:
    """The trials of a page as JSON values, and the index of each; `about` has what they share."""

    entries: list[dict[str, Any]] = field(default_factory=list)
    about: Mapping[str, Any] = field(default_factory=dict)
    places: Mapping[Key, int] = field(default_factory=dict)

    def place(self, study: object, cell: object, trial: Any) -> int:
        """Return the index of a trial among the entries; -1 if the page does not have it."""
        number = int(float(trial)) if trial == trial and trial is not None else -1
        # On a page of one study, marks do not name the study.
        own = study or (self.entries[0]["study"] if self.entries else "")
        return self.places.get((str(own), str(cell), number), -1)


def page_trials(report: ReportData) -> PageTrials:
    """Return the trials of a page with values, curves, checkpoints and commands; at most MOST_TRIALS, the best."""
    runs = report.runs
    if runs.empty:
        return PageTrials()
    studies = list(map(str, dict.fromkeys(runs["study"])))
    curves = report.curves("val_loss")
    step = max(1, math.ceil(len(curves) / MOST_POINTS))
    entries: list[dict[str, Any]] = []
    places: dict[Key, int] = {}
    for study in studies:
        own = runs[runs["study"] == study]
        grid = [name for name in grid_of(own, report.design) if name in own]
        searched = [name for name in searched_of(own, report.design) if name not in grid]
        table = trials_table(own, "value" if "value" in own else "best_val_loss")
        of_study = curves[curves["study"] == study] if "study" in curves else curves
        drawn = dict(list(of_study.groupby([*TRIAL, "seed"], sort=False))) if len(of_study) else {}
        by_trial = dict(list(own.groupby(TRIAL, sort=False)))
        folder = StudyFolder(report.lab, study) if report.lab and report.studied else None
        for row in table.sort_values("loss").head(MOST_TRIALS).to_dict("records"):
            places[study, str(row["cell"]), int(row["trial"])] = len(entries)
            entries.append(
                {
                    "study": study,
                    "cell": str(row["cell"]),
                    "trial": int(row["trial"]),
                    "state": str(row["state"]),
                    "loss": None if math.isnan(row["loss"]) else round(float(row["loss"]), 5),
                    "cell_values": _values(row, grid),
                    "values": _values(row, searched),
                    "runs": [
                        _run(run, drawn, step, folder, report.mlflow.get(study))
                        for run in by_trial[row["cell"], row["trial"]].to_dict("records")
                    ],
                }
            )
    about = {
        "loss": report.loss_title.partition(" (")[0],
        "several": len(studies) > 1,
        "servers": {study: pages.needs for study, pages in report.mlflow.items()},
        "commands": {study: _commands(report, study) for study in studies},
    }
    return PageTrials(entries, about, places)


def _values(row: Mapping[Any, Any], names: list[str]) -> dict[str, str]:
    return {name: written(row[name]) for name in names if row[name] is not None and row[name] == row[name]}


def _run(
    run: Mapping[Any, Any],
    drawn: Mapping[Any, DataFrame],
    step: int,
    folder: StudyFolder | None,
    pages: RunPages | None,
) -> dict[str, Any]:
    curve = drawn.get((run["cell"], run["trial"], run["seed"]))
    points = DataFrame(columns=["iteration", "value"]) if curve is None else curve.iloc[::step]
    points = points[np.isfinite(points["value"].astype(float))]
    kept = folder.run(run["cell"], int(run["trial"]), int(run["seed"])).checkpoint() if folder else None
    run_id = str(run.get("run_id") or "")
    return {
        "seed": int(run["seed"]),
        "curve": [points["iteration"].astype(int).tolist(), points["value"].astype(float).round(5).tolist()],
        "checkpoint": None if kept is None else str(kept),
        "mlflow": f"{pages.prefix}{run_id}" if pages and run_id else "",
    }


def _commands(report: ReportData, study: str) -> dict[str, list[str]]:
    """Return the commands about a trial as lists of words, with placeholders for its cell, number and seed."""
    if not (report.lab and report.studied):
        return {}
    objective = str(report.runs.loc[report.runs["study"] == study].iloc[0].get("objective", ""))
    folder = StudyFolder(report.lab, study)
    found = commands_about(folder, objective, "{cell}", "{trial}", "{seed}")
    found |= {"show": folder.command("study show", "--cell", "{cell}", "--trial", "{trial}")}
    return {what: shlex.split(command) for what, command in found.items() if what != "open"}
