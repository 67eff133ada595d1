"""A file of a study that is gone or damaged is named with its cure, and nothing is lost by trying."""

import os
import random
import shutil
import socket
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from sweeplab.doctor import storage_check
from sweeplab.records.folders import StudyFolder

pytestmark = pytest.mark.timeout(300)  # a pipe is waited for without end


def _in_its_place(make: Callable[[Path], object]) -> Callable[[Path], object]:
    def put(file: Path) -> None:
        file.unlink()
        make(file)

    return put


def _bind(file: Path) -> None:
    here = os.open(file.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as listening:  # whose path may have a hundred characters
        listening.bind(f"/proc/self/fd/{here}/{file.name}")
    os.close(here)


def _make_hole(file: Path) -> None:
    file.touch()
    os.truncate(file, 2**40)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": lambda file: file.unlink(),
    "empty": lambda file: file.write_bytes(b""),
    "cut": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "garbage": lambda file: file.write_bytes(random.Random(7).randbytes(file.stat().st_size)),
    "pipe": _in_its_place(os.mkfifo),
    "folder": _in_its_place(Path.mkdir),
    "socket": _in_its_place(_bind),
    "device": _in_its_place(lambda file: file.symlink_to("/dev/zero")),
    "hole": _make_hole,
}
RUN = "runs/n_embd=8/0-0/run.json"
OTHERS = ("data.json", "elapsed.json", RUN)
FILES = ("study.json", "trials.db", *OTHERS)
# What `show` reads of them; a run goes on from all.
SHOWN = ("study.json", "trials.db", RUN)
# A study that was never run has no time behind it, and SQLite reads as many pages as it has written.
HARMLESS = {("missing", "elapsed.json"), ("hole", "trials.db")}


@pytest.fixture
def study(finished, lab: Path) -> StudyFolder:
    """Return a copy of a finished study, beside its study file."""
    shutil.copy(finished.file, lab.parent)
    return StudyFolder(lab, "tiny")


def contents(study: StudyFolder) -> dict[str, bytes]:
    """Return the files that hold what a study is and found."""
    kept = (*study.path.glob("*.json"), *study.path.rglob("runs/**/*"), study.database)
    made_again = ("plan.json", "code.json", "baselines.json")
    files = (file for file in kept if file.is_file() and file.name not in made_again)
    return {str(file): file.read_bytes() for file in files if file.stat().st_size < 2**30}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "damage"),
    [
        pair
        for pair in product(FILES, DAMAGES)
        if pair != ("trials.db", "device")  # a link that leads out of the lab
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


@pytest.mark.parametrize("damage", ["garbage", "pipe"])
def test_the_study_file_that_it_was_run_from_is_damaged(damage: str, study: StudyFolder, cli) -> None:
    DAMAGES[damage](study.study_file)
    said = cli("rename", "tiny", "other", "--yes")
    assert (said.code, said.out) == (2, "") and said.err.count("\n") == 1
    assert said.err.startswith(f"error: {study.study_file}: ")
