"""`sweeplab hyperparameters`, and `sweeplab init` from its table and from tables of one's own."""

from sweeplab.hyperparameters import TABLE
from sweeplab.study.file.reading import read_study
from sweeplab.study.values import Range

VALUES = """\
| Parameter | Sample Value |
|---|---|
| n_embd | 64 |
| n_layes | 3 |
| n_embd | 128 |
| betas | (0.9, 0.99) |
"""
RANGES = """\
| Parameter | Sample Value | Range |
|---|---|---|
| lr | 3e-4 | 1e-4 to 3e-3, log |
| Dropout rate | 0.1 | [0.0, 0.3] |
| num_layers | 2 | {1, 2, 4} |
| d_model | 64 | |
| batch_size | 16 | > 0 |
| device | cuda | |
"""


def test_the_table_has_every_row_whole(cli, json_of):
    printed = [line.split()[:1] for line in cli("hyperparameters").out.splitlines()]
    assert all(printed.count([name]) == 1 for name in TABLE)
    rows = json_of("hyperparameters")
    assert [row["name"] for row in rows] == [*TABLE]
    for row in rows:
        same = TABLE[row["name"]]
        assert (row["meaning"], row["allowed"], row["unit"]) == (
            same.meaning,
            same.allowed,
            same.unit,
        )
        assert (
            same.check(row["sample"]) == same.sample
            and same.check(row["default"]) == same.default
        )


def test_it_writes_beside_you_or_into_studies_and_over_a_file_by_force(cli, folder):
    (folder / "mine.yaml").write_text("precious")
    assert "sweeplab plan mine.yaml" in cli("init", "mine", "--force").out
    assert read_study(folder / "mine.yaml").name == "mine"
    (folder / "studies").mkdir()
    assert "sweeplab plan studies/other.yaml" in cli("init", "other").out


def test_what_does_not_fit_is_left_out_written_as_a_comment_and_said(cli, folder):
    rows = "| dropout | a lot |\n| n_layer | 0 |\n| epochs | 2 |\n| max_iters | 1M |\n"
    (folder / "table.md").write_text(VALUES + rows)
    said = cli(
        "init", "mine", "--table", "table.md", "--search", "learning_rate, eps"
    ).err.splitlines()
    assert (
        (folder / "mine.yaml").read_text().startswith("".join(f"# {line}\n" for line in said))
    )
    spec = read_study(folder / "mine.yaml")
    assert (spec.fixed["n_embd"], spec.fixed["betas"], spec.fixed["epochs"]) == (
        128,
        (0.9, 0.99),
        2,
    )
    assert {*spec.search} == {"learning_rate", "eps"}
    for at, name in {
        4: "n_layes",
        5: "n_embd",
        7: "dropout",
        8: "n_layer",
        10: "max_iters",
    }.items():
        assert [
            line for line in said if line.startswith(f"table.md: line {at}: ") and name in line
        ], said
    assert "did you mean 'n_layer'?" in said[0]


def test_a_table_with_ranges_is_a_search_that_starts_at_its_own_values(cli, folder):
    (folder / "table.md").write_text(RANGES)
    said = cli(
        "init",
        "mine",
        "--table",
        "table.md",
        "--grid",
        "n_layer=1,2,4",
        "--grid",
        "d_model=64,128",
    ).err
    spec = read_study(folder / "mine.yaml")
    assert spec.grid == {"n_layer": [1, 2, 4], "n_embd": [64, 128]}
    assert spec.search["learning_rate"] == Range(1e-4, 3e-3, log=True)
    assert spec.search["dropout"] == Range(0.0, 0.3)
    assert {*spec.search} == {"learning_rate", "dropout", "n_head"}
    assert spec.first_trial == {"learning_rate": 3e-4, "dropout": 0.1}
    assert spec.fixed["device"] == "auto", "what is written runs on a machine without a GPU"
    assert "device is cuda" in said and "line 7: the range of batch_size" in said
