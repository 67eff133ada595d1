"""The scaling report: how the loss falls with the sizes of the model, in one page and the data behind it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pandas import DataFrame

from sweeplab.errors import BadInput, Problem
from sweeplab.files import write_whole
from sweeplab.report.dashboard import read_dashboard
from sweeplab.report.page import render
from sweeplab.report.panels import Panel, panel, plain
from sweeplab.report.summary import Summary, summarise

_RUN_COLUMNS = ("study", "cell", "trial", "seed", "state", "best_val_loss", "final_val_loss", "n_params")
_CURVE_COLUMNS = ("cell", "trial", "seed", "iteration", "train_tokens", "metric", "value")


def write_scaling_report(
    runs: DataFrame, curves: DataFrame, folder: Path, dashboard: Path | None = None
) -> Path:
    """Write scaling.html, scaling.csv (a row a run), curves.csv and scaling.json; return the page's path.

    `runs` and `curves` are the tables of the study's runs; they may be empty. `dashboard` is a YAML file
    that says which panels the page has.

    Raises:
        BadInput: the dashboard asks for what there is not, and nothing is written; or the folder cannot be
            written to.
    """
    asked = read_dashboard(dashboard)
    plain_runs, plain_curves = plain(runs, _RUN_COLUMNS), plain(curves, _CURVE_COLUMNS)
    panels = [panel(spec, plain_runs, plain_curves) for spec in asked.panels]
    summary = summarise(plain_runs)
    page = render(asked.title, summary, panels)
    contents = {
        "scaling.csv": runs.to_csv(index=False),
        "curves.csv": curves.to_csv(index=False),
        "scaling.json": _json(asked.title, summary, panels),
        "scaling.html": page,
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in contents.items():
            write_whole(folder / name, text.encode())
    except OSError as error:
        raise BadInput(Problem(f"cannot be written: {error.strerror or error}", file=folder)) from error
    return folder / "scaling.html"


def _json(title: str, summary: Summary, panels: list[Panel]) -> str:
    """Return the panels' data as JSON; what is no number is null."""
    described: list[dict[str, Any]] = [
        {
            "title": each.title,
            "kind": type(each).__name__,
            "notes": list(each.notes),
            "missing": each.missing,
            "data": each.data.to_dict(orient="records"),
        }
        for each in panels
    ]
    document = {
        "title": title,
        "study": summary.study,
        "summary": dict(summary.entries),
        "best": summary.best,
        "panels": described,
    }
    return json.dumps(_jsonable(document), indent=1, allow_nan=False)


def _jsonable(value: Any) -> Any:
    """Return the value as JSON has it; what is no finite number is null."""
    if isinstance(value, Mapping):
        return {str(key): _jsonable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(each) for each in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | bool | int | float | None) else str(value)
