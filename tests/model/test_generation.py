"""Generation: a cache changes nothing, and what is drawn, searched and contrasted is what the formulas say."""

import itertools
import math

import numpy as np
import pytest
import torch
from model.cases import (
    ATTENTION,
    LENGTH,
    POSITIONS,
    SOURCE,
    VOCABULARY,
    legal_shapes,
    rows_of,
    shape_of,
)

from sweeplab.data.batches import Batch
from sweeplab.data.objectives.base import Prompt
from sweeplab.model.blocks import KVCache
from sweeplab.model.generation import (
    Contrast,
    Reader,
    Sampling,
    TokenSampler,
    beam_search,
    fill,
    hole_scores,
    penalty,
    sample,
)
from sweeplab.model.shape import FAMILIES
from sweeplab.model.transformer import Transformer

GREEDY = Sampling(temperature=0.0)
START, END = 9, 10  # special tokens: those below are text
TEXT_SOURCE = [1, 5, 2, 8, 0, 3, 7][:SOURCE]


def model_of(shape, scale=4.0):
    """Return a model with weights large enough that its tokens differ."""
    model = Transformer(shape)
    return model, model.layout.views(scale * rows_of(model, 1))


def prompt_of(shape):
    if shape.of_family.reads_source:
        return Prompt([START], source=TEXT_SOURCE, markers=[END], end=END)
    return Prompt([4, 1, 6])


def ids(*tokens):
    return torch.tensor([tokens], dtype=torch.long)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize(
    "family", [name for name, each in FAMILIES.items() if each.sides[-1].causal]
)
def test_with_a_cache_and_without_the_same_tokens(family, attention, one_thread):
    tried = set()
    for shape in legal_shapes(
        family=family, attention=attention, norm="layernorm", activation="gelu"
    ):
        tried.add(shape.positions)
        model, weights = model_of(shape)
        prompt = prompt_of(shape)
        # Past block_size too, where positions go on: a decoder's window slides where they do not.
        n_new = LENGTH - 1 if shape.of_family.reads_source else LENGTH + 4
        kept, model.caches = Reader(model, weights, prompt, START), False
        anew = Reader(model, weights, prompt, START)
        found = []
        for _ in range(n_new):
            ours, theirs = kept(ids(*found)), anew(ids(*found))
            torch.testing.assert_close(
                ours, theirs, rtol=1e-5, atol=1e-4, msg=lambda said, s=shape: f"{s}: {said}"
            )
            found.append(TokenSampler(GREEDY)(theirs[0]))
            assert TokenSampler(GREEDY)(ours[0]) == found[-1], shape
        if shape.of_family.reads_source:
            assert kept._cache.length == n_new
        elif shape.positions != "learned":
            assert kept._cache.length == len(prompt.start) + n_new - 1, (
                "what was read is not read again"
            )
    assert tried == set(POSITIONS)


@pytest.mark.parametrize("attention", ATTENTION)
def test_a_cache_takes_in_any_number_of_tokens_at_once(attention):
    for positions, interval in itertools.product(("rotary", "alibi", "relative"), (None, 2)):
        shape = shape_of(
            attention=attention,
            positions=positions,
            n_layer=4,
            n_kv_head=1,
            full_attention_interval=interval,
        )
        model, weights = model_of(shape)
        text = torch.randint(
            0, VOCABULARY, (1, 3, 17), generator=torch.Generator().manual_seed(1)
        )
        cache, at = KVCache(), 0
        for step in (2, 5, 1, 6, 3):
            new = text[:, :, at : (at := at + step)]
            found = model.next_logits(weights, Batch(new, new), cache)
            whole = model.next_logits(weights, Batch(text[:, :, :at], text[:, :, :at]))
            torch.testing.assert_close(found, whole, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    "how",
    [
        Sampling(),
        Sampling(temperature=0.7),
        Sampling(temperature=2.0, top_k=4),
        Sampling(top_p=0.6),
        Sampling(temperature=1.3, top_k=6, top_p=0.8),
        Sampling(top_k=1),
        Sampling(top_p=1e-9),
        GREEDY,
    ],
)
def test_what_is_drawn_has_the_probabilities_of_a_plain_computation(how):
    rng = np.random.default_rng(0)
    for _ in range(20):
        logits = rng.normal(size=9) * 2
        logits[rng.integers(9)] = -np.inf
        order = np.argsort(-logits)
        chances = np.zeros(9)
        if how.temperature == 0:
            chances[order[0]] = 1
        else:
            kept = order[: how.top_k]
            chances[kept] = np.exp(logits[kept] / how.temperature)
            chances /= chances.sum()
            if how.top_p is not None:
                n_kept = int(np.searchsorted(np.cumsum(chances[order]), how.top_p)) + 1
                chances[order[n_kept:]] = 0
                chances /= chances.sum()
        found = how.probabilities(torch.tensor(logits))
        np.testing.assert_allclose(found.numpy(), chances, atol=1e-12)


