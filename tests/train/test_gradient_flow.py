"""The norms of layers' gradients and updates: against plain ones, and without a trace in what is trained."""

import math

import numpy as np
import pytest
import torch

from sweeplab.hyperparameters import Hyperparameters
from sweeplab.model.layout import Layout
from sweeplab.model.shape import ModelShape
from sweeplab.train.run import TrainingRun
from sweeplab.train.stack import Stack

pytestmark = pytest.mark.usefixtures("one_thread")

TOKENS = (np.arange(3000) * np.arange(3000) % 31).astype(np.uint16)


def values_of(**changed):
    return Hyperparameters.of({
        "n_layer": 2, "n_embd": 16, "n_head": 2, "block_size": 16, "batch_size": 4, "vocab_size": 31, "max_iters": 12,
        "eval_interval": 6, "log_interval": 4, "warmup_iters": 2, "learning_rate": 1e-2, "device": "cpu",
        "dtype": "float32", "compile": False, "eval_iters": 1, "dropout": 0.1, "objective": "next_token", **changed,
    })  # fmt: skip


def trained(keys, tracks, cut=False):
    """Return the points and the losses of run 0, trained in a stack with others; `cut` moves it to another stack."""
    values, points, losses = values_of(), [], []
    stack = Stack(values, TOKENS, TOKENS, len(keys), tracks)
    for key in keys:
        stack.admit(
            TrainingRun(key, values.replace(seed=int(key), learning_rate=1e-2 * (1 + int(key))))
        )
    # Between a point of the curve and the evaluation that hands it out.
    pauses = iter([False] * 5 + [cut])
    while "0" in stack.keys:
        records = stack.advance(lambda: next(pauses, False))
        if not records:
            snapshot = stack.snapshot("0")
            stack = Stack(values, TOKENS, TOKENS, 1, tracks)
            stack.admit(TrainingRun("0", values.replace(seed=0)), snapshot)
        for record in records:
            if record.key == "0":
                points += record.points
                losses.append(record.val_loss)
            if record.state != "running":
                stack.release(record.key)
    return points, losses


@pytest.mark.parametrize(
    "changed", [{}, {"grad_accum": 2}, {"tie_weights": False, "positions": "rotary"}]
)
def test_they_are_the_norms_of_plain_gradients_and_differences(changed):
    values = values_of(log_interval=1, max_iters=3, dropout=0.0, grad_clip=0.1, **changed)
    stack = Stack(values, TOKENS, TOKENS, 1, tracks_gradients=True)
    stack.admit(TrainingRun("0", values))
    stack.advance()

    views = stack.transformer.layout.views

    def norms(of):
        found = {}
        for name, each in of.items():
            layer = ".".join(name.split(".")[: 2 if name.startswith("blocks") else 1])
            found[layer] = math.hypot(
                found.get(layer, 0.0), torch.linalg.vector_norm(each.double()).item()
            )
        return found

    for _ in range(3):
        before = {
            name: each.clone().requires_grad_()
            for name, each in views(stack._rows["weights"]).items()
        }
        loss = stack.transformer.losses(before, stack._inputs().batch).sum()
        gradients = dict(
            zip(before, torch.autograd.grad(loss, list(before.values())), strict=True)
        )
        stack.step()
        moved = {
            name: each - before[name] for name, each in views(stack._rows["weights"]).items()
        }
        wanted = norms(gradients), norms(moved), norms(before)
        point = stack._members[0].points[-1]
        assert set(point["layers"]) == set(wanted[0])
        for layer, own in point["layers"].items():
            assert own == pytest.approx([each[layer] for each in wanted], rel=1e-4)
        whole = math.hypot(*(own[0] for own in point["layers"].values()))
        assert whole == pytest.approx(point["grad_norm"], rel=1e-4), "before clipping"


def test_what_is_trained_is_the_same_to_the_last_bit_and_norms_do_not_depend_on_a_stack():
    plain, losses = trained("0", tracks=False)
    assert all("layers" not in point for point in plain)
    alone, same = trained("0", tracks=True)
    assert same == losses and [each["train_loss"] for each in alone] == [
        each["train_loss"] for each in plain
    ]
    flows = [(point["iteration"], point["layers"]) for point in alone]
    assert [at for at, _ in flows] == [4, 6, 8, 12]
    for keys, cut in (("120", False), ("02", True)):
        points, again = trained(keys, tracks=True, cut=cut)
        assert (
            again == losses
            and [(point["iteration"], point["layers"]) for point in points] == flows
        )


def test_layers_come_in_the_order_in_which_they_are_passed():
    sizes = {
        "n_layer": 11,
        "n_embd": 8,
        "n_head": 2,
        "vocab_size": 9,
        "block_size": 4,
        "tie_weights": False,
    }
    layers = Layout(
        ModelShape.of(Hyperparameters.of({**sizes, "family": "encoder_decoder"}))
    ).layers
    assert layers[:2] == ["token_embedding", "encoder.position_embedding"]
    assert layers[2:13] == [f"encoder.blocks.{at}" for at in range(11)]
    assert layers[13:15] == ["encoder.final_norm", "position_embedding"]
    assert layers[15:] == [*(f"blocks.{at}" for at in range(11)), "final_norm", "head"]
