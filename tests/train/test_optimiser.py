"""AdamW by rows against torch's own, one optimiser a run."""

from __future__ import annotations

import pytest
import torch

from sweeplab.model.layout import BLOCK
from sweeplab.train import optimiser
from sweeplab.train.optimiser import Rates, adamw_, clip_, gradient_norms

SETTINGS = [(1e-3, 0.1, 0.9, 0.95, 1e-8), (3e-2, 0.0, 0.8, 0.999, 1e-6), (1e-4, 0.5, 0.95, 0.9, 1e-10)]
N_DECAYED = BLOCK + 300


@pytest.mark.parametrize("update", [optimiser._fused_rows, optimiser._together])
def test_equals_torchs_adamw_row_by_row(update, monkeypatch) -> None:
    monkeypatch.setattr(optimiser, "_fused_rows", update)
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(3, 2 * BLOCK, generator=generator)
    weights, first, second = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
    theirs = [
        (row[:N_DECAYED].clone().requires_grad_(), row[N_DECAYED:].clone().requires_grad_()) for row in start
    ]
    optimisers = [
        torch.optim.AdamW(
            [{"params": [decayed], "weight_decay": decay}, {"params": [rest], "weight_decay": 0.0}],
            lr=rate, betas=(beta1, beta2), eps=eps,
        )
        for (decayed, rest), (rate, decay, beta1, beta2, eps) in zip(theirs, SETTINGS, strict=True)
    ]  # fmt: skip
    for step in range(1, 8):
        gradient = torch.randn(3, 2 * BLOCK, generator=generator)
        rates = [Rates(rate, decay, beta1, beta2, eps, step) for rate, decay, beta1, beta2, eps in SETTINGS]
        adamw_(weights, gradient, first, second, N_DECAYED, rates)
        for row, (pieces, each) in enumerate(zip(theirs, optimisers, strict=True)):
            pieces[0].grad, pieces[1].grad = (
                gradient[row, :N_DECAYED].clone(),
                gradient[row, N_DECAYED:].clone(),
            )
            each.step()
    expected = torch.stack([torch.cat([piece.detach() for piece in pieces]) for pieces in theirs])
    torch.testing.assert_close(weights, expected, rtol=2e-6, atol=2e-6)


def test_norms_are_right_to_single_precision() -> None:
    gradient = torch.randn(2, 800 * BLOCK, generator=torch.Generator().manual_seed(1)) * 1e-3
    exact = gradient.double().norm(dim=1)
    assert ((gradient_norms(gradient).double() - exact) / exact).abs().max().item() < 1e-6


def test_clips_each_row_by_its_own_limit() -> None:
    gradient = torch.randn(4, 2 * BLOCK, generator=torch.Generator().manual_seed(1))
    expected = gradient.clone()
    for row, limit in ((0, 1.0), (1, 5.0), (3, 1e6)):
        parameter = torch.nn.Parameter(torch.zeros(2 * BLOCK))
        parameter.grad = expected[row]
        torch.nn.utils.clip_grad_norm_([parameter], limit)
    clip_(gradient, gradient_norms(gradient), [1.0, 5.0, None, 1e6])
    torch.testing.assert_close(gradient, expected)


def test_a_rows_update_depends_on_no_neighbour() -> None:
    generator = torch.Generator().manual_seed(4)
    rows = [torch.randn(4, BLOCK, generator=generator) for _ in range(2)]
    alone = [each[2:3].clone() for each in rows]
    rates = Rates(1e-2, 0.1, 0.9, 0.99, 1e-8, 1)
    moments = [torch.zeros(4, BLOCK) for _ in range(2)]
    rows[1][1] = float("nan")
    limits = [0.5] * 4
    clip_(rows[1], gradient_norms(rows[1]), limits)
    adamw_(rows[0], rows[1], *moments, 100, [rates] * 4)
    clip_(alone[1], gradient_norms(alone[1]), limits[:1])
    adamw_(alone[0], alone[1], torch.zeros(1, BLOCK), torch.zeros(1, BLOCK), 100, [rates])
    assert torch.equal(rows[0][2], alone[0][0])
    assert rows[0][1].isnan().all()
