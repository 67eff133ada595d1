"""`sweeplab data`, and a first study of data of one's own."""

import json

import pytest
from data.brought import DOCUMENTS, ROWS, meta
from data.brought import IDS as TOKENS

from sweeplab.study.file.reading import read_study
from sweeplab.study.file.template import FIRST_FLOPS
from sweeplab.study.plan import settled_sampler
from sweeplab.sweep.planning import check_reach


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    for number, text in enumerate(DOCUMENTS):
        (tmp_path / f"notes/{number}.txt").write_text(text * 9)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "labels.csv").write_text(
        "text,label\n" + "".join(f"film {n},{n % 2}\n" for n in range(90))
    )
    (tmp_path / "bins").mkdir()
    (tmp_path / "bins/train.bin").write_bytes(TOKENS.tobytes())
    (tmp_path / "bins/meta.pkl").write_bytes(meta())
    return tmp_path


def test_data_are_shown_as_they_are_read(folder, cli, json_of):
    shown = cli("data", "rows.jsonl")
    for line in (
        "text: 60 documents, ",
        "rows: content (1 file)",
        "splits, in tokens of char: train ",
        "Document 0 tells",
    ):
        assert line in shown.out, shown.out
    read = json_of("data notes")
    assert (read["corpus"], read["n_documents"], len(read["samples"])) == ("text", 60, 3)
    assert (
        sum(read["splits"].values()) == read["n_characters"]
        and read["characters_per_token"] == 1
    )
    assert "film 0 → 0" in cli("data", "labels.csv", "--corpus", "labels").out
    assert "vocabulary: meta.pkl" in cli("data", "bins").out
    refused = cli("data", "rows.jsonl", "--field", "contnet")
    assert (
        refused.code == 2
        and "did you mean 'content'?" in refused.err
        and refused.err.count("\n") == 1
    )


def test_a_first_study_fits_the_shortest_text(folder, cli):
    for n_characters in (40, 205, 700):
        (folder / "short.txt").write_text(("a short text. " * 50)[:n_characters])
        cli("init", "short.yaml", "--data", "short.txt", "--force")
        assert cli("plan", "short.yaml").code == 0


@pytest.mark.slow
@pytest.mark.parametrize("place", ["../notes/*.txt", "labels.csv"])
def test_a_first_study_is_whole_and_within_its_flops(folder, cli, json_of, place):
    (folder / "studies").mkdir()
    place = place.replace("..", str(folder))
    said = cli("init", "mine", "--data", place).out
    assert "wrote studies/mine.yaml" in said and "ends after 5m at the latest" in said
    spec = read_study(folder / "studies/mine.yaml")
    assert (settled_sampler(spec).type, spec.budget.time) == ("joint", 300)
    check_reach(spec, folder / "lab")  # the command line has named the files
    planned = json_of("plan studies/mine.yaml")
    assert len(planned["cells"]) == 3
    assert planned["train_flops"] <= 1.1 * FIRST_FLOPS
    assert all(
        cell["epochs"] is None and 100 <= cell["max_iters"] <= 5000 for cell in planned["cells"]
    )
    assert cli("init", "mine", "--data", place).err.startswith(
        "error: studies/mine.yaml: the file exists"
    )
