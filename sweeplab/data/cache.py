"""The folder where downloads and tokens are kept, and the one way in which files get into it."""

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

    The caller holds the lock that covers `target`: the temporary name is always the same one, so that
    what a killed process leaves is written over and not gathered.

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
