"""Checkpoints and snapshots: killing the writer never leaves a broken one, and any damage is detected.

A checkpoint is a safetensors file and a JSON file that has its name and hash; the safetensors file has the hash of the
JSON's facts. The tensors are written under a new name, then the JSON is put in place by one rename, so that a reader
finds either the old pair or the new one. A snapshot is one safetensors file with iteration and hash in its name.

This module imports torch only where it creates tensors, so that a plan can check a starting run without torch.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeplab.files import make_folder, read_bytes, sync_folder, write_whole

if TYPE_CHECKING:
    from torch import Tensor

    from sweeplab.train.member import Snapshot

SNAPSHOT = re.compile(r"state-(\d+)-([0-9a-f]{64})\.safetensors")


class DamagedCheckpoint(Exception):  # noqa: N818 - a state of a file
    """A checkpoint's tensors or facts are missing or differ from those that were written."""

    def __init__(self, file: Path, why: str) -> None:
        cure = "restore its folder from a copy, such as the artifact `checkpoint` of its run in MLflow"
        super().__init__(f"{file} is damaged: {why}; {cure}")


def write_checkpoint(
    folder: Path, name: str, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]
) -> None:
    """Write `<name>.json` with `facts` and the tensors beside it; replaces an earlier pair."""
    make_folder(folder)
    content = _saved(tensors, {"facts_sha256": _facts_digest(facts)})
    digest = hashlib.sha256(content).hexdigest()
    tensor_file = f"{name}-{digest[:12]}.safetensors"
    write_whole(folder / tensor_file, content)
    description = {"tensors": tensor_file, "sha256": digest, **facts}
    write_whole(folder / f"{name}.json", json.dumps(description, indent=1).encode())
    sync_folder(folder)
    # A killed write's temporary file among them.
    for old in folder.glob(f"{name}-*.safetensors*"):
        if old.name != tensor_file:
            old.unlink()


def read_checkpoint(folder: Path, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a pair back as tensors and facts.

    Raises:
        FileNotFoundError: there is no such checkpoint.
        DamagedCheckpoint: as `read_content` does.
    """
    from safetensors.torch import load

    content, facts = read_content(folder, name)
    return load(content), facts


def read_content(folder: Path, name: str) -> tuple[bytes, dict[str, Any]]:
    """Read a pair back as the bytes of its tensors' file and its facts.

    Raises:
        FileNotFoundError: there is no such checkpoint.
        DamagedCheckpoint: the tensors or the facts are not those that were written.
    """
    described = folder / f"{name}.json"
    try:
        facts = dict(json.loads(read_bytes(described)))
        path = folder / Path(facts.pop("tensors")).name
        digest = facts.pop("sha256")
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedCheckpoint(
            described, f"it does not describe a checkpoint ({error!r})"
        ) from None
    content = read_bytes(path, is_large=True) if path.is_file() else b""
    if hashlib.sha256(content).hexdigest() != digest:
        raise DamagedCheckpoint(path, "its hash differs from the one in its JSON")
    if _metadata(content).get("facts_sha256") != _facts_digest(facts):
        raise DamagedCheckpoint(described, "its hash differs from the one in its tensors' file")
    return content, facts


def write_snapshot(folder: Path, snapshot: Snapshot) -> None:
    """Write all that a run needs to continue; the previous snapshot is kept until the next one is on disk."""
    make_folder(folder)
    content = _saved(snapshot.rows, {"numbers": json.dumps(snapshot.numbers)})
    digest, iteration = hashlib.sha256(content).hexdigest(), snapshot.numbers["iteration"]
    name = f"state-{iteration}-{digest}.safetensors"
    write_whole(folder / name, content)
    sync_folder(folder)
    # Snapshots of later iterations were unreadable, otherwise the run would have continued from them.
    before = [file.name for at, file, _ in _snapshots(folder) if at < iteration][:1]
    for old in folder.glob("state*"):  # a killed write's temporary file among them
        if old.name not in (name, *before):
            old.unlink()


def read_snapshot(folder: Path) -> Snapshot | None:
    """Read a run's latest undamaged snapshot, or return None."""
    from safetensors.torch import load

    from sweeplab.train.member import Snapshot

    for _, content in _contents(folder):
        if content is not None:
            return Snapshot(load(content), json.loads(_metadata(content)["numbers"]))
    return None


def damaged_snapshots(folder: Path) -> list[Path]:
    """Return the damaged snapshots in a run's folder; the run continues without them."""
    return [file for file, content in _contents(folder) if content is None]


def _contents(folder: Path) -> Iterator[tuple[Path, bytes | None]]:
    """Yield the snapshots, the latest first, each with its content: None if it is damaged."""
    for _, file, digest in _snapshots(folder):
        content = b""
        with suppress(OSError):  # the disk can no longer read it
            content = read_bytes(file, is_large=True)
        is_whole = hashlib.sha256(content).hexdigest() == digest
        yield file, content if is_whole else None


def remove_snapshots(folder: Path, but_last: bool = False) -> None:
    """Remove a run's snapshots once the run has ended; with `but_last` keep the last, if it may continue."""
    last = next((file for _, file, _ in _snapshots(folder)), None) if but_last else None
    for path in folder.glob("state*"):
        if path != last:
            path.unlink(missing_ok=True)


class SnapshotWriter:
    """Writes snapshots in order on a thread beside training, at most one per folder at a time."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="snapshots")
        # Start the thread now: later there may be no memory for its stack.
        self._thread.submit(int)
        self._written: dict[Path, Future[None]] = {}

    def write(self, folder: Path, snapshot: Snapshot) -> None:
        """Start writing a snapshot, after waiting for the folder's previous one.

        Raises:
            OSError: the last one could not be written.
        """
        self.wait(folder)
        self._written[folder] = self._thread.submit(write_snapshot, folder, snapshot)

    def wait(self, *folders: Path) -> bool:
        """Wait until the snapshots of these folders are written; return whether there were any.

        Raises:
            OSError: one of them could not be written.
        """
        futures = [self._written.pop(folder) for folder in folders if folder in self._written]
        for future in futures:
            future.result()
        return bool(futures)

    def close(self) -> None:
        """Wait until all writes have ended; does not raise their errors, which `wait` does."""
        self._thread.shutdown()


def _snapshots(folder: Path) -> list[tuple[int, Path, str]]:
    snapshots = []
    for file in folder.glob("state-*-*.safetensors"):
        if match := SNAPSHOT.fullmatch(file.name):
            snapshots.append((int(match[1]), file, match[2]))
    return sorted(snapshots, reverse=True)


def _saved(tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> bytes:
    from safetensors.torch import save

    # Safetensors makes three copies and aborts the process if memory runs out; this line raises MemoryError instead.
    bytearray(3 * sum(tensor.nbytes for tensor in tensors.values()))
    content: bytes = save(
        {key: tensor.contiguous() for key, tensor in tensors.items()}, metadata
    )
    return content


def _metadata(content: bytes) -> dict[str, str]:
    # A safetensors file starts with the length of its header and the header.
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return dict(header.get("__metadata__", {}))


def _facts_digest(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()
