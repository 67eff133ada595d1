"""A study that never ran: its runs as tracking would give them, with losses of a known law."""

import numpy as np
import pandas as pd
from analysis.typed_runs import typed_runs

from sweeplab.analysis.trials import StudyDesign, rankings, with_expected
from sweeplab.hyperparameters import TABLE, Hyperparameters, defaults
from sweeplab.model.accounting import n_params, n_params_active, n_params_non_embedding
from sweeplab.model.shape import ModelShape, settled
from sweeplab.study.values import Range
from sweeplab.train.run import train_flops, train_tokens

SIZES = ((1, 16), (2, 32), (2, 64), (4, 128), (6, 256))
ITERATIONS = (100, 400, 1600, 6400)
LAW = {"E": 1.2, "A": 40.0, "alpha": 0.4, "B": 300.0, "beta": 0.4}
SETTLED = {
    "device": "cpu",
    "dtype": "float32",
    "compile": False,
    "vocab_size": 97,
    "block_size": 64,
}
SETTLED |= {"batch_size": 16, "n_head": 4, "min_lr": 1e-5, "patience": None}


def loss_of(n, d):
    return LAW["E"] + LAW["A"] / n ** LAW["alpha"] + LAW["B"] / d ** LAW["beta"]


def plant(
    seeds=3,
    noise=0.003,
    rates=(3e-3, 1e-3, 3e-4),
    change=lambda run: {},
    **settings,
):
    """Return a trial a rate in each cell of five models and four lengths; the middle rate is the best.

    A run's warm-up is a tenth of it. `change` may give a run other values; `settings` are those of every run.
    """
    random = np.random.default_rng(11)
    rows = []
    for n_layer, n_embd in SIZES:
        for length in ITERATIONS:
            for trial, rate in enumerate(rates):
                own = SETTLED | {"n_layer": n_layer, "n_embd": n_embd, "max_iters": length}
                own |= {"warmup_iters": length // 10, "learning_rate": rate} | settings
                alike = planted_run(own, ("n_layer", "n_embd", "max_iters"), trial)
                away = abs(np.log(rate / rates[len(rates) // 2]))
                for seed in range(seeds):
                    run = alike | {"seed": seed, "run_id": f"{alike['cell']}/{trial}/{seed}"}
                    run["best_val_loss"] *= np.exp(
                        noise * random.standard_normal() + 0.05 * away
                    )
                    run["final_val_loss"] = run["value"] = run["best_val_loss"] * 1.001
                    rows.append(run | dict(change(run)))
    pairs = {name for name, row in TABLE.items() if row.kind == "floats"}
    return typed_runs(
        pd.DataFrame(rows).assign(**{name: [str(row[name]) for row in rows] for name in pairs})
    )


def planted_run(changes, grid, trial):
    """Return the row of a complete run with these values, whose cell is named by those of the grid."""
    values = settled(defaults() | SETTLED | changes)
    effective = Hyperparameters.of(values)
    shape = ModelShape.of(effective)
    tokens = train_tokens(effective, values["max_iters"])
    cell = ",".join(f"{name}={values[name]}" for name in grid)
    return values | {
        "study": "planted", "cell": cell, "trial": trial, "state": "complete",
        "best_val_loss": loss_of(n_params(shape), tokens),
        "n_params": n_params(shape), "n_params_active": n_params_active(shape),
        "n_params_non_embedding": n_params_non_embedding(shape),
        "train_tokens": tokens, "train_flops": float(train_flops(effective, values["max_iters"])),
        "wall_seconds": 2.5, "iterations": values["max_iters"],
    }  # fmt: skip


FIRST_LAW = {"E": 0.72, "A": 21.0, "alpha": 0.298}


def like_the_first(noise, seed, drift=0.0, skew=0.0):
    """Return runs as of studies/small.yaml on a known law of N, tuned by three learning rates a size.

    Two of them are spread over the range and one is near the best, as the sampler's are. Models of another depth than 2
    lie 1% above the law. The best rate is 0.035 at a width of 45 and goes as the width to the power `drift`; the loss
    has a cubic term of `skew` in the log distance from it.
    """
    random, rows = np.random.default_rng(seed), []
    for n_layer, n_embd in [*((2, width) for width in range(24, 67, 6)), (1, 24), (3, 24)]:
        own = SETTLED | {
            "n_layer": n_layer,
            "n_embd": n_embd,
            "n_head": 3,
            "batch_size": n_layer * n_embd**2 // 192,
        }
        length = (
            planted_run(own, (), 0)["n_params_non_embedding"]
            * 12
            // (own["batch_size"] * SETTLED["block_size"])
        )
        seeds = 1 + (n_embd <= 36) + 2 * (n_embd <= 30 and n_layer == 2)
        spread = np.exp(
            np.log(0.015) + np.log(8) * ((random.uniform(0, 1) + np.array([0, 0.5])) % 1)
        )
        best = 0.035 * (n_embd / 45) ** drift
        near = best * np.exp(0.15 * random.standard_normal())
        for trial, rate in enumerate([*spread, near]):
            changes = own | {"max_iters": length, "learning_rate": float(rate)}
            alike = planted_run(changes, ("n_layer", "n_embd"), trial)
            law = (
                FIRST_LAW["E"]
                + FIRST_LAW["A"] / alike["n_params_non_embedding"] ** FIRST_LAW["alpha"]
            )
            away = np.log(rate / best)
            worse = 0.04 * away**2 + skew * away**3 + 0.01 * (n_layer != 2)
            for which in range(seeds):
                loss = law * np.exp(worse + noise * random.standard_normal())
                measured = dict.fromkeys(
                    ("best_val_loss", "final_val_loss", "value", "valued_val_loss"), loss
                )
                rows.append(
                    alike
                    | measured
                    | {"seed": which, "run_id": f"{alike['cell']}/{trial}/{which}"}
                )
    pairs = {name for name, row in TABLE.items() if row.kind == "floats"}
    runs = typed_runs(
        pd.DataFrame(rows).assign(**{name: [str(row[name]) for row in rows] for name in pairs})
    )
    range_of_rates = {"learning_rate": Range(min=0.015, max=0.12, log=True)}
    design = StudyDesign(("n_layer", "n_embd"), range_of_rates)
    return with_expected(runs, rankings(runs, {"planted": design}))
