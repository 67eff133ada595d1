"""What every architecture says of itself: what it can express, its config.json, and where its weights are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sweeplab.errors import BadInput, Problem
from sweeplab.hf.architectures.links import Links
from sweeplab.hyperparameters import AUTO, defaults
from sweeplab.model.shape import ModelShape, Requirement, requirement, settled

Values = Mapping[str, Any]

# Their names of activations; where several mean one of ours, the first is written.
PLAIN = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "relu": "relu",
    "relu2": "relu2",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
GATES = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu": "geglu",
    "gelu_python": "geglu",
    "gelu_new": "geglu_tanh",
    "gelu_pytorch_tanh": "geglu_tanh",
}


@dataclass(frozen=True)
class Field:
    """A key of config.json and the hyperparameter that it says; `default` is what theirs takes without it.

    `words` are their names of its values. A null there is what is `auto` here.
    """

    key: str
    name: str
    default: Any = None
    words: Mapping[str, str] | None = None

    def write(self, values: Values) -> Any:
        """Return their value of ours."""
        value = values[self.name]
        return next(theirs for theirs, ours in self.words.items() if ours == value) if self.words else value

    def read(self, config: Values) -> Any:
        """Return our value of theirs.

        Raises:
            BadInput: there is none.
        """
        value = config.get(self.key, self.default)
        if self.words is None:
            return AUTO if value is None else value
        if value not in self.words:
            what = f"config.json has {self.key} {value!r}, which no {self.name} here is"
            raise BadInput(Problem(what, " | ".join(self.words)))
        return self.words[value]


def only(name: str, allowed: str, why: str) -> Requirement:
    """Return the requirement that a hyperparameter has one of some values, separated by blanks."""
    values = allowed.split()
    text = f"{name} {' | '.join(values)}, {why}"
    return requirement(text, name, lambda shape: str(getattr(shape, name)).lower() in values)


# What none of the classes has.
COMMON = (
    only("attention", "full", "for every position attends to all in sight"),
    only("n_expert", "1", "for it has no experts"),
    only("qk_norm", "false", "for queries and keys are not normed"),
    only("parallel_block", "false", "for attention comes before feed-forward"),
    requirement("head_bias false, for its head has none", "head_bias", lambda shape: (
        shape.of_family.transforms or not shape.has_head_bias
    )),
)  # fmt: skip
NO_TYPES = only("n_token_types", "0", "for all tokens are of one type")
NO_EMBEDDING_NORM = only("embedding_norm", "false", "for the first norm is a block's")
ALL_KEYS = requirement(
    "n_kv_head as n_head, for every head has keys of its own",
    "n_kv_head",
    lambda shape: shape.n_kv_head == shape.n_head,
)
HEADS_DIVIDE = requirement(
    "n_head that divides n_embd, for it asks for that",
    "n_head",
    lambda shape: shape.n_embd % shape.n_head == 0,
)
HEADS_FILL = requirement(
    "head_dim n_embd / n_head, for its heads share out n_embd",
    "head_dim",
    lambda shape: shape.n_head * shape.head_dim == shape.n_embd,
)


def _nothing(_: Any) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Architecture:
    """A class of `transformers`: what it expresses, and how that is written.

    embedding, head: the tensors of the token embeddings, and of a head that is not tied to them.
    fixed: the hyperparameters that its runs have when they are read. constants: what config.json has to say.
    links(shape, config): where the weights of a model of this config are.
    told(shape): what of config.json follows from several hyperparameters. heard(config): the way back.
    beside: tensors (regular expressions) that may stand in a file and belong to no logits.
    """

    model_type: str
    class_name: str
    embedding: str
    head: str
    fixed: Values
    fields: Sequence[Field]
    requires: Sequence[Requirement]
    links: Callable[[ModelShape, Values], Links]
    told: Callable[[ModelShape], dict[str, Any]] = _nothing
    heard: Callable[[Values], dict[str, Any]] = _nothing
    prefix: str = ""
    constants: Values = field(default_factory=dict)
    beside: Sequence[str] = ()

    def unmet(self, shape: ModelShape) -> list[Requirement]:
        """Return what it cannot express of a model."""
        return [each for each in (*self.requires, *COMMON) if not each.holds(shape)]

    def config(self, values: Values) -> dict[str, Any]:
        """Return config.json of a run that it can express, by all of its effective hyperparameters."""
        shape = ModelShape.named(values)
        known = settled({**defaults(), **values, **vars(shape)})
        written = {each.key: each.write(known) for each in self.fields}
        return {
            "model_type": self.model_type,
            "architectures": [self.class_name],
            "dtype": "float32",
            **written,
            **self.constants,
            **self.told(shape),
        }

    def values(self, config: Values) -> dict[str, Any]:
        """Return the hyperparameters that a config.json says.

        Raises:
            BadInput: it says what no run here has.
        """
        for key, wanted in self.constants.items():
            if (value := config.get(key, wanted)) != wanted:
                raise BadInput(
                    Problem(f"config.json has {key} {value!r}, which no run here has", str(wanted))
                )
        return {**self.fixed, **{each.name: each.read(config) for each in self.fields}, **self.heard(config)}
