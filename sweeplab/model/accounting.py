"""Parameters and floating-point operations of a model, in closed form (no torch: a plan reads it too).

Formulas are in the letters of LEGEND, and what is printed is what is computed. The layout checks their sum against
the tensors.

FLOPs are counted as torch.utils.flop_counter counts them: matrix products only, 2mnk each, and attention as its
kind computes it: full attention over the whole T x T square although half of it is masked. Kaplan et al. 2020
(appendix of "Scaling laws for neural language models") count 2N + 2LTC forward; ours has the head's 2VC a token
besides (they leave the embeddings out) and twice their attention term, because a kernel that skips the masked half
is not assumed. Backward is twice forward: every product has two gradients, the first layer's too, for the
embeddings learn. Left out is what a step does once and not for every token: a norm's bias, carried through the
next product.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from sweeplab.model.attention import ATTENTION, cross_kind
from sweeplab.model.positions import POSITIONS
from sweeplab.model.shape import ModelShape, Side

LEGEND = {
    "V": "vocab_size", "T": "block_size", "C": "n_embd", "H": "n_head", "G": "n_kv_head", "D": "head_dim",
    "F": "d_ff", "E": "n_expert", "R": "relative_buckets", "Y": "n_token_types",
}  # fmt: skip
LETTERS = {name: letter for letter, name in LEGEND.items()}
EMBEDDINGS = ("token_embedding", "source_embedding", "position_embedding", "token_type_embedding")
# Rows of activations and numbers of a weight from which bfloat16 pays on a CPU with matrix units.
HALF_FROM_ROWS, HALF_FROM_WEIGHTS = 256, 6_144
COMPONENTS = (*EMBEDDINGS, "relative_bias", "attention", "cross_attention", "feed_forward", "norms", "head")


@dataclass(frozen=True)
class Term:
    """One part of a model's parameters: its component, its formula, how many it has, and in how many layers.

    `place` is `encoder` or `decoder` for what each side of a model has, and empty for what the model has once.
    """

    component: str
    place: str
    formula: str
    each: int
    layers: int = 1

    @property
    def count(self) -> int:
        """Return the parameters in all layers."""
        return self.each * self.layers


@lru_cache(maxsize=4096)
def terms(shape: ModelShape) -> tuple[Term, ...]:
    """Return a model's parameters part by part, each with its formula; a plan asks of one shape many times."""
    return tuple(term for term in _terms(shape) if term.each)


def _terms(shape: ModelShape) -> Iterator[Term]:
    values = {letter: getattr(shape, name) for letter, name in LEGEND.items()}

    def term(component: str, counts: Mapping[str, int], place: str = "", layers: int = 1) -> Term:
        """Return the term of a component that has so many weights, or none, of each size."""
        formula = " + ".join(size if n == 1 else f"{n}*{size}" for size, n in counts.items() if n)
        # A formula is ours, never a user's.
        return Term(component, place, formula, int(eval(formula or "0", {}, values)), layers)

    yield term("token_embedding", {"V*C": 1})
    yield term("source_embedding", {"V*C": shape.has_source_embedding})
    vectors = 1 + shape.has_norm_bias  # of a norm: its gain, and its bias
    n_wide, routed = 1 + shape.is_gated, shape.n_expert > 1
    bias = shape.bias and not routed
    attention = {"C*(H+2*G)*D": 1, "(H+2*G)*D": shape.has_qkv_bias, "H*D*C": 1, "C": shape.has_out_bias}
    for side in shape.of_family.sides:
        place, layers = ("decoder" if side.causal else "encoder"), shape.layers(side)
        if table := POSITIONS[shape.positions].table:
            component, *sizes = table
            yield term(component, {"*".join(LETTERS[size] for size in sizes): 1}, place)
        yield term("token_type_embedding", {"Y*C": shape.n_token_types > 0}, place)
        yield term("attention", attention, place, layers)
        if side.crosses:
            yield term("cross_attention", attention, place, layers)
        matrices = {"C*E": 1, "E*C*F": n_wide + 1} if routed else {"C*F": n_wide + 1}
        yield term("feed_forward", {**matrices, "F": n_wide * bias, "C": bias}, place, layers)
        n_norms = (1 if shape.parallel_block else 2) + side.crosses
        qk_norms = 2 * (1 + side.crosses) * shape.qk_norm
        yield term("norms", {"C": n_norms * vectors, "D": qk_norms}, place, layers)
        yield term("norms", {"C": vectors * (shape.final_norm + shape.embedding_norm)}, place)
    if shape.of_family.transforms:
        yield term("head", {"C*C": 1, "C": vectors + shape.bias})
    yield term("head", {"V*C": not shape.tie_weights})
    yield term("head", {"V": shape.has_head_bias})


