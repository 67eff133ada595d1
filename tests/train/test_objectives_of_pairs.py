"""Objectives of pairs, and those of studies/plugins: batches, losses and measures against plain computations."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import plugged
import pytest
import torch
from scipy.stats import pearsonr, spearmanr
from trained import digest

from sweeplab.data.batches import NO_TARGET, Batch, Pairs, changed, limited
from sweeplab.data.dataset import Dataset, prepare
from sweeplab.data.objectives import OBJECTIVES, make_objective, n_special
from sweeplab.data.objectives.pairs import source_lengths
from sweeplab.data.prompts import BOS, EOS, PAD, label
from sweeplab.errors import BadInput
from sweeplab.hyperparameters import TABLE, Hyperparameters
from sweeplab.train.run import TrainingRun
from sweeplab.train.stack import Stack

pytestmark = pytest.mark.usefixtures("one_thread")

TAGS = {"ab": "noun", "cde": "verb", "f": "other"}
PLUGGED = ("preference", "tagging", "similarity", "embedding", "answers")
CORPORA = {"classification": "labels", "preference": "preferences", "tagging": "tags", "similarity": "scores"}
CORPORA |= {"embedding": "scores", "answers": "questions"}
FAMILIES = {
    "classification": ("encoder", "decoder", "encoder_decoder"),
    "preference": ("decoder", "encoder_decoder"),
    "tagging": ("encoder",),
    "similarity": ("encoder",),
    "embedding": ("encoder",),
    "answers": ("encoder",),
}
LABELS = ("bad", "good", "odd, or not")
KINDS = [(name, family) for name, families in FAMILIES.items() for family in families]
OWN = {
    "classification": {
        "block_size": 16,
        "batch_size": 8,
        "learning_rate": 1e-2,
        "n_labels": 3,
        "eval_interval": 40,
    },
    "preference": {"block_size": 12, "batch_size": 8, "learning_rate": 3e-3, "beta": 0.2, "eval_full": True},
    "tagging": {"block_size": 32, "batch_size": 16, "learning_rate": 1e-2, "n_embd": 32, "n_labels": 3},
    "similarity": {"block_size": 16, "batch_size": 32, "learning_rate": 1e-2},
    "embedding": {"block_size": 16, "batch_size": 32, "learning_rate": 1e-2},
    "answers": {"block_size": 32, "batch_size": 32, "learning_rate": 1e-2},
}


def labels() -> str:
    """Draw texts whose label is what their first letter says: a CSV with quoted fields and columns of its own."""
    drawn, rows = np.random.default_rng(0), ["id,label,text"]
    for at in range(400):
        kind = int(drawn.integers(3))
        text = "xyz"[kind] + "".join(drawn.choice(list("abcd "), 3 + at % 5)) + str(at)
        rows.append(f'{at},"{LABELS[kind]}","{text}\n."')
    return "\n".join(rows)


def preferences() -> list[dict[str, Any]]:
    """Draw prompts of which that answer is chosen which has more of the letter a; answers are of unlike lengths."""
    drawn, rows = np.random.default_rng(0), []
    for at in range(300):
        many, few = ("".join(drawn.permutation(list("a" * n + "b" * (5 - n + at % 2)))) for n in (4, 1))
        rows.append({"prompt": f"{at}?", "chosen": many, "rejected": few, "note": "more"})
    return rows


def sentences() -> list[dict[str, Any]]:
    """Draw sentences in which `to` is tagged as the word after it is, and every other word always alike."""
    drawn, rows = np.random.default_rng(0), []
    for at in range(300):
        words = [*drawn.choice([*TAGS, "to"], 3 + int(drawn.integers(3))).tolist(), "f"]
        tags: list[str] = []
        for word in reversed(words):
            tags.insert(0, TAGS[word] if word in TAGS else tags[0])
        rows.append({"id": at, "tokens": words, "tags": tags})
    return rows


def scores() -> list[dict[str, Any]]:
    """Draw texts with a score of both: 0 to 4, what their first letters come to together."""
    drawn, rows = np.random.default_rng(0), []
    for at in range(600):
        one, other = ("".join(drawn.choice(list("abc"), 2)) for _ in range(2))
        score = "abc".index(one[0]) + "abc".index(other[0])
        rows.append({"sentence1": f"{one}.{at}", "sentence2": f"{other}{'!' * (at % 3)}", "score": score})
    return rows


@pytest.fixture(scope="module", autouse=True)
def modules() -> Iterator[dict[str, ModuleType]]:
    with plugged.imported() as modules:
        yield modules
    assert not {*PLUGGED} & {*OBJECTIVES, *TABLE["objective"].choices} and "beta" not in TABLE


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("plugins")
    found = {"classification": folder / "labels.csv"}
    found["classification"].write_text(labels())
    drawn = {"preference": preferences(), "tagging": sentences(), "similarity": scores()}
    for name, rows in (drawn | {"embedding": scores(), "answers": plugged.questions()}).items():
        found[name] = folder / f"{name}.jsonl"
        found[name].write_text("\n".join(map(json.dumps, rows)))
    return found


@pytest.fixture(scope="module")
def data(files: dict[str, Path], modules: object) -> dict[str, Dataset]:
    return {name: prepare(CORPORA[name], "char", str(file)) for name, file in files.items()}


def values_of(data: Dataset, name: str, family: str = "", **changed: Any) -> Hyperparameters:
    sizes = {"n_layer": 1, "n_embd": 16, "n_head": 2, "dropout": 0.0, "log_interval": 20, "warmup_iters": 5}
    steps = {"max_iters": 160, "eval_interval": 80, "min_lr": 1e-3, "device": "cpu", "dtype": "float32"}
    given = {"objective": name, "family": family or FAMILIES[name][0], "compile": False}
    found = Hyperparameters.of(given | sizes | steps | OWN[name] | changed)
    return found.replace(vocab_size=data.tokenizer.vocab_size + n_special(found))


def start_of(data: Dataset, values: Hyperparameters) -> dict[str, torch.Tensor]:
    """Return weights that say something: four times as large as random ones."""
    stack = Stack(values, data.train, data.val)
    stack.admit(TrainingRun("start", values.replace(seed=9)))
    return {name: 4 * weight for name, weight in stack.weights("start").items()}


# ------------------------------------------------------------------ what all do


@pytest.mark.parametrize(("name", "family"), KINDS)
def test_batches_depend_on_seed_and_iteration_only(data: dict[str, Dataset], name: str, family: str) -> None:
    values = values_of(data[name], name, family)
    one, other = (make_objective(data[name].train, values) for _ in range(2))
    asked = [(0, 0), (5, 123), (0, 1), (2**31 - 1, 10**9)]
    forward = [digest(one.training(*each)) for each in asked]
    evaluated = digest(*other.evaluation(300))
    assert forward[::-1] == [digest(other.training(*each)) for each in reversed(asked)]
    assert len({*forward}) == len(asked) and evaluated == digest(*one.evaluation(300))
    most, most_source = OBJECTIVES[name].lengths(values)
    for batch in (one.training(0, 0), *one.evaluation()):
        assert batch.inputs.shape[1] <= most
        assert (0 if batch.source is None else batch.source.shape[1]) <= most_source


def evaluated(
    data: Dataset, values: Hyperparameters, keys: str, capacity: int, start: Any = None, cut: bool = False
) -> list[tuple[float, dict[str, float]]]:
    """Return the evaluations of run 0 in a stack beside runs that diverge; with `cut` it moves to another stack."""
    stack, found = Stack(values, data.train, data.val, capacity), []
    other = {"beta": 0.9} if values.objective == "preference" else {}
    for key in keys:
        own = values if key == "0" else values.replace(seed=int(key), learning_rate=1e3, **other)
        stack.admit(TrainingRun(key, own), start=start)
    while "0" in stack.keys:
        for record in stack.advance():
            if record.key == "0":
                found.append((record.val_loss, record.measures))
            if record.state != "running":
                stack.release(record.key)
        if cut and len(found) == 2 and "0" in stack.keys:
            snapshot, stack = stack.snapshot("0"), Stack(values, data.train, data.val, 2)
            stack.admit(TrainingRun("0", values), snapshot, start)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "family"),
    [
        *((name, families[0]) for name, families in FAMILIES.items() if name not in ("embedding", "answers")),
        *(("classification", family) for family in ("decoder", "encoder_decoder")),
    ],
)
def test_it_is_learned_with_the_same_bits_in_any_stack(
    data: dict[str, Dataset], name: str, family: str
) -> None:
    short = {"max_iters": 80, "eval_interval": 20} if name == "preference" else {}
    values = values_of(data[name], name, family, **short)
    start = start_of(data[name], values) if name == "preference" else None
    alone = evaluated(data[name], values, "0", 1, start)
    assert alone == evaluated(data[name], values, "120", 3, start)
    assert alone == evaluated(data[name], values, "10", 2, start, cut=True)
    (first, _), *_, (last, measures) = alone
    match name:
        case "preference":
            assert last < 0.4 and measures["reward_accuracy"] > 0.9 and measures["reward_margin"] > 0.5
        case "classification":
            assert abs(first - np.log(3)) < 0.2, "a guess among the labels, not among all tokens"
            assert last < 0.5 and measures["accuracy"] > 0.6 and measures["f1"] > 0.5
        case "tagging":
            assert abs(first - np.log(3)) < 0.3, "a guess among the tags, not among all tokens"
            assert last < 0.3 and measures["accuracy"] > 0.9 and measures["f1"] > 0.9
        case "similarity":
            variance = np.var([row["score"] for row in scores()])
            assert first > variance / 2, "as much as one number for all of them"
            assert last < variance / 4 and measures["pearson"] > 0.85 and measures["spearman"] > 0.8


BAD = [
    ("labels", "a.csv", "text,lable\na,b\n", "a.csv:2: line 2 has no label, but text, lable; allowed: data.field"),
    ("labels", "a.csv", "text,label\na,b,c\n", "a.csv:2: line 2 has 3 fields; allowed: 2, text, label"),
    ("labels", "a.csv", 'text,label\n"a\nb",\n', "a.csv:3: line 3 has an empty label"),
    ("labels", "a.jsonl", '{"text": "a"}\n', 'line 1 has no label, but text; allowed: data.field: [NAME, NAME]'),
    ("labels", "a.tsv", "a\tx\nb\tx\nc\tx\n", "a.tsv has 1 label; allowed: 2 to 1,000"),
    ("labels", "a.txt", "a", "a.txt cannot hold text and label; allowed: .csv, .tsv, .jsonl"),
    ("preferences", "a.jsonl", '{"prompt": "a", "chosen": "b"}\n', 'has no rejected, but prompt, chosen; allowed'),
    ("preferences", "a.jsonl", '{"prompt": "a", "chosen": "b", "rejected": "b"}', "line 1 has the same answer as"),
    ("preferences", "a.csv", "prompt,chosen,worse\na,b,c\n", "has no rejected, but prompt, chosen, worse"),
    ("preferences", "a.tsv", "a\tb\tc", "a.tsv cannot hold prompt, chosen and rejected; allowed: .jsonl, .csv"),
    ("tags", "a.jsonl", '{"tokens": ["a", "b"], "tags": ["x"]}', "line 1 has 2 tokens and 1 tags; allowed: a tag for"),
    ("tags", "a.jsonl", '{"tokens": "a b", "tags": ["x"]}\n', "line 1 has tokens that are not a list of strings"),
    ("tags", "a.jsonl", '{"tokens": ["a b"], "tags": ["x"]}\n', "line 1 has 'a b' among its tokens; allowed: strings"),
    ("tags", "a.jsonl", '{"tokens": [], "tags": []}\n', "line 1 has tokens that are not a list of strings"),
    ("tags", "a.conll", "a x\n\nb\n", "a.conll:3: line 3 has no tag beside 'b'; allowed: a token and its tag"),
    ("tags", "a.csv", "a", "a.csv cannot hold tokens and tags; allowed: .jsonl, .conll"),
    ("scores", "a.csv", "sentence1,sentence2,score\na,b,high\n", "a.csv:2: line 2 has 'high' as its score; allowed: a"),
    ("scores", "a.csv", "sentence1,score\na,b\n", "a.csv:2: line 2 has no sentence2, but sentence1, score"),
    ("scores", "a.jsonl", '{"sentence1": "a", "sentence2": "b", "score": NaN}', "line 1 has 'nan' as its score"),
    ("scores", "a.jsonl", '{"sentence1": "a", "sentence2": "", "score": 1}', "line 1 has an empty sentence2"),
    ("scores", "a.tsv", "a", "a.tsv cannot hold sentence1, sentence2 and score; allowed: .jsonl, .csv"),
]  # fmt: skip


@pytest.mark.parametrize(("corpus", "name", "text", "said"), BAD)
def test_a_file_of_something_else_is_one_line(
    tmp_path: Path, corpus: str, name: str, text: str, said: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(BadInput) as refused:
        prepare(corpus, "char", str(tmp_path / name))
    assert said in str(refused.value) and len(str(refused.value).splitlines()) == 1


# ------------------------------------------------------------------ labels


@pytest.mark.parametrize("family", FAMILIES["classification"])
def test_a_label_stands_where_all_of_its_text_is_seen(data: dict[str, Dataset], family: str) -> None:
    own = data["classification"]
    objective = make_objective(own.train, values_of(own, "classification", family, block_size=9))
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
        kind = "xyz".index(own.tokenizer.decode(text)[0])
        assert batch.targets[row, place] == special[label(own.labels.index(LABELS[kind]))]


# ------------------------------------------------------------------ preferences


def log_ratios(stack: Stack, weights: Any, start: Any, batch: Batch) -> torch.Tensor:
    """Return how much more probable each answer of a batch is under `weights` than at the start, answer by answer."""

    def answers(own: Any) -> list[torch.Tensor]:
        placed = Batch(*(None if part is None else torch.from_numpy(part)[None] for part in batch[:5]))
        shares = stack.transformer.logits(own, placed)[0].double().softmax(dim=-1)
        shares = shares.view(*batch.targets.shape, -1)
        found = []
        for row, targets in enumerate(batch.targets):
            places = np.flatnonzero(targets != NO_TARGET)
            found.append(sum(shares[row, place, targets[place]].log() for place in places))
        return found

    now, before = ({name: each[None] for name, each in own.items()} for own in (weights, start))
    return torch.stack(answers(now)) - torch.stack(answers(before))


def plainly(
    stack: Stack, weights: Any, start: Any, batch: Batch, beta: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return loss and margins of a batch of one run by equation 7 of Rafailov et al. 2023."""
    rewards = beta * log_ratios(stack, weights, start, batch)
    found = rewards[0::2] - rewards[1::2]
    return -torch.log(1 / (1 + torch.exp(-found))).mean(), found


