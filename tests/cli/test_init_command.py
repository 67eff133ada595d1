from pathlib import Path

import pytest
import typer
from ruamel.yaml import YAML
from typer.testing import CliRunner, Result

from sweeplab.cli.study.manage import init
from sweeplab.hyperparameters import MINIMAL
from sweeplab.study.file.reading import read_study
from sweeplab.study.search import Range

app = typer.Typer()
app.command()(init)

TABLE = """\
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


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result


def test_writes_beside_you_and_names_the_next_command(folder: Path) -> None:
    assert "sweeplab plan mine.yaml" in run("mine").stdout
    assert read_study(folder / "mine.yaml").name == "mine"


def test_writes_into_studies_if_there(folder: Path) -> None:
    (folder / "studies").mkdir()
    assert "sweeplab plan studies/mine.yaml" in run("mine", "--minimal").stdout
    spec = read_study(folder / "studies" / "mine.yaml")
    assert {*spec.fixed, *spec.search} == set(MINIMAL)
    assert not (folder / "mine.yaml").exists()


def test_takes_values_from_a_table_and_says_what_it_could_not(folder: Path) -> None:
    (folder / "table.md").write_text(TABLE)
    result = run("mine", "--table", "table.md", "--search", "learning_rate, eps")
    spec = read_study(folder / "mine.yaml")
    assert spec.fixed["n_embd"] == 128 and spec.fixed["betas"] == (0.9, 0.99)
    assert set(spec.search) == {"learning_rate", "eps"}
    assert result.stderr.splitlines() == [
        "table.md: line 4: unknown hyperparameter 'n_layes' (3); did you mean 'n_layer'?",
        "table.md: line 5: n_embd: its value 64 on line 3 is replaced by 128",
    ]


def test_a_table_with_ranges_is_a_search_that_starts_at_its_own_values(folder: Path) -> None:
    (folder / "table.md").write_text(RANGES)
    result = run("mine", "--table", "table.md", "--grid", "n_layer", "--grid", "d_model=64,128")
    spec = read_study(folder / "mine.yaml")
    assert spec.grid == {"n_layer": [1, 2, 4], "n_embd": [64, 128]}
    assert spec.search["learning_rate"] == Range(1e-4, 3e-3, log=True)
    assert spec.search["dropout"] == Range(0.0, 0.3)
    assert set(spec.search) == {"learning_rate", "dropout", "n_head"}
    assert spec.first_trial == {"learning_rate": 3e-4, "dropout": 0.1}
    assert spec.fixed["device"] == "auto", "what is written runs on a machine without a GPU"
    assert "device is cuda; the study file has auto instead" in result.stderr
    assert (
        "line 7: the range of batch_size is not understood and is skipped: '> 0'; allowed:" in result.stderr
    )


def test_what_does_not_fit_is_left_out_written_as_a_comment_and_said(folder: Path) -> None:
    rows = "| dropout | a lot |\n| n_layer | 0 |\n| n_kv_head | 3 |\n| epochs | 2 |\n| max_iters | 1M |\n"
    (folder / "table.md").write_text(TABLE + rows)
    result = run("mine", "--table", "table.md")
    said = result.stderr.splitlines()
    assert (folder / "mine.yaml").read_text().startswith("".join(f"# {line}\n" for line in said))
    spec = read_study(folder / "mine.yaml")
    assert spec.fixed["n_embd"] == 128 and spec.fixed["epochs"] == 2
    for text in (
        "line 7: dropout is 'a lot'; allowed: a number from 0 to below 1",
        "line 8: n_layer is '0'; allowed: a whole number from 1",
        "line 9: n_kv_head: 3 does not fit: no cell meets",
        "line 11: max_iters is left out: another row sets the length of training",
    ):
        assert any(line.startswith(f"table.md: {text}") for line in said), said


def test_replaces_a_file_by_force(folder: Path) -> None:
    (folder / "mine.yaml").write_text("precious")
    run("mine", "--force", "--minimal")
    assert YAML(typ="safe").load(folder / "mine.yaml")["name"] == "mine"
