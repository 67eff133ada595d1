"""What it costs to keep snapshots: the steps of studies/small.yaml with one at each evaluation against without.

Run: python tests/benchmarks/snapshots.py [rounds]. Each shape of the study is trained by the trainer alone, on one
thread, in the stack that a worker would give it: with no snapshot, with each written before the next step (in line),
and with each written on a thread beside the training, as workers do. A ratio is of two times of one round; the last
write is waited for. Each run is trained for 50 iterations, with 2 snapshots: nearly twice as many a step as
in the study.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ["OMP_NUM_THREADS"] = "1"

import torch
from benchmarks.setting import print_table, setting

from sweeplab.data.dataset import prepare
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.study.file.reading import read_study
from sweeplab.study.plan import stack_capacity
from sweeplab.study.space import Space, cells
from sweeplab.train.checkpoint import SnapshotWriter, write_snapshot
from sweeplab.train.member import Snapshot
from sweeplab.train.run import Run
from sweeplab.train.stack import Stack

STUDY = Path(__file__).parents[2] / "studies" / "small.yaml"
ITERATIONS = 50
Write = Callable[[Path, Snapshot], None]


def train(values: Hyperparameters, n_runs: int, data, write: Write | None, place: Path) -> tuple[float, int]:
    """Train a stack; return the seconds and the bytes of a snapshot."""
    stack = Stack(values, data.train, data.val, n_runs)
    for index in range(n_runs):
        stack.admit(Run(str(index), values.replace(seed=index)))
    started, size = time.perf_counter(), 0
    while len(stack):
        for record in stack.advance():
            if write:
                snapshot = stack.snapshot(record.key)
                size = sum(row.nbytes for row in snapshot.rows.values())
                write(place / record.key, snapshot)
            if record.state != "running":
                stack.release(record.key)
    return time.perf_counter() - started, size


def beside(values: Hyperparameters, n_runs: int, data, place: Path) -> float:
    """Train with the writer that workers have, until its last snapshot is written."""
    writer = SnapshotWriter()
    started = time.perf_counter()
    train(values, n_runs, data, writer.write, place)
    writer.wait(*(place / str(index) for index in range(n_runs)))
    seconds = time.perf_counter() - started
    writer.close()
    return seconds


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    torch.set_num_threads(1)
    print(setting())
    spec, data = read_study(STUDY), prepare("python-docs", "char")
    rows, all_ratios = [], ([], [])
    vocab_size = data.tokenizer.vocab_size
    for cell in cells(spec, vocab_size)[0]:
        values = Space(spec, cell, vocab_size).resolve({}, 0).replace(device="cpu", max_iters=ITERATIONS)
        n_runs = min(stack_capacity("auto", values, 1, 1e10), spec.budget.trials_per_cell or 1)
        found: tuple[list[float], list[float]] = ([], [])
        for _ in range(rounds):
            with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".snapshots-") as folder:
                place = Path(folder)
                alone, _ = train(values, n_runs, data, None, place)
                in_line, size = train(values, n_runs, data, write_snapshot, place / "in line")
                found[0].append(in_line / alone)
                found[1].append(beside(values, n_runs, data, place / "beside") / alone)
        for one, other in zip(all_ratios, found, strict=True):
            one.extend(other)
        medians = [f"{100 * (statistics.median(each) - 1):+.1f}%" for each in found]
        step = f"{1000 * alone / ITERATIONS / n_runs:.2f}"
        rows.append([cell.key, str(n_runs), f"{size / 2**20:.2f}", step, *medians])
    medians = [f"{100 * (statistics.median(each) - 1):+.1f}%" for each in all_ratios]
    print(f"\nmedians of {rounds} rounds\n")
    headings = ["cell", "runs", "MiB a snapshot", "ms a step and run", "in line", "beside"]
    print_table(headings, [*rows, ["all", "", "", "", *medians]])


if __name__ == "__main__":
    main()
