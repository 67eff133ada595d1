"""The reference itself: known answers, and torch's own layers in value and gradient."""

import math

import numpy as np
import pytest
import torch
from model.cases import ATTENTION, POSITIONS
from references.plain_model import (
    Pass,
    alibi_slopes,
    cross_entropy,
    logits,
    loss_and_gradients,
    relative_buckets,
    sight,
    sinusoids,
)
from torch import nn
from torch.nn import functional as F

from sweeplab.data.batches import Batch
from sweeplab.model.attention import buckets, slopes
from sweeplab.model.layout import Layout
from sweeplab.model.shape import FAMILIES, ModelShape

LENGTHS, SOURCE_LENGTHS = torch.tensor([7, 4, 6]), torch.tensor([5, 8, 3])


def shape_of(**choices):
    small = {"vocab_size": 11, "block_size": 9, "n_layer": 2, "n_head": 2, "n_embd": 8}
    near = {"attention_window": 3, "relative_buckets": 8, "relative_max_distance": 8}
    return ModelShape(**{**small, **near, **choices})


def weights_of(shape):
    """Weights large enough for every part to matter."""
    drawn = torch.Generator().manual_seed(0)
    return {
        each.name: each.fill
        + 0.4 * torch.randn(each.shape, generator=drawn, dtype=torch.float64)
        for each in Layout(shape).weights
    }


def batch_of(shape):
    """Three sequences with padding, and targets here and there."""
    drawn = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, shape.vocab_size, (3, 3, 8), generator=drawn)
    hidden = (torch.rand(3, 7, generator=drawn) > 0.7) | (torch.arange(7) >= LENGTHS[:, None])
    batch = Batch(tokens[0, :, :7], tokens[1, :, :7].masked_fill(hidden, -1), lengths=LENGTHS)
    if shape.family == "encoder_decoder":
        return batch._replace(source=tokens[2], source_lengths=SOURCE_LENGTHS)
    return batch


@pytest.mark.parametrize(
    ("attention", "both_ways", "back"),
    [("full", range(12), range(8)), ("local", [5, 6, 7, 8, 9], [5, 6, 7])],
)
def test_the_eighth_of_twelve_sees(attention, both_ways, back):
    p, tokens = Pass(shape_of(attention=attention, positions="none"), {}), np.zeros((1, 12))
    short = [each for each in both_ways if each < 9]
    for causal, length, expected in (
        (False, 12, both_ways),
        (True, 12, back),
        (False, 9, short),
    ):
        seen = sight(p, "", tokens, [length], causal).visible[0, 0, 7]
        assert seen.nonzero().flatten().tolist() == list(expected)


def test_alibi_slopes_are_the_published_ones():
    eight = [2.0**-k for k in range(1, 9)]
    twelve = [*eight, *(2 ** -(k + 0.5) for k in range(4))]
    sixteen = [2 ** (-k / 2) for k in range(1, 17)]
    for expected in (eight, twelve, sixteen, [2**-8]):
        assert slopes(len(expected)) == pytest.approx(expected)
        assert alibi_slopes(len(expected)).tolist() == pytest.approx(expected)


def test_relative_buckets_are_t5s():
    # 32 buckets up to 128. Both ways 16 each: 8 exact, then 8 + floor(8 log(d / 8) / log 16).
    shape = shape_of(relative_buckets=32, relative_max_distance=128)
    distance = torch.tensor([0, 1, 7, 8, 11, 12, 16, 31, 32, 64, 90, 91, 127, 128, 1000])
    both = [0, 1, 7, 8, 8, 9, 10, 11, 12, 14, 14, 15, 15, 15, 15]
    # Back only: 16 exact, then 16 + floor(16 log(d / 16) / log 8).
    back = [0, 1, 7, 8, 11, 12, 16, 21, 21, 26, 29, 29, 31, 31, 31]
    for causal, expected in ((False, both), (True, back)):
        assert buckets(distance, shape, causal).tolist() == expected
        assert relative_buckets(distance, causal, 32, 128).tolist() == expected
    assert buckets(-distance[1:], shape, False).tolist() == [each + 16 for each in both[1:]]


def test_sinusoids_are_the_published_ones():
    table = sinusoids(50, 16)
    for position, i in ((0, 0), (3, 2), (49, 7)):
        angle = position / 10000 ** (2 * i / 16)
        expected = [math.sin(angle), math.cos(angle)]
        assert table[position, 2 * i : 2 * i + 2].tolist() == pytest.approx(expected)


def test_cross_entropy_of_no_idea_is_log_of_the_vocabulary():
    targets = torch.tensor([[3, -1, 0]])
    for smoothing in (0.0, 0.2):
        assert float(cross_entropy(torch.zeros(1, 3, 7), targets, smoothing)) == pytest.approx(
            math.log(7)
        )
    assert cross_entropy(1e3 * torch.eye(7)[None, [3, 2, 0]], targets) == 0


CHOICES = [
    (family, attention, positions)
    for family in FAMILIES
    for attention in ATTENTION
    for positions in POSITIONS
]


