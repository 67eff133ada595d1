"""How commands print: lines, tables, and JSON for programs, on standard streams whatever those are."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TextIO

from sweeplab.formatting import json_ready, on_one_line, several, visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.segment import Segment
    from rich.text import Text

    from sweeplab.lab.studies import Done
    from sweeplab.study.plan import Plan


NAMES = {"stdout": "standard output", "stderr": "standard error"}
# The disk, or the quota; or the terminal is gone.
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EIO}
LOST = FULL | {errno.EPIPE, errno.EBADF}


class _VisibleStream:
    """A stream of text on which nothing steers the terminal: what `print`, Typer, warnings and tracebacks write to.

    Rich, which colors and redraws lines, writes to `terminal`; `console` escapes what it is given.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.terminal = getattr(stream, "terminal", stream)

    def __getattr__(self, name: str) -> Any:
        # Typer would write to it, past `write`, where the encoding is ASCII.
        if name == "buffer":
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
        """Write bytes, and return how many; an OSError has the stream's name in place of a file's."""
        try:
            return os.write(self.number, data)
        except OSError as error:
            if error.errno not in LOST:
                raise
            if self.on_loss is None:
                raise OSError(error.errno, error.strerror, self.stream_name) from None
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.number)
            os.close(nowhere)
            self.on_loss(f"{self.stream_name} is dropped: {error.strerror}")
            return memoryview(data).nbytes


_outputs: dict[str, _Output] = {}


def open_streams() -> None:
    """Let this process print whatever its streams are; called again, it wraps what has replaced them.

    A closed one goes nowhere, a character that the encoding lacks is escaped, and so are control characters but
    ends of lines and tabs: text may come from anyone.
    """
    for number in range(3):
        try:
            os.fstat(number)
        # Or the next file that is opened, a database, would be the standard output.
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for number, name in enumerate(NAMES, start=1):
        stream = getattr(sys, name)
        if name not in _outputs and stream is getattr(sys, f"__{name}__"):
            encoding = getattr(stream, "encoding", "utf-8")
            if stream is not None:
                stream.flush()
            output = _outputs[name] = _Output(name, number)
            is_by_lines = name == "stderr" or output.isatty()
            stream = io.TextIOWrapper(
                io.BufferedWriter(output),
                encoding,
                "backslashreplace",
                line_buffering=is_by_lines,
            )
        if not isinstance(stream, _VisibleStream):
            setattr(sys, name, _VisibleStream(stream))


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


# What a command found, and how to show it: a text, or a function that prints it. A command that returns one has --json.
Answer = tuple[Any, str | Callable[[Any], None]]
WIDE = 240


def print_answer(answer: Answer, as_json: bool) -> None:
    """Print what a command found: as JSON for a program, or for a person."""
    content, words = answer
    if as_json:
        print_json(content)
    elif isinstance(words, str):
        print(words)
    else:
        words(content)


def say_start(what: str, quiet: bool = False) -> None:
    """Tell a terminal what a command does first, before it imports what takes seconds to import.

    A program that reads standard error gets what goes wrong alone.
    """
    if not quiet and sys.stderr.isatty():
        print(f"{what} …", file=sys.stderr, flush=True)


def answer_of(done: Done) -> Answer:
    """Return the answer that tells what a command did and how to undo it."""
    trials = [{"cell": cell, "trial": number} for cell, number in done.trials]
    lines = "\n".join([done.what, *(f"undo: {command}" for command in done.undo)])
    return {"done": done.what, "undo": done.undo, "trials": trials}, lines


def print_json(content: Any, indent: int | None = 1) -> None:
    """Print one JSON document: objects by their `as_dict`, NaN and infinite numbers as null."""
    # The one control character that JSON does not escape.
    print(json.dumps(json_ready(content), indent=indent).replace("\x7f", "\\u007f"))


@cache
def _console_class() -> type[Console]:
    from rich.console import Console

    class VisibleConsole(Console):
        """A console that takes text as it is, and prints its control characters as escapes."""

        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(visible(text), **options)

        def render(self, *arguments: Any) -> Iterator[Segment]:
            for segment in super().render(*arguments):
                yield (
                    segment if segment.control else segment._replace(text=visible(segment.text))
                )

    return VisibleConsole


def console(stderr: bool = False, quiet: bool = False) -> Console:
    """Return a console, without markup; lines to a pipe, which has no width, are not wrapped."""
    stream, width = sys.stderr if stderr else sys.stdout, None
    if not stderr and not stream.isatty():
        width = WIDE
    file = getattr(stream, "terminal", stream)
    return _console_class()(
        file=file, width=width, quiet=quiet, highlight=False, markup=False, emoji=False
    )


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows what a command is doing, on standard error if that is a terminal."""
    from rich.text import Text

    with console(stderr=True).status(Text()) as status:
        yield lambda text: status.update(Text(on_one_line(text)))


def say(text: str = "", style: str | None = None) -> None:
    """Print text as it is, without wrapping long lines."""
    console().print(text, style=style, soft_wrap=True)


def say_prose(text: str, style: str | None = None) -> None:
    """Print sentences, on a terminal wrapped between words."""
    screen = console()
    screen.print(text, style=style, soft_wrap=not screen.is_terminal)


def say_warnings(warnings: Sequence[str]) -> None:
    """Print warnings, one per line."""
    for warning in warnings:
        say_prose(f"warning: {warning}", "yellow")


def print_rows(
    rows: Sequence[Mapping[str, Any]], text: Sequence[str], keys: Sequence[str] | None = None
) -> None:
    """Print rows as a table with all keys, or with `keys`; every column is right-aligned except those of `text`.

    Columns that hold only zeros and dashes are left out. On a narrow terminal cells are folded; nothing is cut.
    """
    from rich.table import Column, Table

    known = keys or dict.fromkeys(key for row in rows for key in row)
    shown = [key for key in known if any(row.get(key) not in (0, None) for row in rows)]
    if not shown:
        return
    columns = []
    for key in shown:
        justify: Literal["left", "right"] = "left" if key in text else "right"
        columns.append(Column(key.replace("_", " "), overflow="fold", justify=justify))
    table = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*(cell_text(row.get(key)) for key in shown))
    console().print(table)


def cell_text(value: Any) -> str:
    """Write one value as a table shows it: None as a dash, floats with four digits."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    return visible(str(value))


def interval(number: Mapping[str, Any]) -> str:
    """Write the ends of a number's interval."""
    return f"{cell_text(number['low'])} to {cell_text(number['high'])}"


def workers_in_words(plan: Plan) -> str:
    """Say how many workers a study gets, what each has, and where they run."""
    workers = plan.workers
    threads = several(workers[0].threads, "thread") + (" each" if len(workers) > 1 else "")
    gpus = sorted({worker.gpu for worker in workers if worker.gpu is not None})
    where = f"GPU {', '.join(map(str, gpus))}" if gpus else plan.device
    return f"{several(len(workers), 'worker')} ({threads}) on {where}, {plan.dtype}"
