"""Parse hand-written values, ranges and choices: `3×10⁻⁴`, `1e-4 to 3e-3, log`, `{64, 128, 256}`, `[0.0, 0.3]`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sweeplab.errors import BadInput, Problem, conflict, nearest, synonym
from sweeplab.formatting import yaml_text
from sweeplab.hyperparameters import AUTO, TABLE, Hyperparameter, canonical
from sweeplab.study.file.entries import SUGGESTED, Written, is_searched, share_of
from sweeplab.study.problems import Problems, SourceMap

RANGES = "1e-4 to 1e-2, log; 1e-4 to 1e-2, prior 1e-3, high; 0 to 0.4, step 0.1; {64, 128, 256}; [0.0, 0.3]"
# Some patterns look at every pair of places in a text, so no longer text is matched.
LONGEST = 500
_ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")
_EMPHASIS = re.compile(r"(\*{1,3}|(?<!\w)_{1,3})(?=\S)(.{1,200}?)(?<=\S)\1(?!\w)")
NOTE = re.compile(r"(?<=[\w.)\]\"'”’])\s*\(.*\)$")

NOT_SAID = {"", "-", "–", "—", "n/a", "?"}
_SWITCHED_OFF = {"none", "null", "off", "disabled"}
_TRUTHS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
# What a number is times where such a suffix follows it; "10%" is 0.1.
_FACTORS = {"%": 0.01, "k": 1e3, "m": 1e6, "b": 1e9, "thousand": 1e3, "million": 1e6, "billion": 1e9}
_SUFFIXED = re.compile(rf"(.*\d\.?)\s*({'|'.join(_FACTORS)})", re.IGNORECASE)
# The units of a row are also written in these words.
_UNITS = {
    "iterations": "iterations|iters?|steps?",
    "tokens": "tokens?",
    "sequences": "sequences|samples|examples",
}
_NUMBER = re.compile(r"[+-]?(?:[1-9]\d{0,2}(?:[,_ ]\d{3})+(?:\.\d+)?|\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_POWER_OF_TEN = re.compile(r"(?:([+-]?\d+(?:\.\d+)?)\s*[x×·*]\s*)?10\^\{?([+-]?\d+)\}?")
_SUPERSCRIPT = re.compile(r"[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_UNRAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_LOG = re.compile(r"[,;(\s]*\blog(arithmic|[- ]?uniform|[- ]?scaled?|10)?\b\)?", re.IGNORECASE)
_LINEAR = re.compile(r"[,;(\s]*\b(linear|uniform)\b\)?", re.IGNORECASE)
_STEP = re.compile(r"[,;(\s]*\b(?:in )?steps?(?: of)?\s+(\S+?)\)?$", re.IGNORECASE)
_PRIOR = re.compile(r"[,;(\s]*\bprior\s+([^\s,()]+)(?:[\s,(]+([a-z]+)(?:\s+confidence)?)?\)?$", re.IGNORECASE)
_BETWEEN = re.compile(r"\s*(?:\.\.+|…|\bto\b|[–—]|(?<=[\d.\s])-(?=[\d.\s]))\s*")
_AMONG = re.compile(r"\s*(?:[,;|/]|\bor\b)\s*(?:or\b\s*)?")
# The places in a study file that options of the command line set.
_PLACES = {"--engine": "engine.type", "--name": "name", "--preset": "preset"}
_BRACKETED = re.compile(r"[(\[{]([^()\[\]{}]*)[)\]}]")


def parse_value(row: Hyperparameter, written: str) -> Any:
    """Parse a hand-written value of `row`: `**3e-4**`, `10,000`, `(0.9, 0.95)`, `*(auto)*`.

    A note in brackets after the value is ignored: `0.1 (or 0.2)` is 0.1.

    Raises:
        ValueError: the row does not accept the value; the message quotes the text.
    """
    text = plain(written[: LONGEST + 1])
    if len(text) > LONGEST:
        raise ValueError(f"{row.name} has a value of more than {LONGEST} characters")
    for value in _readings(row, NOTE.sub("", text)):
        try:
            return row.check(value)
        except ValueError:
            continue
    raise ValueError(f"{row.name} is {text!r}" if text else f"{row.name} has no value")


def plain(cell: str) -> str:
    """Return a cell's text without emphasis, back-ticks and escapes."""
    # Escaped characters are moved to the private use area, so that an escaped star is not taken for emphasis.
    text = _ESCAPED.sub(lambda match: chr(0xE000 + ord(match[1])), cell).replace("`", "").strip()
    while text != (stripped := _EMPHASIS.sub(r"\2", text)):
        text = stripped
    return re.sub("[\ue021-\ue07e]", lambda match: chr(ord(match[0]) - 0xE000), text).strip()


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
        yield from (unquoted, unquoted.lower(), synonym(unquoted, row.choices))
    elif row.kind == "bool":
        yield _TRUTHS.get(word, text)
    elif row.kind == "floats":
        yield [_number(part) for part in re.split("[,;/]", text.strip("()[] "))]
    else:
        yield _number(text)
        if row.unit:
            yield _number(re.sub(rf"\s*\b({_UNITS.get(row.unit, row.unit)})$", "", text, flags=re.IGNORECASE))