@pytest.mark.parametrize(("family", "attention", "positions"), CHOICES)
def test_padding_changes_nothing_and_a_later_token_nothing_before_it(
    family, attention, positions
):
    shape = shape_of(family=family, attention=attention, positions=positions)
    weights, batch = weights_of(shape), batch_of(shape)
    given = logits(shape, weights, batch)
    total = 0.0
    for row, length in enumerate(LENGTHS):
        source = (
            None if batch.source is None else batch.source[row : row + 1, : SOURCE_LENGTHS[row]]
        )
        alone = Batch(
            batch.inputs[row : row + 1, :length], batch.targets[row : row + 1, :length], source
        )
        np.testing.assert_allclose(
            given[row, :length], logits(shape, weights, alone)[0], rtol=1e-9, atol=1e-12
        )
        total += loss_and_gradients(shape, weights, alone)[0] * int((alone.targets >= 0).sum())
    expected = total / int((batch.targets >= 0).sum())
    assert loss_and_gradients(shape, weights, batch)[0] == pytest.approx(expected, rel=1e-12)
    batch = batch._replace(lengths=None)
    before = logits(shape, weights, batch)
    batch.inputs[:, 4] = (batch.inputs[:, 4] + 1) % shape.vocab_size
    changed = (np.abs(logits(shape, weights, batch) - before) > 1e-9).any(axis=(0, 2))
    assert changed.tolist() == ([True] * 7 if family == "encoder" else [False] * 4 + [True] * 3)


# ------------------------------------------------------------------ torch's own layers


def torchs_block(w, block, crosses):
    """The weights of a block under the names that torch's own layers give them."""
    linear = {"self_attn.in_proj_": "attention.qkv", "self_attn.out_proj.": "attention.out"}
    linear |= {"linear1.": "feed_forward.up", "linear2.": "feed_forward.down"}
    norms = ["attention_norm", *(["cross_norm"] if crosses else []), "feed_forward_norm"]
    found = {}
    for kind in ("weight", "bias"):
        found |= {
            f"{theirs}{kind}": w[f"{block}.{ours}.{kind}"].t()
            for theirs, ours in linear.items()
        }
        if crosses:
            joined = torch.cat(
                [w[f"{block}.cross.q.{kind}"], w[f"{block}.cross.kv.{kind}"]], dim=-1
            )
            found[f"multihead_attn.in_proj_{kind}"] = joined.t()
            found[f"multihead_attn.out_proj.{kind}"] = w[f"{block}.cross.out.{kind}"].t()
    for n, norm in enumerate(norms, 1):
        found |= {
            f"norm{n}.weight": w[f"{block}.{norm}.gain"],
            f"norm{n}.bias": w[f"{block}.{norm}.bias"],
        }
    return found


def torchs_stack(shape, w, prefix, tokens, **masks):
    """Embed tokens and take them through torch's own encoder layers, or decoder layers where there is a memory."""
    x = w["token_embedding"][tokens] + w[f"{prefix}position_embedding"][: tokens.shape[1]]
    crosses, pre = "memory" in masks, shape.norm_position == "pre"
    kind = nn.TransformerDecoderLayer if crosses else nn.TransformerEncoderLayer
    sizes = (shape.n_embd, shape.n_head, shape.d_ff, 0.0, shape.activation)
    layer = kind(*sizes, batch_first=True, norm_first=pre).double()
    for n in range(shape.n_layer):
        own = torchs_block(w, f"{prefix}blocks.{n}", crosses)
        assert own.keys() == dict(layer.named_parameters()).keys()
        x = torch.func.functional_call(layer, own, (x,), masks)
    if pre:
        x = F.layer_norm(
            x, x.shape[-1:], w[f"{prefix}final_norm.gain"], w[f"{prefix}final_norm.bias"]
        )
    return x


def torchs_loss(shape, w, batch):
    """The whole model of torch's own layers."""
    padding = torch.arange(7) >= LENGTHS[:, None]
    future = torch.ones(7, 7, dtype=torch.bool).triu(1)
    if shape.family == "encoder_decoder":
        unread = torch.arange(8) >= SOURCE_LENGTHS[:, None]
        memory = torchs_stack(shape, w, "encoder.", batch.source, src_key_padding_mask=unread)
        masks = {"memory": memory, "memory_key_padding_mask": unread}
        x = torchs_stack(
            shape, w, "", batch.inputs, tgt_mask=future, tgt_key_padding_mask=padding, **masks
        )
    elif shape.family == "decoder":
        x = torchs_stack(
            shape, w, "", batch.inputs, src_mask=future, src_key_padding_mask=padding
        )
    else:
        x = torchs_stack(shape, w, "", batch.inputs, src_key_padding_mask=padding)
        x = getattr(F, shape.activation)(
            x @ w["head.transform.weight"] + w["head.transform.bias"]
        )
        x = F.layer_norm(x, x.shape[-1:], w["head.norm.gain"], w["head.norm.bias"])
    given = x @ w["token_embedding"].T + w.get("head.bias", torch.zeros(1))
    return F.cross_entropy(given.flatten(0, 1), batch.targets.flatten(), ignore_index=-1)


@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("family", FAMILIES)
def test_loss_and_gradients_are_those_of_torchs_own_layers(family, activation, norm_position):
    shape = shape_of(family=family, activation=activation, norm_position=norm_position)
    w, batch = (
        {name: each.requires_grad_() for name, each in weights_of(shape).items()},
        batch_of(shape),
    )
    expected = torchs_loss(shape, w, batch)
    expected.backward()
    ours, gradients = loss_and_gradients(
        shape, {name: each.detach() for name, each in w.items()}, batch
    )
    assert ours == pytest.approx(expected.item(), rel=1e-12)
    for name, weight in w.items():
        np.testing.assert_allclose(
            gradients[name], weight.grad, rtol=1e-9, atol=1e-13, err_msg=name
        )
