"""Sides of a model against torch's own layers with the same weights."""

from __future__ import annotations

import pytest
import torch
from model.cases import rows_of, shape_of
from torch import nn

from sweeplab.model.attention.base import AttentionMask
from sweeplab.model.blocks import Normed, Pass, cross_attention, forward_side, self_attention
from sweeplab.model.layout import Layout
from sweeplab.model.shape import ModelShape
from sweeplab.model.transformer import Transformer

RUNS, SEQUENCES, LENGTH, SOURCE, C, HEADS, WIDE = 2, 3, 9, 6, 12, 3, 20


def pass_of(family: str, **changed) -> tuple[Transformer, Pass]:
    sizes = {"n_embd": C, "n_head": HEADS, "n_layer": 2, "d_ff": WIDE, "positions": "none"}
    model = Transformer(shape_of(family=family, **sizes, **changed))
    return model, Pass(model.shape, model.layout.views(rows_of(model, RUNS).double()), RUNS, SEQUENCES)


def copy_linear(linear: nn.Linear, p: Pass, run: int, name: str) -> None:
    linear.weight.data.copy_(p.w[f"{name}.weight"][run].T)
    linear.bias.data.copy_(p.w[f"{name}.bias"][run])


def copy_norm(norm: nn.LayerNorm, p: Pass, run: int, name: str) -> None:
    norm.weight.data.copy_(p.w[f"{name}.gain"][run])
    norm.bias.data.copy_(p.w[f"{name}.bias"][run])


def copy_attention(attention: nn.MultiheadAttention, p: Pass, run: int, name: str) -> None:
    parts = ("qkv",) if name.endswith("attention") else ("q", "kv")
    weights = [p.w[f"{name}.{part}.weight"][run].T for part in parts]
    attention.in_proj_weight.data.copy_(torch.cat(weights))
    attention.in_proj_bias.data.copy_(torch.cat([p.w[f"{name}.{part}.bias"][run] for part in parts]))
    copy_linear(attention.out_proj, p, run, f"{name}.out")


def copy_layer(layer: nn.Module, p: Pass, run: int, block: str) -> None:
    names = (
        ["attention", "cross", "feed_forward"]
        if hasattr(layer, "multihead_attn")
        else ["attention", "feed_forward"]
    )
    copy_attention(layer.self_attn, p, run, f"{block}.attention")
    if "cross" in names:
        copy_attention(layer.multihead_attn, p, run, f"{block}.cross")
    copy_linear(layer.linear1, p, run, f"{block}.feed_forward.up")
    copy_linear(layer.linear2, p, run, f"{block}.feed_forward.down")
    for index, name in enumerate(names, 1):
        copy_norm(getattr(layer, f"norm{index}"), p, run, f"{block}.{name}_norm")


def torchs(kind: str, p: Pass, run: int, prefix: str, activation: str) -> nn.Module:
    """Return torch's encoder or decoder with one run's weights."""
    before = p.shape.norm_position == "pre"
    layers = {"Encoder": nn.TransformerEncoderLayer, "Decoder": nn.TransformerDecoderLayer}
    layer = layers[kind](
        C, HEADS, WIDE, 0.0, activation, batch_first=True, norm_first=before, dtype=torch.float64
    )
    norm = nn.LayerNorm(C, dtype=torch.float64) if p.shape.final_norm else None
    if kind == "Encoder":
        whole = nn.TransformerEncoder(layer, 2, norm, enable_nested_tensor=False)
    else:
        whole = nn.TransformerDecoder(layer, 2, norm)
    for index, each in enumerate(whole.layers):
        copy_layer(each, p, run, f"{prefix}blocks.{index}")
    if norm is not None:
        copy_norm(whole.norm, p, run, f"{prefix}final_norm")
    return whole


def tokens(length: int) -> torch.Tensor:
    size = (RUNS, SEQUENCES, length)
    return torch.randint(0, 11, size, generator=torch.Generator().manual_seed(length))