@pytest.mark.parametrize("family", FAMILIES["preference"])
def test_the_loss_and_its_gradient_are_those_of_the_formula(data: dict[str, Dataset], family: str) -> None:
    own = data["preference"]
    values = values_of(
        own, "preference", family, grad_clip=None, optimizer="sgd", momentum=0.0, weight_decay=0.0
    )
    values = values.replace(lr_decay=False, warmup_iters=0, learning_rate=0.5, beta=0.3, log_interval=1)
    start, stack = start_of(own, values), Stack(values, own.train, own.val)
    stack.admit(TrainingRun("run", values), start=start)
    stack.advance()
    objective = make_objective(own.train, values)
    for step in range(3):
        before = {name: each.clone().requires_grad_() for name, each in stack.weights("run").items()}
        loss, _ = plainly(stack, before, start, objective.training(0, step), 0.3)
        gradients = torch.autograd.grad(loss, list(before.values()), allow_unused=True)
        stack.step()
        assert stack._members[0].points[-1]["train_loss"] == pytest.approx(loss.item(), rel=1e-5)
        after = stack.weights("run")
        for (name, weight), gradient in zip(before.items(), gradients, strict=True):
            moved = weight.detach() - (0 if gradient is None else 0.5 * gradient)
            torch.testing.assert_close(after[name], moved.to(after[name]), atol=3e-5, rtol=1e-4)
    assert loss.item() != pytest.approx(math.log(2), abs=1e-3), (
        "the last loss is another one than the start's"
    )


