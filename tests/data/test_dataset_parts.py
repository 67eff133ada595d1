"""What a dataset has of learned tokenizers and of pairs, and what a loss on it is in bits a byte."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data.conftest import write
from data.test_dataset import flip_a_byte, next_token

from sweeplab.data.batches import Pairs, limited
from sweeplab.data.dataset import Dataset, prepare
from sweeplab.data.objectives import n_special
from sweeplab.data.tokenizers import TOKENIZERS
from sweeplab.hyperparameters import Hyperparameters

# ------------------------------------------------------------------ learned tokenizers


def test_a_learned_tokenizer_sees_the_training_split_alone(file: Path, cache: Path) -> None:
    words = [f"w{number}" for number in range(3_000)]
    write(file, " ".join(word for word in words for _ in range(5)))
    dataset = prepare("text", "word", str(file), cache)
    known = {word.strip() for word in dataset.tokenizer.to_json()["words"]}
    train, val, test = (
        set(dataset.tokenizer.decode(split).split()) for split in (dataset.train, dataset.val, dataset.test)
    )
    assert len(known & train) > 2_000
    assert not known & (val - train) and not known & (test - train) and val - train and test - train


# ------------------------------------------------------------------ pairs

FRENCH = {"one": "un", "two": "deux", "three": "trois", "four": "quatre", "five": "cinq é"}


@pytest.fixture
def french(tmp_path: Path) -> Path:
    path = tmp_path / "french.tsv"
    write(path, "".join(f"{source}\t{target}\n" for source, target in FRENCH.items()))
    return path


def pairs_of(dataset: Dataset, pairs: Any) -> list[tuple[str, str]]:
    assert isinstance(pairs, Pairs)
    parts = np.split(np.asarray(pairs.tokens), pairs.ends)[:-1]
    texts = [dataset.tokenizer.decode(part) for part in parts]
    assert pairs.lengths.ravel().tolist() == [len(part) for part in parts]
    assert len(pairs) == sum(len(part) for part in parts)
    return list(zip(texts[::2], texts[1::2], strict=True))


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_pairs_come_back_one_by_one(french: Path, cache: Path, tokenizer: str) -> None:
    dataset = prepare("pairs", tokenizer, str(french), cache)
    train, val = pairs_of(dataset, dataset.train), pairs_of(dataset, dataset.val)
    test = pairs_of(dataset, dataset.test)
    assert (len(train), len(val), len(test)) == (3, 1, 1)
    assert dict(train + val + test) == FRENCH
    assert dataset.kind == "pairs"
    assert dataset.val_bytes == len(val[0][1].encode())
    assert dataset.val_targets == len(dataset.tokenizer.encode(val[0][1])) + 1


def test_prepared_pairs_are_not_built_again_and_damaged_ones_are(french: Path, cache: Path) -> None:
    first = prepare("pairs", "char", str(french), cache)
    written = {each: each.stat().st_mtime_ns for each in cache.iterdir()}
    assert prepare("pairs", "char", str(french), cache).token_digest == first.token_digest
    assert {each: each.stat().st_mtime_ns for each in cache.iterdir()} == written
    (ends,) = cache.glob("*.ends")
    whole, trained = ends.read_bytes(), pairs_of(first, first.train)
    for damage in (flip_a_byte, Path.unlink):
        damage(ends)
        again = prepare("pairs", "char", str(french), cache)
        assert ends.read_bytes() == whole
        assert pairs_of(again, again.train) == trained


# ------------------------------------------------------------------ bits per byte


def test_a_uniform_guess_at_bytes_is_eight_bits_a_byte(file: Path, french: Path, cache: Path) -> None:
    text = prepare("text", "byte", str(file), cache)
    assert text.bits_per_byte(math.log(256), next_token(8)) == pytest.approx(8)
    pairs = prepare("pairs", "byte", str(french), cache)
    bits = pairs.bits_per_byte(math.log(256), Hyperparameters(objective="pairs", vocab_size=260))
    assert bits == pytest.approx(8 * (pairs.val_bytes + 1) / pairs.val_bytes), "the end has to be found too"


@pytest.mark.parametrize("of_pairs", [False, True])
def test_a_part_of_the_training_split_is_spread_over_it_and_has_every_smaller_part(of_pairs: bool) -> None:
    rng = np.random.default_rng(0)
    whole: Any = np.arange(50_000, dtype=np.uint16)
    if of_pairs:
        ends = np.sort(rng.choice(np.arange(1, 50_000), 1999, replace=False))
        whole = Pairs(whole, np.append(ends, 50_000))
    before: set[int] = set()
    for n_tokens in (64, 2_000, 5_000, 20_000, 49_999):
        part = limited(whole, n_tokens)
        kept = part.tokens if isinstance(part, Pairs) else part
        assert len(kept) == n_tokens or (of_pairs and n_tokens - 200 < len(kept) <= n_tokens)
        if isinstance(part, Pairs):
            assert int(part.lengths.sum()) == len(kept)
        assert (np.diff(kept.astype(int)) > 0).all() and before <= set(kept.tolist())
        before = set(kept.tolist())
        if n_tokens >= 20_000:
            assert abs(kept.mean() - 25_000) < 2_500
    assert limited(whole, 50_000) is whole


def test_only_the_text_of_a_span_counts_as_bytes(file: Path, cache: Path) -> None:
    dataset = prepare("text", "byte", str(file), cache)
    values = Hyperparameters(
        objective="span", block_size=32, mask_share=0.15, span_length=3.0, vocab_size=260
    )
    # 5 hidden bytes in 2 spans: 5 bytes, 2 sentinels and the end have to be found.
    assert dataset.bits_per_byte(1.0, values) == pytest.approx(8 / 5 / math.log(2))
    assert dataset.bits_per_byte(1.0, values.replace(objective="masked")) == pytest.approx(1 / math.log(2))
    assert n_special(values) == 4
