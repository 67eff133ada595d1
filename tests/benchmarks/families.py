"""Measure what each family learns: copy and reverse to 99%, and corpora to a loss below that of n-grams.

Run: python tests/benchmarks/families.py [--whole] [row …]; without names all rows. Each row trains one run on one
thread until it reaches its target, or with --whole for five CPU minutes. These are the CPU minutes of this process from
the first step to an evaluation, without counting n-grams.
"""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from benchmarks.setting import print_table, setting

from sweeplab.data.baselines import find_baseline
from sweeplab.data.dataset import prepare
from sweeplab.data.objectives import n_special, settled_objective
from sweeplab.data.task import task_of
from sweeplab.hyperparameters import Hyperparameters, defaults
from sweeplab.model.shape import settled
from sweeplab.study.rules import facts
from sweeplab.train.run import Run
from sweeplab.train.stack import Stack

MACHINE = {"device": "cpu", "dtype": "float32", "compile": False, "patience": None, "log_interval": 100_000}
MODERN = {"norm": "rmsnorm", "positions": "rotary", "activation": "swiglu", "bias": False}
SMALL = {"n_layer": 2, "n_embd": 64, "n_head": 4, "block_size": 32, "batch_size": 64, "dropout": 0.0}
SMALL |= {"max_iters": 3000, "learning_rate": 3e-3, "eval_interval": 250, "eval_iters": 10}
LARGER = {**MODERN, "n_embd": 128, "n_head": 4, "warmup_iters": 100, "optimizer": "muon", "eval_iters": 40}
LARGER |= {"learning_rate": 4e-3, "dropout": 0.0, "eval_interval": 200}
MATCHES, SECONDS = 0.99, 300.0


@dataclass(frozen=True)
class Row:
    """What is trained on which corpus; `matches` is the share of exact matches that is to be reached."""

    family: str
    corpus: str
    tokenizer: str
    values: dict[str, Any]
    vocab_size: int | None = None
    matches: float | None = None


ROWS = {
    f"{family}-{corpus}": Row(family, corpus, "char", SMALL, matches=MATCHES)
    for corpus in ("copy", "reverse")
    for family in ("decoder", "encoder", "encoder_decoder")
} | {
    "encoder_decoder": Row(
        "encoder_decoder",
        "python-docstrings",
        "bpe",
        LARGER | {"n_layer": 2, "block_size": 96, "batch_size": 16, "max_iters": 1600, "dropout": 0.1},
        vocab_size=1024,
    ),
    "decoder": Row(
        "decoder",
        "python-source",
        "char",
        LARGER | {"n_layer": 4, "block_size": 128, "batch_size": 8, "max_iters": 2500},
    ),
    "encoder": Row(
        "encoder",
        "python-docs",
        "char",
        LARGER | {"n_layer": 3, "n_embd": 96, "block_size": 64, "batch_size": 16, "max_iters": 4500},
    ),
    "encoder-docstrings": Row(
        "encoder",
        "python-docstrings",
        "bpe",
        LARGER | {"n_layer": 2, "block_size": 128, "batch_size": 16, "max_iters": 1200, "dropout": 0.1},
        vocab_size=1024,
    ),
}


def effective(row: Row, data: Any) -> Hyperparameters:
    """Return a row's effective hyperparameters."""
    given = {**defaults(), **MACHINE, **row.values, "family": row.family}
    values = Hyperparameters.of(settled(given))
    values = values.replace(objective=settled_objective(values, data.kind))
    return values.replace(vocab_size=data.tokenizer.vocab_size + n_special(values))


@dataclass
class Learned:
    """How far a run came: its lowest loss, its last matches, and when it first had what its row is to reach."""

    loss: float = math.inf
    matches: float = 0.0
    iterations: int = 0
    seconds: float = 0.0
    reached_after: float | None = None


def trained(row: Row, data: Any, values: Hyperparameters, below: float = 0.0, whole: bool = False) -> Learned:
    """Train until a loss below this or the row's matches are reached; if `whole`, to the end of its time."""
    stack = Stack(values, data.train, data.val)
    stack.admit(Run("run", values))
    started, found = time.process_time(), Learned()
    while True:
        (record,) = stack.advance()
        found.seconds, found.iterations = time.process_time() - started, record.iteration
        found.loss = min(found.loss, record.val_loss)
        found.matches = record.measures.get("exact_match", 0.0)
        print(f"# {found}", file=sys.stderr)
        is_reached = found.matches >= row.matches if row.matches else found.loss < below
        if is_reached and found.reached_after is None:
            found.reached_after = found.seconds
        if record.state != "running" or found.seconds > SECONDS or (is_reached and not whole):
            return found


def shown(name: str, whole: bool) -> list[str]:
    """Train a row and return it as it is printed."""
    row = ROWS[name]
    data = prepare(row.corpus, row.tokenizer, vocab_size=row.vocab_size)
    values = effective(row, data)
    baseline = find_baseline(data, values)
    found = trained(row, data, values, baseline.loss, whole)
    after = "no" if found.reached_after is None else f"after {found.reached_after:.0f} s"
    return [
        name, f"{row.corpus}, {row.tokenizer}", task_of(values), f"{facts(values).n_params:,}",
        f"{found.iterations:,}", f"{found.seconds:.0f}", f"{found.matches:.1%}" if data.kind == "pairs" else "–",
        f"{found.loss:.3f}", f"{baseline.loss:.3f} (order {baseline.order})",
        f"{data.bits_per_byte(found.loss, values):.3f}", f"{baseline.bits_per_byte:.3f}", after,
    ]  # fmt: skip


def main() -> None:
    torch.set_num_threads(1)
    names = [each for each in sys.argv[1:] if each != "--whole"] or list(ROWS)
    print(setting())
    print("\nCPU seconds of one thread, beside other work on the machine\n")
    headings = ["row", "corpus", "task", "parameters", "iterations", "CPU seconds", "exact match", "loss"]
    headings += ["n-gram baseline", "bits a byte", "baseline's", "reached"]
    rows = []
    for name in names:
        rows.append(shown(name, "--whole" in sys.argv))
        print_table(headings, rows[-1:])
    print()
    print_table(headings, rows)


if __name__ == "__main__":
    main()
