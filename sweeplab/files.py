"""Files: write one so that it is always complete, read one that grows, open one with SQLite; caches and full disks."""

from __future__ import annotations

import atexit
import errno
import fcntl
import grp
import os
import platform
import pwd
import re
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import BinaryIO, Literal

from sweeplab.errors import BadInput

PRIVATE = 0o700  # the mode of a folder that nobody else may enter
_NOBODY = 65534  # as whom a container shows the owner of the machine's folders
CACHE = "SWEEPLAB_CACHE"  # the environment variable that names another cache


def cache_folder(part: str = "") -> Path:
    """Return `$SWEEPLAB_CACHE`, or sweeplab's folder in the user's cache, or a folder in it.

    What lies there is believed, and some of it is loaded as code. So where another user may have written it, a folder
    that nobody else may enter takes its place, in this process and those that it starts, and a line says so.
    """
    from platformdirs import user_cache_path

    usual = user_cache_path("sweeplab")
    named = Path(os.environ.get(CACHE) or usual).expanduser().absolute()
    why = unsafe(named, part)
    if not why:
        return named / part
    if named == usual or unsafe(usual, part):
        usual = Path(tempfile.mkdtemp(prefix="sweeplab-"))
        atexit.register(shutil.rmtree, usual, ignore_errors=True)
    os.environ[CACHE] = str(usual)
    print(f"the cache {named} is not read: {why}; {usual} is used", file=sys.stderr)
    return usual / part


@cache
def unsafe(folder: Path, part: str = "") -> str:
    """Say who else may have written what is in a folder, or could put another in its place; empty if nobody.

    The folder is made if there is none. Root, and the group that has a user's own name, are no others.
    """
    with suppress(OSError):
        make_folder(make_folder(folder, PRIVATE) / part, PRIVATE)
    place = existing(folder / part).resolve()
    for above in place.parents:
        state = above.stat()
        if state.st_uid not in (os.getuid(), 0, _NOBODY):
            return f"{above} belongs to another user"
        if _others_write(state) and not state.st_mode & stat.S_ISVTX:
            return f"others may write {above}"
    for inside in (place, *(place.rglob("*") if part else place.iterdir())):
        state = inside.lstat()
        if state.st_uid not in (os.getuid(), 0):
            return f"{inside} belongs to another user"
        if _others_write(state) and not stat.S_ISLNK(state.st_mode):
            return f"others may write {inside}"
    return ""


