"""The stacked model against the reference, in double precision: loss and every gradient, every legal choice."""

import numpy as np
import pytest
import torch
from model.cases import ATTENTION, batch_of, legal_shapes, losses_and_gradients, shape_of
from references.plain_model import logits, loss_and_gradients

from sweeplab.data.batches import Batch
from sweeplab.model.shape import FAMILIES, ModelShape
from sweeplab.model.transformer import Transformer


def random_row(model, seed):
    """Weights large enough for every part to matter."""
    generator = torch.Generator().manual_seed(seed)
    row = torch.randn(1, model.layout.row_size, generator=generator, dtype=torch.float64).mul_(
        0.4
    )
    row[:, model.layout.n_params :] = 0
    views = model.layout.views(row)
    for weight in model.layout.weights:
        views[weight.name] += weight.fill
    return row


def alone(batch):
    """The first run's part of a batch, as arrays."""
    return Batch(*(None if each is None else each[0].numpy() for each in batch))


def difference(ours, theirs):
    """Return the largest difference, in parts of the largest value."""
    theirs = theirs.numpy()
    # What is nothing but for rounding, such as the gradient by a key's bias, is not compared in parts of itself.
    return float(np.abs(ours - theirs).max() / max(np.abs(theirs).max(), 1e-6))


def check(shape, seed, batch, smoothing=0.0):
    """Compare the loss and the gradient by every weight."""
    model, balance, z = Transformer(shape), 0.3, 0.2
    row = random_row(model, seed)
    shares, *router = torch.tensor([[smoothing], [balance], [z]], dtype=torch.float64).unbind()
    losses, gradient = losses_and_gradients(
        model, row, batch, smoothing=shares, router=tuple(router)
    )
    weights = {name: view[0].numpy() for name, view in model.layout.views(row).items()}
    loss, gradients = loss_and_gradients(shape, weights, alone(batch), smoothing, balance, z)
    assert loss == pytest.approx(losses.item(), rel=1e-10), shape
    views = model.layout.views(gradient)
    apart = {name: difference(gradients[name], view[0]) for name, view in views.items()}
    assert max(apart.values()) < 1e-10, (max(apart, key=apart.__getitem__), shape)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("family", FAMILIES)
def test_loss_and_every_gradient_agree_in_every_combination(family, attention, one_thread):
    shapes = list(legal_shapes(family=family, attention=attention))
    for seed, shape in enumerate(shapes):
        check(shape, seed, batch_of(shape, 1, seed=seed), 0.1 * (seed % 2))
    assert len(shapes) >= 80


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("family", FAMILIES)
def test_long_sequences_agree(family, attention, one_thread):
    """Over several blocks."""
    near = {"attention": attention, "attention_window": 20}
    shape = ModelShape(
        vocab_size=7,
        block_size=150,
        n_layer=1,
        n_head=2,
        n_embd=4,
        family=family,
        positions="rotary",
        **near,
    )
    model = Transformer(shape)
    tokens = torch.randint(0, 7, (2, 1, 2, 150), generator=torch.Generator().manual_seed(0))
    row = random_row(model, 0)
    batch = Batch(tokens[0], tokens[0], tokens[1] if family == "encoder_decoder" else None)
    theirs = model.logits(model.layout.views(row), batch).view(2, 150, 7)
    weights = {name: view[0].numpy() for name, view in model.layout.views(row).items()}
    assert difference(logits(shape, weights, alone(batch)), theirs) < 1e-10


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("family", FAMILIES)
def test_padding_and_routers_losses_agree(family, attention, one_thread):
    """Routers' losses are means over what is no padding."""
    for seed, positions in enumerate(("learned", "rotary", "alibi", "relative")):
        shape = shape_of(
            family=family,
            attention=attention,
            positions=positions,
            n_expert=3,
            n_expert_active=1 + seed % 2,
        )
        batch, lengths = batch_of(shape, 1, seed=seed), torch.tensor([[3, 8]])
        padding = torch.arange(batch.inputs.shape[-1]) >= lengths[..., None]
        check(
            shape,
            seed,
            batch._replace(targets=batch.targets.masked_fill(padding, -1), lengths=lengths),
        )