def test_the_measures_of_preferences_are_those_of_the_formula(data: dict[str, Dataset]) -> None:
    own = data["preference"]
    values = values_of(own, "preference", max_iters=60, eval_interval=20)
    start, stack = start_of(own, values), Stack(values, own.train, own.val)
    stack.admit(TrainingRun("run", values), start=start)
    (first,), (record,) = stack.advance(), stack.advance()
    assert first.val_loss == pytest.approx(math.log(2), abs=1e-6)
    assert first.measures["reward_margin"] == pytest.approx(0.0, abs=1e-6)
    batches, weights = list(make_objective(own.val, values).evaluation()), stack.weights("run")
    margins = torch.cat([plainly(stack, weights, start, batch, values.beta)[1] for batch in batches])
    assert len(margins) == own.val.n_pairs / 2 == 30
    assert record.val_loss == pytest.approx(-torch.nn.functional.logsigmoid(margins).mean().item(), abs=1e-6)
    assert record.measures["reward_accuracy"] == (margins > 0).double().mean()
    assert record.measures["reward_margin"] == pytest.approx(margins.mean().item(), abs=1e-6)
    ratios = [record.measures[f"{which}_log_ratio"] for which in ("chosen", "rejected")]
    assert values.beta * (ratios[0] - ratios[1]) == pytest.approx(margins.mean().item(), abs=1e-6)
    moved = [
        torch.cat([log_ratios(stack, weights, start, batch)[which::2] for batch in batches]).mean().item()
        for which in (0, 1)
    ]
    assert ratios == pytest.approx(moved, abs=1e-5) and first.measures["chosen_log_ratio"] == pytest.approx(
        0, abs=1e-6
    )
    stacked = {name: each[None] for name, each in weights.items()}
    alone = stack._evaluation.loss(stacked, stack._loss_inputs([0], 1))
    assert alone == pytest.approx([record.val_loss], abs=1e-7)


