import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from tiny_study import study_of_parts as study

from sweeplab.data import DataSizes
from sweeplab.errors import BadInput
from sweeplab.hyperparameters import TABLE
from sweeplab.study.rules import facts
from sweeplab.study.space import spaces_of
from sweeplab.study.values import FACTS

DATA = DataSizes(65)


def space_of(vocab_size=65, **parts):
    spec = study(**parts)
    sizes = DataSizes(vocab_size)
    return spaces_of(spec, sizes)[0][0]


def suggestions(space, count, seed=0):
    trials = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    return [space.suggest(trials.ask()) for _ in range(count)]


def test_every_kind_of_distribution():
    space = space_of(
        search={
            "n_layer": {"min": 1, "max": 8},
            "warmup_iters": {"min": 0, "max": 10, "step": 5},
            "learning_rate": {"min": 1e-4, "max": 1e-2, "log": True},
            "dropout": {"min": 0, "max": 0.4, "step": 0.1},
            "activation": ["relu", "gelu"],
            "betas": [[0.9, 0.95], [0.9, 0.99]],
            "patience": [None, 3],
            "n_head": [2, 3, 4],
            "top_k": {"expr": "n_layer * 2"},
        }
    )
    assert {name: each.distribution() for name, each in space.parameters.items()} == {
        "n_layer": IntDistribution(1, 8),
        "warmup_iters": IntDistribution(0, 10, step=5),
        "learning_rate": FloatDistribution(1e-4, 1e-2, log=True),
        "dropout": FloatDistribution(0, 0.4, step=0.1),
        "activation": CategoricalDistribution(["relu", "gelu"]),
        "betas": CategoricalDistribution(["[0.9, 0.95]", "[0.9, 0.99]"]),
        "patience": CategoricalDistribution([None, 3]),
        "n_head": CategoricalDistribution([2, 3, 4]),
    }
    assert not space.conditional
    for sampled in suggestions(space, 20):
        assert sampled["betas"] in [(0.9, 0.95), (0.9, 0.99)]
        assert sampled["dropout"] in [0.0, 0.1, 0.2, 0.3, 0.4]
        assert "top_k" not in sampled
        assert space.resolve(sampled, 3).top_k == 2 * sampled["n_layer"]


def test_effective_hyperparameters_are_all_there_and_by_precedence():
    space = space_of(
        fixed={"n_head": 4, "betas": [0.9, 0.99]},
        grid={"n_embd": [64]},
        search={"dropout": [0.3], "warmup_iters": {"expr": "max_iters / 10"}},
    )
    values = space.resolve({"dropout": 0.3}, seed=7)
    assert list(values.as_dict()) == list(TABLE)
    expected = {
        "n_layer": 3,
        "n_head": 4,
        "n_embd": 64,
        "dropout": 0.3,
        "warmup_iters": 30,
        "seed": 7,
    }
    assert {name: getattr(values, name) for name in expected} == expected
    assert type(values.warmup_iters) is int
    assert space.broken(values) is None


def test_a_parameter_with_a_condition_is_sampled_only_where_it_holds():
    space = space_of(search={"lr_decay": [True, False], "min_lr": "suggested"})
    assert space.conditional
    for sampled in suggestions(space, 20):
        assert ("min_lr" in sampled) == sampled["lr_decay"]
        assert (
            sampled["lr_decay"] or space.resolve(sampled, 0).min_lr == TABLE["min_lr"].default
        )


def test_cells_are_every_combination_but_the_excluded():
    spec = study(
        grid={"n_layer": [1, 2], "n_embd": [48, 64, 96], "n_head": [6]},
        constraints=["n_layer * n_embd < 150"],
    )
    kept, excluded = spaces_of(spec, DATA)
    assert [(space.cell.index, space.cell.key) for space in kept] == [
        (0, "n_layer=1,n_embd=48,n_head=6"),
        (1, "n_layer=1,n_embd=96,n_head=6"),
        (2, "n_layer=2,n_embd=48,n_head=6"),
    ]
    assert excluded == [
        ({"n_layer": 1, "n_embd": 64, "n_head": 6}, "n_embd % n_head == 0"),
        ({"n_layer": 2, "n_embd": 64, "n_head": 6}, "n_embd % n_head == 0"),
        ({"n_layer": 2, "n_embd": 96, "n_head": 6}, "n_layer * n_embd < 150"),
    ]


