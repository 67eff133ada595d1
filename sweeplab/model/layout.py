"""Every weight of a model: how it starts, how it follows the width, and where it lies in a run's row of the stack.

A stack holds its weights as one tensor [K, P]: a run is a row, a weight is a view. Matrices come first, so that the
ones that decay are a prefix; the row is padded to whole blocks, over which norms are taken.

How a weight's start and its learning rate follow the width is `standard`, or muP (no torch):
Yang, Hu et al., "Tensor programs V: tuning large neural networks via zero-shot hyperparameter transfer" (2022),
table 8, the form in which input and output embeddings can be tied. With r = n_embd / mup_base_width:

| weight | initial standard deviation | Adam's learning rate | multiplier |
|---|---|---|---|
| input: embeddings, relative biases | 1 | 1 | 1 |
| vector: gains and biases | 1 | 1 | 1 |
| hidden: between widths that grow | r^-1/2 | 1/r | 1 |
| output: the head, tied or not | 1 | 1 | 1/r on the logits |
| router: from the width to the experts | 1/r | 1/r | 1 |

and attention's scores are divided by head_dim instead of its root. Where r is 1 all but that is `standard`.

Departures: the constants beside the powers of r are GPT-2's (0.02, and less for projections back into the residual
stream), not tuned ones; a router, which the paper has not, takes the equal form of table 3, for it has no multiplier;
queries and the head start as the rest does, not at zero; decoupled weight decay goes by the unscaled learning rate,
so that a step shrinks every matrix alike at any width, as the authors' mup package does it; eps is not scaled;
every hidden width (d_ff, heads) is taken to grow as n_embd does.

Legend: K runs, P row_size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from sweeplab.model.accounting import n_params
from sweeplab.model.positions import POSITIONS
from sweeplab.model.shape import ModelShape, Side

if TYPE_CHECKING:
    from jaxtyping import Float

BLOCK = 1024
NORMAL_STD = 0.02

Role = Literal["input", "hidden", "output", "router", "vector"]
# The first pattern that matches a matrix's name says its role; hidden where none does.
_ROLES: tuple[tuple[str, Role], ...] = (
    ("*_embedding", "input"),
    ("*relative_bias", "input"),
    ("*router.weight", "router"),
    ("head.weight", "output"),
)
# Powers of the width ratio: of the initial standard deviation and of the learning rate; 0 of the other roles.
_POWERS: dict[Role, tuple[float, float]] = {"hidden": (-0.5, -1.0), "router": (-1.0, -1.0)}


@dataclass(frozen=True)
class Weight:
    """One weight of a run: its name, its shape without the run dimension, and how it starts.

    A `std` of None means a constant start at `fill`; `uniform` draws evenly around 0 with that deviation
    instead of normally. Matrices are [in, out] (experts' [E, in, out]), embeddings [rows, n_embd].
    """

    name: str
    shape: tuple[int, ...]
    std: float | None = None
    fill: float = 0.0
    uniform: bool = False

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)

    @property
    def decays(self) -> bool:
        """Return whether weight decay applies: to matrices and embeddings, not to gains and biases."""
        return len(self.shape) > 1

    @property
    def role(self) -> Role:
        """Return what the weight is by what it leads from and to."""
        if not self.decays:
            return "vector"
        return next((found for pattern, found in _ROLES if fnmatch(self.name, pattern)), "hidden")

    def width_factors(self, width_ratio: float) -> tuple[float, float]:
        """Return what initial standard deviation and learning rate are multiplied by; 1 where the width ratio is."""
        std, rate = _POWERS.get(self.role, (0.0, 0.0))
        return width_ratio**std, width_ratio**rate


@dataclass(frozen=True)
class Init:
    """One way for weights to start: the deviations of a matrix by its inputs and outputs, and of tables by n_embd.

    `relative` is that of the table of relative biases. Projections back into the residual stream are smaller by the
    root of their number where it `shrinks` them. Where it is `of_linear`, a head of its own is a matrix too, and biases
    start as the matrices that they belong to.
    """

    matrix: Callable[[int, int], float]
    embedding: Callable[[int], float]
    relative: Callable[[int], float]
    shrinks: bool = False
    uniform: bool = False
    of_linear: bool = False


def _constant(*_: int) -> float:
    return NORMAL_STD


def _by_root(width: int, _: int = 0) -> float:
    return 1 / math.sqrt(width)


# GPT-2's, as OpenAI released it; BERT's, which truncates the normal at two deviations (not done here); T5's, with
# queries that are not divided by the root of head_dim, for attention's scores are; the original's: matrices by
# Glorot and Bengio (2010), with the joined query, key and value taken for three matrices as wide as the queries, also
# where n_kv_head is less than n_head and keys and values are narrower; and what torch.nn.Linear (weight and bias evenly
# within 1/sqrt(inputs)) and torch.nn.Embedding (a standard normal) do where nobody asks for anything.
INITS: dict[str, Init] = {
    "normal": Init(_constant, _constant, _constant, shrinks=True),
    "bert": Init(_constant, _constant, _constant),
    "t5": Init(_by_root, lambda n_embd: 1.0, _by_root),
    "xavier": Init(lambda n_in, n_out: math.sqrt(2.0 / (n_in + n_out)), _by_root, _by_root, uniform=True),
    "torch": Init(
        lambda n_in, _: _by_root(3 * n_in), lambda n_embd: 1.0, _by_root, uniform=True, of_linear=True
    ),
}


class _Declarations:
    """The weights of one model as its parts declare them."""

    def __init__(self, shape: ModelShape) -> None:
        self.shape, self._init = shape, INITS[shape.init]
        self.weights: list[Weight] = []
        self._n_residual = max(len(side.sub_layers) * shape.layers(side) for side in shape.of_family.sides)

    def table(self, name: str, rows: int, width: int) -> None:
        std = self._init.relative if name.endswith("relative_bias") else self._init.embedding
        self.weights.append(Weight(name, (rows, width), std(self.shape.n_embd)))

    def gain(self, name: str, width: int) -> None:
        self.weights.append(Weight(f"{name}.gain", (width,), fill=1.0))

    def norm(self, name: str) -> None:
        self.gain(name, self.shape.n_embd)
        if self.shape.has_norm_bias:
            self.bias(name, self.shape.n_embd)

    def bias(self, name: str, width: int, n_in: int | None = None) -> None:
        """Declare a bias; `n_in` are the inputs of its matrix, if it has one."""
        std = self._init.matrix(n_in, width) if n_in and self._init.of_linear else None
        self.weights.append(Weight(f"{name}.bias", (width,), std, uniform=self._init.uniform))

    def head(self, rows: int, width: int) -> None:
        """Declare a head of its own, which lies as an embedding does."""
        self.table("head.weight", rows, width)
        if self._init.of_linear:
            self.weights[-1] = replace(self.weights[-1], std=self._init.matrix(width, rows), uniform=True)

    def matrix(
        self, name: str, *size: int, bias: bool = False, residual: bool = False, fan_out: int | None = None
    ) -> None:
        """Declare a matrix [..., in, out] and its bias; `residual` ones lead back into the residual stream."""
        n_in, n_out = size[-2:]
        std = self._init.matrix(n_in, fan_out or n_out)
        if residual and self._init.shrinks:
            std /= math.sqrt(self._n_residual)
        self.weights.append(Weight(f"{name}.weight", size, std, uniform=self._init.uniform))
        if bias:
            self.bias(name, n_out, n_in)


def declared(shape: ModelShape) -> list[Weight]:
    """Return a model's weights."""
    found = _Declarations(shape)
    found.table("token_embedding", shape.vocab_size, shape.n_embd)
    if shape.has_source_embedding:
        found.table("source_embedding", shape.vocab_size, shape.n_embd)
    for side in shape.of_family.sides:
        if table := POSITIONS[shape.positions].table:
            component, rows, width = table
            found.table(f"{side.prefix}{component}", getattr(shape, rows), getattr(shape, width))
        if shape.n_token_types:
            found.table(f"{side.prefix}token_type_embedding", shape.n_token_types, shape.n_embd)
        if shape.embedding_norm:
            found.norm(f"{side.prefix}embedding_norm")
        for layer in range(shape.layers(side)):
            _block(found, side, f"{side.prefix}blocks.{layer}")
        if shape.final_norm:
            found.norm(f"{side.prefix}final_norm")
    if shape.of_family.transforms:
        found.matrix("head.transform", shape.n_embd, shape.n_embd, bias=shape.bias)
        found.norm("head.norm")
    if not shape.tie_weights:
        found.head(shape.vocab_size, shape.n_embd)
    if shape.has_head_bias:
        found.bias("head", shape.vocab_size, shape.n_embd)
    return found.weights


def _block(found: _Declarations, side: Side, block: str) -> None:
    shape = found.shape
    c, mixed, keys = shape.n_embd, shape.n_head * shape.head_dim, shape.n_kv_head * shape.head_dim
    projections = {"attention": {"qkv": mixed + 2 * keys}, "cross": {"q": mixed, "kv": 2 * keys}}
    for part in side.sub_layers[:-1]:
        name = f"{block}.{part}"
        found.norm(f"{name}_norm")
        for projection, width in projections[part].items():
            found.matrix(f"{name}.{projection}", c, width, bias=shape.has_qkv_bias, fan_out=mixed)
        if shape.qk_norm:
            found.gain(f"{name}.q_norm", shape.head_dim)
            found.gain(f"{name}.k_norm", shape.head_dim)
        found.matrix(f"{name}.out", mixed, c, bias=shape.has_out_bias, residual=True)
    name = f"{block}.feed_forward"
    if not shape.parallel_block:
        found.norm(f"{name}_norm")
    routed = shape.n_expert > 1
    lead, bias = [shape.n_expert] * routed, shape.bias and not routed
    if routed:
        found.matrix(f"{name}.router", c, shape.n_expert)
    for part in ("up", "gate") if shape.is_gated else ("up",):
        found.matrix(f"{name}.{part}", *lead, c, shape.d_ff, bias=bias)
    found.matrix(f"{name}.down", *lead, shape.d_ff, c, bias=bias, residual=True)


def layer_of(name: str) -> str:
    """Return the layer that a weight belongs to: a block, or what stands before or behind the blocks."""
    parts = name.split(".")
    first = 1 if parts[0] == "encoder" else 0
    return ".".join(parts[: first + (2 if parts[first] == "blocks" else 1)])


class Layout:
    """The order of a model's weights in a row of `row_size`, and the ways in and out of it."""

    def __init__(self, shape: ModelShape) -> None:
        self.shape = shape
        in_order = declared(shape)
        self.weights: Sequence[Weight] = sorted(in_order, key=lambda weight: not weight.decays)
        self.layers = list(dict.fromkeys(layer_of(weight.name) for weight in in_order))
        self.n_params = sum(weight.size for weight in self.weights)
        self.n_decayed = sum(weight.size for weight in self.weights if weight.decays)
        if self.n_params != n_params(shape):
            raise AssertionError(f"{self.n_params} weights, but accounting says {n_params(shape)}")
        self.row_size = -(-self.n_params // BLOCK) * BLOCK
        self._sizes = [*(weight.size for weight in self.weights), self.row_size - self.n_params]

    def views(self, flat: Float[Tensor, "K P"]) -> dict[str, Tensor]:
        """Split rows into weights [K, *shape] by name, without copying."""
        n_runs = flat.shape[0]
        pieces = torch.split(flat, self._sizes, dim=1)
        return {
            weight.name: piece.view(n_runs, *weight.shape)
            for weight, piece in zip(self.weights, pieces, strict=False)
        }

    def gather(self, pieces: Sequence[Tensor], out: Float[Tensor, "K P"]) -> None:
        """Copy one tensor [K, *shape] per weight, in their order, into rows with padding of zeros.

        Into a buffer that is there, and not by differentiating with respect to the rows themselves: autograd
        would put them together in fresh memory each time, which costs several times as much.
        """
        n_runs = out.shape[0]
        torch.cat([piece.reshape(n_runs, -1) for piece in pieces], dim=1, out=out[:, : self.n_params])
        out[:, self.n_params :].zero_()  # a run that diverged here may have left a NaN behind

    def gathered(self, pieces: Sequence[Tensor]) -> Float[Tensor, "K P"]:
        """Return one tensor [K, *shape] per weight as rows, in memory of their own."""
        flat = [piece.flatten(1) for piece in pieces]
        padding = flat[0].new_zeros(flat[0].shape[0], self.row_size - self.n_params)
        return torch.cat([*flat, padding], dim=1)

    def layer_norms(self, row: Float[Tensor, "P"]) -> dict[str, float]:
        """Return the norm of each layer's part of a row, in the order in which a sequence passes the layers.

        In float64 and of one row alone, so that it does not depend on a stack.
        """
        starts = [0, *accumulate(self._sizes[:-1])]
        squares = np.add.reduceat(row.double().square().cpu().numpy(), starts[:-1])
        # A row without padding ends with its last weight; else the padding, which is zero, is that one's too.
        sums = dict.fromkeys(self.layers, 0.0)
        for weight, own in zip(self.weights, squares.tolist(), strict=True):
            sums[layer_of(weight.name)] += own
        return {name: math.sqrt(own) for name, own in sums.items()}

    def row_of(self, weights: Mapping[str, Tensor], seed: int) -> Float[Tensor, "P"]:
        """Return a run's weights by name as its row; those that are missing, or NaN, are drawn as its initial ones."""
        row = self.initial_row(seed)[None]
        for name, view in self.views(row).items():
            if name in weights:
                given = weights[name]
                view.copy_(torch.where(given.isnan(), view, given))
        return row[0]

    def initial_row(self, seed: int) -> Float[Tensor, "P"]:
        """Draw a run's initial weights from a generator of its own, on the CPU on any machine."""
        generator = torch.Generator().manual_seed(seed)
        row = torch.zeros(1, self.row_size)
        for weight, view in zip(self.weights, self.views(row).values(), strict=True):
            if weight.std is None:
                view.fill_(weight.fill)
            elif weight.uniform:
                bound = weight.std * math.sqrt(3.0)
                view.uniform_(-bound, bound, generator=generator)
            else:
                factor, _ = weight.width_factors(self.shape.width_ratio)
                view.normal_(0.0, weight.std * factor, generator=generator)
        return row[0]
