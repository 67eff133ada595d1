"""Compare a training step of this source tree with that of another tree, such as a checkout of an older commit.

Run: python tests/benchmarks/before_after.py BEFORE [rounds] [P B A]. Both trees train in their own processes, in turn,
one thread each. A ratio compares two slices of CPU time next to each other, so that other work on the machine matters
little. Before timing, both must reach the same weights, bit for bit, after the same steps.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

HERE = Path(__file__).parents[2]
SHAPES = {
    "P": {"n_layer": 2, "n_embd": 32, "n_head": 4, "block_size": 16, "batch_size": 4},
    "B": {"n_layer": 4, "n_embd": 64, "n_head": 4, "block_size": 32, "batch_size": 16},
    "A": {"n_layer": 3, "n_embd": 192, "n_head": 6, "block_size": 192, "batch_size": 48},
}
STEPS = {"P": 150, "B": 25, "A": 1}
KINDS = {"": {"dropout": 0.0}, "dropout": {"dropout": 0.1}}


class Side:
    """One tree's process, which trains as many steps as it is told."""

    def __init__(self, tree: Path, name: str, kind: str, n_runs: int) -> None:
        environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "--train", name, kind, str(n_runs)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=tree
        )
        self.take(1)

    def take(self, steps: int) -> tuple[float, str]:
        """Train so many steps; return the CPU seconds and the weights' digest."""
        assert self._process.stdin and self._process.stdout
        print(steps, file=self._process.stdin, flush=True)
        seconds, digest = json.loads(self._process.stdout.readline())
        return seconds, digest

    def end(self) -> None:
        """Let the process end."""
        self._process.communicate()


def train(name: str, kind: str, n_runs: int) -> None:
    """Train on what comes line by line; imports are those of the tree that PYTHONPATH names."""
    from sweeplab import hyperparameters
    from sweeplab.data.dataset import prepare
    from sweeplab.train.run import Run
    from sweeplab.train.stack import Stack

    data = prepare("python-docs", "char")
    endless = {"max_iters": 10**9, "eval_interval": 10**9, "log_interval": 10**9, "eval_iters": 1}
    machine = {"device": "cpu", "dtype": "float32", "compile": False}
    vocabulary = {"vocab_size": data.tokenizer.vocab_size}
    values = hyperparameters.defaults() | endless | machine | vocabulary | SHAPES[name] | KINDS[kind]
    typed = getattr(hyperparameters, "Hyperparameters", None)  # an earlier tree has none
    effective = typed.of if typed else dict
    stack = Stack(effective(values), data.train, data.val, n_runs)
    for seed in range(n_runs):
        stack.admit(Run(str(seed), effective(values | {"seed": seed})))
    stack.advance()  # the evaluation at iteration 0
    for line in sys.stdin:
        steps = count()
        started = time.process_time()
        stack.advance(lambda: next(steps) == int(line))  # noqa: B023
        seconds = time.process_time() - started
        digest = hashlib.sha256()
        for weight in stack.weights("0").values():
            digest.update(weight.numpy().tobytes())
        print(json.dumps([seconds, digest.hexdigest()]), flush=True)


def compare(before: Path, name: str, kind: str, n_runs: int, rounds: int) -> list[str]:
    """Return a row of the table."""
    sides = [Side(before, name, kind, n_runs), Side(HERE, name, kind, n_runs)]
    steps = max(1, STEPS[name] // n_runs)
    ratios, taken = [], ([], [])
    for turn in range(rounds + 1):
        found = {place: sides[place].take(steps) for place in ((0, 1) if turn % 2 else (1, 0))}
        assert found[0][1] == found[1][1], f"{name}: the two trees do not train the same weights"
        if turn:  # the first one warms up
            for place, (seconds, _) in found.items():
                taken[place].append(seconds / steps * 1e3)
            ratios.append(found[1][0] / found[0][0])
    for side in sides:
        side.end()
    quarter = statistics.quantiles(ratios, n=4)
    return [
        f"{name} {kind}".strip(),
        str(n_runs),
        *(f"{statistics.median(each):.3f}" for each in taken),
        f"{statistics.median(ratios):.3f}",
        f"{quarter[0]:.3f}–{quarter[2]:.3f}",
    ]


def main() -> None:
    """Print a table with one row a shape, kind of dropout and number of runs."""
    from benchmarks.setting import print_table, setting

    before = Path(sys.argv[1]).resolve()
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 30
    print(setting())
    print(f"before: {before}; medians of {rounds} pairs; same bits in every row\n")
    print_table(["shape", "runs", "before, ms", "after, ms", "after / before", "half of the pairs"], [])
    for name in sys.argv[3:] or list(SHAPES):
        for kind in KINDS:
            for n_runs in (1, 4) if name != "A" else (1,):
                print(f"| {' | '.join(compare(before, name, kind, n_runs, rounds))} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--train":
        train(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        sys.path.insert(0, str(HERE / "tests"))
        main()
