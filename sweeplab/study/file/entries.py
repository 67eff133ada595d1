"""The value, range or choices of one hyperparameter in a study file, checked against the table."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from sweeplab.errors import Problem, nearest, synonym
from sweeplab.expressions import ALLOWED, Expression, in_table_names
from sweeplab.hyperparameters import AUTO, TABLE, Hyperparameter, canonical, is_number
from sweeplab.study.problems import LENGTHS, Location, Problems, dotted, shown
from sweeplab.study.search import CONFIDENCES, Choices, Derived, Divisors, Range, SearchSpec

SUGGESTED = "suggested"
# In place of a value that was refused: null is a value.
WRONG: Any = object()
_RANGE = ("min", "max", "log", "step", "when", "prior", "confidence")
# The forms of an entry of `search`: the key that identifies each, and the keys that it may have.
FORMS: dict[str, tuple[str, ...]] = {
    "expr": ("expr",),
    "divides": ("divides", "min", "max", "when"),
    "choices": ("choices", "when"),
    "min": _RANGE,
    "max": _RANGE,
}
_KEYS = [*_RANGE, "choices", "divides", "expr"]
_FORMS_IN_WORDS = (
    f"{{{', '.join(_RANGE)}}} | [a, list] | {{choices, when}} | {{divides, min, max}} | {{expr}}"
)


# A float cannot distinguish more steps than this.
MOST_STEPS = 2**53
# All runs of a study are evaluated on the same targets, because their losses are compared.
EVALUATED = ("eval_tokens", "eval_iters", "eval_full", "eval_train")


# A share of a run's length, or of the learning rate: "5%", "10% of all training steps".
_SHARE = re.compile(
    r"(\d+\.?\d*|\.\d+)\s*%(?:\s+of)?(?:\s+(?:the|all|total|training|peak|max))*"
    r"(?:\s+(?:steps|iterations|iters|max_iters|training|learning_rate|learning rate|lr))?"
)


def takes_share(row: Hyperparameter) -> bool:
    """Return whether a hyperparameter may be a share: of the learning rate, or of a run's iterations."""
    return row.name == "min_lr" or (row.unit == "iterations" and row.name not in LENGTHS)


def share_of(row: Hyperparameter, written: Any) -> dict[str, str] | None:
    """Return the expression that a share stands for: 5% of max_iters, or of learning_rate for min_lr; else None."""
    share = _SHARE.fullmatch(written.strip()) if isinstance(written, str) and len(written) < 100 else None
    if share is None or not takes_share(row) or float(share[1]) > 100:
        return None
    percent = float(share[1])
    if row.name == "min_lr":
        return {"expr": f"learning_rate * {percent:g} / 100"}
    expression = f"max_iters * {percent:g} // 100"
    return {"expr": f"max({row.low:g}, {expression})" if row.low and row.kind == "int" else expression}


def is_searched(row: Hyperparameter) -> bool:
    """Return whether a hyperparameter may be searched: those that depend on the machine may not."""
    return row.name not in ("seed", *EVALUATED) and row.category != "precision"


def expression(written: Any, path: Location, problems: Problems) -> Expression | None:
    """Parse an expression; add a problem and return None where it is invalid."""
    if not isinstance(written, str):
        problems.add(path, f"{dotted(path)} is {shown(written)}", "an expression, such as max_iters // 10")
        return None
    try:
        return Expression(in_table_names(written))
    except ValueError as error:
        problems.add(path, f"{dotted(path)}: {error}", ALLOWED)
        return None


