import json

import typer
from typer.testing import CliRunner

from sweeplab.cli.data import hyperparameters
from sweeplab.hyperparameters import CATEGORIES, MINIMAL, TABLE
from sweeplab.study.file.markdown import parse_tables

app = typer.Typer()
app.command()(hyperparameters)


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_prints_every_row_on_one_line_with_its_meaning() -> None:
    lines = printed().splitlines()
    for name, row in TABLE.items():
        (line,) = [line for line in lines if line.split()[:1] == [name]]
        assert row.meaning in line
    assert all(any(line.startswith(title) for line in lines) for title in CATEGORIES.values())


def test_json_has_the_whole_row() -> None:
    rows = json.loads(printed("--json"))
    assert [row["name"] for row in rows] == list(TABLE)
    for row in rows:
        same = TABLE[row["name"]]
        assert (row["category"], row["kind"], row["unit"]) == (same.category, same.kind, same.unit)
        assert row["meaning"] == same.meaning and row["allowed"] == same.allowed
        assert same.check(row["sample"]) == same.sample and same.check(row["default"]) == same.default
        assert (row["suggested"] is None) == (same.suggested is None)


def test_markdown_reads_back_as_the_table() -> None:
    tables = parse_tables(printed("--markdown"))
    assert tables.values == {name: row.sample for name, row in TABLE.items()}
    assert not tables.notices


def test_minimal_and_category_choose_rows() -> None:
    assert {row["name"] for row in json.loads(printed("--json", "--minimal"))} == set(MINIMAL)
    for category in ("model", "Model"):
        rows = json.loads(printed("--json", "--category", category, "--minimal"))
        assert [row["name"] for row in rows] == ["n_embd", "n_head", "n_layer", "dropout"]
    assert json.loads(printed("--json", "--category", "LR scheduler"))[0]["name"] == "lr_decay"
