"""Objectives of pairs, and those of studies/plugins: batches, losses and measures against plain computations."""

import json
import math

import numpy as np
import plugged
import pytest
import torch
from scipy.stats import pearsonr, spearmanr
from torch.nn import functional as F
from trained import begun

from sweeplab.data.batches import NO_TARGET, Batch, Pairs, changed, limited
from sweeplab.data.dataset import prepare
from sweeplab.data.objectives import OBJECTIVES, make_objective, n_special
from sweeplab.data.objectives.base import BOS, EOS, PAD, label
from sweeplab.data.objectives.pairs import source_lengths
from sweeplab.errors import BadInput
from sweeplab.hyperparameters import TABLE, Hyperparameters
from sweeplab.train.run import TrainingRun
from sweeplab.train.stack import Stack

pytestmark = pytest.mark.usefixtures("one_thread")

TAGS = {"ab": "noun", "cde": "verb", "f": "other"}
LABELS = ("bad", "good", "odd, or not")
CORPORA = {"classification": "labels", "preference": "preferences", "answers": "questions"}
CORPORA |= dict.fromkeys(("tagging", "spans"), "tags")
CORPORA |= dict.fromkeys(("similarity", "embedding"), "scores")
FAMILIES = dict.fromkeys(("tagging", "similarity", "embedding", "answers"), ("encoder",))
FAMILIES |= {
    "classification": ("encoder", "decoder", "encoder_decoder"),
    "preference": ("decoder", "encoder_decoder"),
}
KINDS = [(name, family) for name, families in FAMILIES.items() for family in families]
WIDE = {"n_embd": 32, "n_head": 4}
OWN = {
    "classification": {"block_size": 16, "n_labels": 3, "eval_interval": 40},
    "preference": {"block_size": 12, "max_iters": 80, "eval_interval": 20},
    "tagging": {"block_size": 32, "batch_size": 16, "n_embd": 32, "n_labels": 3},
    "similarity": {"block_size": 12, "batch_size": 64, **WIDE},
    "answers": {"block_size": 32, "batch_size": 32, "positions": "relative", **WIDE},
}
OWN["preference"] |= {"learning_rate": 3e-3, "beta": 0.2}
OWN["answers"] |= {"max_iters": 280, "eval_interval": 140}
OWN["spans"] = OWN["tagging"] | {"block_size": 24, "n_labels": 4, "objective": "tagging"}
OWN["embedding"] = OWN["similarity"]


def labels():
    """Draw texts whose label is what their first letter says: a CSV with quoted fields and columns of its own."""
    drawn, rows = np.random.default_rng(0), ["id,label,text"]
    for at in range(400):
        kind = int(drawn.integers(3))
        text = "xyz"[kind] + "".join(drawn.choice(list("abcd "), 3 + at % 5)) + str(at)
        rows.append(f'{at},"{LABELS[kind]}","{text}\n."')
    return "\n".join(rows)


def preferences():
    """Draw prompts of which that answer is chosen which has more of the letter a; answers are of unlike lengths."""
    drawn, rows = np.random.default_rng(0), []
    for at in range(300):
        many, few = (
            "".join(drawn.permutation(list("a" * n + "b" * (5 - n + at % 2)))) for n in (4, 1)
        )
        rows.append({"prompt": f"{at}?", "chosen": many, "rejected": few, "note": "more"})
    return rows


def sentences():
    """Draw sentences in which `to` is tagged as the word after it is, and every other word always alike."""
    drawn, rows = np.random.default_rng(0), []
    for at in range(300):
        words = [*drawn.choice([*TAGS, "to"], 3 + int(drawn.integers(3))).tolist(), "f"]
        tags = []
        for word in reversed(words):
            tags.insert(0, TAGS[word] if word in TAGS else tags[0])
        rows.append({"id": at, "tokens": words, "tags": tags})
    return rows


