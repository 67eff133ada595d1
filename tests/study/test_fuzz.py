"""Study files that were changed at random: each is read, or refused in lines that name the file."""

from __future__ import annotations

import random
import re
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
