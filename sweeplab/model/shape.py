"""The hyperparameters that determine a model's tensors, the families, activations and norms. Imports no torch.

A side of a model is its encoder or decoder. An encoder attends in both directions, a decoder only backward. The decoder
of an encoder_decoder also attends to the encoder's output (Vaswani et al., "Attention is all you need", 2017).

Gated activations (Shazeer, "GLU variants improve transformer", 2020) multiply one projection by the activation of
another. relu2: So et al. ("Primer", 2021). gelu_tanh: the approximation of Hendrycks and Gimpel (2016), which GPT-2
and the later T5 use. layernorm: Ba et al. (2016). rmsnorm: Zhang and Sennrich (2019); it has no bias. The functions
here do not apply a norm's gain and bias: the next matrix product does (see `blocks.product`).

The factory of a plugin's model is a function of a run's hyperparameters. It returns an `nn.Module` whose `forward`
takes token ids [B, T] and returns logits [B, T, vocab_size]. Its parameters may depend on the model's hyperparameters
and on its own rows only. Counts are those of a pass on the meta device, which computes nothing; of a real pass where a
module does not allow it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from sweeplab.errors import BadInput, Problem, said
from sweeplab.hyperparameters import (
    AUTO,
    TOKENS_PER_EVAL_ITER,
    TRANSFORMER,
    Hyperparameters,
    ModelHyperparameters,
)

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor, nn

    Numbers = Float[Tensor, "*n"]


@dataclass(frozen=True)
class Activation:
    """An elementwise function; a gated one is applied to the gate projection, which multiplies the up projection."""

    apply: Callable[[Tensor], Tensor]
    gated: bool = False


def _of_torch(name: str, **options: str) -> Callable[[Tensor], Tensor]:
    def apply(x: Numbers) -> Numbers:
        import torch

        result: Tensor = getattr(torch.nn.functional, name)(x, **options)
        return result

    return apply


_GELU, _GELU_TANH = _of_torch("gelu"), _of_torch("gelu", approximate="tanh")
ACTIVATIONS: dict[str, Activation] = {
    "gelu": Activation(_GELU),
    "relu": Activation(_of_torch("relu")),
    "relu2": Activation(lambda x: x.relu().square()),
    "swiglu": Activation(_of_torch("silu"), gated=True),
    "geglu": Activation(_GELU, gated=True),
    "gelu_tanh": Activation(_GELU_TANH),
    "geglu_tanh": Activation(_GELU_TANH, gated=True),
}


def _layernorm(x: Numbers, eps: float) -> Numbers:
    import torch

    # Gains of one, because torch's kernel without gains takes 1.7 times as long for the same bits.
    return torch.layer_norm(x, x.shape[-1:], x.new_ones(x.shape[-1]), eps=eps)


def _rmsnorm(x: Numbers, eps: float) -> Numbers:
    import torch

    return torch.rms_norm(x, x.shape[-1:], eps=eps)


# Norms over the last dimension, with eps inside the root.
NORMS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "layernorm": _layernorm,
    "rmsnorm": _rmsnorm,
}


@dataclass(frozen=True)
class Side:
    """An encoder or decoder: its weights' prefix, the hyperparameter with its number of layers, its attention."""

    prefix: str
    layers: str
    causal: bool
    has_cross: bool = False

    @property
    def name(self) -> str:
        """Return encoder or decoder."""
        if self.causal:
            return "decoder"
        return "encoder"

    @property
    def sub_layers(self) -> tuple[str, ...]:
        """Return the names of a block's sub-layers, in order of computation."""
        if self.has_cross:
            return "attention", "cross", "feed_forward"
        return "attention", "feed_forward"


@dataclass(frozen=True)
class Family:
    """A model family: its sides in order of computation, and whether its head has a transform as in BERT."""

    sides: tuple[Side, ...]
    transforms: bool = False

    @property
    def reads_source(self) -> bool:
        """Return whether the model reads a source besides its inputs: only an encoder_decoder does."""
        return len(self.sides) > 1