def spans():
    """Draw sentences of spans of one and of two words."""
    drawn, rows = np.random.default_rng(0), []
    for _ in range(300):
        names = drawn.choice(["x", "y w", "z"], 4).tolist()
        tags = {"x": ["S-a"], "y w": ["B-b", "E-b"], "z": ["O"]}
        own = [tag for name in names for tag in tags[name]]
        rows.append({"tokens": " ".join(names).split(), "tags": own})
    return rows


def scores():
    """Draw texts with a score of both, 0 to 1: how near their first letters are."""
    drawn, rows = np.random.default_rng(0), []
    for at in range(600):
        one, other = drawn.choice(4, 2).tolist()
        texts = {
            "sentence1": f"{'abcd'[one]}{at}",
            "sentence2": f"{'abcd'[other]}{'!' * (at % 3)}",
        }
        rows.append({**texts, "score": 1 - abs(one - other) / 3})
    return rows


@pytest.fixture(scope="module", autouse=True)
def modules():
    with plugged.imported() as modules:
        yield modules
    own = {"preference", "tagging", "similarity", "embedding", "answers"}
    assert not own & {*OBJECTIVES, *TABLE["objective"].choices} and "beta" not in TABLE


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plugins")
    found = {"classification": folder / "labels.csv"}
    found["classification"].write_text(labels())
    drawn = {
        "preference": preferences(),
        "tagging": sentences(),
        "spans": spans(),
        "similarity": scores(),
    }
    for name, rows in (drawn | {"embedding": scores(), "answers": plugged.questions()}).items():
        found[name] = folder / f"{name}.jsonl"
        found[name].write_text("\n".join(map(json.dumps, rows)))
    return found


@pytest.fixture(scope="module")
def data(files, modules):
    return {name: prepare(CORPORA[name], "char", str(file)) for name, file in files.items()}


def values_of(data, name, family="encoder", **changed):
    if family not in FAMILIES.get(name, ("encoder",)):
        family = FAMILIES[name][0]
    found = Hyperparameters.of({
        "n_layer": 1, "n_embd": 16, "n_head": 2, "batch_size": 8, "dropout": 0.0, "log_interval": 20, "warmup_iters": 5,
        "max_iters": 160, "eval_interval": 80, "learning_rate": 1e-2, "min_lr": 1e-3, "device": "cpu",
        "dtype": "float32", "compile": False, "eval_full": True, "objective": name, "family": family,
        **OWN[name], **changed,
    })  # fmt: skip
    return found.replace(vocab_size=data.tokenizer.vocab_size + n_special(found))


def start_of(data, values):
    """Return weights that say something: four times as large as random ones."""
    weights = begun(values.replace(seed=9), data.train, data.val).weights("run")
    return {name: 4 * weight for name, weight in weights.items()}


# ------------------------------------------------------------------ what all do


def evaluated(data, values, keys, capacity, start=None, cut=False):
    """Return the evaluations of run 0 in a stack beside runs that diverge; with `cut` it moves to another stack."""
    stack, found = Stack(values, data.train, data.val, capacity), []
    other = {"beta": 0.9} if values.objective == "preference" else {}
    for key in keys:
        own = (
            values if key == "0" else values.replace(seed=int(key), learning_rate=1e3, **other)
        )
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


