import math

from sweeplab.hyperparameters import Hyperparameters
from sweeplab.train.member import StoppingState

VALUES = Hyperparameters.of({
    "max_iters": 1000, "patience": 3, "min_delta": 0.1, "lr_decay": True,
    "scheduler_type": "constant", "patience_lr": 2, "vocab_size": 50,
})  # fmt: skip


def states(losses, **changed):
    progress = StoppingState()
    values = VALUES.replace(**changed)
    found = [progress.evaluated(loss, index * 100, values) for index, loss in enumerate(losses)]
    return found, progress


def test_stops_after_patience_evaluations_without_an_improvement_by_min_delta() -> None:
    found, progress = states([4.0, 3.0, 2.95, 2.94, 2.93])
    assert found == ["running"] * 4 + ["stopped"]
    assert progress.best == 2.93  # the best is the best, however small the step


def test_small_steps_that_add_up_are_an_improvement() -> None:
    found, _ = states([4.0, 3.95, 3.89, 3.84, 3.78, 3.73])
    assert set(found) == {"running"}


def test_no_patience_never_stops() -> None:
    found, _ = states([4.0] * 11, patience=None)
    assert found == ["running"] * 10 + ["complete"]


def test_not_finite_or_far_above_the_start_is_diverged() -> None:
    assert states([4.0, math.nan])[0][-1] == "diverged"
    assert states([4.0, math.inf])[0][-1] == "diverged"
    assert states([math.nan])[0][-1] == "diverged"
    assert states([4.0, 11.9])[0][-1] == "running"
    assert states([4.0, 12.1])[0][-1] == "diverged"


def test_trained_weights_that_lose_what_they_knew_have_not_diverged() -> None:
    assert states([0.010, 0.031, 3.9, 11.7], patience=None)[0] == ["running"] * 4
    assert states([0.010, 11.8])[0][-1] == "diverged", "three times a guess among 50 tokens, 3.91 nats"


def test_wsd_waits_for_its_decay_before_it_runs_out_of_patience() -> None:
    decays = {"scheduler_type": "wsd", "decay_share": 0.4}
    found, _ = states([4.0] * 11, **decays)
    assert found[:10] == ["running"] * 9 + ["stopped"], (
        "the decay begins at 600, and three evaluations bring nothing"
    )
    assert states([4.0] * 11, **decays, lr_decay=False)[0][3] == "stopped"


def test_plateau_halves_every_patience_lr_bad_evaluations() -> None:
    _, progress = states([4.0] + [4.0] * 5, scheduler_type="plateau", patience=None)
    assert progress.n_halvings == 2
    _, progress = states([4.0] + [4.0] * 5, scheduler_type="constant", patience=None)
    assert progress.n_halvings == 0
