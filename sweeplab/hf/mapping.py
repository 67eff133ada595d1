"""The mapping between models of `transformers` and ours: fields of config.json, tensors, and unsupported features.

Each mapping is written once and used in both directions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sweeplab.errors import BadInput, Problem
from sweeplab.hyperparameters import AUTO, Hyperparameters
from sweeplab.model.attention import added_positions, query_factor
from sweeplab.model.layout import declared
from sweeplab.model.shape import ModelShape, Requirement, settled

Values = Mapping[str, Any]

# Names of activations in `transformers`, and ours; if several mean the same, the first is written.
PLAIN = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "relu": "relu",
    "relu2": "relu2",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
GATES = {"silu": "swiglu", "swish": "swiglu"} | {
    theirs: ours.replace("gelu", "geglu") for theirs, ours in PLAIN.items() if "gelu" in ours
}


@dataclass(frozen=True)
class Field:
    """A key of config.json and its hyperparameter; `default` is that of `transformers`, and a size has none.

    `words` maps their names of values to ours. If it is `optional`, a null there is `auto` here. A key that stands for
    several hyperparameters is written from the last of them.
    """

    key: str
    name: str
    default: Any = None
    words: Mapping[str, str] | None = None
    optional: bool = False

    def write(self, values: Values) -> Any:
        """Return the value for config.json."""
        value = values[self.name]
        if self.words:
            return next(theirs for theirs, ours in self.words.items() if ours == value)
        return value

    def read(self, config: Values) -> Any:
        """Return our value for that of config.json.

        Raises:
            BadInput: we have no such value, or the key is missing.
        """
        value = config.get(self.key, self.default)
        if value is None and not self.optional:
            raise BadInput(f"config.json lacks {self.key}")
        if self.words is None:
            if value is None:
                return AUTO
            return value
        if value not in self.words:
            what = (
                f"config.json has {self.key} {value!r}, which is not supported as {self.name}"
            )
            raise BadInput(Problem(what, " | ".join(self.words)))
        return self.words[value]


# The sizes that several classes name alike.
SIZES = (
    Field("vocab_size", "vocab_size"),
    Field("max_position_embeddings", "block_size"),
    Field("hidden_size", "n_embd"),
    Field("num_hidden_layers", "n_layer"),
    Field("num_attention_heads", "n_head"),
    Field("intermediate_size", "d_ff"),
)


def only(name: str, allowed: str, why: str) -> Requirement:
    """Return the requirement that a hyperparameter has one of some values, separated by blanks."""
    values = allowed.split()
    text = f"{name} {' | '.join(values)}, {why}"
    return Requirement(text, name, lambda shape: str(getattr(shape, name)).lower() in values)


# The requirements of all classes, but for those that `allow` their hyperparameters.
COMMON = (
    only("model", "transformer", "because it has no other parts"),
    only("n_expert", "1", "because it has no experts"),
    Requirement(
        "full_attention_interval null, because all its blocks have the same kind of attention",
        "full_attention_interval",
        lambda shape: shape.attention == "full" or shape.full_attention_interval is None,
    ),
    only("qk_norm", "false", "because it does not normalize queries and keys"),
    only("parallel_block", "false", "because attention comes before feed-forward"),
    Requirement(
        "rotary_share 1, because it rotates whole heads",
        "rotary_share",
        lambda shape: shape.positions != "rotary" or shape.rotary_columns == shape.head_dim,
    ),
    Requirement(
        "final_norm auto, because it has a final norm only with norms before the sub-layers",
        "final_norm",
        lambda shape: shape.final_norm == (shape.norm_position == "pre"),
    ),
    Requirement(
        "head_bias false, because its output head has no bias",
        "head_bias",
        lambda shape: shape.of_family.transforms or not shape.has_head_bias,
    ),
)
# The requirements of several classes.
PLACES = only(
    "positions", "learned sinusoidal none", "because it adds a table of positions to embeddings"
)
LAYERNORM, RMSNORM = (
    only("norm", name, "because it has no other norm") for name in ("layernorm", "rmsnorm")
)
PRE_NORM = only("norm_position", "pre", "because its norms precede the sub-layers")
NO_GATE = only(
    "activation",
    " ".join(dict.fromkeys(PLAIN.values())),
    "because its feed-forward is not gated",
)
NO_TYPES = only("n_token_types", "0", "because it has no token types")
POST_NORM = only("norm_position", "post", "because its norms follow the sub-layers")
HAS_EMBEDDING_NORM = only("embedding_norm", "true", "because a norm follows its embeddings")
SHARED = only("share_embeddings", "true", "because source and target share their embeddings")
NO_EMBEDDING_NORM = only("embedding_norm", "false", "because no norm follows its embeddings")
ALL_KEYS = Requirement(
    "n_kv_head equal to n_head, because every head has its own keys",
    "n_kv_head",
    lambda shape: shape.n_kv_head == shape.n_head,
)
HEADS_FILL = Requirement(
    "head_dim equal to n_embd / n_head, because its heads divide n_embd",
    "head_dim",
    lambda shape: shape.n_head * shape.head_dim == shape.n_embd,
)


# ------------------------------------------------------------------ weights

# Groups of adjacent columns of a weight: their number, and the factor from our values to theirs.
Columns = Sequence[tuple[int, float]]


@dataclass(frozen=True)
class Link:
    """One of our weights and the `transformers` tensors that together hold its columns, each times its factor.

    A weight without such a tensor, such as a bias, is zeros. Their tables begin with `offset` other rows. A weight of
    `experts` is one tensor for each. A vector that `is_row` is a matrix of one row. With `n_head`, theirs has the
    query, key and value of each head side by side.
    """

    ours: str
    size: tuple[int, ...]
    theirs: tuple[str, ...]
    columns: Columns
    transposed: bool = False
    offset: int = 0
    experts: bool = False
    is_row: bool = False
    n_head: int = 0

    def give(self, weight: Tensor) -> dict[str, Tensor]:
        """Return the tensors for `transformers`, by name."""
        weight = weight * self._factors
        if self.n_head:
            weight = _swapped(weight, 3, self.n_head)
        if self.offset:
            weight = torch.cat([weight.new_zeros(self.offset, weight.shape[-1]), weight])
        widths = [width for width, _ in self.columns]
        parts: Sequence[Tensor] = [weight]
        if self.is_row:
            parts = [weight[None]]
        elif self.experts:
            parts = weight.unbind()
        elif len(self.theirs) > 1:
            parts = weight.split_with_sizes(widths, dim=-1)
        return {
            name: (part.mT if self.transposed else part).contiguous()
            for name, part in zip(self.theirs, parts, strict=False)
        }

    def take(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return our weight from their tensors.

        Raises:
            BadInput: the tensors have another size.
        """
        if not self.theirs:
            return torch.zeros(self.size)
        parts = [tensors[name].float() for name in self.theirs]
        if self.is_row:
            parts = [part.squeeze(0) for part in parts]
        if self.offset:
            parts = [part[self.offset :] for part in parts]
        if self.transposed:
            parts = [part.mT if part.dim() > 1 else part for part in parts]
        if self.experts and len({part.shape for part in parts}) == 1:
            parts = [torch.stack(parts)]
        fit = {(part.dim(), *part.shape[:-1]) for part in parts} == {
            (len(self.size), *self.size[:-1])
        }
        if not fit or sum(part.shape[-1] for part in parts) != self.size[-1]:
            sizes = ", ".join(f"{name} {list(tensors[name].shape)}" for name in self.theirs)
            raise BadInput(f"the sizes of {sizes} do not match config.json")
        weight = torch.cat(parts, dim=-1)
        if self.n_head:
            weight = _swapped(weight, self.n_head, 3)
        return (weight / self._factors).contiguous()

    @property
    def _factors(self) -> Tensor:
        return torch.cat([torch.full((width,), factor) for width, factor in self.columns])


