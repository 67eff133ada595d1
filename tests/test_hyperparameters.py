import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from terminal import said

from sweeplab.hyperparameters import CATEGORIES, SHAPE, TABLE, Hyperparameters

# The field's table, typed off once more: a row that is renamed or loses its value is found here.
FIELD = {
    "data": {"block_size": 192, "vocab_size": "auto"},
    "model": {"n_embd": 192, "n_head": 6, "n_layer": 3, "dropout": 0.2, "tie_weights": True},
    "training": {"batch_size": 48, "max_iters": 300, "grad_clip": 1.0},
    "optimizer": {
        "learning_rate": 3e-4,
        "weight_decay": 0.1,
        "betas": (0.9, 0.95),
        "eps": 1e-8,
    },
    "scheduler": {
        "lr_decay": True,
        "warmup_iters": 100,
        "min_lr": 1e-5,
        "scheduler_type": "cosine",
    },
    "precision": {"device": "cuda", "dtype": "bfloat16", "compile": True},
    "validation": {"eval_interval": 100, "eval_iters": 20, "patience": 6, "min_delta": 1e-3},
    "logging": {"save_interval": 100, "log_interval": 50, "wandb_project": "gpt-debug"},
    "generation": {"temperature": 0.8, "top_k": 50, "top_p": 0.95, "max_new_tokens": 200},
}
ROWS = st.sampled_from(list(TABLE.values()))
ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.lists(st.floats(), max_size=3),
)


@pytest.mark.parametrize("category", FIELD)
def test_has_the_fields_names_and_sample_values(category):
    for name, sample in FIELD[category].items():
        assert (TABLE[name].category, TABLE[name].sample) == (category, sample)
        assert type(TABLE[name].sample) is type(sample)


def test_every_row_is_complete():
    for name, row in TABLE.items():
        assert name == row.name
        assert row.category in CATEGORIES
        assert row.meaning and row.meaning[0].isupper() and not row.meaning.endswith(".")
        assert row.check(row.sample) == row.sample
        assert row.check(row.default) == row.default
    assert set(SHAPE) == {row.name for row in TABLE.values() if row.shape}


def test_suggested_ranges_lie_within_the_bounds():
    for row in TABLE.values():
        if isinstance(row.suggested, tuple):
            assert [row.check(choice) for choice in row.suggested] == list(row.suggested)
        elif row.suggested is not None:
            low, high = row.check(row.suggested["min"]), row.check(row.suggested["max"])
            assert low < high
            assert low > 0 or not row.suggested.get("log")
            assert set(row.suggested) <= {"min", "max", "log", "step", "when"}
            assert {row.suggested[key] for key in ("when",) if key in row.suggested} <= set(
                TABLE
            )


@given(row=ROWS, value=ANYTHING)
def test_what_check_returns_it_takes_again(row, value):
    try:
        checked = row.check(value)
    except ValueError as error:
        assert str(error).startswith(f"{row.name} is ") and row.allowed in str(error)
    else:
        assert row.check(checked) == checked
        assert checked == (tuple(value) if isinstance(value, list) else value)


@given(row=ROWS.filter(lambda row: row.kind in ("int", "float")), value=st.floats(-1e12, 1e12))
def test_check_keeps_to_the_bounds(row, value):
    value = float(round(value)) if row.kind == "int" else value
    inside = (
        (row.low is None or value >= row.low)
        and (row.high is None or value <= row.high)
        and (row.above is None or value > row.above)
        and (row.below is None or value < row.below)
    )
    if inside:
        assert type(row.check(value)) is {"int": int, "float": float}[row.kind]
    else:
        with pytest.raises(ValueError, match=row.name):
            row.check(value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_layer", True),
        ("n_layer", 2.5),
        ("n_layer", 0),
        ("learning_rate", float("nan")),
        ("learning_rate", "3e-4"),
        ("dropout", 1.0),
        ("betas", (0.9,)),
        ("betas", (0.9, 1.0)),
        ("tie_weights", 1),
        ("scheduler_type", "cosin"),
        ("n_layer", None),
        ("n_layer", "auto"),
    ],
)
def test_check_refuses(name, value):
    with pytest.raises(ValueError, match=f"^{name} is .*; allowed: "):
        TABLE[name].check(value)


def test_runs_differ_by_what_a_plug_in_adds():
    other = Hyperparameters()
    vars(other)["units"] = 8
    assert other != Hyperparameters()


def test_imports_nothing_but_the_standard_library():
    program = (
        "import sys; before = set(sys.modules); import sweeplab.hyperparameters;"
        "print(*{name.split('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names)"
    )
    assert said([sys.executable, "-c", program]).split() == ["sweeplab"]
