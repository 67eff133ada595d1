"""Our tokenizers in the library's own format: the same ids of the same text, and back."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Library

from sweeplab.data.tokenizers import (
    TOKENIZERS,
    BpeTokenizer,
    UnigramTokenizer,
    WordPieceTokenizer,
)
from sweeplab.data.tokenizers.library import BYTES, contents_of, read_tokenizer, write_tokenizer

TEXT = "First Citizen:\r\n\tnaïve café, 中文 \U0001f600\u0000\ufeff\u2028 e\u0301\x1c\x85 ½ Ⅷ _a_ <mask> <|x|>\n"


def in_library(definition):
    return Library.from_str(json.dumps(definition))


@pytest.mark.parametrize("kind", TOKENIZERS.values(), ids=TOKENIZERS)
class TestEveryTokenizer:
    @pytest.mark.slow
    @settings(max_examples=50)
    @example(text="0" * 8)
    @given(text=st.text(st.characters(exclude_categories=("Cs", "Cn")), min_size=1))
    def test_same_ids_of_any_text(self, kind, text):
        tokenizer = kind.train(text)
        library = in_library(write_tokenizer(tokenizer, {}, tokenizer.vocab_size))
        ids = tokenizer.encode(text).tolist()
        assert library.encode(text).ids == ids
        assert library.decode(ids, skip_special_tokens=False) == text

    def test_special_tokens_have_their_ids_and_text_keeps_its_own(self, kind):
        tokenizer = kind.train(TEXT)
        size = tokenizer.vocab_size + 6
        special = {"mask": size - 1, "sentinel_0": size - 2}
        definition = write_tokenizer(tokenizer, special, size)
        library = in_library(definition)
        assert library.get_vocab_size() == size
        assert library.encode(TEXT).ids == tokenizer.encode(TEXT).tolist()
        assert library.encode("a<|mask|>").ids == [*tokenizer.encode("a").tolist(), size - 1]
        assert library.token_to_id("<|sentinel_0|>") == size - 2
        assert read_tokenizer(json.loads(library.to_str())) == tokenizer


def byte_level():
    """Return a byte-level BPE as GPT-2's: an end of text among its tokens, and a post-processor."""
    vocabulary = {**BYTES, "th": 256, "the": 257}
    library = Library(models.BPE(vocabulary, [("t", "h"), ("th", "e")]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.post_processor = processors.ByteLevel(trim_offsets=False)
    library.add_special_tokens([AddedToken("<|endoftext|>", normalized=False)])
    return library


@pytest.mark.parametrize(
    ("library", "n_added", "said"),
    [
        (byte_level(), 2**16, "its ids are not consecutive from 0, or more than 65,536"),
        (Library(models.WordLevel({"a": 0, "b": 1})), 0, "its type is WordLevel; supported are BPE"),
    ],
)  # fmt: skip
def test_what_none_of_ours_is(library, n_added, said):
    library.add_tokens([f"token {each}" for each in range(n_added)])
    with pytest.raises(ValueError, match=said):
        read_tokenizer(json.loads(library.to_str()))


def test_a_character_without_a_token_is_named():
    library = Library(models.BPE({"a": 0, "b": 1}, []))
    library.decoder = decoders.ByteLevel()
    with pytest.raises(
        ValueError, match="character 'é' at 1 has no token of the bpe tokenizer"
    ):
        read_tokenizer(json.loads(library.to_str())).encode("aé")


def berts():
    """Return a WordPiece as BERT's, which writes all in small letters."""
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "the",
        "cat",
        "un",
        "##able",
        "##s",
        ",",
        "é",
    ]
    library = Library(
        models.WordPiece({each: at for at, each in enumerate(pieces)}, unk_token="[UNK]")
    )
    library.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=False)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
    library.add_special_tokens(pieces[:5])
    library.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return library


def t5s():
    """Return a Unigram as T5's, with blanks written as SentencePiece does."""
    special = ["<pad>", "</s>", "<unk>"]
    pieces = [(each, 0.0) for each in special] + [
        ("▁the", -2.0),
        ("▁cat", -3.0),
        ("s", -4.0),
        ("▁", -5.0),
    ]
    library = Library(models.Unigram([*pieces, ("<extra_id_0>", 0.0)], unk_id=2))
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    library.add_special_tokens([*special, "<extra_id_0>"])
    return library


@pytest.mark.parametrize(
    ("library", "kind", "given", "ids", "text", "n_bytes"),
    [
        (byte_level(), BpeTokenizer, "the a<|endoftext|>", [257, 32, 97, 258], "the a<|endoftext|>", 18),
        (berts(), WordPieceTokenizer, "The cats, unable", [5, 6, 9, 10, 7, 8], "the cats, unable", 14),
        (t5s(), UnigramTokenizer, "the cats Q", [3, 4, 5, 6, 2], "the cats <unk>", 15),
    ],
)  # fmt: skip
def test_gpt2s_berts_and_t5s_own_kinds_read_text(library, kind, given, ids, text, n_bytes):
    found = read_tokenizer(json.loads(library.to_str()))
    assert isinstance(found, kind) and found.vocab_size == library.get_vocab_size()
    assert found.encode(given).tolist() == ids, "nothing of the model's own stands around it"
    assert found.decode(ids) == text
    assert found.byte_lengths()[ids].sum() == n_bytes
    size = found.vocab_size + 2
    again = in_library(written := write_tokenizer(found, {"mask": size - 1}, size))
    assert again.encode(given, add_special_tokens=False).ids == ids
    assert (
        contents_of(written)[size - 1] == "<|mask|>"
        and again.token_to_id("<|mask|>") == size - 1
    )
    assert read_tokenizer(written).encode(given).tolist() == ids
