"""`sweeplab confirm`, as a user runs it."""

import pytest

STUDY = """\
name: short
data: {corpus: python-docs, tokenizer: char}
fixed: {block_size: 16, batch_size: 4, max_iters: 20, n_head: 2, n_embd: 16, warmup_iters: 2, eval_interval: 10,
        eval_tokens: 1024, device: cpu}
grid: {n_layer: [1, 2]}
search: {learning_rate: {min: 1e-3, max: 1e-2, log: true}}
budget: {trials_per_cell: 3}
"""


@pytest.mark.usefixtures("workers_here")
@pytest.mark.slow
def test_the_best_trials_are_confirmed_once(cli, json_of, folder):
    (folder / "short.yaml").write_text(STUDY)
    assert cli("run", "short.yaml").code == 0
    numbers = ("--top", "2", "--seeds", "2")
    assert cli("confirm", "short", *numbers).code == 0
    names = {path.name for path in (folder / "lab" / "studies").iterdir()}
    assert names == {"short", "short.race", "short.confirm"}
    cells = json_of("confirm short", *numbers)["cells"]
    assert {each["cell"] for each in cells} == {"n_layer=1", "n_layer=2"}
    for each in cells:
        best = json_of("best short --cell", each["cell"], "--trial", each["trial"])
        assert best["whole_val_loss"] == each["searched"] != best["value"]
        assert each["n_raced"] == 2 and each["test"]["low"] < each["test"]["high"]
    assert [each["apart"] is None for each in cells].count(True) == 1
    other = cli("confirm", "short", "--seeds", "3")
    assert other.code == 2 and "sweeplab rm short.confirm" in other.err
