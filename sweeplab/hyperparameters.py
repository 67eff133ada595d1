"""The hyperparameter table: the one list of every hyperparameter, and the only home of its default.

Imports nothing but the standard library, so that a command that only prints it starts in milliseconds.
A suggested range is written as a study file writes it: `{"min":…, "max":…, "log": True}` or a list of choices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Category = Literal[
    "data", "model", "training", "optimizer", "scheduler", "precision", "validation", "logging", "generation"
]
Kind = Literal["int", "float", "bool", "str", "floats"]

AUTO = "auto"
CATEGORIES: dict[Category, str] = {
    "data": "Data",
    "model": "Model",
    "training": "Training loop",
    "optimizer": "Optimizer",
    "scheduler": "LR scheduler",
    "precision": "Precision / hardware",
    "validation": "Validation / early stop",
    "logging": "Checkpoint / logging",
    "generation": "Generation",
}


@dataclass(frozen=True)
class Hyperparameter:
    """One row of the table.

    `low` and `high` are inclusive, `above` and `below` exclusive bounds. `optional` rows take null, which
    switches the thing off. `automatic` rows take "auto", settled by the data or the machine; a row that is
    automatic has "auto" as its default, whatever its sample value. `shape` rows fix the tensors or the
    program: runs that differ in one cannot share a stack.
    """

    name: str
    category: Category
    kind: Kind
    sample: Any
    meaning: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()
    optional: bool = False
    automatic: bool = False
    shape: bool = False
    suggested: Mapping[str, Any] | tuple[Any, ...] | None = None

    @property
    def default(self) -> Any:
        """Return the value a study takes when it says nothing."""
        return AUTO if self.automatic else self.sample

    @property
    def allowed(self) -> str:
        """Say in words which values the row takes."""
        words = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text"}
        text = words.get(self.kind, "two numbers, such as [0.9, 0.95]")
        if self.choices:
            text = " | ".join(self.choices)
        low = _bound(self.low) or (f"above {_bound(self.above)}" if self.above is not None else "")
        high = _bound(self.high) or (f"below {_bound(self.below)}" if self.below is not None else "")
        if low and high:
            text += f" from {low} to {high}"
        elif low:
            text += f" {low}" if self.above is not None else f", at least {low}"
        elif high:
            text += f" {high}" if self.below is not None else f", at most {high}"
        if self.automatic:
            text += ", or auto"
        if self.optional:
            text += ", or null to switch it off"
        return text

    def check(self, value: Any) -> Any:
        """Return `value` as the row's own type.

        Raises:
            ValueError: the value has another type or lies outside of the bounds; says what is allowed.
        """
        if (value is None and self.optional) or (self.automatic and value == AUTO):
            return value
        wrong = ValueError(f"{self.name} is {value!r}; allowed: {self.allowed}")
        if self.kind == "floats":
            if not isinstance(value, list | tuple) or len(value) != len(self.sample):
                raise wrong
            return tuple(self._number(each, wrong) for each in value)
        if self.kind in ("bool", "str"):
            if not isinstance(value, bool if self.kind == "bool" else str):
                raise wrong
            if self.choices and value not in self.choices:
                raise wrong
            return value
        return self._number(value, wrong)

    def _number(self, value: Any, wrong: ValueError) -> float | int:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise wrong
        if self.kind == "int" and value != int(value):
            raise wrong
        outside = (
            (self.low is not None and value < self.low)
            or (self.high is not None and value > self.high)
            or (self.above is not None and value <= self.above)
            or (self.below is not None and value >= self.below)
        )
        if outside:
            raise wrong
        return int(value) if self.kind == "int" else float(value)


def _bound(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:g}" if abs(value) < 1e6 else f"{value:,.0f}"


def _row(name: str, category: Category, kind: Kind, sample: Any, meaning: str, **rest: Any) -> Hyperparameter:
    return Hyperparameter(name, category, kind, sample, meaning, **rest)


_ROWS = (
    _row(
        "block_size", "data", "int", 192, "Context length: how far back a position can see",
        unit="tokens", low=1, high=2**20, shape=True, suggested=(64, 128, 192, 256),
    ),
    _row(
        "vocab_size", "data", "int", AUTO, "Number of distinct tokens; the tokenizer's and the objective's own, unless it is to be larger",
        unit="tokens", low=2, high=2**20, shape=True, automatic=True,
    ),
    _row(
        "objective", "data", "str", "next_token", "What is to be found; auto: what suits corpus and family",
        choices=("next_token", "masked", "span", "pairs"), shape=True, automatic=True,
    ),
    _row(
        "mask_share", "data", "float", 0.15, "Share of tokens that `masked` and `span` hide",
        above=0.0, below=1.0, shape=True, suggested={"min": 0.1, "max": 0.4, "step": 0.05},
    ),
    _row(
        "span_length", "data", "float", 3.0, "Mean length of a span that `span` hides",
        unit="tokens", low=1.0, shape=True, suggested={"min": 2.0, "max": 5.0, "step": 1.0},
    ),
    _row(
        "family", "model", "str", "decoder", "Which transformer: it predicts what follows, what is masked, or one text from another",
        choices=("decoder", "encoder", "encoder_decoder"), shape=True,
    ),
    _row(
        "n_embd", "model", "int", 192, "Width of the residual stream",
        low=1, high=2**16, shape=True, suggested=(64, 96, 128, 192, 256),
    ),
    _row(
        "n_head", "model", "int", 6, "Attention heads a layer; must divide n_embd unless head_dim is given",
        low=1, high=2**10, shape=True, suggested={"min": 1, "max": 16, "divides": "n_embd"},
    ),
    _row(
        "n_layer", "model", "int", 3, "Number of transformer blocks",
        low=1, high=2**10, shape=True, suggested={"min": 1, "max": 8},
    ),
    _row(
        "n_encoder_layer", "model", "int", 3, "Blocks of the encoder of an encoder_decoder; n_layer, unless given",
        low=1, high=2**10, shape=True, automatic=True,
    ),
    _row(
        "n_decoder_layer", "model", "int", 3, "Blocks of the decoder of an encoder_decoder; n_layer, unless given",
        low=1, high=2**10, shape=True, automatic=True,
    ),
    _row(
        "head_dim", "model", "int", 32, "Width of one attention head; n_embd // n_head, unless given",
        low=1, high=2**12, shape=True, automatic=True,
    ),
    _row(
        "n_kv_head", "model", "int", 6, "Heads of keys and values, each shared by some of n_head; n_head, unless given",
        low=1, high=2**10, shape=True, automatic=True,
    ),
    _row(
        "d_ff", "model", "int", 768,
        "Width of the feed-forward layers; unless given 4 n_embd, or 8/3 n_embd for a gated activation",
        low=1, high=2**18, shape=True, automatic=True,
    ),
    _row(
        "dropout", "model", "float", 0.2, "Share of embeddings, attention weights and residuals dropped in training",
        low=0.0, below=1.0, suggested={"min": 0.0, "max": 0.4, "step": 0.05},
    ),
    _row(
        "embedding_dropout", "model", "float", 0.2, "Share of the embeddings dropped in training; dropout, unless given",
        low=0.0, below=1.0, automatic=True,
    ),
    _row(
        "attention_dropout", "model", "float", 0.2, "Share of attention weights dropped in training; dropout, unless given; linear attention has none",
        low=0.0, below=1.0, automatic=True,
    ),
    _row(
        "residual_dropout", "model", "float", 0.2,
        "Share of what a sub-layer adds that is dropped in training; dropout, unless given",
        low=0.0, below=1.0, automatic=True,
    ),
    _row(
        "stochastic_depth", "model", "float", 0.0,
        "Chance that the last block's sub-layers are skipped for a sequence in training; it rises linearly from the first's",
        low=0.0, below=1.0,
    ),
    _row(
        "label_smoothing", "model", "float", 0.0, "Share of a target's probability spread over all tokens, in training only",
        low=0.0, below=1.0,
    ),
    _row(
        "tie_weights", "model", "bool", True, "The head uses the token embedding's weights",
        shape=True, suggested=(True, False),
    ),
    _row("tie_scale", "model", "bool", False, "Multiply the logits of a tied head by n_embd^-0.5", shape=True),
    _row(
        "share_embeddings", "model", "bool", True, "Source and target of an encoder_decoder share their token embeddings",
        shape=True,
    ),
    _row("scale_embedding", "model", "bool", False, "Multiply token embeddings by the square root of n_embd", shape=True),
    _row(
        "n_token_types", "model", "int", 0, "Kinds of tokens that have an embedding of their own besides, as BERT's two",
        low=0, high=2**10, shape=True,
    ),
    _row("embedding_norm", "model", "bool", False, "A norm after the embeddings", shape=True),
    _row(
        "activation", "model", "str", "gelu", "Non-linearity of the feed-forward layers",
        choices=("gelu", "relu", "relu2", "swiglu", "geglu", "gelu_tanh", "geglu_tanh"), shape=True, suggested=("gelu", "relu"),
    ),
    _row("norm", "model", "str", "layernorm", "Normalization of each sub-layer", choices=("layernorm", "rmsnorm"), shape=True),
    _row("norm_eps", "model", "float", 1e-5, "What a norm adds to the mean square before its root", above=0.0, shape=True),
    _row(
        "norm_position", "model", "str", "pre", "The norm comes before each sub-layer, or after its residual is added",
        choices=("pre", "post"), shape=True,
    ),
    _row(
        "parallel_block", "model", "bool", False, "Attention and feed-forward read the same norm and are added together",
        shape=True,
    ),
    _row(
        "positions", "model", "str", "learned", "How a token's place is told",
        choices=("learned", "sinusoidal", "relative", "rotary", "alibi", "none"), shape=True,
    ),
    _row("rotary_base", "model", "float", 10_000.0, "Longest wavelength of rotary positions, over 2 pi", above=1.0, shape=True),
    _row(
        "relative_buckets", "model", "int", 32, "Distances that relative positions tell apart, in buckets; an even number",
        low=4, high=2**12, shape=True,
    ),
    _row(
        "relative_max_distance", "model", "int", 128, "Distance from which relative positions share one bucket",
        unit="tokens", low=2, high=2**20, shape=True,
    ),
    _row(
        "attention", "model", "str", "full", "Which positions are attended to, and how",
        choices=("full", "local", "strided", "linear"), shape=True,
    ),
    _row(
        "attention_window", "model", "int", 64, "Local attention sees positions less than this far away",
        unit="tokens", low=1, high=2**20, shape=True,
    ),
    _row(
        "attention_stride", "model", "int", 16, "Strided attention sees this far, and every position this many apart beyond",
        unit="tokens", low=1, high=2**20, shape=True,
    ),
    _row("qk_norm", "model", "bool", False, "An RMS norm of each head's queries and keys", shape=True),
    _row("n_expert", "model", "int", 1, "Feed-forward layers a block, among which a router chooses", low=1, high=2**10, shape=True),
    _row("n_expert_active", "model", "int", 1, "Experts that a token is given to", low=1, high=2**10, shape=True),
    _row("router_balance", "model", "float", 0.01, "Weight of the loss that spreads tokens over the experts", low=0.0),
    _row("router_z", "model", "float", 0.001, "Weight of the loss that keeps the router's logits small", low=0.0),
    _row("bias", "model", "bool", True, "Biases in the linear layers and the norms", shape=True, suggested=(True, False)),
    _row("qkv_bias", "model", "bool", True, "Biases in query, key and value too, where bias is true", shape=True),
    _row("out_bias", "model", "bool", True, "A bias in attention's output projection, where bias is true", shape=True),
    _row("head_bias", "model", "bool", False, "A bias in an untied head", shape=True),
    _row(
        "init", "model", "str", "normal", "How matrices start: as GPT-2, or by Glorot and Bengio's rule as the original",
        choices=("normal", "xavier"), shape=True,
    ),
    _row(
        "batch_size", "training", "int", 48, "Sequences a training step",
        unit="sequences", low=1, high=2**16, shape=True, suggested=(16, 32, 48, 64),
    ),
    _row(
        "grad_accum", "training", "int", 1, "Equal parts into which a batch is cut, so that it needs less memory; must divide batch_size. Experts are balanced within each",
        low=1, high=2**16, shape=True,
    ),
    _row(
        "batch_warmup_iters", "training", "int", 0, "Steps over which the rows of a batch that are used rise to batch_size, through its divisors",
        unit="iterations", low=0,
    ),
    _row("max_iters", "training", "int", 300, "Training steps of a run", unit="iterations", low=1, high=10**9),
    _row(
        "grad_clip", "training", "float", 1.0, "Largest norm of the gradient; a longer one is scaled down",
        above=0.0, optional=True, suggested={"min": 0.3, "max": 3.0, "log": True},
    ),
    _row(
        "ema", "training", "float", 0.0, "Decay of a running mean of the weights, which evaluations use in their place; 0 is none",
        low=0.0, below=1.0, suggested=(0.0, 0.99, 0.999),
    ),
    _row("seed", "training", "int", 0, "Seed of a run; a study's `seeds` says which are trained", low=0, high=2**31 - 1),
    _row(
        "optimizer", "optimizer", "str", "adamw", "What makes a step of a gradient",
        choices=("adamw", "adam", "sgd", "lion", "muon", "adafactor"), shape=True, suggested=("adamw", "lion", "muon"),
    ),
    _row(
        "learning_rate", "optimizer", "float", 3e-4, "The optimizer's peak learning rate",
        above=0.0, suggested={"min": 1e-4, "max": 1e-2, "log": True},
    ),
    _row(
        "weight_decay", "optimizer", "float", 0.1, "Decay of matrices and embeddings: decoupled, in adam and sgd an L2 term of the gradient",
        low=0.0, suggested={"min": 1e-3, "max": 0.3, "log": True},
    ),
    _row(
        "betas", "optimizer", "floats", (0.9, 0.95), "Decay rates of Adam's two moments (adamw, adam, and muon's AdamW), or of Lion's two means",
        low=0.0, below=1.0, suggested=((0.9, 0.95), (0.9, 0.99), (0.9, 0.999)),
    ),
    _row(
        "eps", "optimizer", "float", 1e-8, "Adam's term in the denominator (adamw, adam, and muon's AdamW)",
        above=0.0, suggested={"min": 1e-10, "max": 1e-6, "log": True},
    ),
    _row(
        "momentum", "optimizer", "float", 0.9, "Share of the last step's direction that sgd and muon keep",
        low=0.0, below=1.0, suggested=(0.9, 0.95, 0.98),
    ),
    _row(
        "parametrization", "optimizer", "str", "standard", "How initial weights and learning rates follow the width; mup goes with adamw or lion",
        choices=("standard", "mup"), shape=True, suggested=("standard", "mup"),
    ),
    _row("mup_base_width", "optimizer", "int", 64, "The n_embd at which mup's factors are 1", low=1, high=2**16, shape=True),
    _row("lr_decay", "scheduler", "bool", True, "Lower the learning rate after the warm-up", suggested=(True, False)),
    _row(
        "warmup_iters", "scheduler", "int", 100, "Steps over which the learning rate rises linearly to its peak",
        unit="iterations", low=0, suggested={"min": 0, "max": 200, "step": 10},
    ),
    _row(
        "min_lr", "scheduler", "float", 1e-5, "Learning rate below which no schedule goes",
        low=0.0, suggested={"min": 1e-6, "max": 1e-4, "log": True, "when": "lr_decay"},
    ),
    _row(
        "scheduler_type", "scheduler", "str", "cosine", "Shape of the decay after the warm-up",
        choices=("cosine", "linear", "constant", "plateau", "wsd", "inverse_sqrt"), suggested=("cosine", "linear", "constant"),
    ),
    _row(
        "patience_lr", "scheduler", "int", 5, "Evaluations without improvement after which `plateau` halves the rate",
        unit="evaluations", low=1,
    ),
    _row(
        "decay_share", "scheduler", "float", 0.2, "Share of a run, at its end, over which `wsd` lowers the rate",
        above=0.0, high=1.0, suggested={"min": 0.1, "max": 0.5, "step": 0.1},
    ),
    _row("device", "precision", "str", "cuda", "Where runs train", choices=("cpu", "cuda"), automatic=True, shape=True),
    _row(
        "dtype", "precision", "str", "bfloat16", "Precision of matrix products; weights stay float32",
        choices=("float32", "bfloat16"), automatic=True, shape=True,
    ),
    _row("compile", "precision", "bool", True, "Compile the step with torch.compile", automatic=True, shape=True),
    _row("eval_interval", "validation", "int", 100, "Steps between evaluations", unit="iterations", low=1),
    _row("eval_iters", "validation", "int", 20, "Batches an evaluation", unit="batches", low=1, shape=True),
    _row("eval_full", "validation", "bool", False, "Evaluate on the whole validation split instead", shape=True),
    _row(
        "patience", "validation", "int", 6, "Evaluations without improvement after which a run stops",
        unit="evaluations", low=1, optional=True,
    ),
    _row("min_delta", "validation", "float", 1e-3, "Smallest fall of val_loss that is an improvement", unit="nats", low=0.0),
    _row("save_interval", "logging", "int", 100, "Steps between checkpoints to go on from", unit="iterations", low=1),
    _row("log_interval", "logging", "int", 50, "Steps between points of the training curve", unit="iterations", low=1),
    _row("wandb_project", "logging", "str", "gpt-debug", "Name of the project in Weights & Biases, recorded with a run"),
    _row("temperature", "generation", "float", 0.8, "Flattens (above 1) or sharpens the next token's distribution", above=0.0),
    _row("top_k", "generation", "int", 50, "Sample among the k likeliest tokens", unit="tokens", low=1, optional=True),
    _row(
        "top_p", "generation", "float", 0.95, "Sample among the likeliest tokens of this total probability",
        above=0.0, high=1.0, optional=True,
    ),
    _row("max_new_tokens", "generation", "int", 200, "Tokens to generate", unit="tokens", low=1),
)  # fmt: skip

TABLE: dict[str, Hyperparameter] = {row.name: row for row in _ROWS}
MINIMAL = ("batch_size", "block_size", "max_iters", "learning_rate", "n_embd", "n_head", "n_layer", "dropout")
# Which dropout a run has does not matter to a stack, but whether it has any decides the program.
SHAPE = tuple(row.name for row in _ROWS if row.shape)


def defaults() -> dict[str, Any]:
    """Return every hyperparameter's default, by name, in the table's order."""
    return {row.name: row.default for row in _ROWS}
