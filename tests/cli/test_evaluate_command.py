"""`sweeplab evaluate` on a study that has been run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from trained import run_in

from sweeplab.lab.listing import find_best
from sweeplab.records.folders import StudyFolder
from sweeplab.runs.opening import open_run


def test_learned_positions_have_nothing_longer(cli, finished) -> None:
    said = cli("evaluate", "tiny", "--lab", finished.lab, "--json")
    assert said.code == 0
    found = json.loads(said.out)
    best = find_best(StudyFolder(finished.lab, "tiny"))
    assert found["measures"]["val_loss"] == pytest.approx(best.value, rel=1e-6)
    assert set(found["measures"]) == {"val_loss", "perplexity", "bits_per_byte"}
    (own,) = found["length_extrapolation"]
    assert own["times"] == 1 and own["length"] == len(own["by_position"]) == found["block_size"]
    assert own["val_loss"] == pytest.approx(best.value, rel=1e-6)
    assert [each["times"] for each in found["left_out"]] == [2, 4]
    assert all("learned positions end at block_size" in each["why"] for each in found["left_out"])


def test_a_person_reads_a_table(cli, finished) -> None:
    said = cli("evaluate", "tiny", "--lab", finished.lab)
    assert said.code == 0
    for words in ("val_loss", "mean loss by position", "0–", "no loss at 4 times block_size: learned"):
        assert words in said.out


@pytest.mark.slow
def test_a_run_of_longer_reach(cli, folder: Path) -> None:
    text = STUDY_OF_ROTARY
    (folder / "longer.yaml").write_text(text)
    assert cli("study", "run", "longer.yaml").code == 0
    found = json.loads(cli("evaluate", "longer", "--lengths", "1,3", "--json").out)
    assert [(row["times"], row["length"]) for row in found["length_extrapolation"]] == [(1, 8), (3, 24)]
    assert not found["left_out"]
    said = cli("evaluate", "longer", "--lengths", "1,3,4", "--report", "page.html")
    assert "16–17" in said.out and said.out.endswith("page.html written\n")
    page = Path("page.html").read_text()
    assert page.count('class="figure"') == 1 and "4 x block_size" in page and "perplexity" in page


STUDY_OF_ROTARY = """
name: longer
data: {corpus: python-docs, tokenizer: char}
fixed:
  {n_layer: 1, n_head: 2, n_embd: 8, block_size: 8, batch_size: 4, max_iters: 4, eval_interval: 4, eval_iters: 2,
   positions: rotary, device: cpu, warmup_iters: 1}
budget: {trials_per_cell: 1}
"""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("tny",), "did you mean 'tiny'?"),
        (("tiny", "--lengths", "1,x"), "--lengths 1,x; allowed: whole numbers from 1 to 64"),
        (("tiny", "--lengths", "0"), "--lengths 0; allowed"),
        (("tiny", "--study", "tny"), "no study 'tny' in "),
        (("mine",), "run mine is of no study in this lab: name one with --study, for its data"),
        (("mine", "--study", "tiny"), "run mine and study tiny have different tokenizers"),
        (("pairs", "--study", "tiny"), "run pairs was trained on pairs, but study tiny has text"),
        (
            ("long", "--study", "tiny"),
            "block_size 1000000 is longer than the data: the validation split has ",
        ),
        (("tiny", "--report", "folder"), "error: folder: is a folder; allowed: the name of a file"),
        (("tiny", "--report", "folder/"), "error: folder: is a folder; allowed: the name of a file"),
        (("tiny", "--report", "."), "error: .: is a folder; allowed: the name of a file"),
    ],
)
def test_bad_input_is_said_in_one_line(
    arguments: tuple[str, ...], said: str, cli, finished, folder: Path
) -> None:
    tokenizer = open_run("tiny", finished.lab).tokenizer
    run_in(folder / "mine")
    run_in(folder / "pairs", tokenizer, kind="pairs")
    run_in(folder / "long", tokenizer, positions="rotary", block_size=1_000_000)
    (folder / "folder").mkdir()
    found = cli("evaluate", *arguments, "--lab", finished.lab)
    assert found.code == 2 and said in found.err and found.err.count("\n") == 1
