"""Measure each pruner's regret against its best fixed setting, on curves of runs that were all trained to their end.

Run: python tests/benchmarks/pruners.py [replays]. 192 trials of one cell (a wide range of learning rates, with and
without decay, three dropouts) are trained to their end, with 20 evaluations each. Each setting of a pruner then judges
the same trials in the same random orders, through Optuna, one at a time and 8 at a time as in a stack, until as many
iterations are spent as 16 whole trials take. Regret is the best loss of a trial that ended, above the best of all. Of
each pruner the default comes first, then the other settings by their regret one at a time; in brackets is the standard
error of the difference from the default, in the same orders.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

import numpy as np
import optuna
from benchmarks.setting import print_table, setting
from optuna.trial import TrialState

import sweeplab
from sweeplab.study.algorithms import make_pruner, settled_pruner
from sweeplab.study.spec import Pruner

EVERY, LAST, BUDGET = 20, 400, 16
SLOTS = (1, 8)
STUDY = f"""\
name: curves
data: {{corpus: python-docs, tokenizer: char}}
fixed: {{block_size: 32, batch_size: 8, max_iters: {LAST}, n_layer: 2, n_embd: 32, n_head: 2, warmup_iters: 20,
        eval_interval: {EVERY}, eval_tokens: 8192, patience: null, device: cpu}}
search:
  learning_rate: {{min: 1e-4, max: 3e-2, log: true}}
  lr_decay: [true, false]
  dropout: [0.0, 0.1, 0.3]
sampler: random
budget: {{trials_per_cell: 192}}
engine: {{stack: 8}}
track: {{checkpoints: none}}
"""
# The default of each first; None is no pruner's option.
SETTINGS: dict[str, list[dict[str, object]]] = {
    "none": [{}],
    "asha": [
        {},
        {"min_resource": 4},  # what Optuna would guess: a hundredth of a run
        *({"min_resource": r, "reduction_factor": f} for r, f in product((20, 40, 100, 160), (2, 4))),
    ],
    "hyperband": [
        {},
        {"min_resource": 1, "max_resource": LAST + 1},  # what Optuna would guess
        *(
            {"min_resource": r, "max_resource": LAST, "reduction_factor": f}
            for r, f in product((20, 40, 100), (2, 3))
        ),
    ],
    "median": [
        {},
        *({"n_startup_trials": n, "n_warmup_steps": w} for n, w in product((1, 5), (0, 80, 160))),
    ],
}


def curves() -> dict[int, list[float]]:
    """Train every trial to its end; return its losses at the evaluations after the first, at iteration 0."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "curves.yaml"
        file.write_text(STUDY)
        table = sweeplab.load_study(file, lab=Path(folder) / "lab").run().curves(["val_loss"])
        rows = table[table["iteration"] > 0].sort_values("iteration")
        return {int(trial): list(of["value"]) for trial, of in rows.groupby("trial")}


def replay(pruner: Pruner, order: list[int], losses: dict[int, list[float]], slots: int) -> tuple[float, int]:
    """Return the lowest loss of a trial that ended within the budget, and how many trials were begun."""
    storage = optuna.storages.InMemoryStorage()
    study = optuna.create_study(storage=storage, pruner=make_pruner(pruner))
    waiting, live, spent, best, begun = (
        iter(order),
        list[tuple[optuna.Trial, Iterator[tuple[int, float]], int]](),
        0,
        float("inf"),
        0,
    )
    while spent < BUDGET * LAST:
        while len(live) < slots and (number := next(waiting, None)) is not None:
            points = iter([(EVERY * (at + 1), value) for at, value in enumerate(losses[number])])
            live.append((study.ask(), points, number))
            begun += 1
        if not live:
            break
        for entry in list(live):
            trial, points, number = entry
            iteration, value = next(points)
            spent += EVERY
            trial.report(value, iteration)
            if iteration == len(losses[number]) * EVERY:
                best = min(best, *losses[number])
                study.tell(trial, min(losses[number]))
                live.remove(entry)
            elif trial.should_prune():
                study.tell(trial, state=TrialState.PRUNED)
                live.remove(entry)
    return best, begun


def main(replays: int = 40) -> None:
    """Print a row per pruner and setting."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    losses = curves()
    oracle = min(map(min, losses.values()))
    orders = [list(np.random.default_rng(seed).permutation(list(losses))) for seed in range(replays)]
    print(
        f"{setting()}; {len(losses)} curves, best {oracle:.3f}, median {np.median([*map(min, losses.values())]):.3f}\n"
    )
    rows = []
    for name, settings in SETTINGS.items():
        own = []
        for options in settings:
            pruner = settled_pruner(Pruner(type=name, options=options), EVERY, LAST)
            found = [[replay(pruner, order, losses, slots) for order in orders] for slots in SLOTS]
            regrets, begun = np.moveaxis(np.array(found), 2, 0)
            own.append((options, regrets - oracle, begun.mean(axis=1)))
        for options, regrets, begun in [own[0], *sorted(own[1:], key=lambda each: each[1][0].mean())]:
            differences = regrets - own[0][1]
            errors = differences.std(axis=1, ddof=1) / np.sqrt(replays)
            rows.append([name, ", ".join(f"{key}={value}" for key, value in options.items()) or "default"])
            for at, _ in enumerate(SLOTS):
                rows[-1] += [f"{begun[at]:.0f}", f"{regrets[at].mean():.4f}"]
                rows[-1] += [f"{differences[at].mean():+.4f} ({errors[at]:.4f})"]
    headings = [
        f"{what}, {slots} at a time" for slots in SLOTS for what in ("begun", "regret", "less default's")
    ]
    print_table(["pruner", "setting", *headings], rows)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
