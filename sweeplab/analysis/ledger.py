"""The ledger's file: append-only JSON lines, each chained by hash to all lines before it.

An entry holds the sha256 of the entry before it and its own, over its canonical JSON. So a changed byte and a removed,
moved or inserted line are detected. Lines removed from the end are detected by the file beside it, `<name>.head`, with
the number of entries and the sha256 of the last one: publishing that line, for example in git, also proves that the
whole file was not rewritten.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sweeplab.errors import BadInput, Problem
from sweeplab.files import make_folder, opened, read_bytes, sync_folder, write_whole
from sweeplab.formatting import several

FILE_NAME = "ledger.jsonl"
VERSION = 1  # of the format of a forecast
FORECAST, SCORED = "forecast", "scored"  # what an entry holds
FIELDS = {"number", "sealed", "previous", "sha256"}


@dataclass(frozen=True)
class LedgerEntry:
    """One line of the ledger: a sealed forecast, or a score of an earlier one; `sealed` is the time in UTC."""

    number: int
    sealed: datetime
    previous: str
    forecast: dict[str, Any]
    sha256: str
    scored: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Chain:
    """A ledger whose chain is intact; `has_head` says whether its head file confirms its end too."""

    path: Path
    entries: tuple[LedgerEntry, ...]
    has_head: bool

    @property
    def forecasts(self) -> tuple[LedgerEntry, ...]:
        """Return the sealed forecasts."""
        return tuple(entry for entry in self.entries if entry.forecast)

    @property
    def scores(self) -> Mapping[int, Sequence[LedgerEntry]]:
        """Return the recorded scores by the number of their forecast, the first one first."""
        scores: dict[int, list[LedgerEntry]] = {}
        for entry in self.entries:
            if entry.scored:
                scores.setdefault(entry.scored["number"], []).append(entry)
        return scores

    @property
    def head(self) -> str:
        """Return the sha256 of the last entry, which covers the whole ledger."""
        return _last_digest(self.entries)


def read_chain(path: Path) -> Chain:
    """Return a ledger, checked from its first line to its last.

    Raises:
        BadInput: there is none, it cannot be read, or its chain is broken: which line, and what is wrong.
    """
    if not path.exists() and not _head_file(path).exists():
        raise BadInput(f"no ledger at {path}; `sweeplab laws forecast` begins one")
    _check_file(path)
    try:
        is_torn = path.exists() and read_bytes(path)[-1:] not in (b"", b"\n")
        with _lock(path) if is_torn else nullcontext():  # it may be being written right now
            return _read(path)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror or error}") from error


def append(
    path: Path, contents: Sequence[Mapping[str, Any]], kind: str = FORECAST
) -> tuple[LedgerEntry, ...]:
    """Append forecasts, or scores, of plain finite values, with the current time; all are on disk on return.

    Raises:
        BadInput: the ledger's chain is broken, or it cannot be written.
    """
    _check_file(path)
    try:
        make_folder(path.parent)
        with _lock(path):
            chain = _read(path)
            entries = list(chain.entries)
            lines = b""
            for fields in contents:
                content = {
                    "number": len(entries) + 1,
                    "sealed": datetime.now(UTC).isoformat(timespec="microseconds"),
                    "previous": _last_digest(entries),
                    kind: dict(fields),
                }
                content["sha256"] = _digest(content)
                entries.append(_entry(content))
                lines += canonical(content) + b"\n"
            is_new = not path.exists()
            with opened(path, "ab") as file:
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
            if is_new:
                sync_folder(path.parent)
            head = {"entries": len(entries), "sha256": entries[-1].sha256}
            write_whole(_head_file(path), canonical(head) + b"\n")
    except OSError as error:
        raise BadInput(f"{path}: cannot be written: {error.strerror or error}") from error
    return tuple(entries[len(chain.entries) :])


def _check_file(path: Path) -> None:
    if path.exists() and not path.is_file():
        raise BadInput(Problem("is no file", "the name of a ledger file, or of a new one", file=path))


def canonical(content: Any) -> bytes:
    """Return plain values as canonical JSON: sorted keys, no spaces, ASCII."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _read(path: Path) -> Chain:
    # The head first: it is written after its lines.
    head = _head(path)
    *lines, tail = read_bytes(path).split(b"\n") if path.exists() else [b""]
    entries: list[LedgerEntry] = []
    for number, line in enumerate(lines, start=1):
        content = _checked(line, entries)
        if isinstance(content, str):
            raise BadInput(f"{path}: line {number} {content}; nothing in a broken ledger counts")
        entries.append(content)
    if tail:
        _refuse_torn(path, tail, entries, head)
    if not head:
        return Chain(path, tuple(entries), has_head=False)
    count, digest = head
    wrong = ""
    if count > len(entries):
        gone = f"{count - len(entries)} of {several(count, 'entry')}"
        wrong = f"{gone} are missing from its end, after line {len(entries)}"
    elif entries[count - 1].sha256 != digest:
        wrong = f"line {count} is not the entry that was sealed"
    if wrong:
        raise BadInput(f"{path}: {wrong}, according to {_head_file(path).name}")
    return Chain(path, tuple(entries), has_head=True)


