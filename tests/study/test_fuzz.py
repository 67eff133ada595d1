"""Study files that were changed at random: each is read, or refused in lines that name the file."""

from __future__ import annotations

import random
import re
import resource
import time
import traceback
from pathlib import Path

import pytest

from sweeplab.errors import BadInput
from sweeplab.study.file.reading import read_study
from sweeplab.sweep.planning import make_plan

STUDIES = sorted((Path(__file__).parents[2] / "studies").glob("*.yaml"))
EVERYTHING = """\
name: everything
data: {corpus: python-docs, tokenizer: char}
fixed: {block_size: 16, batch_size: 4, max_iters: 20, n_layer: 1, n_head: 2, device: cpu, bias: no}
grid: {n_embd: [8, 16], activation: [gelu, relu]}
cells: [{optimizer: adamw}, {optimizer: lion, when: n_embd == 8}]
constraints: ["n_params < 1e6", "n_embd % n_head == 0"]
search:
  learning_rate: {min: 3e-4, max: 1e-2, log: true}
  dropout: {min: 0.0, max: 0.4, step: 0.1}
  warmup_iters: [0, 2, 4]
  weight_decay: {expr: learning_rate * 10, when: n_embd == 16}
  min_lr: suggested
budget: {trials_per_cell: 2, hours: 1}
sampler: {name: tpe, seed: 3, options: {n_startup_trials: 1}}
pruner: {name: asha, options: {reduction_factor: 3}}
seeds: [0, {seed: 1, when: n_embd == 8}]
confirm: {top: 1, seeds: 2}
engine: {workers: 1, stack: 4}
track: {checkpoints: best}
"""
WORDS = [
    *(
        "null",
        "true",
        "no",
        "~",
        "''",
        "[]",
        "{}",
        "[[]]",
        "{a: b}",
        "-1",
        "0",
        "1",
        "1.5",
        "1e400",
        "-1e400",
    ),
    *(".nan", ".inf", "1e-320", "1e300", "10_000_000_000_000_000_000_000", "0x10", "2026-01-01", "12:30:00"),
    *(
        "suggested",
        "*a",
        "&a 1",
        "!!python/object:os.system",
        "!!binary aGk=",
        "'\\0'",
        '"\\ud800"',
        "é",
        "<<",
    ),
    *(
        "{min: 1, max: 1e300, step: 1e-300}",
        "{min: 0, max: 1, step: .nan}",
        "{expr: 1/0}",
        "{expr: '9**9**9'}",
    ),
    *(
        "{expr: n_embd}",
        "{when: true}",
        "[1, 1]",
        "[null]",
        "a" * 5000,
        "'" + "../" * 100 + "'",
        "@",
        "`",
        "%",
        "- -",
    ),
]


def texts() -> list[str]:
    """Return the studies to change: their keys and values, on the corpus that is read fastest."""
    data = "data: {corpus: python-docs, tokenizer: char}"
    return [EVERYTHING, *(re.sub(r"(?m)^data: .*", data, each.read_text()) for each in STUDIES)]


def mutated(random: random.Random, sources: list[str]) -> str:
    """Return a study file with one to four changes of lines, of values, of keys or of characters."""
    text = random.choice(sources)
    for _ in range(random.randint(1, 4)):
        lines = text.splitlines() or [""]
        at = random.randrange(len(lines))
        kind = random.randrange(8)
        if kind == 0:
            del lines[at]
        elif kind == 1:
            lines.insert(random.randrange(len(lines)), lines[at])
        elif kind == 2:
            lines[at] = "  " * random.randint(0, 2) + lines[at].lstrip()
        elif kind == 3:
            key, colon, _ = lines[at].partition(":")
            lines[at] = f"{key}{colon} {random.choice(WORDS)}"
        elif kind == 4:
            lines[at] = lines[at].replace(random.choice(lines[at].split() or [" "]), random.choice(WORDS), 1)
        elif kind == 5:
            place = random.randrange(len(lines[at]) + 1)
            odd = random.choice("{}[]:,-#&*!|>'\"%@` \t\u2028\x07")
            lines[at] = lines[at][:place] + odd + lines[at][place:]
        elif kind == 6:
            words = [each.strip(" ,{}[]:") for each in random.choice(sources).split()]
            lines[at] = lines[at].replace(random.choice(lines[at].split() or [" "]), random.choice(words), 1)
        else:
            lines = lines[:at]
        text = "\n".join(lines) + "\n"
    return text


