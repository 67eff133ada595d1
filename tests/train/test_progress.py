import math

import pytest

from sweeplab.hyperparameters import Hyperparameters
from sweeplab.train.member import Member, Record, StoppingState
from sweeplab.train.run import TrainingRun, learning_rate

VALUES = Hyperparameters.of({
    "max_iters": 1000, "patience": 3, "min_delta": 0.1, "lr_decay": True,
    "scheduler_type": "constant", "patience_lr": 2, "vocab_size": 50,
})  # fmt: skip
WSD = {
    "scheduler_type": "wsd",
    "decay_share": 0.4,
}  # the decay begins at 600, and three evaluations bring nothing


@pytest.mark.parametrize(
    ("losses", "changed", "n_running", "end"),
    [
        ([4.0, 3.0, 2.95, 2.94, 2.93], {}, 4, "stopped"),
        ([4.0, 3.95, 3.89, 3.84, 3.78, 3.73], {}, 5, "running"),  # small steps that add up
        ([4.0, 3.9, 3.9, 3.9], {}, 3, "stopped"),  # a step of min_delta is none
        ([4.0] * 11, {"patience": None, "max_iters": 950}, 10, "complete"),
        ([4.0, math.nan], {}, 1, "diverged"),
        ([math.inf], {}, 0, "diverged"),
        ([4.0, 12.0], {}, 1, "running"),
        ([4.0, 12.1], {}, 1, "diverged"),
        (
            [0.010, 0.031, 3.9, 11.7],
            {"patience": None},
            3,
            "running",
        ),  # trained weights that lose what they knew
        ([0.010, 11.8], {}, 1, "diverged"),  # three times a guess among 50 tokens, 3.91 nats
        ([4.0] * 10, WSD, 9, "stopped"),
        ([4.0] * 4, {**WSD, "lr_decay": False}, 3, "stopped"),
    ],
)
def test_a_runs_state_follows_from_its_losses(losses, changed, n_running, end):
    progress, values = StoppingState(), VALUES.replace(**changed)
    found = [progress.evaluated(loss, index * 100, values) for index, loss in enumerate(losses)]
    assert found == ["running"] * n_running + [end]
    if end == "stopped":
        assert progress.best == min(losses), "the best is the best, however small the step"


@pytest.mark.parametrize(("scheduler", "n_halvings"), [("plateau", 2), ("constant", 0)])
def test_plateau_halves_every_patience_lr_bad_evaluations(scheduler, n_halvings):
    progress, values = StoppingState(), VALUES.replace(scheduler_type=scheduler, patience=None)
    for index in range(6):
        progress.evaluated(4.0, index * 100, values)
    assert progress.n_halvings == n_halvings


def test_a_point_of_the_curve_is_of_the_steps_since_the_last_one():
    values = VALUES.replace(batch_size=4, block_size=8, warmup_iters=20, learning_rate=0.02)
    new = Member.of(TrainingRun("0", values), {}).numbers()
    assert {name for name, value in new.items() if value} == {"evaluated", "progress"}
    assert (new["evaluated"], *[*new["progress"].values()][1:]) == (
        -1,
        math.inf,
        0,
        math.inf,
        0,
        0,
        0,
        math.inf,
    )
    member = Member.of(
        TrainingRun("0", values), {"iteration": 10, "counted": 10, "wall_seconds": 2.0}
    )
    first = member.add_point(loss=30.0, norm=20.0)
    assert (first["train_loss"], first["grad_norm"], first["tokens_per_second"]) == (
        3.0,
        2.0,
        10 * 32 / 2.0,
    )
    assert first["learning_rate"] == learning_rate(values, 9), "that of the last step"
    assert learning_rate(values, 8) < first["learning_rate"] < learning_rate(values, 10)
    member.iteration, member.wall_seconds = 14, 3.0
    member.counted += 4
    second = member.add_point(loss=8.0, norm=4.0)
    assert (second["train_loss"], second["grad_norm"], second["tokens_per_second"]) == (
        2.0,
        1.0,
        4 * 32 / 1.0,
    )


def test_an_evaluation_takes_the_points_and_its_time_counts_in_no_rate():
    member = Member.of(
        TrainingRun("0", VALUES),
        {"iteration": 7, "wall_seconds": 2.0, "points": [{}], "slot_steps": 3.5},
    )
    record = member.record({"val_loss": 2.5, "accuracy": 0.5}, 0.25)
    assert record == Record(
        "0", 7, 2.5, "running", (2.5, 7), 2.25, 0.25, 3.5, [{}], {"accuracy": 0.5}
    )
    assert (member.evaluated, member.points, member.point_seconds) == (7, [], 0.25)


def test_the_numbers_of_a_step_are_those_of_the_run():
    own = {
        "betas": (0.8, 0.95),
        "eps": 1e-6,
        "momentum": 0.7,
        "weight_decay": 0.3,
        "dropout": 0.1,
    }
    values = VALUES.replace(**own, learning_rate=0.5, warmup_iters=0, grad_clip=None)
    numbers = Member.of(TrainingRun("0", values), {"iteration": 2}).step_numbers(["dropout"])
    assert numbers == {
        "learning_rate": 0.5, "weight_decay": 0.3, "beta1": 0.8, "beta2": 0.95, "eps": 1e-6, "momentum": 0.7, "step": 3,
        "correction1": 1 - 0.8**3, "correction2": (1 - 0.95**3) ** -0.5, "limit": math.inf, "loss.dropout": 0.1,
    }  # fmt: skip
    assert (
        Member.of(TrainingRun("0", values.replace(grad_clip=0.5)), {}).step_numbers([])["limit"]
        == 0.5
    )


def test_evaluations_come_at_each_interval_and_at_the_end_and_points_of_the_curve_with_them():
    run = TrainingRun("0", VALUES.replace(log_interval=3, eval_interval=7, max_iters=9))

    def those(asked, **known):
        return [
            each for each in range(10) if asked(Member.of(run, {"iteration": each, **known}))
        ]

    assert those(Member.is_due) == [0, 7, 9] and those(Member.is_due, evaluated=7) == [9]
    assert those(Member.has_point_ahead) == [2, 5, 6, 8]
