"""Compare trial-steps per second of whole studies with a plain serial loop of Optuna, MLflow and eager torch.

Run: python tests/benchmarks/shapes.py [rounds] [P B A] [--fastest]. Before timing, both must train the same thing. With
--fastest the precision is `auto` and steps of P and B are compiled, after `plan --bench` has timed the study and left
its programs in the cache; compiled float32 runs are then compared with the loop.
"""

import os
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

import numpy as np
import torch
from benchmarks.setting import print_table, run_timed, setting
from references import serial_loop

from sweeplab.data.dataset import prepare
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.study.file.reading import read_study
from sweeplab.sweep.planning import bench_study
from sweeplab.train.run import TrainingRun
from sweeplab.train.stack import Stack

COMMON = {
    "dropout": 0.0, "warmup_iters": 10, "device": "cpu", "dtype": "float32", "compile": False, "patience": None,
    "tie_weights": False,
}  # fmt: skip
SHAPES = {
    "P": {"n_layer": 2, "n_embd": 32, "n_head": 4, "block_size": 16, "batch_size": 4, "max_iters": 1000,
          "eval_interval": 200, "eval_iters": 10},
    "B": {"n_layer": 4, "n_embd": 64, "n_head": 4, "block_size": 32, "batch_size": 16, "max_iters": 300,
          "eval_interval": 100, "eval_iters": 10},
    "A": {"n_layer": 3, "n_embd": 192, "n_head": 6, "block_size": 192, "batch_size": 48, "max_iters": 10,
          "eval_interval": 5, "eval_iters": 1},
}  # fmt: skip
COMPILED = ("P", "B")
N_TRIALS = {"P": 16, "B": 16, "A": 8}
FLOORS = {"P": 4.0, "B": 1.6, "A": 0.95}


def rates_of(name):
    return [float(rate) for rate in np.geomspace(3e-4, 3e-3, N_TRIALS[name])]


def gate(values, data):
    """Return the largest difference between the validation losses of a stack and of the plain loop."""
    ours = []
    stack = Stack(values, data.train, data.val)
    stack.admit(TrainingRun("run", values))
    while len(stack):
        for record in stack.advance():
            ours.append(record.val_loss)
            if record.state != "running":
                stack.release("run")
    theirs = serial_loop.train(values, data.train, data.val)
    return max(abs(one - other) for one, other in zip(ours, theirs, strict=True))


def study_file(name, folder, fastest):
    """Write the study of a shape and return its file."""
    fixed = (
        COMMON
        | SHAPES[name]
        | ({"dtype": "auto", "compile": name in COMPILED} if fastest else {})
    )
    lines = [f"name: {name}", "data: {corpus: python-docs, tokenizer: char}", "fixed:"]
    lines += [
        f"  {key}: {'null' if value is None else str(value).lower()}"
        for key, value in fixed.items()
    ]
    lines += ["search:", f"  learning_rate: {rates_of(name)}", "sampler: grid"]
    lines += [f"budget: {{trials_per_cell: {N_TRIALS[name]}}}", "track: {checkpoints: none}"]
    file = folder / f"{name}.yaml"
    file.write_text("\n".join(lines))
    return file


def product(file):
    """Run a study in a lab of its own and return the seconds from the first claim to the last number shipped."""
    os.environ.pop("MLFLOW_TRACKING_URI", None)  # the serial loop's MLflow leaves its own there
    return run_timed(file, file.parent / "lab")


def main():
    words = [word for word in sys.argv[1:] if word != "--fastest"]
    fastest = len(words) < len(sys.argv) - 1
    rounds = int(words[0]) if words else 3
    names = words[1:] or list(SHAPES)
    print(setting())
    data = prepare("python-docs", "char")
    rows = []
    for name in names:
        values = Hyperparameters.of(
            COMMON | SHAPES[name] | {"vocab_size": data.tokenizer.vocab_size}
        )
        difference = gate(values.replace(compile=fastest and name in COMPILED), data)
        assert difference < 2e-3, f"{name}: the two do not train the same thing ({difference})"
        steps = N_TRIALS[name] * SHAPES[name]["max_iters"]
        if fastest:
            with tempfile.TemporaryDirectory() as place:
                bench_study(read_study(study_file(name, Path(place), fastest)), Path(place))
        ratios, ours, theirs = [], [], []
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as place:
                ours.append(product(study_file(name, Path(place), fastest)))
                theirs.append(
                    serial_loop.run(values, rates_of(name), data.train, data.val, Path(place))
                )
            ratios.append(theirs[-1] / ours[-1])
            print(
                f"# {name}: {ours[-1]:.1f} s against {theirs[-1]:.1f} s, {ratios[-1]:.2f}x",
                flush=True,
            )
        speeds = [steps / statistics.median(seconds) for seconds in (ours, theirs)]
        rows.append(
            [
                name,
                f"{difference:.1e}",
                f"{speeds[0]:,.4g}",
                f"{speeds[1]:,.4g}",
                f"{statistics.median(ratios):.2f}",
                f"{min(ratios):.2f}–{max(ratios):.2f}",
                f"{FLOORS[name]}",
            ]
        )
    print(
        f"\nmedians of {rounds} rounds, turn about; serial loop on {torch.get_num_threads()} threads\n"
    )
    print_table(
        [
            "shape",
            "gate: largest loss difference",
            "trial-steps/s",
            "serial",
            "ratio",
            "range",
            "aim",
        ],
        rows,
    )


if __name__ == "__main__":
    main()
