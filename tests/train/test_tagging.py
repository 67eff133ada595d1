"""Tagging: which tokens are scored, against plain computations, and the same bits in any stack."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from sweeplab.data.baselines import find_baseline
from sweeplab.data.batches import NO_TARGET, changed
from sweeplab.data.dataset import Dataset, prepare
from sweeplab.data.objectives import make_objective
from sweeplab.data.prompts import BOS, EOS, label
from sweeplab.errors import BadInput
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.train.run import Run
from sweeplab.train.stack import Stack

pytestmark = pytest.mark.usefixtures("one_thread")

TAGS = {"ab": "noun", "cde": "verb", "f": "other"}


def sentences() -> list[tuple[list[str], list[str]]]:
    """Draw sentences in which `to` is tagged as the word after it is, and every other word always alike."""
    drawn, found = np.random.default_rng(0), []
    for _ in range(300):
        words = [*drawn.choice([*TAGS, "to"], 3 + int(drawn.integers(3))).tolist(), "f"]
        tags: list[str] = []
        for word in reversed(words):
            tags.insert(0, TAGS[word] if word in TAGS else tags[0])
        found.append((words, tags))
    return found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the sentences as JSON lines, and as a file of the CoNLL tasks."""
    folder, drawn = tmp_path_factory.mktemp("tags"), sentences()
    rows = [json.dumps({"id": at, "tokens": words, "tags": tags}) for at, (words, tags) in enumerate(drawn)]
    (folder / "some.jsonl").write_text("\n".join(rows))
    blocks = ["\n".join(map(" - ".join, zip(words, tags, strict=True))) for words, tags in drawn]
    (folder / "some.conll").write_text("-DOCSTART- O\n\n" + "\n\n".join(blocks))
    return folder / "some.jsonl", folder / "some.conll"


@pytest.fixture(scope="module")
def data(files: tuple[Path, Path]) -> Dataset:
    return prepare("tags", "char", str(files[0]))


def values_of(data: Dataset, **changed) -> Hyperparameters:
    sizes = {"n_layer": 1, "n_embd": 32, "n_head": 2, "block_size": 32, "batch_size": 16, "dropout": 0.0}
    steps = {"max_iters": 160, "eval_interval": 80, "warmup_iters": 5, "learning_rate": 1e-2, "min_lr": 1e-3}
    own = {"device": "cpu", "dtype": "float32", "compile": False, "n_labels": 3}
    given = {"objective": "tagging", "family": "encoder", **sizes, **steps, **own, **changed}
    return Hyperparameters.of({**given, "vocab_size": data.tokenizer.vocab_size + 6})


def test_both_kinds_of_files_are_the_same_data(files: tuple[Path, Path], data: Dataset) -> None:
    other = prepare("tags", "char", str(files[1]))
    assert other.token_digest == data.token_digest and other.kind == data.kind == "tags"
    assert data.labels == ("noun", "other", "verb")
    n_words = sum(len(words) for words, _ in sentences())
    tagged = [np.count_nonzero(np.asarray(each.tokens) < 3) for each in (data.train, data.val, data.test)]
    assert data.val_targets < n_words / 8 and sum(tagged) >= n_words
    assert data.bits_per_byte(0.5, values_of(data)) is None


def test_a_word_is_scored_at_its_first_token_alone(data: Dataset) -> None:
    values = values_of(data, block_size=12)
    objective = make_objective(data.train, values)
    batch, special, known = objective.training(0, 0), objective.special, {tuple(w): t for w, t in sentences()}
    for row in range(16):
        read = batch.inputs[row, : batch.lengths[row]].tolist()
        assert (read[0], read[-1]) == (special[BOS], special[EOS]) and len(read) <= 12
        text = data.tokenizer.decode(read[1:-1])
        starts = [at + 1 for at, each in enumerate(text) if each != " " and (at == 0 or text[at - 1] == " ")]
        assert np.flatnonzero(batch.targets[row] != NO_TARGET).tolist() == starts
        tags = [data.labels[tag - special[label(0)]] for tag in batch.targets[row, starts]]
        # A text that is cut may be the beginning of several.
        assert any(" ".join(w).startswith(text) and t[: len(tags)] == tags for w, t in known.items())


