"""Runs that start from another run's weights, and are cut by its tokenizer."""

import json
from dataclasses import replace

import pytest
import torch
from tiny_study import problem_of
from trained import run_in

from sweeplab import load_study
from sweeplab.data import DataSizes
from sweeplab.data.dataset import prepare
from sweeplab.data.objectives import special_tokens
from sweeplab.errors import BadInput
from sweeplab.hf.folders import export_run, import_folder
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.lab.studies import check_same_study, write_study
from sweeplab.records.folders import StudyFolder
from sweeplab.study.inputs import OF_VOCABULARY, check_start, read_start, start_weights
from sweeplab.study.space import spaces_of
from sweeplab.study.spec import Budget, DataSpec, Track
from sweeplab.study.values import Choices
from sweeplab.sweep.loop import Loop
from sweeplab.sweep.planning import make_plan
from sweeplab.sweep.trials.store import Store
from sweeplab.tracking.models import load_checkpoint
from sweeplab.train.checkpoint import read_checkpoint
from sweeplab.train.run import TrainingRun
from sweeplab.train.stack import Stack

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def trained(tiny, opened, dataset):
    """Return the checkpoint of a run as it was when it ended."""
    folder, store = opened(
        tiny(name="first", budget=Budget(trials_per_cell=1), track=Track(checkpoints="last"))
    )
    Loop(store, dataset, folder).run()
    (run,) = folder.runs()
    return run.path / "last"


def last_loss(checkpoint):
    return json.loads((checkpoint / "model.json").read_text())["val_loss"]


def test_a_run_goes_on_where_the_other_one_ended(tiny, opened, dataset, trained):
    spec = tiny(init_from=str(trained), budget=Budget(trials_per_cell=1))
    folder, store = opened(spec)
    Loop(store, dataset, folder).run()
    (run,) = folder.runs()
    losses = [point.val_loss for point in run.points() if point.val_loss is not None]
    assert losses[0] == last_loss(trained)
    assert losses[-1] < losses[0] - 0.05


def test_every_seed_starts_there_and_snapshots_go_before_it(tiny, trained):
    spec = tiny(init_from=str(trained))
    values = Hyperparameters.of(json.loads((trained / "model.json").read_text())["values"])
    data = prepare("python-docs", "char")
    weights = start_weights(spec)(values)
    stack = Stack(values, data.train, data.val, 2)
    for seed in (0, 1):
        stack.admit(TrainingRun(str(seed), values.replace(seed=seed)), start=weights)
    assert all(
        stack.weights(key)["token_embedding"].equal(weights["token_embedding"]) for key in "01"
    )
    stack.advance()
    stack.advance()
    snapshot = stack.snapshot("1")
    other = Stack(values, data.train, data.val, 1)
    other.admit(TrainingRun("1", values.replace(seed=1)), snapshot, weights)
    assert other.weights("1")["token_embedding"].equal(stack.weights("1")["token_embedding"])


def test_what_does_not_fit_is_said_before_the_first_trial(tiny, trained, tmp_path):
    def refused(**changed):
        spec = tiny(**{"init_from": str(trained)} | changed)
        return problem_of(lambda: make_plan(spec, tmp_path / "lab"))

    assert "has n_embd 16, not 32; allowed: the run's values" in refused(
        grid={"n_embd": [16, 32]}
    )
    assert 'has activation "gelu", not "relu"' in refused(
        search={"activation": Choices(("gelu", "relu"))}
    )
    assert "block_size 16, not 8" in refused(values={"block_size": 8})
    assert "there is no checkpoint in" in refused(init_from=str(tmp_path / "none"))
    facts, (tensors,) = trained / "model.json", trained.glob("*.safetensors")
    whole = facts.read_bytes()
    flipped = whole.replace(b'"n_layer": 1', b'"n_layer": 3')
    for damaged in (
        whole[:99],
        whole[:-2],
        flipped,
        whole.replace(b'"weight_decay": 0.', b'"weight_decay": 1.'),
    ):
        facts.write_bytes(damaged)
        assert damaged != whole and "model.json is damaged" in refused()
    facts.write_bytes(whole)
    tensors.write_bytes(b"")
    assert "is damaged: its hash differs" in refused()


STUDY = """
name: more
data: {corpus: python-docs, tokenizer: char}
init_from: run
fixed: {batch_size: 4, max_iters: 4, device: cpu}
budget: {trials_per_cell: 1}
"""
SHAPES = (
    {"n_embd": 16, "n_layer": 2, "d_ff": 24, "norm_eps": 1e-3},
    {"family": "encoder", "n_embd": 12, "n_kv_head": 1},
)


@pytest.mark.parametrize("changed", SHAPES)
def test_a_study_takes_the_model_where_it_says_no_other(changed, study_of, tmp_path):
    tokenizer = prepare("python-docs", "char").tokenizer
    run_in(tmp_path / "run", tokenizer, **changed)
    spec = study_of(STUDY)
    start = read_start(spec)
    assert make_plan(spec, tmp_path / "lab")[0].trials == 1
    assert spec.fixed.items() >= changed.items()
    (space,), _ = spaces_of(spec, DataSizes(tokenizer.vocab_size))
    check_start(spec, start, space.draws(1))
    refused = rf"has n_layer {start.shape.n_layer}, not 3; allowed: the run's values"
    with pytest.raises(BadInput, match=refused):
        make_plan(study_of(STUDY, "n_layer=3"), tmp_path / "lab")
    assert "n_layer" not in study_of(STUDY, "grid.n_layer=[1, 2]").fixed


