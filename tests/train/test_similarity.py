"""Similarity: how two texts are laid out and scored, against torch and SciPy, and the same bits in any stack."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr, spearmanr

from sweeplab.data.batches import NO_TARGET, Pairs, changed
from sweeplab.data.dataset import Dataset, prepare
from sweeplab.data.objectives import make_objective
from sweeplab.data.objectives.pairs import share_cut
from sweeplab.data.prompts import BOS, EOS, PAD, SCORE
from sweeplab.errors import BadInput
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.train.run import Run
from sweeplab.train.stack import Stack

pytestmark = pytest.mark.usefixtures("one_thread")


def rows() -> list[dict[str, object]]:
    """Draw texts with a score of both: 0 to 4, what their first letters come to together."""
    drawn, found = np.random.default_rng(0), []
    for at in range(600):
        one, other = ("".join(drawn.choice(list("abc"), 2)) for _ in range(2))
        score = "abc".index(one[0]) + "abc".index(other[0])
        found.append(
            {"sentence1": f"{one}.{at}", "sentence2": f"{other}{'!' * (at % 3)}", "score": score, "id": at}
        )
    return found


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    file = tmp_path_factory.mktemp("scores") / "some.jsonl"
    file.write_text("\n".join(map(json.dumps, rows())))
    return prepare("scores", "char", str(file))


def values_of(data: Dataset, **changed) -> Hyperparameters:
    sizes = {"n_layer": 1, "n_embd": 16, "n_head": 2, "block_size": 16, "batch_size": 32, "dropout": 0.0}
    steps = {"max_iters": 160, "eval_interval": 80, "warmup_iters": 5, "learning_rate": 1e-2, "min_lr": 1e-3}
    own = {"device": "cpu", "dtype": "float32", "compile": False}
    given = {"objective": "similarity", "family": "encoder", **sizes, **steps, **own, **changed}
    return Hyperparameters.of({**given, "vocab_size": data.tokenizer.vocab_size + 4})


def test_two_texts_stand_in_one_row_and_the_longer_one_is_cut(data: Dataset, tmp_path: Path) -> None:
    known = {(str(each["sentence1"]), str(each["sentence2"])): each["score"] for each in rows()}
    objective = make_objective(data.train, values_of(data))
    batch, special = objective.training(0, 0), objective.special
    for row in range(32):
        read = batch.inputs[row, : batch.lengths[row]].tolist()
        middle = read.index(special[EOS])
        assert (read[0], read[-1], read.count(special[EOS])) == (special[BOS], special[EOS], 2)
        assert (batch.inputs[row, batch.lengths[row] :] == special[PAD]).all()
        texts = data.tokenizer.decode(read[1:middle]), data.tokenizer.decode(read[middle + 1 : -1])
        assert batch.reference[row] == known[texts]
        assert batch.targets[row, 0] == special[SCORE] and (batch.targets[row, 1:] == NO_TARGET).all()
    assert data.kind == "scores" and data.val_targets == data.val.n_pairs
    short = values_of(data, block_size=9)
    cut = make_objective(data.train, short).training(0, 0)
    assert cut.inputs.shape[1] <= 9 and (cut.inputs == special[EOS]).sum(axis=1).tolist() == [2] * 32
    lengths = data.train.lengths.sum(axis=1) - 4
    assert (
        share_cut(data.train, short) == pytest.approx((lengths > 6).mean())
        and share_cut(data.train, short) > 0
    )


def advanced(
    data: Dataset, values: Hyperparameters, keys: str, capacity: int
) -> list[tuple[float, dict[str, float]]]:
    """Return the evaluations of run 0 in a stack beside runs that diverge."""
    stack, found = Stack(values, data.train, data.val, capacity), []
    for key in keys:
        stack.admit(Run(key, values.replace(seed=int(key), learning_rate=1e-2 if key == "0" else 1e3)))
    while "0" in stack.keys:
        for record in stack.advance():
            if record.key == "0":
                found.append((record.val_loss, record.measures))
            if record.state != "running":
                stack.release(record.key)
    return found


def test_it_is_learned(data: Dataset) -> None:
    scores = [float(each["score"]) for each in rows()]
    first, *_, last = advanced(data, values_of(data), "0", 1)
    assert first[0] > np.var(scores) / 2, "as much as one number for all of them"
    assert last[0] < np.var(scores) / 4 and last[1]["pearson"] > 0.85 and last[1]["spearman"] > 0.8


@pytest.mark.parametrize("grad_accum", [1, 2])
def test_it_has_the_same_bits_in_any_stack(data: Dataset, grad_accum: int) -> None:
    values = values_of(data, max_iters=6, eval_interval=3, grad_accum=grad_accum)
    assert advanced(data, values, "0", 1) == advanced(data, values, "120", 3)


def test_loss_and_measures_are_those_of_torch_and_scipy(data: Dataset) -> None:
    values = values_of(data, eval_full=True)
    stack = Stack(values, data.train, data.val, 1)
    stack.admit(Run("0", values.replace(seed=3)))
    (record,) = stack.advance()
    weights = {name: each[None] for name, each in stack.weights("0").items()}
    found, wanted = [], []
    for numbers in make_objective(data.val, values).evaluation():
        batch = changed(numbers, lambda part: torch.from_numpy(part)[None])
        logits = stack.transformer.logits(weights, batch)[0].view(*numbers.targets.shape, -1)
        found, wanted = [*found, *logits[:, 0, -1].tolist()], [*wanted, *numbers.reference.tolist()]
        own = torch.nn.functional.mse_loss(logits[:, 0, -1], batch.reference[0])
        assert stack.transformer.losses(weights, batch, candidates=1).item() == pytest.approx(
            own.item(), rel=1e-6
        )
    assert len(found) == data.val.n_pairs == 60
    assert record.val_loss == pytest.approx(np.mean(np.square(np.subtract(found, wanted))), rel=1e-6)
    assert record.measures["pearson"] == pytest.approx(pearsonr(found, wanted).statistic, abs=1e-6)
    assert record.measures["spearman"] == pytest.approx(spearmanr(found, wanted).statistic, abs=1e-6)
    assert stack.whole_losses(["0"], best=True)[0] == pytest.approx(record.val_loss, rel=1e-6)


def test_a_step_as_it_is_compiled_learns_scores(data: Dataset) -> None:
    values = values_of(data)
    stack = Stack(values, data.train, data.val)
    stack.admit(Run("run", values))
    stack.advance()
    (losses,) = stack.traceable()(*(each.clone() for each in stack.staged()))
    stack._step()
    assert losses.item() == pytest.approx(stack._rows["loss"][0, 0].item(), abs=1e-6)


def test_scores_may_be_any_numbers_and_come_from_csv(tmp_path: Path) -> None:
    written = [-3.25, 0.1, 4e9, *range(30)]
    lines = [f'"a, {at}",b{at},{score!r}' for at, score in enumerate(written)]
    (tmp_path / "a.csv").write_text("\n".join(["sentence1,sentence2,score", *lines]))
    found = prepare("scores", "char", str(tmp_path / "a.csv"))
    kept = []
    for split in (found.train, found.val, found.test):
        assert isinstance(split, Pairs)
        kept += [np.asarray(split.tokens[end - 4 : end]).view("<f8")[0] for end in split.ends[1::2]]
    assert sorted(kept) == sorted(written)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "a.csv",
            "sentence1,sentence2,score\na,b,high\n",
            "a.csv:2: line 2 has 'high' as its score; allowed: a number",
        ),
        (
            "a.csv",
            "sentence1,score\na,b\n",
            "a.csv:1: there is no column sentence2; allowed: a first line with",
        ),
        ("a.jsonl", '{"sentence1": "a", "sentence2": "b", "score": NaN}\n', "line 1 has 'nan' as its score"),
        ("a.jsonl", '{"sentence1": "a", "sentence2": "", "score": 1}\n', "line 1 has an empty sentence2"),
        ("a.tsv", "a", "a.tsv cannot hold sentence1, sentence2 and score; allowed: .jsonl, .csv"),
    ],
)
def test_a_file_that_has_no_scores_is_one_line(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(BadInput) as refused:
        prepare("scores", "char", str(tmp_path / name))
    assert said in str(refused.value) and len(str(refused.value).splitlines()) == 1
