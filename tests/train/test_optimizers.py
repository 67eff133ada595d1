"""What every optimizer of the table has to do, and each against its paper and against torch's own.

A new optimizer is one more row of OPTIMIZERS; what is asked of all is asked of it too, and its reference is a loop
in references/optimizers.py.
"""

from dataclasses import replace

import pytest
import torch
from references.optimizers import STEPS
from train.test_stack import train as finished
from trained import stack_of

from sweeplab.hyperparameters import TABLE
from sweeplab.model.layout import BLOCK, Layout
from sweeplab.model.shape import ModelShape
from sweeplab.train.optimizers import OPTIMIZERS, Muon, Rates, adam_, fused_adam_rows_
from sweeplab.train.run import TrainingRun

# Odd sizes: what a vectorised loop leaves over at its end differs from row to row.
SHAPE = ModelShape(
    vocab_size=37,
    block_size=11,
    n_layer=2,
    n_head=3,
    n_embd=21,
    tie_weights=False,
    head_bias=True,
)
LAYOUT = Layout(SHAPE)
NAMES = ("learning_rate", "weight_decay", "beta1", "beta2", "eps", "momentum")
DIFFERING = [
    dict(zip(NAMES, row, strict=True))
    for row in (
        (1e-3, 0.1, 0.9, 0.95, 1e-8, 0.9),
        (3e-2, 0.0, 0.8, 0.999, 1e-6, 0.95),
        (1e-4, 0.5, 0.95, 0.9, 1e-10, 0.0),
    )
]
N_STEPS = 20
every = pytest.mark.parametrize("name", OPTIMIZERS)
# An update of each number alone, one of whole matrices, and one whose state has fewer numbers.
typical = pytest.mark.parametrize("name", ["adamw", "muon", "adafactor"])


def start():
    """Return rows of unlike weights of which none, but the padding, is zero."""
    rows = torch.stack([LAYOUT.initial_row(seed) for seed in range(len(DIFFERING))])
    noise = torch.randn(rows.shape, generator=torch.Generator().manual_seed(7)) * 0.05
    noise[:, LAYOUT.n_params :] = 0.0
    return rows + noise


def gradient(step):
    """Return rows of a gradient that differs in size from weight to weight."""
    rows = torch.randn(3, LAYOUT.row_size, generator=torch.Generator().manual_seed(1000 + step))
    for index, view in enumerate(LAYOUT.views(rows).values()):
        view.mul_(10.0 ** -(index % 4))
    rows[:, LAYOUT.n_params :] = 0.0
    return rows


def together(rates):
    """Return the hyperparameters of several runs as an optimizer takes them."""
    return Rates(*torch.tensor(rates, dtype=torch.float64).unbind(1))


def train(name, rows, n_steps=N_STEPS, broken=None, adam_step_=fused_adam_rows_):
    """Train these of the runs together and return weights and state; the gradient of `broken` is not a number."""
    optimizer = OPTIMIZERS[name](LAYOUT)
    optimizer.adam_step_ = adam_step_
    weights = start()[rows]
    state = {key: torch.zeros(len(rows), size) for key, size in optimizer.buffers().items()}
    for step in range(1, n_steps + 1):
        slopes = gradient(step)
        if broken is not None:
            slopes[broken] = float("nan")
        rates = [Rates.at(**DIFFERING[row], step=step) for row in rows]
        optimizer.update_(weights, slopes[rows], state, together(rates))
    return weights, state


def test_every_choice_of_the_table_is_an_optimizer_with_a_reference():
    assert set(OPTIMIZERS) == set(TABLE["optimizer"].choices) == {*STEPS, *TORCHS}


@every
def test_buffers_are_whole_blocks(name):
    sizes = OPTIMIZERS[name](LAYOUT).buffers()
    assert sizes
    assert all(size > 0 and size % BLOCK == 0 for size in sizes.values())


@every
@pytest.mark.parametrize(
    "parts",
    [
        {},
        {
            "family": "encoder_decoder",
            "n_kv_head": 1,
            "activation": "swiglu",
            "positions": "relative",
        },
        {"n_expert": 3, "n_expert_active": 2, "qk_norm": True, "head_dim": 6},
        {
            "family": "encoder",
            "n_token_types": 2,
            "embedding_norm": True,
            "norm_position": "post",
        },
    ],
)
def test_runs_together_are_each_alone_bit_for_bit(name, parts):
    layout = Layout(replace(SHAPE, n_layer=1, n_encoder_layer=1, n_decoder_layer=1, **parts))
    optimizer, ends = OPTIMIZERS[name](layout), {}
    for rows in ([0, 1, 2], [2]):
        weights = torch.stack([layout.initial_row(row) for row in rows])
        state = {key: torch.zeros(len(rows), size) for key, size in optimizer.buffers().items()}
        for step in (1, 2, 3):
            slopes = torch.randn(
                3, layout.row_size, generator=torch.Generator().manual_seed(step)
            )
            rates = [Rates.at(**DIFFERING[row], step=step) for row in rows]
            optimizer.update_(weights, slopes[rows], state, together(rates))
        ends[len(rows)] = weights[-1]
    assert ends[1].isfinite().all()
    assert torch.equal(ends[3], ends[1])


