"""What users bring is read as what it is, or refused in one line; nothing of it is executed."""

import gzip
import json
import os
import pickle
from pathlib import Path

import numpy as np
import psutil
import pytest
from data.brought import DOCUMENTS, IDS, TABLES, TEXT, TEXTS, arrow, broken, meta, npy, zst

from sweeplab.data import formats
from sweeplab.data.corpora import CORPORA, base
from sweeplab.data.corpora.splits import MOST_OVERLAP
from sweeplab.data.formats import Reading
from sweeplab.data.source import checked, plain_pickle, token_files, token_splits, vocabulary_of
from sweeplab.data.tokenizers.library import tokenizer_in
from sweeplab.errors import BadInput
from sweeplab.study.file.reading import read_plain
from sweeplab.study.file.template import section_of
from sweeplab.study.inputs import study_dataset

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SWEEPLAB_CACHE", str(tmp_path.with_name(f"{tmp_path.name}-cache")))
    return tmp_path


def read(**data):
    return study_dataset(read_plain({"name": "mine", "data": data}))


def text_of(dataset):
    return "".join(
        dataset.tokenizer.decode(split) for split in (dataset.train, dataset.val, dataset.test)
    )


def words_of(text):
    """Return what does not depend on where a text is cut, and on what stands between documents."""
    return sorted("".join(text.split()))


def sources(dataset):
    pairs, decode = {}, dataset.tokenizer.decode
    for split in (dataset.train, dataset.val, dataset.test):
        for at in range(split.n_pairs):
            middle, end = split.ends[2 * at : 2 * at + 2]
            pairs[decode(split.tokens[split.starts[at, 0] : middle])] = decode(
                split.tokens[middle:end]
            )
    return pairs


@pytest.mark.parametrize("name", TABLES)
def test_rows_of_every_format_are_documents(folder, name):
    (folder / name).write_bytes(TABLES[name]())
    dataset = read(path=name, tokenizer="char")
    assert (dataset.n_documents, dataset.notes) == (len(DOCUMENTS), ("rows: content (1 file)",))
    assert words_of(text_of(dataset)) == words_of(" ".join(DOCUMENTS))


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_is_read_in_its_encoding(folder, name):
    (folder / name).write_bytes(TEXTS[name])
    assert words_of(text_of(read(path=name))) == words_of(TEXT)


def test_a_folder_is_read_with_all_below_it_and_what_was_skipped_is_counted(folder):
    (folder / "in/deep").mkdir(parents=True)
    (folder / "in/.git").mkdir()
    for name, held in {
        "a.md": b"first one\r\n", "deep/b.txt": b"the second", "rows.jsonl": b'{"text": "a third"}\n',
        "empty.txt": b" \n",
        "p.png": b"\x89PNG\0", "config.json": b'{"a": 1}', "latin.txt": b"caf\xe9", "nul.txt": b"a\0b", ".git/x": b"y",
    }.items():  # fmt: skip
        (folder / "in" / name).write_bytes(held)
    skipped = "5 files skipped: 2 binary, 1 empty, 1 not UTF-8, 1 without a field of text"
    for place in ("in", "in/**"):
        dataset = read(path=place)
        assert dataset.notes == ("rows: text (1 file)", skipped)
        assert words_of(text_of(dataset)) == words_of("first one the second a third")
    with pytest.raises(BadInput, match=r"there is no text in .*in: 2 files skipped: 2 binary$"):
        read(path="in/[pn][.u]*")


