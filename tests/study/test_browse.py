"""A study in MLflow that has nothing to see yet."""

import pytest

from sweeplab.errors import BadInput
from sweeplab.lab.studies import write_study
from sweeplab.records.folders import DataDescription
from sweeplab.report.browse import browse
from sweeplab.tracking.mlflow import MLflowTracker

DATA = DataDescription("text", "char", 97, 900, 100, 100, 100, "text", "tokens")


def test_what_there_is_nothing_to_see_of(tiny, opened, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    spec = tiny()
    folder, _ = opened(spec)
    write_study(spec, folder, DATA)
    with (
        pytest.raises(BadInput, match="has no runs to look at yet"),
        browse(folder.lab, spec.name),
    ):
        pass
    MLflowTracker(folder.lab, "another").open({})
    never_run = f"has no study '{spec.name}': it has not been run yet"
    with pytest.raises(BadInput, match=never_run), browse(folder.lab, spec.name):
        pass
