"""Labs that may only be read, and labs whose path has what an address gives a meaning to."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.conftest import STUDY

from sweeplab.records.folders import StudyFolder

COMMANDS = (
    "study list",
    "study show tiny",
    "watch tiny --log",
    "study watch tiny",
    "study best tiny",
    "doctor",
    "doctor tiny",
)
# Runs every command and prints what each came to.
CODE = """\
import contextlib, io, json, sys
from sweeplab.cli import main
said = {}
for command in sys.argv[1].split(", "):
    sys.argv = ["sweeplab", *command.split(), "--lab", "lab"]
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
    said[command] = code, out.getvalue()
print(json.dumps(said))
"""


def bound_by_modes() -> list[str]:
    """Return how a command is started so that a file's mode binds it: root has to give up two capabilities."""
    if os.geteuid():
        return []
    if not shutil.which("setpriv"):
        pytest.skip("modes do not bind root, and there is no setpriv")
    return ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]


ODD = "l?a#b%20c {x}@é&="


@pytest.mark.slow
def test_a_lab_whose_path_an_address_would_read_otherwise(cli, folder: Path) -> None:
    (folder / "tiny.yaml").write_text(STUDY)
    said = cli("study", "run", "tiny.yaml", "--lab", ODD, "-o", "n_embd=8", "-o", "budget.trials_per_cell=1")
    assert (said.code, said.err.count("Traceback")) == (0, 0), said.err
    assert sorted(each.name for each in folder.iterdir()) == [ODD, "tiny.yaml"]
    assert (folder / ODD / "mlflow.db").exists() and (folder / ODD / "studies/tiny/trials.db").exists()
    assert "complete     1/1" in cli("study", "list", "--lab", ODD).out
    examined = cli("doctor", "tiny", "--lab", ODD).out
    assert "runs in MLflow: 1" in examined
    assert sorted(each.name for each in folder.iterdir()) == [ODD, "tiny.yaml"]


def test_a_lab_whose_path_is_no_text_is_refused_in_a_line(
    cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "tiny.yaml").write_text(STUDY)
    odd = os.fsdecode(b"x\xff")
    said = [
        cli(*command, "--lab", odd)
        for command in (["study", "run", "tiny.yaml"], ["study", "list"], ["doctor"])
    ]
    monkeypatch.setenv("SWEEPLAB_LAB", odd)
    for each in [*said, cli("study", "list")]:
        assert (each.code, each.out) == (2, "")
        assert (
            each.err
            == f"error: the lab's path {str(folder / odd)!a} is not UTF-8; allowed: a path in UTF-8\n"
        )


@pytest.fixture
def read_only(lab: Path) -> Iterator[Path]:
    """Return a copy of a study's lab in which nothing may be written."""
    everything = [lab, *lab.rglob("*")]
    for each in everything:
        each.chmod(each.stat().st_mode & ~0o222)
    yield lab
    for each in filter(Path.exists, everything):  # a log goes with the last who reads the database
        each.chmod(each.stat().st_mode | 0o700)


def said_by(commands: tuple[str, ...], folder: Path) -> dict[str, tuple[int, str]]:
    program = [*bound_by_modes(), sys.executable, "-c", CODE, ", ".join(commands)]
    done = subprocess.run(program, cwd=folder, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.slow
def test_a_lab_that_may_only_be_read_is_read(read_only: Path) -> None:
    before = {each: each.stat().st_mtime_ns for each in read_only.rglob("*")}
    said = said_by(COMMANDS, read_only.parent)
    assert {each: each.stat().st_mtime_ns for each in read_only.rglob("*")} == before
    doctor = {each: said.pop(each) for each in COMMANDS if each.startswith("doctor")}
    assert {code for code, _ in said.values()} == {0}, said
    assert "complete     4/4" in said["study list"][1] and "ended: complete" in said["watch tiny --log"][1]
    for _, text in doctor.values():
        assert [line for line in text.splitlines() if line.startswith("bad")] == [
            f"bad   lab        cannot be written: Permission denied  {read_only}"
        ]
        assert "ok    storage    whole; trials: 4" in text and "ok    tracking   answers; studies: 1" in text


def test_a_file_of_trials_is_opened_by_the_machine_alone_that_runs_the_study(cli, lab: Path) -> None:
    study = StudyFolder(lab, "tiny")
    with study.held("busy"):
        assert cli("study", "show", "tiny").code == 0
        # As a machine sees it that has the same disk.
        study.lock_file.write_text("node7\nanother-boot")
        for words in (
            "study list",
            "study show tiny",
            "study pause tiny",
            "watch tiny --log",
        ):
            said = cli(*words.split())
            assert (said.code, said.out) == (2, ""), words
            assert said.err.startswith(
                "error: study tiny is run on node7, and its trials are in an SQLite file"
            )
        (bad,) = [
            each for each in json.loads(cli("doctor", "tiny", "--json").out) if each["name"] == "storage"
        ]
        assert "is run on node7" in bad["found"]
    assert cli("study", "show", "tiny").code == 0


@pytest.mark.slow
def test_what_would_write_to_such_a_lab_is_refused_in_a_line(read_only: Path) -> None:
    commands = {
        "study enqueue tiny learning_rate=1e-3": "the storage may only be read",
        "study extend tiny --trials-per-cell 3 --no-run": "the storage may only be read",
        "study rm tiny --yes": f"cannot write {read_only / 'studies' / 'tiny'}: Permission denied",
        "study resume tiny": "cannot be written (Permission denied)",
        "report tiny": "cannot be written: Permission denied",
    }
    for command, (code, text) in said_by(tuple(commands), read_only.parent).items():
        assert code == 2 and text.startswith("error: ") and text.count("\n") == 1, (command, text)
        assert commands[command] in text
