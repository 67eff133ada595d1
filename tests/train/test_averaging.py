"""The running mean of the weights: what evaluations see, what is kept, what is written down."""

import numpy as np
import pytest
import torch
from trained import begun

from sweeplab.data.batches import Batch
from sweeplab.data.objectives import make_objective
from sweeplab.train.schedule import decay_at
from sweeplab.train.stack import Stack
from sweeplab.train.step import average_


def test_is_a_plain_loop_in_double_precision():
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(3, 64, generator=generator)
    expected = mean.double().numpy()
    ends = np.array([0.0, 0.9, 0.999])
    for iteration in range(30):
        weights = torch.randn(3, 64, generator=generator)
        average_(mean, weights, torch.tensor([decay_at(end, iteration) for end in ends]).float())
        kept = np.minimum(ends, (1 + iteration) / (10 + iteration))[:, None]
        expected = kept * expected + (1 - kept) * weights.double().numpy()
    np.testing.assert_allclose(mean.numpy(), expected, atol=1e-6)


def test_evaluations_and_best_use_the_mean(values_of, tokens):
    values = values_of(ema=0.95, learning_rate=2e-2, warmup_iters=0, max_iters=60, eval_interval=20)
    stack = begun(values, tokens)
    drawn = list(make_objective(tokens, values).evaluation(values.evaluated_tokens))
    inputs, targets = (np.concatenate([each[part] for each in drawn]) for part in (0, 1))
    batches = Batch(torch.from_numpy(inputs)[None], torch.from_numpy(targets)[None])
    best = np.inf
    for iteration in (0, 20, 40, 60):
        (record,) = stack.advance()
        kept = {name: weight[None] for name, weight in stack.weights("run").items()}
        mean = stack.transformer.layout.views(stack._rows["mean"])
        assert all(torch.equal(kept[name], view) for name, view in mean.items())
        assert record.val_loss == pytest.approx(stack.transformer.losses(kept, batches).item(), rel=1e-5)
        own = stack.transformer.losses(stack.transformer.layout.views(stack._rows["weights"]), batches).item()
        assert (own == pytest.approx(record.val_loss, rel=1e-5)) is (iteration == 0)
        best = min(best, record.val_loss)
        if record.val_loss == best:
            assert torch.equal(stack._rows["best"], stack._rows["mean"])


def test_a_snapshot_has_the_mean_and_a_run_without_has_none(values_of, tokens):
    values = values_of(ema=0.95)
    stack = begun(values, tokens)
    stack.advance(iter([False] * 7 + [True]).__next__)
    stack.advance(iter([False] * 7 + [True]).__next__)
    rows = stack.snapshot("run").rows
    assert set(rows) == {"weights", "best", "mean", "first", "second", "loss", "norm"}
    assert not torch.equal(rows["mean"], rows["weights"])
    assert set(Stack(values_of(), tokens, tokens)._rows) == set(rows) - {"mean"}


def test_training_goes_on_as_without(values_of, tokens):
    ends = []
    for ema in (0.0, 0.99):
        stack = begun(values_of(ema=ema), tokens)
        for _ in range(3):
            stack.advance()
        ends.append(stack.snapshot("run").rows["weights"])
    assert torch.equal(*ends)
