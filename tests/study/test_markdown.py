import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sweeplab.errors import BadInput
from sweeplab.expressions import FUNCTIONS
from sweeplab.hyperparameters import ALIASES, TABLE, Hyperparameter, canonical
from sweeplab.study.file.entries import parse_value, plain, read_range
from sweeplab.study.file.markdown import parse_tables, read_tables
from sweeplab.study.file.reading import read_text
from sweeplab.study.file.template import study_text
from sweeplab.study.search import ENTRY, Derived, Range
from sweeplab.study.values import FACTS

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


def test_reads_the_usual_form() -> None:
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
        ("learning_rate", "3e-4", 3e-4),
        ("learning_rate", "3×10⁻⁴", 3e-4),
        ("max_iters", "10,000", 10_000),
        ("max_iters", "1\u202f000\u202f000", 1_000_000),
        ("max_iters", "300 iterations", 300),
        ("batch_size", "512k tokens", None),
        ("dtype", "bf16", "bfloat16"),
        ("positions", "RoPE", "rotary"),
        ("max_iters", "10,00", None),
        ("dropout", "0.1 (or 0.2)", 0.1),
        ("dropout", "0.1–0.2", None),
        ("betas", "(0.9, 0.95)", (0.9, 0.95)),
        ("betas", "`[0.9, 0.99]` (GPT-3)", (0.9, 0.99)),
        ("tie_weights", "`True`", True),
        ("scheduler_type", "“Cosine”", "cosine"),
        ("scheduler_type", "cosine with restarts", None),
        ("activation", "GELU", "gelu"),
        ("device", "*auto-detected*", "auto"),
        ("grad_clip", "off", "switched off"),
        ("n_layer", "", None),
        ("n_layer", "9" * 6000, None),
        ("learning_rate", "1e999", None),
    ],
)
def test_values_as_people_write_them(name: str, written: str, value: object) -> None:
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
        ("learning_rate", "loguniform(1e-5, 1e-2)", {"min": 1e-5, "max": 1e-2, "log": True}),
        ("weight_decay", "[0, 0.3]", {"min": 0.0, "max": 0.3}),
        ("dropout", "0–0.4, step 0.1", {"min": 0.0, "max": 0.4, "step": 0.1}),
        ("dropout", "0, 0.1 or 0.2", [0.0, 0.1, 0.2]),
        ("n_embd", "{64, 128, 256}", [64, 128, 256]),
        ("tie_weights", "True / False", [True, False]),
        ("betas", "(0.9, 0.95), (0.9, 0.99)", [(0.9, 0.95), (0.9, 0.99)]),
        ("grad_clip", "{1.0, none}", [1.0, None]),
        ("n_head", "suggested", "suggested"),
        ("warmup_iters", "2.5 % of the training steps", {"expr": "max_iters * 2.5 // 100"}),
        ("max_iters", "5% of steps", None),
        ("learning_rate", "> 0", None),
        ("learning_rate", "1e-2 to 1e-4", None),
        ("dropout", "0 to 0.4, log", None),
        ("activation", "gelu to relu", None),
        ("device", "cuda or cpu", ["cuda", "cpu"]),
        ("min_lr", "0.1 × learning_rate", {"expr": "0.1 * learning_rate"}),
        ("min_lr", "10% of peak", {"expr": "learning_rate * 10 / 100"}),
        ("max_iters", "2k-10k steps", {"min": 2000, "max": 10_000}),
        ("n_layer", "2 * n_layer", None),
        ("n_layer", "", None),
    ],
)
def test_ranges_as_people_write_them(name: str, written: str, entry: object) -> None:
    found = read_range(TABLE[name], written)
    assert (found, type(found)) == (entry, type(entry))


@given(
    row=st.sampled_from(list(TABLE.values())), text=st.text("[{(0123456789.,- e)}]to|/logstep", max_size=40)
)
def test_a_range_of_any_text_is_sound_or_none(row: Hyperparameter, text: str) -> None:
    if (entry := read_range(row, text)) is not None:
        assert ENTRY.validate_python(entry, context=row)


def test_knows_what_others_call_the_rows() -> None:
    assert set(ALIASES.values()) <= set(TABLE) and not set(ALIASES) & {*TABLE, *FACTS, *FUNCTIONS}
    assert all(canonical(other.upper().replace("_", "-")) == name for other, name in ALIASES.items())
    rows = "|LR|1e-3|\n|d_model|64|\n|nhead|4|\n|Num layers|2|\n|ctx_len|32|\n|max steps|50|\n"
    tables = parse_tables("|Name|Value|\n|-|-|\n" + rows)
    sizes = {"n_embd": 64, "n_head": 4, "n_layer": 2, "block_size": 32, "max_iters": 50}
    assert tables.values == {"learning_rate": 1e-3, **sizes} and not tables.notices


