"""A run computes the same bits in any stack; what it does is its own."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from trained import begun, stack_of

from sweeplab.train.checkpoint import read_snapshot, write_snapshot
from sweeplab.train.run import TrainingRun, learning_rate, shape_key
from sweeplab.train.stack import Stack

SHORT = {"max_iters": 24, "eval_interval": 12}


def train(stack):
    """Advance to the end; return what each run did."""
    losses = {}
    weights = {}
    while len(stack):
        for record in stack.advance():
            losses.setdefault(record.key, []).append(
                (
                    record.iteration,
                    record.val_loss,
                    [point["train_loss"] for point in record.points],
                )
            )
            if record.state != "running":
                weights[record.key] = stack.snapshot(record.key).rows
                stack.release(record.key)
    return losses, weights


def assert_same(one, other, keys):
    for key in keys:
        assert one[0][key] == other[0][key]
        for name, row in one[1][key].items():
            assert torch.equal(row, other[1][key][name]), (key, name)


def train_in_stacks_of(capacity, runs, tokens):
    """Train runs on one thread, `capacity` of them at a time; return what each run did."""
    torch.set_num_threads(1)
    losses, weights = {}, {}
    for first in range(0, len(runs), capacity):
        found = train(stack_of(runs[first : first + capacity], tokens, capacity))
        losses |= found[0]
        weights |= found[1]
    return losses, weights


LIKE = {
    "plain": ("P", {}),
    "larger": ("B", {}),
    "largest": ("A", {"max_iters": 2, "eval_interval": 2, "eval_iters": 1, "log_interval": 1}),
    "bfloat16": ("P", {**SHORT, "dtype": "bfloat16", "n_embd": 96, "batch_size": 16}),
    "parts of a batch": ("P", {**SHORT, "grad_accum": 2}),
    "modern": ("P", {
        **SHORT, "norm": "rmsnorm", "positions": "rotary", "activation": "swiglu", "n_kv_head": 2, "qk_norm": True,
        "bias": False, "residual_dropout": 0.05, "label_smoothing": 0.1,
    }),
    "routed": ("P", {
        **SHORT, "n_expert": 3, "n_expert_active": 2, "attention": "local", "attention_window": 6,
        "full_attention_interval": 2, "positions": "alibi",
    }),
}  # fmt: skip


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "name",
    [
        "plain",
        *(pytest.param(each, marks=pytest.mark.slow) for each in LIKE if each != "plain"),
    ],
)
def test_a_stack_of_four_equals_four_stacks_of_one(name, unlike, tokens):
    shape, changed = LIKE[name]
    runs = unlike(shape, **changed)
    for index, run in enumerate(runs):
        if name == "routed":
            runs[index] = TrainingRun(run.key, run.values.replace(router_balance=0.01 * index))
    together, alone = (train_in_stacks_of(capacity, runs, tokens) for capacity in (4, 1))
    assert_same(together, alone, [run.key for run in runs])


@pytest.mark.parametrize("fault", ["learning rate", "weight"])
def test_a_diverging_neighbor_changes_no_bit(fault, unlike, tokens):
    runs = unlike("P", **SHORT)
    found = []
    for broken in (False, True):
        if broken and fault == "learning rate":
            runs[1] = TrainingRun("run1", runs[1].values.replace(learning_rate=1e6))
        stack = stack_of(runs, tokens)
        if broken and fault == "weight":
            stack._rows["weights"][1, 100] = float("nan")
        found.append(train(stack))
    assert_same(*found, ["run0", "run2", "run3"])
    assert found[0][0]["run1"] != found[1][0]["run1"]


def test_a_diverged_run_says_so_and_its_stack_goes_on(values_of, tokens):
    good = TrainingRun("good", values_of(seed=1))
    bad = TrainingRun("bad", values_of(seed=2, learning_rate=1e6, grad_clip=None))
    stack = stack_of([good, bad], tokens)
    states = {}
    while len(stack):
        for record in stack.advance():
            if record.state != "running":
                states[record.key] = (record.state, record.iteration, record.slot_steps)
                stack.release(record.key)
    # Both slots of the 25 steps after it are the other one's.
    assert states == {"bad": ("diverged", 25, 25.0), "good": ("complete", 50, 75.0)}


def test_a_run_that_enters_late_computes_the_same(unlike, tokens):
    runs = unlike("P")
    expected = train(stack_of([runs[3]], tokens))
    stack = stack_of(runs[:2], tokens, capacity=3)
    for _ in range(2):
        records = stack.advance()
    assert {record.iteration for record in records} == {25}
    stack.release("run0")
    stack.admit(runs[3])
    assert_same(expected, train(stack), ["run3"])


RESUME = """
import sys, numpy as np, torch
from pathlib import Path
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.sweep.engines import SETTINGS
from sweeplab.train.checkpoint import read_snapshot, write_snapshot
from sweeplab.train.run import TrainingRun
from sweeplab.train.stack import Stack
import json
torch.set_num_threads(1)
folder = Path(sys.argv[1])
runs = [Hyperparameters.of(each) for each in json.loads(sys.argv[2])]
tokens = np.load(folder / "tokens.npy")
stack = Stack(runs[0], tokens, tokens, capacity=3)
stack.admit(TrainingRun("other", runs[1]))
stack.admit(TrainingRun("resumed", runs[0]), read_snapshot(folder / "middle"))
while "resumed" in stack.keys:
    for record in stack.advance():
        if record.state != "running":
            write_snapshot(folder / record.key, stack.snapshot(record.key))
            stack.release(record.key)
