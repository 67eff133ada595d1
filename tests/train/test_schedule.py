from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeplab.hyperparameters import TABLE
from sweeplab.train.schedule import SHAPES, learning_rate

VALUES = {
    "learning_rate": 1e-3, "warmup_iters": 10, "max_iters": 110, "min_lr": 1e-4,
    "lr_decay": True, "scheduler_type": "cosine",
}  # fmt: skip


def nanogpt(iteration: int) -> float:
    if iteration < 10:
        return 1e-3 * (iteration + 1) / 11
    ratio = (iteration - 10) / 100
    return 1e-4 + 0.5 * (1 + math.cos(math.pi * ratio)) * 9e-4


@pytest.mark.parametrize("iteration", [0, 1, 9, 10, 11, 60, 109, 110])
def test_cosine_is_nanogpts(iteration: int) -> None:
    assert learning_rate(VALUES, iteration) == pytest.approx(nanogpt(iteration))


def test_every_choice_of_the_table_has_a_shape() -> None:
    assert set(SHAPES) == set(TABLE["scheduler_type"].choices)


def test_linear_constant_and_no_decay() -> None:
    assert learning_rate(VALUES | {"scheduler_type": "linear"}, 60) == pytest.approx(5.5e-4)
    assert learning_rate(VALUES | {"scheduler_type": "constant"}, 100) == 1e-3
    assert learning_rate(VALUES | {"lr_decay": False}, 100) == 1e-3


def test_plateau_halves_down_to_min_lr() -> None:
    values = VALUES | {"scheduler_type": "plateau"}
    found = [learning_rate(values, 50, n_halvings) for n_halvings in range(5)]
    assert found == pytest.approx([1e-3, 5e-4, 2.5e-4, 1.25e-4, 1e-4])


@given(
    st.sampled_from(sorted(SHAPES)),
    st.floats(1e-6, 1.0),
    st.floats(0, 1.0),
    st.integers(0, 50),
    st.integers(1, 200),
    st.integers(0, 300),
)
def test_stays_between_its_ends(kind, peak, low, warmup, max_iters, iteration) -> None:
    values = {
        "learning_rate": peak, "min_lr": low, "warmup_iters": warmup, "max_iters": max_iters,
        "lr_decay": True, "scheduler_type": kind,
    }  # fmt: skip
    rate = learning_rate(values, iteration)
    floor = min(low, peak) if iteration >= warmup else 0.0
    assert floor * (1 - 1e-9) <= rate <= peak * (1 + 1e-9)