def test_a_run_is_named_as_in_every_other_command(trained, tmp_path):
    folder = StudyFolder(trained.parents[5], "first")
    (run,) = folder.runs()
    text = STUDY.replace(", tokenizer: char", "").replace("init_from: run", "init_from: NAME")
    file = tmp_path / "more.yaml"
    for name in ("first", f"first/{run.cell}", f"first/{run.cell}/{run.path.name}"):
        file.write_text(text.replace("NAME", name))
        study = load_study(file, lab=folder.lab)
        assert study.spec.init_from == str(run.checkpoint()) == str(trained)
        assert study.spec.data.tokenizer == "char" and study.spec.fixed["n_embd"] == 16
    file.write_text(text.replace("NAME", "first/all/7-0"))
    said = problem_of(lambda: load_study(file, lab=folder.lab))
    assert "more.yaml:4:1: init_from: no run 'all/7-0' in study first" in said


@pytest.mark.slow
def test_a_run_that_learns_something_else_draws_the_tokens_that_are_new(tiny, trained):
    """A decoder of text goes on with pairs, whose four special tokens it has not."""
    spec = tiny(init_from=str(trained), data=DataSpec(corpus="copy", tokenizer="char"))
    theirs, facts = read_checkpoint(trained, "model")
    values = Hyperparameters.from_json(facts["values"])
    size, more = (
        values.vocab_size,
        values.replace(objective="pairs", vocab_size=values.vocab_size + 4),
    )
    given = start_weights(spec)(more)
    assert given["token_embedding"][:size].equal(theirs["token_embedding"])
    assert (
        given["token_embedding"][size:].isnan().all()
        and given["token_embedding"].shape[0] == size + 4
    )
    pairs = prepare("copy", "char", trained=prepare("python-docs", "char").tokenizer)
    stack = Stack(more, pairs.train, pairs.val, 2)
    for seed in (0, 1):
        stack.admit(TrainingRun(str(seed), more.replace(seed=seed)), start=given)
    first, second = (stack.weights(key)["token_embedding"] for key in "01")
    assert first[:size].equal(second[:size]) and first.isfinite().all()
    assert not first[size:].equal(second[size:]), "by each run's own seed"


def test_other_weights_make_another_study(tiny, trained, tmp_path, opened, dataset):
    spec = tiny(init_from=str(trained))
    plan, _, _ = make_plan(spec, tmp_path / "lab")
    folder, _ = opened(spec)
    folder.path.mkdir(parents=True, exist_ok=True)
    write_study(spec, folder, plan.data)
    check_same_study(spec, folder, plan.data)
    with pytest.raises(BadInput, match="the weights that it starts from have changed"):
        check_same_study(spec, folder, replace(plan.data, init_digest="another"))
    with pytest.raises(
        BadInput, match=r"init_from is not given and was .*a --name of its own$"
    ):
        check_same_study(tiny(), folder, replace(plan.data, init_digest=None))


WORDS = [f"{'ab'[at % 2]}{chr(97 + at % 26)}{chr(97 + at // 26)}" for at in range(40)]


def test_an_encoder_of_masked_text_goes_on_with_labels(study_of, tmp_path):
    own = {"family": "encoder", "norm_position": "post", "embedding_norm": True, "n_layer": 2}
    place = tmp_path / "run"
    run_in(place, special={"pad": 3, "bos": 1, "eos": 2, "mask": 4}, **own)
    export_run(load_checkpoint(place), tmp_path / "hf")
    import_folder(tmp_path / "hf", place, "run", force=True)
    theirs, facts = read_checkpoint(place, "model")
    assert facts["values"]["objective"] == "masked"
    rows = [{"text": word, "label": word[0]} for word in WORDS]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = "{corpus: labels, tokenizer: char, path: rows.jsonl}"
    text = (
        STUDY.replace("{corpus: python-docs, tokenizer: char}", data)
        + "track: {checkpoints: last}\n"
    )
    spec = study_of(text.replace("max_iters: 4", "max_iters: 4, learning_rate: 1e-8"))
    plan, _, dataset = make_plan(spec, tmp_path / "lab")
    folder = StudyFolder(tmp_path / "lab", spec.name)
    folder.path.mkdir(parents=True, exist_ok=True)
    store = Store.create(spec, dataset.sizes, folder.storage_url)
    Loop(store, dataset, folder).run()
    (run,) = folder.runs()
    assert run.read_end().ending.outcome == "complete" and plan.trials == 1
    ended, facts = read_checkpoint(run.path / "last", "model")
    assert facts["values"]["objective"] == "classification" and ended.keys() == theirs.keys()
    n_text = dataset.tokenizer.vocab_size
    for name, weight in theirs.items():
        kept = slice(n_text) if name in OF_VOCABULARY else slice(None)
        torch.testing.assert_close(ended[name][kept], weight[kept], rtol=0, atol=1e-6)
        assert ended[name].isfinite().all()
    bos = special_tokens(Hyperparameters.of(facts["values"]))["bos"]
    torch.testing.assert_close(
        ended["token_embedding"][bos], theirs["token_embedding"][1], rtol=0, atol=1e-6
    )
