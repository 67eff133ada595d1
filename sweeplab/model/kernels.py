"""Operations with a backward pass of their own, which read and write less memory than autograd's for their parts.

Each loop over elements runs along a run or a sequence, and each sum over a head is a product batched over the runs, so
that the bits of a run do not depend on its row or on the other runs. Sizes are read with `shape`, which stays a symbol
where a step is compiled for any number of runs; `len` does not.

Legend: K runs, N tokens, V vocab_size, n heads of D columns, R sequences,
L the elements of a sequence: T positions of n heads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.amp import custom_bwd, custom_fwd
from torch.autograd import Function

from sweeplab.model.attention import Turns, by_run

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    PerToken = Float[Tensor, "K N"]
    Logits = Float[Tensor, "K N V"]
    Row = Float[Tensor, "K N nD"]
    Sequences = Float[Tensor, "R L"]


def token_losses(logits: Logits, targets: Int[Tensor, "K N"]) -> PerToken:
    """Return the cross-entropy of each token, of targets from 0 to V - 1."""
    losses: Tensor = _TokenLosses.apply(logits, targets[:, :, None])  # type: ignore[no-untyped-call]
    return losses


def normalized_heads(x: Row, gain: Float[Tensor, "K nD"], head_dim: int, eps: float) -> Row:
    """Return the RMS norm of each head of x, x / sqrt(mean of x^2 + eps), times the gain."""
    normed: Tensor = _NormalizedHeads.apply(x, gain, head_dim, eps)  # type: ignore[no-untyped-call]
    return normed


def rotated_heads(x: Sequences, turns: Turns) -> Sequences:
    """Return sequences in which each pair of columns is rotated."""
    rotated: Tensor = _RotatedHeads.apply(x, *turns)  # type: ignore[no-untyped-call]
    return rotated


class _TokenLosses(Function):
    @staticmethod
    def forward(ctx: Any, logits: Logits, chosen: Int[Tensor, "K N 1"]) -> PerToken:
        log_probs = logits.log_softmax(dim=-1)
        ctx.save_for_backward(log_probs, chosen)
        return -log_probs.gather(2, chosen)[:, :, 0]

    @staticmethod
    def backward(ctx: Any, *gradients: PerToken) -> tuple[Logits, None]:
        (log_probs, chosen), factor = ctx.saved_tensors, gradients[0][:, :, None]
        probabilities = by_run(torch.exp, log_probs, log_probs.shape[0])
        return probabilities.mul_(factor).scatter_add_(2, chosen, -factor), None


class _NormalizedHeads(Function):
    @staticmethod
    @custom_fwd(device_type="cuda", cast_inputs=torch.float32)  # type: ignore[untyped-decorator]
    def forward(
        ctx: Any, x: Row, gain: Float[Tensor, "K nD"], head_dim: int, eps: float
    ) -> Row:
        ctx.head_dim, member = head_dim, _members(x, head_dim)
        scale = torch.bmm(x.square(), member).div_(head_dim).add_(eps).rsqrt_()
        scale = torch.bmm(scale, member.mT)
        normed = x * scale
        ctx.save_for_backward(normed, scale, gain)
        return normed * gain[:, None]

    @staticmethod
    @custom_bwd(device_type="cuda")  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: Row) -> tuple[Row, Tensor, None, None]:
        (normed, scale, gain), along = ctx.saved_tensors, gradients[0] * ctx.saved_tensors[0]
        member = _members(normed, ctx.head_dim)
        means = torch.bmm(along, gain[:, :, None] * member).div_(-ctx.head_dim)
        of_x = torch.bmm(means, member.mT).mul_(normed)
        of_x.addcmul_(gradients[0], gain[:, None].expand_as(normed)).mul_(scale)
        return of_x, along.sum(dim=1), None, None


def _members(x: Row, head_dim: int) -> Float[Tensor, "K nD n"]:
    """Return the matrix that sums each head of x: 1 where a column belongs to a head, else 0."""
    columns = torch.arange(x.shape[2], device=x.device) // head_dim
    heads = torch.arange(x.shape[2] // head_dim, device=x.device)
    return (columns[:, None] == heads).to(x.dtype).expand(x.shape[0], -1, -1)


class _RotatedHeads(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Sequences, factors: Tensor, after: Tensor, before: Tensor, half: int
    ) -> Sequences:
        ctx.half = half
        ctx.save_for_backward(factors, after, before)
        turned = x * factors
        turned[:, :-half].addcmul_(x[:, half:], after[:-half])
        turned[:, half:].addcmul_(x[:, :-half], before[half:])
        return turned

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        (factors, after, before), half, gradient = ctx.saved_tensors, ctx.half, gradients[0]
        back = gradient * factors
        back[:, half:].addcmul_(gradient[:, :-half], after[:-half])
        back[:, :-half].addcmul_(gradient[:, half:], before[half:])
        return back, None, None, None, None
