"""No string from outside steers the terminal or is taken for Rich's markup, whatever it is the name or value of."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cli.conftest import STUDY
from cli.reference import leaves
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
# One would start a server in a folder of any name.
COMMANDS = {" ".join(names[1:]): command for names, command in leaves(get_command(app))}
del COMMANDS["storage start"]


def checked(said):
    """Check what a command printed, and return it."""
    text = said.out + said.err
    assert not (steering := _STEERS.findall(text)), (steering[:5], text)
    assert said.code in (0, 1, 2) and "Traceback" not in text, text
    return text


@pytest.mark.slow
@pytest.mark.parametrize("words", COMMANDS)
@pytest.mark.usefixtures("lab")
def test_every_argument_and_option(cli, folder, words):
    (folder / "tiny.yaml").write_text(STUDY)
    parameters = COMMANDS[words].params
    arguments = [each for each in parameters if each.param_type_name == "argument"]
    for hostile in parameters:
        if hostile.type_descriptor.annotation not in (str, Path):
            continue
        options = [] if hostile in arguments else [hostile.opts[0], NAME]
        if "--lab" not in options and any("--lab" in each.opts for each in parameters):
            options += ["--lab", "lab"]
        given = [
            NAME if each is hostile else "tiny"
            for each in arguments
            if each is hostile or each.required
        ]
        checked(cli(*words.split(), *options, "--", *given))
    for wrong in ((*words.split(), f"--{NAME}"), (NAME,)):
        checked(cli(*wrong))


PLACES = (
    "name", "data.corpus", "data.tokenizer", "data.path", "preset", "fixed.activation", "fixed.n_layer", "grid.norm",
    "search.dropout", "constraints", "objective.metric", "budget.time", "sampler", "pruner", "seeds", "engine.type",
    "track.uri", "warm_start", "init_from", "notify", "plugins", "oddity",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_every_key_of_a_study_file(cli, folder, place):
    first, _, second = place.partition(".")
    others = re.sub(rf"^{first}:.*\n(?: .*\n)*", "", STUDY, flags=re.MULTILINE)
    for text in (TEXT, NAME):
        for value in (text, [text], {text: text}):
            section = {second: value} if second else value
            if first == "data":
                section = {"corpus": "text", "tokenizer": "char", "path": "x.txt"} | section
            (folder / "tiny.yaml").write_text(f"{others}{first}: {json.dumps(section)}\n")
            said = cli("plan", "tiny.yaml")
            assert said.code == 2 and checked(said)


def test_a_plugin_cannot_rewrite_the_question_about_it(cli, folder):
    name = f"evil.py\r\x1b[1A\x1b[2K\nharmless{STEERING}.py"
    (folder / "tiny.yaml").write_text(f"{STUDY}plugins: [{json.dumps(name)}]\n")
    (line,) = checked(cli("plan", "tiny.yaml")).splitlines()
    assert "evil.py" in line and r"\x1b[1A" in line and "--allow-plugins" in line


def test_files_of_a_lab(cli, lab):
    study = StudyFolder(lab, "tiny")
    for file in (
        file for suffix in ("json", "jsonl", "log") for file in study.path.rglob(f"*.{suffix}")
    ):
        text = file.read_text()
        for word in ("complete", "cpu", "gelu", "python-docs", "char"):
            text = text.replace(json.dumps(word), json.dumps(word + TEXT))
        file.write_text(f"{TEXT}\n{text}" if file.suffix == ".log" else text)
    commands = (
        "list",
        "show tiny",
        "show tiny --trials",
        "best tiny",
        "watch tiny --log",
        "watch tiny",
    )
    for words in (*commands, "doctor tiny", "export tiny", "diff tiny tiny"):
        checked(cli(*words.split()))


def test_generated_text_keeps_its_lines_and_tabs(cli, folder):
    letters = CharTokenizer("".join(sorted({*TEXT, *"\n\tab"})))
    run = run_in(folder / "run", letters, block_size=64)
    command = (
        "generate",
        run,
        "--prompt",
        "ab\n\ta",
        "--max-new-tokens",
        "60",
        "--temperature",
        "2",
    )
    said, plain = cli(*command), cli(*command, "--json")
    assert "ab\n\ta" in checked(said) and "\\" in said.out
    assert _STEERS.search(json.loads(plain.out)["text"]) and checked(plain)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_no_encoding_of_a_stream_lets_them_through(encoding):
    """Typer writes to the bytes below a stream whose encoding is ASCII."""
    program = "from sweeplab.cli.printing import open_streams; open_streams(); import typer; "
    program += "typer.echo('a\\x1b]0;t\\x07b'); typer.echo('c\\x1b]d', err=True)"
    settings = {**os.environ, "PYTHONIOENCODING": encoding}
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, env=settings, check=True
    )
    assert b"\x1b" not in ended.stdout + ended.stderr and ended.stdout == b"a\\x1b]0;t\\x07b\n"
