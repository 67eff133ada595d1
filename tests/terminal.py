"""A terminal to run a program in: a real pseudo-terminal, and what stands on its screen."""

import codecs
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from dataclasses import dataclass, field
from fcntl import ioctl
from functools import partial

# A shell's background jobs ignore SIGINT, and so would all that a suite in the background starts; in a terminal it
# is Ctrl-C.
_IN_A_TERMINAL = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
# What nohup starts ignores SIGHUP, and so would all that a suite under nohup starts.
heeds_hangups = partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)
PROGRAM = [sys.executable, "-c", f"{_IN_A_TERMINAL}; from sweeplab.cli import main; main()"]
LINES = 30  # of the terminal
# Colors, the cursor's visibility; the cursor up, the line erased; a control character; text.
_PIECES = re.compile(r"\x1b\[(?:\?25[lh]|[\d;]*m)|\x1b\[(\d*)A|\x1b\[2K|[\r\n]|[^\x1b\r\n]+")


def captured(command, **options):
    """Run a program to its end; return it with what it printed."""
    return subprocess.run(command, capture_output=True, text=True, **options)


def said(command, code=0, **options):
    """Run a program, which must end with a code; return all that it printed."""
    ended = captured(command, **options)
    text = ended.stdout + ended.stderr
    assert ended.returncode == code, text
    return text


def wait_until(is_so):
    """Return what a function returns once it is something; fail where that is not within ten minutes."""
    deadline = time.monotonic() + 600
    while not (found := is_so()):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)
    return found


@dataclass
class Screen:
    """What a terminal shows; `frames` keeps what stood there whenever a line was about to be erased."""

    rows: list[str] = field(default_factory=lambda: [""])
    frames: list[str] = field(default_factory=list)
    widest: int = 0
    _row: int = 0
    _column: int = 0
    _rest: str = ""

    @property
    def text(self):
        """Return what has been printed and not erased."""
        return "\n".join(row.rstrip() for row in self.rows).strip()

    def feed(self, text):
        """Take in what the program prints; fails on a control sequence that is none of the few known."""
        text, end = self._rest + text, 0
        for piece in _PIECES.finditer(text):
            if piece.start() != end:
                break
            end = piece.end()
            self._take(piece[0], piece[1])
        self._rest = text[end:]
        assert len(self._rest) < 32, f"unknown control sequence: {self._rest[:32]!r}"

    def _take(self, piece, count):
        if piece == "\r":
            self._column = 0
        elif piece == "\n":
            self._row, self._column = self._row + 1, 0
            if self._row == len(self.rows):
                self.rows.append("")
        elif piece.endswith("A"):
            self._row -= int(count or 1)
            assert self._row >= max(0, len(self.rows) - LINES), "above the screen's first line"
        elif piece == "\x1b[2K":
            if not self.frames or self.frames[-1] != self.text:
                self.frames.append(self.text)
            self.rows[self._row] = ""
        elif not piece.startswith("\x1b"):
            before = self.rows[self._row][: self._column].ljust(self._column)
            self.rows[self._row] = (
                before + piece + self.rows[self._row][self._column + len(piece) :]
            )
            self._column += len(piece)
            self.widest = max(self.widest, self._column)


@dataclass
class Played:
    """What came of a program that ran in a terminal."""

    code: int
    screen: Screen
    raw: str


def play(arguments, folder, *, columns=100, signals=()):
    """Run the command line in a terminal; of `signals`, each is sent once its condition holds of the screen.

    SIGINT goes to the whole group of processes, as Ctrl-C does.
    """
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, columns, 0, 0))
    # The terminal has its own size, whatever the tests' own environment says of another.
    size = {"COLUMNS": str(columns), "LINES": str(LINES)}
    process = subprocess.Popen(
        [*PROGRAM, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        env=os.environ | {"TERM": "xterm-256color"} | size,
        start_new_session=True,
    )
    os.close(theirs)
    screen, raw, decoder = Screen(), "", codecs.getincrementaldecoder("utf-8")()
    deadline = time.monotonic() + 600
    unsent = list(signals)
    try:
        while text := _read(ours, deadline, screen):
            raw += (piece := decoder.decode(text))
            screen.feed(piece)
            while unsent and unsent[0][0](screen):
                _, number = unsent.pop(0)
                (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
        return Played(process.wait(timeout=120), screen, raw)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        os.close(ours)


def _read(descriptor, deadline, screen):
    readable, _, _ = select.select([descriptor], [], [], max(0, deadline - time.monotonic()))
    assert readable, f"the program neither ends nor says what is waited for, but\n{screen.text}"
    try:
        return os.read(descriptor, 2**16)
    except OSError:  # the other end is closed
        return b""
