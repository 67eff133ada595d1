"""A scaling page of planted runs."""

from sweeplab.report.data import ReportData
from sweeplab.report.writer import write_page


def write_scaling(runs, curves, folder, dashboard=None):
    """Write the page and its data, and return the page's path."""
    return write_page("scaling", ReportData.of_study(runs, curves), runs, folder, dashboard)
