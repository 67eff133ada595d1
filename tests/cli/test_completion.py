"""The shells' completion, asked as bash, zsh and fish ask."""

import json
import os
import re
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


def asking(shell: str, line: str) -> dict[str, str]:
    """Return the environment by which a shell asks for what may follow a line."""
    asked = {
        "bash": {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)},
        "zsh": {"_TYPER_COMPLETE_ARGS": line},
        "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }
    return {"_SWEEPLAB_COMPLETE": f"complete_{shell}", **asked[shell]}


def words(printed: str) -> set[str]:
    return set(re.sub('["()]', " ", printed).split())


@pytest.fixture
def offered(cli):
    """Return a function that asks for completions in this process, and returns the words that are offered."""

    def ask(shell: str, line: str) -> set[str]:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in asking(shell, line).items():
                patch.setenv(name, value)
            said = cli()
        assert not said.err
        return words(said.out)

    return ask


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_study_s_name_is_completed(shell: str, lab: Path) -> None:
    environment = {**os.environ, **asking(shell, "sweeplab show sm")}
    program = [sys.executable, "-c", PROGRAM]
    ended = subprocess.run(program, capture_output=True, text=True, env=environment, check=False)
    found = words(ended.stdout)
    assert not ended.stderr
    assert {"small", "small-again"} <= found
    assert "wide" not in found


HOSTILE = "$(touch${IFS}ran)"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_only_names_that_a_study_may_have_are_listed(shell: str, cli, lab: Path, offered) -> None:
    (lab / "studies" / "small").rename(lab / "studies" / f"sm{HOSTILE}")
    for folder in (Path("studies"), Path()):
        folder.mkdir(exist_ok=True)
        for name in ("smaller", f"smart{HOSTILE}", "sm;ran", "sm ran"):
            (folder / f"{name}.yaml").write_text("")
    for command in ("show", "run", "plan"):
        found = offered(shell, f"sweeplab study {command} sm")
        assert "small-again" in found and not {each for each in found if "ran" in each}, found
    assert {"smaller", "smaller.yaml"} <= offered(shell, "sweeplab run sm")
    assert "ran" not in cli("study", "run").err + cli("study", "list").out + cli("study", "show", "none").err
    (told,) = (each for each in json.loads(cli("doctor", "--json").out) if HOSTILE in each["found"])
    assert told["verdict"] == "warn"
