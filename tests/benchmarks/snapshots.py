"""Measure how long snapshots hold up the steps of studies/small.yaml, with one at each evaluation.

Run: python tests/benchmarks/snapshots.py [rounds]. The trainer alone trains each shape of the study, on one thread, in
the stack that a worker would give it. It writes snapshots between steps (in line), or on a thread beside the training
(beside), as workers do. Figures are shares of the rest of the same training, so that other work on the machine matters
little; the last write is waited for. `CPU` is what writing takes of a core, on whichever thread. Each run trains for 50
iterations with 2 snapshots, nearly twice as many per step as in the study.
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
Wait = Callable[..., None]


def train(
    values: Hyperparameters, n_runs: int, data, write: Write, wait: Wait, place: Path
) -> tuple[float, float, int]:
    """Train a stack; return the seconds that it took, those of them that snapshots took, and the bytes of one."""
    stack = Stack(values, data.train, data.val, n_runs)
    for index in range(n_runs):
        stack.admit(Run(str(index), values.replace(seed=index)))
    started, held, size = time.perf_counter(), 0.0, 0
    while len(stack):
        for record in stack.advance():
            before = time.perf_counter()
            snapshot = stack.snapshot(record.key)
            write(place / record.key, snapshot)
            held += time.perf_counter() - before
            size = sum(row.nbytes for row in snapshot.rows.values())
            if record.state != "running":
                stack.release(record.key)
    before = time.perf_counter()
    wait(*(place / str(index) for index in range(n_runs)))
    ended = time.perf_counter()
    return ended - started, held + ended - before, size


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    torch.set_num_threads(1)
    print(setting())
    spec, data = read_study(STUDY), prepare("python-docs", "char")
    rows, shares_of_all = [], ([], [], [])
    vocab_size = data.tokenizer.vocab_size
    computed = []

    def write(folder: Path, snapshot: Snapshot) -> None:
        started = time.thread_time()
        write_snapshot(folder, snapshot)
        computed.append(time.thread_time() - started)

    for cell in cells(spec, vocab_size)[0]:
        values = Space(spec, cell, vocab_size).resolve({}, 0).replace(device="cpu", max_iters=ITERATIONS)
        n_runs = min(stack_capacity("auto", values, 1, 1e10), spec.budget.trials_per_cell or 1)
        shares: tuple[list[float], list[float], list[float]] = ([], [], [])
        for _ in range(rounds):
            with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".snapshots-") as folder:
                place, writer = Path(folder), SnapshotWriter()
                computed.clear()
                whole, held, size = train(values, n_runs, data, write, lambda *_: None, place / "in line")
                steps = whole - held
                shares[0].append(held / steps)
                shares[1].append(sum(computed) / steps)
                whole, held, _ = train(values, n_runs, data, writer.write, writer.wait, place / "beside")
                shares[2].append(held / (whole - held))
                writer.close()
        for one, other in zip(shares_of_all, shares, strict=True):
            one.extend(other)
        step = f"{1000 * steps / ITERATIONS / n_runs:.2f}"
        medians = [f"{statistics.median(each):.2%}" for each in shares]
        rows.append([cell.key, str(n_runs), f"{size / 2**20:.2f}", step, *medians])
    medians = [f"{statistics.median(each):.2%}" for each in shares_of_all]
    print(f"\nmedians of {rounds} rounds\n")
    headings = ["cell", "runs", "MiB a snapshot", "ms a step and run", "in line", "of it CPU", "beside"]
    print_table(headings, [*rows, ["all", "", "", "", *medians]])


if __name__ == "__main__":
    main()
