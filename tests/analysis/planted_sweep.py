"""Sweeps that never ran: trials in cells with losses of a known form, and seeds with a known spread."""

import numpy as np
import pandas as pd
from analysis.typed_runs import typed_runs

from sweeplab.analysis.trials import StudyDesign
from sweeplab.hyperparameters import TABLE, Hyperparameters, defaults
from sweeplab.model.shape import settled
from sweeplab.study.rules import facts
from sweeplab.study.values import Choices, Range

SEARCH = {
    "learning_rate": Range(1e-4, 1e-1, log=True),
    "dropout": Range(0.0, 0.5),
    "weight_decay": Range(0.0, 0.3),
    "activation": Choices(("relu", "gelu")),
}
DESIGN = StudyDesign(("n_layer", "n_embd"), SEARCH)
SETTLED = {
    "device": "cpu",
    "dtype": "float32",
    "compile": False,
    "vocab_size": 97,
    "block_size": 16,
}
SETTLED |= {
    "batch_size": 8,
    "n_head": 4,
    "max_iters": 300,
    "eval_interval": 100,
    "eval_tokens": 256,
}
CELLS = tuple((n_layer, n_embd) for n_layer in (1, 2, 4) for n_embd in (32, 64))


def place(name, value):
    """Return where a value lies in its range, from -1 to 1; the middle is best."""
    entry = SEARCH[name]
    assert isinstance(entry, Range)
    low, high = np.log((entry.min, entry.max)) if entry.log else (entry.min, entry.max)
    return float(2 * ((np.log(value) if entry.log else value) - low) / (high - low) - 1)


def by_rate(values):
    """Return a loss that the learning rate decides, dropout moves a little, and nothing else."""
    return place("learning_rate", values["learning_rate"]) ** 2 + 0.25 * place(
        "dropout", values["dropout"]
    )


def plant_sweep(
    n_trials=40,
    cells=CELLS,
    seeds=1,
    loss=by_rate,
    state=lambda values, random: "complete",
    noise=0.01,
    shift=0.0,
    name="planted",
    key=0,
    **settings,
):
    """Return runs of trials that are drawn at random in each cell; a pruned one is trained for a third."""
    random = np.random.default_rng(key)
    rows = []
    for n_layer, n_embd in cells:
        for trial in range(n_trials):
            drawn = {
                "learning_rate": float(np.exp(random.uniform(np.log(1e-4), np.log(1e-1)))),
                "dropout": float(random.uniform(0, 0.5)),
                "weight_decay": float(random.uniform(0, 0.3)),
                "activation": str(random.choice(["relu", "gelu"])),
            }
            values = settled(
                defaults() | SETTLED | drawn | {"n_layer": n_layer, "n_embd": n_embd} | settings
            )
            came = state(values, random)
            mean = 3 - 0.2 * n_layer - 0.005 * n_embd + 0.3 * loss(values) + shift
            share = {"pruned": 1 / 3, "diverged": 1 / 3, "failed": 0.0}.get(came, 1.0)
            mean = mean + 1 if came == "pruned" else mean
            losses = mean + noise * random.standard_normal(seeds)
            lost = came in ("diverged", "failed")
            own = facts(Hyperparameters.of(values))
            for seed in range(seeds):
                rows.append(
                    values | {
                        "study": name, "cell": f"n_layer={n_layer},n_embd={n_embd}", "trial": trial, "seed": seed,
                        "state": came, "best_val_loss": np.nan if lost else losses[seed],
                        "final_val_loss": np.nan if lost else losses[seed] + 0.01,
                        "value": np.nan if lost else losses.mean(), "n_params": own.n_params,
                        "n_params_active": own.n_params_active,
                        "n_params_non_embedding": own.n_params_non_embedding,
                        "train_tokens": int(own.train_tokens * share), "train_flops": own.train_flops * share,
                        "wall_seconds": 3.0 * share, "iterations": int(values["max_iters"] * share),
                        "run_id": f"{n_layer}/{n_embd}/{trial}/{seed}",
                    }
                )  # fmt: skip
    pairs = {name for name, row in TABLE.items() if row.kind == "floats"}
    return typed_runs(
        pd.DataFrame(rows).assign(**{name: [str(row[name]) for row in rows] for name in pairs})
    )


def too_fast(values, random):
    """Let most trials above a learning rate of 0.03 diverge, and one in fifty elsewhere."""
    chance = 0.9 if values["learning_rate"] > 0.03 else 0.02
    return "diverged" if random.random() < chance else "complete"


def slow_ones_pruned(values, random):
    """Prune what has a low learning rate."""
    return "pruned" if values["learning_rate"] < 1e-3 else "complete"