MARKDOWN = """
| Hyperparameter | Value | Search range |
|---|---|---|
| learning rate (peak) | 3e-4 | 1e-3 to 1e-2 |
| max steps | 10k steps | 5k–20k |
| min_lr | 10% of peak | |
| dropout | 0.5 | 0.0 to 0.4, step 0.1 |
| wandb_project | `gpt-debug` | |
| dtype | bf16 | bf16, fp16 |
"""


def test_a_table_of_a_source_makes_a_study_that_runs_anywhere(tmp_path: Path) -> None:
    tables = parse_tables(MARKDOWN).for_any_machine()
    text, notices = tables.study(lambda kept: study_text("mine", values=kept.values, ranges=kept.ranges))
    spec = read_text(text, tmp_path / "mine.yaml")
    assert spec.search["learning_rate"] == Range(3e-4, 1e-2, log=True), "widened to contain the sample value"
    assert spec.search["dropout"] == Range(0.0, 0.5, step=0.1)
    assert spec.search["max_iters"] == Range(5000, 20_000)
    assert spec.first_trial == {"learning_rate": 3e-4, "max_iters": 10_000, "dropout": 0.5}
    assert isinstance(spec.search["min_lr"], Derived) and spec.search["min_lr"].expr.names == {
        "learning_rate"
    }
    assert spec.fixed.get("wandb_project") is None and spec.fixed["dtype"] == "auto"
    for said in (
        "the range of learning_rate is widened to contain 0.0003",
        "the range of dropout is widened to contain 0.5",
        "wandb_project: gpt-debug is left out: it needs the package wandb and a network",
        "the range of dtype is not searched: --grid dtype makes cells of it",
    ):
        assert sum(said in notice for notice in notices) == 1, notices


def test_a_range_that_cannot_hold_the_value_stays(tmp_path: Path) -> None:
    rows = "|weight_decay|0|1e-3 to 1e-1, log|\n|grad_clip|none|0.5 to 2|\n|activation|relu|gelu, swiglu|\n"
    tables = parse_tables(f"|Name|Value|Range|\n|-|-|-|\n{rows}")
    assert tables.ranges["weight_decay"] == {"min": 1e-3, "max": 1e-1, "log": True}
    assert tables.ranges["grad_clip"] == {"min": 0.5, "max": 2.0, "log": True}
    assert tables.ranges["activation"] == ["gelu", "swiglu", "relu"] and len(tables.notices) == 1


def test_finds_the_columns_from_the_header() -> None:
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
        "| Symbol | Value |",
        "| Parameter | Range of values |",
        "| Parameter | Max value |",
    ],
)
def test_passes_over_other_tables(header: str) -> None:
    assert parse_tables(f"{header}\n|---|---|\n| n_layer | 3 |\n") == parse_tables("")


def test_passes_over_fenced_code_and_what_is_no_table() -> None:
    table = "| Name | Value |\n|---|---|\n| n_layer | 3 |\n"
    fenced = f"~~~~md\n{table}~~~\n```\n{table}~~~~\n"
    unruled = "| Name | Value |\n| n_embd | 3 |\n"
    narrow_rule = "| Name | Value |\n|---|\n| n_embd | 3 |\n"
    assert parse_tables(fenced + unruled + "\n" + narrow_rule) == parse_tables("")
    assert parse_tables(fenced + table).lines == {"n_layer": 13}


def test_the_later_table_wins_and_a_contradiction_is_said() -> None:
    later = (
        "\nAnd then:\n\n| Name | Value |\n|---|---|\n| n_embd | 64 |\n| n_head | 6 |\n| max_iters | 1e4 |\n"
    )
    tables = parse_tables(USUAL + later)
    assert tables.values["n_embd"] == 64 and tables.lines["n_embd"] == 22
    (said,) = tables.notices
    assert said == "line 22: n_embd: its value 192 on line 10 is replaced by 64"


def test_says_unknown_rows_with_the_nearest_name() -> None:
    tables = parse_tables("|Name|Value|\n|-|-|\n|`n_layer_`|**3**|\n|zzz||\n|rope\\|theta|10,000|\n")
    assert tables.notices == [
        "line 3: unknown hyperparameter 'n_layer_' (3); did you mean 'n_layer'?",
        "line 5: unknown hyperparameter 'rope|theta' (10,000)",
    ]


@given(
    st.dictionaries(st.sampled_from(["learning_rate", "eps", "min_lr"]), st.floats(1e-12, 1e12), min_size=1)
)
def test_reads_every_number_that_python_writes(values: dict[str, float]) -> None:
    rows = "\n".join(f"| {name} | {value!r} |" for name, value in values.items())
    assert parse_tables(f"| Name | Value |\n|---|---|\n{rows}\n").values == values


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file"),
        (b"\xff\xfe", "a byte that is not UTF-8"),
        (b"x" * (2**20 + 1), "too large; allowed: at most 1,048,576 bytes"),
        (b"# no table\n", "no table of hyperparameters"),
    ],
    ids=["missing", "binary", "large", "without a table"],
)
def test_refuses_a_file_in_one_line(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "table.md"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadInput, match=said) as refused:
        read_tables(path)
    assert str(refused.value).startswith(str(path)) and "\n" not in str(refused.value)