def assert_read_or_refused(n: int, folder: Path, seed: int) -> None:
    sources, file, wrong = texts(), folder / "study.yaml", []
    for case in range(n):
        text = mutated(random.Random(f"{seed}/{case}"), sources)
        file.write_text(text, encoding="utf-8", errors="surrogatepass")
        try:
            make_plan(read_study(file), folder / "lab")
        except BadInput as refused:
            if not refused.problems or any("\n" in str(each) for each in refused.problems):
                wrong.append((case, f"no single lines: {refused.problems}", text))
        except Exception:
            wrong.append((case, traceback.format_exc(limit=-4), text))
    assert not wrong, "\n".join(f"--- case {seed}/{case}: {said}\n{text}" for case, said, text in wrong[:20])


def test_a_changed_study_is_read_or_refused(tmp_path: Path) -> None:
    assert_read_or_refused(100, tmp_path, 0)


@pytest.mark.slow
def test_many_changed_studies_are_read_or_refused(tmp_path: Path) -> None:
    assert_read_or_refused(3000, tmp_path, 1)


HEAD = EVERYTHING.partition("grid:")[0].replace(", bias: no", "")
SEARCH = "search: {learning_rate: {min: 3e-4, max: 1e-2, log: true}}\nbudget: {trials_per_cell: 2}\n"
LARGE = {
    "constraints": SEARCH + f"constraints: [{', '.join(f'n_embd < {each}' for each in range(5000))}]\n",
    "constraints that hold": SEARCH
    + f"constraints: [{', '.join(f'n_params < {10**9 + i}' for i in range(100))}]\n",
    "cells": SEARCH + f"cells: [{', '.join(f'{{n_embd: {8 * each}}}' for each in range(1, 5001))}]\n",
    "seeds": SEARCH + f"seeds: {[*range(5000)]}\n",
    "grid": SEARCH + f"grid: {{n_embd: {[*range(8, 24008, 8)]}}}\n",
    "choices": SEARCH.replace("search: {", f"search: {{warmup_iters: {[*range(5000)]}, "),
    "nested": SEARCH + f"constraints: ['{'(' * 3000}n_embd{')' * 3000} > 1']\n",
    "long": SEARCH + f"constraints: ['{' + '.join(['n_embd'] * 20000)} > 1']\n",
}
REFUSED = {
    "constraints": "constraints has 5,000 entries; allowed: at most 100",
    "cells": "cells has 5,000 entries; allowed: at most 1,000",
    "grid": "the grid has 3,000 cells; allowed: at most 1,000",
    "nested": "an expression of 6,010 characters is too long",
    "long": "an expression of 180,001 characters is too long",
}


def cost_of(text: str, folder: Path) -> tuple[str, float, float]:
    """Read a study and plan it; return what is said, the seconds of CPU, and the MB by which the peak has grown."""
    file, said = folder / "study.yaml", ""
    file.write_text(text)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    try:
        make_plan(read_study(file), folder / "lab")
    except BadInput as refused:
        said = str(refused)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return said, time.process_time() - started, grown / 1024


@pytest.mark.parametrize("name", LARGE)
def test_a_large_study_is_read_or_refused_soon(name: str, tmp_path: Path) -> None:
    said, seconds, megabytes = cost_of(HEAD + LARGE[name], tmp_path)
    assert REFUSED[name] in said if name in REFUSED else not said
    assert seconds < 60
    assert megabytes < 500


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_a_large_study_takes_less_than_two_seconds_of_cpu(name: str, tmp_path: Path) -> None:
    cost_of(HEAD + SEARCH, tmp_path)  # what is loaded once
    assert cost_of(HEAD + LARGE[name], tmp_path)[1] < 2
