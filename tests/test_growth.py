"""Reading takes time that grows as the length of what is read, whatever it is and wherever it stands.

A text of one piece, repeated, is read at growing lengths. Where time grows as the length the next takes ten times as
long, and a hundred times where a pattern looks at every pair of places: the limit lies between, and a moment is no
measure.
"""

import math
import time
from contextlib import suppress

import pytest

from sweeplab.data.tokenizers import CharTokenizer
from sweeplab.errors import BadInput, nearest
from sweeplab.expressions import Expression
from sweeplab.formatting import on_one_line, without_passwords, yaml_text
from sweeplab.hyperparameters import TABLE
from sweeplab.laws.hyperparameters.excess import file_points
from sweeplab.study.file.entries import parse_tables
from sweeplab.study.file.reading import read_study
from sweeplab.study.file.resolve import read_options

LENGTHS = (1_000, 10_000, 100_000, 1_000_000)
MOST_TIMES = 35.0
MOMENT = 0.1  # seconds of the processor
PIECES = (
    "a", "9", " ", ".", "(", "[", "{", "*", "_", "`", "|", "/", ":", "@", "://", "a:b@", "-", ",", "a,", "a (", "a*",
    "0x", "1e", "\\", "=", "é", "\t", "'", "\x1b", "pf ", "http://a:",
)  # fmt: skip
# YAML reads them slowly, and there are many places.
FEW_PIECES = ("a", "9", " ", ":", "://", "\x1b")
STUDY = """\
name: tiny
data: {corpus: python-docs, tokenizer: char}
fixed: {n_layer: 1, n_head: 2, n_embd: 16, block_size: 16, max_iters: 10}
search: {learning_rate: {min: 3e-4, max: 1e-2, log: true}}
budget: {trials_per_cell: 2}
"""
PLACES = (
    "name", "data.corpus", "data.tokenizer", "data.path", "preset", "fixed.n_layer", "fixed.activation", "fixed.betas",
    "grid.n_embd", "search.dropout", "first_trial.learning_rate", "constraints", "objective.metric", "budget.time",
    "budget.trials_per_cell", "sampler", "pruner", "seeds", "engine.type", "engine.workers", "track.uri", "warm_start",
    "confirm.top", "init_from", "notify", "plugins",
)  # fmt: skip


def table(heading, cell):
    """Return a reader of a table of points with a text as `heading` or `cell`."""

    def read(folder, text):
        file = folder / "points.csv"
        row = f"{heading.format(text)}\n1e6,1e7,3.1,{cell.format(text)}\n2e6,1e7,3.0,x\n"
        file.write_text(f"params,tokens,loss,{row}")
        return file_points(file)

    return read


def study(place):
    """Return a reader of a study file with a text as the value at `place`, on the command line and in the file."""

    def read(folder, text):
        file = folder / "tiny.yaml"
        file.write_text(STUDY)
        with suppress(BadInput):
            read_study(file, [f"{place}={yaml_text(text)}"])
        first, _, second = place.partition(".")
        value = f"{{{second}: {yaml_text(text)}}}" if second else yaml_text(text)
        lines = [line for line in STUDY.splitlines() if not line.startswith(f"{first}:")]
        file.write_text("\n".join([*lines, f"{first}: {value}"]))
        return read_study(file)

    return read


def raw(before, after=""):
    """Return a reader of a study file with a text as it is, unquoted."""

    def read(folder, text):
        (folder / "tiny.yaml").write_text(f"{STUDY}{before}{text}{after}\n")
        return read_study(folder / "tiny.yaml")

    return read


READERS = {
    **{f"study {place}": study(place) for place in PLACES},
    "study key": raw("", ": 1"),
    "study number": raw("seeds: [", "]"),
    "study text": raw(""),
    "override": lambda folder, text: (
        raw("")(folder, "") and read_study(folder / "tiny.yaml", [text])
    ),
    "expression": lambda folder, text: Expression(text),
    "markdown text": lambda folder, text: parse_tables(text),
    "markdown lines": lambda folder, text: parse_tables("\n".join(text)),
    "markdown heading": lambda folder, text: parse_tables(
        f"|{text}|value|\n|---|---|\n|lr|1|\n"
    ),
    "markdown name": lambda folder, text: parse_tables(
        f"|name|value|\n|---|---|\n|{text}|1|\n"
    ),
    "markdown value": lambda folder, text: parse_tables(
        f"|name|value|\n|---|---|\n|lr|{text}|\n"
    ),
    "markdown range": lambda folder, text: parse_tables(
        f"|name|value|range|\n|---|---|---|\n|lr|1e-3|{text}|\n"
    ),
    "table heading": table("{}", "x"),
    "table cell": table("group", "{}"),
    "--search": lambda folder, text: read_options([f"--search learning_rate={text}"]),
    "--grid": lambda folder, text: read_options([f"--grid n_layer={text}"]),
    "prompt": lambda folder, text: CharTokenizer(" ab").encode(text),
    "name": lambda folder, text: nearest(text, TABLE),
    "message": lambda folder, text: on_one_line(without_passwords(text)),
}


def seconds(read, folder, text):
    before = time.process_time()
    with suppress(BadInput, ValueError):
        read(folder, text)
    return time.process_time() - before


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_time_grows_as_the_length(name, tmp_path):
    read = READERS[name]
    seconds(read, tmp_path, "a")  # what is imported and kept
    in_yaml = name.startswith("study ") and name != "study text"
    for piece in FEW_PIECES if in_yaml else PIECES:
        before = math.inf
        for length in LENGTHS[: -1 if in_yaml else None]:
            taken = seconds(read, tmp_path, (piece * length)[:length])
            assert taken < max(MOMENT, MOST_TIMES * before), (piece, length)
            before = taken
