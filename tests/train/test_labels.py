"""Classification: what is found where, against plain computations, and the same bits in any stack."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from sweeplab.data.batches import NO_TARGET, Pairs, changed
from sweeplab.data.dataset import Dataset, prepare
from sweeplab.data.objectives import make_objective
from sweeplab.data.prompts import BOS, EOS, PAD, label
from sweeplab.errors import BadInput
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.train.run import Run
from sweeplab.train.stack import Stack

pytestmark = pytest.mark.usefixtures("one_thread")

FAMILIES = ("encoder", "decoder", "encoder_decoder")
LABELS = ("bad", "good", "odd, or not")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Return texts whose label is what their first letter says, in a CSV with quoted fields and columns of its own."""
    drawn, rows = np.random.default_rng(0), ["id,label,text"]
    for at in range(400):
        kind = int(drawn.integers(3))
        text = "xyz"[kind] + "".join(drawn.choice(list("abcd "), 3 + at % 5)) + str(at)
        rows.append(f'{at},"{LABELS[kind]}","{text}\n."')
    file = tmp_path_factory.mktemp("labels") / "texts.csv"
    file.write_text("\n".join(rows))
    return prepare("labels", "char", str(file))


def values_of(data: Dataset, family: str, **changed) -> Hyperparameters:
    sizes = {"n_layer": 1, "n_embd": 16, "n_head": 2, "block_size": 16, "batch_size": 8, "dropout": 0.0}
    steps = {"max_iters": 160, "eval_interval": 40, "warmup_iters": 5, "learning_rate": 1e-2, "min_lr": 1e-3}
    own = {"device": "cpu", "dtype": "float32", "compile": False, "n_labels": 3}
    given = {"objective": "classification", "family": family, **sizes, **steps, **own, **changed}
    return Hyperparameters.of({**given, "vocab_size": data.tokenizer.vocab_size + 6})


def test_labels_are_numbers_and_no_text_of_a_tokenizers(data: Dataset) -> None:
    assert data.labels == tuple(sorted(LABELS)) and isinstance(data.train, Pairs)
    assert data.sizes == (data.tokenizer.vocab_size, len(data.train), 320, 3)
    assert "g" not in data.tokenizer.decode(range(data.tokenizer.vocab_size))
    start, end = data.train.ends[:2]
    text, (number,) = data.tokenizer.decode(data.train.tokens[:start]), data.train.tokens[start:end]
    assert text[0] == "xyz"[LABELS.index(data.labels[number])] and text.endswith("\n.")
    assert data.bits_per_byte(0.5, values_of(data, "encoder")) is None


@pytest.mark.parametrize("family", FAMILIES)
def test_a_label_stands_where_all_of_its_text_is_seen(data: Dataset, family: str) -> None:
    objective = make_objective(data.train, values_of(data, family, block_size=9))
    batch, special = objective.training(0, 0), objective.special
    room = 9 if family == "encoder_decoder" else 7
    assert special[label(2)] == special.vocab_size - 1
    for row in range(8):
        (place,) = np.flatnonzero(batch.targets[row] != NO_TARGET)
        read = batch.inputs[row, : batch.lengths[row]].tolist()
        text = read[1:-1]
        if family == "encoder_decoder":
            text, read = batch.source[row, : batch.source_lengths[row]].tolist(), [*read, special[EOS]]
        assert (read[0], read[-1]) == (special[BOS], special[EOS])
        assert place == (batch.lengths[row] - 1 if family == "decoder" else 0)
        assert (batch.inputs[row, batch.lengths[row] :] == special[PAD]).all() and len(text) <= room
        kind = "xyz".index(data.tokenizer.decode(text)[0])
        assert batch.targets[row, place] == special[label(data.labels.index(LABELS[kind]))]


