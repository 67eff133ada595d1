"""The standard streams of a command: whatever their encoding, closed, full, or without a reader."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any, TextIO

from sweeplab.formatting import visible

NAMES = {"stdout": "standard output", "stderr": "standard error"}
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EIO}  # the disk, or the quota; or the terminal is gone
LOST = FULL | {errno.EPIPE, errno.EBADF}


class _VisibleStream:
    """A stream of text on which nothing steers the terminal: what `print`, Typer, warnings and tracebacks write to.

    Rich, which colors and redraws lines, writes to `terminal`; `console` escapes what it is given.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.terminal = getattr(stream, "terminal", stream)

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":  # Typer would write to it, past `write`, where the encoding is ASCII
            raise AttributeError(name)
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text with its control characters as escapes."""
        return self._stream.write(visible(text))

    def writelines(self, lines: Iterable[str]) -> None:
        self._stream.writelines(map(visible, lines))


class _Output(io.RawIOBase):
    """The bytes of a standard stream; a failed write is an error, or drops the stream where `on_loss` is set."""

    def __init__(self, name: str, number: int) -> None:
        super().__init__()
        self.stream_name, self.number = NAMES[name], number
        self.on_loss: Callable[[str], None] | None = None

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.number

    def isatty(self) -> bool:
        return os.isatty(self.number)

    def write(self, data: Any, /) -> int:
        """Write bytes, and return how many.

        Raises:
            OSError: With the stream's name in place of a file's.
        """
        try:
            return os.write(self.number, data)
        except OSError as error:
            if error.errno not in LOST:
                raise
            if self.on_loss is None:
                raise OSError(error.errno, error.strerror, self.stream_name) from None
            self.drop()
            self.on_loss(f"{self.stream_name} is dropped: {error.strerror}")
            return memoryview(data).nbytes

    def drop(self) -> None:
        """Send what is still written nowhere."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.number)
        os.close(nowhere)


_outputs: dict[str, _Output] = {}


def open_streams() -> None:
    """Let this process print whatever its streams are; called again, it wraps what has replaced them.

    A closed one goes nowhere, a character that the encoding lacks is escaped, and so are control characters but
    ends of lines and tabs: text may come from anyone.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # or the next file that is opened, a database, would be the standard output
            os.open(os.devnull, os.O_RDWR)
    for number, name in enumerate(NAMES, start=1):
        stream = getattr(sys, name)
        if name not in _outputs and stream is getattr(sys, f"__{name}__"):
            stream = _reopened(name, number, stream)
        if not isinstance(stream, _VisibleStream):
            setattr(sys, name, _VisibleStream(stream))


def _reopened(name: str, number: int, stream: TextIO | None) -> TextIO:
    encoding = "utf-8"
    if stream is not None:
        encoding = stream.encoding
        stream.flush()
    output = _outputs[name] = _Output(name, number)
    return io.TextIOWrapper(
        io.BufferedWriter(output),
        encoding=encoding,
        errors="backslashreplace",
        line_buffering=name == "stderr" or output.isatty(),
    )


def outlive_readers(log: Callable[[str], None] = lambda _: None) -> None:
    """From now on drop a stream that cannot be written, with one line to `log`: what trains never ends by it."""
    for output in _outputs.values():
        output.on_loss = log


def write_line(text: str) -> None:
    """Print a line on standard error; safe inside a signal handler."""
    line = f"{visible(text)}\n".encode()
    if "stderr" in _outputs:
        _outputs["stderr"].write(line)
    else:
        os.write(sys.stderr.fileno(), line)
