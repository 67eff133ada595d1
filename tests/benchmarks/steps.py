"""Compare the training steps and evaluations of two checkouts, in turn: CPU milliseconds of one thread per run.

Run: python tests/benchmarks/steps.py BEFORE AFTER [rounds] [shape …]. Each checkout trains in a process of its own with
the environment of a worker, and both take the same steps one after the other. Shapes are `widthxheads/runs`.
"""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.setting import print_table, setting

from sweeplab.sweep.engines import SETTINGS

SHAPES = [
    "24x3/8", "30x3/1", "30x3/8", "42x3/8", "60x3/2", "66x3/1", "64x4/1", "64x2/4", "96x3/1", "128x2/1",
]  # fmt: skip
N_STEPS = 6


def serve(shape: str) -> None:
    """Take N_STEPS steps, or evaluate, for each line of the standard input, and print the CPU milliseconds."""
    import torch

    from sweeplab.data.dataset import prepare
    from sweeplab.hyperparameters import Hyperparameters
    from sweeplab.train.run import TrainingRun
    from sweeplab.train.stack import Stack

    torch.set_num_threads(1)
    size, n_runs = shape.split("/")
    width, n_head = map(int, size.split("x"))
    data = prepare("python-source", "char")
    values = Hyperparameters.of({
        "n_layer": 2, "n_embd": width, "n_head": n_head, "positions": "rotary", "qk_norm": True, "optimizer": "muon",
        "learning_rate": 0.03, "batch_size": max(1, width**2 // 96), "block_size": 64, "dropout": 0.0,
        "max_iters": 10**6, "eval_interval": 10**6, "eval_tokens": 32768, "log_interval": 10**6,
        "device": "cpu", "dtype": "float32", "compile": False, "patience": None,
        "vocab_size": data.tokenizer.vocab_size,
    })  # fmt: skip
    stack = Stack(values, data.train, data.val, int(n_runs))
    for seed in range(int(n_runs)):
        stack.admit(TrainingRun(str(seed), values.replace(seed=seed)))
    losses = [record.val_loss for record in stack.advance()]
    print(f"# {losses[0]!r}", flush=True)
    for line in sys.stdin:
        started = time.process_time()
        if line.strip() == "evaluate":
            stack._evaluate([*range(len(stack))])
        else:
            for _ in range(N_STEPS):
                stack.step()
        print(1000 * (time.process_time() - started) / len(stack) / N_STEPS, flush=True)


def main() -> None:
    """Print a row for each shape."""
    before, after, *rest = sys.argv[1:]
    rounds = int(rest[0]) if rest else 10
    print(setting())
    print_table(
        ["shape", "before", "after", "step, ratio", "evaluation, ratio", "trial-steps a CPU second"], []
    )
    for shape in rest[1:] or SHAPES:
        settings = {**SETTINGS, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        servers = [
            subprocess.Popen(
                [sys.executable, __file__, "--serve", shape], cwd=folder, text=True, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, env=os.environ | settings | {"PYTHONPATH": str(Path(folder).resolve())},
            )
            for folder in (before, after)
        ]  # fmt: skip
        for server in servers:
            server.stdout.readline()
        times = {(order, place): [] for order in ("step", "evaluate") for place in (0, 1)}
        for turn in range(rounds):
            for order in ("step", "evaluate") if turn % 4 == 0 else ("step",):
                for place in (0, 1) if turn % 2 else (1, 0):
                    print(order, file=servers[place].stdin, flush=True)
                    times[order, place].append(float(servers[place].stdout.readline()))
        for server in servers:
            server.stdin.close()
            server.wait()
        medians = [statistics.median(times["step", place]) for place in (0, 1)]
        ratios = [
            statistics.median(b / a for a, b in zip(times[order, 0], times[order, 1], strict=True))
            for order in ("step", "evaluate")
        ]
        speeds = " to ".join(f"{1000 / median:.1f}" for median in medians)
        figures = [f"{number:.3g}" for number in (*medians, *ratios)]
        print("|", " | ".join([shape, *figures, speeds]), "|", flush=True)


if __name__ == "__main__":
    if "--serve" in sys.argv:
        serve(sys.argv[-1])
    else:
        main()
