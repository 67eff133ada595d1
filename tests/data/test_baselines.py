"""Baselines by counting, against truths that were planted: a chain's entropy is what no model goes below."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from sweeplab.data.baselines import NONE, Examples, NGrams, find_baseline
from sweeplab.data.corpora import CORPORA
from sweeplab.data.dataset import Dataset, prepare
from sweeplab.data.objectives import n_special, settled_objective
from sweeplab.hyperparameters import Hyperparameters

N_SYMBOLS = 6
FAMILIES = {"next_token": "decoder", "masked": "encoder"}


def chain(order: int, n: int, seed: int = 0) -> tuple[np.ndarray, float]:
    """Return a walk in which each symbol depends on the `order` before it, and its entropy in nats a symbol."""
    random = np.random.default_rng(seed)
    table = random.dirichlet(np.full(N_SYMBOLS, 0.3), N_SYMBOLS**order)
    uniform, state = random.random(n), 0
    text, nats = np.empty(n, np.uint16), 0.0
    steps = table.cumsum(axis=1)
    for at in range(n):
        symbol = min(int(np.searchsorted(steps[state], uniform[at])), N_SYMBOLS - 1)
        text[at], nats = symbol, nats - np.log(table[state, symbol])
        state = (state * N_SYMBOLS + symbol) % N_SYMBOLS**order
    return text, nats / n


def dataset_of(text: np.ndarray, digest: str = "", tenths: int = 9) -> Dataset:
    cut = len(text) * tenths // 10
    tokenizer = SimpleNamespace(vocab_size=N_SYMBOLS, byte_lengths=lambda: np.ones(N_SYMBOLS, int))
    known = {
        "text_digest": digest,
        "token_digest": digest,
        "n_characters": len(text),
        "val_bytes": len(text) - cut,
    }
    shares = {"val_overlap": 0.0, "test_overlap": 0.0, "n_duplicates": 0}
    return Dataset(tokenizer, text[:cut], text[cut:], text[:0], **known, **shares)


def values_of(objective: str, **changed):
    sizes = {"block_size": 32, "batch_size": 16, "eval_iters": 40, "vocab_size": N_SYMBOLS}
    family = FAMILIES.get(objective, "decoder")
    return with_special(Hyperparameters(objective=objective, family=family, **sizes | changed))


def with_special(values: Hyperparameters) -> Hyperparameters:
    """Return the values with room in the vocabulary for the objective's special tokens."""
    return values.replace(vocab_size=values.vocab_size + n_special(values))


def loss(text, objective, tmp_path, tenths=9, **changed):
    return find_baseline(dataset_of(text, tenths=tenths), values_of(objective, **changed), tmp_path)


def test_probabilities_add_up_to_one_in_every_context_and_order():
    text, _ = chain(2, 3_000)
    columns = [np.concatenate([np.full(by, NONE), text[:-by]]).astype(np.int64) for by in (1, 2, 3)]
    ngrams = NGrams(Examples(columns, text.astype(np.int64)), N_SYMBOLS)
    contexts = np.stack([*np.random.default_rng(1).integers(0, N_SYMBOLS, (3, 200))])
    contexts[2, :20] = NONE
    contexts[:, 20] = NONE
    sums = np.zeros((4, 200))
    for symbol in range(N_SYMBOLS):
        asked = Examples(list(contexts), np.full(200, symbol))
        sums += np.stack(list(ngrams.probabilities(asked)))
    assert np.allclose(sums, 1, atol=1e-12)


def test_kneser_and_ney_count_continuations():
    """The published example: a word that follows one word only is no guess after another, however often it stood."""
    text = np.array([0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 4, 3, 2, 3, 5, 3], np.int64)
    examples = Examples([np.concatenate([[NONE], text[:-1]])], text)
    ngrams = NGrams(examples, N_SYMBOLS)
    after = np.array([5, 5])
    *_, found = ngrams.probabilities(Examples([after], np.array([1, 3])))
    assert found[1] > 2 * found[0]


@pytest.mark.parametrize("order", [1, 2])
def test_a_chains_entropy_and_order_are_found(order, tmp_path):
    text, entropy = chain(order, 60_000)
    found = loss(text, "next_token", tmp_path, block_size=128)
    assert found.order == order + 1
    assert entropy * 0.97 < found.loss < entropy * 1.06  # a row's first tokens have less before them
    assert found.bits_per_byte == pytest.approx(found.loss / np.log(2))


