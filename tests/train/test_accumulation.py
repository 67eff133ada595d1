"""A batch in parts is the batch at once; a batch that warms up is a smaller batch."""

import pytest
import torch
from trained import begun

from sweeplab.model.blocks import Dropout


def after_one_step(values, tokens):
    """Return the gradient of a run's first step and its loss."""
    values = values.replace(log_interval=1, max_iters=1, grad_clip=None, seed=0)
    stack = begun(values, tokens)
    stack.advance()
    (record,) = stack.advance()
    return stack._way.buffers[0][0].clone(), record.points[0]["train_loss"]


@pytest.mark.parametrize("n_parts", [2, 3, 4, 12])
def test_parts_are_the_batch_at_once(n_parts, values_of, tokens):
    # SGD leaves the gradient that it was given.
    values = values_of(batch_size=12, dropout=0.0, optimizer="sgd", weight_decay=0.0)
    whole, loss = after_one_step(values, tokens)
    parts, loss_of_parts = after_one_step(values.replace(grad_accum=n_parts), tokens)
    assert loss_of_parts == pytest.approx(loss, rel=1e-6)
    assert (parts - whole).norm() < 2e-6 * whole.norm()
    assert not torch.equal(parts, whole)  # it was computed otherwise


def test_a_part_weighs_by_its_targets(values_of, tokens):
    values = values_of(batch_size=4, dropout=0.0, grad_accum=2)
    stack = begun(values, tokens)
    inputs = stack._inputs()
    inputs.batch.targets[:, 2:, -4:] = -1
    seen = []

    def losses(weights, some, dropout, **arguments):
        seen.append(float(some.inputs.float().mean()))
        return sum(each.flatten(1).sum(dim=1) for each in weights.values()) * 0 + seen[-1]

    stack._step.loss.losses = losses
    found, _ = stack._step.differentiate(inputs)
    assert found.item() == pytest.approx((seen[0] * 32 + seen[1] * 24) / 56)


def test_parts_have_dropout_masks_of_their_own(values_of, tokens):
    values = values_of(dropout=0.5, grad_accum=2)
    stack = begun(values, tokens)
    ones, masks = torch.ones(2, 16, 32), []

    def drop(part):
        inputs = stack._inputs()
        dropout = Dropout(inputs.masks[part], inputs.sites, inputs.elements)
        masks.append(dropout(ones, site="embedding"))

    drop(0)
    drop(1)
    stack.advance()
    stack.advance(iter([False, True]).__next__)  # a step
    drop(0)
    assert all(0.4 < float((mask == 0).float().mean()) < 0.6 for mask in masks)
    for one, other in ((0, 1), (1, 2), (0, 2)):
        assert 0.4 < float((masks[one] == masks[other]).float().mean()) < 0.6
