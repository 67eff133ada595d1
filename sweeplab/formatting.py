"""Write numbers, counts, sizes, times and addresses for people: the only place that decides their form."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any
from urllib.parse import unquote

_LARGE = 1e5
_SCALES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
# Texts that YAML reads as text without quotes.
_PLAIN_TEXT = re.compile(
    r"(?!(?:true|false|null|yes|no|on|off)$)[A-Za-z][\w./-]*", re.IGNORECASE | re.ASCII
)
# The names of secrets in the query of an address.
_NAME = re.compile(r"\w+[_=]")  # of a hyperparameter or a cell
_SECRET = re.compile("pass|pwd|secret|token|key|cred|auth|sig|odbc", re.IGNORECASE)
# User and password of an address, up to the @ that ends them: a password may hold unescaped / # ? and @.
_USER = re.compile(r"(?<=://)[^/?#@:]*:.*@", re.DOTALL)
# For a server a token may take the user's place.
_TOKEN = re.compile(r"(?<=http://|ttps://)[^/?#@]*@")
# What steers a terminal, turns the direction of a line or ends it; half a surrogate, which no stream can encode.
_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def written(value: Any) -> str:
    """Write a value to three digits, integers in full: 27,008, 0.25, 3.17e-4, (0.9, 0.95), gelu; None is none."""
    if hasattr(value, "item"):  # a NumPy scalar
        value = value.item()
    if value is None or value != value:
        return "none"
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, Iterable):
        return f"({', '.join(written(each) for each in value)})"
    number = float(value)
    if not math.isfinite(number):
        return str(number)
    if not number.is_integer() or abs(number) >= 1e9:
        number = float(f"{number:.3g}")
    if number.is_integer() and abs(number) < 1e9:
        return f"{int(number):,}"
    return decimal(number)


def rounded(number: float) -> str:
    """Write a measured or fitted number to three digits: 0.346, 2,180, 294M."""
    number = float(f"{number:.3g}")
    return short(number) if abs(number) >= _LARGE else written(number)


def short(number: float) -> str:
    """Write a number for an axis or a label: 812k, 1.4M, 2e-05."""
    for size, letter in _SCALES:
        if size <= abs(number) < 1e15:
            return f"{number / size:.3g}{letter}"
    return f"{number:.4g}".replace("e+", "e")


def decimal(number: float) -> str:
    """Write a number with all its digits, as YAML has it: 0.25, 3e-4, 1e6."""
    if number and not 1e-2 < abs(number) < 1e6:
        from decimal import Decimal  # slower to import than the rest that `--help` needs

        mantissa, exponent = f"{Decimal(repr(number)).normalize():e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    return repr(number)


def yaml_text(value: Any) -> str:
    """Write a value as YAML on one line: 3e-4, true, null, [0.9, 0.95], {min: 1, max: 8}, cosine, "a text"."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {yaml_text(each)}' for key, each in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(yaml_text, value))}]"
    if isinstance(value, float):
        return decimal(value)
    if isinstance(value, str) and not _PLAIN_TEXT.fullmatch(value):
        quoted = json.dumps(value, ensure_ascii=False)
        return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)
    return str(value)


def json_ready(value: Any) -> Any:
    """Return a value ready for JSON: objects by their `as_dict` or fields, NaN and infinite numbers as None."""
    if hasattr(value, "as_dict"):
        value = value.as_dict()
    elif is_dataclass(value):
        value = vars(value)
    if isinstance(value, Mapping):
        return {str(key): json_ready(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(each) for each in value]
    if getattr(value, "shape", None) == ():  # a NumPy scalar
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def span(low: float | None, high: float | None) -> str:
    """Write the ends of an interval; None is an open end."""
    if low is None:
        return "no limits" if high is None else f"up to {rounded(high)}"
    return (
        f"from {rounded(low)}, no upper limit"
        if high is None
        else f"{rounded(low)} to {rounded(high)}"
    )


def several(count: int, noun: str) -> str:
    """Write a count with its noun: 1 run, 1,200 runs, 2 entries."""
    if count != 1:
        noun = re.sub("(?<=[drt])y$", "ie", noun) + "s"
    return f"{count:,} {noun}"


def out_of(count: int, total: int | None) -> str:
    """Write how many of a total there are, if there is one: 4/6; 4."""
    if total:
        return f"{count}/{total}"
    return str(count)


def counts(by_name: Mapping[str, int]) -> str:
    """Write counts by name, in the mapping's order: 24 complete, 3 pruned."""
    return ", ".join(f"{count:,} {name}" for name, count in by_name.items())


def listed(names: Sequence[str]) -> str:
    """Write several names: a; a and b; a, b and c."""
    *most, last = names
    if not most:
        return last
    return f"{', '.join(most)} and {last}"


def several_named(names: Sequence[str], most: int = 3) -> str:
    """Write the first of several names, and how many more there are."""
    shown = ", ".join(names[:most])
    if len(names) <= most:
        return shown
    return f"{shown} and {len(names) - most:,} more"


def sentence(text: str) -> str:
    """Write a clause as a sentence: a capital first, unless it is a name such as n_layer; one full stop last."""
    if not _NAME.match(text):
        text = text[:1].upper() + text[1:]
    return f"{text.rstrip('.')}."


def duration(seconds: float) -> str:
    """Write a length of time, as a study file has it: 0.25s, 45s, 2m05s, 10m, 1h07m."""
    if abs(seconds) < 9.5:
        return f"{decimal(round(seconds, 2)).removesuffix('.0')}s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    amounts = {"h": hours, "m": minutes, "s": seconds}
    return "".join(f"{amount:02}{unit}" for unit, amount in amounts.items() if amount).lstrip(
        "0"
    )


def bytes_in_words(count: float) -> str:
    """Write a number of bytes: 134 MB, 1.2 GB."""
    for size, letter in _SCALES:
        if count >= size:
            return f"{count / size:.3g} {letter}B"
    return f"{count:.0f} bytes"


def visible(text: str) -> str:
    """Write a text from anywhere for a terminal: control characters as escapes, such as \\x1b; lines and tabs stay."""
    return _STEERING.sub(lambda match: ascii(match[0])[1:-1], text)


def on_one_line(text: str) -> str:
    """Write a name from anywhere as `visible` does, and its ends of lines and tabs as escapes, too."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def without_password(address: str) -> str:
    """Write an address that may be shown and recorded: without user, password and the secrets of its query.

    Everything up to the last @ may be a password; if that @ may belong to the query, only the scheme is kept.
    """
    # Up to the last @: where one follows, the first place that may be a user is one.
    user = _USER.search(address, 0, address.rfind("@") + 1)
    if user and "=" in user[0].partition("?")[2]:
        return f"{address[: user.start()]}***"
    if user:
        address = address[: user.start()] + address[user.end() :]
    place, mark, query = _TOKEN.sub("", address).partition("?")
    parts = []
    for part in query.split("&"):
        key, equals, value = part.partition("=")
        if _SECRET.search(unquote(key)):
            value = "***"
        parts.append(key + equals + value)
    return place + mark + "&".join(parts)


def without_passwords(text: str) -> str:
    """Apply `without_password` to every address in a text, such as a library's error."""
    return re.sub(
        r"\S+", lambda word: without_password(word[0]) if "://" in word[0] else word[0], text
    )
