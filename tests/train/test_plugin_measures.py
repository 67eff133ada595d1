"""Answers, spans of tags and embeddings in studies/plugins: learned, and measured as a plain count measures them."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import plugged
import pytest
import torch
from scipy.stats import spearmanr

from sweeplab.data.batches import NO_TARGET, changed
from sweeplab.data.dataset import Dataset, prepare
from sweeplab.data.objectives import make_objective, n_special
from sweeplab.data.prompts import BOS, EOS
from sweeplab.errors import BadInput
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.train.run import TrainingRun
from sweeplab.train.stack import Stack

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module", autouse=True)
def modules() -> Any:
    with plugged.imported() as modules:
        yield modules


def trained(
    data: Dataset, objective: str, capacity: int = 1, **changed: Any
) -> tuple[Hyperparameters, list[tuple[float, dict[str, float]]], Stack]:
    """Return the evaluations of run 0, beside others that learn faster if there is room for them."""
    sizes = {"n_layer": 1, "n_embd": 32, "n_head": 4, "dropout": 0.0, "warmup_iters": 5, "eval_full": True}
    steps = {"learning_rate": 1e-2, "min_lr": 1e-3, "log_interval": 20, "patience": None}
    here = {
        "device": "cpu",
        "dtype": "float32",
        "compile": False,
        "family": "encoder",
        "objective": objective,
    }
    values = Hyperparameters.of(sizes | steps | here | changed)
    values = values.replace(vocab_size=data.tokenizer.vocab_size + n_special(values))
    stack, found = Stack(values, data.train, data.val, capacity), []
    for key in range(capacity):
        stack.admit(
            TrainingRun(str(key), values.replace(seed=key, learning_rate=(key + 1) * values.learning_rate))
        )
    while len(found) < 1 + values.max_iters // values.eval_interval:
        found += [(record.val_loss, record.measures) for record in stack.advance() if record.key == "0"]
    return values, found, stack


def outputs(data: Dataset, values: Hyperparameters, stack: Stack, n_candidates: int) -> Any:
    """Yield the batches of the validation split, with the logits [B, T, n] of the last n tokens."""
    weights = {name: weight[None] for name, weight in stack.weights("0").items()}
    for numbers in make_objective(data.val, values).evaluation():
        batch = changed(numbers, lambda part: torch.from_numpy(part)[None])
        logits = stack.transformer.logits(weights, batch)[0].view(*numbers.targets.shape, -1)
        yield logits[..., -n_candidates:], numbers


def prepared(folder: Path, corpus: str, rows: list[dict[str, Any]], tokenizer: str = "char") -> Dataset:
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return prepare(corpus, tokenizer, str(folder / "rows.jsonl"))


# ------------------------------------------------------------------ answers


@pytest.mark.slow
def test_answers_are_found_and_measured_as_plainly_and_in_any_stack(tmp_path: Path) -> None:
    data = prepared(tmp_path, "questions", plugged.questions())
    own = {
        "block_size": 32,
        "batch_size": 32,
        "max_iters": 280,
        "eval_interval": 140,
        "positions": "relative",
    }
    values, found, stack = trained(data, "answers", **own)
    assert found == trained(data, "answers", 2, **own)[1]
    (first, _), *_, (last, measures) = found
    assert first > 3, "about log T for either end"
    assert last < 0.5 and measures["exact_match"] > 0.8 and measures["f1"] > 0.9
    n_exact, scores, losses = 0, [], []
    for logits, batch in outputs(data, values, stack, 2):
        for row, targets, (start, end) in zip(logits, batch.targets, batch.reference, strict=True):
            places = np.flatnonzero(targets != NO_TARGET)
            shares = row[places].double().log_softmax(dim=0)
            pairs = [(i, j) for i in range(len(places)) for j in range(i, len(places))]
            i, j = max(pairs, key=lambda pair: shares[pair[0], 0] + shares[pair[1], 1])
            here, true = {*range(places[i], places[j] + 1)}, {*range(start, end + 1)}
            n_exact += here == true
            scores.append(2 * len(here & true) / (len(here) + len(true)))
            losses.append(-float(shares[start - places[0], 0] + shares[end - places[0], 1]))
    assert len(losses) == data.val.n_pairs
    assert last == pytest.approx(np.mean(losses), rel=1e-5)
    assert measures["exact_match"] == n_exact / len(losses)
    assert measures["f1"] == pytest.approx(np.mean(scores))


@pytest.mark.parametrize("tokenizer", ["char", "byte", "bpe", "word"])
def test_answers_stand_where_they_are_said_to(tmp_path: Path, tokenizer: str) -> None:
    rows = [
        {
            "question": f"who {at}?",
            "context": f"Here {at} sees Ann, and Böb.",
            "answer": answer,
            "answer_start": start,
        }
        for at in range(10, 60)
        for answer, start in (("Ann", 13), ("Böb", 22))
    ]
    data = prepared(tmp_path, "questions", rows, tokenizer)
    known = {row["question"]: {"Ann", "Böb"} for row in rows}
    values = Hyperparameters.of(
        {"family": "encoder", "objective": "answers", "block_size": 64, "batch_size": 16}
    )
    values = values.replace(vocab_size=data.tokenizer.vocab_size + n_special(values))
    objective = make_objective(data.train, values)
    batch = objective.training(0, 0)
    for inputs, targets, (start, end) in zip(batch.inputs, batch.targets, batch.reference, strict=True):
        middle, after = np.flatnonzero(inputs == objective.special[EOS])
        assert inputs[0] == objective.special[BOS]
        assert np.flatnonzero(targets != NO_TARGET).tolist() == [*range(middle + 1, after)]
        question = data.tokenizer.decode(inputs[1:middle])
        answer = data.tokenizer.decode(inputs[start : end + 1]).strip()
        assert any(name in answer and len(answer) <= len(name) + 1 for name in known[question]), answer
    with pytest.raises(
        BadInput, match="block_size 8 is too short for a question and its context in the train split"
    ):
        type(objective).check("train", data.train, values.replace(block_size=8))


@pytest.mark.parametrize("start", [-1, 1, "x", 99])
def test_an_answer_that_is_elsewhere_is_refused(tmp_path: Path, start: Any) -> None:
    row = {"question": "who?", "context": "Ann", "answer": "Ann", "answer_start": start}
    with pytest.raises(BadInput, match="as its answer_start; allowed: the number of characters before 'Ann'"):
        prepared(tmp_path, "questions", [row])


# ------------------------------------------------------------------ spans of tags


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O B-a I-a O", {(1, 3, "a")}),
        ("B-a B-a I-b I-b", {(0, 1, "a"), (1, 2, "a"), (2, 4, "b")}),
        ("I-a I-a O I-b", {(0, 2, "a"), (3, 4, "b")}),
        ("B-a I-a E-a S-a S-b", {(0, 3, "a"), (3, 4, "a"), (4, 5, "b")}),
        ("U-a B-b L-b O", {(0, 1, "a"), (1, 3, "b")}),
        ("O O", set()),
    ],
)
def test_spans_are_those_of_conlleval(tags: str, expected: set, modules: dict[str, ModuleType]) -> None:
    names = ("O", *(f"{place}-{kind}" for place in "BIESLU" for kind in "ab"))
    codes = modules["tagging"].span_codes(names)
    found = modules["tagging"].spans(codes[names.index(tag)] for tag in tags.split())
    assert {(start, end, " ab"[kind]) for start, end, kind in found} == expected
    assert not len(modules["tagging"].span_codes(("O", "B-a", "noun")))


@pytest.mark.slow
def test_spans_of_tags_are_measured_as_plainly(tmp_path: Path, modules: dict[str, ModuleType]) -> None:
    drawn, rows = np.random.default_rng(0), []
    for _ in range(300):
        names = drawn.choice(["x", "y y", "z"], 4)
        pairs = [
            (word, tag)
            for name in names
            for word, tag in zip(
                name.split(), {"x": ["S-a"], "y y": ["B-b", "E-b"], "z": ["O"]}[name], strict=True
            )
        ]
        rows.append({"tokens": [word for word, _ in pairs], "tags": [tag for _, tag in pairs]})
    data = prepared(tmp_path, "tags", rows)
    own = {"block_size": 24, "batch_size": 16, "max_iters": 160, "eval_interval": 80, "n_labels": 4}
    values, found, stack = trained(data, "tagging", **own)
    assert found == trained(data, "tagging", 2, **own)[1]
    assert found[0][1]["span_f1"] < 0.7 and found[-1][1].keys() == {"accuracy", "f1", "span_f1"}
    n_found = n_spans = 0
    for logits, batch in outputs(data, values, stack, 4):
        for row, targets in zip(logits.argmax(dim=-1).numpy(), batch.targets, strict=True):
            is_tag = targets != NO_TARGET
            said, true = (
                [data.labels[tag] for tag in tags[is_tag]]
                for tags in (row, targets - (values.vocab_size - 4))
            )
            codes = modules["tagging"].span_codes(data.labels)
            both = [
                modules["tagging"].spans(codes[data.labels.index(tag)] for tag in tags)
                for tags in (said, true)
            ]
            n_found, n_spans = n_found + len(both[0] & both[1]), n_spans + len(both[0]) + len(both[1])
    assert found[-1][1]["span_f1"] == pytest.approx(2 * n_found / n_spans) and found[-1][1]["span_f1"] > 0.6


# ------------------------------------------------------------------ embeddings


@pytest.mark.slow
def test_embeddings_have_the_cosines_that_are_asked_for(tmp_path: Path) -> None:
    """The score of texts falls from 1 to 0 with the distance of their first letters."""
    drawn, rows = np.random.default_rng(0), []
    for at in range(800):
        one, other = drawn.choice(4, 2).tolist()
        texts = {"sentence1": f"{'abcd'[one]}{at}", "sentence2": f"{'abcd'[other]}{drawn.integers(1000)}!"}
        rows.append({**texts, "score": 1 - abs(one - other) / 3})
    data = prepared(tmp_path, "scores", rows)
    own = {"block_size": 12, "batch_size": 64, "max_iters": 160, "eval_interval": 80}
    values, found, stack = trained(data, "embedding", **own)
    assert found == trained(data, "embedding", 2, **own)[1]
    (_, before), *_, (last, measures) = found
    assert last < 0.01 and measures["spearman"] > 0.95 > before["spearman"]
    cosines, wanted = [], []
    for logits, batch in outputs(data, values, stack, 32):
        vectors = [
            row[targets != NO_TARGET].mean(dim=0) for row, targets in zip(logits, batch.targets, strict=True)
        ]
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        cosines += [torch.cosine_similarity(*pair, dim=0).item() for pair in pairs]
        wanted += batch.reference[::2].tolist()
    assert len(cosines) == data.val.n_pairs
    assert last == pytest.approx(np.mean(np.square(np.subtract(cosines, wanted))), rel=1e-5)
    assert measures["spearman"] == pytest.approx(spearmanr(cosines, wanted).statistic, abs=1e-5)
