"""Operations with a backward pass of their own: autograd's values and gradients, and bits that know no neighbours."""

import pytest
import torch
from torch.nn import functional as F

from sweeplab.hyperparameters import Hyperparameters
from sweeplab.model.attention import rotation
from sweeplab.model.kernels import normalized_heads, rotated_heads, token_losses
from sweeplab.model.shape import ModelShape

N_RUNS, N_SEQUENCES, LENGTH, N_HEAD, HEAD_DIM = 3, 2, 7, 3, 10


def drawn(*size, dtype=torch.float64):
    generator = torch.Generator().manual_seed(sum(size))
    return torch.randn(size, generator=generator, dtype=dtype).requires_grad_()


def agree(ours, reference, inputs):
    """Compare two functions of float64 inputs: their values, and their gradients along a direction."""
    one, other = ours(*inputs), reference(*inputs)
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    along = torch.randn(one.shape, dtype=one.dtype, generator=torch.Generator().manual_seed(5))
    pairs = zip(
        torch.autograd.grad(one, inputs, along),
        torch.autograd.grad(other, inputs, along),
        strict=True,
    )
    for mine, theirs in pairs:
        torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-12)


def test_token_losses():
    logits, targets = drawn(N_RUNS, 14, 11), torch.arange(14).remainder(11).repeat(N_RUNS, 1)

    def reference(given):
        return F.cross_entropy(given.flatten(0, 1), targets.flatten(), reduction="none").view(
            N_RUNS, -1
        )

    agree(lambda given: token_losses(given, targets), reference, [logits])


@pytest.mark.parametrize("size", [1e4, 1e30])
def test_a_token_loss_is_finite_where_its_probability_is_zero(size):
    logits = torch.tensor([[[size, 0.0]]]).requires_grad_()
    losses = token_losses(logits, torch.tensor([[1]]))
    assert losses.item() == pytest.approx(size)
    assert torch.autograd.grad(losses.sum(), logits)[0].tolist() == [[[1.0, -1.0]]]


def test_normalized_heads():
    x, gain = drawn(N_RUNS, 14, N_HEAD * HEAD_DIM), drawn(N_RUNS, N_HEAD * HEAD_DIM)

    def reference(given, by):
        heads = F.rms_norm(given.unflatten(2, (N_HEAD, HEAD_DIM)), (HEAD_DIM,), eps=1e-5)
        return heads.flatten(2) * by[:, None]

    def ours(given, by):
        return normalized_heads(given, by, HEAD_DIM, 1e-5)

    agree(ours, reference, [x, gain])


@pytest.mark.parametrize("share", [1.0, 0.4])
def test_rotated_heads(share):
    values = {
        "n_head": N_HEAD,
        "n_embd": N_HEAD * HEAD_DIM,
        "positions": "rotary",
        "rotary_share": share,
    }
    shape = ModelShape.of(Hyperparameters.of({**values, "vocab_size": 5}))
    x, half = (
        drawn(N_RUNS * N_SEQUENCES, LENGTH * 2 * N_HEAD * HEAD_DIM),
        int(share * HEAD_DIM) // 2,
    )
    turns = rotation(shape, range(3, 3 + LENGTH), x)

    def reference(given):
        """Multiply pairs of columns, as complex numbers, by powers of a root."""
        heads = given.view(-1, LENGTH, 2 * N_HEAD, HEAD_DIM)
        angles = torch.arange(3, 3 + LENGTH)[:, None] * shape.rotary_base ** (
            -torch.arange(half).double() / half
        )
        pairs = torch.complex(heads[..., :half], heads[..., half : 2 * half])
        turned = pairs * torch.polar(torch.ones_like(angles), angles)[:, None]
        return torch.cat([turned.real, turned.imag, heads[..., 2 * half :]], dim=-1).view(
            given.shape
        )

    agree(lambda given: rotated_heads(given, turns), reference, [x])
