"""A checkpoint is the old one or the new one, whatever happens; and a damaged one is known for it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from sweeplab.train.checkpoint import (
    DamagedCheckpoint,
    read_checkpoint,
    read_snapshot,
    remove_snapshot,
    write_checkpoint,
    write_snapshot,
)
from sweeplab.train.run import Run
from sweeplab.train.stack import Stack

# Each writer is forked from one process that has imported torch, which takes a hundred times as long as a checkpoint.
WRITERS = """
import os, sys, torch
from pathlib import Path
from sweeplab.train.checkpoint import write_checkpoint
for _ in sys.stdin:
    if writer := os.fork():
        print(os.waitpid(writer, 0)[1], flush=True)
        continue
    print(os.getpid(), flush=True)
    number = 0
    while True:
        number += 1
        tensors = {"a": torch.full((300_000,), float(number)), "b": torch.full((7, 3), float(number))}
        write_checkpoint(Path(sys.argv[1]), "model", tensors, {"number": number})
"""


def test_round_trip(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 4), "b": torch.arange(5).float()}
    write_checkpoint(tmp_path, "model", tensors, {"iteration": 7})
    found, facts = read_checkpoint(tmp_path, "model")
    assert facts == {"iteration": 7}
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_the_old_tensors_go_when_new_ones_are_in_place(tmp_path: Path) -> None:
    for number in range(3):
        write_checkpoint(tmp_path, "model", {"a": torch.full((4,), float(number))}, {})
    assert len(list(tmp_path.glob("*.safetensors"))) == 1
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("position", [5, -5])
def test_a_flipped_bit_is_noticed(position: int, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "model", {"a": torch.randn(100)}, {})
    (file,) = tmp_path.glob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[position] ^= 1
    file.write_bytes(content)
    with pytest.raises(DamagedCheckpoint, match="hash"):
        read_checkpoint(tmp_path, "model")


def test_missing_tensors_are_damage_and_no_checkpoint_is_none(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_checkpoint(tmp_path, "model")
    write_checkpoint(tmp_path, "model", {"a": torch.randn(100)}, {})
    next(tmp_path.glob("*.safetensors")).unlink()
    with pytest.raises(DamagedCheckpoint):
        read_checkpoint(tmp_path, "model")


@pytest.mark.faults
def test_twenty_kills_while_writing_leave_a_whole_checkpoint(tmp_path: Path) -> None:
    numbers = []
    with subprocess.Popen(
        [sys.executable, "-c", WRITERS, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        for _ in range(20):
            process.stdin.write("another\n")
            writer = int(process.stdout.readline())
            time.sleep(0.05 + random.random() * 0.2)
            os.kill(writer, signal.SIGKILL)
            assert int(process.stdout.readline()) == signal.SIGKILL, "it was writing until it was killed"
            tensors, facts = read_checkpoint(tmp_path, "model")
            assert (tensors["a"] == facts["number"]).all()
            assert (tensors["b"] == facts["number"]).all()
            numbers.append(facts["number"])
    assert max(numbers) > 1


def test_a_snapshot_that_cannot_be_trusted_is_none(values_of, tokens, tmp_path: Path) -> None:
    stack = Stack(values_of(), tokens, tokens)
    stack.admit(Run("run", values_of()))
    stack.advance()
    assert read_snapshot(tmp_path) is None
    write_snapshot(tmp_path, stack.snapshot("run"))
    found = read_snapshot(tmp_path)
    assert found is not None
    assert found.numbers == stack.snapshot("run").numbers
    next(tmp_path.glob("*.safetensors")).write_bytes(b"")
    assert read_snapshot(tmp_path) is None
    remove_snapshot(tmp_path)
    assert list(tmp_path.iterdir()) == []
