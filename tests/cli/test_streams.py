"""What a command prints to may be closed, full, of any encoding, or without a reader."""

import os
import shlex
import sys

import pytest
from cli.conftest import STUDY
from terminal import captured

pytestmark = pytest.mark.slow
SWEEPLAB = shlex.join([sys.executable, "-m", "sweeplab"])


def shell(command, **settings):
    command = command.replace("sweeplab", SWEEPLAB)
    return captured(["bash", "-c", command], env={**os.environ, **settings})


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437"])
@pytest.mark.parametrize("command", ["study run --help", "laws fit --help"])
def test_any_encoding_prints(command, encoding):
    ended = shell(f"sweeplab {command}", PYTHONIOENCODING=encoding)
    assert ended.returncode == 0 and not ended.stderr and "\\u2026" in ended.stdout


@pytest.mark.parametrize("command", ["show tiny", "list", "doctor tiny", "best tiny --json"])
def test_closed_streams_change_no_exit_code(command, finished):
    command = f"sweeplab {command} --lab {finished.lab}"
    code = shell(command).returncode
    for closed in ("<&- >&- 2>&-", ">&-", "2>&-"):
        ended = shell(f"{command} {closed}")
        assert ended.returncode == code and "Traceback" not in ended.stderr, closed


@pytest.mark.parametrize("command", ["show tiny", "list", "best tiny --json"])
def test_a_full_output_is_one_line_that_names_it(command, finished):
    command = f"sweeplab {command} --lab {finished.lab}"
    ended = shell(f"{command} >/dev/full")
    assert (
        ended.returncode == 1
        and ended.stderr == "error: standard output: No space left on device\n"
    )
    assert shell(f"{command} >/dev/full 2>/dev/full").returncode == 1


def test_a_reader_that_leaves_ends_what_only_prints(finished):
    ended = shell(
        f"sweeplab watch tiny --log --lab {finished.lab} | true; exit ${{PIPESTATUS[0]}}"
    )
    assert ended.returncode == 1 and not ended.stderr


def test_what_trains_outlives_who_reads(folder):
    (folder / "tiny.yaml").write_text(STUDY)
    ended = shell("sweeplab run tiny.yaml 2>&1 | head -1; exit ${PIPESTATUS[0]}")
    assert ended.returncode == 0 and ended.stdout.count("\n") == 1
    logged = shell("sweeplab watch tiny --log; sweeplab list").stdout
    assert "is dropped: Broken pipe" in logged and "4/4" in logged
    assert shell("sweeplab run tiny.yaml --name full >/dev/full 2>/dev/full").returncode == 0


@pytest.mark.parametrize(
    "command", ["list", "show tiny", "study run tiny.yaml", "report tiny", "init new"]
)
def test_a_deleted_working_folder_is_named(command, folder):
    (folder / "gone").mkdir()
    ended = shell(f"cd {folder}/gone && rmdir ../gone && sweeplab {command}")
    assert ended.returncode == 1 and not ended.stdout
    assert (
        ended.stderr == "error: the folder in which this command was started no longer exists\n"
    )