def present(lengths: list[int], length: int) -> torch.Tensor:
    """Return which of the positions are no padding, [RUNS * SEQUENCES, length]."""
    return (torch.arange(length) < torch.tensor(lengths)[:, None]).repeat(RUNS, 1)


PRESENT, SOURCE_PRESENT = present([9, 4, 7], LENGTH), present([6, 1, 4], SOURCE)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("final_norm", [True, False])
def test_an_encoder_is_torchs(final_norm: bool, norm_position: str, activation: str) -> None:
    model, p = pass_of("encoder", norm_position=norm_position, activation=activation, final_norm=final_norm)
    read = tokens(LENGTH)
    found = forward_side(
        p, model.shape.of_family.sides[0], read, AttentionMask(False, RUNS, PRESENT), None
    ).affine()
    for run in range(RUNS):
        theirs = torchs("Encoder", p, run, "", activation)
        own = PRESENT[:SEQUENCES]
        expected = theirs(p.w["token_embedding"][run][read[run]], src_key_padding_mask=~own)
        torch.testing.assert_close(found[run].view(SEQUENCES, LENGTH, C)[own], expected[own])


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("final_norm", [True, False])
def test_an_encoder_decoder_is_torchs(final_norm: bool, norm_position: str, activation: str) -> None:
    """With a final norm torch.nn.Transformer's own, whichever way norms stand."""
    parts = {"norm_position": norm_position, "activation": activation, "final_norm": final_norm}
    model, p = pass_of("encoder_decoder", **parts)
    encoder, decoder = model.shape.of_family.sides
    source, read = tokens(SOURCE), tokens(LENGTH)
    encoded = forward_side(p, encoder, source, AttentionMask(False, RUNS, SOURCE_PRESENT), None).affine()
    found = forward_side(
        p, decoder, read, AttentionMask(True, RUNS), (encoded, AttentionMask(False, RUNS, SOURCE_PRESENT))
    ).affine()
    future = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    for run in range(RUNS):
        hidden = ~SOURCE_PRESENT[:SEQUENCES]
        table = p.w["token_embedding"][run]
        memory = torchs("Encoder", p, run, "encoder.", activation)(
            table[source[run]], src_key_padding_mask=hidden
        )
        theirs = torchs("Decoder", p, run, "", activation)
        expected = theirs(table[read[run]], memory, tgt_mask=future, memory_key_padding_mask=hidden)
        torch.testing.assert_close(found[run].view(SEQUENCES, LENGTH, C), expected)


def test_attention_is_torchs() -> None:
    _, p = pass_of("encoder_decoder")
    x = torch.randn(RUNS, SEQUENCES * LENGTH, C, dtype=torch.float64)
    source = torch.randn(RUNS, SEQUENCES * SOURCE, C, dtype=torch.float64)
    own = self_attention(p, "blocks.1.attention", AttentionMask(False, RUNS, PRESENT), Normed(x))
    across = cross_attention(
        p, "blocks.1.cross", source, AttentionMask(False, RUNS, SOURCE_PRESENT), Normed(x)
    )
    for run in range(RUNS):
        queries, keys = x[run].view(SEQUENCES, LENGTH, C), source[run].view(SEQUENCES, SOURCE, C)
        theirs = nn.MultiheadAttention(C, HEADS, batch_first=True, dtype=torch.float64)
        copy_attention(theirs, p, run, "blocks.1.attention")
        expected, _ = theirs(queries, queries, queries, key_padding_mask=~PRESENT[:SEQUENCES])
        torch.testing.assert_close(own[run].view_as(expected), expected)
        copy_attention(theirs, p, run, "blocks.1.cross")
        expected, _ = theirs(queries, keys, keys, key_padding_mask=~SOURCE_PRESENT[:SEQUENCES])
        torch.testing.assert_close(across[run].view_as(expected), expected)


