"""Labs that may only be read, that lie on a full disk, or whose path has what an address gives a meaning to."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from cli.conftest import STUDY, carried_out
from terminal import captured

from sweeplab.records.folders import StudyFolder

ODD = "l?a#b%20c {x}@é&="
READING = (
    "list",
    "show tiny",
    "watch tiny --log",
    "watch tiny",
    "best tiny",
    "doctor",
    "doctor tiny",
)


@pytest.mark.slow
def test_a_lab_whose_path_an_address_would_read_otherwise(cli, json_of, folder):
    (folder / "tiny.yaml").write_text(STUDY)
    said = cli(
        "run", "tiny.yaml", "--lab", ODD, "-o", "n_embd=8", "-o", "budget.trials_per_cell=1"
    )
    assert said.code == 0 and "Traceback" not in said.err, said.err
    assert (folder / ODD / "mlflow.db").exists() and (
        folder / ODD / "studies/tiny/trials.db"
    ).exists()
    (row,) = json_of("list --lab", ODD)
    assert (row["done"], row["planned"]) == (1, 1)
    assert "runs in MLflow: 1" in cli("doctor", "tiny", "--lab", ODD).out
    assert sorted(each.name for each in folder.iterdir()) == [ODD, "tiny.yaml"]


def test_a_lab_whose_path_is_no_text_is_refused_in_a_line(cli, folder, monkeypatch):
    (folder / "tiny.yaml").write_text(STUDY)
    odd = os.fsdecode(b"x\xff")
    said = [cli(*words.split(), "--lab", odd) for words in ("run tiny.yaml", "list", "doctor")]
    monkeypatch.setenv("SWEEPLAB_LAB", odd)
    for each in [*said, cli("list")]:
        assert (each.code, each.out, each.err.count("\n")) == (2, "", 1)
        assert f"{str(folder / odd)!a} is not UTF-8" in each.err


@pytest.fixture
def read_only(lab):
    """Return a copy of a study's lab in which nothing may be written."""
    everything = [lab, *lab.rglob("*")]
    for each in everything:
        each.chmod(each.stat().st_mode & ~0o222)
    yield lab
    # A log goes with the last who reads the database.
    for each in filter(Path.exists, everything):
        each.chmod(each.stat().st_mode | 0o700)


def said_by(commands, folder):
    """Run commands so that a file's mode binds them: root has to give up two capabilities."""
    before = (
        [] if os.geteuid() else ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    )
    if before and not shutil.which("setpriv"):
        pytest.skip("modes do not bind root, and there is no setpriv")
    said = carried_out([f"{each} --lab lab" for each in commands], folder, before)
    return {each.removesuffix(" --lab lab"): ended for each, ended in said.items()}


@pytest.mark.slow
def test_a_lab_that_may_only_be_read_is_read(read_only):
    before = {each: each.stat().st_mtime_ns for each in read_only.rglob("*")}
    said = said_by(READING, read_only.parent)
    assert {each: each.stat().st_mtime_ns for each in read_only.rglob("*")} == before
    for each, (code, text) in said.items():
        bad = [line for line in text.splitlines() if line.startswith("bad")]
        if each.startswith("doctor"):
            assert (
                len(bad) == 1 and bad[0].split()[1] == "lab" and "Permission denied" in bad[0]
            )
        else:
            assert code == 0, (each, text)
    assert re.search(r"tiny +finished +4/4 ", said["list"][1])


@pytest.mark.slow
def test_what_would_write_to_such_a_lab_is_refused_in_a_line(read_only):
    commands = ("enqueue tiny learning_rate=1e-3", "extend tiny --trials-per-cell 3 --no-run")
    commands += ("rm tiny --yes", "resume tiny", "report tiny")
    for command, (code, text) in said_by(commands, read_only.parent).items():
        assert code == 2 and text.startswith("error: ") and text.count("\n") == 1, (
            command,
            text,
        )
        assert re.search("Permission denied|may only be read", text), (command, text)


def test_a_file_of_trials_is_opened_by_the_machine_alone_that_runs_the_study(cli, json_of, lab):
    study = StudyFolder(lab, "tiny")
    with study.held("busy"):
        assert cli("show", "tiny").code == 0
        # As a machine sees it that has the same disk.
        study.lock_file.write_text("node7\nanother-boot")
        for words in ("list", "show tiny", "pause tiny", "watch tiny --log"):
            said = cli(*words.split())
            assert (said.code, said.out) == (
                2,
                "",
            ) and "study tiny is run on node7" in said.err, words
        checks = {each["name"]: each["found"] for each in json_of("doctor tiny")}
        assert "is run on node7" in checks["storage"]
    assert cli("show", "tiny").code == 0


@pytest.fixture
def disk(finished, tmp_path):
    """Yield a small disk of its own, which has room for the lab of the finished study and little more."""
    place = tmp_path / "disk"
    place.mkdir()
    # Other tests of this process may have left pages of several megabytes in the lab.
    size = 24 * 2**20 + sum(
        file.stat().st_size for file in finished.lab.rglob("*") if file.is_file()
    )
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place]
    made = captured(mount)
    if made.returncode:
        pytest.skip(f"no file system can be mounted: {made.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@pytest.mark.slow
def test_on_a_full_disk_what_is_whole_is_read_and_nobody_is_told_to_move_it(
    cli, finished, disk
):
    lab, filler, trash = disk / "lab", disk / "filler", disk / "lab/trash/old"
    shutil.copytree(finished.lab, lab)
    trash.mkdir(parents=True)
    (trash / "big").write_bytes(bytes(2**20))

    def on_disk(command):
        return cli(*command.split(), "--lab", lab)

    reading = [each for each in READING if each not in ("list", "doctor")]
    before = {each: on_disk(each) for each in reading}
    with (
        filler.open("wb", buffering=0) as stream,
        pytest.raises(OSError, match="No space left"),
    ):
        while True:
            stream.write(bytes(4096))
    for command in reading:
        said = on_disk(command)
        if command == "doctor tiny":
            assert "move" not in said.out and "may be deleted" in said.out, said
        else:
            assert (said.code, said.out) == (before[command].code, before[command].out), command
    extend = "extend tiny --trials-per-cell 4 --no-run"
    for command in (
        extend,
        "enqueue tiny learning_rate=1e-3",
        f"run {finished.file} --name new",
    ):
        said = on_disk(command)
        assert said.code in (1, 2) and said.err.count("\n") == 1, said
        assert f"may be deleted: {lab / 'trash'}" in said.err and "move" not in said.err, said
    filler.unlink()
    assert on_disk(extend).code == on_disk("rm tiny --yes").code == 0
