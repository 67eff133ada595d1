"""How a file that must be whole is written, and where what can be made again is kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return `$SWEEPLAB_CACHE`, or else sweeplab's folder in the user's own cache."""
    if named := os.environ.get("SWEEPLAB_CACHE"):
        return Path(named).expanduser().absolute()
    from platformdirs import user_cache_path

    return user_cache_path("sweeplab")


def write_whole(target: Path, content: bytes) -> None:
    """Write a file so that a kill at any moment leaves what was there before, or all of `content`.

    One process at a time writes `target`, by a lock or a lease of the caller's: the temporary name follows
    from the target's, so that what a killed process leaves is written over by the next one and not gathered.

    Raises:
        OSError: there is no room, or the folder cannot be written; nothing is left behind.
    """
    temporary = target.with_name(f"{target.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_new(target: Path, content: bytes) -> bool:
    """Write a file whole unless there is one; say whether it was written, and by nobody else at the same time.

    Raises:
        OSError: there is no room, or the folder cannot be written; nothing is left behind.
    """
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        write_whole(temporary, content)
        os.link(temporary, target)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


def sync_folder(folder: Path) -> None:
    """Wait until what a folder holds is on the disk, the names of new files too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
