"""No string from outside steers the terminal or is taken for Rich's markup, whatever it is the name or value of."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli.conftest import STUDY
from trained import run_in
from typer.main import get_command

from sweeplab.cli import app
from sweeplab.data.tokenizers import CharTokenizer
from sweeplab.records.folders import StudyFolder

STEERING = "\x1b]0;owned\x07\x1b[2J\x9b31m\x85\u202e\u2066\u2028\r\x08\x7f"
MARKUP = "[/x][bold][link=https:evil]here[/link]:smile:"
NAME = STEERING + MARKUP.replace("/", "")  # of a file, too
TEXT = STEERING + MARKUP
_STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
# The two that would start a server in a folder of any name, and those of shells' completion.
LEFT_OUT = {("storage", "start")}


def commands(group: Any = None, before: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Return every command by its words."""
    found: dict[tuple[str, ...], Any] = {}
    for name, command in (group or get_command(app)).commands.items():
        words = (*before, name)
        found |= commands(command, words) if hasattr(command, "commands") else {words: command}
    return {words: command for words, command in found.items() if words not in LEFT_OUT}


def is_text(parameter: Any) -> bool:
    return parameter.type_descriptor.annotation in (str, Path)


def checked(said: Any) -> str:
    """Check what a command printed, and return it."""
    text = said.out + said.err
    assert not (steering := _STEERS.findall(text)), (steering[:5], text)
    assert said.code in (0, 1, 2) and "Traceback" not in text, text
    return text


@pytest.mark.slow
@pytest.mark.parametrize("words", commands(), ids=" ".join)
@pytest.mark.usefixtures("lab")
def test_every_argument_and_option(cli, folder: Path, words: tuple[str, ...]) -> None:
    (folder / "tiny.yaml").write_text(STUDY)
    parameters = commands()[words].params
    arguments = [each for each in parameters if each.param_type_name == "argument"]
    texts = [each for each in parameters if is_text(each)]
    for hostile in texts:
        given = []
        for each in arguments:
            given += [NAME] if each is hostile else ["tiny"] if each.required else []
        options = [] if hostile in arguments else [hostile.opts[0], NAME]
        has_lab = any("--lab" in each.opts for each in parameters) and "--lab" not in options
        checked(cli(*words, *options, *(["--lab", "lab"] if has_lab else []), "--", *given))
    checked(cli(*words, f"--{NAME}"))
    checked(cli(NAME))


PLACES = (
    "name", "data.corpus", "data.tokenizer", "data.path", "preset", "fixed.activation", "fixed.n_layer", "grid.norm",
    "search.dropout", "constraints", "objective.metric", "budget.time", "sampler", "pruner", "seeds", "engine.type",
    "track.uri", "warm_start", "init_from", "notify", "plugins", "oddity",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_every_key_of_a_study_file(cli, folder: Path, place: str) -> None:
    first, _, second = place.partition(".")
    for text in (TEXT, NAME):
        for value in (text, [text], {text: text}):
            section = {second: value} if second else value
            lines, skipped = [], False
            for line in STUDY.splitlines():
                skipped = line.startswith(f"{first}:") or (skipped and line.startswith(" "))
                lines += [] if skipped else [line]
            if first == "data":
                section = {"corpus": "text", "tokenizer": "char", "path": "x.txt"} | section
            (folder / "tiny.yaml").write_text("\n".join([*lines, f"{first}: {json.dumps(section)}"]))
            said = cli("plan", "tiny.yaml")
            assert said.code == 2 and checked(said)


def test_a_plugin_cannot_rewrite_the_question_about_it(cli, folder: Path) -> None:
    name = f"evil.py\r\x1b[1A\x1b[2K\nharmless{STEERING}.py"
    (folder / "tiny.yaml").write_text(f"{STUDY}plugins: [{json.dumps(name)}]\n")
    said = cli("plan", "tiny.yaml")
    (line,) = checked(said).splitlines()
    assert "evil.py" in line and r"\x1b[1A" in line and "--allow-plugins" in line


def test_files_of_a_lab(cli, lab: Path) -> None:
    study = StudyFolder(lab, "tiny")
    for file in [*study.path.rglob("*.json"), *study.path.rglob("*.jsonl"), *study.path.rglob("*.log")]:
        text = file.read_text()
        for word in ("complete", "cpu", "gelu", "python-docs", "char"):
            text = text.replace(json.dumps(word), json.dumps(word + TEXT))
        file.write_text(text)
    for log in {*study.path.rglob("*.log"), *lab.rglob("*.log")}:
        log.write_text(f"{TEXT}\n{log.read_text()}")
    for words in (
        ("list",), ("show", "tiny"), ("show", "tiny", "--trials"), ("best", "tiny"), ("watch", "tiny", "--log"),
        ("doctor", "tiny"), ("export", "tiny"), ("diff", "tiny", "tiny"), ("watch", "tiny"),
    ):  # fmt: skip
        checked(cli(*words, "--lab", "lab"))


def test_generated_text_keeps_its_lines_and_tabs(cli, folder: Path) -> None:
    letters = CharTokenizer("".join(sorted({*TEXT, *"\n\tab"})))
    run = run_in(folder / "run", letters, block_size=64)
    long = ["--max-new-tokens", "60", "--temperature", "2", "--lab", "lab"]
    said = cli("generate", str(run), "--prompt", "ab\n\ta", *long)
    assert "ab\n\ta" in checked(said) and "\\" in said.out
    plain = cli("generate", str(run), "--prompt", "ab", *long, "--json")
    assert _STEERS.search(json.loads(plain.out)["text"]) and checked(plain)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_no_encoding_of_a_stream_lets_them_through(encoding: str) -> None:
    """Typer writes to the bytes below a stream whose encoding is ASCII."""
    program = "from sweeplab.cli.printing import open_streams; open_streams(); import typer; "
    program += "typer.echo('a\\x1b]0;t\\x07b'); typer.echo('c\\x1b]d', err=True)"
    settings = {**os.environ, "PYTHONIOENCODING": encoding}
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, env=settings, check=True)
    assert b"\x1b" not in ended.stdout + ended.stderr and ended.stdout == b"a\\x1b]0;t\\x07b\n"
