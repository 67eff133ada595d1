"""A scaling page of planted runs."""

from pandas import DataFrame

from sweeplab.report.data import ReportData
from sweeplab.report.writer import write_page


def report_of(runs, curves=None, **more):
    """Return the data of a page of planted runs and, where there are any, their curves."""

    def read(metric):
        if curves is None:
            return DataFrame()
        return curves[curves["metric"] == metric]

    return ReportData.of_study(runs, read, **more)


def write_scaling(runs, curves, folder, dashboard=None):
    """Write the page and its data, and return the page's path."""
    return write_page("scaling", report_of(runs, curves), runs, folder, dashboard)