# The first loss of a guess, the largest last one, and the least of the measures.
LEARNED = {
    "classification": (math.log(3), 0.5, {"accuracy": 0.6, "f1": 0.5}),
    "preference": (math.log(2), 0.4, {"reward_accuracy": 0.9, "reward_margin": 0.5}),
    "tagging": (math.log(3), 0.3, {"accuracy": 0.9, "f1": 0.9}),
    "spans": (math.log(4), 0.5, {"span_f1": 0.6}),
    "similarity": (None, 0.05, {"pearson": 0.8, "spearman": 0.8}),
    "embedding": (None, 0.02, {"spearman": 0.9}),
    "answers": (None, 0.5, {"exact_match": 0.8, "f1": 0.9}),
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "family"), [*KINDS, ("spans", "encoder")])
def test_it_is_learned_with_the_same_bits_in_any_stack(data, name, family):
    values = values_of(data[name], name, family)
    start = start_of(data[name], values) if name == "preference" else None
    alone = evaluated(data[name], values, "0", 1, start)
    assert alone == evaluated(data[name], values, "120", 3, start)
    assert alone == evaluated(data[name], values, "10", 2, start, cut=True)
    guess, most, least = LEARNED[name]
    (first, _), *_, (last, measures) = alone
    assert guess is None or abs(first - guess) < 0.3, (
        "a guess among the labels, not among all tokens"
    )
    assert last < most
    assert all(measures[measure] > bound for measure, bound in least.items()), measures


BAD = [
    ("labels", "a.csv", "text,lable\na,b\n", "a.csv:2: there is no label, but text, lable"),
    ("labels", "a.csv", 'text,label\n"a\nb",\n', "a.csv:3: line 3 has an empty label"),
    ("labels", "a.tsv", "text\tlabel\na\tx\nb\tx\nc\tx\n", "a.tsv has 1 label; allowed: 2 to 1,000"),
    ("labels", "a.txt", "a", "a.txt cannot hold text and label; allowed: .csv, .tsv, .jsonl"),
    ("preferences", "a.jsonl", '{"prompt": "a", "chosen": "b"}\n', "there is no rejected, but prompt, chosen; allowed"),
    ("preferences", "a.jsonl", '{"prompt": "a", "chosen": "b", "rejected": "b"}', "line 1 has the same answer as"),
    ("tags", "a.jsonl", '{"tokens": ["a", "b"], "tags": ["x"]}', "line 1 has 2 tokens and 1 tags; allowed: a tag for"),
    ("tags", "a.jsonl", '{"tokens": "a b", "tags": ["x"]}\n', "line 1 has tokens that are not a list of strings"),
    ("tags", "a.jsonl", '{"tokens": ["a b"], "tags": ["x"]}\n', "line 1 has 'a b' among its tokens; allowed: strings"),
    ("tags", "a.conll", "a x\n\nb\n", "a.conll:3: line 3 has no tag beside 'b'"),
    ("scores", "a.csv", "sentence1,sentence2,score\na,b,high\n", "a.csv:2: line 2 has 'high' as its score"),
    ("scores", "a.jsonl", '{"sentence1": "a", "sentence2": "b", "score": NaN}', "line 1 has 'nan' as its score"),
    *(("questions", "a.jsonl", json.dumps({"question": "?", "context": "Ann", "answer": "Ann", "answer_start": start}),
       "as its answer_start") for start in (-1, "x", 99)),
]  # fmt: skip


@pytest.mark.parametrize(("corpus", "name", "text", "said"), BAD)
def test_a_file_of_something_else_is_one_line(tmp_path, corpus, name, text, said):
    (tmp_path / name).write_text(text)
    with pytest.raises(BadInput) as refused:
        prepare(corpus, "char", str(tmp_path / name))
    assert said in str(refused.value) and len(str(refused.value).splitlines()) == 1


# ------------------------------------------------------------------ measures


