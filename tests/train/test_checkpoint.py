"""A checkpoint is the old one or the new one, whatever happens; and a damaged one is known for it."""

import json
import os
import stat

import pytest
import torch
from trained import begun

from sweeplab.train import checkpoint
from sweeplab.train.checkpoint import (
    DamagedCheckpoint,
    SnapshotWriter,
    damaged_snapshots,
    read_checkpoint,
    read_snapshot,
    remove_snapshots,
    write_checkpoint,
    write_snapshot,
)
from sweeplab.train.member import Snapshot


def test_the_old_tensors_go_when_new_ones_are_in_place(tmp_path):
    for number in range(8):  # their names, by digests, come in any order
        write_checkpoint(tmp_path, "model", {"a": torch.full((4,), float(number))}, {})
        (file,) = tmp_path.glob("*.safetensors")
        assert file.match("model-????????????.safetensors")
        tensors, facts = read_checkpoint(tmp_path, "model")
        assert tensors["a"].tolist() == [number] * 4 and facts == {}
    assert not list(tmp_path.glob(".*"))


def test_the_old_goes_only_when_the_new_is_on_the_disk(tmp_path, monkeypatch):
    there, asked, sync = [], [], os.fsync
    monkeypatch.setattr(checkpoint, "bytearray", asked.append, raising=False)

    def noting(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            there.append(len(list(tmp_path.rglob("*.safetensors"))))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    for number in range(4):
        write_snapshot(tmp_path, at(number))
    for number in range(2):
        write_checkpoint(tmp_path / "best", "model", at(number).rows, {})
    assert there == [1, 2, 3, 3, 2 + 1, 2 + 2]
    assert asked == [3 * (4 + 1) * 4] * 6, "the memory that each takes"


def damages(file):
    """Flip every bit of a file, cut it at every length, take it away; yield what was done, and mend it again."""
    whole = file.read_bytes()
    for position in range(8 * len(whole)):
        content = bytearray(whole)
        content[position // 8] ^= 1 << position % 8
        file.write_bytes(content)
        yield f"bit {position}"
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        yield f"the first {length} bytes"
    file.write_bytes(whole + b"\0")
    yield "a byte more"
    file.unlink()
    yield "gone"
    file.write_bytes(whole)


def at(iteration):
    rows = {"weights": torch.arange(4.0) + iteration, "loss": torch.tensor([0.1])}
    points = [{"iteration": iteration, "train_loss": 0.1 + 0.2}]
    progress = {"first": float("nan"), "best": float("inf"), "n_bad": 3}
    return Snapshot(rows, {"iteration": iteration, "points": points, "progress": progress})


def same(found, written):
    return (
        found is not None
        and found.rows.keys() == written.rows.keys()
        and all(torch.equal(row, written.rows[name]) for name, row in found.rows.items())
        and json.dumps(found.numbers) == json.dumps(written.numbers)  # a NaN equals itself so
    )


def latest(folder):
    return max(
        folder.glob("state-*.safetensors"), key=lambda file: int(file.name.split("-")[1])
    )


@pytest.mark.slow
@pytest.mark.parametrize("iterations", [(5,), (5, 10, 20)])
def test_whatever_is_damaged_of_a_snapshot_the_one_before_it_is_read(iterations, tmp_path):
    for iteration in iterations:
        write_snapshot(tmp_path, at(iteration))
    assert len(list(tmp_path.iterdir())) == min(2, len(iterations))
    for what in damages(latest(tmp_path)):
        found = read_snapshot(tmp_path)
        assert same(found, at(10)) if len(iterations) > 1 else found is None, what
    assert same(read_snapshot(tmp_path), at(iterations[-1]))


def test_the_last_snapshot_stays_of_a_run_that_may_continue(tmp_path):
    for iteration in (10, 20):
        write_snapshot(tmp_path, at(iteration))
    remove_snapshots(tmp_path, but_last=True)
    assert same(read_snapshot(tmp_path), at(20)) and len(list(tmp_path.glob("state*"))) == 1
    remove_snapshots(tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_follows_a_damaged_snapshot_does_not_take_the_good_ones_place(tmp_path):
    for iteration in (10, 20):
        write_snapshot(tmp_path, at(iteration))
    latest(tmp_path).write_bytes(b"")
    assert damaged_snapshots(tmp_path) == [latest(tmp_path)]
    write_snapshot(tmp_path, at(15))  # as the run went on from 10
    assert same(read_snapshot(tmp_path), at(15))
    latest(tmp_path).write_bytes(b"")
    assert same(read_snapshot(tmp_path), at(10))
    write_snapshot(tmp_path, at(20))
    assert same(read_snapshot(tmp_path), at(20))


@pytest.mark.parametrize("pattern", ["*.json", "*.safetensors"])
def test_whatever_is_damaged_of_a_checkpoint_is_noticed(pattern, tmp_path):
    tensors = {"a": torch.arange(4.0)}
    facts = {
        "values": {"n_layer": 2, "betas": (0.9, 0.95)},
        "val_loss": 0.1 + 0.2,
        "iteration": 300,
    }
    write_checkpoint(tmp_path, "model", tensors, facts)
    (file,) = tmp_path.glob(pattern)
    written = json.dumps(facts)
    for what in damages(file):
        try:
            found, said = read_checkpoint(tmp_path, "model")
        except DamagedCheckpoint as error:
            assert str(tmp_path) in str(error) and "artifact `checkpoint`" in str(error)
        except FileNotFoundError:
            assert (pattern, what) == ("*.json", "gone")
        else:  # white space between two facts is none of them
            assert pattern == "*.json" and json.dumps(said) == written, what
            assert torch.equal(found["a"], tensors["a"])


def test_a_snapshot_written_beside_the_training_is_of_the_moment_it_was_taken(
    values_of, tokens, tmp_path
):
    stack, writer = begun(values_of(), tokens), SnapshotWriter()
    stack.advance()
    stack.advance(iter([False] * 12 + [True]).__next__)
    taken = stack.snapshot("run")
    said = json.dumps(taken.numbers)
    assert taken.numbers["points"], "a part of the curve that no evaluation has told yet"
    stack.advance()
    assert json.dumps(taken.numbers) == said
    writer.write(tmp_path, taken)
    writer.write(tmp_path, stack.snapshot("run"))
    assert writer.wait(tmp_path) and not writer.wait(tmp_path)
    assert same(read_snapshot(tmp_path), stack.snapshot("run"))
    latest(tmp_path).unlink()
    assert same(read_snapshot(tmp_path), taken)
    writer.close()
    remove_snapshots(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_snapshot_that_could_not_be_written_is_told_to_who_asks_next(tmp_path):
    (tmp_path / "file").touch()
    writer = SnapshotWriter()
    writer.write(tmp_path / "file" / "run", at(5))
    writer.write(tmp_path / "other", at(5))
    with pytest.raises(NotADirectoryError):
        writer.write(tmp_path / "file" / "run", at(10))
    writer.wait(tmp_path / "file" / "run")
    writer.close()
    assert same(read_snapshot(tmp_path / "other"), at(5))
