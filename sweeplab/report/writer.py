"""Write a page of panels, and the data behind it, whole or not at all."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pandas import DataFrame, concat

from sweeplab.errors import BadInput, Problem
from sweeplab.files import write_whole
from sweeplab.report.dashboard import read_dashboard
from sweeplab.report.images import check_images, write_images
from sweeplab.report.page import render
from sweeplab.report.panels import panel
from sweeplab.report.panels.base import Panel
from sweeplab.report.panels.material import Material
from sweeplab.report.summary import SUMMARIES, Summary

FORMATS = ("html", "png", "svg", "pdf")


def write_page(
    page: str,
    material: Material,
    runs: DataFrame,
    folder: Path,
    dashboard: Path | None = None,
    form: str = "html",
) -> list[Path]:
    """Write PAGE.html, PAGE.csv (`runs`), PAGE.json and, where a panel shows them, PAGE-curves.csv.

    In another form than html each figure is written as a picture instead. Returns the files to be opened.

    Raises:
        BadInput: the dashboard asks for what there is not, or pictures cannot be made, and nothing is written; or
            the folder cannot be written to.
    """
    asked = read_dashboard(dashboard, page)
    if form != "html":
        check_images(form)
    panels = [panel(spec, material) for spec in asked.panels]
    if form != "html":
        return write_images(panels, folder, page, form)
    summary = SUMMARIES[page](material, panels)
    tables = {f"{page}.csv": (runs, "a row a run")}
    if curves := material.curves_read:
        tables[f"{page}-curves.csv"] = (concat(curves), "a row a measurement")
    beside = {
        **{name: what for name, (_, what) in tables.items()},
        f"{page}.json": "the data of every panel",
    }
    contents = {
        **{name: table.to_csv(index=False) for name, (table, _) in tables.items()},
        f"{page}.json": _json(asked.title, summary, panels),
        f"{page}.html": render(asked.title, summary, panels, beside),
    }
    write_files(folder, contents)
    return [folder / f"{page}.html"]


def write_files(folder: Path, contents: Mapping[str, str]) -> None:
    """Write texts into a folder, each whole.

    Raises:
        BadInput: the folder cannot be written to, or one stands where a text is to be.
    """
    for name in contents:
        if (folder / name).is_dir():
            raise BadInput(Problem("is a folder", "the name of a file", file=folder / name))
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