@dataclass(frozen=True)
class Written:
    """The entry of a hyperparameter at one place of a study file; its methods add what is wrong to `problems`."""

    row: Hyperparameter
    value: Any
    path: Location
    problems: Problems

    def wrong(self, allowed: str, near: str = "", what: str = "") -> None:
        """Add the problem `what`; by default, that the value is not allowed."""
        self.problems.add(self.path, what or f"{self} is {shown(self.value)}", allowed, near)

    def __str__(self) -> str:
        return dotted(self.path)

    def _at(self, key: str | int) -> Written:
        return replace(self, value=self.value[key], path=(*self.path, key))

    def literal(self) -> Any:
        """Return the value as the row's own type, or WRONG."""
        try:
            return self.row.check(self.value)
        except ValueError:
            allowed = self.row.allowed
            if isinstance(self.value, Mapping):
                allowed += "; put ranges and expressions under search"
            self.wrong(allowed, nearest(self.value, self.row.choices))
            return WRONG

    def literals(self) -> tuple[Any, ...]:
        """Return the distinct values of a list."""
        if not isinstance(self.value, list | tuple) or not self.value:
            self.wrong(f"a list of one or more of: {self.row.allowed}")
            return ()
        values: list[Any] = []
        for index in range(len(self.value)):
            item = self._at(index)
            value = item.literal()
            if value is WRONG:
                continue
            if value in values:
                item.wrong("", what=f"{self} has {shown(value)} twice")
            else:
                values.append(value)
        return tuple(values)

    def entry(self) -> SearchSpec | None:
        """Return an entry of `search` typed, or None where it is wrong."""
        if self.value == SUGGESTED and self.row.suggested is not None:
            return replace(self, value=self.row.suggested).entry()
        before = len(self.problems.found)
        entry = self._entry()
        return entry if len(self.problems.found) == before else None

    def _entry(self) -> SearchSpec | None:
        """Return the entry of its form; what it is where a problem was added does not matter."""
        if isinstance(self.value, list | tuple):
            return Choices(self.literals())
        if not isinstance(self.value, Mapping):
            self._no_form()
            return None
        form = next((key for key in FORMS if key in self.value), "")
        keys = FORMS.get(form, _KEYS)
        unknown = [key for key in self.value if key not in keys]
        for key in unknown:
            self.problems.unknown((*self.path, key), keys, "key", ["fixed"])
        if unknown:
            return None
        when = self._expression("when")
        if form == "":
            self._no_form()
            return None
        if form == "expr":
            derived = self._expression("expr")
            return Derived(derived) if derived else None
        if form == "choices":
            return Choices(self._at("choices").literals(), when)
        if form == "divides":
            return self._divisors(when)
        return self._range(when)

    def _expression(self, key: str) -> Expression | None:
        if key not in self.value:
            return None
        return expression(self.value[key], (*self.path, key), self.problems)

    def _no_form(self) -> None:
        allowed = _FORMS_IN_WORDS
        if self.value == SUGGESTED:
            self.wrong(allowed, what=f"the table suggests no range for {self.row.name}")
            return
        if self.row.suggested is not None:
            allowed = f"{SUGGESTED} | {allowed}"
        if not isinstance(self.value, str | Mapping):
            allowed += "; put a single value under fixed"
        self.wrong(allowed, nearest(self.value, [SUGGESTED]))

    def _divisors(self, when: Expression | None) -> Divisors | None:
        of, row = self._at("divides"), self.row
        if isinstance(of.value, str):
            of = replace(of, value=canonical(of.value))
        whole = [other.name for other in TABLE.values() if other.kind == "int"]
        whole = [name for name in whole if name not in (row.name, "seed")]
        if row.kind != "int":
            of.wrong(row.allowed, what=f"{row.name} is not a whole number, so it divides nothing")
            return None
        if of.value not in whole:
            what, near = "", nearest(str(of.value), whole)
            if isinstance(of.value, str) and of.value not in TABLE:
                what, near = (
                    f"{of}: unknown hyperparameter {shown(of.value)}",
                    near or nearest(of.value, TABLE),
                )
            of.wrong("the name of a whole-number hyperparameter, such as n_embd", near, what)
        ends = replace(self, value={"min": row.low, "max": row.high, **self.value})._ends()
        return Divisors(of.value, int(ends[0]), int(ends[1]), when) if ends else None

    def _range(self, when: Expression | None) -> Range | None:
        if self.row.kind not in ("int", "float"):
            self.wrong(f"a list of choices: {self.row.allowed}", what=f"{self.row.name} takes no range")
            return None
        log, step = self.value.get("log", False), self.value.get("step")
        if not isinstance(log, bool):
            self._at("log").wrong("true or false")
        ends = self._ends()
        if not ends:
            return None
        low, high = ends
        if low == high:
            what = f"{self} is empty: min and max are both {low:g}"
            self.wrong("a max above min; put a single value under fixed", what=what)
        if log is True and low <= 0:
            what = f"{self} is logarithmic and starts at {low:g}"
            self._at("min").wrong("a min above 0, or no log", what=what)
        if step is not None:
            step = self._at("step")._step(low, high, log is True)
        prior, confidence = self._prior(low, high), self.value.get("confidence")
        return Range(low, high, log is True, step, when, self.row.kind == "int", prior, confidence)

    def _prior(self, low: float, high: float) -> float | None:
        if "prior" not in self.value:
            if "confidence" in self.value:
                what = f"{self} has a confidence, but no prior"
                self._at("confidence").wrong("a prior beside it", what=what)
            return None
        if "confidence" in self.value and str(self.value["confidence"]) not in CONFIDENCES:
            near = nearest(str(self.value["confidence"]), CONFIDENCES)
            self._at("confidence").wrong(" | ".join(CONFIDENCES), near)
        prior = self._at("prior")
        if not is_number(prior.value):
            prior.wrong(f"a number from {low:g} to {high:g}")
            return None
        if not low <= prior.value <= high:
            what = f"{prior} is {shown(prior.value)}, which lies outside of its range"
            prior.wrong(f"{low:g} to {high:g}", what=what)
        return float(prior.value)

    def _ends(self) -> list[float]:
        ends: list[float] = []
        for key in ("min", "max"):
            if key not in self.value:
                self.wrong(self.row.allowed, what=f"{self} has no {key}")
            elif not is_number(self.value[key]):
                self._at(key).wrong(self.row.allowed)
            else:
                end = self._at(key).literal()
                if end is not WRONG:
                    ends.append(end)
        if ends != sorted(ends):
            self.wrong("min below max", what=f"{self} is inverted: min {ends[0]:g} is above max {ends[1]:g}")
        return ends if len(ends) == 2 else []

    def _step(self, low: float, high: float, log: bool) -> float | None:
        step, is_whole = self.value, self.row.kind == "int"
        if not is_number(step) or not 0 < step < math.inf or (is_whole and step % 1):
            self.wrong("a whole number above 0" if is_whole else "a number above 0")
            return None
        if log:
            what = f"{dotted(self.path[:-1])} is logarithmic and has a step"
            self.wrong("either log or step", what=what)
            return None
        first, width = Fraction(str(low)), Fraction(str(step))
        steps = (Fraction(str(high)) - first) / width
        if steps > MOST_STEPS:
            self.wrong(f"a step that divides the range into at most {MOST_STEPS:,} steps, or no step")
        elif steps % 1:
            ends = [first + count * width for count in (int(steps), int(steps) + 1) if count]
            near = " or ".join(f"{float(end):g}" for end in ends if end <= sys.float_info.max)
            what = f"{self}: max {high:g} is not a whole number of steps above min {low:g}"
            self.wrong(f"such as max {near}" if near else "no step, or one that ends at max", what=what)
        else:
            return int(step) if is_whole else float(step)
        return None


