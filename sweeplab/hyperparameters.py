"""The hyperparameter table: a frozen dataclass whose fields are its rows; names, types and defaults live only here.

An instance holds the effective values of one run. Imports only the standard library, so that a command
that only prints the table starts in milliseconds.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Literal, Self, TypeGuard, cast

Kind = Literal["int", "float", "bool", "str", "floats"]

AUTO = "auto"
TRANSFORMER = "transformer"  # the value of `model` that is no plugin's
TOKENS_PER_EVAL_ITER = 1024
# In the order of the table.
CATEGORIES = (
    "data",
    "model",
    "training",
    "optimizer",
    "scheduler",
    "precision",
    "validation",
    "logging",
    "generation",
)


@dataclass(frozen=True)
class Hyperparameter:
    """One row of the table.

    `suggested` is written as in a study file: `{"min":…, "max":…, "log": True}` or a list of choices.
    `low` and `high` are inclusive bounds, `above` and `below` exclusive ones. `removed` choices are those of older
    versions: they can be read and shown, but no run can be trained with them. An `optional` row accepts null, which
    switches it off; with `off` null is also its default. An `automatic` row accepts "auto", which the data, other rows
    or the machine replace by a value; "auto" is its default, whatever its sample value. A `shape` row determines
    tensor shapes or the compiled program: runs that differ in it cannot share a stack. A row `of_model` belongs to the
    model of that name that a plugin registers.
    """

    name: str
    category: str
    kind: Kind
    sample: Any
    meaning: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    optional: bool = False
    off: bool = False
    automatic: bool = False
    shape: bool = False
    of_model: str = ""
    suggested: Mapping[str, Any] | tuple[Any, ...] | None = None

    @property
    def default(self) -> Any:
        """Return the value that a run has where a study does not set the row."""
        if self.automatic:
            return AUTO
        if self.off:
            return None
        return self.sample

    @property
    def allowed(self) -> str:
        """Describe the values that the row accepts."""
        words = {
            "int": "a whole number",
            "float": "a number",
            "bool": "true or false",
            "str": "a string",
        }
        text = words.get(self.kind, "two numbers, such as [0.9, 0.95]")
        if self.choices:
            text = " | ".join(self.choices)
        bounds = {
            "at least": self.low,
            "above": self.above,
            "at most": self.high,
            "below": self.below,
        }
        for word, bound in bounds.items():
            if bound is not None:
                text += f", {word} {bound:,.12g}"
        if self.automatic:
            text += ", or auto"
        if self.optional:
            text += ", or null to switch it off"
        return text

    def check(self, value: Any) -> Any:
        """Return `value` as the row's own type.

        Raises:
            ValueError: the value has another type or is out of bounds; the message says what is allowed.
        """
        if (value is None and self.optional) or (self.automatic and value == AUTO):
            return value
        wrong = ValueError(f"{self.name} is {value!r}; allowed: {self.allowed}")
        if self.kind == "floats":
            if not isinstance(value, list | tuple) or len(value) != len(self.sample):
                raise wrong
            return tuple(self._number(each, wrong) for each in value)
        if self.kind in ("bool", "str"):
            is_typed = isinstance(value, bool if self.kind == "bool" else str)
            if not is_typed or (self.choices and value not in (*self.choices, *self.removed)):
                raise wrong
            return value
        return self._number(value, wrong)

    def _number(self, value: Any, wrong: ValueError) -> float | int:
        if not is_number(value):
            raise wrong
        # A whole number in YAML may be larger than any float.
        if not -sys.float_info.max <= value <= sys.float_info.max:
            raise wrong
        if self.kind == "int" and value % 1:
            raise wrong
        outside = (
            (self.low is not None and value < self.low)
            or (self.high is not None and value > self.high)
            or (self.above is not None and value <= self.above)
            or (self.below is not None and value >= self.below)
        )
        if outside:
            raise wrong
        if self.kind == "int":
            return int(value)
        return float(value)


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


_NUMBER = re.compile(
    r"[-+]?(\d{1,3}(_\d{3})+|\.\d+|\d+(\.\d*)?)(e[-+]?\d+)?|[-+]?\.inf|\.nan|0o[0-7]+|0x[\da-f]+",
    re.ASCII | re.IGNORECASE,
)


def is_written_number(text: str) -> bool:
    """Return whether a text is a number of YAML 1.2, or a whole one in groups of three digits: 30_000."""
    return bool(_NUMBER.fullmatch(text))


def row(category: str, sample: Any, meaning: str, **rest: Any) -> Any:
    """Declare a row of the table as a dataclass field, which gives the row its name and type."""
    declared = Hyperparameter("", category, "str", sample, meaning, **rest)
    return field(default=declared.default, metadata={"row": declared})


# A row of each category.
_data = partial(row, "data")
_model = partial(row, "model")
_training = partial(row, "training")
_optimizer = partial(row, "optimizer")
_scheduler = partial(row, "scheduler")
_precision = partial(row, "precision")
_validation = partial(row, "validation")
_logging = partial(row, "logging")
_generation = partial(row, "generation")


@dataclass(frozen=True, kw_only=True)
class ModelHyperparameters:
    """The hyperparameters that determine a model's sizes and parts; all are `shape` rows and part of a run's values."""

    # fmt: off
    # data
    block_size: int = _data(192, "Context length", unit="tokens", low=1, high=2**20, suggested=(64, 128, 192, 256))
    vocab_size: int = _data(AUTO, "Vocabulary size; auto: the tokenizer's tokens and the objective's special tokens; may be set larger",
        unit="tokens", low=2, high=2**20, automatic=True)

    # model
    family: str = _model("decoder", "Transformer family: decoder predicts the next token, encoder masked tokens, encoder_decoder one text from another",
        choices=("decoder", "encoder", "encoder_decoder"))
    model: str = _model("transformer", "The model: sweeplab's transformer, or a module that a plugin registers", choices=("transformer",))
    n_embd: int = _model(192, "Width of the residual stream", low=1, high=2**16, suggested=(64, 96, 128, 192, 256))
    n_head: int = _model(6, "Attention heads per layer; must divide n_embd unless head_dim is given",
        low=1, high=2**10, suggested=(1, 2, 4, 8, 16))
    n_layer: int = _model(3, "Number of transformer blocks", low=1, high=2**10, suggested={"min": 1, "max": 8})
    n_encoder_layer: int = _model(3, "Blocks in the encoder of an encoder_decoder; auto: n_layer",
        low=1, high=2**10, automatic=True)
    n_decoder_layer: int = _model(3, "Blocks in the decoder of an encoder_decoder; auto: n_layer",
        low=1, high=2**10, automatic=True)
    head_dim: int = _model(32, "Width of one attention head; auto: n_embd // n_head", low=1, high=2**12, automatic=True)
    n_kv_head: int = _model(6, "Key and value heads, each shared by n_head / n_kv_head query heads (grouped-query attention); auto: n_head",
        low=1, high=2**10, automatic=True)
    d_ff: int = _model(768, "Width of the feed-forward layers; auto: 4 n_embd, or 8/3 n_embd for a gated activation",
        low=1, high=2**18, automatic=True)
    tie_weights: bool = _model(True, "The output head uses the token embedding's weights", suggested=(True, False))
    tie_scale: bool = _model(False, "Multiply the logits of a tied output head by n_embd^-0.5")
    share_embeddings: bool = _model(True, "Source and target of an encoder_decoder share their token embeddings")
    scale_embedding: bool = _model(False, "Multiply token embeddings by the square root of n_embd")
    n_token_types: int = _model(0, "Number of token types, each with its own embedding; BERT has two", low=0, high=2**10)
    embedding_norm: bool = _model(False, "Normalize the embeddings")
    activation: str = _model("gelu", "Activation of the feed-forward layers",
        choices=("gelu", "relu", "relu2", "swiglu", "geglu", "gelu_tanh", "geglu_tanh"), suggested=("gelu", "relu"))
    norm: str = _model("layernorm", "Normalization of each sub-layer", choices=("layernorm", "rmsnorm"))
    norm_eps: float = _model(1e-5, "Epsilon that a norm adds to the mean square before taking the square root", above=0.0)
    norm_position: str = _model("pre", "Norm before each sub-layer (pre), or after its residual is added (post)", choices=("pre", "post"))
    final_norm: bool = _model(True, "A norm after the last block; auto: true where norm_position is pre", automatic=True)
    parallel_block: bool = _model(False, "Attention and feed-forward read the same residual stream, and their results are added")
    shared_norm: bool = _model(True, "The sub-layers of a parallel_block read one norm; false: each reads its own")
    positions: str = _model("learned", "Positional encoding",
        choices=("learned", "sinusoidal", "relative", "rotary", "alibi", "none"))
    rotary_base: float = _model(10_000.0, "Base of rotary positions: their longest wavelength divided by 2 pi", above=1.0)
    rotary_share: float = _model(1.0, "Share of each head's columns, from the first on, that rotary positions rotate", above=0.0, high=1.0)
    relative_buckets: int = _model(32, "Number of distance buckets of relative positions; even", low=4, high=2**12)
    relative_max_distance: int = _model(128, "Distance from which on all relative positions share one bucket",
        unit="tokens", low=2, high=2**20)
    attention: str = _model("full", "Kind of attention", choices=("full", "local"), removed=("strided", "linear"))
    full_attention_interval: int | None = _model(6, "Every so many blocks one has full attention, and the others have the kind `attention`; null: none has",
        unit="blocks", low=1, high=2**10, off=True, suggested=(2, 4, 6))
    attention_window: int = _model(64, "Local attention sees positions that are less than this far away", unit="tokens", low=1, high=2**20)
    attention_scale: str = _model("head_dim", "Attention scores are divided by the square root of this width", choices=("head_dim", "n_embd"))
    qk_norm: bool = _model(False, "Apply an RMS norm to each head's queries and keys")
    n_expert: int = _model(1, "Experts per block: feed-forward layers from which a router chooses", low=1, high=2**10)
    n_expert_active: int = _model(1, "Experts chosen for each token", low=1, high=2**10)
    bias: bool = _model(True, "Biases in the linear layers and the norms", suggested=(True, False))
    qkv_bias: bool = _model(True, "Biases in the query, key and value projections; has an effect only where bias is true")
    out_bias: bool = _model(True, "A bias in attention's output projection; has an effect only where bias is true")
    ff_bias: bool = _model(True, "Biases in the feed-forward layers; has an effect only where bias is true")
    head_bias: bool = _model(False, "A bias in the output head; an encoder's head follows bias")
    init: str = _model("normal", "Initial weights: normal (GPT-2's), bert, t5, xavier (Glorot's, the original transformer's), or torch (its Linear's and Embedding's)",
        choices=("normal", "bert", "t5", "xavier", "torch"))

    # optimizer
    parametrization: str = _optimizer("standard", "How initial weights and learning rates scale with the width; mup requires adamw or lion",
        choices=("standard", "mup"), suggested=("standard", "mup"))
    mup_base_width: int = _optimizer(64, "The n_embd at which mup's factors are 1", low=1, high=2**16)
    mup_base_head_dim: int = _optimizer(16, "The head_dim at which mup scales attention as standard; auto: a given head_dim, else mup_base_width // n_head",
        low=1, high=2**12, automatic=True)
    # fmt: on


@dataclass(frozen=True, kw_only=True, eq=False)
class Hyperparameters(ModelHyperparameters):
    """The effective values of one run: every row of the table, with the type of its field.

    No value of an instance is "auto", except device, dtype and compile before a machine is known.
    """

    # fmt: off
    # data
    data_limit: int | None = _data(100_000, "Tokens of the training split that runs learn from, spread evenly over it; null: all of it",
        unit="tokens", low=2, off=True, shape=True)
    objective: str = _data("next_token", "Training objective; auto: the one that fits corpus and family",
        choices=("next_token", "masked", "span", "pairs", "classification"), shape=True, automatic=True)
    n_labels: int | None = _data(2, "Labels of `classification`; null: as many as the data have", low=2, high=1000, off=True, shape=True)
    mask_share: float = _data(0.15, "Share of tokens that `masked` and `span` hide",
        above=0.0, below=1.0, shape=True)
    span_length: float = _data(3.0, "Mean length of a span that `span` hides",
        unit="tokens", low=1.0, shape=True)

    # model
    dropout: float = _model(0.2, "Share of embeddings, attention weights and residuals dropped in training",
        low=0.0, below=1.0, suggested={"min": 0.0, "max": 0.4, "step": 0.05})
    embedding_dropout: float = _model(0.2, "Share of the embeddings dropped in training; auto: dropout",
        low=0.0, below=1.0, automatic=True)
    attention_dropout: float = _model(0.2, "Share of attention weights dropped in training; auto: dropout",
        low=0.0, below=1.0, automatic=True)
    residual_dropout: float = _model(0.2, "Share of each sub-layer's output dropped in training; auto: dropout",
        low=0.0, below=1.0, automatic=True)
    label_smoothing: float = _model(0.0, "Label smoothing: share of a target's probability spread over all tokens, in training only", low=0.0, below=1.0)
    router_balance: float = _model(0.01, "Weight of the load-balancing loss of the routers", low=0.0)
    router_z: float = _model(0.001, "Weight of the z-loss, which keeps the routers' logits small", low=0.0)

    # training
    batch_size: int = _training(48, "Sequences per training step", unit="sequences", low=1, high=2**16, shape=True, suggested=(16, 32, 48, 64))
    grad_accum: int = _training(1, "Gradient accumulation: number of equal parts of a batch; must divide batch_size. Experts are balanced within each part",
        low=1, high=2**16, shape=True)
    max_iters: int = _training(300, "Training steps of a run", unit="iterations", low=1, high=10**9)
    epochs: float | None = _training(3.0, "Passes over the training split's tokens or pairs; sets max_iters; null: max_iters is used as given",
        unit="passes", above=0.0, high=10**6, off=True)
    tokens_per_param: float | None = _training(20.0, "Tokens of training for each parameter; sets max_iters; null: max_iters is used as given",
        unit="tokens", above=0.0, high=10**6, off=True)
    params_counted: str = _training("non_embedding", "Parameters that tokens_per_param counts: all but the embedding tables, or total",
        choices=("non_embedding", "total"))
    grad_clip: float | None = _training(1.0, "Gradient clipping: largest norm of the gradient; a larger gradient is scaled down to it",
        above=0.0, suggested={"min": 0.3, "max": 3.0, "log": True})
    seed: int = _training(0, "Seed of a run; a study sets it by `seeds`", low=0, high=2**31 - 1)

    # optimizer
    optimizer: str = _optimizer("adamw", "Optimizer",
        choices=("adamw", "adam", "sgd", "lion", "muon", "adafactor"), shape=True, suggested=("adamw", "lion", "muon"))
    learning_rate: float = _optimizer(3e-4, "The optimizer's peak learning rate", above=0.0, suggested={"min": 1e-4, "max": 1e-2, "log": True})
    weight_decay: float = _optimizer(0.1, "Weight decay of matrices and embeddings: decoupled; in adam and sgd an L2 term added to the gradient",
        low=0.0, suggested={"min": 1e-3, "max": 0.3, "log": True})
    betas: tuple[float, float] = _optimizer((0.9, 0.95), "Decay rates of Adam's two moments (adamw, adam, and muon's AdamW), or of Lion's two means",
        low=0.0, below=1.0, suggested=((0.9, 0.95), (0.9, 0.99), (0.9, 0.999)))
    eps: float = _optimizer(1e-8, "Adam's epsilon, added to its denominator (adamw, adam, and muon's AdamW)",
        above=0.0, suggested={"min": 1e-10, "max": 1e-6, "log": True})
    momentum: float = _optimizer(0.9, "Momentum of sgd and muon", low=0.0, below=1.0, suggested=(0.9, 0.95, 0.98))

    # scheduler
    lr_decay: bool = _scheduler(True, "Lower the learning rate after the warm-up", suggested=(True, False))
    warmup_iters: int = _scheduler(100, "Steps over which the learning rate rises linearly to its peak",
        unit="iterations", low=0, suggested={"min": 0, "max": 200, "step": 10})
    min_lr: float = _scheduler(1e-5, "Lowest learning rate of any schedule",
        low=0.0, suggested={"min": 1e-6, "max": 1e-4, "log": True, "when": "lr_decay"})
    scheduler_type: str = _scheduler("cosine", "Shape of the decay after the warm-up",
        choices=("cosine", "linear", "constant", "plateau", "wsd", "inverse_sqrt"), suggested=("cosine", "linear", "constant"))
    patience_lr: int = _scheduler(5, "Evaluations without improvement after which `plateau` lowers the learning rate", unit="evaluations", low=1)
    plateau_factor: float = _scheduler(0.5, "Factor by which `plateau` multiplies the learning rate", above=0.0, below=1.0)
    plateau_threshold: float | None = _scheduler(1e-4, "Relative fall of the loss that `plateau` counts as an improvement, as torch's ReduceLROnPlateau does; null: min_delta",
        low=0.0, below=1.0, off=True)
    decay_share: float = _scheduler(0.2, "Final share of a run, over which `wsd` decays the learning rate",
        above=0.0, high=1.0, suggested={"min": 0.1, "max": 0.5, "step": 0.1})

    # precision
    device: str = _precision("cuda", "Device that runs train on", choices=("cpu", "cuda"), automatic=True, shape=True)
    dtype: str = _precision("bfloat16", "Precision of matrix products (on a CPU: of large ones only); weights stay float32",
        choices=("float32", "bfloat16"), removed=("float16",), automatic=True, shape=True)
    compile: bool = _precision(True, "Compile the training step with torch.compile", automatic=True, shape=True)

    # validation
    eval_interval: int = _validation(100, "Steps between evaluations", unit="iterations", low=1)
    eval_tokens: int = _validation(20 * TOKENS_PER_EVAL_ITER, "Targets per evaluation, the same for all runs of a study; auto: 1,024 times eval_iters",
        unit="tokens", low=1, automatic=True, shape=True)
    eval_iters: int = _validation(20, "Size of an evaluation in batches of 1,024 targets (16 sequences of 64), whatever batch_size is",
        unit="batches", low=1, shape=True)
    eval_full: bool = _validation(False, "Evaluate on the whole validation split instead", shape=True)
    eval_train: bool = _validation(False, "Also evaluate on as many targets of the training split, without dropout: eval_train_loss", shape=True)
    patience: int | None = _validation(6, "Evaluations without improvement after which a run stops", unit="evaluations", low=1)
    min_delta: float = _validation(1e-3, "Smallest fall of val_loss that counts as an improvement", unit="nats", low=0.0)

    # logging
    save_interval: int = _logging(100, "Steps between checkpoints to resume from", unit="iterations", low=1)
    log_interval: int = _logging(50, "Steps between points of the training curve", unit="iterations", low=1)
    wandb_project: str | None = _logging("gpt-debug", "Weights & Biases project to which runs are logged as well; requires wandb", off=True)

    # generation
    temperature: float = _generation(0.8, "Sampling temperature: above 1 flattens, below 1 sharpens the next token's distribution; 0 takes the most likely", low=0.0)
    top_k: int | None = _generation(50, "Sample among the k most likely tokens", unit="tokens", low=1)
    top_p: float | None = _generation(0.95, "Sample among the most likely tokens of this total probability", above=0.0, high=1.0)
    max_new_tokens: int = _generation(200, "Tokens to generate", unit="tokens", low=1, high=2**20)
    # fmt: on

    # The rows of plug-ins count too, which are no fields.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hyperparameters) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(frozenset(vars(self).items()))

    @property
    def evaluated_tokens(self) -> int | None:
        """Return the approximate number of targets of an evaluation; None if it covers the whole split."""
        if self.eval_full:
            return None
        size: int | str = self.eval_tokens
        if isinstance(size, str):
            return self.eval_iters * TOKENS_PER_EVAL_ITER
        return size

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return an instance with these values; missing rows get their defaults, unknown names are ignored."""
        # A plan creates many instances, and a frozen dataclass's __init__ is slow.
        made = cls.__new__(cls)
        vars(made).update(_DEFAULTS, **{name: values[name] for name in TABLE if name in values})
        return made

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return an instance from JSON values, where a pair is a list."""
        pairs = {name: tuple(each) for name, each in values.items() if isinstance(each, list)}
        return cls.of({**values, **pairs})

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some values changed.

        Raises:
            TypeError: the table has no such row.
        """
        if unknown := sorted(changes.keys() - TABLE.keys()):
            raise TypeError(f"unknown hyperparameters {unknown}")
        changed = copy(self)
        vars(changed).update(changes)
        return changed

    def as_dict(self) -> dict[str, Any]:
        """Return the values by name, in the table's order."""
        return {name: getattr(self, name) for name in TABLE}

    def applicable(self) -> dict[str, Any]:
        """Return the values by name, without those that have no effect on this run."""
        return {
            name: value
            for name, value in self.as_dict().items()
            if name not in CONDITIONS or CONDITIONS[name](self)
            if TABLE[name].of_model in ("", self.model)
        }


