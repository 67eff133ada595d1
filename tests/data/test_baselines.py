"""Baselines by counting, against truths that were planted: a chain's entropy is what no model goes below."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from sweeplab.data.baselines import NONE, NGrams, find_baseline
from sweeplab.data.dataset import Dataset
from sweeplab.data.objectives import n_special
from sweeplab.hyperparameters import Hyperparameters

N_SYMBOLS = 6


def chain(order, n):
    """Return a walk in which each symbol depends on the `order` before it, and its entropy in nats a symbol."""
    random = np.random.default_rng(0)
    table = random.dirichlet(np.full(N_SYMBOLS, 0.3), N_SYMBOLS**order)
    uniform, state = random.random(n), 0
    text, nats = np.empty(n, np.uint16), 0.0
    steps = table.cumsum(axis=1)
    for at in range(n):
        symbol = min(int(np.searchsorted(steps[state], uniform[at])), N_SYMBOLS - 1)
        text[at], nats = symbol, nats - np.log(table[state, symbol])
        state = (state * N_SYMBOLS + symbol) % N_SYMBOLS**order
    return text, nats / n


def dataset_of(text):
    cut = len(text) * 9 // 10
    tokenizer = SimpleNamespace(
        vocab_size=N_SYMBOLS, byte_lengths=lambda: np.ones(N_SYMBOLS, int)
    )
    return Dataset(tokenizer, text[:cut], text[cut:], text[:0], "", "", len(text))


def values_of(objective, **changed):
    """Return values with room in the vocabulary for the objective's special tokens."""
    sizes = {
        "block_size": 32,
        "batch_size": 16,
        "eval_iters": 40,
        "vocab_size": N_SYMBOLS,
    } | changed
    values = Hyperparameters(objective=objective, **sizes)
    return values.replace(vocab_size=values.vocab_size + n_special(values))


def found(text, tmp_path, **changed):
    return find_baseline(dataset_of(text), values_of("next_token", **changed), tmp_path)


def test_probabilities_add_up_to_one_in_every_context_and_order():
    text, _ = chain(2, 3_000)
    columns = [
        np.concatenate([np.full(by, NONE), text[:-by]]).astype(np.int64) for by in (1, 2, 3)
    ]
    ngrams = NGrams(columns, text.astype(np.int64), N_SYMBOLS)
    contexts = np.random.default_rng(1).integers(0, N_SYMBOLS, (3, 200))
    contexts[2, :20] = NONE
    contexts[:, 20] = NONE
    by_symbol = [
        [*ngrams.probabilities([*contexts], np.full(200, symbol))]
        for symbol in range(N_SYMBOLS)
    ]
    assert np.allclose(np.sum(by_symbol, axis=0), 1, atol=1e-12)


def test_kneser_and_ney_count_continuations():
    """The published example: a word that follows one word only is no guess after another, however often it stood."""
    text = np.array([0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 4, 3, 2, 3, 5, 3], np.int64)
    ngrams = NGrams([np.concatenate([[NONE], text[:-1]])], text, N_SYMBOLS)
    *_, probabilities = ngrams.probabilities([np.array([5, 5])], np.array([1, 3]))
    assert probabilities[1] > 2 * probabilities[0]


@pytest.mark.parametrize("order", [1, 2])
def test_a_chains_entropy_and_order_are_found(order, tmp_path):
    text, entropy = chain(order, 60_000)
    baseline = found(text, tmp_path, block_size=96)
    assert baseline.order == order + 1
    # A row's first tokens have less before them.
    assert entropy * 0.97 < baseline.loss < entropy * 1.06


def test_n_grams_are_counted_in_no_more_tokens_than_runs_read(tmp_path):
    text, _ = chain(2, 40_000)
    data, values = dataset_of(text), values_of("next_token")
    short = find_baseline(data, values, tmp_path, n_read=5_000)
    assert short == find_baseline(
        replace(data, train=data.train[-5_000:]), values, tmp_path / "other"
    )
    assert short.loss > find_baseline(data, values, tmp_path).loss, "the cache tells them apart"
    assert find_baseline(data, values, tmp_path, n_read=1).n_counted == 1_000
    assert (
        find_baseline(data, values.replace(objective="masked", family="encoder"), tmp_path)
        is None
    )


def test_what_is_kept_is_the_same_and_what_is_torn_is_made_again(tmp_path):
    text, _ = chain(1, 8_000)
    first = found(text, tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_text(json.dumps({**json.loads(file.read_text()), "loss": 7.0}))
    assert found(text, tmp_path).loss == 7.0
    file.write_text(file.read_text()[:20])
    assert found(text, tmp_path) == first
    found(text, tmp_path, block_size=16)
    assert len(list(tmp_path.iterdir())) == 2
