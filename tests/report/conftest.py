"""Runs of a study that never was, with losses that are known because they were planted."""

import math
from functools import cache
from typing import NamedTuple

import pytest
from analysis.typed_runs import typed_runs
from pandas import DataFrame
from tiny_study import tiny

from sweeplab.analysis.table import CURVES
from sweeplab.hyperparameters import TABLE, defaults
from sweeplab.model.accounting import n_params, n_params_non_embedding
from sweeplab.model.shape import SETTLED, ModelShape, settled

__all__ = ["tiny"]

ITERATIONS = (0, 100, 200, 300)
TOKENS = 16 * 64


class Planted(NamedTuple):
    runs: DataFrame
    curves: DataFrame


def _plant(states, layers=(1, 2, 4), widths=(32, 64), seeds=1, losses=None):
    """Return a study with a trial a state in each cell, and one loss a trial unless a formula gives them."""
    runs, curves = [], []
    for n_layer in layers:
        for n_embd in widths:
            own = {
                "n_layer": n_layer,
                "n_embd": n_embd,
                "n_head": 4,
                "vocab_size": 97,
                "block_size": 64,
            }
            own |= {"batch_size": 16, "device": "cpu", "dtype": "float32", "compile": False}
            shape = ModelShape.named({**defaults(), **own})
            for trial, state in enumerate(states):
                for seed in range(seeds):
                    cell = f"n_layer={n_layer},n_embd={n_embd}"
                    # The formula that tests rely on.
                    last = 4 - 0.1 * n_layer - 0.01 * n_embd + 0.2 * trial + 0.01 * seed
                    last = losses[trial] if losses else last
                    last = math.nan if state in ("diverged", "failed") else last
                    for iteration in ITERATIONS:
                        value = 5 + (last - 5) * iteration / ITERATIONS[-1]
                        tokens = iteration * TOKENS
                        curves.append((cell, trial, seed, iteration, tokens, "val_loss", value))
                    runs.append(
                        settled({**defaults(), **own})
                        | {"study": "planted", "cell": cell, "trial": trial, "seed": seed}
                        | {
                            "state": state,
                            "best_val_loss": last,
                            "final_val_loss": last + 0.5,
                            "value": last,
                        }
                        | dict.fromkeys(("n_params", "n_params_active"), n_params(shape))
                        | {"iterations": ITERATIONS[-1], "run_id": "x"}
                        | {"n_params_non_embedding": n_params_non_embedding(shape)}
                        | {
                            "train_tokens": ITERATIONS[-1] * TOKENS,
                            "train_flops": 1e12,
                            "wall_seconds": 2.5,
                        }
                        | {"learning_rate": 1e-3 * (trial + 1)}
                    )
    # What follows from others would count as a part of the grid, as no study's record is there.
    table = DataFrame(runs).drop(columns=[*SETTLED])
    return Planted(table, DataFrame(curves, columns=list(CURVES)))


def _as_tracked(planted):
    """Return the frames as the analysis table gives them: nullable types, pairs as text."""
    pairs = {
        name: planted.runs[name].astype(str)
        for name, row in TABLE.items()
        if row.kind == "floats"
    }
    return Planted(typed_runs(planted.runs.assign(**pairs)), planted.curves.astype(CURVES))


@pytest.fixture(
    params=[pytest.param(lambda planted: planted, marks=pytest.mark.slow), _as_tracked],
    ids=["numpy", "nullable"],
)
def typed(request):
    """A study may come in NumPy's types or in the nullable ones."""
    return request.param


_planted = cache(_plant)


@pytest.fixture(scope="session")
def plant():
    """Return the function that plants a study, for its caller to change."""

    def plant_copy(states, layers=(1, 2, 4), widths=(32, 64), seeds=1, losses=None):
        found = _planted(
            tuple(states), tuple(layers), tuple(widths), seeds, losses and tuple(losses)
        )
        return Planted(*(each.copy() for each in found))

    return plant_copy