PAIRS = {
    "a.jsonl": b"".join(
        b'{"prompt": "p%d", "completion": "c%d"}\n' % (n, n) for n in range(30)
    ),
    "a.csv": b"Question,Answer\n" + b"".join(b"p%d,c%d\n" % (n, n) for n in range(30)),
    "a.tsv": b"source\ttarget\n" + b"".join(b"p%d\tc%d\n" % (n, n) for n in range(30)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_are_known_by_their_fields(folder, name):
    (folder / name).write_bytes(PAIRS[name])
    assert sources(read(path=name)) == {f"p{n}": f"c{n}" for n in range(30)}


def test_fields_may_be_named_and_an_instruction_has_its_input(folder):
    rows = [
        {"instruction": f"add {n}", "input": "to 1", "output": str(n + 1)} for n in range(30)
    ]
    rows[4]["input"] = ""
    (folder / "a.json").write_text(json.dumps(rows))
    found = sources(read(path="a.json"))
    assert (found["add 3\n\nto 1"], found["add 4"]) == ("4", "5")
    assert sources(read(path="a.json", field=["output", "instruction"]))["4"] == "add 3"
    assert "add 3" in text_of(read(path="a.json", field="instruction"))
    with pytest.raises(
        BadInput, match=r"no inptu, but instruction, input.*did you mean 'input'"
    ):
        read(path="a.json", field="inptu")
    (folder / "l.csv").write_text(
        "Review,Sentiment\n" + "".join(f"film {n},{n % 2}\n" for n in range(40))
    )
    assert read(path="l.csv", corpus="labels", tokenizer="char").labels == ("0", "1")


@pytest.mark.parametrize(
    ("name", "held", "data", "says"),
    [
        ("a.txt", b"caf\xe9 au lait and more", {}, r"not UTF-8: byte 3 is 0xe9; allowed: UTF-8; data.encoding"),
        ("a.txt", b" \n\t\n", {}, "a.txt is empty"),
        ("a.txt", b"words", {"encoding": "utf8"}, "data.encoding is .*did you mean 'utf-8'"),
        ("a.txt", b"too short", {}, "9 characters: too few for three splits; allowed: at least 10"),
        ("a.txt", b"PK\x03\x04\0zip", {}, "not a text: byte 4 is 0"),
        ("a.txt.gz", gzip.compress(b"words" * 99, mtime=0)[:-12], {}, "a.txt.gz is damaged"),
        ("a.parquet", b"PAR1" + bytes(99) + b"PAR1", {}, "no whole parquet file"),
        ("a.jsonl", b"", {}, "a.jsonl is empty"),
        ("a.json", b"[1", {}, "a.json is not JSON"),
        ("a.jsonl", b'{"a": 1, "b": "x", "c": "y"}', {}, r":1: there is no text, but a, b, c; allowed: data.field"),
        ("a.jsonl", b'{"text": "a"}\n{"text": 3}\n', {}, r"a.jsonl:2: line 2 has a text that is int"),
        ("a.txt", b"words", {"tokens": "."}, "data has path and tokens; allowed: one of"),
        ("a.txt", b"words", {"tokenizer": "ids"}, "tokenizer ids without tokens"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_one_line(folder, name, held, data, says):
    (folder / name).write_bytes(held)
    with pytest.raises(BadInput, match=says) as error:
        read(path=name, **data)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("pack", [gzip.compress, zst], ids=["gzip", "zstd"])
def test_a_bomb_is_refused(folder, pack, monkeypatch):
    monkeypatch.setattr(formats, "ALWAYS_BYTES", 2**20)
    (folder / "a.txt.gz").write_bytes(pack(b"a " * 2**23))
    with pytest.raises(
        BadInput,
        match=r"unpacks to more than .*, as an attack would; allowed: the unpacked file",
    ):
        read(path="a.txt.gz")


def test_damaged_files_take_no_memory_that_is_never_freed(folder):
    """Each that failed kept 16 MB of addresses: with thousands a process could not start another one."""
    packed = bytearray(gzip.compress(b"words " * 999, mtime=0))
    packed[-40] ^= 255
    (folder / "a.txt.gz").write_bytes(packed)
    used = []
    for _ in range(200):
        with pytest.raises(BadInput, match="is damaged"):
            list(formats.contents(folder / "a.txt.gz"))
        used.append(psutil.Process().memory_info().vms)
    assert used[-1] - used[20] < 2**30


def test_own_splits_are_kept_and_what_they_share_is_measured(folder):
    for name, some in (("train", DOCUMENTS[:50]), ("val", DOCUMENTS[48:54])):
        (folder / name).mkdir()
        for number, text in enumerate(some):
            (folder / name / f"{number}.txt").write_text(text * 3)
    dataset = read(train="train", val="val")
    assert min(dataset.val_overlap, dataset.test_overlap) > MOST_OVERLAP, "there is a warning"
    assert words_of(dataset.tokenizer.decode(dataset.train)) == words_of(
        " ".join(3 * DOCUMENTS[:50])
    )
    held_out = dataset.tokenizer.decode(dataset.val) + dataset.tokenizer.decode(dataset.test)
    assert words_of(held_out) == words_of(" ".join(3 * DOCUMENTS[48:54]))
    (folder / "p.tsv").write_bytes(PAIRS["a.tsv"])
    (folder / "q.tsv").write_text("source\ttarget\np1\tc1\nnew\tx\nnewer\ty\n")
    (folder / "t.tsv").write_text("source\ttarget\np1\tc1\nnewest\tx\n")
    pairs = read(corpus="pairs", tokenizer="char", train="p.tsv", val="q.tsv", test="t.tsv")
    assert (pairs.train.n_pairs, pairs.val.n_pairs, pairs.test.n_pairs) == (30, 2, 1)
    assert pairs.notes[1:] == (
        "val: 1 pair of known sources left out",
        "test: 1 pair of known sources left out",
    )


def test_a_folder_of_datasets_has_its_splits(folder):
    for name in ("train", "validation"):
        (folder / "saved" / name).mkdir(parents=True)
        (folder / "saved" / name / "dataset_info.json").write_text("{}")
        (folder / "saved" / name / "state.json").write_text("{}")
        (folder / "saved" / name / "data-00000-of-00001.arrow").write_bytes(
            arrow(is_stream=True)
        )
    assert read(path="saved/train").n_documents == 60
    (folder / "saved/dataset_dict.json").write_text("{}")
    dataset = read(path="saved")
    assert dataset.n_documents == 120 and "rows: content (2 files)" in dataset.notes


# ------------------------------------------------------------------ tokens and tokenizers


def bins(folder, meta_pkl):
    (folder / "train.bin").write_bytes(IDS[:3000].tobytes())
    (folder / "val.bin").write_bytes(IDS[3000:].tobytes())
    (folder / "meta.pkl").write_bytes(meta_pkl)


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_nanogpts_files_are_read_with_their_vocabulary(folder, protocol):
    bins(folder, meta(protocol))
    dataset = read(**section_of(".", Path()))
    decode = dataset.tokenizer.decode
    assert decode(dataset.train) == TEXT[:3000]
    assert decode(dataset.val) + decode(dataset.test) == TEXT[3000:]
    assert isinstance(dataset.train, np.memmap)


def test_tokens_without_a_vocabulary_are_numbers(folder):
    (folder / "ids.npy").write_bytes(npy())
    dataset, size = read(tokens="ids.npy"), len(IDS)
    assert (dataset.tokenizer.name, dataset.tokenizer.vocab_size) == ("ids", int(IDS.max()) + 1)
    assert [len(dataset.train), len(dataset.val)] == [
        size * 8 // 10,
        size * 9 // 10 - size * 8 // 10,
    ]
    with pytest.raises(BadInput, match="tokens take no vocab_size"):
        read(tokens="ids.npy", vocab_size=500)
    np.save("pairs.npy", np.zeros((9, 2), np.int32))
    np.save("real.npy", np.zeros(9))
    np.save("objects.npy", np.array([{}], object), allow_pickle=True)
    (folder / "train.bin").write_bytes(IDS.astype(np.uint32).tobytes())
    (folder / "odd.bin").write_bytes(b"odd")
    for place, says in {
        "pairs.npy": "one row of whole numbers", "real.npy": "float64", "objects.npy": "Python objects",
        "odd.bin": "3 bytes; allowed: 2 for each", ".": "seems to have numbers of 32 bits",
        "none": "there are no tokens at .*none",
    }.items():  # fmt: skip
        with pytest.raises(BadInput, match=says):
            read(tokens=place)


class Attack:
    def __reduce__(self):
        return os.system, ("touch attacked",)


@pytest.mark.parametrize("protocol", range(6))
def test_no_pickle_is_executed(folder, protocol):
    for held in ({"itos": Attack()}, Attack(), {"a": [1]}, {"a": {1.5}}):
        with pytest.raises(
            ValueError,
            match=r"more than dicts, strings and whole numbers|it names|it is damaged",
        ):
            plain_pickle(pickle.dumps(held, protocol))
    with pytest.raises(ValueError, match="too large"):  # 64 GB for four bytes
        plain_pickle(b"\x80\x02}r\xff\xff\xff\xff.")
    bins(folder, pickle.dumps({"itos": Attack()}, protocol))
    with pytest.raises(BadInput, match=r"meta\.pkl is not read: .*; allowed: a meta\.json"):
        read(tokens=".")
    assert not (folder / "attacked").exists()


@pytest.mark.parametrize(
    ("name", "text", "ids"),
    [
        ("unigram", "the value of an expression", [17, 70, 48, 3, 38, 3, 5, 44, 12, 28, 4, 4, 8, 30]),
        ("bpe", "  if a:\n\treturn 3 é",
         [259, 312, 317, 329, 262, 344, 13, 12, 269, 314, 325, 320, 316, 312, 364, 312, 198, 172]),
    ],
)  # fmt: skip
def test_a_sentencepiece_model_gives_its_own_ids(folder, name, text, ids):
    """Compare with the ids of SentencePiece 0.2.3, which has learned the models from Python's documentation."""
    tokenizer = tokenizer_in(HERE / f"{name}.model")
    assert tokenizer.encode(text).tolist() == ids
    assert tokenizer.decode(ids) == text
    (folder / "a.txt").write_text("of the expression\n" * 20 + TEXT)
    dataset = read(path="a.txt", tokenizer=str(HERE / f"{name}.model"))
    assert dataset.tokenizer.vocab_size == tokenizer.vocab_size


def test_a_tokenizer_json_is_used_as_it_is(folder):
    (folder / "a.txt").write_text(TEXT)
    learned = read(path="a.txt", tokenizer="bpe", vocab_size=300)
    (folder / "tokenizer.json").write_text(
        json.dumps(learned.tokenizer.to_json()["definition"])
    )
    assert read(path="a.txt", tokenizer="tokenizer.json").token_digest == learned.token_digest
    for held in (
        "[]",
        "{",
        '{"model": {}}',
        '{"model": {"type": "BPE", "vocab": 3}}',
        "[" * 10**5,
    ):
        (folder / "tokenizer.json").write_text(held)
        with pytest.raises(BadInput, match=r"tokenizer\.json"):
            read(path="a.txt", tokenizer="tokenizer.json")


# ------------------------------------------------------------------ larger than memory


@pytest.mark.parametrize("tokenizer", ["char", "bpe"])
def test_a_large_text_is_read_in_a_stream_to_about_the_same(folder, tokenizer, monkeypatch):
    rows = [
        {"content": text.replace("\n", " ")}
        for text in (*DOCUMENTS, DOCUMENTS[7], DOCUMENTS[3][:-3])
    ]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    whole = read(path="a.jsonl", tokenizer=tokenizer)
    monkeypatch.setattr(base, "LARGE_BYTES", 1000)
    (folder / "b.jsonl").write_bytes((folder / "a.jsonl").read_bytes())
    for _ in range(2):
        streamed = read(path="b.jsonl", tokenizer=tokenizer)
        assert "read in a stream" in streamed.notes[-1]
        assert streamed.n_duplicates == whole.n_duplicates > 0
        assert text_of(streamed) == text_of(whole)
        assert streamed.val_overlap == whole.val_overlap


# ------------------------------------------------------------------ broken files

KINDS = {
    **TABLES, **{name: lambda name=name: TEXTS[name] for name in TEXTS}, "meta.pkl": meta, "ids.npy": npy,
    "p.tsv": lambda: PAIRS["a.tsv"], "bpe.model": (HERE / "bpe.model").read_bytes,
    "unigram.model": (HERE / "unigram.model").read_bytes,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_a_broken_file_is_read_or_one_line(folder, name):
    whole = KINDS[name]()
    path = folder / name
    bins(folder, b"")
    for seed in range(500):
        path.write_bytes(broken(whole, seed))
        try:
            if name.endswith((".pkl", ".npy")):
                files = token_files("." if name == "meta.pkl" else name)
                vocabulary_of(files)
                checked(token_splits(files), None)
            elif name.endswith(".model"):
                tokenizer_in(path).encode(TEXT[:500])
            else:
                CORPORA["text"].texts({"train": [path]}, Reading())
        except BadInput as error:
            assert all(
                str(problem) and "\n" not in str(problem) for problem in error.problems
            ), seed
