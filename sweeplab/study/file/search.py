"""One hyperparameter's value, range or choices as a study file writes them, checked against the table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from sweeplab.errors import nearest
from sweeplab.hyperparameters import TABLE, Hyperparameter
from sweeplab.study.expressions import ALLOWED, Expression
from sweeplab.study.places import Complaints, Location, dotted, shown
from sweeplab.study.spec import Choices, Derived, Divisors, Range, SearchSpec

SUGGESTED = "suggested"


def is_searched(row: Hyperparameter) -> bool:
    """Say whether a hyperparameter may stand under `search`: the machine's own may not."""
    return row.name != "seed" and row.category != "precision"


def literal(row: Hyperparameter, written: Any, path: Location, complain: Complaints) -> Iterator[Any]:
    """Yield `written` as the row's own type, or nothing and complain."""
    try:
        yield row.check(written)
    except (ValueError, OverflowError):
        near = nearest(written, row.choices) if isinstance(written, str) else ""
        allowed = row.allowed
        if isinstance(written, Mapping):
            allowed += "; ranges and expressions stand under search"
        complain(path, f"{dotted(path)} is {shown(written)}", allowed, near)


def literals(row: Hyperparameter, written: Any, path: Location, complain: Complaints) -> tuple[Any, ...]:
    """Return the distinct values of a list, and complain of all that is wrong with it."""
    if not isinstance(written, list | tuple) or not written:
        complain(path, f"{dotted(path)} is {shown(written)}", f"a list of one or more of: {row.allowed}")
        return ()
    values: list[Any] = []
    for index, each in enumerate(written):
        for value in literal(row, each, (*path, index), complain):
            if value in values:
                complain((*path, index), f"{dotted(path)} has {shown(value)} twice")
            else:
                values.append(value)
    return tuple(values)


def search_entry(
    row: Hyperparameter, written: Any, path: Location, complain: Complaints
) -> SearchSpec | None:
    """Return an entry of `search` typed, or None and complain."""
    before = len(complain.problems)
    if written == SUGGESTED and row.suggested is not None:
        written = row.suggested
    entry: SearchSpec | None = None
    if isinstance(written, list | tuple):
        entry = Choices(literals(row, written, path, complain))
    elif not isinstance(written, Mapping) or not (form := next((key for key in FORMS if key in written), "")):
        _no_form(row, written, path, complain)
    else:
        keys, read = FORMS[form]
        for key in written:
            if key not in keys:
                complain.unknown((*path, key), keys, "key")
        entry = read(row, written, path, complain)
    return entry if len(complain.problems) == before else None


def _no_form(row: Hyperparameter, written: Any, path: Location, complain: Complaints) -> None:
    allowed, near = _FORMS_IN_WORDS, ""
    if written == SUGGESTED:
        complain(path, f"the table suggests no range of {row.name}", allowed)
        return
    if row.suggested is not None:
        allowed = f"{SUGGESTED} | {allowed}"
    if isinstance(written, Mapping):
        near = nearest(str(next(iter(written), "")), FORMS)
    elif isinstance(written, str):
        near = nearest(written, [SUGGESTED])
    else:
        allowed += "; a single value stands under fixed"
    complain(path, f"{dotted(path)} is {shown(written)}", allowed, near)


def expression(written: Any, path: Location, complain: Complaints) -> Expression | None:
    """Return a text as an expression, or None and complain."""
    if not isinstance(written, str):
        complain(path, f"{dotted(path)} is {shown(written)}", "an expression, such as max_iters // 10")
        return None
    try:
        return Expression(written)
    except ValueError as error:
        complain(path, f"{dotted(path)}: {error}", ALLOWED)
        return None


def _when(written: Mapping[str, Any], path: Location, complain: Complaints) -> Expression | None:
    return expression(written["when"], (*path, "when"), complain) if "when" in written else None


def _derived(
    row: Hyperparameter, written: Mapping[str, Any], path: Location, complain: Complaints
) -> SearchSpec | None:
    expr = expression(written["expr"], (*path, "expr"), complain)
    return Derived(expr) if expr else None


def _choices(
    row: Hyperparameter, written: Mapping[str, Any], path: Location, complain: Complaints
) -> SearchSpec | None:
    values = literals(row, written["choices"], (*path, "choices"), complain)
    return Choices(values, _when(written, path, complain))


