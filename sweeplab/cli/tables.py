"""Rows of plain data as a terminal table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def cell_text(value: Any) -> str:
    """Write one value as a table shows it: a dash for nothing, floats short."""
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows that share their keys."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for key, value in rows[0].items():
        number = isinstance(value, int | float)
        table.add_column(key.replace("_", " "), justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(cell_text(value) for value in row.values()))
    Console().print(table)
