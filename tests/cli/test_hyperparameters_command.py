"""`sweeplab hyperparameters`: every row of the table, for people and for programs."""

import json

from sweeplab.hyperparameters import TABLE


def test_every_row_is_on_a_line_with_its_meaning(cli) -> None:
    lines = cli("hyperparameters").out.splitlines()
    for name, row in TABLE.items():
        (line,) = [line for line in lines if line.split()[:1] == [name]]
        assert row.meaning[:60] in line


def test_json_has_the_whole_row(cli) -> None:
    rows = json.loads(cli("hyperparameters", "--json").out)
    assert [row["name"] for row in rows] == list(TABLE)
    for row in rows:
        same = TABLE[row["name"]]
        assert (row["category"], row["kind"], row["unit"]) == (same.category, same.kind, same.unit)
        assert row["meaning"] == same.meaning and row["allowed"] == same.allowed
        assert same.check(row["sample"]) == same.sample and same.check(row["default"]) == same.default
