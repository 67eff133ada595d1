"""A scaling page of planted runs."""

from __future__ import annotations

from pathlib import Path

from pandas import DataFrame

from sweeplab.report.data import ReportData
from sweeplab.report.writer import write_page


def write_scaling(runs: DataFrame, curves: DataFrame, folder: Path, dashboard: Path | None = None) -> Path:
    """Write the page and its data, and return the page's path."""
    return write_page("scaling", ReportData.of_study(runs, curves), runs, folder, dashboard)