# ------------------------------------------------------------------ hand-written values and ranges

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
_BETWEEN = re.compile(r"\s*(?:\.\.+|…|\bto\b|[–—]|(?<=[\d.\s%kKmM])-(?=[\d.\s]))\s*")
_TIMES = re.compile(r"\s*[×·]\s*|(?<=\d)\s*x\s+(?=[A-Za-z])")
_AMONG = re.compile(r"\s*(?:[,;|/]|\bor\b)\s*(?:or\b\s*)?")
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
        with suppress(ValueError):
            return row.check(value)
    raise ValueError(f"{row.name} is {text!r}" if text else f"{row.name} has no value")


def plain(cell: str) -> str:
    """Return a cell's text without emphasis, back-ticks and escapes."""
    # Escaped characters are moved to the private use area, so that an escaped star is not taken for emphasis.
    text = _ESCAPED.sub(lambda match: chr(0xE000 + ord(match[1])), cell).replace("`", "").strip()
    n_removed = 1
    while n_removed:
        text, n_removed = _EMPHASIS.subn(r"\2", text)
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
    power, suffixed = _POWER_OF_TEN.fullmatch(text), _SUFFIXED.fullmatch(text)
    if power:
        return float(f"{power[1] or 1}e{power[2]}")
    if suffixed:
        return float(
            f"{_number(suffixed[1]) * _FACTORS[suffixed[2].lower()]:.12g}"
        )  # 10% is 0.1, not 0.1000…01
    return math.nan