def _number(text: str) -> float:
    """Parse a number; return NaN, which no row accepts, if it is not one."""
    text = re.sub("[\u00a0\u2009\u202f]", " ", text.strip().replace("−", "-"))
    text = _SUPERSCRIPT.sub(lambda match: "^" + match[0].translate(_UNRAISED), text)
    if _NUMBER.fullmatch(text):
        return float(re.sub("[,_ ]", "", text))
    if match := _POWER_OF_TEN.fullmatch(text):
        return float(f"{match[1] or 1}e{match[2]}")
    if match := _SUFFIXED.fullmatch(text):
        return float(f"{_number(match[1]) * _FACTORS[match[2].lower()]:.12g}")  # 10% is 0.1, not 0.1000…01
    return math.nan


def read_range(row: Hyperparameter, text: str) -> Any:
    """Parse a range or choices of a row into an entry of `search`; return None if the text is neither.

    Two ends without "log" or "linear" give a logarithmic range if the table's suggested range is one.
    """
    entry, problems = _checked(row, text)
    if problems:
        return None
    return entry


def _checked(row: Hyperparameter, text: str) -> tuple[Any, list[Problem]]:
    if not is_searched(row) or len(text) > LONGEST:
        return None, []
    text = plain(text)
    try:
        share = share_of(row, NOTE.sub("", text))
        entry = SUGGESTED if text.lower() == SUGGESTED else share or _entry(row, text)
    except ValueError:
        return None, []
    problems = Problems(SourceMap())
    if entry is not None:
        Written(row, entry, ("search", row.name), problems).entry()
    return entry, problems.found


def _entry(row: Hyperparameter, text: str) -> Any:
    believed = _PRIOR.search(text)
    if believed:
        text = text[: believed.start()]
    bare, is_log, is_linear = text, 0, 0
    if row.kind != "str":  # whose choices may be called linear
        bare, is_log = _LOG.subn("", bare)
        bare, is_linear = _LINEAR.subn("", bare)
    step = _STEP.search(bare)
    bare = (bare[: step.start()] if step else bare).strip()
    whole = _BRACKETED.fullmatch(bare)
    ends = _BETWEEN.split(whole[1].strip() if whole else bare)
    if len(ends) != 2 and whole and bare[0] in "([":
        ends = [each.strip() for each in whole[1].split(",")]
    if len(ends) == 2 and ends[1].endswith("%") and not ends[0].endswith("%"):
        ends[0] += "%"
    if len(ends) == 2 and row.kind in ("int", "float") and not row.choices:
        suggested = row.suggested if isinstance(row.suggested, dict) else {}
        entry: dict[str, Any] = {"min": parse_value(row, ends[0]), "max": parse_value(row, ends[1])}
        if is_log or (suggested.get("log") and not is_linear and not step and entry["min"] not in (0, 0.0)):
            entry["log"] = True
        if step:
            entry["step"] = parse_value(row, step[1])
        if believed:
            entry["prior"] = parse_value(row, believed[1])
            entry |= {"confidence": believed[2].lower()} if believed[2] else {}
        return entry
    values = values_of(row, bare)
    if len(values) > 1 and not (is_log or is_linear or step or believed):
        return values
    return None


def values_of(row: Hyperparameter, text: str) -> list[Any]:
    """Parse a list of values: `1,2,4`, `{gelu, relu}`, `(0.9, 0.95), (0.9, 0.99)`, `true/false`.

    Raises:
        ValueError: the row does not accept one of them; the message says which.
    """
    if len(text) > LONGEST:
        raise ValueError(f"{row.name} has values of more than {LONGEST} characters")
    if row.kind == "floats":
        return [parse_value(row, each) for each in _BRACKETED.findall(text)]
    whole = _BRACKETED.fullmatch(text.strip())
    return [parse_value(row, each) for each in _AMONG.split(whole[1] if whole else text) if each.strip()]