@pytest.mark.parametrize(
    "family",
    ["encoder", *(pytest.param(each, marks=pytest.mark.slow) for each in ("decoder", "encoder_decoder"))],
)
def test_it_is_learned_and_has_the_same_bits_in_any_stack(data: Dataset, family: str) -> None:
    values = values_of(data, family)

    def losses(keys: str, capacity: int, cut: bool = False) -> list[tuple[float, dict[str, float]]]:
        stack = Stack(values, data.train, data.val, capacity)
        for key in keys:
            own = values.replace(seed=int(key), learning_rate=1e-2 if key == "0" else 1e3)
            stack.admit(Run(key, own))
        found = []
        while "0" in stack.keys:
            for record in stack.advance():
                if record.key == "0":
                    found.append((record.val_loss, record.measures))
                if record.state != "running":
                    stack.release(record.key)
            if cut and len(found) == 3 and "0" in stack.keys:
                snapshot = stack.snapshot("0")
                stack = Stack(values, data.train, data.val, 2)
                stack.admit(Run("0", values.replace(seed=0)), snapshot)
        return found

    alone = losses("0", 1)
    assert alone == losses("120", 3) == losses("10", 2, cut=True)
    first, last = alone[0], alone[-1]
    assert abs(first[0] - np.log(3)) < 0.2, "a guess among the labels, not among all tokens"
    assert last[0] < 0.5 and last[1]["accuracy"] > 0.6 and last[1]["f1"] > 0.5


def test_the_measures_are_those_of_a_plain_count(data: Dataset) -> None:
    values = values_of(data, "encoder", eval_full=True)
    stack = Stack(values, data.train, data.val, 1)
    stack.admit(Run("0", values.replace(seed=3)))
    (record,) = stack.advance()
    weights = {name: each[None] for name, each in stack.weights("0").items()}
    wanted, found, losses = [], [], []
    for numbers in make_objective(data.val, values).evaluation():
        batch = changed(numbers, lambda part: torch.from_numpy(part)[None])
        rows = numbers.targets.ravel() != NO_TARGET
        logits = stack.transformer.logits(weights, batch)[0][rows][:, -3:]
        own = torch.from_numpy(numbers.targets.ravel()[rows]) - (values.vocab_size - 3)
        losses += torch.nn.functional.cross_entropy(logits, own, reduction="none").tolist()
        wanted, found = [*wanted, *own.tolist()], [*found, *logits.argmax(dim=1).tolist()]
    scores = []
    for each in sorted({*wanted, *found}):
        hits = sum(w == f == each for w, f in zip(wanted, found, strict=True))
        scores.append(2 * hits / (wanted.count(each) + found.count(each)))
    assert len(wanted) == data.val.n_pairs == 40
    assert record.measures["accuracy"] == np.mean(np.equal(wanted, found))
    assert record.measures["f1"] == pytest.approx(np.mean(scores))
    assert record.val_loss == pytest.approx(np.mean(losses), rel=1e-6)
    assert stack.whole_losses(["0"], best=True)[0] == pytest.approx(record.val_loss, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "a.csv",
            "text,lable\na,b\n",
            "a.csv:1: there is no column label; allowed: a first line with text and",
        ),
        ("a.csv", "text,label\na,b,c\n", "a.csv:2: line 2 has 3 fields; allowed: 2, as in the first line"),
        ("a.csv", 'text,label\n"a\nb",\n', "a.csv:3: line 3 has an empty label"),
        ("a.jsonl", '{"text": "a"}\n', 'line 1 has no text and label; allowed: {"text": "…", "label": "…"}'),
        ("a.tsv", "a\tx\nb\tx\nc\tx\n", "a.tsv has 1 labels; allowed: 2 to 1,000"),
        ("a.txt", "a", "a.txt cannot hold text and label; allowed: .csv, .tsv, .jsonl"),
    ],
)
def test_a_file_that_has_no_labels_is_one_line(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(BadInput) as refused:
        prepare("labels", "char", str(tmp_path / name))
    assert said in str(refused.value) and len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_as_it_is_compiled_learns_labels_alone(data: Dataset, family: str) -> None:
    values = values_of(data, family)
    stack = Stack(values, data.train, data.val)
    stack.admit(Run("run", values))
    stack.advance()
    (losses,) = stack.traceable()(*(each.clone() for each in stack.staged()))
    stack._step()
    assert losses.item() == pytest.approx(stack._rows["loss"][0, 0].item(), abs=1e-6)
