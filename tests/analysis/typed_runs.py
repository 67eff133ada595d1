"""Planted runs in the types of a study's table."""

from sweeplab.analysis.table import COLUMNS, HYPERPARAMETERS, MEASURED


def typed_runs(frame):
    """Return the runs with every known column in its type and place, and others after these."""
    types = {
        name: kind
        for name, kind in (COLUMNS | MEASURED | HYPERPARAMETERS).items()
        if name in frame
    }
    return frame.astype(types)[[*types, *(name for name in frame if name not in types)]]
