"""The shells' completion, asked as bash, zsh and fish ask."""

import os
import re
import sys
from pathlib import Path

import pytest
from terminal import captured


@pytest.fixture
def lab(folder):
    for name in ("small", "small-again", "wide"):
        (folder / "lab" / "studies" / name).mkdir(parents=True)
        (folder / "lab" / "studies" / name / "study.json").write_text("{}")
    return folder / "lab"


def asking(shell, line):
    """Return the environment by which a shell asks for what may follow a line."""
    asked = {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    if shell == "bash":
        asked = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    return {"_SWEEPLAB_COMPLETE": f"complete_{shell}", **asked}


def words(printed):
    return {*re.sub('["()]', " ", printed).split()}


@pytest.mark.slow
@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_study_s_name_is_completed(shell):
    environment = {**os.environ, **asking(shell, "sweeplab show sm")}
    program = [sys.executable, "-c", "from sweeplab.cli import main; main()"]
    ended = captured(program, env=environment)
    assert not ended.stderr and {"small", "small-again"} <= words(ended.stdout)
    assert "wide" not in words(ended.stdout)


HOSTILE = "$(touch${IFS}ran)"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_only_names_that_a_study_may_have_are_listed(shell, cli, json_of, lab):
    (lab / "studies" / "small").rename(lab / "studies" / f"sm{HOSTILE}")
    for folder in (Path("studies"), Path()):
        folder.mkdir(exist_ok=True)
        for name in ("smaller", f"smart{HOSTILE}", "sm;ran", "sm ran"):
            (folder / f"{name}.yaml").write_text("")
    for command in ("show", "run", "plan"):
        with pytest.MonkeyPatch.context() as patch:
            for name, value in asking(shell, f"sweeplab {command} sm").items():
                patch.setenv(name, value)
            said = cli()
        offered = words(said.out)
        assert not said.err and "small-again" in offered and "ran" not in said.out, offered
        assert command != "run" or {"smaller", "smaller.yaml"} <= offered
    assert "ran" not in cli("run").err + cli("list").out + cli("show", "none").err
    (told,) = (each for each in json_of("doctor") if HOSTILE in each["found"])
    assert told["verdict"] == "warn"