@pytest.mark.parametrize("family", ["decoder", "encoder_decoder"])
def test_shared_heads_of_keys_are_repeated_ones(family: str) -> None:
    few, p = pass_of(family, n_kv_head=1)
    many, q = pass_of(family)
    weights = dict(p.w)
    for name, weight in p.w.items():
        if name.partition("blocks")[2].split(".")[-2:-1] in (["qkv"], ["kv"]):
            width = few.shape.head_dim
            parts = weight.split([weight.shape[-1] - 2 * width, width, width], dim=-1)
            weights[name] = torch.cat(
                [parts[0], *(each.repeat(*[1] * (each.ndim - 1), HEADS) for each in parts[1:])], dim=-1
            )
            assert weights[name].shape == q.w[name].shape
    read, side = tokens(LENGTH), few.shape.of_family.sides[-1]
    given = (
        (torch.randn(RUNS, SEQUENCES * SOURCE, C, dtype=torch.float64), AttentionMask(False, RUNS))
        if side.has_cross
        else None
    )
    found = forward_side(p, side, read, AttentionMask(True, RUNS), given).affine()
    expected = forward_side(
        Pass(many.shape, weights, RUNS, SEQUENCES), side, read, AttentionMask(True, RUNS), given
    ).affine()
    torch.testing.assert_close(found, expected)


def test_scores_are_divided_by_the_root_of_the_width() -> None:
    _, p = pass_of("decoder", attention_scale="n_embd")
    x = torch.randn(RUNS, SEQUENCES * LENGTH, C, dtype=torch.float64)
    found = self_attention(p, "blocks.0.attention", AttentionMask(True, RUNS), Normed(x))
    heads = p.linear("blocks.0.attention.qkv", Normed(x)).view(RUNS * SEQUENCES, LENGTH, 3, HEADS, -1)
    q, k, v = heads.permute(2, 0, 3, 1, 4)
    mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=C**-0.5)
    joined = Normed(mixed.transpose(1, 2).reshape(RUNS, -1, C))
    torch.testing.assert_close(found, p.linear("blocks.0.attention.out", joined))


@pytest.mark.parametrize("tie_weights", [True, False])
def test_weights_start_as_torchs_own(tie_weights: bool) -> None:
    """Within a tenth of torch's deviations and bounds, over thousands of numbers each."""
    sizes = {"vocab_size": 300, "n_embd": 60, "n_head": 4, "n_layer": 1, "block_size": 64, "d_ff": 100}
    shape = ModelShape(**sizes, init="torch", tie_weights=tie_weights, head_bias=True)
    layout = Layout(shape)
    runs = layout.views(torch.stack([layout.initial_row(seed) for seed in range(40)]))
    modules = {
        "token_embedding": (nn.Embedding, 300, 60), "position_embedding": (nn.Embedding, 64, 60),
        "blocks.0.attention.qkv": (nn.Linear, 60, 180), "blocks.0.attention.out": (nn.Linear, 60, 60),
        "blocks.0.feed_forward.up": (nn.Linear, 60, 100), "blocks.0.feed_forward.down": (nn.Linear, 100, 60),
        "head": (nn.Linear, 60, 300),
    }  # fmt: skip
    seen = set()
    for name, (kind, n_in, n_out) in modules.items():
        drawn = [dict(kind(n_in, n_out).named_parameters()) for _ in range(40)]
        for part in drawn[0]:
            own = runs.get(f"{name}.{part}", runs.get(name))
            if own is None:  # a tied head has the embedding's
                continue
            seen.add(name)
            theirs = torch.stack([each[part] for each in drawn])
            assert own.std().item() == pytest.approx(theirs.std().item(), rel=0.05), (name, part)
            if kind is nn.Linear:
                assert own.abs().max().item() == pytest.approx(n_in**-0.5, rel=0.01)
    assert seen == set(modules)
