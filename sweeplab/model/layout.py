"""All weights of a model: their initialization, how they scale with the width, and their columns in a run's row.

A stack holds its weights as one tensor [K, P]: a run is a row, a weight is a view. Matrices come first, because weight
decay applies to the first columns. A row is padded to whole blocks, because norms are computed block by block.

Initialization and learning rate scale with the width as in `standard` or as in muP:
Yang, Hu et al., "Tensor programs V: tuning large neural networks via zero-shot hyperparameter transfer" (2022),
table 8, which allows tied input and output embeddings. With r = n_embd / mup_base_width:

| weight | initial standard deviation | Adam's learning rate | multiplier |
|---|---|---|---|
| input: embeddings, relative biases | 1 | 1 | 1 |
| vector: gains and biases | 1 | 1 | 1 |
| hidden: between widths that grow | r^-1/2 | 1/r | 1 |
| output: the head, tied or not | 1 | 1 | 1/r on the logits |
| router: from the width to the experts | 1/r | 1/r | 1 |

Attention scores are divided by head_dim / sqrt(mup_base_head_dim) instead of the root of head_dim. At the base width,
r = 1, muP is `standard`.

Departures: the constant factors are GPT-2's (0.02, and less for projections back into the residual stream), not tuned
ones. The paper has no router: ours uses the equivalent form of table 3, because it has no multiplier. Queries and the
head start like the other weights, not at zero. Decoupled weight decay uses the unscaled learning rate, as in the
authors' mup package: a step shrinks every matrix by the same factor at any width. eps is not scaled. Every hidden width
(d_ff, n_head * head_dim) is assumed to grow in proportion to n_embd.

Legend: K runs, P row_size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from sweeplab.model.attention import POSITION_TABLES
from sweeplab.model.shape import ModelShape, Side, make_module, module_parameters, values_of

if TYPE_CHECKING:
    from jaxtyping import Float

BLOCK = 1024
NORMAL_STD = 0.02

Role = Literal["input", "hidden", "output", "router", "vector"]
# A matrix has the role of the first pattern that matches its name; without a match it is hidden.
_ROLES: tuple[tuple[str, Role], ...] = (
    ("*_embedding", "input"),
    ("*relative_bias", "input"),
    ("*router.weight", "router"),
    ("head.weight", "output"),
)
# The exponents of the width ratio for the initial standard deviation and the learning rate; 0 for the other roles.
_POWERS: dict[Role, tuple[float, float]] = {"hidden": (-0.5, -1.0), "router": (-1.0, -1.0)}


@dataclass(frozen=True)
class Weight:
    """One weight of a run: its name, its shape without the run dimension, and its initialization.

    With a `std` of None all elements start at `fill`. Otherwise they are drawn around 0 with that standard deviation:
    from a uniform distribution with `uniform`, else a normal one. Matrices are [in, out] (experts' [E, in, out]),
    embeddings [rows, n_embd].
    """

    name: str
    shape: tuple[int, ...]
    std: float | None = None
    fill: float = 0.0
    uniform: bool = False
    is_embedding: bool = False

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
        """Return the weight's row in muP's table."""
        if not self.decays:
            return "vector"
        if self.is_embedding:
            return "input"
        return next((role for pattern, role in _ROLES if fnmatch(self.name, pattern)), "hidden")

    def width_factors(self, width_ratio: float) -> tuple[float, float]:
        """Return muP's factors of the initial standard deviation and of the learning rate."""
        std, rate = _POWERS.get(self.role, (0.0, 0.0))
        return width_ratio**std, width_ratio**rate


def matrix_std(init: str, n_in: int, n_out: int) -> float:
    """Return the initial standard deviation of a matrix.

    normal: GPT-2, as OpenAI released it; projections back into the residual stream are divided by the root of their
    number. bert: BERT, but its normal distribution is not truncated at two deviations. t5: T5, but queries are not
    divided by the root of head_dim, because our attention scores are. xavier: Glorot and Bengio (2010), for embeddings
    too, as in "The Annotated Transformer" (Rush, 2018); the joined query, key and value count as three matrices as wide
    as the queries, also if n_kv_head is less than n_head. torch: the defaults of torch.nn.Linear (weight and bias
    uniform within 1/sqrt(inputs)) and of torch.nn.Embedding (standard normal).
    """
    if init == "xavier":
        return math.sqrt(2.0 / (n_in + n_out))
    if init == "t5":
        return 1 / math.sqrt(n_in)
    if init == "torch":
        return 1 / math.sqrt(3 * n_in)
    return NORMAL_STD


class _WeightList:
    """Collects the weights of one model."""

    def __init__(self, shape: ModelShape) -> None:
        self.shape, self._init = shape, shape.init
        self.weights: list[Weight] = []
        self._n_residual = max(
            len(side.sub_layers) * shape.layers(side) for side in shape.of_family.sides
        )

    def table(self, name: str, rows: int, width: int) -> None:
        """Add a table [rows, width]: an embedding, relative biases, or an untied head."""
        std, uniform = 1.0, False
        if self._init in ("normal", "bert"):
            std = NORMAL_STD
        elif name.endswith("relative_bias"):
            std = 1 / math.sqrt(self.shape.n_embd)
        elif self._init == "xavier" or (self._init == "torch" and name == "head.weight"):
            std, uniform = matrix_std(self._init, width, rows), True
        self.weights.append(Weight(name, (rows, width), std, uniform=uniform))

    def gain(self, name: str, width: int) -> None:
        self.weights.append(Weight(f"{name}.gain", (width,), fill=1.0))

    def norm(self, name: str) -> None:
        self.gain(name, self.shape.n_embd)
        if self.shape.has_norm_bias:
            self.bias(name, self.shape.n_embd)

    def bias(self, name: str, width: int, n_in: int | None = None) -> None:
        """Add a bias; `n_in` is the number of inputs of its matrix, if it has one."""
        std = matrix_std(self._init, n_in, width) if n_in and self._init == "torch" else None
        self.weights.append(Weight(f"{name}.bias", (width,), std, uniform=True))

    def matrix(
        self,
        name: str,
        *size: int,
        bias: bool = False,
        residual: bool = False,
        fan_out: int | None = None,
    ) -> None:
        """Add a matrix [..., in, out] and its bias; `residual` matrices project back into the residual stream."""
        n_in, n_out = size[-2:]
        std = matrix_std(self._init, n_in, fan_out or n_out)
        if residual and self._init == "normal":
            std /= math.sqrt(self._n_residual)
        uniform = self._init in ("xavier", "torch")
        self.weights.append(Weight(f"{name}.weight", size, std, uniform=uniform))
        if bias:
            self.bias(name, n_out, n_in)


def declared(shape: ModelShape) -> list[Weight]:
    """Return a model's weights, in the order of the forward pass; a plugin's draws its own initial values."""
    if shape.is_plugin:
        return [
            Weight(name, size, is_embedding=table)
            for name, size, table in module_parameters(shape)
        ]
    listed = _WeightList(shape)
    listed.table("token_embedding", shape.vocab_size, shape.n_embd)
    if shape.has_source_embedding:
        listed.table("source_embedding", shape.vocab_size, shape.n_embd)
    for side in shape.of_family.sides:
        if shape.positions in POSITION_TABLES:
            component, rows, width = POSITION_TABLES[shape.positions]
            listed.table(
                f"{side.prefix}{component}", getattr(shape, rows), getattr(shape, width)
            )
        if shape.n_token_types:
            listed.table(
                f"{side.prefix}token_type_embedding", shape.n_token_types, shape.n_embd
            )
        if shape.embedding_norm:
            listed.norm(f"{side.prefix}embedding_norm")
        for layer in range(shape.layers(side)):
            _block(listed, side, f"{side.prefix}blocks.{layer}")
        if shape.final_norm:
            listed.norm(f"{side.prefix}final_norm")
    if shape.of_family.transforms:
        listed.matrix("head.transform", shape.n_embd, shape.n_embd, bias=shape.bias)
        listed.norm("head.norm")
    if not shape.tie_weights:
        listed.table("head.weight", shape.vocab_size, shape.n_embd)
    if shape.has_head_bias:
        listed.bias("head", shape.vocab_size, shape.n_embd)
    return listed.weights


def _block(listed: _WeightList, side: Side, block: str) -> None:
    shape = listed.shape
    c, queries, keys = (
        shape.n_embd,
        shape.n_head * shape.head_dim,
        shape.n_kv_head * shape.head_dim,
    )
    projections = {
        "attention": {"qkv": queries + 2 * keys},
        "cross": {"q": queries, "kv": 2 * keys},
    }
    for part in side.sub_layers[:-1]:
        name = f"{block}.{part}"
        listed.norm(f"{name}_norm")
        for projection, width in projections[part].items():
            listed.matrix(
                f"{name}.{projection}", c, width, bias=shape.has_qkv_bias, fan_out=queries
            )
        if shape.qk_norm:
            listed.gain(f"{name}.q_norm", shape.head_dim)
            listed.gain(f"{name}.k_norm", shape.head_dim)
        listed.matrix(f"{name}.out", queries, c, bias=shape.has_out_bias, residual=True)
    name = f"{block}.feed_forward"
    if not shape.shares_norm:
        listed.norm(f"{name}_norm")
    routed = shape.n_expert > 1
    lead, bias = [shape.n_expert] * routed, shape.has_ff_bias and not routed
    if routed:
        listed.matrix(f"{name}.router", c, shape.n_expert)
    parts = ["up", "gate"] if shape.is_gated else ["up"]
    for part in parts:
        listed.matrix(f"{name}.{part}", *lead, c, shape.d_ff, bias=bias)
    listed.matrix(f"{name}.down", *lead, shape.d_ff, c, bias=bias, residual=True)


def layer_of(name: str) -> str:
    """Return the layer of a weight: its block, or outside the blocks the first part of its name.

    In a plugin's model a block is a part with a number.
    """
    parts = name.split(".")
    numbers = [at for at, part in enumerate(parts) if part.isdecimal()]
    if numbers:
        return ".".join(parts[: numbers[0] + 1])
    first = int(parts[0] == "encoder")
    return ".".join(parts[: first + 1])


class Layout:
    """The order of a model's weights in a row of `row_size` columns; splits rows into weights, and joins weights."""

    def __init__(self, shape: ModelShape) -> None:
        self.shape = shape
        in_order = declared(shape)
        self.weights: Sequence[Weight] = sorted(in_order, key=lambda weight: not weight.decays)
        self.layers = list(dict.fromkeys(layer_of(weight.name) for weight in in_order))
        self.n_params = sum(weight.size for weight in self.weights)
        self.n_decayed = sum(weight.size for weight in self.weights if weight.decays)
        self.row_size = -(-self.n_params // BLOCK) * BLOCK
        self._sizes = [*(weight.size for weight in self.weights), self.row_size - self.n_params]

    def views(self, flat: Float[Tensor, "K P"]) -> dict[str, Tensor]:
        """Split rows into weights [K, *shape] by name, without copying."""
        pieces = torch.split(flat, self._sizes, dim=1)
        return {
            weight.name: piece.view(flat.shape[0], *weight.shape)
            for weight, piece in zip(self.weights, pieces, strict=False)
        }

    def gather(
        self, pieces: Sequence[Tensor], out: Float[Tensor, "K P"] | None = None
    ) -> Float[Tensor, "K P"]:
        """Return rows made from one tensor [K, *shape] per weight, in order: in new memory, or written into `out`.

        Writing gradients into a buffer is several times faster than differentiating with respect to the rows, for which
        autograd would allocate new memory in each step. The padding is set to zero.
        """
        flat = [piece.flatten(1) for piece in pieces]
        if out is None:
            padding = flat[0].new_zeros(flat[0].shape[0], self.row_size - self.n_params)
            return torch.cat([*flat, padding], dim=1)
        torch.cat(flat, dim=1, out=out[:, : self.n_params])
        out[:, self.n_params :].zero_()  # a diverged run may have left NaN here
        return out

    def layer_norms(self, row: Float[Tensor, "P"]) -> dict[str, float]:
        """Return the norm of each layer's part of a row, in the order of the forward pass.

        It is computed in float64 from one row, so that it does not depend on the stack.
        """
        starts = [0, *accumulate(self._sizes[:-1])]
        squares = np.add.reduceat(row.double().square().cpu().numpy(), starts[:-1])
        # The last sum includes the padding, which is zero.
        sums = dict.fromkeys(self.layers, 0.0)
        for weight, square in zip(self.weights, squares.tolist(), strict=True):
            sums[layer_of(weight.name)] += square
        return {name: math.sqrt(total) for name, total in sums.items()}

    def row_of(self, weights: Mapping[str, Tensor], seed: int) -> Float[Tensor, "P"]:
        """Return the row of weights by name; missing weights and NaN elements get their initial values."""
        row = self.initial_row(seed)[None]
        for name, view in self.views(row).items():
            if name in weights:
                weight = weights[name]
                view.copy_(torch.where(weight.isnan(), view, weight))
        return row[0]

    def initial_row(self, seed: int) -> Float[Tensor, "P"]:
        """Draw a run's initial weights with its own generator, always on the CPU."""
        generator = torch.Generator().manual_seed(seed)
        row = torch.zeros(1, self.row_size)
        if self.shape.is_plugin:
            module = make_module(values_of(self.shape), seed)
            for name, parameter in module.named_parameters():
                self.views(row)[name].copy_(parameter.detach())
            return row[0]
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
