"""What a dataset has of text and of pairs, when it is built again, and what a loss on it is in bits a byte."""

import json
import math
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from terminal import captured

from sweeplab.data.batches import Pairs, limited
from sweeplab.data.corpora import CORPORA
from sweeplab.data.dataset import prepare
from sweeplab.data.tokenizers import TOKENIZERS, BpeTokenizer
from sweeplab.hyperparameters import Hyperparameters

TEXT = "".join(f"{number} naïve cafés, " for number in range(2000))
FRENCH = {"one": "un", "two": "deux", "three": "trois", "four": "quatre", "five": "cinq é"}
AN_HOUR = 3600 * 10**9


def write(path, text, age=AN_HOUR):
    path.write_bytes(text.encode())
    time = path.stat().st_mtime_ns - age
    os.utime(path, ns=(time, time))
    return path


@pytest.fixture
def file(tmp_path):
    return write(tmp_path / "text.txt", TEXT)


@pytest.fixture
def french(tmp_path):
    rows = "".join(f"{source}\t{FRENCH[source]}\n" for source in FRENCH)
    return write(tmp_path / "french.tsv", f"source\ttarget\n{rows}")


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def splits_of(dataset):
    return [dataset.train, dataset.val, dataset.test]


def characters_of(dataset):
    return sorted("".join(map(dataset.tokenizer.decode, splits_of(dataset))))


def pairs_of(dataset, pairs):
    parts = np.split(np.asarray(pairs.tokens), pairs.ends)[:-1]
    assert pairs.lengths.ravel().tolist() == [len(part) for part in parts]
    texts = [*map(dataset.tokenizer.decode, parts)]
    return [*zip(texts[::2], texts[1::2], strict=True)]


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_splits_are_the_corpus_own_whatever_the_tokenizer(file, french, cache, tokenizer):
    dataset = prepare("text", tokenizer, str(file), cache)
    texts = CORPORA["text"].texts({"train": [file]})
    for mapped, text in zip(
        splits_of(dataset), (texts.train, texts.val, texts.test), strict=True
    ):
        assert [dataset.tokenizer.decode(mapped)] == text
        assert isinstance(mapped, np.memmap) and mapped.dtype == np.uint16
        with pytest.raises(ValueError, match="read-only"):
            mapped[0] = 1
    facts = dataset.n_characters, dataset.text_digest, dataset.n_duplicates
    assert facts == (len(TEXT), texts.digest, 0)
    assert [dataset.val_overlap, dataset.test_overlap] == texts.overlaps

    pairs = prepare("pairs", tokenizer, str(french), cache)
    train, val, test = (pairs_of(pairs, split) for split in splits_of(pairs))
    assert (len(train), len(val), len(test), pairs.kind) == (3, 1, 1, "pairs")
    assert dict(train + val + test) == FRENCH


def test_a_changed_file_gives_a_new_digest(file, cache):
    first = prepare("text", "char", str(file), cache)
    write(file, TEXT.upper(), age=2 * AN_HOUR)
    second = prepare("text", "char", str(file), cache)
    assert second.text_digest != first.text_digest
    assert characters_of(second) == sorted(TEXT.upper())
    assert characters_of(first) == sorted(TEXT)  # who mapped the old tokens goes on with them


def test_a_file_just_written_is_read_again_though_time_and_size_are_the_same(file, cache):
    write(file, "abcd" * 100, age=0)
    time = file.stat().st_mtime_ns
    prepare("text", "char", str(file), cache)
    file.write_text("efgh" * 100)
    os.utime(file, ns=(time, time))
    assert characters_of(prepare("text", "char", str(file), cache)) == sorted("efgh" * 100)


def flip_a_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut_short(path):
    os.truncate(path, path.stat().st_size - 1)


@pytest.mark.parametrize("damage", [cut_short, flip_a_byte, Path.unlink])
@pytest.mark.parametrize("which", ["*.tokens", "*.json", "*.ends"])
def test_a_whole_cache_is_used_and_a_damaged_one_built_again(french, cache, which, damage):
    first = prepare("pairs", "char", str(french), cache)
    trained, time = pairs_of(first, first.train), french.stat().st_mtime_ns
    written = {each: each.stat().st_mtime_ns for each in cache.iterdir()}
    whole = french.read_bytes()
    french.write_bytes(b"\xff" * len(whole))  # whoever reads this is told that it is not UTF-8
    os.utime(french, ns=(time, time))
    assert prepare("pairs", "char", str(french), cache).token_digest == first.token_digest
    assert {each: each.stat().st_mtime_ns for each in cache.iterdir()} == written
    french.write_bytes(whole)
    os.utime(french, ns=(time, time))
    (damaged,) = cache.glob(which)
    content = damaged.read_bytes()
    damage(damaged)
    again = prepare("pairs", "char", str(french), cache)
    assert damaged.read_bytes() == content and pairs_of(again, again.train) == trained


