"""The reference itself: known answers."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from references.numpy_model import logits, loss
from references.numpy_model.attention import sight
from references.numpy_model.functions import cross_entropy
from references.numpy_model.passes import Pass
from references.numpy_model.positions import alibi_slopes, relative_buckets, sinusoids

from sweeplab.data.batches import Batch
from sweeplab.model.attention import buckets, slopes
from sweeplab.model.layout import Layout
from sweeplab.model.shape import ModelShape

FAMILIES = ("decoder", "encoder", "encoder_decoder")
POSITIONS = ("learned", "sinusoidal", "relative", "rotary", "alibi", "none")
ATTENTIONS = ("full", "local")
PAIRS = [(attention, positions) for attention in ATTENTIONS for positions in POSITIONS]
SMALL = {"vocab_size": 11, "block_size": 9, "n_layer": 2, "n_head": 2, "n_embd": 8}
SMALL |= {"attention_window": 3, "relative_buckets": 8, "relative_max_distance": 8}
LENGTHS, SOURCE_LENGTHS = np.array([7, 4, 6]), np.array([5, 8, 3])


def shape_of(**choices: Any) -> ModelShape:
    return ModelShape(**SMALL | choices)


def weights_of(shape: ModelShape, seed: int = 0) -> dict[str, np.ndarray]:
    """Weights large enough for every part to matter."""
    rng = np.random.default_rng(seed)
    return {each.name: each.fill + rng.normal(0.0, 0.4, each.shape) for each in Layout(shape).weights}


def batch_of(shape: ModelShape, seed: int = 0, padded: bool = True) -> Batch:
    """Three sequences with targets here and there, padded unless all are to have seven tokens and eight of source."""
    rng = np.random.default_rng([seed, 1])
    inputs = rng.integers(0, shape.vocab_size, (3, 7))
    targets = np.where(rng.random((3, 7)) < 0.7, rng.integers(0, shape.vocab_size, (3, 7)), -1)
    both = shape.family == "encoder_decoder"
    return Batch(
        inputs=inputs,
        targets=np.where(np.arange(7) < LENGTHS[:, None], targets, -1) if padded else targets,
        source=rng.integers(0, shape.vocab_size, (3, 8)) if both else None,
        lengths=LENGTHS if padded else None,
        source_lengths=SOURCE_LENGTHS if both and padded else None,
    )


@pytest.mark.parametrize(
    ("attention", "both_ways", "back"),
    [
        ("full", range(12), range(8)),
        ("local", [5, 6, 7, 8, 9], [5, 6, 7]),
    ],
)
def test_the_eighth_of_twelve_sees(attention: str, both_ways: list[int], back: list[int]) -> None:
    p, tokens = Pass(shape_of(attention=attention, positions="none"), {}), np.zeros((1, 12))
    for causal, expected in ((False, both_ways), (True, back)):
        seen = sight(p, "", tokens, None, causal).visible[0, 0, 7]
        assert np.flatnonzero(seen).tolist() == list(expected)
    padded = sight(p, "", tokens, np.array([9]), causal=False).visible[0, 0, 7]
    assert np.flatnonzero(padded).tolist() == [each for each in both_ways if each < 9]


def test_alibi_slopes_are_the_published_ones() -> None:
    eight = [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    twelve = [*eight, *(2 ** -(k + 0.5) for k in range(4))]
    for n_head, expected in (
        (8, eight),
        (12, twelve),
        (16, [2 ** (-k / 2) for k in range(1, 17)]),
        (1, [2**-8]),
    ):
        assert slopes(n_head) == pytest.approx(expected) and alibi_slopes(n_head).tolist() == pytest.approx(
            expected
        )


def test_relative_buckets_are_t5s() -> None:
    # 32 buckets up to 128. Both ways 16 each: 8 exact, then 8 + floor(8 log(d / 8) / log 16).
    shape = shape_of(relative_buckets=32, relative_max_distance=128)
    distance = torch.tensor([0, 1, 7, 8, 11, 12, 16, 31, 32, 64, 90, 91, 127, 128, 1000])
    both = [0, 1, 7, 8, 8, 9, 10, 11, 12, 14, 14, 15, 15, 15, 15]
    # Back only: 16 exact, then 16 + floor(16 log(d / 16) / log 8).
    causal = [0, 1, 7, 8, 11, 12, 16, 21, 21, 26, 29, 29, 31, 31, 31]
    assert (
        buckets(distance, shape, False).tolist()
        == relative_buckets(distance.numpy(), False, 32, 128).tolist()
        == both
    )
    assert buckets(-distance[1:], shape, False).tolist() == [each + 16 for each in both[1:]]
    assert (
        buckets(distance, shape, True).tolist()
        == relative_buckets(distance.numpy(), True, 32, 128).tolist()
        == causal
    )


def test_sinusoids_are_the_published_ones() -> None:
    table = sinusoids(50, 16)
    for position, i in ((0, 0), (3, 2), (49, 7)):
        angle = position / 10000 ** (2 * i / 16)
        assert table[position, 2 * i : 2 * i + 2].tolist() == pytest.approx(
            [math.sin(angle), math.cos(angle)]
        )


def test_cross_entropy_of_no_idea_is_log_of_the_vocabulary() -> None:
    targets = np.array([[3, -1, 0]])
    for smoothing in (0.0, 0.2):
        even, gradient = cross_entropy(np.zeros((1, 3, 7)), targets, smoothing)
        assert even == pytest.approx(math.log(7))
        assert (gradient[0, 1] == 0).all()
    assert cross_entropy(1e3 * np.eye(7)[None, [3, 2, 0]], targets)[0] == 0


@pytest.mark.parametrize(("attention", "positions"), PAIRS)
@pytest.mark.parametrize("family", FAMILIES)
def test_padding_changes_nothing(family: str, attention: str, positions: str) -> None:
    shape = shape_of(family=family, attention=attention, positions=positions)
    weights, batch = weights_of(shape), batch_of(shape)
    given = logits(shape, weights, batch)
    total = 0.0
    for row, length in enumerate(LENGTHS):
        alone = Batch(
            inputs=batch.inputs[row : row + 1, :length],
            targets=batch.targets[row : row + 1, :length],
            source=None if batch.source is None else batch.source[row : row + 1, : SOURCE_LENGTHS[row]],
        )
        np.testing.assert_allclose(
            given[row, :length], logits(shape, weights, alone)[0], rtol=1e-9, atol=1e-12
        )
        total += loss(shape, weights, alone) * (alone.targets >= 0).sum()
    assert loss(shape, weights, batch) == pytest.approx(total / (batch.targets >= 0).sum(), rel=1e-12)


@pytest.mark.parametrize(("attention", "positions"), PAIRS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_later_token_changes_no_earlier_logits_of_a_decoder(
    family: str, attention: str, positions: str
) -> None:
    shape = shape_of(family=family, attention=attention, positions=positions, norm_position="post")
    weights, batch = weights_of(shape), batch_of(shape, padded=False)
    before = logits(shape, weights, batch)
    batch.inputs[:, 4] = (batch.inputs[:, 4] + 1) % shape.vocab_size
    changed = (np.abs(logits(shape, weights, batch) - before) > 1e-9).any(axis=(0, 2))
    assert changed.tolist() == ([True] * 7 if family == "encoder" else [False] * 4 + [True] * 3)
