"""Measure how well n evaluated targets tell two trained models apart, from the checkpoints of a finished study.

Run: python tests/benchmarks/paired_error.py LAB STUDY. For each cell, two runs that differ in their seed alone: the
spread of the difference of their losses per target, which n targets divide by the root of n, and their difference.
"""

import itertools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from benchmarks.setting import print_table, setting
from torch.nn import functional as F

from sweeplab.data.dataset import prepare
from sweeplab.data.objectives import make_objective
from sweeplab.records.folders import StudyFolder
from sweeplab.tracking.loading import load_checkpoint

N_TARGETS = 2**17
COUNTS = (2**14, 2**15, 2**16, 2**17)


def losses_of(run, val) -> np.ndarray:
    """Return the loss of each of the first N_TARGETS targets of the split."""
    loaded = load_checkpoint(run.checkpoint())
    objective = make_objective(val, loaded.values)
    found = []
    for batch in objective.evaluation(N_TARGETS):
        placed = type(batch)(*(part if part is None else torch.from_numpy(part)[None] for part in batch))
        with torch.no_grad():
            logits = loaded.model.transformer.logits(loaded.model.stacked, placed)
        found.append(F.cross_entropy(logits[0], placed.targets.flatten(), reduction="none").double().numpy())
    return np.concatenate(found)


def main(lab: str, name: str) -> None:
    """Print the paired error of each cell."""
    torch.set_num_threads(1)
    folder = StudyFolder(Path(lab), name)
    val = prepare("python-source", "char").val
    print(setting())
    rows = []
    for cell, runs in itertools.groupby(
        sorted(folder.runs(), key=lambda run: run.cell), lambda run: run.cell
    ):
        of_trial = [run for run in runs if run.trial == 0]
        if len(of_trial) < 2:
            continue
        first, second = (losses_of(run, val) for run in of_trial[:2])
        spread = float((first - second).std())
        means = [abs(first[:n].mean() - second[:n].mean()) / first.mean() for n in COUNTS]
        errors = [spread / np.sqrt(n) / first.mean() for n in COUNTS]
        rows.append([cell, f"{spread:.3f}", *(f"{error:.3%}" for error in errors), f"{means[-1]:.2%}"])
    print_table(["cell", "spread, nats", *(f"error, {n:,} targets" for n in COUNTS), "two seeds"], rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
