"""The optimizers of a stack by name. To add one, write a class and a row of OPTIMIZERS; a plug-in may add its own.

Legend: K runs, P the row size. Weights, gradient and state are buffers with one row per run. Hyperparameters are one
number per run; torch's own optimizers have one learning rate per tensor, not one per row.

On the CPU the bits of a run must be the same in any row of any stack. On whole rows, which are whole blocks, every
operation ensures this. On a part of a row only operations that round once do (a product, a sum, a root): torch computes
the last elements of a loop with other instructions, and K decides which elements are last. So do not use lerp_ or
addcmul_ there.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from inspect import isabstract
from itertools import accumulate, groupby, pairwise
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from sweeplab.hyperparameters import Hyperparameters
from sweeplab.model.layout import BLOCK, Layout, Weight

if TYPE_CHECKING:
    from jaxtyping import Float

    Rows = Float[Tensor, "K P"]
else:
    Rows = Tensor

State = Mapping[str, Tensor]


class Rates(NamedTuple):
    """The hyperparameters of one step: of one run, or float64 tensors [K] with those of all runs of an update.

    `step` counts from 1. Adam divides its first moment by `correction1`, and multiplies the root of its second moment
    by `correction2`. They are computed before a compiled step, which would compute the powers again for every few
    weights.
    """

    learning_rate: Any
    weight_decay: Any
    beta1: Any
    beta2: Any
    eps: Any
    momentum: Any
    step: Any
    correction1: Any
    correction2: Any

    @classmethod
    def at(cls, **numbers: Any) -> Rates:
        """Return the hyperparameters, all but the corrections, with Adam's bias corrections."""
        step = numbers["step"]
        correction1 = 1.0 - numbers["beta1"] ** step
        correction2 = (1.0 - numbers["beta2"] ** step) ** -0.5
        return cls(**numbers, correction1=correction1, correction2=correction2)

    @classmethod
    def of(cls, columns: Mapping[str, Tensor]) -> Rates:
        """Return those among columns by name."""
        return cls(**{name: columns[name] for name in cls._fields})


def column(numbers: Float[Tensor, "K"], like: Tensor) -> Tensor:
    """Return one number per run [K, 1, …], which can be multiplied with rows, or a weight, like `like` [K, …]."""
    return numbers.to(like.dtype).view(-1, *[1] * (like.dim() - 1))


def decay_(weights: Rows, n_decayed: int, rates: Rates) -> None:
    """Apply Loshchilov and Hutter's decoupled weight decay to the first n_decayed columns."""
    shrink = column(1.0 - rates.learning_rate * rates.weight_decay, weights)
    weights[:, :n_decayed].mul_(shrink)


def add_l2_(gradient: Rows, weights: Rows, n_decayed: int, rates: Rates) -> None:
    """Add the gradient of an L2 penalty, weight_decay / 2 times the squares of the first n_decayed columns."""
    decays = column(rates.weight_decay, weights)
    gradient[:, :n_decayed].add_(weights[:, :n_decayed] * decays)


def spans(layout: Layout, key: Callable[[Weight], Any]) -> list[tuple[slice, Any]]:
    """Return the spans of adjacent columns whose weights have the same key; the last span includes the padding."""
    pieces, begin = [], 0
    for shared, weights in groupby(layout.weights, key):
        end = begin + sum(weight.size for weight in weights)
        if end == layout.n_params:
            end = layout.row_size
        pieces.append((slice(begin, end), shared))
        begin = end
    return pieces


