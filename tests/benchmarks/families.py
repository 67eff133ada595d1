"""What each family learns: copy and reverse to 99%, and offline corpora to a loss that n-grams do not reach.

Run: python tests/benchmarks/families.py [row …]; without names all rows. Each trains one run on one thread, from its
first step to its last evaluation in CPU seconds of this process; counting n-grams is not among them.
"""

from __future__ import annotations

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
from sweeplab.data.objectives import n_special, settled_objective, task_of
from sweeplab.hyperparameters import defaults
from sweeplab.model.shape import settled
from sweeplab.train.run import Run
from sweeplab.train.stack import Stack

MACHINE = {"device": "cpu", "dtype": "float32", "compile": False, "patience": None, "log_interval": 100_000}
MODERN = {"norm": "rmsnorm", "positions": "rotary", "activation": "swiglu", "bias": False}
SMALL = {"n_layer": 2, "n_embd": 64, "n_head": 4, "block_size": 32, "batch_size": 64, "dropout": 0.0}
SMALL |= {"max_iters": 3000, "learning_rate": 3e-3, "eval_interval": 250, "eval_iters": 10}
LARGER = {**MODERN, "n_embd": 128, "n_head": 4, "warmup_iters": 100, "optimiser": "muon", "eval_iters": 40}
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
        "python-source",
        "char",
        LARGER | {"n_layer": 4, "block_size": 128, "batch_size": 8, "max_iters": 2500},
    ),
    "encoder-docstrings": Row(
        "encoder",
        "python-docstrings",
        "bpe",
        LARGER | {"n_layer": 2, "block_size": 128, "batch_size": 16, "max_iters": 1200, "dropout": 0.1},
        vocab_size=1024,
    ),
}


def effective(row: Row, data: Any) -> dict[str, Any]:
    """Return a row's effective hyperparameters."""
    values = {**defaults(), **MACHINE, **row.values, "family": row.family}
    values["objective"] = settled_objective(values, data.of_pairs)
    values["vocab_size"] = data.tokenizer.vocab_size
    values["vocab_size"] += n_special(values)
    return settled(values)


def trained(
    row: Row, data: Any, values: dict[str, Any], say: bool = False
) -> tuple[float, float, float, int]:
    """Train until the row has reached its matches or its time is up; return loss, matches, CPU seconds, iterations."""
    stack = Stack(values, data.train, data.val)
    stack.admit(Run("run", values))
    started, best = time.process_time(), float("inf")
    while True:
        (record,) = stack.advance()
        seconds = time.process_time() - started
        best = min(best, record.val_loss)
        matches = record.measures.get("exact_match", 0.0)
        if say:
            print(
                f"# {record.iteration}: {seconds:.0f} s, {record.val_loss:.4f}, {matches:.4f}",
                file=sys.stderr,
            )
        reached = row.matches is not None and matches >= row.matches
        if reached or record.state != "running" or seconds > SECONDS:
            return best, matches, seconds, record.iteration


def main() -> None:
    torch.set_num_threads(1)
    print(setting())
    print("\nCPU seconds of one thread, beside other work on the machine\n")
    headings = ["row", "corpus", "task", "parameters", "iterations", "CPU seconds", "exact match"]
    headings += ["loss", "n-gram baseline", "bits a byte", "baseline's", "reached"]
    shown: list[list[str]] = []
    for name in sys.argv[1:] or ROWS:
        row = ROWS[name]
        data = prepare(row.corpus, row.tokenizer, vocab_size=row.vocab_size)
        values = effective(row, data)
        baseline = find_baseline(data, values)
        loss, matches, seconds, iterations = trained(row, data, values, say=True)
        reached = matches >= row.matches if row.matches else loss < baseline.loss
        numbers = [f"{Stack(values, data.train, data.val).transformer.layout.row_size:,}", f"{iterations:,}"]
        numbers += [f"{seconds:.0f}", f"{matches:.1%}" if data.of_pairs else "–", f"{loss:.3f}"]
        numbers += [
            f"{baseline.loss:.3f} (order {baseline.order})",
            f"{data.bits_per_byte(loss, values):.3f}",
        ]
        numbers += [f"{baseline.bits_per_byte:.3f}", "yes" if reached else "no"]
        shown.append([name, f"{row.corpus}, {row.tokenizer}", task_of(values), *numbers])
        print_table(headings, shown[-1:])
    print()
    print_table(headings, shown)


if __name__ == "__main__":
    main()