PREPARE_TOGETHER = """
import json, sys, threading
from pathlib import Path
from sweeplab.data import dataset
from sweeplab.data.tokenizers import TOKENIZERS, ByteTokenizer

class Slow(ByteTokenizer):
    name = "slow"
    @classmethod
    def train(cls, text):
        with Path(sys.argv[3]).open("a") as log:
            log.write("built\\n")
        threading.Event().wait(0.3)
        return cls()

TOKENIZERS["slow"] = Slow
print("ready", flush=True)
sys.stdin.readline()
made = dataset.prepare("text", "slow", sys.argv[1], Path(sys.argv[2]))
print(json.dumps([made.text_digest, made.token_digest, len(made.train), len(made.val)]))
"""


def start(code, *arguments):
    command = [sys.executable, "-c", code, *map(str, arguments)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    return process


def test_processes_that_prepare_together_build_once_and_agree(file, cache, tmp_path):
    processes = [start(PREPARE_TOGETHER, file, cache, tmp_path / "log") for _ in range(3)]
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    (answer,) = {process.communicate(timeout=300)[0] for process in processes}
    assert (tmp_path / "log").read_text() == "built\n"
    assert json.loads(answer)[0] == CORPORA["text"].texts({"train": [file]}).digest


WRITE_FOR_EVER = """
import itertools, sys
from pathlib import Path
from sweeplab.files import write_whole
print("ready", flush=True)
for content in itertools.cycle([b"a" * 2_000_000, b"b" * 1_000_000]):
    write_whole(Path(sys.argv[1]), content)
"""


def test_a_kill_leaves_the_old_file_or_the_new_one(tmp_path):
    target = tmp_path / "target"
    target.write_bytes(b"b" * 1_000_000)
    draw = random.Random(0)
    for _ in range(8):
        with start(WRITE_FOR_EVER, target) as process:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(draw.uniform(0.0, 0.05))
            process.send_signal(signal.SIGKILL)
        assert target.read_bytes() in (b"a" * 2_000_000, b"b" * 1_000_000)
        assert len([*tmp_path.iterdir()]) <= 2, (
            "what the killed process before it left is removed"
        )


PREPARE_WITHOUT_ROOM = """
import resource, sys
from pathlib import Path
from sweeplab.data.dataset import prepare
from sweeplab.errors import BadInput
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    prepare("text", "char", sys.argv[1], Path(sys.argv[2]))
except BadInput as error:
    print(error)
"""


def test_no_room_for_the_tokens_is_one_line_and_leaves_nothing(file, cache):
    command = [sys.executable, "-c", PREPARE_WITHOUT_ROOM, str(file), str(cache)]
    answer = captured(command, timeout=300)
    assert answer.stdout.startswith(f"cannot write tokens to {cache}"), answer.stderr
    assert answer.stdout.count("\n") == 1
    assert [each.name for each in cache.iterdir()] == [".lock"]


def test_a_learned_tokenizer_sees_the_training_split_alone(file, cache):
    write(file, " ".join(f"w{number}" for number in range(3_000) for _ in range(5)))
    dataset = prepare("text", "bpe", str(file), cache)
    texts = [dataset.tokenizer.decode(split) for split in splits_of(dataset)]
    assert (
        dataset.tokenizer == BpeTokenizer.train(texts[0]) != BpeTokenizer.train("".join(texts))
    )


def test_bits_per_byte_count_the_bytes_of_the_targets_alone(file, french, cache):
    text = prepare("text", "byte", str(file), cache)
    values = Hyperparameters(objective="next_token", block_size=8, batch_size=2, vocab_size=300)
    assert text.bits_per_byte(math.log(256), values) == pytest.approx(8)
    pairs = prepare("pairs", "byte", str(french), cache)
    bits = pairs.bits_per_byte(
        math.log(256), Hyperparameters(objective="pairs", vocab_size=260)
    )
    n_bytes = pairs.val.lengths[0, 1]
    assert bits == pytest.approx(8 * (n_bytes + 1) / n_bytes), "the end has to be found too"
    shares = {"mask_share": 0.15, "span_length": 3.0, "vocab_size": 260}
    values = Hyperparameters(objective="span", block_size=32, **shares)
    # 5 hidden bytes in 2 spans: 5 bytes, 2 sentinels and the end have to be found.
    assert text.bits_per_byte(1.0, values) == pytest.approx(8 / 5 / math.log(2))
    assert text.bits_per_byte(1.0, values.replace(objective="masked")) == pytest.approx(
        1 / math.log(2)
    )


@pytest.mark.parametrize("of_pairs", [False, True])
def test_a_part_of_the_training_split_is_spread_over_it_and_has_every_smaller_part(of_pairs):
    whole = np.arange(50_000, dtype=np.uint16)
    if of_pairs:
        ends = np.sort(
            np.random.default_rng(0).choice(np.arange(1, 50_000), 1999, replace=False)
        )
        whole = Pairs(whole, np.append(ends, 50_000))
    before = set()
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
