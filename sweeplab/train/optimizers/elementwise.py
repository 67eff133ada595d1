"""The elementwise optimizers: SGD, Adam, AdamW and Lion.

SGD has Polyak's momentum, like torch.optim.SGD without dampening. Adam: Kingma and Ba, "Adam: a method for stochastic
optimization" (2015), like torch.optim.Adam. AdamW: Loshchilov and Hutter, "Decoupled weight decay regularization"
(2019), like torch.optim.AdamW. Lion: Chen et al., "Symbolic discovery of optimization algorithms" (2023), algorithm 2.
Every element of a Lion step is as large as the learning rate, so the authors use a learning rate 3 to 10 times smaller
than AdamW's, a weight decay larger by the same factor, and betas (0.9, 0.99).
"""

from __future__ import annotations

import torch

from sweeplab.train.optimizers.base import EachRates, Optimizer, Rates, Rows, State, add_l2_, column, decay_


class SGD(Optimizer):
    """Gradient descent with momentum (not Nesterov's); weight decay is an L2 penalty in the gradient."""

    rows = ("momentum",)

    def update_(self, weights: Rows, gradient: Rows, state: State, rates: EachRates) -> None:
        """Update weights and momentum in place."""
        add_l2_(gradient, weights, self.layout.n_decayed, rates)
        momentum = state["momentum"]
        momentum.mul_(column(lambda rate: rate.momentum, rates, weights)).add_(gradient)
        weights.sub_(momentum * column(lambda rate: rate.learning_rate, rates, weights))


class Adam(Optimizer):
    """Adam; weight decay is an L2 penalty in the gradient, and so in the moments, of matrices and embeddings."""

    rows = ("first", "second")

    def update_(self, weights: Rows, gradient: Rows, state: State, rates: EachRates) -> None:
        """Update weights and moments in place."""
        add_l2_(gradient, weights, self.layout.n_decayed, rates)
        adam_(weights, gradient, state["first"], state["second"], rates)


class AdamW(Optimizer):
    """Adam with decoupled weight decay; under muP each weight has its own learning rate."""

    rows = ("first", "second")

    def update_(self, weights: Rows, gradient: Rows, state: State, rates: EachRates) -> None:
        """Update weights and moments in place."""
        decay_(weights, self.layout.n_decayed, rates)
        first, second = state["first"], state["second"]
        for span, factor in self.learning_rate_spans:
            adam_(weights[:, span], gradient[:, span], first[:, span], second[:, span], rates, factor)


class Lion(Optimizer):
    """The sign of a momentum, with decoupled weight decay; under muP each weight has its own learning rate."""

    rows = ("momentum",)

    def update_(self, weights: Rows, gradient: Rows, state: State, rates: EachRates) -> None:
        """Update weights and momentum in place."""
        momentum = state["momentum"]
        beta1 = column(lambda rate: rate.beta1, rates, weights)
        beta2 = column(lambda rate: rate.beta2, rates, weights)
        mixed = (momentum * beta1).add_(gradient * (1.0 - beta1))
        signs = torch.where(mixed.isnan(), mixed, mixed.sign())  # sign() would hide a run with NaN
        momentum.mul_(beta2).add_(gradient.mul_(1.0 - beta2))
        decay_(weights, self.layout.n_decayed, rates)
        rate = column(lambda rate: rate.learning_rate, rates, weights)
        for span, factor in self.learning_rate_spans:
            weights[:, span].sub_(signs[:, span] * (rate * factor))


def adam_(
    weights: Rows, gradient: Rows, first: Rows, second: Rows, rates: EachRates, factor: float = 1.0
) -> None:
    """Take Adam's step without weight decay, with `factor` times the learning rate of each run."""
    if isinstance(rates, Rates) or weights.device.type != "cpu":
        _adam_all_rows_(weights, gradient, first, second, rates, factor)
        return
    # Row by row, because torch's fused kernel reads memory once instead of eight times.
    for row, rate in enumerate(rates):
        torch._fused_adamw_(
            [weights[row]], [gradient[row]], [first[row]], [second[row]], [], [torch.tensor(float(rate.step))],
            lr=rate.learning_rate * factor, beta1=rate.beta1, beta2=rate.beta2, eps=rate.eps,
            weight_decay=0.0, amsgrad=False, maximize=False,
        )  # fmt: skip


def _adam_all_rows_(
    weights: Rows, gradient: Rows, first: Rows, second: Rows, rates: EachRates, factor: float = 1.0
) -> None:
    """Update all rows at once, which on a GPU takes a few kernels instead of a few per row."""
    first.lerp_(gradient, column(lambda rate: 1.0 - rate.beta1, rates, weights))
    beta2 = column(lambda rate: rate.beta2, rates, weights)
    second.mul_(beta2).add_(gradient.square() * (1.0 - beta2))
    denominator = second.sqrt() * column(lambda rate: rate.correction2, rates, weights)
    denominator += column(lambda rate: rate.eps, rates, weights)
    size = column(lambda rate: factor * rate.learning_rate / rate.correction1, rates, weights)
    weights.sub_(size * first / denominator)
