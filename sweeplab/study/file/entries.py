"""The values, ranges and choices of hyperparameters as people write them, and what a command line sets in a document.

They stand in tables, in study files and on command lines.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from sweeplab.errors import BadInput, Problem, conflict, nearest
from sweeplab.formatting import without_passwords
from sweeplab.hyperparameters import AUTO, TABLE, Hyperparameter, canonical
from sweeplab.study.file.parse import parse
from sweeplab.study.problems import LENGTHS, SECTIONS, Location, Problems, dotted
from sweeplab.study.spec import StudySpec
from sweeplab.study.values import ENTRY, SUGGESTED, is_searched

# A share of a run's length, or of the learning rate: "5%", "10% of all training steps".
_SHARE = re.compile(
    r"(\d+(?:\.\d+)?)\s*%(?:\s+of)?(?:\s+(?:the|all|total|training|peak|max))*"
    r"(?:\s+(?:steps|iterations|iters|max_iters|training|learning_rate|learning rate|lr))?"
)


def takes_share(row: Hyperparameter) -> bool:
    """Return whether a hyperparameter may be a share: of the learning rate, or of a run's iterations."""
    return row.name == "min_lr" or (row.unit == "iterations" and row.name not in LENGTHS)


def share_of(row: Hyperparameter, written: Any) -> dict[str, str] | None:
    """Return the expression that a share stands for: 5% of max_iters, or of learning_rate for min_lr; else None."""
    share = _SHARE.fullmatch(written.strip()) if isinstance(written, str) else None
    if share is None or not takes_share(row) or float(share[1]) > 100:
        return None
    percent = float(share[1])
    if row.name == "min_lr":
        return {"expr": f"learning_rate * {percent:g} / 100"}
    expression = f"max_iters * {percent:g} // 100"
    # Rounded up: 25% of 469 steps would come a fifth time, just before the end.
    if row.name.endswith("_interval"):
        expression = f"ceil(max_iters * {percent:g} / 100)"
    return {"expr": f"max({row.low:g}, {expression})" if row.low else expression}


RANGES = "1e-4 to 1e-2, log; 0 to 0.4, step 0.1; {64, 128, 256}; [0.0, 0.3]"
# Some patterns look at every pair of places in a text, so no longer text is matched.
LONGEST = 500
NOTE = re.compile(r"(?<=[\w.)\]\"'”’])\s*\(.*\)$")