@pytest.mark.parametrize("family", FAMILIES["preference"])
def test_two_answers_follow_the_same_prompt(data: dict[str, Dataset], family: str) -> None:
    own = data["preference"]
    assert own.kind == "preferences" and isinstance(own.train, Pairs) and own.train.per_source == 2
    # Of the longest answer, 6 tokens, and of what stands around it a decoder leaves one for the prompt.
    values = values_of(own, "preference", family, block_size=9)
    objective, decode = make_objective(own.train, values), own.tokenizer.decode
    for batch in (objective.training(0, 0), next(objective.evaluation())):
        assert len(batch.targets) % 2 == 0 and (batch.reference[1::2] == batch.reference[::2] + 1).all()
        texts = []
        for row, targets in enumerate(batch.targets):
            found = targets[targets != NO_TARGET]
            assert found[-1] == objective.special[EOS]
            read = (
                batch.inputs[row] if batch.source is None else batch.source[row, : batch.source_lengths[row]]
            )
            if batch.source is None:
                read = read[: read.tolist().index(objective.special[BOS])]
            texts.append((decode(read.tolist()), decode(found[:-1].tolist())))
        for (prompt, chosen), (same, rejected) in zip(texts[::2], texts[1::2], strict=True):
            assert prompt == same and (chosen.count("a"), rejected.count("a")) == (4, 1)
    lengths = source_lengths(own.train, values)
    assert (lengths[::2] == lengths[1::2]).all() and own.bits_per_byte(0.5, values) is None


