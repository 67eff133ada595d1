"""Rows of a table by an expression over its columns: the study file's own arithmetic, a row at a time."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.study.expressions import ALLOWED, Expression

if TYPE_CHECKING:
    import pandas as pd


def rows_where(frame: pd.DataFrame, where: str, source: str) -> pd.DataFrame:
    """Return the rows in which an expression holds; one with a missing number holds in no comparison.

    A name is a column's, with an underscore for what no name can have, or `line` (`row` without lines).

    Raises:
        BadInput: what is no expression, a name that is no column's, a row in which it has no value, or no row at all.
    """
    try:
        expression = Expression(where)
    except ValueError as error:
        raise BadInput(Problem(f"--where: {error}", ALLOWED)) from error
    word = str(frame.index.name or "row")
    columns = {word: frame.index.to_series()} | {
        re.sub(r"\W+", "_", str(name)): frame[name] for name in frame
    }
    if unknown := sorted(expression.names - columns.keys()):
        what = f"--where: {source} has no column {unknown[0]!r}"
        raise BadInput(Problem(what, ", ".join(columns), nearest(unknown[0], columns)))
    used = sorted(expression.names)
    cells = [columns[name].astype(object).where(columns[name].notna(), np.nan).tolist() for name in used]
    holds = []
    for at, values in zip(frame.index, zip(*cells, strict=True) if cells else [()] * len(frame), strict=True):
        try:
            holds.append(bool(expression.value(dict(zip(used, values, strict=True)))))
        except ValueError as error:
            raise BadInput(f"--where: {source}, {word} {at}: {error}") from error
    if not any(holds):
        raise BadInput(f"--where: {where!r} holds in no row of {source}")
    return frame[np.array(holds, bool)]
