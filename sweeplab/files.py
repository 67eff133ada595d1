"""How a file that must be whole is written, how SQLite opens one, and where what can be made again is kept."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path


def cache_folder() -> Path:
    """Return `$SWEEPLAB_CACHE`, or else sweeplab's folder in the user's own cache."""
    if named := os.environ.get("SWEEPLAB_CACHE"):
        return Path(named).expanduser().absolute()
    from platformdirs import user_cache_path

    return user_cache_path("sweeplab")


_PLAIN_PATH = re.compile(r"[\w/.-]*", re.ASCII)  # in which a URL escapes nothing


def machine() -> str:
    """Return what tells this machine from others: containers of one machine have it in common."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text().strip() if boot.exists() else platform.node()


def database_url(file: Path) -> str:
    """Return SQLAlchemy's URL of an SQLite file, whatever its path has in it."""
    if _PLAIN_PATH.fullmatch(str(file)):
        return f"sqlite:///{file}"
    from sqlalchemy import URL  # slow to import

    url = URL.create("sqlite", database=str(file))
    if not url.render_as_string().endswith(f"/{file}"):
        # Of sqlite:/// MLflow takes the path as it stands, escapes too, and makes its folder.
        url = url.set(drivername="sqlite+pysqlite")
    return url.render_as_string()


def read_only_uri(file: Path) -> str:
    """Return SQLite's own URI that reads a database and makes nothing, neither the file nor one beside it.

    A write-ahead log has an index beside it. Where that cannot be made and there is no log, nobody writes now.
    """
    log = file.with_name(f"{file.name}-wal")
    is_still = not os.access(file.absolute().parent, os.W_OK) and not log.exists()
    return f"{file.absolute().as_uri()}?mode=ro{'&immutable=1' if is_still else ''}"


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