def read_search(words: Sequence[str]) -> dict[str, Any]:
    """Parse the options `--search learning_rate=1e-4..1e-2`, `--search dropout,eps` into entries of `search`.

    A name alone gets the table's suggested range.

    Raises:
        BadInput: a hyperparameter is unknown, does not accept such a range, or is given two.
    """
    return {name: entry for name, (entry, _) in _searched(words).items()}


def _searched(words: Sequence[str]) -> dict[str, tuple[Any, str]]:
    entered = dict[str, tuple[Any, str]]()
    for word in words:
        names, equals, written = word.partition("=")
        rows = [_row(each, f"--search {word}") for each in names.split(",") if each.strip()]
        entries: dict[str, Any] = dict.fromkeys((row.name for row in rows), SUGGESTED)
        if equals:
            row = rows[0] if rows else _row(names, f"--search {word}")
            entry, wrong = _checked(row, written)
            if len(rows) > 1 or entry is None:
                raise BadInput(Problem(f"--search {word} is not a range of {row.name}", RANGES))
            if wrong:
                raise BadInput(
                    *(replace(problem, what=f"--search {word}: {problem.what}") for problem in wrong)
                )
            entries = {row.name: entry}
        _add(entered, entries, f"--search {word}")
    return entered


def read_grid(
    words: Sequence[str], ranges: Mapping[str, Any], search: Sequence[str] = ()
) -> dict[str, list[Any]]:
    """Parse the options `--grid n_layer=1,2,4` into a grid; a name alone gets the values of its range.

    Raises:
        BadInput: a hyperparameter is unknown, does not accept a value, has no list of values, is given two lists, or
            is in one of the options `search` too.
    """
    grid, searched = dict[str, tuple[Any, str]](), _searched(search)
    for word in words:
        name, equals, written = word.partition("=")
        row = _row(name, f"--grid {word}")
        try:
            values = values_of(row, written) if equals else ranges.get(row.name, row.suggested)
        except ValueError as error:
            raise BadInput(Problem(f"--grid {word}: {error}", row.allowed)) from None
        if not isinstance(values, list | tuple) or not values:
            raise BadInput(Problem(f"--grid {row.name} has no list of values", f"{row.name}=A,B,C"))
        if row.name in searched:
            raise BadInput(conflict(f"--grid {word}", searched[row.name][1]))
        _add(grid, {row.name: list(dict.fromkeys(values))}, f"--grid {word}")
    return {name: values for name, (values, _) in grid.items()}


def _add(entered: dict[str, tuple[Any, str]], entries: Mapping[str, Any], option: str) -> None:
    """Add the entries of one more option, none of which may have been given differently before."""
    for name, entry in entries.items():
        before, first = entered.setdefault(name, (entry, option))
        if before != entry:
            raise BadInput(conflict(first, option))


def overrides_of(option: str) -> list[str]:
    """Return the overrides of a study file that an option of the command line stands for.

    The option is `--grid WORD`, `--search WORD`, `--at NAME=VALUE`, one of `_PLACES` with its value, or an override
    itself.

    Raises:
        BadInput: as `read_grid` and `read_search` do.
    """
    kind, _, word = option.partition(" ")
    if kind in _PLACES:
        return [f"{_PLACES[kind]}={yaml_text(word)}"]
    if kind == "--at":
        return [word]
    if kind not in ("--grid", "--search"):
        return [option]
    section, (name, _, text) = kind[2:], word.partition("=")
    if "," not in name and text and (row := _row(name, option)).kind == "str":
        return [f"{section}.{row.name}=[{text}]"]  # a plugin, not imported yet, may add choices
    entries = read_grid([word], {}) if section == "grid" else read_search([word])
    return [f"{section}.{each}={yaml_text(entry)}" for each, entry in entries.items()]


def _row(name: str, word: str) -> Hyperparameter:
    known = canonical(name.strip())
    if known not in TABLE:
        raise BadInput(Problem(f"{word}: unknown hyperparameter {name!r}", "", nearest(known, TABLE)))
    return TABLE[known]
