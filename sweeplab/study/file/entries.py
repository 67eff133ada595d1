"""One hyperparameter's value, range or choices as a study file writes them, checked against the table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from sweeplab.errors import nearest
from sweeplab.hyperparameters import TABLE, Hyperparameter
from sweeplab.study.expressions import ALLOWED, Expression
from sweeplab.study.problems import Location, Problems, dotted, shown
from sweeplab.study.search import Choices, Derived, Divisors, Range, SearchSpec

SUGGESTED = "suggested"


def is_searched(row: Hyperparameter) -> bool:
    """Say whether a hyperparameter may stand under `search`: the machine's own may not."""
    return row.name != "seed" and row.category != "precision"


def literal(row: Hyperparameter, written: Any, path: Location, problems: Problems) -> Iterator[Any]:
    """Yield `written` as the row's own type, or nothing and complain."""
    try:
        yield row.check(written)
    except (ValueError, OverflowError):
        near = nearest(written, row.choices) if isinstance(written, str) else ""
        allowed = row.allowed
        if isinstance(written, Mapping):
            allowed += "; ranges and expressions stand under search"
        problems.add(path, f"{dotted(path)} is {shown(written)}", allowed, near)


def literals(row: Hyperparameter, written: Any, path: Location, problems: Problems) -> tuple[Any, ...]:
    """Return the distinct values of a list, and problems of all that is wrong with it."""
    if not isinstance(written, list | tuple) or not written:
        problems.add(path, f"{dotted(path)} is {shown(written)}", f"a list of one or more of: {row.allowed}")
        return ()
    values: list[Any] = []
    for index, each in enumerate(written):
        for value in literal(row, each, (*path, index), problems):
            if value in values:
                problems.add((*path, index), f"{dotted(path)} has {shown(value)} twice")
            else:
                values.append(value)
    return tuple(values)


def search_entry(row: Hyperparameter, written: Any, path: Location, problems: Problems) -> SearchSpec | None:
    """Return an entry of `search` typed, or None and complain."""
    before = len(problems.found)
    if written == SUGGESTED and row.suggested is not None:
        written = row.suggested
    entry: SearchSpec | None = None
    if isinstance(written, list | tuple):
        entry = Choices(literals(row, written, path, problems))
    elif not isinstance(written, Mapping) or not (form := next((key for key in FORMS if key in written), "")):
        _no_form(row, written, path, problems)
    else:
        keys, read = FORMS[form]
        for key in written:
            if key not in keys:
                problems.unknown((*path, key), keys, "key")
        entry = read(row, written, path, problems)
    return entry if len(problems.found) == before else None


def _no_form(row: Hyperparameter, written: Any, path: Location, problems: Problems) -> None:
    allowed, near = _FORMS_IN_WORDS, ""
    if written == SUGGESTED:
        problems.add(path, f"the table suggests no range of {row.name}", allowed)
        return
    if row.suggested is not None:
        allowed = f"{SUGGESTED} | {allowed}"
    if isinstance(written, Mapping):
        near = nearest(str(next(iter(written), "")), FORMS)
    elif isinstance(written, str):
        near = nearest(written, [SUGGESTED])
    else:
        allowed += "; a single value stands under fixed"
    problems.add(path, f"{dotted(path)} is {shown(written)}", allowed, near)


def expression(written: Any, path: Location, problems: Problems) -> Expression | None:
    """Return a text as an expression, or None and complain."""
    if not isinstance(written, str):
        problems.add(path, f"{dotted(path)} is {shown(written)}", "an expression, such as max_iters // 10")
        return None
    try:
        return Expression(written)
    except ValueError as error:
        problems.add(path, f"{dotted(path)}: {error}", ALLOWED)
        return None


def _when(written: Mapping[str, Any], path: Location, problems: Problems) -> Expression | None:
    return expression(written["when"], (*path, "when"), problems) if "when" in written else None


def _derived(
    row: Hyperparameter, written: Mapping[str, Any], path: Location, problems: Problems
) -> SearchSpec | None:
    expr = expression(written["expr"], (*path, "expr"), problems)
    return Derived(expr) if expr else None


def _choices(
    row: Hyperparameter, written: Mapping[str, Any], path: Location, problems: Problems
) -> SearchSpec | None:
    values = literals(row, written["choices"], (*path, "choices"), problems)
    return Choices(values, _when(written, path, problems))