def read_range(row: Hyperparameter, text: str) -> Any:
    """Parse a range or choices of a row into an entry of `search`; return None if the text is neither.

    Two ends without "log" or "linear" give a logarithmic range if the table's suggested range is one.
    """
    entry, problems = checked_range(row, text)
    return None if problems else entry


def checked_range(row: Hyperparameter, text: str) -> tuple[Any, list[Problem]]:
    """Parse a range or choices as `read_range` does; return the entry, or None, and what is wrong with it."""
    if len(text) > LONGEST or not (is_searched(row) or row.category == "precision"):
        return None, []
    text, entry, problems = plain(text), None, Problems()
    with suppress(ValueError):
        entry = share_of(row, NOTE.sub("", text)) or _derived(row, text) or _entry(row, text)
    if entry is not None:
        Written(row, entry, ("search", row.name), problems).entry()
    return entry, problems.found


def _derived(row: Hyperparameter, text: str) -> dict[str, str] | None:
    """Return the expression that a text is, if it has names of other hyperparameters: 0.1 × learning_rate."""
    if row.kind not in ("int", "float"):
        return None
    try:
        parsed = Expression(in_table_names(_TIMES.sub(" * ", text)))
    except ValueError:
        return None
    if not parsed.names or not parsed.names <= TABLE.keys() - {row.name}:
        return None
    return {"expr": parsed.text}


def _entry(row: Hyperparameter, text: str) -> Any:
    if text.lower() == SUGGESTED:
        return SUGGESTED
    believed = _PRIOR.search(text)
    if believed:
        text = text[: believed.start()]
    bare, is_log, is_linear = text, 0, 0
    if row.kind != "str":  # whose choices may be called linear
        bare, is_log = _LOG.subn("", bare)
        bare, is_linear = _LINEAR.subn("", bare)
    step = _STEP.search(bare)
    if step:
        bare = bare[: step.start()]
    bare = bare.strip()
    inside = _unbracketed(bare)
    ends = _BETWEEN.split(inside)
    if len(ends) != 2 and inside != bare and bare[0] in "([":
        ends = [end.strip() for end in inside.split(",")]
    if len(ends) == 2 and ends[1].endswith("%") and not ends[0].endswith("%"):
        ends[0] += "%"
    if len(ends) == 2 and row.kind in ("int", "float") and not row.choices:
        entry: dict[str, Any] = {"min": parse_value(row, ends[0]), "max": parse_value(row, ends[1])}
        suggests_log = isinstance(row.suggested, dict) and "log" in row.suggested
        if is_log or (suggests_log and not is_linear and not step and entry["min"] != 0):
            entry["log"] = True
        if step:
            entry["step"] = parse_value(row, step[1])
        if believed:
            entry["prior"] = parse_value(row, believed[1])
        if believed and believed[2]:
            entry["confidence"] = believed[2].lower()
        return entry
    values = values_of(row, bare)
    has_words = is_log or is_linear or step or believed
    return values if len(values) > 1 and not has_words else None


def _unbracketed(text: str) -> str:
    whole = _BRACKETED.fullmatch(text)
    return whole[1].strip() if whole else text


def values_of(row: Hyperparameter, text: str) -> list[Any]:
    """Parse a list of values: `1,2,4`, `{gelu, relu}`, `(0.9, 0.95), (0.9, 0.99)`, `true/false`.

    Raises:
        ValueError: the row does not accept one of them; the message says which.
    """
    if len(text) > LONGEST:
        raise ValueError(f"{row.name} has values of more than {LONGEST} characters")
    if row.kind == "floats":
        return [parse_value(row, each) for each in _BRACKETED.findall(text)]
    return [parse_value(row, part) for part in _AMONG.split(_unbracketed(text.strip())) if part.strip()]
