"""What a user types first: a study by its name or its file, short forms, the version."""

import os
import shutil

import pytest

import sweeplab


@pytest.mark.slow
def test_a_study_is_named_by_name_or_by_file(cli, json_of, finished, folder, monkeypatch):
    monkeypatch.setenv("SWEEPLAB_LAB", str(finished.lab))
    by_name = cli("study", "show", "tiny", "--json")
    assert cli("study", "show", finished.file, "--json") == by_name and by_name.code == 0
    planned = json_of("study plan tiny")
    assert planned["trials"] == 4, "of no file here: as the lab ran it last"
    (folder / "studies").mkdir()
    (folder / "studies" / "tiny.yaml").write_text(
        finished.file.read_text().replace("trials_per_cell: 2", "trials_per_cell: 7")
    )
    for named in ("tiny", "studies/tiny.yaml"):
        assert json_of("study plan", named)["trials"] == 14
    assert sweeplab.load_study("tiny").spec.budget.trials_per_cell == 7
    assert cli("plan", "tiny", "--layers").out == cli("plan", finished.file, "--layers").out


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", ["show", "best --cell n_embd=8", "watch", "report --page sweep"]
)
def test_without_a_name_it_looks_at_the_study_that_was_run_last_and_says_so(words, cli, lab):
    studies = lab / "studies"
    shutil.copytree(studies / "tiny", studies / "another")
    os.utime(studies / "another" / "study.json", (1, 1))
    command, *options = words.split()
    unnamed, named = cli(command, *options), cli(command, "tiny", *options)
    assert (unnamed.code, unnamed.out) == (named.code, named.out)
    assert unnamed.err == "tiny (the latest study)\n" + named.err
    os.utime(studies / "another" / "study.json")
    assert cli(command, *options).err.startswith("another (the latest study)\n")
