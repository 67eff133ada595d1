"""The value, range or choices of one hyperparameter in a study file, checked against the table."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from sweeplab.errors import nearest
from sweeplab.expressions import ALLOWED, Expression, in_table_names
from sweeplab.hyperparameters import TABLE, Hyperparameter, canonical
from sweeplab.study.problems import LENGTHS, Location, Problems, dotted, shown
from sweeplab.study.search import CONFIDENCES, Choices, Derived, Divisors, Range, SearchSpec

SUGGESTED = "suggested"
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
    r"([\d.]{1,12})\s*%(?:\s+of)?(?:\s+(?:the|all|total|training))*(?:\s+(?:steps|iterations|iters|training|learning_rate))?"
)


def takes_share(row: Hyperparameter) -> bool:
    """Return whether a hyperparameter may be a share: of the learning rate, or of a run's iterations."""
    return row.name == "min_lr" or (row.unit == "iterations" and row.name not in LENGTHS)


def share_of(row: Hyperparameter, written: Any) -> dict[str, str] | None:
    """Return the expression that a share stands for: 5% of max_iters, or of learning_rate for min_lr; else None."""
    whole = "learning_rate" if row.name == "min_lr" else "max_iters"
    share = _SHARE.fullmatch(written.strip()) if isinstance(written, str) and len(written) < 100 else None
    if share is None or not takes_share(row) or not 0 <= (percent := _percent(share[1])) <= 100:
        return None
    expression = f"{whole} * {percent:g} / 100" if row.name == "min_lr" else f"{whole} * {percent:g} // 100"
    return {"expr": f"max({row.low:g}, {expression})" if row.low and row.kind == "int" else expression}


def _percent(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


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

    def literal(self) -> Iterator[Any]:
        """Yield the value as the row's own type, or nothing where it is wrong."""
        try:
            yield self.row.check(self.value)
        except ValueError:
            near = nearest(self.value, self.row.choices) if isinstance(self.value, str) else ""
            under_search = "; put ranges and expressions under search"
            self.wrong(self.row.allowed + (under_search if isinstance(self.value, Mapping) else ""), near)

    def literals(self) -> tuple[Any, ...]:
        """Return the distinct values of a list."""
        if not isinstance(self.value, list | tuple) or not self.value:
            self.wrong(f"a list of one or more of: {self.row.allowed}")
            return ()
        values: list[Any] = []
        for item in map(self._at, range(len(self.value))):
            for value in item.literal():
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
        if len(self.problems.found) == before:
            return entry
        return None

    def _entry(self) -> SearchSpec | None:
        if isinstance(self.value, list | tuple):
            return Choices(self.literals())
        written = self.value if isinstance(self.value, Mapping) else {}
        form = next((key for key in FORMS if key in written), None)
        unknown = [key for key in written if key not in (FORMS[form] if form else _KEYS)]
        for key in unknown:
            self.problems.unknown((*self.path, key), FORMS[form] if form else _KEYS, "key", ["fixed"])
        if unknown:
            return None
        if form is None:
            self._no_form()
            return None
        when = self._expression("when")
        match form:
            case "expr":
                expr = self._expression("expr")
                if expr:
                    return Derived(expr)
                return None
            case "choices":
                return Choices(self._at("choices").literals(), when)
            case "divides":
                return self._divisors(when)
            case _:
                return self._range(when)

    def _no_form(self) -> None:
        allowed, near = _FORMS_IN_WORDS, ""
        if self.value == SUGGESTED:
            self.wrong(allowed, what=f"the table suggests no range for {self.row.name}")
            return
        if self.row.suggested is not None:
            allowed = f"{SUGGESTED} | {allowed}"
        if isinstance(self.value, str):
            near = nearest(self.value, [SUGGESTED])
        elif not isinstance(self.value, Mapping):
            allowed += "; put a single value under fixed"
        self.wrong(allowed, near)

    def _expression(self, key: str) -> Expression | None:
        if key in self.value:
            return expression(self.value[key], (*self.path, key), self.problems)
        return None

    def _divisors(self, when: Expression | None) -> Divisors | None:
        of, row = self._at("divides"), self.row
        of = replace(of, value=canonical(of.value) if isinstance(of.value, str) else of.value)
        whole = [
            name for name, other in TABLE.items() if other.kind == "int" and name not in (row.name, "seed")
        ]
        if row.kind != "int":
            of.wrong(row.allowed, what=f"{row.name} is not a whole number, so it divides nothing")
            return None
        if of.value not in whole:
            is_unknown = isinstance(of.value, str) and of.value not in TABLE
            what = f"{of}: unknown hyperparameter {shown(of.value)}" if is_unknown else ""
            near = nearest(str(of.value), whole) or (nearest(of.value, TABLE) if is_unknown else "")
            of.wrong("the name of a whole-number hyperparameter, such as n_embd", near, what)
        ends = replace(self, value={"min": row.low, "max": row.high, **self.value})._ends()
        if ends:
            return Divisors(of.value, int(ends[0]), int(ends[1]), when)
        return None

    def _range(self, when: Expression | None) -> Range | None:
        if self.row.kind not in ("int", "float"):
            self.wrong(f"a list of choices: {self.row.allowed}", what=f"{self.row.name} takes no range")
            return None
        log, step = self.value.get("log", False), self.value.get("step")
        if not isinstance(log, bool):
            self._at("log").wrong("true or false")
        if not (ends := self._ends()):
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
        if "confidence" in self.value:
            confidence = self._at("confidence")
            if "prior" not in self.value:
                confidence.wrong("a prior beside it", what=f"{self} has a confidence, but no prior")
            elif confidence.value not in CONFIDENCES:
                confidence.wrong(" | ".join(CONFIDENCES), nearest(str(confidence.value), CONFIDENCES))
        if "prior" not in self.value:
            return None
        prior = self._at("prior")
        if isinstance(prior.value, bool) or not isinstance(prior.value, int | float):
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
            elif isinstance(self.value[key], bool) or not isinstance(self.value[key], int | float):
                self._at(key).wrong(self.row.allowed)
            else:
                ends += self._at(key).literal()
        if ends == sorted(ends):
            if len(ends) == 2:
                return ends
            return []
        self.wrong("min below max", what=f"{self} is inverted: min {ends[0]:g} is above max {ends[1]:g}")
        return []

    def _step(self, low: float, high: float, log: bool) -> float | None:
        step, whole = self.value, self.row.kind == "int"
        number = isinstance(step, int | float) and not isinstance(step, bool) and 0 < step < math.inf
        if not number or (whole and step != int(step)):
            self.wrong(f"{'a whole number' if whole else 'a number'} above 0")
        elif log:
            what = f"{dotted(self.path[:-1])} is logarithmic and has a step"
            self.wrong("either log or step", what=what)
        elif (steps := (Fraction(str(high)) - Fraction(str(low))) / Fraction(str(step))) > MOST_STEPS:
            self.wrong(f"a step that divides the range into at most {MOST_STEPS:,} steps, or no step")
        elif steps % 1:
            counts = filter(None, (int(steps), int(steps) + 1))
            ends = [Fraction(str(low)) + count * Fraction(str(step)) for count in counts]
            near = " or ".join(f"{float(each):g}" for each in ends if each <= sys.float_info.max)
            what = f"{self}: max {high:g} is not a whole number of steps above min {low:g}"
            self.wrong(f"such as max {near}" if near else "no step, or one that ends at max", what=what)
        else:
            if whole:
                return int(step)
            return float(step)
        return None
