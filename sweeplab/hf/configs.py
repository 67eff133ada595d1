"""What a config.json of theirs says in hyperparameters of ours, and which of ours none of their classes can express."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sweeplab.errors import BadInput, Problem
from sweeplab.hyperparameters import AUTO
from sweeplab.model.shape import Requirement, requirement

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
GATES = {"silu": "swiglu", "swish": "swiglu"} | {
    theirs: ours.replace("gelu", "geglu") for theirs, ours in PLAIN.items() if "gelu" in ours
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
    only("attention", "full", "for every position attends to all that it may see"),
    only("n_expert", "1", "for it has no experts"),
    only("qk_norm", "false", "for queries and keys are not normed"),
    only("parallel_block", "false", "for attention comes before feed-forward"),
    requirement(
        "head_bias false, for its head has none",
        "head_bias",
        lambda shape: shape.of_family.transforms or not shape.has_head_bias,
    ),
)
# What several of them have.
PLACES = only("positions", "learned sinusoidal none", "for it adds a table of positions to the embeddings")
LAYERNORM, RMSNORM = (only("norm", name, "for it has no other") for name in ("layernorm", "rmsnorm"))
PRE_NORM = only("norm_position", "pre", "for norms come before its sub-layers")
NO_GATE = only("activation", " ".join(dict.fromkeys(PLAIN.values())), "for its feed-forward has no gate")
NO_TYPES = only("n_token_types", "0", "for all tokens are of one type")
NO_EMBEDDING_NORM = only("embedding_norm", "false", "for the first norm is a block's")
ALL_KEYS = requirement(
    "n_kv_head as n_head, for every head has keys of its own",
    "n_kv_head",
    lambda shape: shape.n_kv_head == shape.n_head,
)
HEADS_FILL = requirement(
    "head_dim n_embd / n_head, for its heads share out n_embd",
    "head_dim",
    lambda shape: shape.n_head * shape.head_dim == shape.n_embd,
)
