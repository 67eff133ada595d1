"""A disk, or a person's share of it, without a byte left, and a working folder that is gone: how they are told."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from sweeplab.errors import TrackingUnavailable
from sweeplab.files import cache_folder
from sweeplab.formatting import bytes_in_words

TRASH = "trash"  # the folder of a lab with its removed studies
_FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "your quota of the disk is used up"}
_SQLITE_FULL = "database or disk is full"  # in the message of any library above SQLite


def existing(path: Path) -> Path:
    """Return a path, or the nearest folder above it that exists."""
    # Path.exists raises where a name is too long.
    return next(place for place in (path, *path.parents) if os.path.exists(place))  # noqa: PTH110


def free_bytes(path: Path) -> int:
    """Return the free space of the disk that a path is on, or will be."""
    return shutil.disk_usage(existing(path)).free


def full_disk(error: BaseException, labs: Sequence[Path]) -> str | None:
    """Say that the disk of one of these labs is full and what may be deleted; None if an error has another cause."""
    if not labs:
        return None
    lab = min(labs, key=free_bytes)
    for cause in _causes(error):
        place = lab
        number = errno.ENOSPC if _SQLITE_FULL in str(cause) else None
        if isinstance(cause, OSError) and cause.errno in _FULL:
            number, place = cause.errno, Path(os.fsdecode(cause.filename or lab))
        if number is not None:
            if not place.is_absolute():  # the name of a stream
                return None
            free = f", {bytes_in_words(free_bytes(place))} free" * (number == errno.ENOSPC)
            return f"{place}: {_FULL[number]}{free}; {to_delete(lab)}"
    return None


def folder_gone(error: BaseException) -> str | None:
    """Say that the working folder was deleted, if an error may come from that."""
    if not any(isinstance(cause, FileNotFoundError | TrackingUnavailable) for cause in _causes(error)):
        return None
    try:
        Path.cwd()
    except FileNotFoundError:
        return "the folder in which this command was started no longer exists; start it in another"
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def to_delete(lab: Path) -> str:
    """Say which of sweeplab's files on a lab's disk nothing needs."""
    device = existing(lab).stat().st_dev
    spare = []
    for folder in (lab / TRASH, cache_folder()):
        if folder.is_dir() and folder.stat().st_dev == device:
            size = sum(file.lstat().st_size for file in folder.rglob("*"))
            spare.append(f"{folder} ({bytes_in_words(size)})")
    if spare:
        return f"may be deleted: {', '.join(spare)}"
    return "free some space on it"
