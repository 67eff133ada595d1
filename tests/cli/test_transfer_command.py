"""`sweeplab transfer`: the small sizes of a study tuned, its largest predicted, sealed and trained."""

import re

import pytest

from sweeplab import Study, load_study
from sweeplab.analysis.ledger import FILE_NAME, read_ledger
from sweeplab.analysis.predicting import transfer
from sweeplab.lab.listing import study_names
from sweeplab.sweep.confirming import Interrupted

STUDY = """
name: tiny
data: {corpus: python-docs, tokenizer: char}
fixed: {n_layer: 1, n_head: 2, block_size: 16, batch_size: 4, max_iters: 10, dropout: 0.0, eval_interval: 5,
  eval_iters: 1, warmup_iters: 2, device: cpu}
grid: {n_embd: [8, 12, 16, 20, 32]}
search: {learning_rate: {min: 1e-3, max: 1e-1, log: true}}
budget: {trials_per_cell: 2}
track: {checkpoints: none}
engine: {workers: 1}
"""


@pytest.mark.slow
@pytest.mark.usefixtures("workers_here")
def test_the_largest_size_is_predicted_sealed_and_trained_on_a_ladder_and_goes_on(
    cli, json_of, folder
):
    (folder / "tiny.yaml").write_text(STUDY)
    lab = folder / "lab"
    study = load_study(folder / "tiny.yaml", lab=lab)
    ran = []

    def killed(spec):
        ran.append(spec.name)
        return Study(spec, lab).run().status if len(ran) == 1 else "interrupted"

    with pytest.raises(Interrupted):
        transfer(study.spec, lab, killed, 4.0)
    assert ran == ["tiny-transfer", "tiny-transfer-n_embd32"]
    made = (lab / "studies" / ran[0] / "predicted" / "n_embd32.json").read_text()
    words = ("study", "transfer", "tiny.yaml", "--ladder", "2", "--quiet")
    answer = json_of(*words)
    assert study_names(lab) == ran and len(read_ledger(lab / FILE_NAME)) == 1
    assert (lab / "studies" / ran[0] / "predicted" / "n_embd32.json").read_text() == made
    (size,) = answer["sizes"]
    assert size["parametrization"] == "standard" and size["copied_from"] == "n_embd=20"
    assert size["sealed"] == read_ledger(lab / FILE_NAME)[0].sha256
    losses = {rung["learning_rate"]: rung["loss"] for rung in size["losses"]}
    rate = size["predicted"]
    assert {rate, size["copied"]} < losses.keys() and len(losses) == 3 + (
        rate != size["copied"]
    )
    assert min(losses) == pytest.approx(rate / 2, rel=1e-3) and max(losses) == pytest.approx(
        2 * rate, rel=1e-3
    )
    assert size["cost"] == pytest.approx(losses[rate] / min(losses.values()) - 1)
    assert size["best"] == min(losses, key=lambda each: losses[each])
    seen = cli(*words, "-o", "grid.n_embd=[8,12,16,20]")
    assert seen.code == 2 and "study tiny-transfer has trained n_embd=20 already" in seen.err
    said = cli(*words).out
    assert re.search(rf"{size['cost']:.2%} +predicted", said) and "sealed: " in said
    sealed = (
        "laws",
        "predict",
        ran[0],
        "--at",
        "n_embd=24",
        "--seal",
        "--write",
        "larger.yaml",
    )
    for command in (sealed, ("study", "run", "larger.yaml", "--quiet")):
        assert cli(*command).code == 0
    forecasts = json_of("laws verify")["forecasts"]
    assert [forecast["state"] for forecast in forecasts] == ["scored", "scored"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "search={weight_decay: suggested}",
            "study tiny does not search learning_rate in every trial",
        ),
        ("grid={n_embd: [16]}", "no size with two values"),
        ("grid={activation: [relu, gelu]}", "no size with two values"),
        ("cells=[{}, {norm: rmsnorm}]", "cells that differ in more than sizes"),
    ],
)
def test_what_cannot_be_transferred_is_said_in_a_line(cli, folder, change, message):
    (folder / "tiny.yaml").write_text(STUDY)
    said = cli("study", "transfer", "tiny.yaml", "-o", change, "--quiet")
    assert said.code == 2 and message in said.err and said.err.count("\n") == 1