def plain_names(found, data, span_codes, spans_in):
    """Return the measures of labels and tags; tags that say where spans begin have those of spans too."""
    names = data.labels
    codes = span_codes(names)
    losses, pairs, n_right, n_spans = [], [], 0, 0
    for logits, batch in found:
        for row, targets in zip(logits, batch.targets, strict=True):
            places = targets != NO_TARGET
            own, true = (
                row[places][:, -len(names) :],
                torch.from_numpy(targets[places]) - row.shape[-1] + len(names),
            )
            losses += F.cross_entropy(own, true, reduction="none").tolist()
            said = own.argmax(dim=1)
            pairs += zip(true.tolist(), said.tolist(), strict=True)
            if len(codes):
                one, other = (
                    spans_in(codes[at] for at in each.tolist()) for each in (true, said)
                )
                n_right, n_spans = n_right + len(one & other), n_spans + len(one) + len(other)
    f1 = []
    for name in {name for pair in pairs for name in pair}:
        hits = sum(true == said == name for true, said in pairs)
        f1.append(2 * hits / sum((true == name) + (said == name) for true, said in pairs))
    measures = {
        "val_loss": np.mean(losses),
        "accuracy": np.mean([true == said for true, said in pairs]),
    }
    if len(codes):
        measures["span_f1"] = 2 * n_right / n_spans
    return measures | {"f1": np.mean(f1)}


def plain_scores(found, data, of_vectors):
    said, wanted = [], []
    for logits, batch in found:
        if of_vectors:
            vectors = [
                row[targets != NO_TARGET][:, -32:].mean(dim=0)
                for row, targets in zip(logits, batch.targets, strict=True)
            ]
            said += [
                torch.cosine_similarity(*pair, dim=0).item()
                for pair in zip(vectors[::2], vectors[1::2], strict=True)
            ]
            wanted += batch.reference[::2].tolist()
        else:
            said += logits[:, 0, -1].tolist()
            wanted += batch.reference.tolist()
    assert len(said) == data.val.n_pairs
    measures = {"val_loss": np.mean(np.square(np.subtract(said, wanted)))}
    measures |= {
        "pearson": pearsonr(said, wanted).statistic,
        "spearman": spearmanr(said, wanted).statistic,
    }
    return measures


def plain_answers(found, data):
    exact, f1, losses = [], [], []
    for logits, batch in found:
        for row, targets, (start, end) in zip(
            logits[..., -2:], batch.targets, batch.reference, strict=True
        ):
            places = np.flatnonzero(targets != NO_TARGET)
            shares = row[places].double().log_softmax(dim=0)
            pairs = [(i, j) for i in range(len(places)) for j in range(i, len(places))]
            i, j = max(pairs, key=lambda pair: shares[pair[0], 0] + shares[pair[1], 1])
            here, true = {*range(places[i], places[j] + 1)}, {*range(start, end + 1)}
            exact.append(here == true)
            f1.append(2 * len(here & true) / (len(here) + len(true)))
            losses.append(-float(shares[start - places[0], 0] + shares[end - places[0], 1]))
    assert len(losses) == data.val.n_pairs
    return {"val_loss": np.mean(losses), "exact_match": np.mean(exact), "f1": np.mean(f1)}


@pytest.mark.parametrize(
    "name", ["tagging", "spans", "classification", "similarity", "embedding", "answers"]
)
def test_measures_are_those_of_a_plain_count(data, modules, name):
    own = data[name]
    values = values_of(own, name)
    stack = begun(values, own.train, own.val, start_of(own, values))
    (record,) = stack.advance()
    weights = {name: each[None] for name, each in stack.weights("run").items()}

    def outputs():
        for numbers in make_objective(own.val, values).evaluation():
            batch = changed(numbers, lambda part: torch.from_numpy(part)[None])
            yield (
                stack.transformer.logits(weights, batch)[0].view(*numbers.targets.shape, -1),
                numbers,
            )

    if name == "answers":
        expected = plain_answers(outputs(), own)
    elif name in ("similarity", "embedding"):
        expected = plain_scores(outputs(), own, name == "embedding")
    else:
        tagging = modules["tagging"]
        expected = plain_names(outputs(), own, tagging.span_codes, tagging.spans)
    for measure, value in (record.measures | {"val_loss": record.val_loss}).items():
        assert value == pytest.approx(expected[measure], rel=1e-5, abs=1e-6), measure
    loss = stack._evaluation.loss(weights, stack._loss_inputs([0], 1))
    assert loss == pytest.approx([record.val_loss], rel=1e-6)


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
def test_spans_are_those_of_conlleval(tags, expected, modules):
    names = ("O", *(f"{place}-{kind}" for place in "BIESLU" for kind in "ab"))
    codes = modules["tagging"].span_codes(names)
    found = modules["tagging"].spans(codes[names.index(tag)] for tag in tags.split())
    assert {(start, end, " ab"[kind]) for start, end, kind in found} == expected
    assert not len(modules["tagging"].span_codes(("O", "B-a", "noun")))


