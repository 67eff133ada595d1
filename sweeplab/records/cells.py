"""The name of a cell, as a person writes it: values in any order, only some of them, `1e-3` for `0.001`."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.formatting import several
from sweeplab.hyperparameters import canonical

MOST_NAMED = 10
# A comma that begins another value: those within a value are quoted in names.
_BETWEEN = re.compile(r",(?=[^=,]+=)")


def some_of(names: Collection[str]) -> str:
    """Write names in a line, at most ten."""
    return ", ".join([*list(names)[:MOST_NAMED], *["…"] * (len(names) > MOST_NAMED)])


def named_cell(study: str, cells: Collection[str], text: str) -> str:
    """Return the cell that a text names: its name, or the values that no other cell has together.

    Raises:
        BadInput: no cell has these values, with the nearest; or several have them.
    """
    if text in cells:
        return text
    asked = _values(text)
    fitting = [cell for cell in cells if asked and _distance(asked, _values(cell)) == 0]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise BadInput(
            Problem(f"{several(len(fitting), 'cell')} of study {study} have {text}", some_of(fitting))
        )
    near = nearest(text, cells)
    if asked and cells:
        closest = min(cells, key=lambda cell: _distance(asked, _values(cell)))
        near = closest if _distance(asked, _values(closest)) < math.inf else near
    raise BadInput(Problem(f"study {study} has no cell {text!r}", some_of(cells), near))


def _values(name: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in _BETWEEN.split(name))
    return {canonical(key.strip()): value.strip() for key, equals, value in pairs if equals}


def _distance(asked: Mapping[str, str], values: Mapping[str, str]) -> float:
    if not asked.keys() <= values.keys():
        return math.inf
    return sum(_apart(value, values[name]) for name, value in asked.items())


def _apart(one: str, other: str) -> float:
    if one == other:
        return 0.0
    try:
        a, b = float(one), float(other)
    except ValueError:
        return math.inf
    if a > 0 and b > 0:
        return abs(math.log(a / b))
    return abs(a - b)
