import json
import os
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from terminal import said

from sweeplab.data import tokenizers
from sweeplab.data.tokenizers import (
    TOKENIZERS,
    BpeTokenizer,
    CharTokenizer,
    LibraryTokenizer,
    load_tokenizer,
)

TEXT = "First Citizen:\r\n\tnaïve café, 中文 \U0001f600\u0000\ufeff\u2028 e\u0301\n"


@pytest.mark.parametrize("kind", TOKENIZERS.values(), ids=TOKENIZERS)
class TestTokenizerContract:
    """What any registered tokenizer does."""

    @given(text=st.text(min_size=1))
    def test_any_text_round_trips(self, kind, text):
        tokenizer = kind.train(text)
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert ids.dtype == np.uint16
        assert ids.ndim == 1
        assert ids.max() < tokenizer.vocab_size

    def test_comes_back_from_json_equal_and_refuses_other_ids(self, kind):
        tokenizer = kind.train(TEXT)
        loaded = load_tokenizer(json.loads(json.dumps(tokenizer.to_json())))
        assert type(loaded) is kind and loaded == tokenizer
        np.testing.assert_array_equal(loaded.encode(TEXT), tokenizer.encode(TEXT))
        for unknown in (-1, loaded.vocab_size):
            with pytest.raises(ValueError, match=f"token {unknown} is not among"):
                loaded.decode([0, unknown])


@pytest.mark.parametrize("unknown", ["\t", "c", "z", "\U0010ffff", "\ud800"])
def test_char_names_a_character_it_does_not_know(unknown):
    with pytest.raises(ValueError, match="at 2 is not among the 3") as error:
        CharTokenizer.train("abn").encode(f"ba{unknown}")
    assert repr(unknown) in str(error.value)


@pytest.mark.parametrize(
    "kind", [kind for kind in TOKENIZERS.values() if kind is not CharTokenizer]
)
def test_who_knows_every_text_names_what_is_none(kind):
    with pytest.raises(
        ValueError, match=r"character '\\ud800' at 2 is half of a surrogate pair"
    ):
        kind.train(ENGLISH).encode("ab\ud800")


def test_char_takes_as_many_characters_as_16_bits_number():
    most = "".join(map(chr, range(0x10000, 0x20000)))
    tokenizer = CharTokenizer.train(most)
    assert tokenizer.decode(tokenizer.encode(most)) == most
    with pytest.raises(ValueError, match="65,537 distinct characters"):
        CharTokenizer.train(most + "a")


ENGLISH = "the cat sat on the mat; the other cat sat on the hat. " * 20
# Of the sentence alone Unigram keeps three pieces.
VARIED = (
    ENGLISH
    + "".join(
        f"{word}ing {word}ed un{word}able; " for word in ("walk", "talk", "jump", "drink")
    )
    * 9
)
LEARNED = {
    name: kind for name, kind in TOKENIZERS.items() if issubclass(kind, LibraryTokenizer)
}


@pytest.mark.parametrize("kind", LEARNED.values(), ids=LEARNED)
class TestLearnedTokenizerContract:
    """What any tokenizer does that learns its tokens."""

    @given(text=st.text())
    def test_knows_text_that_it_never_saw(self, kind, text):
        tokenizer = kind.train(VARIED)
        assert tokenizer.decode(tokenizer.encode(text)) == text

    @pytest.mark.parametrize("size", [256, 262])
    def test_has_as_many_tokens_as_it_is_told(self, kind, size):
        tokenizer = kind.train(VARIED, size)
        ids = tokenizer.encode(VARIED)
        assert tokenizer.vocab_size == size > ids.max() and tokenizer.decode(ids) == VARIED

    @pytest.mark.parametrize("size", [0, 255, 65_537])
    def test_refuses_too_few_and_too_many(self, kind, size):
        with pytest.raises(ValueError, match=r"allowed: 256 \(the bytes\) to 65,536"):
            kind.train("abba bc", size)


LEARN = """
import hashlib, json, sys
from sweeplab.data.corpora import CORPORA
from sweeplab.data.tokenizers import TOKENIZERS
(text,) = CORPORA["python-docs"].texts({"train": CORPORA["python-docs"].files()}).train
for name in sys.argv[1:]:
    print(hashlib.sha256(json.dumps(TOKENIZERS[name].train(text[:60_000], 700).to_json()).encode()).hexdigest())
"""


@pytest.mark.slow
def test_every_process_learns_the_same():
    command = [sys.executable, "-c", LEARN, *LEARNED]
    first, *others = (
        said(command, env=os.environ | {"PYTHONHASHSEED": seed}).split() for seed in ("1", "2")
    )
    assert others == [first] and len(first) == len(LEARNED)


def test_a_long_text_is_cut_where_words_are(monkeypatch):
    text = "".join(
        f"line {n}  \n\n\t x = {n}'s\r\n" if n % 3 else f"{n}\u00a0\n" for n in range(300)
    )
    tokenizer = BpeTokenizer.train(text, 300)
    whole = tokenizer.encode(text)
    for piece in (1, 7, 50):
        monkeypatch.setattr(tokenizers, "PIECE", piece)
        assert len(list(tokenizers._pieces(text))) > 2
        assert "".join(tokenizers._pieces(text)) == text
        np.testing.assert_array_equal(tokenizer.encode(text), whole)


def test_bpe_learns_what_is_pinned():
    tokens = BpeTokenizer.train(ENGLISH, 262).encode("the cat on that mat")
    assert tokens.tolist() == [258, 220, 261, 260, 77, 220, 83, 71, 256, 220, 76, 256]