"""


@pytest.mark.slow
@pytest.mark.parametrize("paused_at", ["evaluation", "between"])
def test_resumed_in_another_process_slot_and_stack_equals_uninterrupted(
    paused_at, unlike, tokens, tmp_path
):
    runs = unlike("P", **SHORT)
    expected = train(stack_of([runs[2]], tokens))[1]["run2"]

    first = stack_of(runs, tokens)
    first.advance()
    first.advance()
    if paused_at == "between":
        steps = iter([False] * 6 + [True])
        assert first.advance(lambda: next(steps)) == []
    (tmp_path / "middle").mkdir()
    write_snapshot(tmp_path / "middle", first.snapshot("run2"))
    np.save(tmp_path / "tokens.npy", tokens)
    (tmp_path / "resumed").mkdir()
    (tmp_path / "other").mkdir()
    arguments = [
        str(tmp_path),
        json.dumps([runs[2].values.as_dict(), runs[0].values.as_dict()]),
    ]
    subprocess.run([sys.executable, "-c", RESUME, *arguments], check=True)
    found = read_snapshot(tmp_path / "resumed")
    for name, row in expected.items():
        assert torch.equal(row, found.rows[name]), name


def test_a_point_has_the_rate_of_its_last_step_and_the_speed_since_the_one_before(
    values_of, tokens
):
    values = values_of(warmup_iters=8)
    stack = begun(values, tokens)
    points = [point for _ in range(3) for record in stack.advance() for point in record.points]
    assert len(points) > 4
    seconds = 0.0
    for index, point in enumerate(points):
        assert point["iteration"] == 5 * (index + 1)
        assert point["learning_rate"] == learning_rate(values, point["iteration"] - 1)
        # An evaluation's seconds are no step's.
        if (point["iteration"] - 5) % values.eval_interval:
            trained = 5 * values.batch_size * values.block_size
            assert point["tokens_per_second"] == pytest.approx(
                trained / (point["wall_seconds"] - seconds)
            )
        seconds = point["wall_seconds"]


def test_best_weights_are_those_of_the_best_evaluation(values_of, tokens):
    values = values_of(
        learning_rate=3e-2, grad_clip=None, max_iters=100, warmup_iters=0, eval_interval=10
    )
    stack = begun(values, tokens)
    best = None
    while len(stack):
        for record in stack.advance():
            if record.best[1] == record.iteration:
                best = (record.val_loss, stack.weights("run"))
            if record.state != "running":
                kept = stack.weights("run", best=True)
                stack.release("run")
    assert all(torch.equal(kept[name], weight) for name, weight in best[1].items())


def test_refuses_what_does_not_fit(values_of, tokens):
    stack = Stack(values_of(), tokens, tokens)
    with pytest.raises(ValueError, match="cannot admit"):
        stack.admit(TrainingRun("wide", values_of(n_embd=64)))
    stack.admit(TrainingRun("one", values_of()))
    with pytest.raises(ValueError, match="cannot admit"):
        stack.admit(TrainingRun("two", values_of()))


@pytest.mark.parametrize(
    ("one", "other", "shares"),
    [
        ({}, {"learning_rate": 1.0, "seed": 3, "momentum": 0.5}, True),
        ({"dropout": 0.1}, {"dropout": 0.3}, True),
        ({"label_smoothing": 0.1}, {"label_smoothing": 0.2}, True),
        ({"dropout": 0.0}, {"dropout": 0.3}, False),
        ({}, {"attention_dropout": 0.0}, False),
        *(({}, {name: value}, False) for name, value in [
            ("label_smoothing", 0.1), ("grad_accum", 2), ("optimizer", "lion"),
            ("parametrization", "mup"),
        ]),
    ],
)  # fmt: skip
def test_what_shares_a_stack(one, other, shares, values_of):
    assert (shape_key(values_of(**one)) == shape_key(values_of(**other))) is shares