# ------------------------------------------------------------------ labels


@pytest.mark.parametrize("family", FAMILIES["classification"])
def test_a_label_stands_where_all_of_its_text_is_seen(data, family):
    own = data["classification"]
    objective = make_objective(
        own.train, values_of(own, "classification", family, block_size=9)
    )
    batch, special = objective.training(0, 0), objective.special
    assert special[label(2)] == special.vocab_size - 1 and own.labels == tuple(sorted(LABELS))
    for row in range(8):
        (place,) = np.flatnonzero(batch.targets[row] != NO_TARGET)
        read = batch.inputs[row, : batch.lengths[row]].tolist()
        text = read[1:-1]
        if family == "encoder_decoder":
            text, read = (
                batch.source[row, : batch.source_lengths[row]].tolist(),
                [*read, special[EOS]],
            )
        assert (read[0], read[-1]) == (special[BOS], special[EOS])
        assert place == (batch.lengths[row] - 1 if family == "decoder" else 0)
        assert (batch.inputs[row, batch.lengths[row] :] == special[PAD]).all()
        kind = "xyz".index(own.tokenizer.decode(text)[0])
        assert batch.targets[row, place] == special[label(own.labels.index(LABELS[kind]))]


# ------------------------------------------------------------------ preferences


def margins_of(stack, weights, start, batch):
    """Return how much more probable each answer is under `weights` than at the start: chosen ones, and rejected."""

    def answers(own):
        placed = Batch(
            *(None if part is None else torch.from_numpy(part)[None] for part in batch[:5])
        )
        shares = stack.transformer.logits(own, placed)[0].double().log_softmax(dim=-1)
        targets = torch.from_numpy(batch.targets)
        found = shares.view(*targets.shape, -1).gather(2, targets.clamp(min=0)[..., None])[
            ..., 0
        ]
        return (found * (targets != NO_TARGET)).sum(dim=1)

    now, before = (
        answers({name: each[None] for name, each in own.items()}) for own in (weights, start)
    )
    return (now - before)[0::2], (now - before)[1::2]


@pytest.mark.parametrize("family", FAMILIES["preference"])
def test_the_loss_and_its_gradient_are_those_of_the_formula(data, family):
    """Equation 7 of Rafailov et al. 2023; with label smoothing a share of preferences is taken for wrong."""
    own = data["preference"]
    values = values_of(
        own, "preference", family, grad_clip=None, optimizer="sgd", momentum=0.0, weight_decay=0.0,
        lr_decay=False, warmup_iters=0, learning_rate=0.5, beta=0.3, label_smoothing=0.1, log_interval=1,
    )  # fmt: skip
    start = start_of(own, values)
    stack = begun(values, own.train, own.val, start)
    stack.advance()
    objective = make_objective(own.train, values)
    for step in range(3):
        before = {
            name: each.clone().requires_grad_() for name, each in stack.weights("run").items()
        }
        chosen, rejected = margins_of(stack, before, start, objective.training(0, step))
        margins = 0.3 * (chosen - rejected)
        loss = -(0.9 * F.logsigmoid(margins) + 0.1 * F.logsigmoid(-margins)).mean()
        gradients = torch.autograd.grad(loss, list(before.values()), allow_unused=True)
        stack.step()
        assert stack._members[0].points[-1]["train_loss"] == pytest.approx(
            loss.item(), rel=1e-5
        )
        after = stack.weights("run")
        for (name, weight), gradient in zip(before.items(), gradients, strict=True):
            moved = weight.detach() - (0 if gradient is None else 0.5 * gradient)
            torch.testing.assert_close(after[name], moved.to(after[name]), atol=3e-5, rtol=1e-4)
    assert loss.item() != pytest.approx(math.log(2), abs=1e-3), (
        "the last loss is another one than the start's"
    )


