"""The reference against torch's own functions and layers, in value and gradient."""

from typing import Any

import numpy as np
import pytest
import torch
from references.numpy_model import loss_and_gradients
from torch import nn
from torch.nn import functional as F

from sweeplab.data.batches import Batch, changed
from sweeplab.model.layout import Layout
from sweeplab.model.shape import ModelShape

LENGTHS, SOURCE_LENGTHS = torch.tensor([8, 3, 6]), torch.tensor([2, 7, 5])
Weights = dict[str, torch.Tensor]


def torchs_block(w: Weights, block: str, crosses: bool) -> Weights:
    """The weights of a block under the names that torch's own layers give them."""
    linear = {"self_attn.in_proj_": "attention.qkv", "self_attn.out_proj.": "attention.out"}
    linear |= {"linear1.": "feed_forward.up", "linear2.": "feed_forward.down"}
    norms = ["attention_norm", *(["cross_norm"] if crosses else []), "feed_forward_norm"]
    found = {}
    for kind in ("weight", "bias"):
        found |= {f"{theirs}{kind}": w[f"{block}.{ours}.{kind}"].t() for theirs, ours in linear.items()}
        if crosses:
            joined = torch.cat([w[f"{block}.cross.q.{kind}"], w[f"{block}.cross.kv.{kind}"]], dim=-1)
            found[f"multihead_attn.in_proj_{kind}"] = joined.t()
            found[f"multihead_attn.out_proj.{kind}"] = w[f"{block}.cross.out.{kind}"].t()
    for n, norm in enumerate(norms, 1):
        found |= {f"norm{n}.weight": w[f"{block}.{norm}.gain"], f"norm{n}.bias": w[f"{block}.{norm}.bias"]}
    return found


def torchs_stack(
    shape: ModelShape, w: Weights, prefix: str, tokens: torch.Tensor, **masks: Any
) -> torch.Tensor:
    """Embed tokens and take them through torch's own encoder layers, or decoder layers where there is a memory."""
    x = w["token_embedding"][tokens] + w[f"{prefix}position_embedding"][: tokens.shape[1]]
    crosses = "memory" in masks
    kind = nn.TransformerDecoderLayer if crosses else nn.TransformerEncoderLayer
    pre = shape.norm_position == "pre"
    layer = kind(
        shape.n_embd, shape.n_head, shape.d_ff, 0.0, shape.activation, batch_first=True, norm_first=pre
    ).double()
    for n in range(shape.n_layer):
        own = torchs_block(w, f"{prefix}blocks.{n}", crosses)
        assert own.keys() == dict(layer.named_parameters()).keys()
        x = torch.func.functional_call(layer, own, (x,), masks)
    if pre:
        x = F.layer_norm(x, x.shape[-1:], w[f"{prefix}final_norm.gain"], w[f"{prefix}final_norm.bias"])
    return x


def torchs_loss(shape: ModelShape, w: Weights, batch: Batch) -> torch.Tensor:
    """The whole model of torch's own layers."""
    padding = torch.arange(8) >= LENGTHS[:, None]
    future = torch.ones(8, 8, dtype=torch.bool).triu(1)
    if shape.family == "encoder_decoder":
        unread = torch.arange(7) >= SOURCE_LENGTHS[:, None]
        memory = torchs_stack(shape, w, "encoder.", batch.source, src_key_padding_mask=unread)
        masks = {"memory": memory, "memory_key_padding_mask": unread}
        x = torchs_stack(shape, w, "", batch.inputs, tgt_mask=future, tgt_key_padding_mask=padding, **masks)
    elif shape.family == "decoder":
        x = torchs_stack(shape, w, "", batch.inputs, src_mask=future, src_key_padding_mask=padding)
    else:
        x = torchs_stack(shape, w, "", batch.inputs, src_key_padding_mask=padding)
        x = getattr(F, shape.activation)(x @ w["head.transform.weight"] + w["head.transform.bias"])
        x = F.layer_norm(x, x.shape[-1:], w["head.norm.gain"], w["head.norm.bias"])
    given = x @ w["token_embedding"].T + w.get("head.bias", torch.zeros(1))
    return F.cross_entropy(given.flatten(0, 1), batch.targets.flatten(), ignore_index=-1)


@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("family", ["decoder", "encoder", "encoder_decoder"])
def test_loss_and_gradients_are_those_of_torchs_own_layers(
    family: str, activation: str, norm_position: str
) -> None:
    shape = ModelShape(
        vocab_size=13,
        block_size=8,
        n_layer=2,
        n_head=3,
        n_embd=12,
        family=family,
        activation=activation,
        norm_position=norm_position,
    )
    generator = torch.Generator().manual_seed(0)
    w = {
        each.name: torch.randn(each.shape, generator=generator, dtype=torch.float64)
        .mul_(0.4)
        .requires_grad_()
        for each in Layout(shape).weights
    }
    tokens = torch.randint(0, 13, (3, 3, 8), generator=generator)
    targets = tokens[1].masked_fill(torch.arange(8) >= LENGTHS[:, None], -1)
    batch = Batch(
        inputs=tokens[0],
        targets=targets,
        source=tokens[2, :, :7],
        lengths=LENGTHS,
        source_lengths=SOURCE_LENGTHS,
    )
    loss = torchs_loss(shape, w, batch)
    expected = torch.autograd.grad(loss, list(w.values()))
    arrays = changed(batch, lambda part: part.numpy())
    ours, gradients = loss_and_gradients(
        shape, {name: value.detach().numpy() for name, value in w.items()}, arrays
    )
    assert ours == pytest.approx(loss.item(), rel=1e-12)
    for name, gradient in zip(w, expected, strict=True):
        np.testing.assert_allclose(gradients[name], gradient.numpy(), rtol=1e-9, atol=1e-13, err_msg=name)