def test_muon_takes_queries_keys_values_and_experts_apart():
    shape = ModelShape(
        vocab_size=9,
        block_size=4,
        n_layer=1,
        n_head=4,
        n_kv_head=2,
        n_embd=12,
        n_expert=3,
        family="encoder_decoder",
    )
    found = Muon(Layout(shape))._by_shape
    columns = {
        name: slice(begin, end)
        for name, begin, end in [("q", 0, 12), ("k", 12, 18), ("v", 18, 24)]
    }
    own = {
        each for pieces in found.values() for each in ((n, c.start, c.stop) for n, c in pieces)
    }
    for each in columns.values():
        assert ("blocks.0.attention.qkv.weight", each.start, each.stop) in own
    assert {each for each in own if ".cross.kv." in each[0]} == {
        ("blocks.0.cross.kv.weight", 0, 6), ("blocks.0.cross.kv.weight", 6, 12)
    }  # fmt: skip
    assert ("blocks.0.feed_forward.up.weight", 0, 48) in own
    assert not [each for each in own if "router" in each[0] or "embedding" in each[0]]


@every
def test_a_neighbor_that_is_no_number_changes_no_bit(name):
    clean, _ = train(name, [0, 1, 2], 3)
    found, _ = train(name, [0, 1, 2], 3, broken=1)
    assert found[1].isnan().any()
    assert torch.equal(found[[0, 2]], clean[[0, 2]])
    assert not clean[:, LAYOUT.n_params :].any(), "padding stays zero"


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("run", range(len(DIFFERING)))
def test_is_the_papers_loop_in_double_precision(name, run):
    expected = {
        key: view[0].double().numpy()
        for key, view in LAYOUT.views(start()[run : run + 1]).items()
    }
    states = {key: {} for key in expected}
    decays = {weight.name: weight.decays for weight in LAYOUT.weights}
    for step in range(1, N_STEPS + 1):
        rates = Rates.at(**DIFFERING[run], step=step)
        for key, slope in LAYOUT.views(gradient(step)[run : run + 1]).items():
            expected[key] = STEPS[name](
                expected[key], slope[0].double().numpy(), states[key], rates, key, decays[key]
            )
    check(
        train(name, [run])[0],
        {key: torch.tensor(each) for key, each in expected.items()},
        rates.learning_rate,
    )


def check(weights, expected, learning_rate):
    """Compare weights after all steps, in parts of what a weight may have moved by."""
    for key, view in LAYOUT.views(weights).items():
        own = expected[key].detach().float()
        torch.testing.assert_close(
            view[0], own, rtol=1e-5, atol=2e-5 * learning_rate * N_STEPS, msg=key
        )


TORCHS = {
    "adamw": lambda own, rate: torch.optim.AdamW(
        own, rate.learning_rate, (rate.beta1, rate.beta2), rate.eps
    ),
    "adam": lambda own, rate: torch.optim.Adam(
        own, rate.learning_rate, (rate.beta1, rate.beta2), rate.eps
    ),
    "sgd": lambda own, rate: torch.optim.SGD(own, rate.learning_rate, rate.momentum),
    # Its own step is max(eps_2, size of the weight) * min(lr, 1 / sqrt(t)), its decay by lr alone.
    "adafactor": lambda own, rate: torch.optim.Adafactor(
        [group | {"weight_decay": 2 * group["weight_decay"]} for group in own],
        rate.learning_rate / 2,
        eps=(1e-15, 2.0),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TORCHS)
@pytest.mark.parametrize("run", range(len(DIFFERING)))
def test_is_torchs_own(name, run):
    theirs = {
        key: torch.nn.Parameter(view[0].clone())
        for key, view in LAYOUT.views(start()[run : run + 1]).items()
    }
    rates = Rates.at(**DIFFERING[run], step=1)
    groups = [
        {
            "params": [theirs[each.name] for each in LAYOUT.weights if each.decays is decays],
            "weight_decay": decay,
        }
        for decays, decay in ((True, rates.weight_decay), (False, 0.0))
    ]
    optimizer = TORCHS[name](groups, rates)
    for step in range(1, N_STEPS + 1):
        for key, slope in LAYOUT.views(gradient(step)[run : run + 1]).items():
            theirs[key].grad = slope[0].clone()
        optimizer.step()
    check(train(name, [run])[0], theirs, rates.learning_rate)


@every
def test_rows_that_got_no_gradient_stay_numbers(name):
    optimizer = OPTIMIZERS[name](LAYOUT)
    weights = start()
    state = {key: torch.zeros(len(weights), size) for key, size in optimizer.buffers().items()}
    for step in range(1, 6):
        slopes = gradient(step)
        for view in LAYOUT.views(slopes).values():
            view[:, ::2] = 0.0
            view[..., ::3] = 0.0
        if step == 3:
            slopes.zero_()
        rates = [Rates.at(**run, step=step) for run in DIFFERING]
        optimizer.update_(weights, slopes, state, together(rates))
    assert weights.isfinite().all()


def test_the_two_ways_of_adamw_agree():
    expected, _ = train("adamw", [0, 1, 2])
    found, _ = train("adamw", [0, 1, 2], adam_step_=adam_)
    assert not torch.equal(found, expected)
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=5e-6)


# ------------------------------------------------------------------ in a stack


@typical
def test_resumed_in_another_row_of_another_stack_equals_uninterrupted(name, unlike, tokens):
    runs = unlike("P", optimizer=name, max_iters=12, eval_interval=6, eval_iters=1)
    expected = finished(stack_of([runs[2]], tokens))[1]["run2"]
    first = stack_of(runs[:3], tokens)
    first.advance()
    assert first.advance(iter([False] * 4 + [True]).__next__) == []
    first.release("run0")  # run2 moves up into its row
    second = stack_of([runs[3]], tokens, capacity=2)
    second.admit(TrainingRun("run2", runs[2].values), first.snapshot("run2"))
    found = finished(second)[1]["run2"]
    assert all(torch.equal(row, found[key]) for key, row in expected.items())
