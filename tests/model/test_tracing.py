"""A traced token's numbers are the stacked model's, for every family and under muP."""

from itertools import islice

import numpy as np
import pytest
import torch
from model.cases import LENGTH, VOCABULARY, legal_shapes, random_weights, shape_of
from references.plain_model import trace as reference_trace

from sweeplab.data.batches import Batch, changed
from sweeplab.model.shape import FAMILIES
from sweeplab.model.tracing import attention_weights, trace, trace_batch
from sweeplab.model.transformer import Transformer

TOKEN = 3
SHAPES = [shape_of(family=family, n_layer=2) for family in FAMILIES]
SHAPES += [
    shape_of(family="decoder", parametrization="mup", mup_base_width=2, head_dim=8),
    shape_of(family="encoder_decoder", parametrization="mup", mup_base_width=2, n_kv_head=1),
    shape_of(family="decoder", positions="relative", n_expert=3, n_expert_active=2),
]


@pytest.mark.parametrize(
    "shape", SHAPES, ids=lambda shape: f"{shape.family} {shape.parametrization}"
)
def test_the_last_step_is_the_stacked_models_logits(shape):
    weights = random_weights(shape, seed=1)
    inputs, source = torch.tensor(
        np.random.default_rng(0).integers(0, VOCABULARY, (2, 1, 1, LENGTH))
    )
    inputs[..., 0] = source[..., 0] = TOKEN
    if shape.family != "encoder":
        inputs = inputs[..., :1]
    stacked = {name: torch.tensor(weight)[None].double() for name, weight in weights.items()}
    batch = Batch(inputs, inputs, source if shape.family == "encoder_decoder" else None)
    logits = Transformer(shape).logits(stacked, batch)
    of_run = changed(batch, lambda part: part[0].numpy())
    *_, found, shares = trace_batch(shape, weights, of_run, 0, VOCABULARY)
    assert (found["name"], shares["name"]) == ("logits", "probabilities")
    assert found["shape"] == shares["shape"] == (1, *logits.shape[1:])
    np.testing.assert_allclose(found["values"], logits[0, 0].numpy(), rtol=0, atol=1e-10)
    np.testing.assert_allclose(
        shares["values"], logits[0, 0].softmax(dim=-1).numpy(), rtol=0, atol=1e-10
    )


def test_attention_weights_are_shares():
    shape = shape_of(family="encoder_decoder", n_layer=2)
    tokens, source = torch.randint(
        VOCABULARY, (2, 1, 6), generator=torch.Generator().manual_seed(0)
    )
    found = attention_weights(shape, random_weights(shape, 0), Batch(tokens, tokens, source))
    names = [f"encoder.blocks.{layer}.attention" for layer in range(2)]
    names += [f"blocks.{layer}.{part}" for layer in range(2) for part in ("attention", "cross")]
    assert list(found) == names
    for name, weights in found.items():
        np.testing.assert_allclose(weights.sum(-1), 1.0)
        assert (np.triu(weights, 1).max() == 0.0) == (
            name in ("blocks.0.attention", "blocks.1.attention")
        )


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_step_is_the_references(family, one_thread):
    """Names and shapes are the reference's, and so are the numbers, of every legal pair of parts."""
    tokens, source = torch.randint(
        VOCABULARY, (2, 1, 9), generator=torch.Generator().manual_seed(3)
    )
    batch = Batch(tokens, tokens, source if family == "encoder_decoder" else None)
    arrays = changed(batch, lambda each: each.numpy())
    for seed, shape in enumerate(islice(legal_shapes(family=family), 0, None, 5)):
        weights = {name: each + 0.05 for name, each in random_weights(shape, seed).items()}
        ours, theirs = (
            dict(trace(shape, weights, batch)),
            dict(reference_trace(shape, weights, arrays)),
        )
        assert ours.keys() == theirs.keys(), shape
        for name, value in ours.items():
            assert value.shape == theirs[name].shape, (name, shape)
            np.testing.assert_allclose(
                value.numpy(), theirs[name], rtol=1e-9, atol=1e-9, err_msg=f"{name} of {shape}"
            )