@pytest.mark.parametrize(
    ("tokenizer", "size"), [("bpe", 260), ("wordpiece", None), ("word", None), ("byte", None)]
)
def test_every_word_has_one_tag_whatever_cuts_it(
    files: tuple[Path, Path], tokenizer: str, size: int | None
) -> None:
    found = prepare("tags", tokenizer, str(files[0]), vocab_size=size)
    ends, tokens = found.train.ends.reshape(-1, 2), np.asarray(found.train.tokens)
    known = {" ".join(words): tags for words, tags in sentences()}
    for (start, _), (middle, end) in zip(found.train.starts[:50], ends[:50], strict=True):
        text = found.tokenizer.decode(tokens[start:middle])
        tags = [found.labels[tag] for tag in tokens[middle:end] if tag < 3]
        assert end - middle == middle - start and tags == known[text.strip()]


def test_it_is_learned_and_has_the_same_bits_in_any_stack(data: Dataset) -> None:
    values = values_of(data)

    def losses(keys: str, capacity: int) -> list[tuple[float, dict[str, float]]]:
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

    alone = losses("0", 1)
    assert alone == losses("120", 3)
    assert abs(alone[0][0] - np.log(3)) < 0.3, "a guess among the tags, not among all tokens"
    baseline = find_baseline(data, values)
    assert baseline.unit == "nats/tag" and 0.05 < baseline.loss < np.log(3)
    assert alone[-1][0] < baseline.loss and alone[-1][1]["accuracy"] > 0.9 and alone[-1][1]["f1"] > 0.9


def test_the_measures_are_those_of_a_plain_count(data: Dataset) -> None:
    values = values_of(data, eval_full=True)
    stack = Stack(values, data.train, data.val, 1)
    stack.admit(Run("0", values.replace(seed=3)))
    (record,) = stack.advance()
    weights = {name: each[None] for name, each in stack.weights("0").items()}
    wanted, found, losses = [], [], []
    for numbers in make_objective(data.val, values).evaluation():
        rows = numbers.targets.ravel() != NO_TARGET
        batch = changed(numbers, lambda part: torch.from_numpy(part)[None])
        logits = stack.transformer.logits(weights, batch)[0][rows][:, -3:]
        own = torch.from_numpy(numbers.targets.ravel()[rows]) - (values.vocab_size - 3)
        losses += torch.nn.functional.cross_entropy(logits, own, reduction="none").tolist()
        wanted, found = [*wanted, *own.tolist()], [*found, *logits.argmax(dim=1).tolist()]
    scores = []
    for each in sorted({*wanted, *found}):
        hits = sum(w == f == each for w, f in zip(wanted, found, strict=True))
        scores.append(2 * hits / (wanted.count(each) + found.count(each)))
    assert len(wanted) == data.val_targets
    assert record.measures["accuracy"] == np.mean(np.equal(wanted, found))
    assert record.measures["f1"] == pytest.approx(np.mean(scores))
    assert record.val_loss == pytest.approx(np.mean(losses), rel=1e-6)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "a.jsonl",
            '{"tokens": ["a", "b"], "tags": ["x"]}\n',
            "line 1 has 2 tokens and 1 tags; allowed: a tag for",
        ),
        ("a.jsonl", '{"tokens": "a b", "tags": ["x"]}\n', "line 1 has tokens that are not a list of strings"),
        (
            "a.jsonl",
            '{"tokens": ["a b"], "tags": ["x"]}\n',
            "line 1 has 'a b' among its tokens; allowed: strings without spaces",
        ),
        ("a.jsonl", '{"tokens": [], "tags": []}\n', "line 1 has tokens that are not a list of strings"),
        ("a.conll", "a x\n\nb\n", "a.conll:3: line 3 has no tag beside 'b'; allowed: a token and its tag"),
        ("a.csv", "a", "a.csv cannot hold tokens and tags; allowed: .jsonl, .conll"),
    ],
)
def test_a_file_that_has_no_tags_is_one_line(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(BadInput) as refused:
        prepare("tags", "char", str(tmp_path / name))
    assert said in str(refused.value) and len(str(refused.value).splitlines()) == 1
