"""A finished study that a test may harm: each file of tests has its own, whose text is its STUDY."""

import shutil
from pathlib import Path

import pytest
from workers_here import workers_here

from sweeplab import load_study
from sweeplab.records.folders import StudyFolder


@pytest.fixture(scope="module")
def healthy(request, tmp_path_factory):
    """Return a lab with the study, run to its end."""
    place = tmp_path_factory.mktemp("healthy")
    (place / "ill.yaml").write_text(request.module.STUDY)
    with pytest.MonkeyPatch.context() as patch, workers_here():
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        result = load_study(place / "ill.yaml", lab=place / "lab").run()
        assert result.status == "complete", result.errors
    return place / "lab"


@pytest.fixture
def study(healthy, tmp_path, monkeypatch):
    """Return a copy of the study that may be harmed."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return StudyFolder(Path(shutil.copytree(healthy, tmp_path / "lab")), "ill")
