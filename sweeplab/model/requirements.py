"""Which choices of parts go together: what the parts themselves require, and what holds between them (no torch)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

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
        "head_bias is of an untied head: tie_weights must be false, and family not encoder, whose head follows bias",
        "head_bias tie_weights family",
        lambda shape: not shape.head_bias or (not shape.tie_weights and not shape.of_family.transforms),
    ),
    requirement(
        "mup says itself what follows the width: init must be normal, scale_embedding and tie_scale false",
        "parametrization init scale_embedding tie_scale",
        lambda shape: (
            shape.parametrization == "standard"
            or (shape.init == "normal" and not shape.scale_embedding and not shape.tie_scale)
        ),
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


def _of_part(row: str, name: str, given: Requirement) -> Requirement:
    """Return what a part requires, as a requirement of the models that have it."""
    names = tuple(dict.fromkeys((*given.names, row)))
    return Requirement(given.text, names, lambda shape: getattr(shape, row) != name or given.holds(shape))


@cache
def requirements() -> tuple[Requirement, ...]:
    """Return all that a model's shape has to meet."""
    tables: Mapping[str, Mapping[str, tuple[Requirement, ...]]] = {
        "positions": {name: part.requires for name, part in POSITIONS.items()},
        "attention": {name: part.requires for name, part in ATTENTION.items()},
    }
    of_parts = [
        _of_part(row, name, each)
        for row, table in tables.items()
        for name, requires in table.items()
        for each in requires
    ]
    return (*GENERAL, *of_parts)


def why_not(shape: ModelShape) -> str | None:
    """Return why a model of this shape cannot be, or None."""
    return next((each.text for each in requirements() if not each.holds(shape)), None)