def _divisors(
    row: Hyperparameter, written: Mapping[str, Any], path: Location, complain: Complaints
) -> SearchSpec | None:
    of = written["divides"]
    whole = [name for name, other in TABLE.items() if other.kind == "int" and name not in (row.name, "seed")]
    if row.kind != "int":
        complain((*path, "divides"), f"{row.name} divides nothing", row.allowed)
        return None
    if of not in whole:
        what, near = f"{dotted(path)}.divides is {shown(of)}", nearest(str(of), whole)
        complain((*path, "divides"), what, "the name of a hyperparameter that is a whole number", near)
    ends = _ends(row, {"min": row.low, "max": row.high, **written}, path, complain)
    when = _when(written, path, complain)
    return Divisors(of, int(ends[0]), int(ends[1]), when) if ends else None


def _range(
    row: Hyperparameter, written: Mapping[str, Any], path: Location, complain: Complaints
) -> SearchSpec | None:
    if row.kind not in ("int", "float"):
        complain(path, f"{row.name} has no range", f"a list of choices: {row.allowed}")
        return None
    log, step = written.get("log", False), written.get("step")
    if not isinstance(log, bool):
        complain((*path, "log"), f"{dotted(path)}.log is {shown(log)}", "true or false")
    when = _when(written, path, complain)
    ends = _ends(row, written, path, complain)
    if ends is None:
        return None
    low, high = ends
    if low == high:
        what = f"{dotted(path)} is empty: min and max are both {low:g}"
        complain(path, what, "a single value stands under fixed")
    if log is True and low <= 0:
        what = f"{dotted(path)} is logarithmic and starts at {low:g}"
        complain((*path, "min"), what, "a min above 0, or no log")
    if step is not None:
        step = _step(row, low, high, step, log is True, (*path, "step"), complain)
    return Range(low, high, log is True, step, when, row.kind == "int")


def _ends(
    row: Hyperparameter, written: Mapping[str, Any], path: Location, complain: Complaints
) -> tuple[float, float] | None:
    """Return min and max, or None and complain."""
    ends: list[float] = []
    for key in ("min", "max"):
        if key not in written:
            complain(path, f"{dotted(path)} has no {key}", row.allowed)
        elif isinstance(written[key], bool) or not isinstance(written[key], int | float):
            complain((*path, key), f"{dotted(path)}.{key} is {shown(written[key])}", row.allowed)
        else:
            ends += literal(row, written[key], (*path, key), complain)
    if len(ends) < 2:
        return None
    low, high = ends
    if low > high:
        what = f"{dotted(path)} is inverted: min {low:g} is above max {high:g}"
        complain(path, what, "min below max")
        return None
    return low, high


def _step(
    row: Hyperparameter, low: float, high: float, step: Any, log: bool, path: Location, complain: Complaints
) -> float | None:
    """Return the step in the row's own type, or None and complain."""
    number = isinstance(step, int | float) and not isinstance(step, bool) and 0 < step < math.inf
    if not number or (row.kind == "int" and step != int(step)):
        kind = "a whole number" if row.kind == "int" else "a number"
        complain(path, f"{dotted(path)} is {shown(step)}", f"{kind} above 0")
    elif log:
        complain(path, f"{dotted(path[:-1])} is logarithmic and has a step", "either log or step")
    elif (Decimal(str(high)) - Decimal(str(low))) % Decimal(str(step)):
        steps = int((high - low) / step)
        near = " or ".join(f"{low + count * step:g}" for count in (steps, steps + 1) if count)
        what = f"{dotted(path)}: max {high:g} is no whole number of steps above min {low:g}"
        complain(path, what, f"such as max {near}")
    else:
        return int(step) if row.kind == "int" else float(step)
    return None


# What a form is known by: the keys it may have, and what reads it.
_Reader = Callable[[Hyperparameter, Mapping[str, Any], Location, Complaints], SearchSpec | None]
_RANGE_KEYS = ("min", "max", "log", "step", "when")
FORMS: dict[str, tuple[tuple[str, ...], _Reader]] = {
    "expr": (("expr",), _derived),
    "divides": (("divides", "min", "max", "when"), _divisors),
    "choices": (("choices", "when"), _choices),
    "min": (_RANGE_KEYS, _range),
    "max": (_RANGE_KEYS, _range),
}
_FORMS_IN_WORDS = "{min, max, log, step, when} | [a, list] | {choices, when} | {divides, min, max} | {expr}"
