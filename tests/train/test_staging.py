"""A step as a GPU takes it: over a bucket of rows, from one copy, without waiting. Here on the CPU and on meta."""

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from train.test_stack import train
from trained import stack_of

from sweeplab.train.optimizers import OPTIMIZERS
from sweeplab.train.run import TrainingRun
from sweeplab.train.step import StagedStep, bucket

SHORT = {"max_iters": 24, "eval_interval": 12, "label_smoothing": 0.1}
WAITS = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select")


class Watch(TorchDispatchMode):
    """Refuse whatever waits for a number of the device, and count what is copied to it."""

    def __init__(self):
        super().__init__()
        self.copies = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name not in WAITS, f"{name} waits for the device"
        given = [each for each in args if isinstance(each, torch.Tensor)]
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.is_meta:
            self.copies += any(each.device.type == "cpu" and each.dim() for each in given)
        return result


def test_buckets_are_powers_of_two_within_the_stack():
    assert [bucket(n, 12) for n in (1, 2, 3, 4, 5, 9, 12)] == [1, 2, 4, 4, 8, 12, 12]


def staged(stack):
    optimizer = type(stack._step.optimizer)(stack.transformer.layout)
    taken = replace(stack._step, optimizer=optimizer)
    stack._way = StagedStep(taken, stack._rows)
    return stack


@pytest.mark.slow
@pytest.mark.parametrize("changed", [{}, {"grad_accum": 2}], ids=str)
def test_staged_steps_train_what_the_others_do(changed, unlike, tokens):
    """Runs end at unlike times, so that buckets shrink and their last rows are dead."""
    runs = [
        TrainingRun(run.key, run.values.replace(max_iters=12 * (1 + index // 2)))
        for index, run in enumerate(unlike("P", **SHORT, **changed))
    ]
    found = []
    for change in (lambda stack: stack, staged):
        stack = change(stack_of(runs[:3], tokens, capacity=4))
        stack.advance()
        stack.advance()
        stack.release("run0")
        stack.admit(runs[3])
        found.append(train(stack))
    (points, rows), (staged_points, staged_rows) = found
    assert staged_points.keys() == points.keys() >= {"run1", "run2", "run3"}
    for key in points:
        assert torch.allclose(
            staged_rows[key]["weights"], rows[key]["weights"], rtol=0, atol=2e-5
        ), key
        for (at, loss, losses), (also_at, also, also_losses) in zip(
            points[key], staged_points[key], strict=True
        ):
            assert at == also_at and also == pytest.approx(loss, abs=1e-4)
            assert also_losses == pytest.approx(losses, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed",
    [*({"optimizer": name} for name in OPTIMIZERS), {"grad_accum": 2}],
    ids=str,
)
def test_a_staged_step_copies_once_and_waits_for_nothing(changed, unlike, tokens):
    runs = unlike("P", **SHORT, **changed)
    stack = stack_of(runs[:3], tokens, capacity=4)
    stack.advance()
    stack.device = torch.device("meta")
    stack._elements = stack._elements.to("meta")
    stack._rows = {name: rows.to("meta") for name, rows in stack._rows.items()}
    for member in stack._members:
        member.iteration += 1  # no point of the curve is due
    with Watch() as watch:
        staged(stack).step()
        stack.step()
    assert watch.copies == 2
    assert [member.iteration for member in stack._members] == [3, 3, 3]
