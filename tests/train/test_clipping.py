import torch

from sweeplab.model.layout import BLOCK
from sweeplab.train.step import clip_, gradient_norms


def test_norms_are_right_to_single_precision():
    gradient = torch.randn(2, 800 * BLOCK, generator=torch.Generator().manual_seed(1)) * 1e-3
    exact = gradient.double().norm(dim=1)
    assert ((gradient_norms(gradient).double() - exact) / exact).abs().max().item() < 1e-6


def test_clips_each_row_by_its_own_limit():
    gradient = torch.randn(4, 2 * BLOCK, generator=torch.Generator().manual_seed(1))
    expected = gradient.clone()
    for row, limit in ((0, 1.0), (1, 5.0), (3, 1e6)):
        parameter = torch.nn.Parameter(torch.zeros(2 * BLOCK))
        parameter.grad = expected[row]
        torch.nn.utils.clip_grad_norm_([parameter], limit)
    clip_(gradient, gradient_norms(gradient), torch.tensor([1.0, 5.0, torch.inf, 1e6]))
    torch.testing.assert_close(gradient, expected)


def test_a_row_is_clipped_alike_beside_any_neighbor():
    gradient = torch.randn(4, BLOCK, generator=torch.Generator().manual_seed(4))
    gradient[1] = float("nan")
    alone = gradient[2:3].clone()
    clip_(gradient, gradient_norms(gradient), torch.full((4,), 0.5))
    clip_(alone, gradient_norms(alone), torch.tensor([0.5]))
    assert torch.equal(gradient[2], alone[0])
    assert gradient[1].isnan().all()


def test_without_a_limit_a_norm_that_is_too_large_for_its_type_changes_nothing():
    gradient = torch.full((2, BLOCK), 1e20)
    clip_(gradient, gradient_norms(gradient), torch.tensor([torch.inf, 1.0]))
    assert gradient[0].eq(1e20).all() and not gradient[1].any()
