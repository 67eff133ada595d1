"""Every legal choice of parts: its size, its independence of neighbors, and that it learns."""

import pytest
import torch
from model.cases import (
    ATTENTION,
    POSITIONS,
    batch_of,
    legal_shapes,
    losses_and_gradients,
    rows_of,
    run_of,
)

from sweeplab.hyperparameters import TABLE
from sweeplab.model.accounting import n_params
from sweeplab.model.shape import ACTIVATIONS, FAMILIES, NORMS
from sweeplab.model.transformer import Transformer

TABLES = {
    "family": FAMILIES,
    "positions": POSITIONS,
    "norm": NORMS,
    "activation": ACTIVATIONS,
    "attention": ATTENTION,
}


@pytest.mark.parametrize("row", TABLES)
def test_every_part_can_be_chosen(row):
    assert set(TABLE[row].choices) == set(TABLES[row])


@pytest.mark.slow
@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("family", FAMILIES)
def test_size_independence_and_learning_of_every_combination(family, attention, one_thread):
    assert (
        check_size_independence_and_learning(
            legal_shapes(family=family, attention=attention), 2
        )
        >= 80
    )


def check_size_independence_and_learning(shapes, n_steps):
    """Check each model's count of parameters, a stack of three against three alone, and steps; count the models."""
    n_shapes = 0
    for shape in shapes:
        n_shapes += 1
        model = Transformer(shape)
        assert sum(weight.size for weight in model.layout.weights) == n_params(shape), shape
        rows, batch = rows_of(model, 3), batch_of(shape, 3)
        router = (
            (torch.tensor([0.01, 0.0, 0.1]), torch.tensor([0.001, 0.1, 0.0]))
            if shape.n_expert > 1
            else None
        )
        losses, gradients = losses_and_gradients(model, rows, batch, router=router)
        run = n_shapes % 3  # each place in the stack in turn
        own = router and tuple(each[run : run + 1] for each in router)
        alone = losses_and_gradients(model, rows[run : run + 1], run_of(batch, run), router=own)
        assert torch.equal(alone[0][0], losses[run]), shape
        assert torch.equal(alone[1][0], gradients[run]), shape
        used = gradients[:, : model.layout.n_params].abs().sum(dim=1)
        assert gradients.isfinite().all() and (used > 0).all(), shape
        for _ in range(n_steps):
            rows = rows - 0.01 * gradients / gradients.norm(dim=1, keepdim=True)
            after, gradients = losses_and_gradients(model, rows, batch, router=router)
            assert gradients.isfinite().all() and (after < losses).all(), shape
            losses = after
    return n_shapes