def _swapped(weight: Tensor, outer: int, inner: int) -> Tensor:
    """Return a weight whose columns lie in inner groups of outer ones, from outer groups of inner ones."""
    groups = weight.view(*weight.shape[:-1], outer, inner, -1)
    return groups.transpose(-3, -2).reshape(weight.shape)


@dataclass
class Links:
    """The links of one model of an architecture, and constant tensors that only `transformers` has (`constant`)."""

    shape: ModelShape
    to: Architecture
    links: list[Link] = field(default_factory=list)
    constant: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._sizes = {weight.name: weight.shape for weight in declared(self.shape)}

    @property
    def names(self) -> set[str]:
        """Return the names of all `transformers` tensors."""
        return {name for link in self.links for name in link.theirs} | self.constant.keys()

    def table(self, ours: str, theirs: str, factor: float = 1.0, offset: int = 0) -> None:
        """Link a table of rows, such as an embedding; theirs begins with `offset` other rows."""
        size = self._sizes[ours]
        self.links.append(Link(ours, size, (theirs,), [(size[-1], factor)], offset=offset))

    def norm(self, ours: str, theirs: str, factor: float = 1.0) -> None:
        """Link a norm's gain and bias."""
        columns = [(self.shape.n_embd, factor)]
        self._vector(f"{ours}.gain", (f"{theirs}.weight",), columns)
        if self.to.biased:
            self._vector(f"{ours}.bias", (f"{theirs}.bias",), columns)

    def linear(
        self,
        ours: str,
        *theirs: str,
        columns: Columns | None = None,
        biased: bool | None = None,
        by_head: bool = False,
        experts: bool = False,
    ) -> None:
        """Link a matrix and its bias.

        Several tensors take consecutive groups of columns, or an expert's matrix each; one may have them by head.
        """
        size = self._sizes[f"{ours}.weight"]
        columns = columns or [(size[-1], 1.0)]
        names = tuple(f"{each}.weight" for each in theirs)
        n_head = self.shape.n_head if by_head else 0
        link = Link(
            f"{ours}.weight",
            size,
            names,
            columns,
            self.to.transposed,
            experts=experts,
            n_head=n_head,
        )
        self.links.append(link)
        has_bias = self.to.biased if biased is None else biased
        self._vector(
            f"{ours}.bias",
            tuple(f"{each}.bias" for each in theirs if has_bias),
            columns,
            n_head,
        )

    def bias(self, ours: str, *theirs: str, is_row: bool = False) -> None:
        """Link a bias over the vocabulary to its copies, or to a matrix of one row."""
        for name in theirs:
            self._vector(ours, (name,), [(self.shape.vocab_size, 1.0)], is_row=is_row)

    def head_norms(self, ours: str, theirs: str) -> None:
        """Link the gains of the norms of queries and keys; the queries' gain includes the factor of the scores."""
        for part, factor in (("q", query_factor(self.shape)), ("k", 1.0)):
            columns = [(self.shape.head_dim, factor)]
            self._vector(f"{ours}.{part}_norm.gain", (f"{theirs}.{part}_norm.weight",), columns)

    def _vector(
        self,
        ours: str,
        theirs: tuple[str, ...],
        columns: Columns,
        n_head: int = 0,
        is_row: bool = False,
    ) -> None:
        """Link a vector; if we have none, write zeros."""
        if ours in self._sizes:
            self.links.append(
                Link(ours, self._sizes[ours], theirs, columns, n_head=n_head, is_row=is_row)
            )
            return
        widths = [width for width, _ in columns]
        if len(theirs) == 1:
            widths = [sum(widths)]
        self.constant |= {
            name: torch.zeros(width) for name, width in zip(theirs, widths, strict=False)
        }

    def heads(self, factor: float = 1.0) -> Columns:
        """Return the columns of a joined query, key and value; `factor` is a further factor of the queries.

        If queries are normalized, their norm's gain has their factor.
        """
        shape = self.shape
        if not shape.qk_norm:
            factor *= query_factor(shape)
        keys = (shape.n_kv_head * shape.head_dim, 1.0)
        return [(shape.n_head * shape.head_dim, factor), keys, keys]

    def embeddings(self, last_norm: tuple[str, str], scale: float = 1.0) -> None:
        """Link token embeddings, the norm before the output head, and an untied head.

        `transformers` has no factors except that logits are multiplied by `scale`. Our factors are multiplied into the
        embeddings, and divided out in the last norm if the head has the embeddings' weights.
        """
        shape = self.shape
        into = shape.n_embd ** (0.5 * shape.scale_embedding)
        out = shape.n_embd ** (-0.5 * shape.tie_scale) / shape.width_ratio / scale
        self.table("token_embedding", self.to.embedding, into)
        self.norm(*last_norm, factor=out / into if shape.tie_weights else 1.0)
        if not shape.tie_weights:
            self.table("head.weight", self.to.head, out)

    def places(self, theirs: str, offset: int = 0, prefix: str = "") -> None:
        """Link learned positions; other positions added to the embeddings are written as a constant table.

        Their table has `offset` rows before that of the first position; `prefix` is the side's.
        """
        size = (self.shape.block_size, self.shape.n_embd)
        if self.shape.positions == "learned":
            self.table(f"{prefix}position_embedding", theirs, offset=offset)
            return
        added = added_positions({}, self.shape, "", range(size[0]), torch.zeros(1))
        table = torch.zeros(size) if added is None else added[0, 0]
        self.constant[theirs] = F.pad(table, (0, 0, offset, 0))


