import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from data.conftest import AN_HOUR, TEXT, write

from sweeplab.data.corpora import CORPORA
from sweeplab.data.dataset import Dataset, prepare
from sweeplab.data.tokenizers import TOKENIZERS
from sweeplab.hyperparameters import Hyperparameters


def next_token(block_size: int) -> Hyperparameters:
    return Hyperparameters(objective="next_token", block_size=block_size, batch_size=2, vocab_size=300)


def characters_of(dataset: Dataset) -> list[str]:
    splits = dataset.train, dataset.val, dataset.test
    return sorted("".join(dataset.tokenizer.decode(split) for split in splits))


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_splits_are_the_corpus_own_whatever_the_tokenizer(file: Path, cache: Path, tokenizer: str) -> None:
    dataset = prepare("text", tokenizer, str(file), cache)
    texts = CORPORA["text"].texts([file])
    for split in ("train", "val", "test"):
        assert [dataset.tokenizer.decode(getattr(dataset, split))] == getattr(texts, split)
    assert dataset.n_characters == len(TEXT)
    assert dataset.val_bytes == len(texts.val[0].encode())
    assert dataset.text_digest == texts.digest
    assert dataset.token_digest != texts.digest
    assert [dataset.val_overlap, dataset.test_overlap] == texts.overlaps
    assert dataset.n_duplicates == 0


def test_tokens_are_mapped_and_cannot_be_written(file: Path, cache: Path) -> None:
    dataset = prepare("text", "char", str(file), cache)
    for split in (dataset.train, dataset.val, dataset.test):
        assert isinstance(split, np.memmap)
        assert split.dtype == np.uint16
        with pytest.raises(ValueError, match="read-only"):
            split[0] = 1


def test_a_prepared_text_is_neither_read_nor_built_again(file: Path, cache: Path) -> None:
    first = prepare("text", "char", str(file), cache)
    written = {each: each.stat().st_mtime_ns for each in cache.iterdir()}
    time = file.stat().st_mtime_ns
    file.write_bytes(b"\xff" * file.stat().st_size)  # whoever reads this is told that it is not UTF-8
    os.utime(file, ns=(time, time))
    assert prepare("text", "char", str(file), cache).token_digest == first.token_digest
    assert {each: each.stat().st_mtime_ns for each in cache.iterdir()} == written


def test_a_changed_file_gives_a_new_digest(file: Path, cache: Path) -> None:
    first = prepare("text", "char", str(file), cache)
    write(file, TEXT.upper(), age=2 * AN_HOUR)
    second = prepare("text", "char", str(file), cache)
    assert second.text_digest != first.text_digest
    assert characters_of(second) == sorted(TEXT.upper())
    assert characters_of(first) == sorted(TEXT)  # who mapped the old tokens goes on with them


def test_a_file_just_written_is_read_again_though_time_and_size_are_the_same(file: Path, cache: Path) -> None:
    write(file, "abcd" * 100, age=0)
    time = file.stat().st_mtime_ns
    prepare("text", "char", str(file), cache)
    file.write_text("efgh" * 100)
    os.utime(file, ns=(time, time))
    assert characters_of(prepare("text", "char", str(file), cache)) == sorted("efgh" * 100)


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut_short(path: Path, keep: Callable[[int], int]) -> None:
    os.truncate(path, keep(path.stat().st_size))


@pytest.mark.parametrize("which", ["*.tokens", "*.json"])
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda path: cut_short(path, lambda size: size - 1), id="one byte short"),
        pytest.param(flip_a_byte, id="a flipped bit"),
        pytest.param(Path.unlink, id="gone"),
    ],
)
def test_a_damaged_cache_is_built_again(
    file: Path, cache: Path, which: str, damage: Callable[[Path], None]
) -> None:
    first = prepare("text", "char", str(file), cache)
    (damaged,) = cache.glob(which)
    whole = damaged.read_bytes()
    damage(damaged)
    again = prepare("text", "char", str(file), cache)
    assert damaged.read_bytes() == whole
    assert again.token_digest == first.token_digest
    assert characters_of(again) == sorted(TEXT)


PREPARE_TOGETHER = """
import json, os, sys, threading
from pathlib import Path
from typing import Any
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


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_processes_that_prepare_together_build_once_and_agree(
    file: Path, cache: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    processes = [start(PREPARE_TOGETHER, file, cache, log) for _ in range(3)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=300)[0] for process in processes]
    assert log.read_text() == "built\n"
    assert len(set(answers)) == 1
    assert json.loads(answers[0])[0] == CORPORA["text"].texts([file]).digest


WRITE_FOR_EVER = """
import itertools, sys
from pathlib import Path
from typing import Any
from sweeplab.files import write_whole
print("ready", flush=True)
for content in itertools.cycle([b"a" * 2_000_000, b"b" * 1_000_000]):
    write_whole(Path(sys.argv[1]), content)
"""


def test_a_kill_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"b" * 1_000_000)
    draw = random.Random(0)
    for _ in range(8):
        with start(WRITE_FOR_EVER, target) as process:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(draw.uniform(0.0, 0.05))
            process.send_signal(signal.SIGKILL)
        assert target.read_bytes() in (b"a" * 2_000_000, b"b" * 1_000_000)
        assert len([*tmp_path.iterdir()]) <= 2, "what the killed process before it left is removed"


PREPARE_WITHOUT_ROOM = """
import resource, sys
from pathlib import Path
from typing import Any
from sweeplab.data.dataset import prepare
from sweeplab.data.objectives import make_objective
from sweeplab.data.tokenizers import TOKENIZERS
from sweeplab.errors import BadInput
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    prepare("text", "char", sys.argv[1], Path(sys.argv[2]))
except BadInput as error:
    print(error)
"""


def test_no_room_for_the_tokens_is_one_line_and_leaves_nothing(file: Path, cache: Path) -> None:
    command = [sys.executable, "-c", PREPARE_WITHOUT_ROOM, str(file), str(cache)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert answer.stdout.startswith(f"cannot write tokens to {cache}"), answer.stderr
    assert answer.stdout.count("\n") == 1
    assert [each.name for each in cache.iterdir() if each.suffix != ".lock" and each.name != ".lock"] == []
