import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeplab.hyperparameters import (
    AUTO,
    CATEGORIES,
    CONDITIONS,
    SHAPE,
    TABLE,
    Hyperparameters,
    defaults,
)

# The field's table, typed off once more: a row that is renamed or loses its value is found here.
FIELD = {
    "data": {"block_size": 192, "vocab_size": "auto"},
    "model": {"n_embd": 192, "n_head": 6, "n_layer": 3, "dropout": 0.2, "tie_weights": True},
    "training": {"batch_size": 48, "max_iters": 300, "grad_clip": 1.0},
    "optimizer": {"learning_rate": 3e-4, "weight_decay": 0.1, "betas": (0.9, 0.95), "eps": 1e-8},
    "scheduler": {"lr_decay": True, "warmup_iters": 100, "min_lr": 1e-5, "scheduler_type": "cosine"},
    "precision": {"device": "cuda", "dtype": "bfloat16", "compile": True},
    "validation": {"eval_interval": 100, "eval_iters": 20, "patience": 6, "min_delta": 1e-3},
    "logging": {"save_interval": 100, "log_interval": 50, "wandb_project": "gpt-debug"},
    "generation": {"temperature": 0.8, "top_k": 50, "top_p": 0.95, "max_new_tokens": 200},
}
ROWS = st.sampled_from(list(TABLE.values()))
ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.floats(), max_size=3)
)


@pytest.mark.parametrize("category", FIELD)
def test_has_the_fields_names_and_sample_values(category: str) -> None:
    for name, sample in FIELD[category].items():
        assert (TABLE[name].category, TABLE[name].sample) == (category, sample)
        assert type(TABLE[name].sample) is type(sample)


def test_defaults_are_the_samples_but_for_what_is_settled() -> None:
    differing = {name for name, value in defaults().items() if value != TABLE[name].sample}
    settled_by_others = {"n_encoder_layer", "n_decoder_layer", "head_dim", "n_kv_head", "d_ff", "final_norm"}
    settled_by_others |= {
        "embedding_dropout",
        "attention_dropout",
        "residual_dropout",
        "eval_tokens",
        "mup_base_head_dim",
    }
    off = {"wandb_project", "data_limit", "plateau_threshold", "epochs", "tokens_per_param", "n_labels"}
    off.add("full_attention_interval")
    assert differing == {"device", "dtype", "compile", "objective"} | settled_by_others | off
    assert {defaults()[name] for name in differing - off} == {AUTO}
    assert {defaults()[name] for name in off} == {None}, "and nothing is sent anywhere unasked"


def test_every_row_is_complete() -> None:
    for name, row in TABLE.items():
        assert name == row.name
        assert row.category in CATEGORIES
        assert row.meaning and row.meaning[0].isupper() and not row.meaning.endswith(".")
        assert row.check(row.sample) == row.sample
        assert row.check(row.default) == row.default
    assert set(SHAPE) == {row.name for row in TABLE.values() if row.shape}


def test_suggested_ranges_lie_within_the_bounds() -> None:
    for row in TABLE.values():
        if isinstance(row.suggested, tuple):
            assert [row.check(choice) for choice in row.suggested] == list(row.suggested)
        elif row.suggested is not None:
            low, high = row.check(row.suggested["min"]), row.check(row.suggested["max"])
            assert low < high
            assert low > 0 or not row.suggested.get("log")
            assert set(row.suggested) <= {"min", "max", "log", "step", "when", "divides"}
            assert {row.suggested[key] for key in ("when", "divides") if key in row.suggested} <= set(TABLE)


@given(row=ROWS, value=ANYTHING)
def test_what_check_returns_it_takes_again(row, value) -> None:
    try:
        checked = row.check(value)
    except ValueError as error:
        assert str(error).startswith(f"{row.name} is ") and row.allowed in str(error)
    else:
        assert row.check(checked) == checked
        assert checked == (tuple(value) if isinstance(value, list) else value)


@given(row=ROWS.filter(lambda row: row.kind in ("int", "float")), value=st.floats(-1e12, 1e12))
def test_check_keeps_to_the_bounds(row, value) -> None:
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
def test_check_refuses(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{name} is .*; allowed: "):
        TABLE[name].check(value)


def test_imports_nothing_but_the_standard_library() -> None:
    program = (
        "import sys; before = set(sys.modules); import sweeplab.hyperparameters;"
        "print(*{name.split('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["sweeplab"]


def test_only_what_takes_part_in_a_run_is_applicable() -> None:
    decoder = Hyperparameters.of(defaults()).applicable()
    others = {
        "mask_share",
        "n_encoder_layer",
        "rotary_base",
        "attention_window",
        "momentum",
        "plateau_factor",
    }
    assert TABLE.keys() - decoder.keys() < CONDITIONS.keys() < TABLE.keys()
    assert not decoder.keys() & others and {"betas", "eps", "min_lr", "eval_iters"} <= decoder.keys()
    changed = {"family": "encoder", "objective": "masked", "positions": "rotary", "optimizer": "sgd"}
    encoder = Hyperparameters.of(defaults() | changed | {"lr_decay": False, "n_expert": 4}).applicable()
    assert {"mask_share", "rotary_base", "momentum", "router_z"} <= encoder.keys()
    assert not encoder.keys() & {"betas", "eps", "min_lr", "scheduler_type", "head_bias", "span_length"}