def test_the_measures_of_preferences_are_those_of_the_formula(data):
    own = data["preference"]
    values = values_of(own, "preference")
    start = start_of(own, values)
    stack = begun(values, own.train, own.val, start)
    (first,), (record,) = stack.advance(), stack.advance()
    assert first.val_loss == pytest.approx(math.log(2), abs=1e-6)
    assert first.measures["reward_margin"] == pytest.approx(0.0, abs=1e-6)
    batches, weights = make_objective(own.val, values).evaluation(), stack.weights("run")
    found = [margins_of(stack, weights, start, batch) for batch in batches]
    chosen, rejected = (torch.cat([each[which] for each in found]) for which in (0, 1))
    margins = values.beta * (chosen - rejected)
    assert len(margins) == own.val.n_pairs / 2 == 30
    expected = {"reward_accuracy": (margins > 0).double(), "reward_margin": margins}
    expected |= {"chosen_log_ratio": chosen, "rejected_log_ratio": rejected}
    assert record.measures == {
        name: pytest.approx(each.mean().item(), abs=1e-5) for name, each in expected.items()
    }
    assert record.val_loss == pytest.approx(-F.logsigmoid(margins).mean().item(), abs=1e-6)


@pytest.mark.parametrize("family", FAMILIES["preference"])
def test_two_answers_follow_the_same_prompt(data, family):
    own = data["preference"]
    assert (
        own.kind == "preferences" and isinstance(own.train, Pairs) and own.train.per_source == 2
    )
    # Of the longest answer, 6 tokens, and of what stands around it a decoder leaves one for the prompt.
    values = values_of(own, "preference", family, block_size=9)
    objective, decode = make_objective(own.train, values), own.tokenizer.decode
    for batch in (objective.training(0, 0), next(objective.evaluation())):
        assert (batch.reference[1::2] == batch.reference[::2] + 1).all()
        texts = []
        for row, targets in enumerate(batch.targets):
            found = targets[targets != NO_TARGET]
            assert found[-1] == objective.special[EOS]
            if batch.source is None:
                read = batch.inputs[row].tolist()
                read = read[: read.index(objective.special[BOS])]
            else:
                read = batch.source[row, : batch.source_lengths[row]].tolist()
            texts.append((decode(read), decode(found[:-1].tolist())))
        for (prompt, chosen), (same, rejected) in zip(texts[::2], texts[1::2], strict=True):
            assert prompt == same and (chosen.count("a"), rejected.count("a")) == (4, 1)
    lengths = source_lengths(own.train, values)
    assert (lengths[::2] == lengths[1::2]).all()


