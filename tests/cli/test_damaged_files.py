"""A file of a study that is gone or damaged is named with its cure, and nothing is lost by trying."""

import os
import random
import shutil
import socket
from itertools import product

import pytest
from cli.conftest import contents

from sweeplab.doctor import storage_check
from sweeplab.errors import DamagedFile
from sweeplab.lab.listing import tracking_uri_of
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import write_json

pytestmark = pytest.mark.timeout(300)  # a pipe is waited for without end
DAMAGES = ("missing", "empty", "cut", "garbage", "pipe", "folder", "socket", "device", "hole")
RUN = "runs/n_embd=8/0-0/run.json"
# What `show` reads; a run goes on from all.
SHOWN = ("study.json", "trials.db", "elapsed.json", RUN)
FILES = (*SHOWN, "data.json")
# A study that was never run has no time behind it, and SQLite reads as many pages as it has written.
HARMLESS = {("elapsed.json", "missing"), ("trials.db", "hole")}
# A link that leads out of the lab is refused as such.
CASES = [case for case in product(FILES, DAMAGES) if case != ("trials.db", "device")]
MADE_AGAIN = ("plan.json", "code.json", "baselines.json")


def harm(file, damage):
    content = file.read_bytes()
    file.unlink()
    match damage:
        case "empty" | "cut":
            file.write_bytes(content[: len(content) // 2 if damage == "cut" else 0])
        case "garbage":
            file.write_bytes(random.Random(7).randbytes(len(content)))
        case "pipe":
            os.mkfifo(file)
        case "folder":
            file.mkdir()
        case "socket":
            here = os.open(file.parent, os.O_RDONLY)
            # Whose path may have a hundred characters.
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(f"/proc/self/fd/{here}/{file.name}")
            os.close(here)
        case "device":
            file.symlink_to("/dev/zero")
        case "hole":
            file.write_bytes(content)
            os.truncate(file, 2**40)


def kept(study):
    """Return the files that hold what a study is and found."""
    files = (file for file in contents(study.path) if file.name not in MADE_AGAIN)
    return {file: file.read_bytes() for file in files if file.stat().st_size < 2**30}


@pytest.fixture
def study(finished, lab):
    """Return a copy of a finished study, beside its study file."""
    shutil.copy(finished.file, lab.parent)
    return StudyFolder(lab, "tiny")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "damage"), CASES)
def test_a_damaged_file_is_one_line_with_its_cure(name, damage, study, cli):
    file = study.path / name
    harm(file, damage)
    before = kept(study)
    for words in (("run", "tiny.yaml", "--quiet"), ("show", "tiny")):
        said = cli(*words)
        if (name, damage) in HARMLESS or (words[0] == "show" and name not in SHOWN):
            assert (said.code, said.err) == (0, ""), words
            continue
        (line,) = said.err.splitlines()
        # The study is complete, and only its report needs the file.
        if words[0] == "run" and name == RUN:
            assert (said.code, str(file) in line) == (2, True), (said, line)
            # Which knows that it was asked to run.
            before[study.database] = study.database.read_bytes()
            assert kept(study) == before, "nothing was made in its place"
            continue
        assert (said.code, said.out) == (2, ""), words
        assert line.startswith(f"error: {file}: "), words
        if name == RUN:
            assert "restore from a copy of the lab" in line
        else:
            found = storage_check(study)
            assert line == f"error: {found.looked_at}: {found.found}; {found.cure}"
        if name != "trials.db":
            assert kept(study) == before, "nothing was made in its place"


@pytest.mark.parametrize("damage", ["garbage", "pipe"])
def test_the_study_file_that_it_was_run_from_is_damaged(damage, study, cli):
    harm(study.study_file, damage)
    said = cli("rename", "tiny", "other", "--yes")
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert said.err.startswith(f"error: {study.study_file}: ")


@pytest.mark.parametrize("words", ["best tiny", "show tiny --trials"])
def test_what_was_found_is_shown_without_the_plan(words, study, cli):
    study.plan_file.unlink()
    assert cli(*words.split()).code == 0


def test_a_study_file_that_a_stranger_wrote_has_no_name(study):
    written = study.read(study.canonical_file) | {"name": None, "track": None}
    write_json(study.canonical_file, written)
    assert tracking_uri_of(study) is None
    with pytest.raises(DamagedFile, match="it has no name"):
        _ = study.stored_name
