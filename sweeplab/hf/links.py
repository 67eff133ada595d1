"""Where the weights of ours are in a model of theirs: which tensors of theirs hold which weight.

One mapping, read in one direction or the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sweeplab.errors import BadInput
from sweeplab.model.attention import query_factor
from sweeplab.model.layout import declared
from sweeplab.model.positions import POSITIONS
from sweeplab.model.shape import ModelShape

# Neighboring columns of a weight: how many, and what theirs are in units of ours.
Columns = Sequence[tuple[int, float]]


@dataclass(frozen=True)
class Link:
    """A weight of ours and the tensors of theirs that have its columns side by side, each times its factor.

    One that theirs lacks, such as a bias, is zeros here.
    """

    ours: str
    size: tuple[int, ...]
    theirs: tuple[str, ...]
    columns: Columns
    transposed: bool = False

    def give(self, weight: Tensor) -> dict[str, Tensor]:
        """Return the tensors of theirs by name."""
        weight = weight * self._factors
        widths = [width for width, _ in self.columns]
        parts = weight.split_with_sizes(widths, dim=-1) if len(self.theirs) > 1 else [weight]
        return {
            name: (part.T if self.transposed else part).contiguous()
            for name, part in zip(self.theirs, parts, strict=False)
        }

    def take(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return our weight out of theirs.

        Raises:
            BadInput: they are of another size.
        """
        if not self.theirs:
            return torch.zeros(self.size)
        parts = [tensors[name].float() for name in self.theirs]
        weight = torch.cat([part.T if self.transposed else part for part in parts], dim=-1)
        if weight.shape != self.size:
            sizes = ", ".join(f"{name} {list(tensors[name].shape)}" for name in self.theirs)
            raise BadInput(f"the sizes of {sizes} are not those that config.json speaks of")
        return (weight / self._factors).contiguous()

    @property
    def _factors(self) -> Tensor:
        return torch.cat([torch.full((width,), factor) for width, factor in self.columns])


@dataclass
class Links:
    """The links of one model, as its architecture makes them, and what theirs has besides (`constant`).

    The fields from `embedding` to `biased` are those of the architecture.
    """

    shape: ModelShape
    embedding: str
    head: str
    transposed: bool = True
    biased: bool = True
    found: list[Link] = field(default_factory=list)
    constant: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._sizes = {weight.name: weight.shape for weight in declared(self.shape)}

    @property
    def names(self) -> set[str]:
        """Return the names of all tensors of theirs."""
        return {name for link in self.found for name in link.theirs} | self.constant.keys()

    def table(self, ours: str, theirs: str, factor: float = 1.0) -> None:
        """Link a table of rows, such as an embedding."""
        size = self._sizes[ours]
        self.found.append(Link(ours, size, (theirs,), [(size[-1], factor)]))

    def norm(self, ours: str, theirs: str, factor: float = 1.0) -> None:
        """Link a norm's gain and bias."""
        columns = [(self.shape.n_embd, factor)]
        self._vector(f"{ours}.gain", (f"{theirs}.weight",), columns)
        if self.biased:
            self._vector(f"{ours}.bias", (f"{theirs}.bias",), columns)

    def linear(
        self, ours: str, *theirs: str, columns: Columns | None = None, biased: bool | None = None
    ) -> None:
        """Link a matrix and its bias; where theirs are several, each has the next of the columns."""
        size = self._sizes[f"{ours}.weight"]
        columns = columns or [(size[-1], 1.0)]
        names = tuple(f"{each}.weight" for each in theirs)
        self.found.append(Link(f"{ours}.weight", size, names, columns, self.transposed))
        has_bias = self.biased if biased is None else biased
        self._vector(f"{ours}.bias", tuple(f"{each}.bias" for each in theirs if has_bias), columns)

    def bias(self, ours: str, *theirs: str) -> None:
        """Link a bias over the vocabulary; theirs are copies of it."""
        for name in theirs:
            self._vector(ours, (name,), [(self.shape.vocab_size, 1.0)])

    def _vector(self, ours: str, theirs: tuple[str, ...], columns: Columns) -> None:
        """Link a vector; where ours has none, theirs is zeros."""
        if ours in self._sizes:
            self.found.append(Link(ours, self._sizes[ours], theirs, columns))
            return
        widths = [width for width, _ in columns] if len(theirs) > 1 else [sum(width for width, _ in columns)]
        self.constant |= {name: torch.zeros(width) for name, width in zip(theirs, widths, strict=False)}

    def heads(self, factor: float = 1.0) -> Columns:
        """Return the columns of a joined query, key and value; `factor` is what else the queries take in."""
        shape = self.shape
        keys = (shape.n_kv_head * shape.head_dim, 1.0)
        return [(shape.n_head * shape.head_dim, query_factor(shape) * factor), keys, keys]

    def embeddings(self, last_norm: tuple[str, str], scale: float = 1.0) -> None:
        """Link token embeddings, the norm before the head, and the head where it has weights of its own.

        Theirs have no factors, but that logits are multiplied by `scale`: ours go into the embeddings, and from
        there out of the last norm again where the head has the embeddings' weights.
        """
        shape = self.shape
        into = shape.n_embd**0.5 if shape.scale_embedding else 1.0
        out = (shape.n_embd**-0.5 if shape.tie_scale else 1.0) / shape.width_ratio / scale
        self.table("token_embedding", self.embedding, into)
        self.norm(*last_norm, factor=out / into if shape.tie_weights else 1.0)
        if not shape.tie_weights:
            self.table("head.weight", self.head, out)

    def places(self, theirs: str) -> None:
        """Link learned positions; other ones that are added to the embeddings are written out as a table."""
        size = (self.shape.block_size, self.shape.n_embd)
        if self.shape.positions == "learned":
            self.table("position_embedding", theirs)
            return
        add = POSITIONS[self.shape.positions].add
        table = add({}, self.shape, "", range(size[0]), torch.zeros(1))[0, 0] if add else torch.zeros(size)
        self.constant[theirs] = table
