"""Study files written by the program: all that is said is read back."""

from pathlib import Path

import pytest

import sweeplab
from sweeplab.study.file.reading import read_study
from sweeplab.study.file.template import study_file


@pytest.mark.parametrize(
    "file",
    sorted((Path(sweeplab.__file__).parents[1] / "studies").glob("*.yaml")),
    ids=lambda each: each.stem,
)
def test_what_is_written_is_read_back(file: Path, tmp_path: Path) -> None:
    written = read_study(file).as_written()
    (tmp_path / "again.yaml").write_text(study_file(written, ["A comment"]))
    assert read_study(tmp_path / "again.yaml").as_written() == written
