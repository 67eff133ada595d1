"""The fixtures of a study small enough to train in a second."""

import pytest
from tiny_study import dataset, opened, planned, tiny

from sweeplab.study.file.reading import read_study

__all__ = ["dataset", "opened", "planned", "tiny"]


@pytest.fixture
def study_of(tmp_path):
    """Return a function that writes a study file, and reads it with overrides."""

    def read(text, *overrides, name="more.yaml"):
        (tmp_path / name).write_text(text)
        return read_study(tmp_path / name, overrides)

    return read