_ENCODER = Side("encoder.", "n_encoder_layer", causal=False)
_CROSS_DECODER = Side("", "n_decoder_layer", causal=True, has_cross=True)
FAMILIES: dict[str, Family] = {
    "decoder": Family((Side("", "n_layer", causal=True),)),
    "encoder": Family((Side("", "n_layer", causal=False),), transforms=True),
    "encoder_decoder": Family((_ENCODER, _CROSS_DECODER)),
}


@dataclass(frozen=True)
class PluginModel:
    """A model that a plugin registers: its factory, the names of its own rows of the table, and its file."""

    make: Callable[[Hyperparameters], nn.Module]
    rows: tuple[str, ...]
    file: Path


# The models of plugins, by the value of `model`.
MODELS: dict[str, PluginModel] = {}


def _d_ff(values: Mapping[str, Any]) -> int:
    n_embd: int = values["n_embd"]
    if ACTIVATIONS[values["activation"]].gated:
        return round(8 * n_embd / 3)
    return 4 * n_embd


def _base_head_dim(values: Mapping[str, Any]) -> int:
    """Return a given head_dim, for then n_head grows with the width; else a head's share of muP's base width."""
    if values["parametrization"] == "standard":
        return 1  # it has no effect
    head_dim: int | str = values["head_dim"]
    if isinstance(head_dim, str):
        share: int = values["mup_base_width"] // values["n_head"]  # NaN where n_head is
        return max(1, share)
    return head_dim


