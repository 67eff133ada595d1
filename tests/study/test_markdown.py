from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeplab.errors import BadInput
from sweeplab.expressions import FUNCTIONS
from sweeplab.hyperparameters import ALIASES, TABLE, canonical
from sweeplab.study.file.entries import parse_tables, parse_value, read_range, read_tables
from sweeplab.study.file.reading import read_study
from sweeplab.study.file.template import study_text
from sweeplab.study.values import ENTRY, FACTS, Derived, Range

USUAL = """\
# Hyperparameters

Here is what we used. Note | that prose may have pipes.

| **Parameter** | **Sample Value** | **Meaning** |
|:--------------|:----------------:|------------:|
| `block_size`  | 192              | context     |
| `vocab_size`  | *(auto from tokenizer)* | from the data |
| **Model**     |                  |             |
| **`n_embd`**  | **192**          | width       |
| n\\_head      | 6                | `a \\| b`   |
| `betas`       | `(0.9, 0.95)`    | Adam        |
| `scheduler_type` | `"cosine"`    |             |
| `learning_rate` | 3e-4           |             |
| `max_iters`   | 10,000           |             |
| `tie_weights` | True             |             |
"""


def test_reads_the_usual_form():
    tables = parse_tables(USUAL)
    assert tables.values == {
        "block_size": 192,
        "vocab_size": "auto",
        "n_embd": 192,
        "n_head": 6,
        "betas": (0.9, 0.95),
        "scheduler_type": "cosine",
        "learning_rate": 3e-4,
        "max_iters": 10_000,
        "tie_weights": True,
    }
    assert tables.lines["block_size"] == 7 and tables.lines["tie_weights"] == 16
    assert not tables.notices


@pytest.mark.parametrize(
    ("name", "written", "value"),
    [
        ("max_iters", "1\u202f000\u202f000", 1_000_000),
        ("batch_size", "512k tokens", None),
        ("dtype", "bf16", "bfloat16"),
        ("learning_rate", "3×10⁻⁴", 3e-4),
        ("max_iters", "10,00", None),
        ("dropout", "0.1 (or 0.2)", 0.1),
        ("betas", "[0.9, 0.99] (GPT-3)", (0.9, 0.99)),
        ("scheduler_type", "“Cosine”", "cosine"),
        ("device", "auto-detected", "auto"),
        ("grad_clip", "off", "switched off"),
        ("n_layer", "", None),
        ("learning_rate", "1e999", None),
    ],
)
def test_values_as_people_write_them(name, written, value):
    if value is None:
        with pytest.raises(ValueError, match=name):
            parse_value(TABLE[name], written)
        return
    expected = None if value == "switched off" else value
    assert parse_value(TABLE[name], written) == expected
    assert type(parse_value(TABLE[name], written)) is type(expected)


@pytest.mark.parametrize(
    ("name", "written", "entry"),
    [
        ("learning_rate", "1e-4 to 3e-3, log", {"min": 1e-4, "max": 3e-3, "log": True}),
        ("learning_rate", "3×10⁻⁵ – 10⁻²", {"min": 3e-5, "max": 1e-2, "log": True}),
        ("dropout", "0–0.4, step 0.1", {"min": 0.0, "max": 0.4, "step": 0.1}),
        ("n_embd", "{64, 128, 256}", [64, 128, 256]),
        ("betas", "(0.9, 0.95), (0.9, 0.99)", [(0.9, 0.95), (0.9, 0.99)]),
        ("n_head", "suggested", "suggested"),
        ("warmup_iters", "2.5 % of the training steps", {"expr": "max_iters * 2.5 // 100"}),
        ("activation", "gelu to relu", None),
        ("min_lr", "10% of peak", {"expr": "learning_rate * 10 / 100"}),
        ("max_iters", "2k-10k", {"min": 2000, "max": 10_000}),
        ("n_layer", "", None),
    ],
)
def test_ranges_as_people_write_them(name, written, entry):
    found = read_range(TABLE[name], written)
    assert (found, type(found)) == (entry, type(entry))


@given(
    row=st.sampled_from(list(TABLE.values())),
    text=st.text("[{(0123456789.,- e)}]to|/logstep", max_size=40),
)
def test_a_range_of_any_text_is_sound_or_none(row, text):
    with suppress(BadInput):
        entry = read_range(row, text)
        assert entry is None or ENTRY.validate_python(entry, context=row)


def test_knows_what_others_call_the_rows():
    assert set(ALIASES.values()) <= set(TABLE) and not set(ALIASES) & {
        *TABLE,
        *FACTS,
        *FUNCTIONS,
    }
    assert all(
        canonical(other.upper().replace("_", "-")) == name for other, name in ALIASES.items()
    )
    rows = "|LR|1e-3|\n|d_model|64|\n|nhead|4|\n|Num layers|2|\n|ctx_len|32|\n|max steps|50|\n"
    tables = parse_tables("|Name|Value|\n|-|-|\n" + rows)
    sizes = {"n_embd": 64, "n_head": 4, "n_layer": 2, "block_size": 32, "max_iters": 50}
    assert tables.values == {"learning_rate": 1e-3, **sizes} and not tables.notices


