"""Files: write one so that it is always complete, read one that grows, open one with SQLite; the cache folder."""

from __future__ import annotations

import errno
import os
import platform
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import BinaryIO, Literal


def cache_folder() -> Path:
    """Return `$SWEEPLAB_CACHE`, or sweeplab's folder in the user's cache."""
    if named := os.environ.get("SWEEPLAB_CACHE"):
        return Path(named).expanduser().absolute()
    from platformdirs import user_cache_path

    return user_cache_path("sweeplab")


_BOOT = Path("/proc/sys/kernel/random/boot_id")
_TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp")  # what follows the target's name
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


def write_whole(target: Path, content: bytes, mode: int = 0o666) -> None:
    """Write a file so that a kill at any moment leaves the old content or all of `content`.

    The caller makes sure, by a lock or a lease, that one process at a time writes `target`: what killed ones left is
    removed first. A link in the place of `target` is replaced, not followed.

    Raises:
        OSError: there is no room, or the folder cannot be written; nothing is left behind.
    """
    _remove_left(target)
    with _temporary(target, content, mode) as temporary:
        temporary.replace(target)


def write_new(target: Path, content: bytes) -> bool:
    """Write a complete file unless it exists; return whether this call, and no concurrent one, wrote it.

    Raises:
        OSError: there is no room, or the folder cannot be written; nothing is left behind.
    """
    with _temporary(target, content, 0o666) as temporary:
        try:
            os.link(temporary, target)
            is_new = True
        except (
            FileExistsError,
            FileNotFoundError,
        ):  # not found: removed by a process that has written the target
            if not os.path.lexists(target):
                raise
            is_new = False
    _remove_left(target)
    return is_new


def opened(file: Path, mode: Literal["ab", "ab+", "wb"]) -> BinaryIO:
    """Open a file to append to it or to write in its place.

    Raises:
        OSError: it is a link, which could lead to any file, or it cannot be written.
    """
    try:
        return open(file, mode, opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o666))
    except OSError as error:
        if error.errno == errno.ELOOP:
            error.strerror = "it is a symbolic link, which is not followed"
        raise


@contextmanager
def _temporary(target: Path, content: bytes, mode: int) -> Iterator[Path]:
    """Write a file beside `target`, of a name that nobody can guess and plant a link at; remove it at the end."""
    temporary = target.with_name(f"{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _remove_left(target: Path) -> None:
    """Remove the temporary files of `target` that killed processes have left."""
    for file in target.parent.iterdir():
        if file.name.startswith(target.name) and _TEMPORARY.fullmatch(file.name, len(target.name)):
            file.unlink(missing_ok=True)


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