def test_a_part_of_the_data_has_whole_preferences(data: dict[str, Dataset]) -> None:
    train = data["preference"].train
    part = limited(train, len(train) // 3)
    assert isinstance(part, Pairs) and part.per_source == 2 and part.n_pairs % 2 == 0
    texts = np.split(part.tokens, part.ends[:-1])
    for at in range(0, len(texts), 4):
        assert (texts[at] == texts[at + 2]).all()
    assert 0 < len(part) <= len(train) // 3


# ------------------------------------------------------------------ tags


def test_both_kinds_of_files_are_the_same_tags(data: dict[str, Dataset], tmp_path: Path) -> None:
    rows = sentences()
    blocks = ["\n".join(map(" - ".join, zip(row["tokens"], row["tags"], strict=True))) for row in rows]
    (tmp_path / "some.conll").write_text("-DOCSTART- O\n\n" + "\n\n".join(blocks))
    other, own = prepare("tags", "char", str(tmp_path / "some.conll")), data["tagging"]
    assert other.token_digest == own.token_digest and other.kind == own.kind == "tags"
    assert own.labels == ("noun", "other", "verb")
    n_words = sum(len(row["tokens"]) for row in rows)
    tagged = [np.count_nonzero(np.asarray(each.tokens) < 3) for each in (own.train, own.val, own.test)]
    assert own.val_targets < n_words / 8 and sum(tagged) >= n_words
    assert own.bits_per_byte(0.5, values_of(own, "tagging")) is None


def test_a_word_is_scored_at_its_first_token_alone(data: dict[str, Dataset]) -> None:
    own = data["tagging"]
    objective = make_objective(own.train, values_of(own, "tagging", block_size=12))
    batch, special = objective.training(0, 0), objective.special
    known = {tuple(row["tokens"]): row["tags"] for row in sentences()}
    for row in range(16):
        read = batch.inputs[row, : batch.lengths[row]].tolist()
        assert (read[0], read[-1]) == (special[BOS], special[EOS]) and len(read) <= 12
        text = own.tokenizer.decode(read[1:-1])
        starts = [at + 1 for at, each in enumerate(text) if each != " " and (at == 0 or text[at - 1] == " ")]
        assert np.flatnonzero(batch.targets[row] != NO_TARGET).tolist() == starts
        tags = [own.labels[tag - special[label(0)]] for tag in batch.targets[row, starts]]
        # A text that is cut may be the beginning of several.
        assert any(" ".join(w).startswith(text) and t[: len(tags)] == tags for w, t in known.items())


@pytest.mark.parametrize(
    ("tokenizer", "size"), [("bpe", 260), ("wordpiece", None), ("word", None), ("byte", None)]
)
def test_every_word_has_one_tag_whatever_cuts_it(
    files: dict[str, Path], tokenizer: str, size: int | None
) -> None:
    found = prepare("tags", tokenizer, str(files["tagging"]), vocab_size=size)
    ends, tokens = found.train.ends.reshape(-1, 2), np.asarray(found.train.tokens)
    known = {" ".join(row["tokens"]): row["tags"] for row in sentences()}
    for (start, _), (middle, end) in zip(found.train.starts[:50], ends[:50], strict=True):
        text = found.tokenizer.decode(tokens[start:middle])
        tags = [found.labels[tag] for tag in tokens[middle:end] if tag < 3]
        assert end - middle == middle - start and tags == known[text.strip()]


@pytest.mark.parametrize("name", ["tagging", "classification"])
def test_the_measures_of_names_are_those_of_a_plain_count(data: dict[str, Dataset], name: str) -> None:
    own = data[name]
    values = values_of(own, name, eval_full=True)
    stack = Stack(values, own.train, own.val, 1)
    stack.admit(TrainingRun("0", values.replace(seed=3)))
    (record,) = stack.advance()
    weights = {name: each[None] for name, each in stack.weights("0").items()}
    wanted, found, losses = [], [], []
    for numbers in make_objective(own.val, values).evaluation():
        rows = numbers.targets.ravel() != NO_TARGET
        batch = changed(numbers, lambda part: torch.from_numpy(part)[None])
        logits = stack.transformer.logits(weights, batch)[0][rows][:, -3:]
        true = torch.from_numpy(numbers.targets.ravel()[rows]) - (values.vocab_size - 3)
        losses += torch.nn.functional.cross_entropy(logits, true, reduction="none").tolist()
        wanted, found = [*wanted, *true.tolist()], [*found, *logits.argmax(dim=1).tolist()]
    f1 = []
    for each in sorted({*wanted, *found}):
        hits = sum(w == f == each for w, f in zip(wanted, found, strict=True))
        f1.append(2 * hits / (wanted.count(each) + found.count(each)))
    assert len(wanted) == own.val_targets
    assert record.measures["accuracy"] == np.mean(np.equal(wanted, found))
    assert record.measures["f1"] == pytest.approx(np.mean(f1))
    assert record.val_loss == pytest.approx(np.mean(losses), rel=1e-6)
    assert stack._evaluation.loss(weights) == pytest.approx([record.val_loss], rel=1e-6)


# ------------------------------------------------------------------ scores


def test_two_texts_stand_in_one_row_and_the_longer_one_is_cut(data: dict[str, Dataset]) -> None:
    own = data["similarity"]
    known = {(row["sentence1"], row["sentence2"]): row["score"] for row in scores()}
    objective = make_objective(own.train, values_of(own, "similarity"))
    batch, special = objective.training(0, 0), objective.special
    for row in range(32):
        read = batch.inputs[row, : batch.lengths[row]].tolist()
        middle = read.index(special[EOS])
        assert (read[0], read[-1], read.count(special[EOS])) == (special[BOS], special[EOS], 2)
        assert (batch.inputs[row, batch.lengths[row] :] == special[PAD]).all()
        texts = own.tokenizer.decode(read[1:middle]), own.tokenizer.decode(read[middle + 1 : -1])
        assert batch.reference[row] == known[texts]
        assert batch.targets[row, 0] == special["score"] and (batch.targets[row, 1:] == NO_TARGET).all()
    assert own.kind == "scores" and own.val_targets == own.val.n_pairs
    short = values_of(own, "similarity", block_size=9)
    cut = make_objective(own.train, short).training(0, 0)
    assert cut.inputs.shape[1] <= 9 and (cut.inputs == special[EOS]).sum(axis=1).tolist() == [2] * 32
    share = OBJECTIVES["similarity"].share_cut(own.train, short)
    assert share == pytest.approx((own.train.lengths.sum(axis=1) - 4 > 6).mean()) and share > 0


def test_loss_and_measures_of_scores_are_those_of_torch_and_scipy(data: dict[str, Dataset]) -> None:
    own = data["similarity"]
    values = values_of(own, "similarity", eval_full=True)
    stack = Stack(values, own.train, own.val, 1)
    stack.admit(TrainingRun("0", values.replace(seed=3)))
    (record,) = stack.advance()
    weights = {name: each[None] for name, each in stack.weights("0").items()}
    found, wanted = [], []
    for numbers in make_objective(own.val, values).evaluation():
        batch = changed(numbers, lambda part: torch.from_numpy(part)[None])
        logits = stack.transformer.logits(weights, batch)[0].view(*numbers.targets.shape, -1)
        found, wanted = [*found, *logits[:, 0, -1].tolist()], [*wanted, *numbers.reference.tolist()]
    assert len(found) == own.val.n_pairs == 60
    assert record.val_loss == pytest.approx(np.mean(np.square(np.subtract(found, wanted))), rel=1e-6)
    assert record.measures["pearson"] == pytest.approx(pearsonr(found, wanted).statistic, abs=1e-6)
    assert record.measures["spearman"] == pytest.approx(spearmanr(found, wanted).statistic, abs=1e-6)
    assert stack._evaluation.loss(weights) == pytest.approx([record.val_loss], rel=1e-6)


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