# What each automatic hyperparameter is computed from, and how. All but the last belong to the model.
SETTLED: Mapping[str, tuple[Sequence[str], Callable[[Mapping[str, Any]], Any]]] = {
    "n_encoder_layer": (["n_layer"], itemgetter("n_layer")),
    "n_decoder_layer": (["n_layer"], itemgetter("n_layer")),
    "head_dim": (["n_embd", "n_head"], lambda values: values["n_embd"] // values["n_head"]),
    "n_kv_head": (["n_head"], itemgetter("n_head")),
    "mup_base_head_dim": (
        ["parametrization", "head_dim", "mup_base_width", "n_head"],
        _base_head_dim,
    ),
    "final_norm": (["norm_position"], lambda values: values["norm_position"] == "pre"),
    "d_ff": (["n_embd", "activation"], _d_ff),
    "embedding_dropout": (["dropout"], itemgetter("dropout")),
    "attention_dropout": (["dropout"], itemgetter("dropout")),
    "residual_dropout": (["dropout"], itemgetter("dropout")),
    "eval_tokens": (["eval_iters"], lambda values: values["eval_iters"] * TOKENS_PER_EVAL_ITER),
}


def settled(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters with each `auto` of a model replaced by its value."""
    autos = [name for name in SETTLED if values.get(name) == AUTO]
    return {**values, **{name: SETTLED[name][1](values) for name in autos}}


@dataclass(frozen=True, kw_only=True)
class ModelShape(ModelHyperparameters):
    """Sizes and parts of a model, with `auto` values replaced; runs of equal shape can share a stack.

    `own` has the values of the rows that a plugin's model has added to the table.
    """

    own: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        for name, value in settled(vars(self)).items():
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, values: ModelHyperparameters) -> ModelShape:
        """Return the shape of a run's model from the run's effective hyperparameters."""
        return cls.named(vars(values))

    @classmethod
    def named(cls, values: Mapping[str, Any]) -> ModelShape:
        """Return the shape from hyperparameters by name; missing ones get their defaults."""
        known = [(name, values[name]) for name in FIELDS if name in values]
        model = values.get("model", TRANSFORMER)
        if model != TRANSFORMER:
            known.append(("own", tuple((name, values[name]) for name in MODELS[model].rows)))
        return _shape_of(tuple(known))

    @property
    def is_plugin(self) -> bool:
        """Return whether the model is a plugin's."""
        return self.model != TRANSFORMER

    @property
    def of_family(self) -> Family:
        """Return the model's family."""
        return FAMILIES[self.family]

    def layers(self, side: Side) -> int:
        """Return the number of blocks of one side."""
        return int(getattr(self, side.layers))

    @property
    def is_gated(self) -> bool:
        """Return whether the feed-forward layers multiply two projections."""
        return ACTIVATIONS[self.activation].gated

    @property
    def has_norm_bias(self) -> bool:
        """Return whether the norms have biases: a layernorm has one if `bias` is true, an rmsnorm never."""
        return self.bias and self.norm == "layernorm"

    @property
    def width_ratio(self) -> float:
        """Return the width divided by muP's base width; 1 in the standard parametrization."""
        if self.parametrization == "mup":
            return self.n_embd / self.mup_base_width
        return 1.0

    @property
    def has_qkv_bias(self) -> bool:
        """Return whether the query, key and value projections have biases."""
        return self.bias and self.qkv_bias

    @property
    def has_out_bias(self) -> bool:
        """Return whether the output projection of attention has a bias."""
        return self.bias and self.out_bias

    @property
    def has_ff_bias(self) -> bool:
        """Return whether the feed-forward layers have biases."""
        return self.bias and self.ff_bias

    @property
    def shares_norm(self) -> bool:
        """Return whether the sub-layers of a block read the output of one norm."""
        return self.parallel_block and self.shared_norm

    @property
    def rotary_columns(self) -> int:
        """Return how many columns of each head rotary positions rotate."""
        return int(self.head_dim * self.rotary_share)

    @property
    def has_head_bias(self) -> bool:
        """Return whether the head has a bias: by `bias` for an encoder, else by `head_bias`."""
        if self.of_family.transforms:
            return self.bias
        return self.head_bias

    @property
    def has_source_embedding(self) -> bool:
        """Return whether the encoder of an encoder_decoder has its own token embeddings."""
        return self.of_family.reads_source and not self.share_embeddings


FIELDS = tuple(field.name for field in fields(ModelHyperparameters))


@lru_cache(maxsize=4096)
def _shape_of(values: tuple[tuple[str, Any], ...]) -> ModelShape:
    """Return the shape; cached, because a plan asks for the same shape thousands of times, once per rule."""
    return ModelShape(**dict(values))


@dataclass(frozen=True)
class Requirement:
    """A condition on a model's shape: its text, the hyperparameters it tests (likeliest cause first), and the test.

    `names` are separated by spaces.
    """

    text: str
    names: str
    holds: Callable[[ModelShape], bool]


# Conditions on every model. Those of its attention and positions are beside these.
GENERAL = (
    Requirement(
        "n_kv_head divides n_head: every key head serves the same number of query heads",
        "n_kv_head n_head",
        lambda shape: shape.n_head % shape.n_kv_head == 0,
    ),
    Requirement(
        "n_expert_active is at most n_expert",
        "n_expert_active n_expert",
        lambda shape: shape.n_expert_active <= shape.n_expert,
    ),
    Requirement(
        "parallel_block has its norms before the sub-layers: norm_position must be pre",
        "parallel_block norm_position",
        lambda shape: not shape.parallel_block or shape.norm_position == "pre",
    ),
    Requirement(
        "parallel_block does not support cross-attention: family must not be encoder_decoder",
        "parallel_block family",
        lambda shape: not shape.parallel_block or not shape.of_family.reads_source,
    ),
    Requirement(
        "tie_scale needs an output head with the embedding's weights: tie_weights must be true",
        "tie_scale tie_weights",
        lambda shape: shape.tie_weights or not shape.tie_scale,
    ),
    Requirement(
        "a plugin's model has neither experts nor mup's scales: n_expert must be 1, parametrization standard",
        "n_expert parametrization model",
        lambda shape: (
            not shape.is_plugin or (shape.n_expert, shape.parametrization) == (1, "standard")
        ),
    ),
    Requirement(
        "head_bias does not apply to an encoder, whose head has a bias if bias is true: family must not be encoder",
        "head_bias family",
        lambda shape: not shape.head_bias or not shape.of_family.transforms,
    ),
    Requirement(
        "mup sets all scales that depend on the width: init must be normal, attention_scale head_dim, "
        "scale_embedding and tie_scale false",
        "parametrization init attention_scale scale_embedding tie_scale",
        lambda shape: (
            shape.parametrization == "standard"
            or (shape.init, shape.attention_scale, shape.scale_embedding, shape.tie_scale)
            == ("normal", "head_dim", False, False)
        ),
    ),
    Requirement(
        "share_embeddings false needs a source and a target: family must be encoder_decoder",
        "share_embeddings family",
        lambda shape: shape.share_embeddings or shape.of_family.reads_source,
    ),
    Requirement(
        "n_encoder_layer and n_decoder_layer apply only to family encoder_decoder; use n_layer otherwise",
        "n_encoder_layer n_decoder_layer n_layer family",
        lambda shape: (
            shape.of_family.reads_source
            or shape.n_encoder_layer == shape.n_decoder_layer == shape.n_layer
        ),
    ),
)


# ------------------------------------------------------------------ models of plugins


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
            raise TypeError(
                f"the factory returned a {type(module).__name__}; allowed: a torch.nn.Module"
            )
        for name, parameter in module.named_parameters():
            if not parameter.requires_grad:
                raise ValueError(
                    f"parameter {name} has requires_grad False; allowed: register it as a buffer"
                )
        return module.float()


def check_transformer(shape: ModelShape, what: str) -> None:
    """Refuse what needs the parts of sweeplab's own transformer.

    Raises:
        BadInput: the model is a plugin's.
    """
    if shape.is_plugin:
        raise BadInput(
            Problem(
                f"{what} shows a transformer's parts, and model {shape.model} is a plugin's"
            )
        )


@lru_cache(maxsize=1024)
def module_parameters(shape: ModelShape) -> tuple[Parameter, ...]:
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
    return _on_some_device(
        shape, lambda module, device: _measured(module, shape, length, device)
    )


def check_logits(model: str, logits: object, expected: tuple[int, ...]) -> Tensor:
    """Return a module's output, if it is logits of the expected sizes.

    Raises:
        ValueError: it is something else.
    """
    from torch import Tensor

    if not isinstance(logits, Tensor):
        raise ValueError(
            f"forward of model {model} returned a {type(logits).__name__}; allowed: a tensor"
        )
    if tuple(logits.shape) != expected:
        what = f"forward of model {model} returned a tensor {[*logits.shape]}"
        raise ValueError(
            f"{what}; allowed: logits {[*expected]}, of every position (B, T, vocab_size)"
        )
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
        if not isinstance(tensor, torch.nn.Parameter):
            saved.append(tensor.numel())
        return tensor

    with (
        torch.device(device),
        torch.random.fork_rng(devices=[]),
        FlopCounterMode(display=False) as counter,
    ):
        with saved_tensors_hooks(keep, lambda tensor: tensor):
            logits = module.train()(torch.zeros(1, length, dtype=torch.long))
        flops = counter.get_total_flops()
        logits = check_logits(shape.model, logits, (1, length, shape.vocab_size))
        gradients = torch.autograd.grad(
            logits.float().sum(), list(weights.values()), allow_unused=True
        )
    if unused := [
        name for name, gradient in zip(weights, gradients, strict=True) if gradient is None
    ]:
        raise ValueError(
            f"forward of model {shape.model} does not use its parameters {', '.join(unused)}"
        )
    return Cost(flops, sum(saved))


@contextmanager
def _blaming(model: str) -> Iterator[None]:
    try:
        yield
    except BadInput:
        raise
    except Exception as error:  # whatever a user's code may raise
        raise BadInput(f"model {model}: {said(error, MODELS[model].file)}") from error
