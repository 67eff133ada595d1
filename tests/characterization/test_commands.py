"""What every command says to programs, of studies that have ended and of one that ran."""

import json
import re
import shutil
from pathlib import Path

import pytest
from characterization.conftest import command
from characterization.shape import Shapes
from ruamel.yaml import YAML

READ = (
    "study plan alpha.yaml --json",
    "study plan alpha.yaml",
    "study run alpha.yaml --dry-run --name other --json",
    "study show alpha --json",
    "study show alpha",
    "study show alpha --trial 2 --cell n_layer=2 --json",
    "study show alpha --trial 2 --cell n_layer=2",
    "watch alpha --log --json",
    "study watch alpha",
    "study list --json",
    "study best alpha --json",
    "study best alpha --cell n_layer=1 --trial 0 --yaml",
    "study diff alpha gamma --json",
    "study diff alpha beta --json",
    "plan alpha.yaml --layers --json",
    "plan t5-small --layers -o vocab_size=100 --json",
    "trace alpha --prompt the --top 3 --json",
    "generate alpha --prompt the --max-new-tokens 5 --json",
    "generate alpha --prompt the --max-new-tokens 3 --beams 2 --json",
    "generate alpha --prompt the --max-new-tokens 3 --contrast gamma --json",
    "evaluate alpha --json",
    "study show beta --json",
)
# These write, so the lab is a copy.
WRITE = (
    "study init mine --output mine.yaml",
    "study init mine --search learning_rate --preset nanogpt-char",
    "study export alpha --output runs.csv --json",
    "report alpha --json",
    "trace alpha --prompt the --page attention.html --json",
    "plan alpha.yaml --coordinates --cell n_layer=1 -o mup_base_width=8 --json",
    "export-hf alpha out --json",
    "import-hf out --name back --json",
    "study enqueue alpha n_layer=2 learning_rate=5e-3 --json",
    "study list --json",
    "stop alpha/n_layer=2/3 --json",
    "study extend alpha --trials-per-cell 4 --no-run --json",
    "study show alpha --json",
    "study rename gamma other --yes --json",
    "study rm other --yes --json",
    "study list --json (at last)",
)
# Of a study that was stopped at some moment.
FOLLOWED = ("iteration", "train_tokens", "train_flops")


def content(said):
    """Return what a command printed: JSON, JSON a line, YAML, or lines with their columns a space apart."""
    if said.out.startswith("# "):
        comments = [line for line in said.out.splitlines() if line.startswith("#")]
        return {"comments": comments, "yaml": YAML(typ="safe").load(said.out)}
    if not said.out.lstrip().startswith(("{", "[")):
        return [" ".join(line.split()) for line in said.out.splitlines()]
    try:
        return json.loads(said.out)
    except ValueError:
        return [json.loads(line) for line in said.out.splitlines()]


def described(said, shapes):
    out = content(said)
    # Once a minute.
    lines = [line for line in said.err.splitlines() if not re.match(r"\d+ running, ", line)]
    errors = [shapes.text(" ".join(line.split())) for line in lines]
    # Two workers end their trials in any order, and each line counts what has ended.
    ended = sorted(
        re.sub(r"^\d+/", "_/", line) for line in errors if re.match(r"\d+/\d+ ", line)
    )
    errors = [line for line in errors if not re.match(r"\d+/\d+ ", line)] + ended
    return {"code": said.code, "out": shapes.of(out)} | ({"err": errors} if errors else {})


@pytest.mark.slow
@pytest.mark.parametrize("line", READ)
def test_what_is_read(line, place, shapes, golden):
    golden.check(line, described(command(line), shapes))


def test_the_doctors_checks(place, golden):
    shapes = Shapes(place, unlike=("verdict",))  # a machine may be busy
    for line in ("doctor --json", "doctor alpha --json"):
        golden.check(line, shapes.of(content(command(line))))


def test_what_was_said_while_studies_ran(lab, golden):
    shapes = Shapes(lab.place, unlike=FOLLOWED)
    for line, said in lab.said.items():
        golden.check(line, described(said, shapes))
    golden.check("events and results", lab.events)


@pytest.mark.slow
def test_what_is_written(place, tmp_path, shapes, golden, monkeypatch):
    # In turn, for a lock in the storage would be copied too.
    shutil.copytree(place, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    for line in WRITE:
        golden.check(
            f"{line} (a copy)", described(command(line.removesuffix(" (at last)")), shapes)
        )
    files = [
        path
        for name in ("out", "lab/imported", "lab/trash", "lab/reports")
        for path in Path(name).glob("*")
    ]
    golden.check("what came to be", sorted(shapes.text(str(path)) for path in files))
    golden.check("mine.yaml", Path("mine.yaml").read_text().splitlines())