def _others_write(state: os.stat_result) -> bool:
    with suppress(KeyError):  # a number without a name
        if grp.getgrgid(state.st_gid).gr_name == pwd.getpwuid(os.getuid()).pw_name:
            return bool(state.st_mode & stat.S_IWOTH)
    return bool(state.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


# The labs that this process uses: they may come from somebody else, with links in the places of their folders.
_labs: set[Path] = set()


def keep_inside(lab: Path) -> None:
    """Write files of a lab, from now on, only where no link leads out of it."""
    _labs.add(lab.absolute())


def labs_in_use() -> list[Path]:
    """Return the labs that this process uses."""
    return sorted(_labs)


def make_folder(folder: Path, mode: int = 0o777) -> Path:
    """Make a folder, with those above it, unless it exists.

    Raises:
        BadInput: a link leads it out of its lab.
        OSError: it cannot be made.
    """
    _check_inside(folder)
    folder.mkdir(mode, parents=True, exist_ok=True)
    return folder


def _check_inside(place: Path) -> None:
    for lab in _labs.intersection(place.absolute().parents):
        if not place.resolve().is_relative_to(lab.resolve()):
            what = f"{place}: a symbolic link leads out of {lab}, to {place.resolve()}, and is not followed"
            raise BadInput(what)


# Of a file that is read as a whole, but for weights: of a thousand times what studies write.
MOST_BYTES = 2**28
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp")  # what follows the target's name
_PLAIN_PATH = re.compile(r"[\w/.-]*", re.ASCII)  # a path that needs no escapes in a URL


def shipped(name: str) -> Path:
    """Return the folder of the files that a user copies: in the installed package, or beside it in the repository."""
    package = Path(__file__).parent
    return package / name if (package / name).is_dir() else package.parent / name


def machine() -> str:
    """Return an id of this machine since its last boot; all containers of a machine share it."""
    if _BOOT.exists():
        return _BOOT.read_text().strip()
    return platform.node()


@cache
def process_space() -> tuple[str, str]:
    """Return what tells this kernel's numbers of processes from those of another kernel or container."""
    with suppress(OSError):
        return machine(), str(Path("/proc/self/ns/pid").readlink())
    return "", ""


def database_url(file: Path) -> str:
    """Return SQLAlchemy's URL of an SQLite file, for any path.

    Raises:
        OSError: what is there is no file.
    """
    _check_database(file)
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

    Raises:
        OSError: what is there is no file.
    """
    _check_database(file)
    log = file.with_name(f"{file.name}-wal")
    uri = f"{file.absolute().as_uri()}?mode=ro"
    if not os.access(file.absolute().parent, os.W_OK) and not log.exists():
        return f"{uri}&immutable=1"
    return uri


def _check_database(file: Path) -> None:
    """Make sure that SQLite opens no pipe, for which it would wait."""
    for name in (file.name, *(f"{file.name}-{kind}" for kind in ("wal", "shm", "journal"))):
        with suppress(FileNotFoundError, NotADirectoryError):
            if not stat.S_ISREG(file.with_name(name).stat().st_mode):
                raise OSError(errno.EINVAL, "is no file", str(file.with_name(name)))


def write_whole(
    target: Path, content: bytes | Iterable[bytes | memoryview], mode: int = 0o666
) -> None:
    """Write a file so that a kill at any moment leaves the old content or all of `content`, which may come in parts.

    Of processes that write at once the last one's content stays. What killed ones left is removed first. A link in the
    place of `target` is replaced, not followed.

    Raises:
        OSError: there is no room, or the folder cannot be written; nothing is left behind.
    """
    _check_inside(target.parent)
    _remove_left(target)
    with _temporary(target, content, mode) as temporary:
        temporary.replace(target)


def write_new(target: Path, content: bytes, mode: int = 0o666) -> bool:
    """Write a complete file unless it exists; return whether this call, and no concurrent one, wrote it.

    Raises:
        OSError: there is no room, or the folder cannot be written; nothing is left behind.
    """
    _check_inside(target.parent)
    with _temporary(target, content, mode) as temporary:
        is_new = True
        try:
            os.link(temporary, target)
        # Not found: removed by one that has written the target.
        except (FileExistsError, FileNotFoundError):
            if not os.path.lexists(target):
                raise
            is_new = False
    _remove_left(target)
    return is_new


def opened(file: Path, mode: Literal["rb", "ab", "ab+", "wb"]) -> BinaryIO:
    """Open an ordinary file to read it, to append to it, or to write in its place.

    Raises:
        BadInput: it would be written, and is a link, which could lead to any file.
        OSError: it cannot be opened; or it is a folder, a device or a pipe, which would be waited for.
    """
    if mode == "rb":
        return open(file, mode, opener=_ordinary)
    _check_inside(file.parent)
    try:
        return open(
            file, mode, opener=lambda name, flags: _ordinary(name, flags | os.O_NOFOLLOW)
        )
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise BadInput(f"{file} is a symbolic link, which is not followed") from error


def _ordinary(name: str, flags: int, folder: int | None = None) -> int:
    descriptor = os.open(name, flags | os.O_NONBLOCK, 0o666, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is no file", name)
    return descriptor


def read_bytes(file: Path, is_large: bool = False, start: int = 0) -> bytes:
    """Read an ordinary file, from a byte on; a large one, such as weights, may take half of the memory.

    Raises:
        OSError: `opened` raises it; or the file is too large: one with holes takes no room on the disk.
    """
    most = MOST_BYTES
    if is_large:
        import psutil

        most = psutil.virtual_memory().total // 2
    with opened(file, "rb") as stream:
        # No more than its size: reading some of the system's files, whose size is 0, has no end.
        size = os.fstat(stream.fileno()).st_size - start
        if size > most:
            raise OSError(errno.EFBIG, f"is larger than {most >> 20:,} MiB", str(file))
        stream.seek(start)
        return stream.read(max(size, 0))


def read_own(file: Path) -> str:
    """Read a text in a folder where others may write, if this user, or root, has written it.

    Raises:
        OSError: another user has made the file or its folder, or may write the file; a link is in their place.
    """
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        descriptor = _ordinary(file.name, os.O_RDONLY | os.O_NOFOLLOW, folder)
        with os.fdopen(descriptor, encoding="utf-8", errors="replace") as stream:
            state = os.fstat(descriptor)
            is_own = {state.st_uid, os.fstat(folder).st_uid} <= {os.getuid(), 0}
            if not is_own or state.st_mode & stat.S_IWOTH:
                raise PermissionError(
                    errno.EPERM, "another user may have written it", str(file)
                )
            return stream.read()
    except OSError as error:
        error.filename = str(file)
        raise
    finally:
        os.close(folder)


@contextmanager
def _temporary(
    target: Path, content: bytes | Iterable[bytes | memoryview], mode: int
) -> Iterator[Path]:
    """Write a file beside `target`, of a name that nobody can guess and plant a link at; remove it at the end."""
    while True:
        temporary = target.with_name(f"{target.name}.{secrets.token_hex(8)}.tmp")
        with open(
            temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)
        ) as file:
            # Locked while it is written, so that no other process takes it for what a killed one left.
            if not _lock(file.fileno()) or not os.fstat(file.fileno()).st_nlink:
                continue
            try:
                file.writelines((content,) if isinstance(content, bytes) else content)
                file.flush()
                os.fsync(file.fileno())
                yield temporary
            finally:
                temporary.unlink(missing_ok=True)
            return


def _lock(descriptor: int) -> bool:
    """Lock a file until it is closed; tell whether no other process has locked it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _remove_left(target: Path) -> None:
    for file in target.parent.iterdir():
        if file.name.startswith(target.name) and _TEMPORARY.fullmatch(
            file.name, len(target.name)
        ):
            try:
                descriptor = os.open(file, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW)
            except OSError:  # nobody writes it: it is a link, or another user's
                file.unlink(missing_ok=True)
                continue
            try:
                if _lock(descriptor):
                    file.unlink(missing_ok=True)
            finally:
                os.close(descriptor)


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
            text = read_bytes(self.path, start=self._offset)
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
    # /proc and its like have no bytes.
    labs = [lab for lab in labs if shutil.disk_usage(existing(lab)).total]
    if not labs:
        return None
    lab = min(labs, key=free_bytes)
    for cause in _causes(error):
        if isinstance(cause, OSError) and cause.errno in _FULL:
            place = Path(os.fsdecode(cause.filename or lab))
            if not place.is_absolute():  # the name of a stream
                return None
            return f"{place}: {_FULL[cause.errno]}; {to_delete(lab)}"
        if _SQLITE_FULL in str(cause):
            return f"{lab}: {_FULL[errno.ENOSPC]}; {to_delete(lab)}"
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def to_delete(lab: Path) -> str:
    """Say which folders of sweeplab nothing needs."""
    spare = [str(folder) for folder in (lab / TRASH, cache_folder()) if folder.is_dir()]
    if spare:
        return f"may be deleted: {', '.join(spare)}"
    return "free some space on it"
