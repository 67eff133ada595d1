"""What follows from a model's parts is settled, and what cannot be is said before the first trial."""

from collections.abc import Iterator

import plugged
import pytest
from tiny_study import problem_of
from tiny_study import study_of_parts as study

from sweeplab.hyperparameters import AUTO
from sweeplab.model.attention import SHAPE_REQUIREMENTS
from sweeplab.model.shape import SETTLED
from sweeplab.study.space import Cell, Space, cells

IMPOSSIBLE = {
    "rotary with odd head_dim": (
        {"positions": "rotary", "n_embd": 15, "n_head": 3},
        "rotary positions rotate pairs of a head's columns: head_dim must be even, and so must its rotary_share",
    ),
    "n_kv_head that does not divide": ({"n_head": 6, "n_kv_head": 4}, "n_kv_head divides n_head"),
    "more active experts than experts": (
        {"n_expert": 2, "n_expert_active": 3},
        "n_expert_active is at most n_expert",
    ),
    "a kind of attention that only older versions have": (
        {"attention": "linear"},
        "attention must be full or local: strided and linear are removed",
    ),
    "a parallel block after the norm": (
        {"parallel_block": True, "norm_position": "post"},
        "norm_position must be pre",
    ),
    "a parallel block with cross-attention": (
        {"parallel_block": True, "family": "encoder_decoder"},
        "does not support cross-attention",
    ),
    "a scale of an untied head": ({"tie_scale": True, "tie_weights": False}, "tie_weights must be true"),
    "a bias of an encoder's head": (
        {"head_bias": True, "tie_weights": False, "family": "encoder"},
        "whose head has a bias if bias is true: family must not be encoder",
    ),
    "a source embedding without a source": ({"share_embeddings": False}, "family must be encoder_decoder"),
    "encoder layers of a decoder": ({"n_encoder_layer": 5}, "apply only to family encoder_decoder"),
    "an odd number of buckets": (
        {"positions": "relative", "relative_buckets": 7},
        "relative positions need an even relative_buckets",
    ),
    "mup with an init of its own": (
        {"parametrization": "mup", "init": "xavier"},
        "mup sets all scales that depend on the width",
    ),
    "experts of a plugin's model": (
        {"n_expert": 2, "model": "nanogpt"},
        "has neither experts nor mup's scales",
    ),
    "heads that do not divide": ({"n_embd": 100, "n_head": 6}, "n_embd % n_head == 0"),
}


def resolved(**parts) -> dict:
    return Space(study(**parts), Cell(0, {}), 65).resolve({}, seed=0)


@pytest.fixture(autouse=True)
def _a_plugins_model() -> Iterator[None]:
    with plugged.imported():
        yield


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_what_cannot_be_is_said_with_the_reason(case: str) -> None:
    fixed, reason = IMPOSSIBLE[case]
    problem = problem_of(lambda: study(fixed=fixed))
    assert reason in problem and f"{next(iter(fixed))} is " in problem and AUTO not in problem


def test_every_requirement_is_tried_here() -> None:
    said = [reason for _, reason in IMPOSSIBLE.values()]
    assert all(any(reason in each.text for reason in said) for each in SHAPE_REQUIREMENTS)


def test_an_impossible_cell_is_left_out_with_its_reason() -> None:
    grid = {"norm_position": ["pre", "post"], "parallel_block": [True, False]}
    kept, excluded = cells(study(grid=grid), 65)
    assert len(kept) == 3
    ((values, reason),) = excluded
    assert values == {"norm_position": "post", "parallel_block": True}
    assert reason.startswith("parallel_block has its norms before the sub-layers")


def test_what_is_auto_is_settled_from_the_rest() -> None:
    values = resolved(fixed={"n_embd": 96, "n_head": 4, "n_layer": 5, "dropout": 0.3, "activation": "swiglu"})
    assert {name: getattr(values, name) for name in SETTLED} == {
        "n_encoder_layer": 5,
        "n_decoder_layer": 5,
        "head_dim": 24,
        "n_kv_head": 4,
        "mup_base_head_dim": 1,
        "final_norm": True,
        "d_ff": 256,
        "embedding_dropout": 0.3,
        "attention_dropout": 0.3,
        "residual_dropout": 0.3,
        "eval_tokens": 20 * 1024,
    }
    assert resolved(fixed={"d_ff": 100, "dropout": 0.3, "attention_dropout": 0.0}).attention_dropout == 0.0
