"""`diff`, `best` and warm starts, from one study's results to the next one's."""

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("forgets_plugins", "workers_here")


@pytest.mark.slow
def test_a_study_starts_from_another_and_from_its_table(cli, finished, lab: Path, folder: Path) -> None:
    assert cli("study", "export", "tiny", "--output", "tiny.csv").code == 0
    text = finished.file.read_text().replace("name: tiny", "name: next").replace("[8, 16]", "[16, 24]")
    (folder / "next.yaml").write_text(text.replace("grid:", "warm_start: [tiny, tiny.csv]\ngrid:"))
    planned = cli("study", "plan", "next.yaml").out
    assert "warm start: 2 trials of tiny\n" in planned
    assert "warning: warm start: of tiny, 2 (n_embd=8/0, n_embd=8/1): no cell has n_embd=8" in planned
    for _ in range(2):
        assert cli("study", "run", "next.yaml").code == 0
    shown = json.loads(cli("study", "show", "next", "--json").out)
    assert [(cell["cell"], cell["trials"], cell["known"]) for cell in shown["cells"]] == [
        ("n_embd=16", 2, 2), ("n_embd=24", 2, 0)
    ]  # fmt: skip
    assert shown["warm_start"] == {"n_embd=16": {"tiny": 2}}, "the table says the same trials"
    assert shown["best"]["key"].split("/")[1] in ("0", "1", "2", "3")
    assert (
        "warm start: 2 trials of tiny, which the sampler knows and the budget does not count"
        in cli("study", "show", "next").out
    )