def _table() -> dict[str, Hyperparameter]:
    rows, of_model = [], {row.name for row in fields(ModelHyperparameters)}
    for row in fields(Hyperparameters):
        name, *none = str(row.type).replace("tuple[float, float]", "floats").split(" | ")
        declared: Hyperparameter = row.metadata["row"]
        shape = declared.shape or row.name in of_model
        rows.append(
            replace(
                declared, name=row.name, kind=cast(Kind, name), optional=bool(none), shape=shape
            )
        )
    rows.sort(key=lambda row: CATEGORIES.index(row.category))
    return {row.name: row for row in rows}


TABLE = _table()
# Rows that affect a run only if its other values meet this condition.
CONDITIONS: dict[str, Callable[[Hyperparameters], bool]] = {
    name: condition
    for names, condition in {
        "model": lambda run: run.model != TRANSFORMER,
        "mask_share": lambda run: run.objective in ("masked", "span"),
        "span_length": lambda run: run.objective == "span",
        "params_counted": lambda run: run.tokens_per_param is not None,
        "n_labels": lambda run: run.n_labels is not None,
        "n_encoder_layer n_decoder_layer share_embeddings": lambda run: run.family == "encoder_decoder",
        "head_bias": lambda run: run.family != "encoder",
        "tie_scale": lambda run: run.tie_weights,
        "qkv_bias out_bias": lambda run: run.bias,
        "rotary_base": lambda run: run.positions == "rotary",
        "relative_buckets relative_max_distance": lambda run: run.positions == "relative",
        "full_attention_interval": lambda run: run.attention != "full",
        "attention_window": lambda run: run.attention == "local",
        "n_expert_active router_balance router_z": lambda run: run.n_expert > 1,
        "mup_base_width mup_base_head_dim": lambda run: run.parametrization == "mup",
        # A plug-in's may use all three.
        "betas": lambda run: run.optimizer not in ("sgd", "adafactor"),
        "eps": lambda run: run.optimizer not in ("sgd", "lion", "adafactor"),
        "momentum": lambda run: run.optimizer not in ("adamw", "adam", "lion", "adafactor"),
        "min_lr scheduler_type": lambda run: run.lr_decay,
        "patience_lr plateau_factor plateau_threshold": lambda run: run.lr_decay and run.scheduler_type == "plateau",
        "decay_share": lambda run: run.lr_decay and run.scheduler_type == "wsd",
        "eval_tokens": lambda run: not run.eval_full,
        "eval_iters": lambda run: not run.eval_full and run.eval_tokens == AUTO,
        "wandb_project": lambda run: run.wandb_project is not None,
    }.items()
    for name in names.split()
}  # fmt: skip
# Runs of a stack may differ in their dropout, but not in whether they have any: that decides the program.
SHAPE = tuple(name for name, each in TABLE.items() if each.shape)


