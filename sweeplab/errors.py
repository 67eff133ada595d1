"""Mistakes of the user, each reported in one line without a traceback; and the exit codes of a command."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeplab.hyperparameters import canonical

# What a refusal says at most, whatever it refuses: lines, and characters of each.
MOST_PROBLEMS, MOST_CHARACTERS = 20, 1_200
EXIT_FAILED, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 1, 2, 130


@dataclass(frozen=True)
class Problem:
    """One problem of an input, with its place if it has one."""

    what: str
    allowed: str = ""
    nearest: str = ""
    file: Path | None = None
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        text = self.what
        place = ":".join(
            str(part) for part in (self.file, self.line, self.column) if part is not None
        )
        if place:
            text = f"{place}: {text}"
        if self.allowed:
            text += f"; allowed: {self.allowed}"
        if self.nearest:
            text += f"; did you mean {self.nearest!r}?"
        # A name or a library's message may have several lines.
        return " ".join(text.splitlines())


class BadInput(Exception):  # noqa: N818 - a mistake of the user, not an error of the program
    """An input is refused, with every problem found in it; the command line ends with exit code 2."""

    def __init__(self, *problems: Problem | str) -> None:
        self.problems = [Problem(each) if isinstance(each, str) else each for each in problems]
        super().__init__("\n".join(self.lines))

    @property
    def lines(self) -> list[str]:
        """Return what is said of it: the first problems, a line each, and how many more there are."""
        lines: list[str] = []
        for problem in self.problems[:MOST_PROBLEMS]:
            line = str(problem)
            if len(line) > MOST_CHARACTERS:
                line = f"{line[: MOST_CHARACTERS // 2]} … {line[-MOST_CHARACTERS // 4 :]}"
            lines.append(line)
        more = len(self.problems) - len(lines)
        if more:
            lines.append(f"and {more:,} more problem{'s' if more > 1 else ''}")
        return lines


class StorageUnavailable(BadInput):
    """A study's storage does not answer or is full; nothing is lost, and the study continues once it answers."""


class DamagedFile(BadInput):
    """A file that sweeplab wrote is missing or damaged; says which, why, and the cure."""

    def __init__(self, file: Path, what: str, cure: str) -> None:
        self.file, self.what, self.cure = file, what, cure
        super().__init__(Problem(f"{what}; {cure}", file=file))


class TrackingUnavailable(Exception):  # noqa: N818 - a state of the world, not an error of the program
    """Tracking could not store something now; nothing is lost, and the caller may try again later."""


def said(error: BaseException, file: Path) -> str:
    """Say in one line what a user's file raised, and in which of its lines."""
    place, text = str(file), str(error)
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == str(file):
            place = f"{file}:{frame.lineno}"
    if isinstance(error, SyntaxError):
        place, text = f"{file}:{error.lineno}", error.msg
    message = f"{place}: {type(error).__name__}: {text.strip()}"
    return message.partition("\n")[0].removesuffix(": ")


def conflict(first: str, second: str, allowed: str = "one of them") -> Problem:
    """Return the problem that two options, keys or values of an input are for the same thing."""
    return Problem(f"{first} and {second} exclude each other", allowed)


def nearest(name: Any, known: Iterable[str]) -> str:
    """Return the known name that `name` probably means, or an empty string, as for a number.

    A known name may be a place, such as `fixed.learning_rate`, which its last part finds as well.
    """
    from rapidfuzz import fuzz, process

    if not isinstance(name, str):
        return ""
    choices, meant = sorted(known), canonical(name)
    for place in choices:
        if meant in (place, place.rpartition(".")[2]):
            return place
    match = process.extractOne(
        name.lower(), choices, scorer=fuzz.ratio, processor=str.lower, score_cutoff=60
    )
    return match[0] if match else ""