MARKDOWN = """
| Hyperparameter | Value | Search range |
|---|---|---|
| learning rate (peak) | 3e-4 | 1e-3 to 1e-2 |
| max steps | 10k | 5k–20k |
| min_lr | 10% of peak | |
| dropout | 0.5 | 0.0 to 0.4, step 0.1 |
| wandb_project | `gpt-debug` | |
| dtype | bf16 | bf16, fp32 |
"""


def test_a_table_of_a_source_makes_a_study_that_runs_anywhere(tmp_path):
    tables = parse_tables(MARKDOWN)
    text = study_text("mine", values=tables.values, ranges=tables.ranges)
    spec = read_study(tmp_path / "mine.yaml", text=text)
    assert spec.search["learning_rate"] == Range(1e-3, 1e-2, log=True)
    assert spec.search["max_iters"] == Range(5000, 20_000)
    assert spec.first_trial == {"max_iters": 10_000}, "others lie outside of their ranges"
    assert isinstance(spec.search["min_lr"], Derived) and spec.search["min_lr"].expr.names == {
        "learning_rate"
    }
    assert spec.fixed.get("wandb_project") is None and spec.fixed["dtype"] == "auto"
    for said in (
        "wandb_project: gpt-debug is left out: it needs the package wandb and a network",
        "the range of dtype is not understood and is skipped: 'bf16, fp32'",
    ):
        assert sum(said in notice for notice in tables.notices) == 1, tables.notices


def test_finds_the_columns_from_the_header():
    text = """
Meaning | Default | Value in the paper (ours) | Category | Hyper-parameter name
--------|--------:|:---|---|---
blocks  | 12      | 4  | Model | n_layer
width   | 768     | 64 | Model | n_embd
"""
    assert parse_tables(text).values == {"n_layer": 4, "n_embd": 64}


@pytest.mark.parametrize(
    "header",
    [
        "| Name | Meaning |",
        "| Parameter | Range of values |",
    ],
)
def test_passes_over_other_tables(header):
    assert parse_tables(f"{header}\n|---|---|\n| n_layer | 3 |\n") == parse_tables("")


def test_passes_over_fenced_code_and_what_is_no_table():
    table = "| Name | Value |\n|---|---|\n| n_layer | 3 |\n"
    fenced = f"~~~~md\n{table}~~~\n```\n{table}~~~~\n"
    unruled = "| Name | Value |\n| n_embd | 3 |\n"
    narrow_rule = "| Name | Value |\n|---|\n| n_embd | 3 |\n"
    assert parse_tables(fenced + unruled + "\n" + narrow_rule) == parse_tables("")
    assert parse_tables(fenced + table).lines == {"n_layer": 13}


def test_the_later_table_wins_and_a_contradiction_is_said():
    later = "\nAnd then:\n\n| Name | Value |\n|---|---|\n| n_embd | 64 |\n| n_head | 6 |\n| max_iters | 1e4 |\n"
    tables = parse_tables(USUAL + later)
    assert tables.values["n_embd"] == 64 and tables.lines["n_embd"] == 22
    (said,) = tables.notices
    assert said == "line 22: n_embd: its value 192 on line 10 is replaced by 64"


def test_says_unknown_rows_with_the_nearest_name():
    tables = parse_tables(
        "|Name|Value|\n|-|-|\n|`n_layer_`|**3**|\n|zzz||\n|rope\\|theta|10,000|\n"
    )
    assert tables.notices == [
        "line 3: unknown hyperparameter 'n_layer_' (3); did you mean 'n_layer'?",
        "line 5: unknown hyperparameter 'rope|theta' (10,000)",
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"x" * (2**20 + 1), "too large; allowed: at most 1,000,000 bytes"),
        (b"# no table\n", "no table of hyperparameters"),
    ],
    ids=["large", "without a table"],
)
def test_refuses_a_file_in_one_line(tmp_path, content, said):
    path = tmp_path / "table.md"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=said) as refused:
        read_tables(path)
    assert str(refused.value).startswith(str(path)) and "\n" not in str(refused.value)


def test_reads_windows_line_ends_and_a_byte_order_mark(tmp_path):
    path = tmp_path / "table.md"
    path.write_bytes(b"\xef\xbb\xbf" + USUAL.replace("\n", "\r\n").encode())
    assert read_tables(path) == parse_tables(USUAL)


def test_of_rows_that_set_the_length_of_training_one_stays_and_that_is_said():
    tables = parse_tables("|Name|Value|\n|-|-|\n|epochs|2|\n|steps|1M|\n")
    spec = read_study(Path("mine.yaml"), text=study_text("mine", values=tables.values))
    assert spec.fixed["epochs"] == 2 and "max_iters" not in spec.fixed
    (said,) = tables.notices
    assert said == "line 4: max_iters is left out: epochs sets the length of training"