def packed(sizes: Sequence[int]) -> tuple[list[slice], int]:
    """Return the slices of adjacent pieces of these sizes in a row, and the row's length in whole blocks."""
    ends = [0, *accumulate(sizes)]
    return [slice(*each) for each in pairwise(ends)], -(-ends[-1] // BLOCK) * BLOCK


def adam_(
    weights: Rows, gradient: Rows, first: Rows, second: Rows, rates: Rates, factor: float = 1.0
) -> None:
    """Take Adam's step without weight decay, with `factor` times the learning rate of each run.

    All rows are updated at once, which on a GPU takes a few kernels instead of a few per row.
    """
    first.lerp_(gradient, column(1.0 - rates.beta1, weights))
    beta2 = column(rates.beta2, weights)
    second.mul_(beta2).add_(gradient.square() * (1.0 - beta2))
    denominator = second.sqrt() * column(rates.correction2, weights)
    denominator += column(rates.eps, weights)
    size = column(factor * rates.learning_rate / rates.correction1, weights)
    weights.sub_(size * first / denominator)


def fused_adam_rows_(
    weights: Rows, gradient: Rows, first: Rows, second: Rows, rates: Rates, factor: float = 1.0
) -> None:
    """Take the step of `adam_` row by row with torch's fused kernel, which cannot be compiled ahead of time.

    The kernel reads a row once instead of eight times.
    """
    adamw: Any = import_module("torch.optim.adamw").adamw
    named = (rates.step, factor * rates.learning_rate, rates.beta1, rates.beta2, rates.eps)
    for row, (step, lr, beta1, beta2, eps) in enumerate(torch.stack(named, dim=1).tolist()):
        steps_before = torch.tensor(step - 1)  # torch counts the step itself
        adamw(
            [weights[row]],
            [gradient[row]],
            [first[row]],
            [second[row]],
            [],
            [steps_before],
            lr=lr,
            beta1=beta1,
            beta2=beta2,
            eps=eps,
            weight_decay=0.0,
            amsgrad=False,
            maximize=False,
            fused=True,
        )


class Optimizer(ABC):
    """Updates the weights of a stack's runs. The stack holds the state, in buffers that `buffers` describes.

    `rows` has the names of the buffers with one number per weight.
    """

    rows: ClassVar[tuple[str, ...]] = ()

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        # Adam's step without weight decay: `adam_` or `fused_adam_rows_`.
        self.adam_step_: Callable[..., None] = adam_

    def buffers(self) -> dict[str, int]:
        """Return the length of a run's row in each buffer, by name, in whole blocks; buffers start at zero."""
        return dict.fromkeys(self.rows, self.layout.row_size)

    @cached_property
    def learning_rate_spans(self) -> list[tuple[slice, float]]:
        """Return the spans of columns that share a learning rate, and its factor; without muP there is one span."""
        ratio = self.layout.shape.width_ratio
        return spans(self.layout, lambda weight: weight.width_factors(ratio)[1])

    @abstractmethod
    def update_(self, weights: Rows, gradient: Rows, state: State, rates: Rates) -> None:
        """Update weights and state in place; the gradient may be overwritten."""


class SGD(Optimizer):
    """Gradient descent with Polyak's momentum, like torch.optim.SGD without dampening.

    Weight decay is an L2 penalty in the gradient.
    """

    rows = ("momentum",)

    def update_(self, weights: Rows, gradient: Rows, state: State, rates: Rates) -> None:
        """Update weights and momentum in place."""
        add_l2_(gradient, weights, self.layout.n_decayed, rates)
        momentum = state["momentum"]
        momentum.mul_(column(rates.momentum, weights)).add_(gradient)
        weights.sub_(momentum * column(rates.learning_rate, weights))


class Adam(Optimizer):
    """Adam: Kingma and Ba, "Adam: a method for stochastic optimization" (2015), like torch.optim.Adam.

    Weight decay is an L2 penalty in the gradient, and so in the moments, of matrices and embeddings.
    """

    rows = ("first", "second")

    def update_(self, weights: Rows, gradient: Rows, state: State, rates: Rates) -> None:
        """Update weights and moments in place."""
        add_l2_(gradient, weights, self.layout.n_decayed, rates)
        self.adam_step_(weights, gradient, state["first"], state["second"], rates)


class AdamW(Optimizer):
    """Adam with decoupled weight decay; under muP each weight has its own learning rate.

    Loshchilov and Hutter, "Decoupled weight decay regularization" (2019), like torch.optim.AdamW.
    """

    rows = ("first", "second")

    def update_(self, weights: Rows, gradient: Rows, state: State, rates: Rates) -> None:
        """Update weights and moments in place."""
        decay_(weights, self.layout.n_decayed, rates)
        first, second = state["first"], state["second"]
        for span, factor in self.learning_rate_spans:
            self.adam_step_(
                weights[:, span],
                gradient[:, span],
                first[:, span],
                second[:, span],
                rates,
                factor,
            )


class Lion(Optimizer):
    """The sign of a momentum, with decoupled weight decay; under muP each weight has its own learning rate.

    Chen et al., "Symbolic discovery of optimization algorithms" (2023), algorithm 2. Every element of a step is as
    large as the learning rate, so the authors use a learning rate 3 to 10 times smaller than AdamW's, a weight decay
    larger by the same factor, and betas (0.9, 0.99).
    """

    rows = ("momentum",)

    def update_(self, weights: Rows, gradient: Rows, state: State, rates: Rates) -> None:
        """Update weights and momentum in place."""
        momentum = state["momentum"]
        beta1 = column(rates.beta1, weights)
        beta2 = column(rates.beta2, weights)
        mixed = (momentum * beta1).add_(gradient * (1.0 - beta1))
        # Sign() would hide a run with NaN.
        signs = torch.where(mixed.isnan(), mixed, mixed.sign())
        momentum.mul_(beta2).add_(gradient.mul_(1.0 - beta2))
        decay_(weights, self.layout.n_decayed, rates)
        rate = column(rates.learning_rate, weights)
        for span, factor in self.learning_rate_spans:
            weights[:, span].sub_(signs[:, span] * (rate * factor))


# Jordan's quintic a x + b x^3 + c x^5, steepest at zero. It brings singular values to between about 0.7 and 1.2.
QUINTIC = (3.4445, -4.7750, 2.0315)
STEPS = 5
SMALLEST_NORM = 1e-7
ADAMW_SIZE = 0.2
DECAY_POWER = -0.8
SMALLEST = 1e-30  # the paper's epsilon_1: added to a squared gradient
LARGEST_UPDATE = 1.0


class Muon(Optimizer):
    """Muon for hidden matrices, AdamW for all other weights.

    Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024). A hidden matrix moves in the
    direction of the semi-orthogonal matrix nearest to its Nesterov momentum, computed by five Newton-Schulz steps.
    AdamW updates embeddings, an untied head, routers, gains and biases. An encoder's head.transform is a hidden matrix.
    As in Jordan, query, key and value are separate matrices, although one weight holds them; so is every expert.

    Departures: both optimizers share one learning rate, because the update is scaled by 0.2 sqrt(max(in, out)), which
    gives its elements the usual size of AdamW's (Liu et al., "Muon is scalable for LLM training", 2025; match_rms_adamw
    in torch.optim.Muon). Jordan has two learning rates and sqrt(max(1, out / in)). Weight decay is decoupled, as in Liu
    et al. Newton-Schulz runs in float32, not bfloat16. The default momentum is 0.9, not 0.95.
    """

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        by_optimizer = spans(layout, lambda weight: weight.role == "hidden")
        self._hidden = [span for span, is_hidden in by_optimizer if is_hidden]
        self._rest = [span for span, is_hidden in by_optimizer if not is_hidden]
        self._second, self._n_second = packed([span.stop - span.start for span in self._rest])
        # Matrices of one shape are orthogonalized together; each is given by its weight's name and columns.
        self._by_shape: dict[tuple[int, int], list[tuple[str, slice]]] = defaultdict(list)
        for weight in layout.weights:
            if weight.role == "hidden":
                for columns in _matrices(weight, layout):
                    size = weight.shape[-2], columns.stop - columns.start
                    self._by_shape[size].append((weight.name, columns))

    def buffers(self) -> dict[str, int]:
        """Return the buffers: "first" has Muon's momentum and AdamW's first moment, "second" its second moment."""
        return {"first": self.layout.row_size, "second": self._n_second}

    def update_(self, weights: Rows, gradient: Rows, state: State, rates: Rates) -> None:
        """Update weights and state in place."""
        decay_(weights, self.layout.n_decayed, rates)
        first, second = state["first"], state["second"]
        for span, columns in zip(self._rest, self._second, strict=True):
            self.adam_step_(
                weights[:, span], gradient[:, span], first[:, span], second[:, columns], rates
            )
        momentum = column(rates.momentum, weights)
        for span in self._hidden:
            first[:, span].mul_(momentum).add_(gradient[:, span])
            gradient[:, span].add_(first[:, span] * momentum)
        views, directions = self.layout.views(weights), self.layout.views(gradient)
        for (n_in, n_out), pieces in self._by_shape.items():
            stacks = [
                directions[name][..., columns].reshape(weights.shape[0], -1, n_in, n_out)
                for name, columns in pieces
            ]
            together = torch.cat(stacks, dim=1)  # [K, matrices, in, out]
            steps = orthogonalize(together.flatten(0, 1)).view_as(together)
            size = column(
                rates.learning_rate * (ADAMW_SIZE * math.sqrt(max(n_in, n_out))), together
            )
            by_piece = torch.split(steps * size, [each.shape[1] for each in stacks], dim=1)
            for (name, columns), step in zip(pieces, by_piece, strict=True):
                weight = views[name][..., columns]
                weight.sub_(step.reshape(weight.shape))


def orthogonalize(matrices: Float[Tensor, "n in out"]) -> Float[Tensor, "n in out"]:
    """Return the matrices with singular values near 1, by Newton-Schulz iteration."""
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.transpose(1, 2) if is_tall else matrices
    norms = torch.linalg.vector_norm(matrices.flatten(1), dim=1).clamp_(min=SMALLEST_NORM)
    x = x / norms[:, None, None]
    a, b, c = QUINTIC
    for _ in range(STEPS):
        gram = torch.bmm(x, x.transpose(1, 2))
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    if is_tall:
        return x.transpose(1, 2)
    return x


def _matrices(weight: Weight, layout: Layout) -> list[slice]:
    """Return the columns of each matrix in a weight; queries, keys and values are separate matrices."""
    keys, sizes = layout.shape.n_kv_head * layout.shape.head_dim, [weight.shape[-1]]
    if weight.name.endswith(".qkv.weight"):
        sizes = [layout.shape.n_head * layout.shape.head_dim, keys, keys]
    elif weight.name.endswith(".kv.weight"):
        sizes = [keys, keys]
    return packed(sizes)[0]


class Adafactor(Optimizer):
    """Adafactor: second moments factored into rows and columns, and clipped updates.

    Shazeer and Stern, "Adafactor: adaptive learning rates with sublinear memory cost" (2018), algorithm 4. A matrix
    stores the row means and column means of its squared gradients; their product divided by the overall mean estimates
    the second moment. There is no first moment. The decay rises as 1 - t^-0.8, and an update with a root mean square
    above 1 is scaled down to 1.

    Departures: the learning rate is the schedule's, neither relative to the weights' size nor limited by 1 / sqrt(t)
    (scale_parameter and relative_step are off). Weight decay is decoupled; the paper has none. Each weight is factored
    as it is stored: query, key and value as one matrix; experts separately, but clipped together.
    """

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._matrices = [weight for weight in layout.weights if weight.decays]
        self._vectors = [weight for weight in layout.weights if not weight.decays]
        rows = [weight.size // weight.shape[-1] for weight in self._matrices]
        columns = [weight.size // weight.shape[-2] for weight in self._matrices]
        self._rows, self._n_rows = packed(rows)
        self._columns, self._n_columns = packed(columns)
        self._second, self._n_second = packed([weight.size for weight in self._vectors])

    def buffers(self) -> dict[str, int]:
        """Return the buffers: the row means and column means of matrices, and the second moments of vectors."""
        return {
            "row_means": self._n_rows,
            "column_means": self._n_columns,
            "second": self._n_second,
        }

    def update_(self, weights: Rows, gradient: Rows, state: State, rates: Rates) -> None:
        """Update weights and state in place."""
        decay_(weights, self.layout.n_decayed, rates)
        share, rate = rates.step**DECAY_POWER, rates.learning_rate.to(weights.dtype)
        views, gradients = self.layout.views(weights), self.layout.views(gradient)
        for weight, rows, columns in zip(
            self._matrices, self._rows, self._columns, strict=True
        ):
            grad = gradients[weight.name]
            squares = grad.square().add_(SMALLEST)
            row_means = state["row_means"][:, rows].view(grad.shape[:-1])
            column_means = state["column_means"][:, columns].view(*grad.shape[:-2], -1)
            _average_(row_means, squares.mean(-1), share)
            _average_(column_means, squares.mean(-2), share)
            # Divide first, because the product of two small means would be 0 in float32.
            row_factors = row_means / row_means.mean(-1, keepdim=True)
            _update_(
                views[weight.name],
                grad,
                row_factors.unsqueeze(-1) * column_means.unsqueeze(-2),
                rate,
            )
        for weight, columns in zip(self._vectors, self._second, strict=True):
            grad, second = gradients[weight.name], state["second"][:, columns]
            _average_(second, grad.square().add_(SMALLEST), share)
            _update_(views[weight.name], grad, second, rate)


def _average_(mean: Tensor, value: Tensor, share: Tensor) -> None:
    """Update a moving average [K, …], with each run's share [K] of the new value."""
    mean.mul_(1.0 - column(share, mean)).add_(value * column(share, value))


def _update_(weight: Tensor, grad: Tensor, second: Tensor, rate: Tensor) -> None:
    """Subtract the gradient over the root of its second moment from a weight [K, …], clipped for each run."""
    step = grad / second.clamp(min=SMALLEST).sqrt_()
    sizes = torch.linalg.vector_norm(step.flatten(1), dim=1) / math.sqrt(step[0].numel())
    step = step * column(rate / (sizes / LARGEST_UPDATE).clamp_(min=1.0), step)
    weight.sub_(step)


# Makes a torch optimizer of a run's parameters and hyperparameters.
TorchFactory = Callable[[list[torch.nn.Parameter], Hyperparameters], torch.optim.Optimizer]


class TorchOptimizer(Optimizer):
    """A torch optimizer of a plug-in. It updates the runs one by one, and all of its state is in their rows.

    A row has whether the state exists, because it is created in the first step, and then each number of the state. The
    learning rate of a group of parameters follows the schedule in proportion to the one that it was made with.

    Raises:
        TypeError: the factory returns something else.
        ValueError: the state has numbers that a row cannot hold.
    """

    def __init__(self, layout: Layout, values: Hyperparameters, make: TorchFactory) -> None:
        super().__init__(layout)
        self._parameters = [
            torch.nn.Parameter(torch.zeros(weight.shape)) for weight in layout.weights
        ]
        self._own = torch_optimizer(make, self._parameters, values)
        self._shares = [group["lr"] / values.learning_rate for group in self._own.param_groups]
        self._state: list[tuple[Tensor, str, Any]] = []
        for parameter, state in self._own.state.items():
            self._state += [
                (parameter, name, value) for name, value in state.items() if value is not None
            ]
        sizes = [torch.as_tensor(value).numel() for _, _, value in self._state]
        self._pieces, self._size = packed([1, *sizes])

    def buffers(self) -> dict[str, int]:
        """Return the buffer of the state."""
        return {"own": self._size}

    def update_(self, weights: Rows, gradient: Rows, state: State, rates: Rates) -> None:
        """Update weights and state in place, run by run."""
        views, gradients = (
            self.layout.views(weights).values(),
            self.layout.views(gradient).values(),
        )
        for run, row in enumerate(state["own"]):
            for parameter, weight, slope in zip(
                self._parameters, views, gradients, strict=True
            ):
                parameter.grad = None
                parameter.data, parameter.grad = weight[run], slope[run]
            self._load(row)
            for group, share in zip(self._own.param_groups, self._shares, strict=True):
                group["lr"] = share * float(rates.learning_rate[run])
            self._own.step()
            row[0] = 1.0
            for (owner, name, _), piece in zip(self._state, self._pieces[1:], strict=True):
                row[piece] = torch.as_tensor(self._own.state[owner][name]).flatten()

    def _load(self, row: Float[Tensor, "P"]) -> None:
        self._own.state.clear()
        if row[0] == 0.0:
            return
        for (parameter, name, value), piece in zip(self._state, self._pieces[1:], strict=True):
            if isinstance(value, Tensor):
                # A number of steps stays on the CPU, whatever the parameter's device is.
                device = parameter.device if value.ndim else value.device
                self._own.state[parameter][name] = (
                    row[piece].view(value.shape).to(device, copy=True)
                )
            else:
                self._own.state[parameter][name] = type(value)(row[piece].item())


def torch_optimizer(
    make: TorchFactory, parameters: list[torch.nn.Parameter], values: Hyperparameters
) -> torch.optim.Optimizer:
    """Return the optimizer of a factory after a step with gradients of zero, which creates its state.

    Raises:
        TypeError: the factory returns something else.
        ValueError: the state has numbers that a row cannot hold.
    """
    made = make(parameters, values)
    if not isinstance(made, torch.optim.Optimizer):
        raise TypeError(
            f"the factory returned a {type(made).__name__}; allowed: a torch.optim.Optimizer"
        )
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    made.step()
    for state in made.state.values():
        for name, value in state.items():
            is_row = isinstance(value, Tensor) and value.dtype == torch.float32
            if not is_row and not isinstance(value, int | float | None):
                what = getattr(value, "dtype", type(value).__name__)
                raise ValueError(
                    f"state {name} is {what}; allowed: tensors of float32, and numbers"
                )
    return made


def check_optimizer(part: Any) -> None:
    """Refuse a part of a plug-in that is neither a class of optimizers nor a factory of torch optimizers.

    Raises:
        TypeError: the factory returns something else.
        ValueError: the class lacks `update_`, or the torch optimizer's state has numbers that a row cannot hold.
    """
    if not isinstance(part, type):
        parameters = [torch.nn.Parameter(torch.zeros(2, 2)), torch.nn.Parameter(torch.zeros(2))]
        torch_optimizer(part, parameters, Hyperparameters())
    elif not issubclass(part, Optimizer) or isabstract(part):
        raise ValueError(
            f"{part.__name__} is no subclass of sweeplab.train.optimizers.Optimizer with update_"
        )


def make_optimizer(values: Hyperparameters, layout: Layout) -> Optimizer:
    """Return the optimizer of a stack of runs with these hyperparameters."""
    kind = OPTIMIZERS[values.optimizer]
    if isinstance(kind, type):
        of_rows: Optimizer = kind(layout)
        return of_rows
    return TorchOptimizer(layout, values, kind)


OPTIMIZERS: dict[str, type[Optimizer] | TorchFactory] = {
    "adamw": AdamW,
    "adam": Adam,
    "sgd": SGD,
    "lion": Lion,
    "muon": Muon,
    "adafactor": Adafactor,
}
