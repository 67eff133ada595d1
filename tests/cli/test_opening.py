"""A run is opened by whatever it is called."""

import json
import shutil

import pytest
from trained import run_in

import sweeplab
from sweeplab.errors import BadInput
from sweeplab.lab.listing import StudyTrials
from sweeplab.records.folders import StudyFolder
from sweeplab.runs import open_run


def test_every_name_of_a_run_opens_it(finished, folder):
    best = StudyTrials(StudyFolder(finished.lab, "tiny")).find()
    (run,) = (each.path for each in best.runs)
    key = f"tiny/{run.parent.name}/{run.name}"
    shutil.copytree(run / "best", folder / "mine")
    # As MLflow's artifacts are.
    shutil.copytree(run / "best", folder / "downloaded" / "checkpoint")
    run_id = sweeplab.open_study("tiny", finished.lab).best.run_id
    texts = ["tiny", f"tiny/{best.cell}", key, "mine", f"{folder}/mine", "downloaded", run_id]
    opened = [open_run(text, finished.lab) for text in texts]
    assert [each.run_id for each in opened] == [key, key, key, *texts[3:]]
    assert all(
        each.values.replace(seed=0) == best.start.values.replace(seed=0) for each in opened
    )
    assert all(each.facts == opened[0].facts for each in opened)


NO_RUN = [
    ("tny", "no run 'tny'; allowed: a study's NAME, .*; did you mean 'tiny'?"),
    ("tiy/n_embd=8/0-0", "no run .*; did you mean 'tiny/n_embd=8/0-0'?"),
    ("tiny/n_embd=8/0-1", "no run 'n_embd=8/0-1' in study tiny; did you mean 'n_embd=8/0-0'?"),
    ("tiny/n_embd=9", "study tiny has no cell 'n_embd=9'.*; did you mean 'n_embd=8'?"),
    ("0" * 32, "no run 0{32} at sqlite:"),
    ("n" * 300, "no run 'n{300}'"),
    ("tiny/" + "n" * 300 + "/0-0", "study tiny has no cell 'n{300}'"),
]


def refusal(text, lab, said):
    with pytest.raises(BadInput, match=said.replace("?", r"\?")) as refused:
        open_run(text, lab)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("text", "said"), NO_RUN)
def test_what_is_no_run(text, said, finished):
    refusal(text, finished.lab, said)


def test_a_checkpoint_that_is_missing_or_damaged(lab):
    checkpoint = lab / "studies/tiny/runs/n_embd=8/0-0/best"
    (tensors,) = checkpoint.glob("*.safetensors")
    tensors.write_bytes(b"")
    refusal(
        "tiny/n_embd=8/0-0", lab, "run tiny/n_embd=8/0-0 cannot be opened: .* its hash differs"
    )
    shutil.rmtree(checkpoint)
    refusal("tiny/n_embd=8/0-0", lab, "run tiny/n_embd=8/0-0 kept no checkpoint; track: ")


MODELS = [
    "[]",
    "5",
    '{"values": {}}',
    '{"tensors": 5}',
    '{"tensors": "."}',
    {"values": []},
    {"tokenizer": []},
]
MODELS += [{"n_head": 0}, {"n_embd": "wide"}, {"tokenizer": {"name": []}}]


@pytest.mark.parametrize("changed", MODELS)
def test_a_model_file_of_another_form_is_said_in_a_line(changed, folder):
    file = run_in(folder / "mine") / "model.json"
    if isinstance(changed, dict):
        known = json.loads(file.read_text())
        inner = known["values"] if changed.keys() & known["values"].keys() else known
        inner |= changed
        changed = json.dumps(known)
    file.write_text(changed)
    refusal("mine", folder / "lab", "run mine cannot be opened: ")
