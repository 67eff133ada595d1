import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sweeplab.hyperparameters import TABLE, Hyperparameters
from sweeplab.train.member import Member, StoppingState
from sweeplab.train.run import SCHEDULES, TrainingRun, learning_rate, own_schedule

VALUES = Hyperparameters.of({
    "learning_rate": 1e-3, "warmup_iters": 10, "max_iters": 110, "min_lr": 1e-4,
    "lr_decay": True, "scheduler_type": "cosine", "decay_share": 0.2,
})  # fmt: skip


def nanogpt(iteration):
    if iteration < 10:
        return 1e-3 * (iteration + 1) / 11
    ratio = (iteration - 10) / 100
    return 1e-4 + 0.5 * (1 + math.cos(math.pi * ratio)) * 9e-4


@pytest.mark.parametrize("iteration", [0, 1, 9, 10, 11, 60, 109, 110])
def test_cosine_is_nanogpts(iteration):
    assert learning_rate(VALUES, iteration) == pytest.approx(nanogpt(iteration))


def test_every_choice_of_the_table_is_a_schedule():
    assert set(SCHEDULES) == set(TABLE["scheduler_type"].choices)


def test_linear_constant_and_no_decay():
    assert learning_rate(VALUES.replace(scheduler_type="linear"), 60) == pytest.approx(5.5e-4)
    assert learning_rate(VALUES.replace(scheduler_type="constant"), 100) == 1e-3
    assert learning_rate(VALUES.replace(lr_decay=False), 100) == 1e-3


@pytest.mark.parametrize(
    ("threshold", "patience", "factor"), [(1e-4, 1, 0.5), (0.05, 2, 0.1), (0.0, 3, 0.7)]
)
def test_plateau_is_torchs(threshold, patience, factor):
    """The rates of torch's own scheduler over fifty losses that fall more and more slowly, with noise."""
    values = VALUES.replace(
        scheduler_type="plateau", plateau_threshold=threshold, patience_lr=patience, plateau_factor=factor,
        warmup_iters=0, max_iters=1000, min_lr=1e-5, patience=None, vocab_size=65,
    )  # fmt: skip
    parameter = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=values.learning_rate)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, factor=factor, patience=patience, threshold=threshold, min_lr=values.min_lr
    )
    progress, noise = StoppingState(), np.random.default_rng(0).normal(0.0, 0.05, 50)
    rates = set()
    for index, each in enumerate(noise):
        loss = 2.0 + 2.0 / (1 + index) + float(each)
        optimizer.step()
        schedule.step(loss)
        assert progress.evaluated(loss, index, values) == "running"
        rates.add(rate := learning_rate(values, index, progress.n_halvings))
        assert rate == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)
    assert len(rates) > 3


@pytest.mark.parametrize("scheduler", sorted(SCHEDULES))
def test_the_warm_up_is_a_straight_line(scheduler):
    values = VALUES.replace(scheduler_type=scheduler)
    found = [learning_rate(values, iteration) for iteration in range(11)]
    assert found == pytest.approx([1e-3 * step / 11 for step in range(1, 12)])


@pytest.mark.parametrize(
    ("iteration", "expected"), [(10, 1), (50, 1), (88, 1), (99, 0.55), (109, 0.1 + 0.9 / 22)]
)
def test_wsd_is_stable_then_falls_over_the_last_decay_share(iteration, expected):
    values = VALUES.replace(scheduler_type="wsd")
    assert learning_rate(values, iteration) == pytest.approx(expected * 1e-3)
    assert learning_rate(values, 110) == pytest.approx(1e-4)


def test_inverse_sqrt_is_the_original_transformers():
    values = VALUES.replace(
        scheduler_type="inverse_sqrt", min_lr=0.0, learning_rate=(512 * 4000) ** -0.5
    )
    values = values.replace(warmup_iters=3999, max_iters=100_000)
    for step in (1, 100, 3999, 4000, 4001, 16_000, 100_000):
        published = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)  # section 5.3
        assert learning_rate(values, step - 1) == pytest.approx(published)


@given(
    st.sampled_from(sorted(SCHEDULES)),
    st.floats(1e-6, 1.0),
    st.floats(0, 1.0),
    st.integers(0, 50),
    st.integers(1, 200),
    st.integers(0, 300),
    st.floats(0.01, 1.0),
)
def test_stays_between_its_ends(kind, peak, low, warmup, max_iters, iteration, share):
    values = Hyperparameters(
        learning_rate=peak, min_lr=low, warmup_iters=warmup, max_iters=max_iters,
        lr_decay=True, scheduler_type=kind, decay_share=share,
    )  # fmt: skip
    rate = learning_rate(values, iteration)
    floor = min(low, peak) if iteration >= warmup else 0.0
    assert floor * (1 - 1e-9) <= rate <= peak * (1 + 1e-9)
    if kind in ("cosine", "linear", "wsd"):
        assert learning_rate(values, max(warmup + 1, max_iters)) == pytest.approx(
            min(low, peak)
        )


def test_what_a_loss_takes_is_not_mistaken_for_what_the_optimizer_takes(values_of):
    values = values_of(learning_rate=1e-2, warmup_iters=4)
    numbers = Member.of(TrainingRun("run", values), {}).step_numbers(["learning_rate"])
    assert numbers["learning_rate"] == learning_rate(values, 0) == 2e-3
    assert numbers["loss.learning_rate"] == 1e-2


def test_a_schedule_of_ones_own_is_checked_over_all_of_training():
    own_schedule(lambda progress: 1 - progress)
    for wrong, at in (
        (lambda progress: 1.5 * progress, 0.67),
        (lambda progress: 0.99 - progress, 1),
    ):
        with pytest.raises(ValueError, match=f" at {at} of training; allowed: 0 to 1"):
            own_schedule(wrong)