def test_a_part_of_the_data_has_whole_preferences(data):
    train = data["preference"].train
    part = limited(train, len(train) // 3)
    assert isinstance(part, Pairs) and part.per_source == 2 and part.n_pairs % 2 == 0
    texts = np.split(part.tokens, part.ends[:-1])
    assert all((texts[at] == texts[at + 2]).all() for at in range(0, len(texts), 4))
    assert 0 < len(part) <= len(train) // 3


# ------------------------------------------------------------------ tags


def test_both_kinds_of_files_are_the_same_tags(data, tmp_path):
    blocks = [
        "\n".join(map(" - ".join, zip(row["tokens"], row["tags"], strict=True)))
        for row in sentences()
    ]
    (tmp_path / "some.conll").write_text("-DOCSTART- O\n\n" + "\n\n".join(blocks))
    other, own = prepare("tags", "char", str(tmp_path / "some.conll")), data["tagging"]
    assert other.token_digest == own.token_digest and other.kind == own.kind == "tags"
    assert own.labels == ("noun", "other", "verb")


def test_a_word_is_scored_at_its_first_token_alone(data):
    own = data["tagging"]
    objective = make_objective(own.train, values_of(own, "tagging", block_size=12))
    batch, special = objective.training(0, 0), objective.special
    known = {" ".join(row["tokens"]): row["tags"] for row in sentences()}
    for row in range(16):
        read = batch.inputs[row, : batch.lengths[row]].tolist()
        assert (read[0], read[-1]) == (special[BOS], special[EOS]) and len(read) <= 12
        text = own.tokenizer.decode(read[1:-1])
        starts = [
            at + 1
            for at, each in enumerate(text)
            if each != " " and (at == 0 or text[at - 1] == " ")
        ]
        assert np.flatnonzero(batch.targets[row] != NO_TARGET).tolist() == starts
        tags = [own.labels[tag - special[label(0)]] for tag in batch.targets[row, starts]]
        # A text that is cut may be the beginning of several.
        assert any(
            words.startswith(text) and known[words][: len(tags)] == tags for words in known
        )


# ------------------------------------------------------------------ scores and answers


def test_two_texts_stand_in_one_row_and_the_longer_one_is_cut(data):
    own = data["similarity"]
    known = {(row["sentence1"], row["sentence2"]): row["score"] for row in scores()}
    objective = make_objective(own.train, values_of(own, "similarity"))
    batch, special = objective.training(0, 0), objective.special
    for row in range(64):
        read = batch.inputs[row, : batch.lengths[row]].tolist()
        middle = read.index(special[EOS])
        assert (read[0], read[-1], read.count(special[EOS])) == (special[BOS], special[EOS], 2)
        texts = (
            own.tokenizer.decode(read[1:middle]),
            own.tokenizer.decode(read[middle + 1 : -1]),
        )
        assert batch.reference[row] == pytest.approx(known[texts])
        assert (
            batch.targets[row, 0] == special["score"]
            and (batch.targets[row, 1:] == NO_TARGET).all()
        )
    short = values_of(own, "similarity", block_size=7)
    cut = make_objective(own.train, short).training(0, 0)
    assert cut.inputs.shape[1] <= 7 and ((cut.inputs == special[EOS]).sum(axis=1) == 2).all()
    assert OBJECTIVES["similarity"].share_cut(own.train, short) > 0


@pytest.mark.parametrize("tokenizer", ["char", "byte", "bpe"])
def test_answers_stand_where_they_are_said_to(tmp_path, tokenizer):
    names = {"Ann": 13, "Böb": 22}
    rows = [
        {
            "question": f"who {at}?",
            "context": f"Here {at} sees Ann, and Böb.",
            "answer": name,
            "answer_start": start,
        }
        for at in range(10, 60)
        for name, start in names.items()
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = prepare("questions", tokenizer, str(tmp_path / "rows.jsonl"))
    values = values_of(data, "answers", block_size=64)
    objective = make_objective(data.train, values)
    batch = objective.training(0, 0)
    for inputs, targets, (start, end) in zip(
        batch.inputs, batch.targets, batch.reference, strict=True
    ):
        middle, after = np.flatnonzero(inputs == objective.special[EOS])
        assert inputs[0] == objective.special[BOS]
        assert np.flatnonzero(targets != NO_TARGET).tolist() == [*range(middle + 1, after)]
        answer = data.tokenizer.decode(inputs[start : end + 1]).strip()
        assert any(name in answer and len(answer) <= len(name) + 1 for name in names), answer
    with pytest.raises(
        BadInput, match="block_size 8 is too short for a question and its context"
    ):
        type(objective).check("train", data.train, values.replace(block_size=8))
