"""`diff`, `best` and warm starts, from one study's results to the next one's."""

import json
from pathlib import Path

import pytest

from sweeplab.records.folders import StudyFolder

pytestmark = pytest.mark.usefixtures("forgets_plugins", "workers_here")


def values(lab: Path, name: str) -> list[float]:
    return [run.read_end().value for run in StudyFolder(lab, name).runs()]


@pytest.mark.slow
def test_the_best_trial_runs_again_to_the_same_bits(cli, lab: Path) -> None:
    best = json.loads(cli("study", "best", "tiny", "--json").out)
    assert best["value"] == min(values(lab, "tiny"))
    text = cli("study", "best", "tiny", "--yaml").out
    assert f"val_loss {best['value']!r}." in text
    assert "wandb_project: null" in text
    said = cli("study", "best", "tiny", "--output", "best.yaml")
    assert said.out == "wrote best.yaml\nnext: sweeplab run best.yaml\n"
    assert Path("best.yaml").read_text() == text
    assert cli("study", "run", "best.yaml").code == 0
    name = f"tiny-{best['cell'].replace('=', '')}-{best['trial']}"
    (again,) = StudyFolder(lab, name).runs()
    assert again.read_end().value == best["value"]
    (before,) = (run for run in StudyFolder(lab, "tiny").runs() if str(run.path) in best["runs"])
    curves = [
        [(point.iteration, point.val_loss, point.train_loss) for point in run.points()]
        for run in (before, again)
    ]
    assert curves[0] == curves[1]
    diff = json.loads(cli("study", "diff", "tiny", name, "--json").out)
    assert diff["data"] == diff["code"] == []
    assert {"place": "fixed.n_embd", "a": None, "b": best["values"]["n_embd"]} in diff["file"]
    assert "fixed.max_iters" not in [each["place"] for each in diff["file"]]
    assert next(each["b"] for each in diff["results"] if each["place"] == "all") == best["value"]


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
