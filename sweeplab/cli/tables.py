"""Rows of plain data as a terminal table."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

WIDE = 240


def cell_text(value: Any) -> str:
    """Write one value as a table shows it: a dash for nothing, floats short."""
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def console() -> Console:
    """Return a console on standard output; a pipe has no width, so no line is broken there."""
    return Console(width=None if sys.stdout.isatty() else WIDE, highlight=False)


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows that share their keys; columns of nothing but zeros and dashes are left out."""
    shown = [key for key in rows[0] if any(row[key] not in (0, None) for row in rows)]
    table = Table(box=None, header_style="bold", pad_edge=False)
    for index, key in enumerate(shown):
        number = any(isinstance(row[key], int | float) for row in rows)
        justify: Literal["right", "left"] = "right" if number else "left"
        table.add_column(key.replace("_", " "), justify=justify, no_wrap=index == 0)
    for row in rows:
        table.add_row(*(cell_text(row[key]) for key in shown))
    console().print(table)