def _checked(line: bytes, before: Sequence[LedgerEntry]) -> LedgerEntry | str:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return "is not JSON: it was changed"
    if not isinstance(content, dict) or content.keys() - {FORECAST, SCORED} != FIELDS or len(content) != 5:
        return "is not an entry of a ledger"
    try:
        if content["sha256"] != _digest(content):
            return "was changed: its sha256 is not that of its content"
        if canonical(content) != line:
            return "was changed: the same content is written in other bytes"
        entry = _entry(content)
    except (ValueError, TypeError):
        return "is not an entry of a ledger"
    if entry.previous != _last_digest(before) or entry.number != len(before) + 1:
        expected = "begin a ledger"
        if before:
            expected = f"follow entry {len(before)}"
        return f"is entry {entry.number} and does not {expected}: lines were removed, moved or inserted"
    return entry


def _refuse_torn(
    path: Path, tail: bytes, before: Sequence[LedgerEntry], head: tuple[int, str] | None
) -> None:
    line = f"{path}: line {len(before) + 1}"
    if head and head[0] > len(before):
        raise BadInput(f"{line} was changed: it is cut off, and was whole when it was sealed")
    if isinstance(_checked(tail, before), LedgerEntry):
        raise BadInput(f"{line} lacks only the newline at its end; to mend it: printf '\\n' >> {path}")
    remove = f"truncate -s {path.stat().st_size - len(tail)} {path}"
    cut = f"is cut off after {several(len(tail), 'byte')}, as after a kill while it was written"
    raise BadInput(f"{line} {cut}; it was never sealed; to remove it: {remove}")


def _head(path: Path) -> tuple[int, str] | None:
    file = _head_file(path)
    if not file.exists():
        return None
    try:
        content = json.loads(read_bytes(file))
        count = int(content["entries"])
        if count < 1:
            raise ValueError(count)
        return count, str(content["sha256"])
    except (ValueError, TypeError, KeyError) as error:
        raise BadInput(f"{file}: was changed: it is not the head of a ledger") from error


def _entry(content: Mapping[str, Any]) -> LedgerEntry:
    sealed = datetime.fromisoformat(content["sealed"])
    forecast, scored = content.get(FORECAST, {}), content.get(SCORED, {})
    if sealed.tzinfo is None or not isinstance(forecast, dict) or not isinstance(scored, dict):
        raise ValueError("no entry")
    return LedgerEntry(content["number"], sealed, content["previous"], forecast, content["sha256"], scored)


def _digest(content: Mapping[str, Any]) -> str:
    fields = {name: value for name, value in content.items() if name != "sha256"}
    return hashlib.sha256(canonical(fields)).hexdigest()


def _last_digest(entries: Sequence[LedgerEntry]) -> str:
    if entries:
        return entries[-1].sha256
    return "0" * 64


def _head_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.head")


def _lock(path: Path) -> AbstractContextManager[object]:
    from filelock import FileLock

    return FileLock(f"{path}.lock", timeout=60)
