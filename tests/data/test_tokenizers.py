from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeplab.data.tokenizers import TOKENIZERS, ByteTokenizer, CharTokenizer, Tokenizer, load_tokenizer

TEXT = "First Citizen:\r\n\tnaïve café, 中文 \U0001f600\u0000\ufeff\u2028 e\u0301\n"


@pytest.mark.parametrize("kind", TOKENIZERS.values(), ids=TOKENIZERS)
class TestTokenizerContract:
    """What any registered tokenizer does."""

    @settings(deadline=None)
    @given(text=st.text(min_size=1))
    def test_any_text_round_trips(self, kind: type[Tokenizer], text: str) -> None:
        tokenizer = kind.train(text)
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert ids.dtype == np.uint16
        assert ids.ndim == 1
        assert ids.max() < tokenizer.vocab_size

    @settings(deadline=None)
    @given(cut=st.integers(0, len(TEXT)))
    def test_pieces_of_the_corpus_need_nothing_more(self, kind: type[Tokenizer], cut: int) -> None:
        tokenizer = kind.train(TEXT)
        assert tokenizer.decode(tokenizer.encode(TEXT[:cut])) == TEXT[:cut]
        assert tokenizer.decode(tokenizer.encode(TEXT[cut:])) == TEXT[cut:]

    def test_comes_back_from_json_equal(self, kind: type[Tokenizer]) -> None:
        tokenizer = kind.train(TEXT)
        loaded = load_tokenizer(json.loads(json.dumps(tokenizer.to_json())))
        assert type(loaded) is kind
        assert loaded == tokenizer
        assert loaded.vocab_size == tokenizer.vocab_size
        np.testing.assert_array_equal(loaded.encode(TEXT), tokenizer.encode(TEXT))

    def test_is_named_as_registered(self, kind: type[Tokenizer]) -> None:
        assert TOKENIZERS[kind.name] is kind
        assert kind.train(TEXT).to_json()["name"] == kind.name

    def test_training_again_gives_an_equal_one(self, kind: type[Tokenizer]) -> None:
        assert kind.train(TEXT).to_json() == kind.train(TEXT).to_json()

    def test_decodes_lists_and_nothing(self, kind: type[Tokenizer]) -> None:
        tokenizer = kind.train(TEXT)
        assert tokenizer.decode(tokenizer.encode(TEXT).tolist()) == TEXT
        assert tokenizer.decode([]) == ""
        assert tokenizer.encode("").size == 0

    def test_decodes_every_id_of_the_vocabulary(self, kind: type[Tokenizer]) -> None:
        tokenizer = kind.train(TEXT)
        assert tokenizer.decode(range(tokenizer.vocab_size))

    @pytest.mark.parametrize("beyond", [-1, 0])
    def test_refuses_ids_outside_of_the_vocabulary(self, kind: type[Tokenizer], beyond: int) -> None:
        tokenizer = kind.train(TEXT)
        unknown = tokenizer.vocab_size if beyond == 0 else beyond
        with pytest.raises(ValueError, match=f"token {unknown} is not among"):
            tokenizer.decode([0, unknown])


def test_char_numbers_characters_by_code_point() -> None:
    tokenizer = CharTokenizer.train("banana\n")
    assert tokenizer.characters == "\nabn"
    assert tokenizer.encode("nab").tolist() == [3, 1, 2]


@pytest.mark.parametrize("unknown", ["\t", "c", "z", "\U0010ffff", "\ud800"])
def test_char_names_a_character_it_does_not_know(unknown: str) -> None:
    with pytest.raises(ValueError, match="at 2 is not among the 3") as error:
        CharTokenizer.train("abn").encode(f"ba{unknown}")
    assert repr(unknown) in str(error.value)


@pytest.mark.parametrize("characters", ["", "ba", "aab"])
def test_char_refuses_a_description_it_never_wrote(characters: str) -> None:
    with pytest.raises(ValueError, match="distinct"):
        load_tokenizer({"name": "char", "characters": characters})


def test_char_takes_as_many_characters_as_16_bits_number() -> None:
    most = "".join(map(chr, range(0x10000, 0x20000)))
    tokenizer = CharTokenizer.train(most)
    assert tokenizer.decode(tokenizer.encode(most)) == most
    with pytest.raises(ValueError, match="65,537 distinct characters"):
        CharTokenizer.train(most + "a")


def test_byte_ids_are_utf8_and_broken_ones_still_decode() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.encode("é").tolist() == [0xC3, 0xA9]
    assert tokenizer.decode([0x61, 0xC3]) == "a\ufffd"


def test_load_names_the_tokenizers_there_are() -> None:
    with pytest.raises(ValueError, match=r"'bpe'.*char, byte"):
        load_tokenizer({"name": "bpe"})
