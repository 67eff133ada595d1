"""Locations in a study file, and the problems found there.

A location is a path in the document: `("search", "learning_rate", "max")`; list items are numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeplab.errors import BadInput, Problem, conflict, nearest
from sweeplab.formatting import on_one_line, several, several_named, without_passwords

if TYPE_CHECKING:
    from pydantic import ValidationError

Location = tuple[str | int, ...]
Mark = tuple[int, int]

# The sections of a study file that set hyperparameters.
SECTIONS = ("fixed", "grid", "search")
# The length of training; a study sets only one of them. Where more are said, the first counts.
LENGTHS = ("epochs", "tokens_per_param", "max_iters")
# A longer list of allowed names is not printed.
MOST_NAMED = 20
# The forms of an entry of `search`.
FORMS_IN_WORDS = "{min, max, log, step, when} | [a, list] | {choices, when} | {expr}"
# What is allowed, by the type of pydantic's error; braces hold the bounds of its context.
ALLOWED = {
    "greater_than_equal": "at least {ge:g}",
    "greater_than": "a number above {gt:g}",
    "less_than_equal": "at most {le:,}",
    "finite_number": "a number",
    "string_type": "a string",
    "string_too_short": "a string",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "too_short": "a list of one or more",
    "too_long": "at most {max_length:,}",
    "model_type": "a mapping",
    "dict_type": "a mapping",
}


def reaches_in_words(reaches: Sequence[str]) -> str:
    """Describe what a study file uses outside its own folder and the lab; empty if nothing."""
    return f"outside of its folder and the lab: {several_named(reaches)}" if reaches else ""


def dotted(path: Location) -> str:
    """Format a location: `search.learning_rate.max`, `seeds[0]`."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return "".join(parts).removeprefix(".") or "the file"


def shown(value: Any) -> str:
    """Format a value roughly as in YAML, shortened to fit on a line."""
    text = on_one_line(without_passwords(json.dumps(value, default=str, ensure_ascii=False)))
    return text if len(text) <= 60 else f"{text[:57]}..."


class Refusal(ValueError):  # noqa: N818 - its text is shown to the user
    """Report what is wrong with one value, what is allowed and which name was probably meant.

    Without `what`, the value itself is. `at` is the place of the value inside what is validated. An unknown name is
    refused with the `known` ones; `what` is of which kind it is.
    """

    def __init__(
        self,
        what: str,
        allowed: str = "",
        nearest: str = "",
        at: Location = (),
        known: Sequence[str] = (),
    ) -> None:
        super().__init__(what)
        self.what, self.allowed, self.nearest = what, allowed, nearest
        self.at, self.known = at, known


@dataclass
class Problems:
    """Collects all problems of a document, so that they are reported together, with where each part of it was set.

    `places` has for a location the line and column, from 1, of its key or item, or the option of the command line that
    set it. `text` is the document as it was read.
    """

    file: Path | None = None
    text: str = ""
    places: dict[Location, Mark | str] = field(default_factory=dict)
    found: list[Problem] = field(default_factory=list)

    def forget(self, path: Location) -> None:
        """Drop the places of a location and of all below it."""
        for location in [*self.places]:
            if location[: len(path)] == path:
                del self.places[location]

    def problem(
        self, path: Location, what: str, allowed: str = "", nearest: str = ""
    ) -> Problem:
        """Return a problem placed where `path` was set, or what encloses it."""
        enclosing = (path[:length] for length in range(len(path), -1, -1))
        place = next((self.places[each] for each in enclosing if each in self.places), ())
        if isinstance(place, str):
            return Problem(f"{place}: {what}", allowed, nearest)
        return Problem(what, allowed, nearest, self.file, *place)

    def add(self, path: Location, what: str, allowed: str = "", nearest: str = "") -> None:
        """Add a problem at a location."""
        self.found.append(self.problem(path, what, allowed, nearest))

    def refuse(self) -> None:
        """Raise all problems in the order of the document, if there are any."""
        if self.found:
            in_order = sorted(
                self.found, key=lambda problem: (problem.line or 0, problem.column or 0)
            )
            raise BadInput(*in_order)

    def conflict(self, first: Location, second: Location) -> None:
        """Add the problem that two places set the same thing, at the second."""
        what = conflict(dotted(first), dotted(second))
        self.add(second, what.what, what.allowed)

    def unknown(
        self, path: Location, known: Sequence[str], kind: str, elsewhere: Iterable[str] = ()
    ) -> None:
        """Add the problem that the last name of `path` is not one of `known`; `elsewhere` are names of other places."""
        name = str(path[-1])
        near = nearest(name, [*known, *elsewhere])
        allowed = ", ".join(known)
        if len(known) > MOST_NAMED:
            allowed = "" if near else "`sweeplab hyperparameters` lists them"
        self.add(path, f"{dotted(path[:-1])}: unknown {kind} {shown(name)}", allowed, near)

    def retell(
        self, error: ValidationError, place: Location = (), elsewhere: Iterable[str] = ()
    ) -> None:
        """Add all that pydantic found wrong with the value at a place.

        `elsewhere` are names that an unknown key at the top may mean.
        """
        for detail in error.errors(include_url=False):
            path = (*place, *detail["loc"])
            context, kind, value = detail.get("ctx", {}), detail["type"], detail["input"]
            refusal = context.get("error")
            if kind == "missing":
                self.add(path[:-1], f"{dotted(path)} is missing")
                continue
            if isinstance(refusal, Refusal):
                for part in refusal.at:
                    path, value = (*path, part), value[part]
                if refusal.known:
                    others = elsewhere if len(path) == 1 else ()
                    self.unknown(path, refusal.known, refusal.what, others)
                else:
                    what = refusal.what or f"is {shown(value)}"
                    self.add(path, f"{dotted(path)} {what}", refusal.allowed, refusal.nearest)
                continue
            what, near = f"{dotted(path)} is {shown(value)}", ""
            allowed = ALLOWED.get(kind, detail["msg"].removeprefix("Input should be ")).format(
                **context
            )
            if kind == "too_long":
                what = f"{dotted(path)} has {several(context['actual_length'], 'entry')}"
            elif kind == "literal_error":
                choices = re.findall(r"'(.*?)'", context["expected"])
                allowed, near = " | ".join(choices), nearest(value, choices)
            self.add(path, what, allowed, near)
