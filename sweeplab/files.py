"""Files: write one so that it is always complete, read one that grows, open one with SQLite; the cache folder."""

from __future__ import annotations

import os
import platform
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path


def cache_folder() -> Path:
    """Return `$SWEEPLAB_CACHE`, or sweeplab's folder in the user's cache."""
    if named := os.environ.get("SWEEPLAB_CACHE"):
        return Path(named).expanduser().absolute()
    from platformdirs import user_cache_path

    return user_cache_path("sweeplab")


_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PLAIN_PATH = re.compile(r"[\w/.-]*", re.ASCII)  # a path that needs no escapes in a URL


def shipped(name: str) -> Path:
    """Return the folder of the files that a user copies: in the installed package, or beside it in the repository."""
    package = Path(__file__).parent
    folder = package / name
    return folder if folder.is_dir() else package.parent / name


def machine() -> str:
    """Return an id of this machine since its last boot; all containers of a machine share it."""
    return _BOOT.read_text().strip() if _BOOT.exists() else platform.node()


@cache
def process_space() -> tuple[str, str]:
    """Return what tells this kernel's numbers of processes from those of another kernel or container."""
    with suppress(OSError):
        return _BOOT.read_text().strip(), str(Path("/proc/self/ns/pid").readlink())
    return "", ""


def database_url(file: Path) -> str:
    """Return SQLAlchemy's URL of an SQLite file, for any path."""
    if _PLAIN_PATH.fullmatch(str(file)):
        return f"sqlite:///{file}"
    from sqlalchemy import URL  # slow to import

    url = URL.create("sqlite", database=str(file))
    if not url.render_as_string().endswith(f"/{file}"):
        # MLflow would take a path after sqlite:/// literally, with its escapes, and make its folder.
        url = url.set(drivername="sqlite+pysqlite")
    return url.render_as_string()


def read_only_uri(file: Path) -> str:
    """Return SQLite's URI that opens a database read-only and creates no file.

    A write-ahead log needs an index file beside it. If that cannot be created and there is no log, nobody is writing.
    """
    log = file.with_name(f"{file.name}-wal")
    is_still = not os.access(file.absolute().parent, os.W_OK) and not log.exists()
    return f"{file.absolute().as_uri()}?mode=ro{'&immutable=1' if is_still else ''}"


def write_whole(target: Path, content: bytes) -> None:
    """Write a file so that a kill at any moment leaves the old content or all of `content`.

    The caller makes sure, by a lock or a lease, that one process at a time writes `target`. The temporary name depends
    only on the target's, so the next process overwrites what a killed one left.

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
    """Write a complete file unless it exists; return whether this call, and no concurrent one, wrote it.

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


@dataclass
class GrowingFile:
    """A text file to which a process adds lines."""

    path: Path
    _offset: int = 0

    def new_lines(self) -> bytes:
        """Return the whole lines added since the last call; none if the file does not exist.

        A line that is still being written is left for the next call.
        """
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return b""
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole


def sync_folder(folder: Path) -> None:
    """Wait until a folder's entries, such as the names of new files, are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
