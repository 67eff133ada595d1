"""Measure what Optuna, MLflow and the runner cost: studies/small.yaml against its runs in the trainer alone.

Run: python tests/benchmarks/overhead.py [rounds]. The trainer alone gets the study's runs in the study's order and
stacks, each up to the iteration where the study ended it, on as many one-thread processes. Neither counts start-up.
"""

import json
import multiprocessing
import os
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

import pandas as pd
from benchmarks.setting import STUDIES, print_table, run_timed, setting

from sweeplab.hyperparameters import Hyperparameters
from sweeplab.sweep.engines import SETTINGS

STUDY = STUDIES / "small.yaml"


def product(lab):
    """Run the study; return the seconds from the first claim to the end, and the largest memory of a worker in GB."""
    import psutil

    sizes = [0.0]

    def weigh():
        for child in psutil.Process().children():
            with suppress(psutil.NoSuchProcess):
                sizes.append(child.memory_info().rss / 1e9)

    return run_timed(STUDY, lab, weigh), max(sizes)


def dataset():
    """Return the study's tokens."""
    from sweeplab.study.file.reading import read_study
    from sweeplab.study.inputs import study_dataset

    return study_dataset(read_study(STUDY))


def stacks_of(lab):
    """Return the study's runs as the stacks they trained in: values and last iteration of each run."""
    from sweeplab.study.file.reading import read_study
    from sweeplab.study.plan import stack_capacity
    from sweeplab.study.space import spaces_of

    root = lab / "studies" / "small"
    stacks = []
    for space in spaces_of(read_study(STUDY), dataset().sizes)[0]:
        runs = []
        for folder in sorted((root / "runs" / space.cell.key).iterdir()):
            values = json.loads((folder / "run.json").read_text())["values"]
            runs.append(
                (
                    Hyperparameters.of(values),
                    json.loads((folder / "end.json").read_text())["iteration"],
                )
            )
        together = stack_capacity("auto", runs[0][0], 1, 1e10) > 1
        stacks += [runs] if together else [[run] for run in runs]
    return stacks


def worker(stacks, ready, go, losses):
    """Train stacks from a queue until there is none."""
    import torch

    from sweeplab.train.run import TrainingRun
    from sweeplab.train.stack import Stack

    torch.set_num_threads(1)
    data = dataset()
    ready.put(True)
    go.wait()
    while (runs := stacks.get()) is not None:
        stack = Stack(runs[0][0], data.train, data.val, len(runs))
        for index, (values, _) in enumerate(runs):
            stack.admit(TrainingRun(str(index), values))
        while len(stack):
            for record in stack.advance():
                if record.iteration >= runs[int(record.key)][1]:
                    losses.put(record.val_loss)
                    stack.release(record.key)


def trainer_alone(stacks, n_workers):
    """Train the stacks and return the seconds and every run's last loss."""
    context = multiprocessing.get_context("spawn")
    work, ready, losses, go = context.Queue(), context.Queue(), context.Queue(), context.Event()
    for each in [*stacks, *[None] * n_workers]:
        work.put(each)
    processes = [
        context.Process(target=worker, args=(work, ready, go, losses)) for _ in range(n_workers)
    ]
    for process in processes:
        process.start()
    for _ in processes:
        ready.get()
    started = time.perf_counter()
    go.set()
    found = [losses.get() for stack in stacks for _ in stack]
    for process in processes:
        process.join()
    return time.perf_counter() - started, found


def evaluating(lab):
    """Return the largest share of a cell's seconds that its runs spend evaluating."""
    shares = []
    for cell in (lab / "studies" / "small" / "runs").iterdir():
        runs = [pd.read_json(file, lines=True) for file in cell.glob("*/points.jsonl")]
        evaluations = sum(run["eval_seconds"].sum() for run in runs)
        shares.append(evaluations / sum(run["wall_seconds"].max() for run in runs))
    return max(shares)


def main(rounds=3):
    os.environ |= SETTINGS | {"OMP_NUM_THREADS": "1"}  # as the study's workers have them
    print(setting())
    rows = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as place:
            lab = Path(place)
            seconds, memory = product(lab)
            alone, losses = trainer_alone(stacks_of(lab), 2)
            ends = (lab / "studies" / "small" / "runs").glob("*/*/end.json")
            told = sorted(json.loads(end.read_text())["final_val_loss"] for end in ends)
            assert sorted(losses) == told, "the two do not train the same thing"
            row = [f"{seconds:.1f}", f"{alone:.1f}", f"{seconds / alone:.3f}", f"{memory:.2f}"]
            rows.append([*row, f"{evaluating(lab):.1%}"])
    headings = ["study, seconds", "trainer alone", "ratio (aim: 1.05)", "largest worker, GB"]
    print_table([*headings, "evaluations, most of a cell"], rows)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
