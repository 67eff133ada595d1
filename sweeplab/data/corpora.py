"""Where text comes from: which files a corpus is made of, and how they become one text."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sweeplab.data.cache import cache_folder
from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.files import write_whole

BETWEEN_DOCUMENTS = "\n\n"

TINYSHAKESPEARE_VARIABLE = "SWEEPLAB_TINYSHAKESPEARE"
TINYSHAKESPEARE_URL = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
)
TINYSHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"

# Of the standard library: what is not its own, what is not source, and tests, some of them broken on purpose.
SKIPPED_FOLDERS = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}


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


def _document(file: Path) -> str:
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


def _joined(files: Sequence[Path]) -> str:
    return BETWEEN_DOCUMENTS.join(_document(file) for file in files)


def _joined_readable(files: Sequence[Path]) -> str:
    texts = []
    for file in files:
        try:
            texts.append(_document(file))
        except BadInput:  # a distribution may ship a file in another encoding
            continue
    return BETWEEN_DOCUMENTS.join(texts)


def user_files(path: str | None) -> list[Path]:
    """Return the files at a path or glob.

    Raises:
        BadInput: there are none.
    """
    if path is None:
        raise BadInput("corpus text needs a path: a file, or a glob such as notes/**/*.txt")
    given = Path(path)
    if given.is_dir():
        raise BadInput(f"{path} is a folder; name its files, such as {given / '**' / '*.txt'}")
    if given.is_file():
        return [given.resolve()]
    import glob

    # Not Path.glob: that one descends into hidden folders, .git among them.
    found = sorted(match for match in glob.glob(path, recursive=True) if Path(match).is_file())  # noqa: PTH207
    if not found:
        beside = [each.name for each in given.parent.glob("*") if each.is_file()]
        raise BadInput(Problem(f"no file is at {path}", nearest=nearest(given.name, beside)))
    return [Path(match).absolute() for match in found]


def _tinyshakespeare_files(path: str | None) -> list[Path]:
    if given := path or os.environ.get(TINYSHAKESPEARE_VARIABLE):
        return user_files(given)
    target = cache_folder() / "tinyshakespeare.txt"
    try:
        return [download(TINYSHAKESPEARE_URL, target, TINYSHAKESPEARE_SHA256)]
    except OSError as error:
        raise BadInput(
            f"tinyshakespeare is not on this machine and cannot be fetched ({error}); "
            f"get {TINYSHAKESPEARE_URL} and set {TINYSHAKESPEARE_VARIABLE}, or path in the study, to the file"
        ) from error


def _python_docs_files(path: str | None) -> list[Path]:
    from pydoc_data import topics

    return [Path(topics.__file__)]


def _python_docs(files: Sequence[Path]) -> str:
    from pydoc_data.topics import topics

    return BETWEEN_DOCUMENTS.join(topics[name] for name in sorted(topics))


def _python_source_files(path: str | None) -> list[Path]:
    found: list[Path] = []
    for folder, folders, names in os.walk(sysconfig.get_path("stdlib")):
        folders[:] = set(folders) - SKIPPED_FOLDERS
        found += (Path(folder, name) for name in names if name.endswith(".py"))
    return sorted(found)


@dataclass(frozen=True)
class Corpus:
    """A corpus: finds its files, which tell whether the text may have changed, and joins them to a text."""

    name: str
    meaning: str
    find: Callable[[str | None], list[Path]]
    join: Callable[[Sequence[Path]], str] = _joined
    takes_path: bool = True

    def files(self, path: str | None = None) -> list[Path]:
        """Return the files that the text is made of, absolute, in the order in which they are joined.

        Raises:
            BadInput: there are none, or none can be fetched; or a path is given to a corpus that takes none.
        """
        if path is not None and not self.takes_path:
            raise BadInput(f"corpus {self.name} takes no path; corpus text reads {path}")
        return self.find(path)

    def text(self, files: Sequence[Path]) -> str:
        """Return the text of the files.

        Raises:
            BadInput: a file is not UTF-8 text, or the text has nothing to learn from.
        """
        text = self.join(files)
        which = files[0] if len(files) == 1 else f"corpus {self.name} ({len(files)} files)"
        if not text.strip():
            raise BadInput(f"{which} is empty")
        if not text.strip(text[0]):
            raise BadInput(f"{which} has one character only, {text[0]!r}: nothing can be learned from it")
        return text

    def read(self, path: str | None = None) -> str:
        """Return the corpus' text; `path` is absolute. Raises BadInput as `files` and `text` do."""
        return self.text(self.files(path))


CORPORA: dict[str, Corpus] = {
    corpus.name: corpus
    for corpus in (
        Corpus(
            "python-docs",
            "Python's language reference, as its help() ships it; always there",
            _python_docs_files,
            _python_docs,
            takes_path=False,
        ),
        Corpus(
            "python-source",
            "The sources of Python's standard library, without its tests",
            _python_source_files,
            _joined_readable,
            takes_path=False,
        ),
        Corpus(
            "tinyshakespeare",
            f"40,000 lines of Shakespeare: path, or ${TINYSHAKESPEARE_VARIABLE}, or fetched once",
            _tinyshakespeare_files,
        ),
        Corpus("text", "A text file of yours, or the files of a glob, one document each", user_files),
    )
}