def _divisors(
    row: Hyperparameter, written: Mapping[str, Any], path: Location, problems: Problems
) -> SearchSpec | None:
    of = written["divides"]
    whole = [name for name, other in TABLE.items() if other.kind == "int" and name not in (row.name, "seed")]
    if row.kind != "int":
        problems.add((*path, "divides"), f"{row.name} divides nothing", row.allowed)
        return None
    if of not in whole:
        what, near = f"{dotted(path)}.divides is {shown(of)}", nearest(str(of), whole)
        problems.add((*path, "divides"), what, "the name of a hyperparameter that is a whole number", near)
    ends = _ends(row, {"min": row.low, "max": row.high, **written}, path, problems)
    when = _when(written, path, problems)
    return Divisors(of, int(ends[0]), int(ends[1]), when) if ends else None


def _range(
    row: Hyperparameter, written: Mapping[str, Any], path: Location, problems: Problems
) -> SearchSpec | None:
    if row.kind not in ("int", "float"):
        problems.add(path, f"{row.name} has no range", f"a list of choices: {row.allowed}")
        return None
    log, step = written.get("log", False), written.get("step")
    if not isinstance(log, bool):
        problems.add((*path, "log"), f"{dotted(path)}.log is {shown(log)}", "true or false")
    when = _when(written, path, problems)
    ends = _ends(row, written, path, problems)
    if ends is None:
        return None
    low, high = ends
    if low == high:
        what = f"{dotted(path)} is empty: min and max are both {low:g}"
        problems.add(path, what, "a single value stands under fixed")
    if log is True and low <= 0:
        what = f"{dotted(path)} is logarithmic and starts at {low:g}"
        problems.add((*path, "min"), what, "a min above 0, or no log")
    if step is not None:
        step = _step(row, low, high, step, log is True, (*path, "step"), problems)
    return Range(low, high, log is True, step, when, row.kind == "int")


def _ends(
    row: Hyperparameter, written: Mapping[str, Any], path: Location, problems: Problems
) -> tuple[float, float] | None:
    """Return min and max, or None and complain."""
    ends: list[float] = []
    for key in ("min", "max"):
        if key not in written:
            problems.add(path, f"{dotted(path)} has no {key}", row.allowed)
        elif isinstance(written[key], bool) or not isinstance(written[key], int | float):
            problems.add((*path, key), f"{dotted(path)}.{key} is {shown(written[key])}", row.allowed)
        else:
            ends += literal(row, written[key], (*path, key), problems)
    if len(ends) < 2:
        return None
    low, high = ends
    if low > high:
        what = f"{dotted(path)} is inverted: min {low:g} is above max {high:g}"
        problems.add(path, what, "min below max")
        return None
    return low, high


def _step(
    row: Hyperparameter, low: float, high: float, step: Any, log: bool, path: Location, problems: Problems
) -> float | None:
    """Return the step in the row's own type, or None and complain."""
    number = isinstance(step, int | float) and not isinstance(step, bool) and 0 < step < math.inf
    if not number or (row.kind == "int" and step != int(step)):
        kind = "a whole number" if row.kind == "int" else "a number"
        problems.add(path, f"{dotted(path)} is {shown(step)}", f"{kind} above 0")
    elif log:
        problems.add(path, f"{dotted(path[:-1])} is logarithmic and has a step", "either log or step")
    elif (Decimal(str(high)) - Decimal(str(low))) % Decimal(str(step)):
        steps = int((high - low) / step)
        near = " or ".join(f"{low + count * step:g}" for count in (steps, steps + 1) if count)
        what = f"{dotted(path)}: max {high:g} is no whole number of steps above min {low:g}"
        problems.add(path, what, f"such as max {near}")
    else:
        return int(step) if row.kind == "int" else float(step)
    return None


# What a form is known by: the keys it may have, and what reads it.
_Reader = Callable[[Hyperparameter, Mapping[str, Any], Location, Problems], SearchSpec | None]
_RANGE_KEYS = ("min", "max", "log", "step", "when")
FORMS: dict[str, tuple[tuple[str, ...], _Reader]] = {
    "expr": (("expr",), _derived),
    "divides": (("divides", "min", "max", "when"), _divisors),
    "choices": (("choices", "when"), _choices),
    "min": (_RANGE_KEYS, _range),
    "max": (_RANGE_KEYS, _range),
}
_FORMS_IN_WORDS = "{min, max, log, step, when} | [a, list] | {choices, when} | {divides, min, max} | {expr}"
