"""Pruned trials trained to their end after all: outside of the study, and to the same losses."""

import json
import shutil
import time
from pathlib import Path

import pytest
from workers_here import workers_here

from sweeplab import load_study
from sweeplab.errors import BadInput
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import RunFolder
from sweeplab.sweep.pruned import audit_pruning, audited_trials
from sweeplab.train.stack import Stack

pytestmark = pytest.mark.slow

STUDY = """\
name: pruned
data: {corpus: python-docs, tokenizer: char}
fixed: {block_size: 16, batch_size: 4, max_iters: 30, n_layer: 1, n_head: 2, n_embd: 16, warmup_iters: 0,
        dropout: 0.0, eval_interval: 10, eval_iters: 1, device: cpu}
search:
  learning_rate: [1e-6, 2e-6, 3e-6, 4e-6, 1e-2]
budget: {trials_per_cell: 5}
sampler: grid
pruner: {type: threshold, upper: 4.3, n_warmup_steps: 5}
seeds: [0, 1]
engine: {workers: 1, stack: 2}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    place = tmp_path_factory.mktemp("pruned")
    (place / "pruned.yaml").write_text(STUDY)
    with workers_here():
        result = load_study(place / "pruned.yaml", lab=place / "lab").run()
    assert result.folder.states() == {"pruned": 8, "complete": 2}
    return result.folder


@pytest.fixture
def copied(folder: StudyFolder, tmp_path: Path) -> StudyFolder:
    shutil.copytree(folder.path, tmp_path / "studies" / folder.name)
    return StudyFolder(tmp_path, folder.name)


def files_of(folder: StudyFolder) -> dict[str, bytes]:
    files = [folder.path / "trials.db", *(folder.path / "runs").rglob("*")]
    return {str(each): each.read_bytes() for each in files if each.is_file()}


def test_trains_pruned_trials_to_their_end_and_leaves_the_study_as_it_was(
    copied: StudyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, said, scoring = files_of(copied), [], []
    score = Stack.whole_losses

    def timed(stack: Stack, *arguments: object, **options: object) -> list[float]:
        started = time.perf_counter()
        losses = score(stack, *arguments, **options)
        scoring.append(time.perf_counter() - started)
        return losses

    monkeypatch.setattr(Stack, "whole_losses", timed)
    found = audit_pruning(copied, 2, said.append)
    assert files_of(copied) == before
    assert len(found) == 2 and len(said) == 2 and "to its end (1 of 2)" in said[0]
    for each in found:
        assert each.iteration == 10 and each.value is not None and each.value_then is not None
        assert each.value <= each.value_then
        for seed in (0, 1):
            end = RunFolder(copied.path / "audit" / each.cell / f"{each.trial}-{seed}").read_end()
            assert end and end.best_whole_val_loss and end.best_whole_val_loss != end.best_val_loss
            run = copied.run(each.cell, each.trial, seed)
            audit = copied.path / "audit" / each.cell / f"{each.trial}-{seed}"
            points = [json.loads(line) for line in (audit / "points.jsonl").read_text().splitlines()]
            assert [point["iteration"] for point in points] == [0, 10, 20, 30]
            assert points[-1]["eval_seconds"] > min(scoring)
            then = {point.iteration: point.val_loss for point in run.points()}
            assert [point["val_loss"] for point in points[:2]] == pytest.approx([then[0], then[10]], rel=1e-5)


def test_audited_trials_have_the_bits_of_a_study_without_pruner(copied: StudyFolder, tmp_path: Path) -> None:
    audited = audit_pruning(copied, 99)
    lines = STUDY.replace("name: pruned", "name: whole").splitlines()
    (tmp_path / "whole.yaml").write_text("\n".join(line for line in lines if "threshold" not in line))
    whole = load_study(tmp_path / "whole.yaml", lab=tmp_path).run().folder
    trained = {run.read_start().values: [point.val_loss for point in run.points()] for run in whole.runs()}
    folders = [*(copied.path / "audit").glob("*/*/")]
    assert len(folders) == 2 * len(audited) == 8
    for run in map(RunFolder, folders):
        assert [point.val_loss for point in run.points()] == trained[run.read_start().values]


def test_more_trials_begin_with_the_same_ones_and_train_only_the_new(copied: StudyFolder) -> None:
    first = audit_pruning(copied, 1)
    said: list[str] = []
    more = audit_pruning(copied, 3, said.append)
    assert len(said) == 2 and len(more) == 3 and first[0] in more
    assert audited_trials(copied) == more
    assert len(audit_pruning(copied, 99)) == 4


def test_an_interrupted_audit_is_begun_again(copied: StudyFolder) -> None:
    (done,) = audit_pruning(copied, 1)
    place = copied.path / "audit" / done.cell / f"{done.trial}-1"
    (place / "end.json").unlink()
    assert audited_trials(copied) == []
    assert audit_pruning(copied, 1) == [done]


def test_a_study_without_pruned_trials_has_nothing_to_audit(copied: StudyFolder) -> None:
    shutil.rmtree(copied.path / "runs")
    with pytest.raises(BadInput, match="no pruned trial"):
        audit_pruning(copied, 1)