# Names of the rows elsewhere, in lower case with underscores.
ALIASES = {
    other: name
    for name, others in {
        "data_limit": "limit dataset_size n_train max_train_samples",
        "block_size": "ctx_len context_size seq_length context_length context_len context context_window seq_len sequence_length max_seq_len n_ctx n_positions",
        "n_embd": "d_model dim hidden_dim n_embed hidden_size embed_dim emb_dim embedding_dim embedding_size model_dim width",
        "n_head": "nhead n_heads num_heads num_attention_heads heads attention_heads",
        "n_layer": "num_layers n_layers num_hidden_layers layers depth n_blocks num_blocks",
        "n_kv_head": "n_kv_heads num_kv_heads num_key_value_heads",
        "d_ff": "dim_feedforward mlp_dim ffn_dim intermediate_size d_ffn d_mlp feed_forward_dim",
        "tie_weights": "tie_embeddings tie_word_embeddings weight_tying tied_weights",
        "activation": "act act_fn hidden_act activation_function",
        "positions": "positional_encoding pos_emb position_encoding position_embedding pos_encoding",
        "rotary_base": "rope_theta rope_base rotary_theta",
        "dropout": "dropout_rate dropout_p p_dropout drop_rate",
        "batch_size": "batch bs train_batch_size",
        "grad_accum": "gradient_accumulation gradient_accumulation_steps grad_accum_steps accumulation_steps",
        "tokens_per_param": "tokens_per_parameter token_multiplier chinchilla_ratio",
        "max_iters": "max_steps num_steps n_steps steps train_steps iterations n_iters total_steps",
        "epochs": "num_train_epochs num_epochs n_epochs max_epochs",
        "grad_clip": "gradient_clipping gradient_clip clip_grad max_grad_norm grad_norm_clip clip_grad_norm clip",
        "seed": "random_seed",
        "learning_rate": "lr step_size max_lr peak_lr base_lr init_lr peak_learning_rate",
        "weight_decay": "wd l2",
        "betas": "adam_betas",
        "eps": "epsilon adam_eps adam_epsilon",
        "lr_decay": "decay_lr",
        "warmup_iters": "warmup warmup_steps num_warmup_steps lr_warmup warmup_iterations",
        "min_lr": "lr_min minimum_lr min_learning_rate final_lr eta_min",
        "scheduler_type": "scheduler lr_scheduler lr_schedule schedule lr_scheduler_type",
        "dtype": "precision",
        "compile": "torch_compile",
        "eval_interval": "eval_every eval_steps eval_freq validation_interval",
        "eval_iters": "eval_batches",
        "patience": "early_stopping_patience early_stopping",
        "save_interval": "save_every save_steps checkpoint_interval",
        "log_interval": "log_every log_steps logging_steps",
        "max_new_tokens": "max_tokens",
    }.items()
    for other in others.split()
}  # fmt: skip


def canonical(name: str) -> str:
    """Return the table's name of a hyperparameter that has another one elsewhere: `lr`, `D-model`; else `name`."""
    word = re.sub(r"[\s-]+", "_", name.strip().lower())
    known = ALIASES.get(word, word)
    if known in TABLE:
        return known
    return name


def add_row(added: Hyperparameter) -> None:
    """Add a row that a plug-in defines; runs that do not set it have its default."""
    TABLE[added.name] = added
    _DEFAULTS[added.name] = added.default
    setattr(Hyperparameters, added.name, added.default)


_DEFAULTS = {name: each.default for name, each in TABLE.items()}


def defaults() -> dict[str, Any]:
    """Return every hyperparameter's default, by name, in the table's order."""
    return dict(_DEFAULTS)
