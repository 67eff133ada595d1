"""The ledger: forecasts and their outcomes, one JSON line each, with the sha256 of the line before.

A changed line has not the sha256 that it says, and a removed, moved or inserted one does not follow the line before. A
ledger that was written anew, or has lost its end, is told from the true one by whoever noted its last sha256.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock

from sweeplab.errors import BadInput, Problem
from sweeplab.files import make_folder, opened, read_bytes, sync_folder
from sweeplab.formatting import several

FILE_NAME = "ledger.jsonl"
FORECAST, SCORED = "forecast", "scored"  # what a line holds
_BEFORE_ALL = "0" * 64


@dataclass(frozen=True)
class LedgerEntry:
    """A line of the ledger: a sealed forecast, or the outcome of an earlier one; `sealed` is the time in UTC."""

    number: int
    sealed: datetime
    previous: str
    sha256: str
    forecast: dict[str, Any] = field(default_factory=dict)
    scored: dict[str, Any] = field(default_factory=dict)


def read_ledger(path: Path) -> tuple[LedgerEntry, ...]:
    """Return the lines of a ledger, checked from the first to the last.

    Raises:
        BadInput: there is none, it cannot be read, or a line was changed, removed, moved or inserted: which one.
    """
    if not path.exists():
        raise BadInput(f"no ledger at {path}; `sweeplab laws predict --seal` begins one")
    _check_file(path)
    try:
        text = read_bytes(path)
        if not text.endswith(b"\n"):  # it may be being written right now
            with _lock(path):
                text = read_bytes(path)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror or error}") from error
    return tuple(_entries(path, text))


def append(
    path: Path, contents: Sequence[Mapping[str, Any]], kind: str = FORECAST
) -> tuple[LedgerEntry, ...]:
    """Append forecasts, or outcomes, of plain finite values, with the current time; all are on disk on return.

    Raises:
        BadInput: the ledger is broken, or it cannot be written.
    """
    _check_file(path)
    try:
        make_folder(path.parent)
        with _lock(path):
            entries = _entries(path, read_bytes(path)) if path.exists() else []
            lines = b""
            for fields in contents:
                line = {
                    "number": len(entries) + 1,
                    "sealed": datetime.now(UTC).isoformat(timespec="microseconds"),
                    "previous": entries[-1].sha256 if entries else _BEFORE_ALL,
                    kind: dict(fields),
                }
                line["sha256"] = _digest(line)
                entries.append(_entry(line))
                lines += canonical(line) + b"\n"
            with opened(path, "ab") as file:
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
            sync_folder(path.parent)
    except OSError as error:
        raise BadInput(f"{path}: cannot be written: {error.strerror or error}") from error
    return tuple(entries[-len(contents) :])


def canonical(content: Any) -> bytes:
    """Return plain values as canonical JSON: sorted keys, no spaces, ASCII."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _entries(path: Path, text: bytes) -> list[LedgerEntry]:
    *lines, tail = text.split(b"\n")
    entries = []
    previous = _BEFORE_ALL
    for number, line in enumerate(lines, start=1):
        try:
            content = json.loads(line)
            entry = _entry(content)
            is_whole = canonical(content) == line and entry.sha256 == _digest(content)
        except (ValueError, TypeError, KeyError, RecursionError):
            raise BadInput(
                f"{path}: line {number} is no line of a ledger: it was changed"
            ) from None
        if not is_whole:
            raise BadInput(
                f"{path}: line {number} was changed: its sha256 is not that of its content"
            )
        if entry.previous != previous or entry.number != number:
            what = f"line {number} is entry {entry.number} and does not follow the line before"
            raise BadInput(f"{path}: {what}: lines were removed, moved or inserted")
        entries.append(entry)
        previous = entry.sha256
    if tail:
        cut = f"line {len(lines) + 1} is cut off after {several(len(tail), 'byte')}, as after a kill, and not sealed"
        raise BadInput(
            f"{path}: {cut}; to remove it: truncate -s {len(text) - len(tail)} {path}"
        )
    return entries


def _entry(content: Mapping[str, Any]) -> LedgerEntry:
    """Return a line's content as an entry; a wrong field raises ValueError or TypeError."""
    entry = LedgerEntry(**{**content, "sealed": datetime.fromisoformat(content["sealed"])})
    if entry.sealed.tzinfo is None or not isinstance(entry.forecast or entry.scored, dict):
        raise ValueError("no time zone, or no forecast")
    return entry


def _digest(content: Mapping[str, Any]) -> str:
    fields = {name: value for name, value in content.items() if name != "sha256"}
    return hashlib.sha256(canonical(fields)).hexdigest()


def _check_file(path: Path) -> None:
    if path.exists() and not path.is_file():
        raise BadInput(
            Problem("is no file", "the name of a ledger file, or of a new one", file=path)
        )


def _lock(path: Path) -> FileLock:
    return FileLock(f"{path}.lock", timeout=60)
