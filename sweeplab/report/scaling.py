"""The scaling report: how the loss falls with the sizes of the model, in one page and the data behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pandas import DataFrame

from sweeplab.analysis.fit.assessment import Assessment
from sweeplab.report.dashboard import read_dashboard
from sweeplab.report.page import render
from sweeplab.report.panels import KINDS, panel
from sweeplab.report.panels.material import N_REFITS as N_REFITS
from sweeplab.report.panels.material import Material
from sweeplab.report.summary import flagged, summarize_table
from sweeplab.report.writer import write_files, write_page

if TYPE_CHECKING:
    from sweeplab.analysis.studies import Studies


def write_scaling_report(
    runs: DataFrame,
    curves: DataFrame | Callable[[str], DataFrame],
    folder: Path,
    dashboard: Path | None = None,
    studied: Studies | None = None,
    lab: Path | None = None,
) -> Path:
    """Write scaling.html, scaling.csv (a row a run), scaling-curves.csv and scaling.json; return the page's path.

    `runs` and `curves` are the tables of the study's runs; they may be empty. `dashboard` is a YAML file
    that says which panels the page has. `studied` is the study itself, by which its points are counted and its
    conventions audited; `lab` is where its ledger lies.

    Raises:
        BadInput: the dashboard asks for what there is not, and nothing is written; or the folder cannot be
            written to.
    """
    material = Material.of_study(runs, curves, studied, lab)
    return write_page("scaling", material, runs, folder, dashboard)[0]


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
    summary = summarize_table(found, source)
    summary = replace(summary, entries=(*summary.entries, *flagged(panels)))
    write_files(page.parent, {page.name: render(asked.title, summary, panels, {})})
    return page