def test_reads_windows_line_ends_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "table.md"
    path.write_bytes(b"\xef\xbb\xbf" + USUAL.replace("\n", "\r\n").encode())
    assert read_tables(path) == parse_tables(USUAL)


CLASHING = [
    "n_embd",
    "n_head",
    "n_kv_head",
    "head_dim",
    "max_iters",
    "epochs",
    "warmup_iters",
    "batch_size",
    "grad_accum",
]
NAMES = st.one_of(
    st.sampled_from(CLASHING), st.sampled_from([*TABLE, *ALIASES]), st.text("abc_ -", min_size=1, max_size=8)
)
NUMBERS = st.one_of(
    st.integers(1, 9).map(str),
    st.integers(0, 4096).map(str),
    st.integers(1, 64).map(lambda number: f"{number}k"),
    st.integers(0, 100).map(lambda number: f"{number}%"),
    st.floats(1e-9, 10).map(lambda number: f"{number:.1e}"),
)
CELLS = st.one_of(
    NUMBERS,
    st.tuples(NUMBERS, NUMBERS).map("–".join),
    st.lists(NUMBERS, max_size=3).map(lambda each: f"{{{', '.join(each)}}}"),
    st.sampled_from(["", "—", "5% of steps", "auto", "none", "true", "bf16", "(0.9, 0.95)", "suggested"]),
    st.sampled_from(sorted({choice for row in TABLE.values() for choice in row.choices})),
    st.text(max_size=12),
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@example([("n_embd", "64", ""), ("n_head", "5", ""), ("n_kv_head", "3", ""), ("batch", "7", "")], True)
@example([("learning_rate", "5e-3", "1e-4–3e-3"), ("scheduler_type", "cosine", "cosine, linear")], True)
@example([("n_embd", "96", "32–128"), ("n_head", "4", "")], False)
@example(
    [("epochs", "2", ""), ("steps", "1M", ""), ("grad_accum", "{5, 7}", ""), ("dtype", "bf16", "")], False
)
@given(st.lists(st.tuples(NAMES, CELLS, CELLS), min_size=1, max_size=12), st.booleans())
def test_of_any_table_a_sound_study_is_written_with_every_row(
    rows: list[tuple[str, str, str]], minimal: bool
) -> None:
    def in_a_cell(text: str) -> str:
        return re.sub(r"[|\\`\r\n]", " ", text)

    lines = "".join(f"|{name}|{in_a_cell(value)}|{in_a_cell(searched)}|\n" for name, value, searched in rows)
    tables = parse_tables(f"|Name|Value|Range|\n|-|-|-|\n{lines}").for_any_machine()
    text, notices = tables.study(
        lambda kept: study_text("mine", minimal, None, values=kept.values, ranges=kept.ranges)
    )
    spec = read_text("".join(f"# {notice}\n" for notice in notices) + text, Path("mine.yaml"))
    fixed = {**spec.fixed, "seed": spec.seeds[0]}

    def is_in_the_study(name: str, value: str) -> bool:
        try:
            parsed = parse_value(TABLE[name], value)
        except (KeyError, ValueError):
            return name in spec.search
        # What is searched begins with the value of the table.
        trained = spec.first_trial if name in spec.search else fixed
        return name in trained and trained[name] == parsed

    for at, (name, value, searched) in enumerate(rows, start=3):
        is_heading = not plain(name) or not (in_a_cell(value) + in_a_cell(searched)).strip()
        said = any(re.search(rf"\bline {at}\b", notice) for notice in notices)
        known = canonical(plain(name))
        assert is_heading or said or is_in_the_study(known, in_a_cell(value)), (name, value, searched)


@given(st.text('<>/=!-&"tabledrh ncs|0', max_size=80), st.sampled_from(["md", "csv", "tsv"]))
def test_any_text_is_a_table_or_none(text: str, suffix: str) -> None:
    header = {"md": "<table><tr><th>Name<th>Value<tr><td>", "csv": "Name,Value\n", "tsv": "Name\tValue\n"}
    if suffix == "md":
        tables = parse_tables(header[suffix] + text)
    else:
        with TemporaryDirectory() as folder:
            path = Path(folder, f"table.{suffix}")
            path.write_text(header[suffix] + text)
            try:
                tables = read_tables(path)
            except BadInput:
                return
    assert all(TABLE[name].check(value) == value for name, value in tables.values.items())
