"""Small data and the facts' three shapes, on one thread: what a stack computes must not depend on its size."""

import numpy as np
import pytest

from sweeplab.hyperparameters import Hyperparameters
from sweeplab.train.run import TrainingRun

VOCABULARY = 65
SHAPES = {
    "P": {"n_layer": 2, "n_embd": 32, "n_head": 4, "block_size": 16, "batch_size": 4},
    "B": {"n_layer": 4, "n_embd": 64, "n_head": 4, "block_size": 32, "batch_size": 16},
    "A": {"n_layer": 3, "n_embd": 192, "n_head": 6, "block_size": 192, "batch_size": 48},
}


@pytest.fixture(autouse=True)
def _exact(one_thread):
    """Train on one thread: with more, bits depend on how a product was divided."""


@pytest.fixture(scope="session")
def tokens():
    """Text-like tokens: a walk in which the next symbol depends on the last."""
    generator = np.random.default_rng(5)
    return (np.cumsum(generator.choice([1, 1, 2, 7], 60_000)) % VOCABULARY).astype(np.uint16)


@pytest.fixture
def values_of():
    """Return effective values of a small run, with changes."""

    def values(shape="P", **changed):
        return Hyperparameters.of({
            **SHAPES[shape], "vocab_size": VOCABULARY, "device": "cpu", "dtype": "float32",
            "compile": False, "max_iters": 50, "eval_interval": 25, "eval_iters": 3, "log_interval": 5,
            "warmup_iters": 5, "dropout": 0.1, "patience": None, **changed,
        })  # fmt: skip

    return values


@pytest.fixture
def unlike(values_of):
    """Return four runs of one shape that differ in all that may differ inside a stack."""

    def four(shape, **changed):
        differing = [
            {
                "learning_rate": 1e-3,
                "weight_decay": 0.1,
                "betas": (0.9, 0.95),
                "dropout": 0.1,
                "grad_clip": 1.0,
            },
            {
                "learning_rate": 4e-3,
                "weight_decay": 0.0,
                "betas": (0.9, 0.999),
                "dropout": 0.3,
                "grad_clip": None,
            },
            {
                "learning_rate": 3e-4,
                "weight_decay": 0.3,
                "betas": (0.8, 0.99),
                "dropout": 0.2,
                "eps": 1e-6,
            },
            {
                "learning_rate": 2e-3,
                "scheduler_type": "linear",
                "warmup_iters": 17,
                "grad_clip": 0.3,
            },
        ]
        return [
            TrainingRun(f"run{seed}", values_of(shape, seed=seed, **each, **changed))
            for seed, each in enumerate(differing)
        ]

    return four