# ------------------------------------------------------------------ classes

# The key of config.json for our own hyperparameters that determine the layout of sequences.
LAYOUT_KEY = "sweeplab"
LAYOUT = ("objective", "mask_share", "span_length", "n_labels")


def nothing(*_: Any) -> dict[str, Any]:
    """Return no keys."""
    return {}


@dataclass(frozen=True)
class Architecture:
    """A class of `transformers`: the models that it can express, and how they are written.

    embedding, head: the tensors of the token embeddings, and of an untied output head.
    fixed: hyperparameters that all imported runs have. constants: required values in config.json.
    transposed: whether its matrices are [out, in]. biased: whether its linear layers and norms have biases.
    link(links, config): add all weights of a model with this config.
    computed(shape, config): keys computed from several hyperparameters, and from the special tokens in the config.
    inferred(config): the inverse.
    beside: regular expressions of tensors that may be in a file but do not affect the logits.
    attention: the kinds of attention that it has. allow: hyperparameters that other classes restrict.
    head_bias: the tensor of the output head's bias, which a file may lack.
    """

    model_type: str
    class_name: str
    embedding: str
    fixed: Values
    fields: Sequence[Field]
    requires: Sequence[Requirement]
    link: Callable[[Links, Values], None]
    head: str = "lm_head.weight"
    transposed: bool = True
    biased: bool = True
    computed: Callable[[ModelShape, Values], dict[str, Any]] = nothing
    inferred: Callable[[Values], dict[str, Any]] = nothing
    constants: Values = field(default_factory=dict)
    beside: Sequence[str] = ()
    attention: str = "full"
    allow: Sequence[str] = ()
    head_bias: str = ""

    def links(self, shape: ModelShape, config: Values) -> Links:
        """Return the links between the weights and tensors of a model with this config."""
        links = Links(shape, self)
        self.link(links, config)
        return links

    def unmet(self, shape: ModelShape) -> list[Requirement]:
        """Return the requirements of the class that a model of its family does not meet."""
        seen = only(
            "attention", self.attention, "because every position attends to all visible ones"
        )
        common = (each for each in COMMON if each.names.split()[0] not in self.allow)
        return [
            condition
            for condition in (*self.requires, seen, *common)
            if not condition.holds(shape)
        ]

    def config(self, values: Hyperparameters, tokens: Values) -> dict[str, Any]:
        """Return config.json for a run that the class can express: its effective hyperparameters, special tokens."""
        shape = ModelShape.of(values)
        known = settled({**values.as_dict(), **vars(shape)})
        written = {each.key: each.write(known) for each in self.fields}
        return {
            "model_type": self.model_type,
            "architectures": [self.class_name],
            "dtype": "float32",
            **written,
            **self.constants,
            **self.computed(shape, tokens),
            **tokens,
        }

    def values(self, config: Values) -> dict[str, Any]:
        """Return the hyperparameters of a config.json.

        Raises:
            BadInput: a value is not supported.
        """
        for key, wanted in self.constants.items():
            value = config.get(key, wanted)
            if value != wanted:
                what = f"config.json has {key} {value!r}, which is not supported"
                raise BadInput(Problem(what, str(wanted)))
        return {
            **self.fixed,
            **{each.name: each.read(config) for each in self.fields},
            **self.inferred(config),
        }