@pytest.mark.parametrize("objective", ["next_token", "masked"])
def test_n_grams_are_counted_in_no_more_tokens_than_runs_read(objective, tmp_path):
    text, _ = chain(2, 40_000)
    data, values = dataset_of(text), values_of(objective)
    short = Dataset(**vars(data) | {"train": data.train[-5_000:]})
    found = find_baseline(data, values, tmp_path, n_read=5_000)
    assert found == find_baseline(short, values, tmp_path / "short", n_read=10**9)
    assert found.loss > find_baseline(data, values, tmp_path).loss, "the cache tells them apart"
    least = find_baseline(data, values, tmp_path, n_read=1)
    assert least == find_baseline(data, values, tmp_path / "least", n_read=1_000)


@pytest.mark.slow
def test_both_sides_tell_more_than_one(tmp_path):
    """Of a chain of order 1 the entropy of a hidden symbol between two is known: H(x | l, r) = 2 H1 - H2."""
    text, _ = chain(1, 320_000)
    counts = np.zeros((N_SYMBOLS,) * 3)
    np.add.at(counts, (text[:-2], text[1:-1], text[2:]), 1)
    between = counts / counts.sum()
    given = between.sum(axis=1, keepdims=True)
    entropy = -(between * np.log(between / given, where=between > 0, out=np.zeros_like(between))).sum()
    alone = loss(text, "next_token", tmp_path).loss
    found = loss(text, "masked", tmp_path, tenths=5, mask_share=0.01, eval_iters=300).loss
    # So few are hidden that hardly any has a hidden neighbor.
    # One target in ten is shown as it is and one replaced: what is shown tells something too.
    assert entropy * 0.75 < found < entropy * 1.05 < alone


def test_a_shown_token_is_weighed_by_how_often_one_is_kept(tmp_path):
    """Of independent symbols a hidden one costs the entropy h; a shown one what is left after a look at it."""
    random = np.random.default_rng(3)
    text = random.integers(0, N_SYMBOLS, 400_000).astype(np.uint16)
    right = 0.1 + 0.1 / N_SYMBOLS
    likely = np.array([right, *[0.1 / N_SYMBOLS] * (N_SYMBOLS - 1)]) / 0.2
    shown = -(likely * np.log(likely)).sum()
    found = loss(text, "masked", tmp_path, tenths=5, eval_iters=200)
    assert found.order == 1
    assert found.loss == pytest.approx(0.8 * np.log(N_SYMBOLS) + 0.2 * shown, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["decoder", "encoder", "encoder_decoder"])
def test_what_is_copied_is_told_from_what_is_not(family, tmp_path):
    found = {}
    for corpus in ("copy", "addition"):
        data = prepare(corpus, "char")
        sizes = {"block_size": 32, "batch_size": 64, "vocab_size": data.tokenizer.vocab_size}
        values = Hyperparameters(family=family, objective="auto", **sizes)
        values = with_special(values.replace(objective=settled_objective(values, data.kind)))
        found[corpus] = find_baseline(data, values, tmp_path)
    assert found["copy"].copied > 0.7 > found["addition"].copied
    # A letter of the source is right once in so many letters, and its end is not in the source.
    assert 1.5 < found["copy"].loss < 2.4 < np.log(26)
    assert CORPORA["copy"].needs_whole


def test_an_encoders_baseline_sees_where_its_masks_stand(tmp_path):
    """Each place from the start has a letter of its own, but for the last: nothing is left to be guessed."""
    lengths = np.random.default_rng(2).integers(1, 40, 600)
    file = tmp_path / "pairs.tsv"
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUV"
    file.write_text("".join(f"{row}\t{letters[: n - 1]}!\n" for row, n in enumerate(lengths)))
    data = prepare("pairs", "char", file)
    sizes = {"block_size": 64, "batch_size": 16, "vocab_size": data.tokenizer.vocab_size}
    values = with_special(Hyperparameters(family="encoder", objective="pairs", **sizes))
    found = find_baseline(data, values, tmp_path)
    assert found.order == 3  # of every letter from its start, of "!" and the end from its end
    assert found.loss < 0.1


def test_what_is_kept_is_the_same_and_what_is_torn_is_made_again(tmp_path):
    text, _ = chain(1, 8_000)
    first = loss(text, "next_token", tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_text(json.dumps({**json.loads(file.read_text()), "loss": 7.0}))
    assert loss(text, "next_token", tmp_path).loss == 7.0
    file.write_text(file.read_text()[:20])
    assert loss(text, "next_token", tmp_path) == first
    loss(text, "next_token", tmp_path, block_size=16)
    assert len(list(tmp_path.iterdir())) == 2
