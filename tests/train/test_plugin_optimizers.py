"""Optimizers and schedules of plug-ins: what is asked of the package's own is asked of them too."""

import math

import pytest
import torch
from plugged import forgotten

from sweeplab import plugins
from sweeplab.hyperparameters import TABLE
from sweeplab.model.layout import Layout
from sweeplab.model.shape import ModelShape
from sweeplab.train.checkpoint import read_snapshot, write_snapshot
from sweeplab.train.optimizers import Optimizer, Rates, TorchOptimizer, column, make_optimizer
from sweeplab.train.run import TrainingRun, learning_rate, shape_key
from sweeplab.train.stack import Stack

pytestmark = pytest.mark.usefixtures("forgets_plugins")


class SignMomentum(Optimizer):
    """The sign of a momentum."""

    rows = ("momentum",)

    def update_(self, weights, gradient, state, rates):
        momentum = state["momentum"]
        momentum.mul_(column(rates.momentum, weights)).add_(gradient)
        weights.sub_(momentum.sign() * column(rates.learning_rate, weights))


TORCH = {
    "adam": lambda parameters, values: torch.optim.Adam(
        parameters, values.learning_rate, values.betas
    ),
    "nadam": lambda parameters, values: torch.optim.NAdam(parameters, values.learning_rate),
    "sgd": lambda parameters, values: torch.optim.SGD(
        parameters, values.learning_rate, momentum=0.9
    ),
    "rprop": lambda parameters, values: torch.optim.Rprop(parameters, values.learning_rate),
    "adafactor": lambda parameters, values: torch.optim.Adafactor(
        parameters, values.learning_rate
    ),
}
OWN = {"rows": SignMomentum, **TORCH}


@pytest.fixture(params=OWN)
def mine(request):
    plugins.optimizer("mine")(OWN[request.param])
    return request.param


def trained(runs, tokens, until=20, snapshots=(None, None, None)):
    stack = Stack(runs[0].values, tokens, tokens[:5000], capacity=len(runs))
    for run, snapshot in zip(runs, snapshots, strict=False):
        stack.admit(run, snapshot)
    while (
        all(stack.snapshot(run.key).numbers["evaluated"] < until for run in runs)
        and stack.advance()
    ):
        pass
    return stack


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("changed", [{}, {"grad_accum": 2}, {"dtype": "bfloat16"}])
def test_a_run_has_the_same_bits_stacked_alone_and_continued(
    mine, changed, values_of, tokens, tmp_path
):
    usual = {
        "optimizer": "mine",
        "scheduler_type": "linear",
        "max_iters": 20,
        "eval_interval": 10,
    }
    runs = [
        TrainingRun(f"run{seed}", values_of(seed=seed, **usual | changed)) for seed in range(3)
    ]
    together = trained(runs, tokens)
    for run in runs:
        whole = trained([run], tokens)
        assert same(together.snapshot(run.key).rows, whole.snapshot(run.key).rows)
        begun = trained([run], tokens, until=10).snapshot(run.key)
        write_snapshot(tmp_path / run.key, begun)
        again = trained([run], tokens, snapshots=[read_snapshot(tmp_path / run.key)])
        assert same(again.snapshot(run.key).rows, whole.snapshot(run.key).rows)
        assert not same(begun.rows, whole.snapshot(run.key).rows)


@pytest.mark.parametrize("name", TORCH)
def test_a_torch_optimizer_takes_the_steps_that_it_takes_alone(name, values_of):
    values = values_of(optimizer="mine", learning_rate=0.01)
    plugins.optimizer("mine")(TORCH[name])
    layout = Layout(ModelShape.of(values))
    ours, rows = make_optimizer(values, layout), layout.initial_row(3)[None].clone()
    assert isinstance(ours, TorchOptimizer)
    leaves = [view[0].clone().requires_grad_() for view in layout.views(rows).values()]
    theirs = TORCH[name](leaves, values)
    state = {buffer: torch.zeros(1, size) for buffer, size in ours.buffers().items()}
    for step in range(1, 6):
        gradient = torch.randn(rows.shape, generator=torch.Generator().manual_seed(step))
        gradient[:, 0] = 0.0  # and so is what a momentum begins with, which is a state too
        for leaf, view in zip(leaves, layout.views(gradient).values(), strict=True):
            leaf.grad = view[0].clone()
        theirs.param_groups[0]["lr"] = 0.01 / step
        none = dict.fromkeys(("weight_decay", "beta1", "beta2", "eps", "momentum"), 0.0)
        rates = Rates.at(learning_rate=0.01 / step, step=step, **none)
        ours.update_(
            rows, gradient, state, Rates(*torch.tensor(rates, dtype=torch.float64)[:, None])
        )
        theirs.step()
        for leaf, view in zip(leaves, layout.views(rows).values(), strict=True):
            torch.testing.assert_close(view[0], leaf, rtol=1e-6, atol=1e-8)


def test_only_runs_of_equal_values_share_a_stack_of_a_torch_optimizer(values_of):
    for kind, shares in ((SignMomentum, True), (TORCH["adam"], False), (SignMomentum, True)):
        plugins.optimizer("mine")(kind)
        keys = [
            shape_key(values_of(optimizer="mine", learning_rate=rate)) for rate in (0.1, 0.2)
        ]
        assert (keys[0] == keys[1]) is shares
        seeds = [shape_key(values_of(optimizer="mine", seed=seed)) for seed in (0, 1)]
        assert seeds[0] == seeds[1]


class Double(torch.optim.Optimizer):
    """An optimizer whose state no row can hold."""

    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["total"] = parameter.detach().double()


@pytest.mark.parametrize(
    ("own", "reason"),
    [
        (
            type("Lacking", (Optimizer,), {}),
            "Lacking is no subclass of .*Optimizer with update_",
        ),
        (
            lambda parameters, values: 3,
            "the factory returned a int; allowed: a torch.optim.Optimizer",
        ),
        (
            lambda parameters, values: Double(parameters, {"lr": 1.0}),
            "state total is torch.float64; allowed",
        ),
    ],
)
def test_what_is_no_optimizer_is_refused(own, reason):
    with pytest.raises((TypeError, ValueError), match=reason):
        plugins.optimizer("mine")(own)
    assert "mine" not in TABLE["optimizer"].choices


def test_a_schedule_is_a_function_of_the_share_of_training(values_of):
    with forgotten():
        plugins.schedule("half")(lambda share: 0.5 * (1.0 + math.cos(math.pi * share)))
        ours, theirs = (
            values_of(scheduler_type=name, max_iters=80) for name in ("half", "cosine")
        )
        assert [learning_rate(ours, at) for at in range(81)] == [
            learning_rate(theirs, at) for at in range(81)
        ]
    assert "half" not in TABLE["scheduler_type"].choices


@pytest.mark.parametrize(
    "function", [lambda share: 2.0, lambda share: None, lambda share: math.nan]
)
def test_what_is_no_share_is_refused(function):
    with pytest.raises(
        ValueError, match=r"the schedule is .* at 0 of training; allowed: 0 to 1"
    ):
        plugins.schedule("mine")(function)
