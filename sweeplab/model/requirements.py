"""The requirements that make a model possible: those of single parts, and those between parts. Imports no torch."""

from __future__ import annotations

from functools import cache
from itertools import chain

from sweeplab.model.attention import ATTENTION
from sweeplab.model.positions import POSITIONS
from sweeplab.model.shape import ModelShape, Requirement, requirement

GENERAL = (
    requirement(
        "n_kv_head divides n_head: every key head serves the same number of query heads",
        "n_kv_head n_head",
        lambda shape: shape.n_head % shape.n_kv_head == 0,
    ),
    requirement(
        "n_expert_active is at most n_expert",
        "n_expert_active n_expert",
        lambda shape: shape.n_expert_active <= shape.n_expert,
    ),
    requirement(
        "parallel_block has one norm before both sub-layers: norm_position must be pre",
        "parallel_block norm_position",
        lambda shape: not shape.parallel_block or shape.norm_position == "pre",
    ),
    requirement(
        "parallel_block does not support cross-attention: family must not be encoder_decoder",
        "parallel_block family",
        lambda shape: not shape.parallel_block or not shape.of_family.reads_source,
    ),
    requirement(
        "tie_scale needs an output head with the embedding's weights: tie_weights must be true",
        "tie_scale tie_weights",
        lambda shape: shape.tie_weights or not shape.tie_scale,
    ),
    requirement(
        "head_bias does not apply to an encoder, whose head has a bias if bias is true: family must not be encoder",
        "head_bias family",
        lambda shape: not shape.head_bias or not shape.of_family.transforms,
    ),
    requirement(
        "mup sets all scales that depend on the width: init must be normal, attention_scale head_dim, "
        "scale_embedding and tie_scale false",
        "parametrization init attention_scale scale_embedding tie_scale",
        lambda shape: (
            shape.parametrization == "standard"
            or (shape.init, shape.attention_scale, shape.scale_embedding, shape.tie_scale)
            == ("normal", "head_dim", False, False)
        ),
    ),
    requirement(
        "attention_scale n_embd needs attention scores to scale: attention must not be linear",
        "attention_scale attention",
        lambda shape: shape.attention_scale == "head_dim" or ATTENTION[shape.attention].has_scores,
    ),
    requirement(
        "share_embeddings false needs a source and a target: family must be encoder_decoder",
        "share_embeddings family",
        lambda shape: shape.share_embeddings or shape.of_family.reads_source,
    ),
    requirement(
        "n_encoder_layer and n_decoder_layer apply only to family encoder_decoder; use n_layer otherwise",
        "n_encoder_layer n_decoder_layer n_layer family",
        lambda shape: (
            shape.of_family.reads_source or shape.n_encoder_layer == shape.n_decoder_layer == shape.n_layer
        ),
    ),
)


@cache
def requirements() -> tuple[Requirement, ...]:
    """Return all requirements on a model's shape."""
    of_positions = (part.requires for part in POSITIONS.values())
    of_attention = (kind.requires for kind in ATTENTION.values())
    return (*GENERAL, *chain(*of_positions, *of_attention))


def why_not(shape: ModelShape) -> str | None:
    """Return why a model of this shape is impossible, or None."""
    return next((each.text for each in requirements() if not each.holds(shape)), None)
