"""A file of a study that is gone or damaged is named with its cure, and nothing is lost by trying."""

from __future__ import annotations

import random
import shutil
from itertools import product
from pathlib import Path

import pytest

from sweeplab.doctor.study import storage_check
from sweeplab.errors import DamagedFile
from sweeplab.records.folders import StudyFolder

DAMAGES = {
    "missing": lambda file: file.unlink(),
    "empty": lambda file: file.write_bytes(b""),
    "cut": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "garbage": lambda file: file.write_bytes(random.Random(7).randbytes(file.stat().st_size)),
}
RUN = "runs/n_embd=8/0-0/run.json"
OTHERS = ("data.json", "elapsed.json", RUN)
FILES = ("study.json", "trials.db", *OTHERS)
# What `study show` reads of them; a run goes on from all.
SHOWN = ("study.json", "trials.db", RUN)
# A study that was never run has no time behind it.
HARMLESS = {("missing", "elapsed.json")}


@pytest.fixture
def study(finished, folder: Path) -> StudyFolder:
    """Return a copy of a finished study, beside its study file."""
    shutil.copy(finished.file, folder)
    shutil.copytree(finished.lab, folder / "lab")
    return StudyFolder(folder / "lab", "tiny")


def contents(study: StudyFolder) -> dict[str, bytes]:
    """Return the files that hold what a study is and found."""
    kept = (*study.path.glob("*.json"), *study.path.rglob("runs/**/*"), study.database)
    made_again = ("plan.json", "code.json", "baselines.json")
    files = (file for file in kept if file.is_file() and file.name not in made_again)
    return {str(file): file.read_bytes() for file in files}


# Every file and every damage once or more; the whole product is slow.
PAIRS = {(name, list(DAMAGES)[(at + more) % 4]) for at, name in enumerate(FILES) for more in (0, 2)}


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        pytest.param(*pair, marks=() if pair in PAIRS else pytest.mark.slow)
        for pair in product(FILES, DAMAGES)
    ],
)
def test_a_damaged_file_is_one_line_with_its_cure(name: str, damage: str, study: StudyFolder, cli) -> None:
    file = study.path / name
    DAMAGES[damage](file)
    before = contents(study)
    for words in (("run", "tiny.yaml", "--quiet"), ("show", "tiny")):
        said = cli("study", *words)
        if (damage, name) in HARMLESS or (words[0] == "show" and name not in SHOWN):
            assert (said.code, said.err) == (0, ""), words
            continue
        assert (said.code, said.out) == (2, ""), words
        (line,) = said.err.splitlines()
        assert line.startswith(f"error: {file}: "), words
        cure = "restore from a copy of the lab" if name == RUN else "put a copy of it back"
        assert cure in line
        if name != RUN:
            found = storage_check(study)
            assert line == f"error: {found.looked_at}: {found.found}; {found.cure}"
        if name != "trials.db":
            assert contents(study) == before, "nothing was made in its place"


@pytest.mark.parametrize(
    "name", ["study.json", "trials.db", *(pytest.param(each, marks=pytest.mark.slow) for each in OTHERS)]
)
def test_what_else_reads_the_file_says_the_same(name: str, study: StudyFolder, cli) -> None:
    file = study.path / name
    DAMAGES["cut"](file)
    for words in ("study watch tiny", "study list", "report scaling tiny", "study best tiny", "doctor tiny"):
        said = cli(*words.split())
        assert "Traceback" not in said.err and said.code in (0, 1, 2), words
        if said.code == 2:
            assert said.err.startswith(f"error: {file}: "), words


def test_a_copy_put_back_mends_it(study: StudyFolder, cli) -> None:
    whole = study.database.read_bytes()
    study.database.write_bytes(whole[: len(whole) // 2])
    assert cli("study", "run", "tiny.yaml", "--quiet").code == 2
    study.database.write_bytes(whole)
    assert cli("study", "run", "tiny.yaml", "--quiet").code == 0


def test_a_description_that_says_something_else_is_damaged(study: StudyFolder) -> None:
    study.data_file.write_text('{"corpus": "python-docs"}')
    with pytest.raises(DamagedFile, match=r"data.json: it cannot be read \(unexpected content"):
        _ = study.data
    study.elapsed_file.write_text('{"second": 3}')
    with pytest.raises(DamagedFile, match=r"elapsed.json: it cannot be read \(no 'seconds'\)"):
        _ = study.elapsed_seconds
