"""All that is to be known of a GPU, by one command: the tests marked `gpu`, then the rows of the benchmarks' README.

Run: python tests/gpu/measure.py [rounds]. The rows are trial-steps a second of each shape by the runs in a stack.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from benchmarks.setting import print_table, setting

from sweeplab.hyperparameters import Hyperparameters
from sweeplab.train.run import TrainingRun, row_flops
from sweeplab.train.stack import Stack

SHAPES = {
    "P": {"n_layer": 2, "n_embd": 32, "n_head": 4, "block_size": 16, "batch_size": 4},
    "B": {"n_layer": 4, "n_embd": 64, "n_head": 4, "block_size": 32, "batch_size": 16},
    "A": {"n_layer": 3, "n_embd": 192, "n_head": 6, "block_size": 192, "batch_size": 48},
}
STACKS, MOST_FLOPS = (1, 4, 16, 64, 256), 4e12
NEVER, STEPS = 10**9, 100
TOKENS = np.random.default_rng(0).integers(0, 96, 500_000).astype(np.uint16)


def ready(values: Hyperparameters, n_runs: int) -> Stack:
    """Return a stack that has taken its first steps."""
    stack = Stack(values, TOKENS, TOKENS, n_runs)
    for seed in range(n_runs):
        stack.admit(TrainingRun(str(seed), values.replace(seed=seed)))
    stack.advance()
    steps(stack, 10)
    return stack


def steps(stack: Stack, count: int) -> float:
    """Take so many steps; return the seconds of one."""
    left = iter(range(count))
    torch.cuda.synchronize()
    began = time.perf_counter()
    stack.advance(lambda: next(left, None) is None)
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / count


def measured(shape: str, dtype: str, n_runs: int, n_rounds: int) -> list[str]:
    """Return a row: the shape, and its trial-steps a second."""
    values = Hyperparameters.of(
        SHAPES[shape]
        | {
            "vocab_size": 96,
            "device": "cuda",
            "dtype": dtype,
            "compile": False,
            "dropout": 0.0,
            "eval_tokens": 1,
        }
        | dict.fromkeys(("max_iters", "eval_interval", "log_interval", "save_interval"), NEVER)
    )
    stack = ready(values, n_runs)
    rate = statistics.median(n_runs / steps(stack, STEPS) for _ in range(n_rounds))
    flops = rate * row_flops(values) * values.batch_size
    return [shape, dtype, str(n_runs), f"{rate:,.0f}", f"{flops / 1e12:.2f}"]


def main() -> int:
    """Run the tests, then print the rows; return the tests' exit code."""
    if not torch.cuda.is_available():
        print("torch finds no CUDA device here", file=sys.stderr)
        return 2
    n_rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "gpu", str(Path(__file__).parents[1])]
    code = subprocess.run(command, check=False).returncode
    rows = []
    for shape, sizes in SHAPES.items():
        flops = row_flops(Hyperparameters.of(sizes | {"vocab_size": 96})) * sizes["batch_size"]
        for dtype in ("float32", "bfloat16"):
            rows += [measured(shape, dtype, n, n_rounds) for n in STACKS if n == 1 or n * flops <= MOST_FLOPS]
    print(f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}; {setting()}")
    heads = ["shape", "dtype", "stack", "trial-steps/s", "TFLOP/s"]
    print_table(heads, rows)
    return code


if __name__ == "__main__":
    sys.exit(main())
