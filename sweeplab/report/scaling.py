"""The scaling report: how the loss falls with the sizes of the model, in one page and the data behind it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pandas import DataFrame

from sweeplab.analysis.laws.assessment import Assessment
from sweeplab.analysis.laws.misfit import FLAGGED
from sweeplab.errors import BadInput, Problem
from sweeplab.files import write_whole
from sweeplab.report.dashboard import read_dashboard
from sweeplab.report.page import render
from sweeplab.report.panels import KINDS, panel
from sweeplab.report.panels.base import Panel
from sweeplab.report.panels.material import N_REFITS as N_REFITS
from sweeplab.report.panels.material import Material
from sweeplab.report.summary import Summary, summarise, summarise_law, summarise_table

if TYPE_CHECKING:
    from sweeplab.analysis.studies import Studies

_BESIDE = {
    "scaling.csv": "a row a run",
    "curves.csv": "a row a measurement",
    "scaling.json": "the data of every panel",
}


def write_scaling_report(
    runs: DataFrame,
    curves: DataFrame,
    folder: Path,
    dashboard: Path | None = None,
    studied: Studies | None = None,
    lab: Path | None = None,
) -> Path:
    """Write scaling.html, scaling.csv (a row a run), curves.csv and scaling.json; return the page's path.

    `runs` and `curves` are the tables of the study's runs; they may be empty. `dashboard` is a YAML file
    that says which panels the page has. `studied` is the study itself, by which its points are counted and its
    conventions audited; `lab` is where its ledger lies.

    Raises:
        BadInput: the dashboard asks for what there is not, and nothing is written; or the folder cannot be
            written to.
    """
    asked = read_dashboard(dashboard)
    material = Material.of_study(runs, curves, studied, lab)
    panels = [panel(spec, material) for spec in asked.panels]
    summary = summarise(material.runs)
    law = next((each.result for each in panels if "parameters" in each.result), None)
    if law:
        summary = replace(summary, entries=(*summary.entries, *summarise_law(law), *_flagged(panels)))
    contents = {
        "scaling.csv": runs.to_csv(index=False),
        "curves.csv": curves.to_csv(index=False),
        "scaling.json": _json(asked.title, summary, panels),
        "scaling.html": render(asked.title, summary, panels, _BESIDE),
    }
    _write(folder, contents)
    return folder / "scaling.html"


def write_law_report(found: Assessment, source: str, page: Path, dashboard: Path | None = None) -> Path:
    """Write the page of a law that was fitted to any table; return its path.

    It has the dashboard's panels that need no study, all of the one law. `source` is what the table is called.

    Raises:
        BadInput: the dashboard asks for what there is not, or the page cannot be written.
    """
    asked = read_dashboard(dashboard)
    material = Material.of_table(found)
    specs = [
        replace(spec, law=found.fit.law.name, delta=found.delta)
        for spec in asked.panels
        if KINDS[spec.panel].of == "points"
    ]
    panels = [panel(spec, material) for spec in specs]
    summary = summarise_table(found, source)
    summary = replace(summary, entries=(*summary.entries, *_flagged(panels)))
    _write(page.parent, {page.name: render(asked.title, summary, panels, {})})
    return page


def _flagged(panels: Sequence[Panel]) -> tuple[tuple[str, str], ...]:
    """Return what is wrong with the law's form, as an entry of the summary, where a panel flags it."""
    said = next((each.result for each in panels if each.result.get("status") == FLAGGED), None)
    return (("Its form", said["sentences"][0]),) if said else ()


def _write(folder: Path, contents: Mapping[str, str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in contents.items():
            write_whole(folder / name, text.encode())
    except OSError as error:
        raise BadInput(Problem(f"cannot be written: {error.strerror or error}", file=folder)) from error


def _json(title: str, summary: Summary, panels: Sequence[Panel]) -> str:
    """Return the panels' data as JSON; what is no number is null."""
    described: list[dict[str, Any]] = [
        {
            "title": each.title,
            "kind": type(each).__name__,
            "notes": list(each.notes),
            "warnings": list(each.warnings),
            "method": dict(each.method),
            "missing": each.missing,
            "result": each.result,
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