def test_rules_that_rest_on_the_vocabulary_wait_for_the_data():
    spec = study(constraints=["vocab_size > 1000"])
    assert len(spaces_of(spec, None)[0]) == 1
    with pytest.raises(BadInput, match="no cell meets 'vocab_size > 1000'"):
        spaces_of(spec, DATA)
    assert len(spaces_of(spec, DataSizes(2000))[0]) == 1
    with pytest.raises(
        BadInput, match="no cell meets 'vocab_size >= 65' where vocab_size is 64"
    ):
        spaces_of(study(fixed={"vocab_size": 64}), DATA)


def test_an_expression_without_a_value_is_not_met():
    space = space_of(search={"patience": [None, 3]}, constraints=["patience < 9"])
    assert {
        values.patience: space.broken(values) and space.broken(values).text
        for values in space.draws(8)
    } == {
        None: "patience < 9",
        3: None,
    }


@pytest.mark.parametrize(
    ("grid", "key"),
    [
        ({}, "all"),
        (
            {"bias": [False], "patience": [None], "learning_rate": [3e-5]},
            "bias=false,patience=null,learning_rate=3e-05",
        ),
        ({"wandb_project": ["a/b,c=.."]}, "wandb_project=a%2Fb%2Cc%3D.."),
    ],
)
def test_a_cells_key_is_a_folders_name(grid, key):
    assert spaces_of(study(grid=grid), DATA)[0][0].cell.key == key


# What moves a fact of any model; other hyperparameters move it in some.
SIZES = {
    "vocab_size",
    "n_layer",
    "n_embd",
    "bias",
    "qkv_bias",
    "out_bias",
    "ff_bias",
    "head_bias",
    "tie_weights",
    "d_ff",
}
ALWAYS = {
    "n_params": SIZES | {"block_size"},
    "n_params_active": SIZES | {"block_size"},
    "n_params_non_embedding": SIZES,
    "train_tokens": {"max_iters", "batch_size", "block_size"},
    "train_flops": {
        "max_iters",
        "batch_size",
        "block_size",
        "vocab_size",
        "n_layer",
        "n_embd",
        "d_ff",
    },
}


def test_facts_follow_from_what_they_are_said_to():
    space = space_of(fixed={"tie_weights": False, "head_bias": True})
    values = space.resolve({}, 0)
    known = facts(values)._asdict()
    assert known.keys() == FACTS.keys()
    assert known["train_tokens"] == 300 * 48 * 192
    for name in TABLE:
        value = getattr(values, name)
        if not isinstance(value, bool | int) or name == "seed":
            continue
        changed = values.replace(
            **{name: not value if isinstance(value, bool) else value * 2 or 1}
        )
        moved = {
            fact for fact, value in facts(changed)._asdict().items() if value != known[fact]
        }
        assert moved <= {fact for fact, behind in FACTS.items() if name in behind}, name
        assert moved >= {fact for fact, behind in ALWAYS.items() if name in behind}, name


def test_quasi_random_points_cover_a_space_evenly():
    space = space_of(
        search={
            "activation": ["relu", "gelu"],
            "n_layer": {"min": 1, "max": 4},
            "learning_rate": {"min": 1e-4, "max": 1e-2, "log": True},
        }
    )
    draws = list(space.draws(400))
    assert sum(values.learning_rate < 1e-3 for values in draws) == pytest.approx(200, abs=8)
    both = sum(values.learning_rate < 1e-3 and values.activation == "relu" for values in draws)
    assert both == pytest.approx(100, abs=10)
    assert draws == list(space.draws(400))


@pytest.mark.parametrize(
    "name", [row.name for row in TABLE.values() if row.suggested is not None]
)
def test_every_suggested_search_is_sampled_as_its_row_has_it(name):
    space = space_of(
        search={name: "suggested"}, fixed={} if name == "n_head" else {"n_head": 1}
    )
    for sampled in suggestions(space, 5):
        assert TABLE[name].check(sampled[name]) == sampled[name]
        assert type(sampled[name]) is type(TABLE[name].check(sampled[name]))