NOT_SAID = {"", "-", "–", "—", "n/a", "?"}
_SWITCHED_OFF = {"none", "null", "off", "disabled"}
# Choices as tables write them.
_SHORT = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "rope": "rotary"}
_TRUTHS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
# What a number is times where such a suffix follows it; "10%" is 0.1.
_FACTORS = {"%": 0.01, "k": 1e3, "m": 1e6, "b": 1e9}
_SUFFIXED = re.compile(rf"(.*\d\.?)\s*({'|'.join(_FACTORS)})", re.IGNORECASE)
_NUMBER = re.compile(
    r"[+-]?(?:[1-9]\d{0,2}(?:[,_\s]\d{3})+(?:\.\d+)?|\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
)
_POWER_OF_TEN = re.compile(r"(?:([+-]?\d+(?:\.\d+)?)\s*[x×·*]\s*)?10\^\{?([+-]?\d+)\}?")
_SUPERSCRIPT = re.compile(r"[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_UNRAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_LOG = re.compile(r"[,;(\s]*\blog(arithmic|[- ]?uniform|[- ]?scaled?|10)?\b\)?", re.IGNORECASE)
_STEP = re.compile(r"[,;(\s]*\b(?:in )?steps?(?: of)?\s+(\S+?)\)?$", re.IGNORECASE)
_BETWEEN = re.compile(r"\s*(?:\.\.+|…|\bto\b|[–—]|(?<=[\d.\s%kKmM])-(?=[\d.\s]))\s*")
_AMONG = re.compile(r"[,;|/]|\bor\b")
_BRACKETED = re.compile(r"[(\[{]([^()\[\]{}]*)[)\]}]")


def parse_value(row: Hyperparameter, written: str) -> Any:
    """Parse a hand-written value of `row`: `3e-4`, `10,000`, `(0.9, 0.95)`, `(auto)`.

    A note in brackets after the value is ignored: `0.1 (or 0.2)` is 0.1.

    Raises:
        ValueError: the row does not accept the value; the message quotes the text.
    """
    text = written.strip()
    if len(text) > LONGEST:
        raise ValueError(f"{row.name} has a value of more than {LONGEST} characters")
    for value in _readings(row, NOTE.sub("", text)):
        with suppress(ValueError):
            return row.check(value)
    raise ValueError(f"{row.name} is {text!r}" if text else f"{row.name} has no value")


def _readings(row: Hyperparameter, text: str) -> Iterator[Any]:
    word = text.strip("()[] ").lower()
    if word in NOT_SAID:
        return
    if row.automatic and word.startswith(AUTO):
        yield AUTO
    if row.optional and word in _SWITCHED_OFF:
        yield None
    if row.kind == "str":
        unquoted = text.strip("\"'“”‘’")
        yield from (unquoted, unquoted.lower(), _SHORT.get(word, text))
    elif row.kind == "bool":
        yield _TRUTHS.get(word, text)
    elif row.kind == "floats":
        yield [_number(part) for part in re.split("[,;/]", text.strip("()[] "))]
    else:
        yield _number(text)


def _number(text: str) -> float:
    """Parse a number; return NaN, which no row accepts, if it is not one."""
    text = text.strip().replace("−", "-")
    text = _SUPERSCRIPT.sub(lambda match: "^" + match[0].translate(_UNRAISED), text)
    power, suffixed = _POWER_OF_TEN.fullmatch(text), _SUFFIXED.fullmatch(text)
    if power:
        return float(f"{power[1] or 1}e{power[2]}")
    if suffixed:
        factor = _FACTORS[suffixed[2].lower()]
        return float(f"{_number(suffixed[1]) * factor:.12g}")  # 10% is 0.1, not 0.1000…01
    if _NUMBER.fullmatch(text):
        return float(re.sub(r"[,_\s]", "", text))
    return math.nan


def read_range(row: Hyperparameter, text: str) -> Any:
    """Parse a range or choices of a row into an entry of `search`; return None if the text is neither.

    Two ends without "log" give a logarithmic range if the table's suggested range is one.

    Raises:
        BadInput: no study can have this range, such as an inverted one.
    """
    if len(text) > LONGEST or not is_searched(row):
        return None
    entry, problems = None, Problems()
    with suppress(ValueError):
        entry = share_of(row, NOTE.sub("", text)) or _entry(row, text)
    if entry is not None:
        try:
            ENTRY.validate_python(entry, context=row)
        except ValidationError as error:
            problems.retell(error, ("search", row.name))
            raise BadInput(*problems.found) from None
    return entry


def _entry(row: Hyperparameter, text: str) -> Any:
    if text.lower() == SUGGESTED:
        return SUGGESTED
    bare, is_log = _LOG.subn("", text)
    step = _STEP.search(bare)
    if step:
        bare = bare[: step.start()]
    bare = bare.strip()
    inside = _unbracketed(bare)
    ends = _BETWEEN.split(inside)
    if len(ends) != 2 and inside != bare and bare[0] in "([":
        ends = [end.strip() for end in inside.split(",")]
    if len(ends) == 2 and row.kind in ("int", "float") and not row.choices:
        entry: dict[str, Any] = {
            "min": parse_value(row, ends[0]),
            "max": parse_value(row, ends[1]),
        }
        suggests_log = isinstance(row.suggested, dict) and "log" in row.suggested
        if is_log or (suggests_log and not step and entry["min"] != 0):
            entry["log"] = True
        if step:
            entry["step"] = parse_value(row, step[1])
        return entry
    values = values_of(row, bare)
    if len(values) < 2 or is_log or step:
        return None
    return values


def _unbracketed(text: str) -> str:
    whole = _BRACKETED.fullmatch(text)
    return whole[1].strip() if whole else text


def values_of(row: Hyperparameter, text: str) -> list[Any]:
    """Parse a list of values: `1,2,4`, `{gelu, relu}`, `(0.9, 0.95), (0.9, 0.99)`, `true/false`.

    Raises:
        ValueError: the row does not accept one of them; the message says which.
    """
    if row.kind == "floats":
        return [parse_value(row, each) for each in _BRACKETED.findall(text)]
    return [
        parse_value(row, part)
        for part in _AMONG.split(_unbracketed(text.strip()))
        if part.strip()
    ]


# ------------------------------------------------------------------ what a command line sets in a document


# The places in a study file that options of the command line set.
_PLACES: dict[str, Location] = {
    "--engine": ("engine", "type"),
    "--name": ("name",),
    "--preset": ("preset",),
}
PLACES = "a hyperparameter, or a place such as budget.time"
# Keys whose value may be just the name of the type.
SHORT_FORMS = ("sampler", "pruner")


def read_options(options: Iterable[str]) -> dict[str, Any]:
    """Parse the options `--grid n_layer=1,2,4` and `--search learning_rate=1e-4..1e-2` into a document.

    Raises:
        BadInput: a hyperparameter is unknown, does not accept such values, or is given two of them.
    """
    document: dict[str, Any] = {"grid": {}, "search": {}}
    problems = Problems()
    lay_all_over(document, options, problems)
    if problems.found:
        raise BadInput(*problems.found)
    return document


def _entries(section: str, word: str) -> Iterator[tuple[str, Any]]:
    """Yield the hyperparameters of an option `--grid …` or `--search …` with their entries."""
    names, equals, written = word.partition("=")
    for name in [names] if equals else filter(str.strip, names.split(",")):
        known = canonical(name.strip())
        if known not in TABLE:
            raise BadInput(
                Problem(f"unknown hyperparameter {name!r}", "", nearest(known, TABLE))
            )
        row = TABLE[known]
        if section == "grid":
            try:
                values = values_of(row, written)
            except ValueError as error:
                raise BadInput(Problem(str(error), row.allowed)) from None
            if not values:
                raise BadInput(Problem("no list of values", f"{row.name}=A,B,C"))
            yield known, list(dict.fromkeys(values))
        elif equals:
            entry = read_range(row, written)
            if entry is None:
                raise BadInput(Problem(f"not a range of {row.name}", RANGES))
            yield known, entry
        else:
            yield known, SUGGESTED


def move_shares(document: dict[str, Any], problems: Problems) -> None:
    """Write values that are a share of others, such as `warmup_iters: 5%`, as expressions under `search`."""
    for section in ("fixed", "search"):
        held, search = document.get(section), document.get("search") or {}
        if not isinstance(held, dict) or not isinstance(search, dict):
            continue
        for name, value in [*held.items()]:
            share = share_of(TABLE[name], value) if name in TABLE else None
            if share is None or (section == "fixed" and name in search):
                continue
            del held[name]
            search[name] = share
            document["search"] = search
            if (section, name) in problems.places:
                problems.places["search", name] = problems.places[section, name]


def lay_all_over(document: dict[str, Any], options: Iterable[str], problems: Problems) -> None:
    """Apply overrides to the document in turn; two that set the same thing differently are a problem.

    An override is `NAME=VALUE`, or an option of the command line: `--grid WORD`, `--search WORD`, `--at NAME=VALUE`,
    or one of `_PLACES` with its value.
    """
    laid: dict[str, tuple[Any, str]] = {}
    for option in options:
        words = without_passwords(option if option.startswith("--") else f"-o {option}")
        try:
            for path, value in _settings(option):
                _set(document, path, value)
                problems.forget(path)
                for length in range(1, len(path) + 1):
                    problems.places.setdefault(path[:length], words)
                for thing, held in _things(path, value):
                    before, first = laid.setdefault(thing, (held, words))
                    if before != held:
                        problems.found.append(conflict(first, words))
        except BadInput as error:
            for wrong in error.problems:
                what = f"{words}: {wrong.what}"
                problems.found.append(Problem(what, wrong.allowed, wrong.nearest))


def _settings(option: str) -> Iterator[tuple[Location, Any]]:
    """Yield the places in a document that an override sets, each with its value."""
    kind, _, word = option.partition(" ")
    if kind in ("--grid", "--search"):
        for known, entry in _entries(kind[2:], word):
            yield (kind[2:], known), entry
        return
    if kind in _PLACES:
        yield _PLACES[kind], word
        return
    name, equals, text = option.removeprefix("--at ").partition("=")
    path, problems = _place(name.strip()), Problems()
    if not equals:
        raise BadInput(Problem("no value is given", "name=value"))
    if not path:
        near = nearest(name, [*TABLE, *StudySpec.model_fields])
        raise BadInput(Problem(f"{name!r} is unknown", PLACES, near))
    value = parse(text, problems, path)
    if problems.found:
        raise BadInput(*problems.found)
    yield path, value


def _things(path: Location, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an override sets, by hyperparameter or else by place, and to what."""
    section, *below = path
    if isinstance(value, dict) and not below:
        for name, entry in value.items():
            yield from _things((section, name), entry)
    elif section == "cells" and isinstance(value, list):
        for changes in value:
            if isinstance(changes, dict):
                yield from ((_thing(name), value) for name in changes)
    elif section in SECTIONS and len(below) == 1:
        yield _thing(below[0]), (path, value)
    elif section in SHORT_FORMS and not below:
        yield f"{section}.type", value
    else:
        yield dotted(path), value


def _thing(name: str | int) -> str:
    known = canonical(str(name))
    return "length" if known in LENGTHS else known


def _place(name: str) -> Location:
    first, *below = name.split(".")
    if below and first in (*SECTIONS, "first_trial"):
        below[0] = canonical(below[0])
    if below or name in StudySpec.model_fields:
        return (first, *below)
    if canonical(name) in TABLE:
        return ("fixed", canonical(name))
    return ()


def _set(document: dict[str, Any], path: Location, value: Any) -> None:
    held: Any = document
    for depth, part in enumerate(path[:-1], start=1):
        below = held.get(part)
        if below is None:
            below = {}
        elif depth == 1 and part in SHORT_FORMS and isinstance(below, str):
            below = {"type": below}
        elif not isinstance(below, dict):
            raise BadInput(f"{dotted(path[:depth])} has no keys to set")
        held[part] = below
        held = below
    held[path[-1]] = value
    if path[0] in SECTIONS and len(path) > 1:
        _drop_elsewhere(document, path, value)


def _drop_elsewhere(document: dict[str, Any], path: Location, value: Any) -> None:
    """Remove a hyperparameter from the other sections; of those that set the length of training only one stays."""
    section, name = str(path[0]), path[1]
    places = [document.get(each) for each in SECTIONS]
    if isinstance(document.get("cells"), list):
        places += document["cells"]
    for held in places:
        if not isinstance(held, dict):
            continue
        if held is not document[section]:
            held.pop(name, None)
        if name in LENGTHS and value is not None:
            for rival in {*LENGTHS} - {name}:
                held.pop(rival, None)
