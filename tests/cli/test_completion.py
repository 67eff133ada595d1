"""The shells' completion, asked as bash, zsh and fish ask."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = "from sweeplab.cli import main; main()"


@pytest.fixture
def lab(folder: Path) -> Path:
    for name in ("small", "small-again", "wide"):
        (folder / "lab" / "studies" / name).mkdir(parents=True)
        (folder / "lab" / "studies" / name / "study.json").write_text("{}")
    (folder / "smoke.csv").write_text("")
    return folder / "lab"


def offered(shell: str, line: str) -> set[str]:
    words = line.split(" ")
    asked = {
        "bash": {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)},
        "zsh": {"_TYPER_COMPLETE_ARGS": line},
        "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    environment = {**os.environ, "_SWEEPLAB_COMPLETE": f"complete_{shell}", **asked}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, check=False
    )
    assert not ended.stderr
    return set(ended.stdout.replace('"', " ").replace("(", " ").replace(")", " ").split())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_study_s_name_is_completed(shell: str, lab: Path) -> None:
    found = offered(shell, "sweeplab study show sm")
    assert {"small", "small-again"} <= found
    assert "wide" not in found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_commands_are_completed(shell: str, lab: Path) -> None:
    assert {"pause", "plan"} <= offered(shell, "sweeplab study p")


def test_the_lab_that_was_named_is_looked_into(folder: Path, lab: Path) -> None:
    (folder / "other" / "studies" / "smart").mkdir(parents=True)
    (folder / "other" / "studies" / "smart" / "study.json").write_text("{}")
    assert offered("bash", "sweeplab study show --lab other sm") == {"smart"}


def test_a_law_s_source_is_a_table_or_studies(lab: Path) -> None:
    assert offered("bash", "sweeplab laws fit sm") == {"small", "small-again", "smoke.csv"}
    assert offered("bash", "sweeplab laws fit small,w") == {"small,wide"}
