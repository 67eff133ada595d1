"""How files get here, and what is in them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.files import write_whole

BETWEEN_DOCUMENTS = "\n\n"


def download(
    url: str, target: Path, sha256: str, largest_bytes: int = 2**24, timeout_seconds: float = 30
) -> Path:
    """Fetch a file once: return `target`, which has this digest, without a request if it is there already.

    Processes that ask together make one request. Nothing is written before the digest is checked.

    Raises:
        OSError: it cannot be fetched or written, is larger or slower than allowed, or has another digest.
    """
    from filelock import FileLock

    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_name(f"{target.name}.lock")):
        if not target.exists() or _sha256(target.read_bytes()) != sha256:
            content = _fetch(url, largest_bytes, timeout_seconds)
            if _sha256(content) != sha256:
                raise OSError(f"its sha256 is {_sha256(content)} and should be {sha256}")
            write_whole(target, content)
    return target


def _fetch(url: str, largest_bytes: int, timeout_seconds: float) -> bytes:
    import http.client
    import time
    import urllib.request

    deadline = time.monotonic() + timeout_seconds
    content = bytearray()
    try:
        with urllib.request.urlopen(url, timeout=timeout_seconds) as response:
            # read1 returns with whatever has come, so that a server that drips meets the deadline too.
            while piece := response.read1(2**16):
                content += piece
                if len(content) > largest_bytes:
                    raise OSError(f"it is larger than {largest_bytes:,} bytes")
                if time.monotonic() > deadline:
                    raise TimeoutError(f"it takes longer than {timeout_seconds:g} s")
    except http.client.HTTPException as error:
        raise OSError(f"the answer is not HTTP: {error!r}") from error
    return bytes(content)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def document(file: Path) -> str:
    """Read one file as it is: no translation of line ends; only a byte order mark is dropped."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise BadInput(f"cannot read {file}: {error.strerror}") from error
    if (place := content.find(b"\0")) >= 0:
        raise BadInput(f"{file} is not a text: byte {place} is 0")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{file} is not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}"
        ) from error


def joined(files: Sequence[Path]) -> str:
    """Return the texts of all files, each a document."""
    return BETWEEN_DOCUMENTS.join(document(file) for file in files)


def joined_readable(files: Sequence[Path]) -> str:
    """Return the texts of the files that are text, each a document."""
    texts = []
    for file in files:
        try:
            texts.append(document(file))
        except BadInput:  # a distribution may ship a file in another encoding
            continue
    return BETWEEN_DOCUMENTS.join(texts)


def user_files(path: str | None, corpus: str = "text", suffix: str = ".txt") -> list[Path]:
    """Return the files at a path or glob.

    Raises:
        BadInput: there are none.
    """
    if path is None:
        raise BadInput(f"corpus {corpus} needs a path: a file, or a glob such as notes/**/*{suffix}")
    given = Path(path)
    if given.is_dir():
        raise BadInput(f"{path} is a folder; name its files, such as {given / '**' / f'*{suffix}'}")
    if given.is_file():
        return [given.resolve()]
    import glob

    # Not Path.glob: that one descends into hidden folders, .git among them.
    found = sorted(match for match in glob.glob(path, recursive=True) if Path(match).is_file())  # noqa: PTH207
    if not found:
        beside = [each.name for each in given.parent.glob("*") if each.is_file()]
        raise BadInput(Problem(f"no file is at {path}", nearest=nearest(given.name, beside)))
    return [Path(match).absolute() for match in found]
