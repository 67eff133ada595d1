"""A traced token's numbers are the stacked model's, for every family and under muP."""

import numpy as np
import pytest
import torch
from model.cases import SOURCE, VOCABULARY, pairwise_shapes, shape_of
from references.numpy_model import trace as reference_trace

from sweeplab.data.batches import Batch, changed
from sweeplab.errors import BadInput
from sweeplab.model.shape import FAMILIES
from sweeplab.model.tracing import attention_weights, random_weights, trace, trace_token
from sweeplab.model.transformer import Transformer

TOKEN, POSITION = 3, 2
SHAPES = [shape_of(family=family, n_layer=2) for family in FAMILIES]
SHAPES += [
    shape_of(family="decoder", parametrization="mup", mup_base_width=2, head_dim=8),
    shape_of(family="encoder_decoder", parametrization="mup", mup_base_width=2, n_kv_head=1),
    shape_of(family="decoder", positions="relative", n_expert=3, n_expert_active=2),
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape.family} {shape.parametrization}")
def test_the_last_step_is_the_stacked_models_logits(shape) -> None:
    length = None if shape.family == "decoder" else SOURCE
    weights = random_weights(shape, seed=1)
    steps = trace_token(shape, weights, TOKEN, POSITION, length, seed=5, n_values=VOCABULARY)
    drawn = np.random.default_rng(5)
    sequences = []
    for n in [SOURCE if shape.family == "encoder" else POSITION + 1, SOURCE]:
        found = torch.tensor(drawn.integers(0, VOCABULARY, (1, 1, n)))
        found[..., POSITION] = TOKEN
        sequences.append(found)
    source = sequences[1] if shape.family == "encoder_decoder" else None
    stacked = {name: torch.tensor(weight)[None].double() for name, weight in weights.items()}
    logits = Transformer(shape).logits(stacked, Batch(sequences[0], sequences[0], source))
    *_, found, shares = steps
    assert (found.name, shares.name) == ("logits", "probabilities")
    assert found.shape == shares.shape == (1, *logits.shape[1:])
    np.testing.assert_allclose(found.values, logits[0, POSITION].numpy(), rtol=0, atol=1e-10)
    np.testing.assert_allclose(shares.values, logits[0, POSITION].softmax(dim=-1).numpy(), rtol=0, atol=1e-10)


def test_attention_weights_are_shares() -> None:
    shape = shape_of(family="encoder_decoder", n_layer=2)
    tokens, source = torch.randint(VOCABULARY, (2, 1, 6), generator=torch.Generator().manual_seed(0))
    found = attention_weights(shape, random_weights(shape, 0), Batch(tokens, tokens, source))
    names = [f"encoder.blocks.{layer}.attention" for layer in range(2)]
    names += [f"blocks.{layer}.{part}" for layer in range(2) for part in ("attention", "cross")]
    assert list(found) == names
    for name, weights in found.items():
        np.testing.assert_allclose(weights.sum(-1), 1.0)
        assert (np.triu(weights, 1).max() == 0.0) == (name in ("blocks.0.attention", "blocks.1.attention"))


@pytest.mark.parametrize(
    ("family", "arguments", "words"),
    [
        ("decoder", (VOCABULARY, 0), "token 11; allowed: 0 to 10, because vocab_size is 11"),
        ("decoder", (0, 10), "position 10; allowed: 0 to 9, because block_size is 10"),
        ("decoder", (0, 0, 4), "a decoder reads no source"),
        ("encoder_decoder", (0, 4, 4), "a source of 4 tokens; allowed: 5 "),
        ("encoder", (0, 4, 99), "a source of 99 tokens; allowed: 5 "),
    ],
)
def test_what_the_model_has_not_is_refused(family: str, arguments: tuple[int, ...], words: str) -> None:
    shape = shape_of(family=family)
    with pytest.raises(BadInput, match=words):
        trace_token(shape, random_weights(shape, 0), *arguments)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_step_is_the_references(family: str, one_thread: None) -> None:
    """Names, shapes and order are the reference's, and so are the numbers, of every legal pair of parts."""
    tokens, source = torch.randint(VOCABULARY, (2, 1, 9), generator=torch.Generator().manual_seed(3))
    batch = Batch(tokens, tokens, source if family == "encoder_decoder" else None)
    arrays = changed(batch, lambda each: each.numpy())
    for seed, shape in enumerate(pairwise_shapes(family=family)):
        weights = {name: each + 0.05 for name, each in random_weights(shape, seed).items()}
        ours, theirs = trace(shape, weights, batch), reference_trace(shape, weights, arrays)
        assert [(name, tuple(value.shape)) for name, value in ours] == [
            (name, value.shape) for name, value in theirs
        ], shape
        for (name, value), (_, other) in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(
                value.numpy(), other, rtol=1e-9, atol=1e-9, err_msg=f"{name} of {shape}"
            )
