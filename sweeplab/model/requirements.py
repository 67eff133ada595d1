"""Which choices of parts go together: what the parts themselves require, and what holds between them (no torch)."""

from __future__ import annotations

from functools import cache
from itertools import chain

from sweeplab.model.attention import ATTENTION
from sweeplab.model.positions import POSITIONS
from sweeplab.model.shape import ModelShape, Requirement, requirement

GENERAL = (
    requirement(
        "n_kv_head divides n_head: each head of keys serves equally many of queries",
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
        "parallel_block has no place for cross-attention: family must not be encoder_decoder",
        "parallel_block family",
        lambda shape: not shape.parallel_block or not shape.of_family.reads_source,
    ),
    requirement(
        "tie_scale is of a head that has the embedding's weights: tie_weights must be true",
        "tie_scale tie_weights",
        lambda shape: shape.tie_weights or not shape.tie_scale,
    ),
    requirement(
        "head_bias is not of an encoder, whose head follows bias: family must not be encoder",
        "head_bias family",
        lambda shape: not shape.head_bias or not shape.of_family.transforms,
    ),
    requirement(
        "mup says itself what follows the width: init must be normal, attention_scale head_dim, scale_embedding and "
        "tie_scale false",
        "parametrization init attention_scale scale_embedding tie_scale",
        lambda shape: (
            shape.parametrization == "standard"
            or (shape.init, shape.attention_scale, shape.scale_embedding, shape.tie_scale)
            == ("normal", "head_dim", False, False)
        ),
    ),
    requirement(
        "attention_scale is of a softmax of products: attention must not be linear",
        "attention_scale attention",
        lambda shape: shape.attention_scale == "head_dim" or ATTENTION[shape.attention].has_scores,
    ),
    requirement(
        "share_embeddings false needs a source beside the target: family must be encoder_decoder",
        "share_embeddings family",
        lambda shape: shape.share_embeddings or shape.of_family.reads_source,
    ),
    requirement(
        "n_encoder_layer and n_decoder_layer are an encoder_decoder's; elsewhere n_layer says it",
        "n_encoder_layer n_decoder_layer n_layer family",
        lambda shape: (
            shape.of_family.reads_source or shape.n_encoder_layer == shape.n_decoder_layer == shape.n_layer
        ),
    ),
)


@cache
def requirements() -> tuple[Requirement, ...]:
    """Return all that a model's shape has to meet."""
    of_positions = (part.requires for part in POSITIONS.values())
    of_attention = (kind.requires for kind in ATTENTION.values())
    return (*GENERAL, *chain(*of_positions, *of_attention))


def why_not(shape: ModelShape) -> str | None:
    """Return why a model of this shape cannot be, or None."""
    return next((each.text for each in requirements() if not each.holds(shape)), None)