def parameters(shape: ModelShape) -> dict[str, int]:
    """Return the number of parameters by component; their sum is the size of a run's weights."""
    found = dict.fromkeys(COMPONENTS, 0)
    for term in terms(shape):
        found[term.component] += term.count
    return found


def letters(shape: ModelShape) -> dict[str, str]:
    """Return the letters that a model's formulas are in, and the hyperparameters that they stand for."""
    formulas = "".join(term.formula for term in terms(shape))
    return {letter: name for letter, name in LEGEND.items() if letter in formulas}


def n_params(shape: ModelShape) -> int:
    """Return the number of parameters in all; tied weights count once."""
    return sum(term.count for term in terms(shape))


def n_params_active(shape: ModelShape) -> int:
    """Return the parameters that a token meets: all but the experts that it is not given to."""
    n_layer = sum(shape.layers(side) for side in shape.of_family.sides)
    expert = (3 if shape.is_gated else 2) * shape.n_embd * shape.d_ff
    idle = shape.n_expert - shape.n_expert_active if shape.n_expert > 1 else 0
    return n_params(shape) - n_layer * idle * expert


def n_params_non_embedding(shape: ModelShape) -> int:
    """Return the parameters without token and position embeddings (and without a head tied to them)."""
    found = parameters(shape)
    return n_params(shape) - sum(found[name] for name in EMBEDDINGS)


def forward_flops(shape: ModelShape, length: int, source_length: int = 0) -> int:
    """Return the FLOPs of one sequence's forward pass, of `length` tokens and a source of `source_length`."""
    c, mixed = shape.n_embd, shape.n_head * shape.head_dim
    keys = shape.n_kv_head * shape.head_dim
    wide = (3 if shape.is_gated else 2) * 2 * c * shape.d_ff
    forward = wide if shape.n_expert == 1 else 2 * c * shape.n_expert + shape.n_expert_active * wide
    kind, cross = ATTENTION[shape.attention], cross_kind(shape.attention)
    total = 2 * length * c * (shape.vocab_size + (c if shape.of_family.transforms else 0))
    for side in shape.of_family.sides:
        n = side_length(shape, side, length, source_length)
        layer = n * (2 * c * (mixed + 2 * keys) + 2 * mixed * c + forward)
        layer += kind.flops(shape, n, n, side.causal)
        if side.crosses:
            layer += 2 * n * 2 * c * mixed + 2 * source_length * c * 2 * keys
            layer += cross.flops(shape, n, source_length, False)
        total += shape.layers(side) * layer
    return total


def activation_bytes(shape: ModelShape, length: int, source_length: int = 0, value_bytes: int = 4) -> int:
    """Estimate the bytes of what a sequence's forward pass keeps for the backward one; a number takes value_bytes."""
    c, kind, cross = shape.n_embd, ATTENTION[shape.attention], cross_kind(shape.attention)
    wide = (3 if shape.is_gated else 2) * shape.d_ff * shape.n_expert_active
    kept = 3 * shape.vocab_size * length
    for side in shape.of_family.sides:
        n = side_length(shape, side, length, source_length)
        weights = kind.n_weights(shape, n, n, side.causal)
        weights += cross.n_weights(shape, n, source_length, False) if side.crosses else 0
        layer = n * ((24 if side.crosses else 16) * c + wide) + 2 * shape.n_head * weights
        kept += shape.layers(side) * layer
    return kept * value_bytes


def side_length(shape: ModelShape, side: Side, length: int, source_length: int) -> int:
    """Return how many tokens a side reads of a sequence and its source."""
    return source_length if shape.of_family.reads_source and not side.crosses else length


def is_large_product(n_rows: int, n_weights: int) -> bool:
    """Return whether a CPU with matrix units multiplies so many rows by a weight faster in bfloat16.

    By one thread of a Xeon with AMX, in microseconds, and without the conversions to bfloat16: rows x in x out
    512x64x256 86 in float32 and 33 in bfloat16, 512x64x103 46 and 27, 512x64x64 24 and 22, 64x32x128 3 and 3.
    """
    return n_rows >= HALF_FROM_ROWS and n_weights >= HALF_FROM_WEIGHTS


def has_large_product(shape: ModelShape, n_rows: int) -> bool:
    """Return whether a feed-forward layer, attention's projection or the head is a large product."""
    widths = (shape.d_ff, 3 * shape.head_dim * shape.n_head, shape.vocab_size)
    return is_large_product(n_rows, shape.n_embd * max(widths))
