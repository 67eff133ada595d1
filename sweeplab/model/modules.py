"""Models of plugins: a module that a factory makes from hyperparameters, its weights, and what its forward pass costs.

A factory is a function of a run's hyperparameters. It returns an `nn.Module` whose `forward` takes token ids [B, T] and
returns logits [B, T, vocab_size]. Its parameters may depend on the model's hyperparameters and on its own rows only.
Counts are those of a pass on the meta device, which computes nothing; of a real pass where a module does not allow it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from sweeplab.errors import BadInput, Problem, said
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.model.shape import MODELS, ModelShape

if TYPE_CHECKING:
    from torch import Tensor, nn

_Result = TypeVar("_Result")


class Parameter(NamedTuple):
    """A parameter of a module: its name, its sizes, and whether it is an embedding's table."""

    name: str
    shape: tuple[int, ...]
    is_embedding: bool


class Cost(NamedTuple):
    """The forward FLOPs of one sequence, and how many numbers its forward pass saves for the backward pass."""

    flops: int
    saved: int


def values_of(shape: ModelShape) -> Hyperparameters:
    """Return hyperparameters from which a factory makes a model of this shape; the others are the defaults."""
    return Hyperparameters.of(vars(shape) | dict(shape.own))


def make_module(values: Hyperparameters, seed: int = 0, device: str = "cpu") -> nn.Module:
    """Return a run's module; what its factory draws depends on the seed alone.

    Raises:
        BadInput: the factory raises, or returns something else; says in which line of its file.
    """
    import torch

    with _blaming(values.model), torch.random.fork_rng(devices=[]), torch.device(device):
        torch.manual_seed(seed)
        module = MODELS[values.model].make(values)
        if not isinstance(module, torch.nn.Module):
            raise TypeError(f"the factory returned a {type(module).__name__}; allowed: a torch.nn.Module")
        for name, parameter in module.named_parameters():
            if not parameter.requires_grad:
                raise ValueError(
                    f"parameter {name} has requires_grad False; allowed: register it as a buffer"
                )
        return module.float()


def initial_weights(shape: ModelShape, seed: int) -> dict[str, Tensor]:
    """Return the weights by name that a run starts from."""
    module = make_module(values_of(shape), seed)
    return {name: parameter.detach() for name, parameter in module.named_parameters()}


def check_transformer(shape: ModelShape, what: str) -> None:
    """Refuse what needs the parts of sweeplab's own transformer.

    Raises:
        BadInput: the model is a plugin's.
    """
    if shape.is_plugin:
        raise BadInput(Problem(f"{what} shows a transformer's parts, and model {shape.model} is a plugin's"))


@lru_cache(maxsize=1024)
def parameters(shape: ModelShape) -> tuple[Parameter, ...]:
    """Return the parameters of a plugin's model, in the module's order; tied ones once."""
    from torch.nn import Embedding

    module = _on_some_device(shape, lambda module, device: module)
    tables = {id(part.weight) for part in module.modules() if isinstance(part, Embedding)}
    return tuple(
        Parameter(name, tuple(parameter.shape), id(parameter) in tables)
        for name, parameter in module.named_parameters()
    )


@lru_cache(maxsize=1024)
def cost(shape: ModelShape, length: int) -> Cost:
    """Return the cost of one sequence of `length` tokens.

    Raises:
        BadInput: the forward pass raises, returns other logits, or does not use a parameter.
    """
    return _on_some_device(shape, lambda module, device: _measured(module, shape, length, device))


def check_logits(model: str, logits: object, expected: tuple[int, ...]) -> Tensor:
    """Return a module's output, if it is logits of the expected sizes.

    Raises:
        ValueError: it is something else.
    """
    from torch import Tensor

    if not isinstance(logits, Tensor):
        raise ValueError(f"forward of model {model} returned a {type(logits).__name__}; allowed: a tensor")
    if tuple(logits.shape) != expected:
        what = f"forward of model {model} returned a tensor {[*logits.shape]}"
        raise ValueError(f"{what}; allowed: logits {[*expected]}, of every position (B, T, vocab_size)")
    return logits


def _on_some_device(shape: ModelShape, compute: Callable[[nn.Module, str], _Result]) -> _Result:
    """Compute something of a module on the meta device; on the CPU if an operation needs values."""
    try:
        return compute(make_module(values_of(shape), device="meta"), "meta")
    except Exception:  # whatever an operation without values may raise
        module = make_module(values_of(shape))
    with _blaming(shape.model):
        return compute(module, "cpu")


def _measured(module: nn.Module, shape: ModelShape, length: int, device: str) -> Cost:
    import torch
    from torch.autograd.graph import saved_tensors_hooks
    from torch.utils.flop_counter import FlopCounterMode

    weights, saved = dict(module.named_parameters()), list[int]()

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tensor.numel() * (not isinstance(tensor, torch.nn.Parameter)))
        return tensor

    with torch.device(device), torch.random.fork_rng(devices=[]), FlopCounterMode(display=False) as counter:
        with saved_tensors_hooks(keep, lambda tensor: tensor):
            logits = module.train()(torch.zeros(1, length, dtype=torch.long))
        flops = counter.get_total_flops()
        logits = check_logits(shape.model, logits, (1, length, shape.vocab_size))
        gradients = torch.autograd.grad(logits.float().sum(), list(weights.values()), allow_unused=True)
    if unused := [name for name, gradient in zip(weights, gradients, strict=True) if gradient is None]:
        raise ValueError(f"forward of model {shape.model} does not use its parameters {', '.join(unused)}")
    return Cost(flops, sum(saved))


@contextmanager
def _blaming(model: str) -> Iterator[None]:
    try:
        yield
    except BadInput:
        raise
    except Exception as error:  # whatever a user's code may raise
        raise BadInput(f"model {model}: {said(error, MODELS[model].file)}") from error