def test_drawn_tokens_come_as_often_as_they_should_and_follow_the_seed():
    scores = torch.tensor([0.1, 0.5, 0.15, 0.25]).log()
    drawn = {seed: TokenSampler(Sampling(top_k=3), seed=seed) for seed in (5, 6)}
    tokens = {seed: [sampler(scores) for _ in range(4000)] for seed, sampler in drawn.items()}
    shares = np.bincount(tokens[5], minlength=4) / 4000
    assert np.abs(shares - np.array([0, 0.5, 0.15, 0.25]) / 0.9).max() < 4 * math.sqrt(
        0.25 / 4000
    )
    torch.manual_seed(2)  # what the process has drawn is nothing to a sampler
    again = TokenSampler(Sampling(top_k=3), seed=5)
    assert [again(scores) for _ in range(4000)] == tokens[5] != tokens[6]
    assert TokenSampler(GREEDY)(torch.tensor([0.0, 1.0, 1.0])) == 1


def test_a_text_ends_with_its_end_and_has_no_special_token_in_it():
    shape = shape_of(family="encoder_decoder", positions="none")
    model, weights = model_of(shape, scale=0.5)
    prompt = Prompt([START], source=TEXT_SOURCE, markers=[END], end=END, room=7)
    lengths = set()
    for seed in range(40):
        found = list(
            sample(
                Reader(model, weights, prompt, START),
                TokenSampler(Sampling(), seed),
                prompt,
                99,
            )
        )
        assert START not in found and END not in found[:-1]
        assert len(found) == 7 or found[-1] == END
        lengths.add(len(found))
    assert len(lengths) > 3


def beams_by_brute_force(model, weights, prompt, most):
    """Score every text that there is, by one pass over each of its beginnings."""
    found = []
    for length in range(1, most + 1):
        for text in itertools.product((0, 1, 2, END), repeat=length):
            if END in text[:-1] or (length < most and text[-1] != END):
                continue
            total = sum(
                float(Reader(model, weights, prompt, n_tokens=3)(ids(*text[:at]))[0, token])
                for at, token in enumerate(text)
            )
            found.append((total / ((5 + length) / 6) ** 0.6, list(text)))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("attention", ["full", "local"])
def test_beams_wide_enough_find_what_brute_force_finds(attention, one_thread):
    shape = shape_of(family="encoder_decoder", positions="rotary", attention=attention)
    model, weights = model_of(shape, scale=3.0)
    prompt = Prompt([START], source=TEXT_SOURCE, markers=[END], end=END)
    expected = beams_by_brute_force(model, weights, prompt, most=4)
    found = beam_search(Reader(model, weights, prompt, 3), prompt, n_beams=64, max_new_tokens=4)
    assert [beam.tokens for beam in found] == [text for _, text in expected[:64]]
    np.testing.assert_allclose(
        [beam.score for beam in found], [score for score, _ in expected[:64]], atol=1e-5
    )
    few = beam_search(Reader(model, weights, prompt, 3), prompt, n_beams=3, max_new_tokens=4)
    assert [beam.tokens for beam in few] == [beam.tokens for beam in found[:3]], (
        "as it should be here"
    )
    assert all(beam.score == beam.log_probability / penalty(len(beam.tokens)) for beam in few)


def test_contrast_is_the_published_formula():
    prompt = Prompt([4, 1])
    readers, plain = [], []
    for size in (8, 4):
        model, weights = model_of(shape_of(n_embd=size, positions="rotary"))
        readers.append(Reader(model, weights, prompt, n_tokens=START))
        tokens = torch.tensor([[[4, 1, 3]]])
        logits = model.logits(weights, Batch(tokens, tokens))[0, -1].double().numpy()
        plain.append(np.exp(logits) / np.exp(logits).sum())
    expert, amateur = plain
    scores = Contrast(*readers)(ids(3))[0].numpy()
    for token in range(VOCABULARY):
        if token >= START or expert[token] < 0.1 * expert[:START].max():
            assert scores[token] == -np.inf
        else:
            assert scores[token] == pytest.approx(
                math.log(expert[token] / amateur[token]), abs=1e-5
            )
    assert 1 < np.isfinite(scores).sum() < START


def test_the_surest_hole_is_filled_first_and_the_others_read_it():
    model, weights = model_of(shape_of(family="encoder"), scale=2.0)
    tokens, holes = [1, END, 2, END, END, 3], [1, 3, 4]
    left = list(holes)
    expected = list(tokens)
    while left:
        row = torch.tensor([[expected]])
        chances = model.logits(weights, Batch(row, row))[0].softmax(dim=-1)[:, :START]
        place = max(left, key=lambda hole: float(chances[hole].max()))
        expected[place] = int(chances[place].argmax())
        left.remove(place)
    prompt = Prompt(tokens, holes)
    assert list(fill(model, weights, prompt, START, TokenSampler(GREEDY))) == expected
    scores = hole_scores(model, weights, prompt, START)
    assert scores.shape == (3, VOCABULARY) and scores[:, START:].isneginf().all()
