"""What follows from a model's parts is settled, and what cannot be is said before the first trial."""

import plugged
import pytest
from tiny_study import problem_of
from tiny_study import study_of_parts as study

from sweeplab.data import DataSizes
from sweeplab.errors import BadInput
from sweeplab.hyperparameters import AUTO
from sweeplab.model.attention import SHAPE_REQUIREMENTS
from sweeplab.model.shape import SETTLED
from sweeplab.study.space import spaces_of
from sweeplab.train.optimizers import OPTIMIZERS

IMPOSSIBLE = [
    (
        {"positions": "rotary", "n_embd": 15, "n_head": 3},
        "rotary positions rotate pairs of a head's columns: head_dim must be even, and so must its rotary_share",
    ),
    ({"n_head": 6, "n_kv_head": 4}, "n_kv_head divides n_head"),
    ({"n_expert": 2, "n_expert_active": 3}, "n_expert_active is at most n_expert"),
    (
        {"attention": "linear"},
        "attention must be full or local: strided and linear are removed",
    ),
    ({"parallel_block": True, "norm_position": "post"}, "norm_position must be pre"),
    ({"parallel_block": True, "family": "encoder_decoder"}, "does not support cross-attention"),
    ({"tie_scale": True, "tie_weights": False}, "tie_weights must be true"),
    (
        {"head_bias": True, "tie_weights": False, "family": "encoder"},
        "whose head has a bias if bias is true: family must not be encoder",
    ),
    ({"share_embeddings": False}, "family must be encoder_decoder"),
    ({"n_encoder_layer": 5}, "apply only to family encoder_decoder"),
    (
        {"positions": "relative", "relative_buckets": 7},
        "relative positions need an even relative_buckets",
    ),
    (
        {"parametrization": "mup", "init": "xavier"},
        "mup sets all scales that depend on the width",
    ),
    ({"n_expert": 2, "model": "nanogpt"}, "has neither experts nor mup's scales"),
    ({"n_embd": 100, "n_head": 6}, "n_embd % n_head == 0"),
]


def resolved(**parts):
    return spaces_of(study(**parts), DataSizes(65))[0][0].resolve({}, seed=0)


@pytest.fixture(autouse=True)
def _a_plugins_model():
    with plugged.imported():
        yield


@pytest.mark.parametrize(("fixed", "reason"), IMPOSSIBLE)
def test_what_cannot_be_is_said_with_the_reason(fixed, reason):
    problem = problem_of(lambda: study(fixed=fixed))
    assert reason in problem and f"{next(iter(fixed))} is " in problem and AUTO not in problem


def test_every_requirement_is_tried_here():
    assert all(
        any(reason in each.text for _, reason in IMPOSSIBLE) for each in SHAPE_REQUIREMENTS
    )


def test_what_is_auto_is_settled_from_the_rest():
    values = resolved(
        fixed={"n_embd": 96, "n_head": 4, "n_layer": 5, "dropout": 0.3, "activation": "swiglu"}
    )
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
    assert (
        resolved(
            fixed={"d_ff": 100, "dropout": 0.3, "attention_dropout": 0.0}
        ).attention_dropout
        == 0.0
    )


def points(**parts):
    """Return the cells of a study and check that each of the others has a reason."""
    kept, left_out = spaces_of(study(**parts), DataSizes(65))
    assert all(reason for _, reason in left_out)
    return [space.cell.values for space in kept]


def test_parts_that_do_not_divide_the_batch_are_refused():
    grid = {"grad_accum": [1, 3, 4, 5]}
    assert points(fixed={"batch_size": 12}, grid=grid) == [{"grad_accum": n} for n in (1, 3, 4)]
    with pytest.raises(
        BadInput, match=r"no cell meets 'batch_size % grad_accum == 0' where batch_size is 48"
    ):
        points(fixed={"grad_accum": 5})


def test_mup_goes_with_optimizers_that_follow_the_width():
    found = points(grid={"parametrization": ["standard", "mup"], "optimizer": list(OPTIMIZERS)})
    chosen = {each["optimizer"] for each in found if each["parametrization"] == "mup"}
    assert chosen == {"adamw", "lion"}
    assert len(found) == len(OPTIMIZERS) + len(chosen)
    with pytest.raises(BadInput, match=r'where optimizer is "sgd", parametrization is "mup"'):
        points(fixed={"parametrization": "mup", "optimizer": "sgd"})
