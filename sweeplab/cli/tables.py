"""Rows of plain data as a terminal table, or as JSON."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

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


def print_rows(rows: Sequence[Mapping[str, Any]], text: Sequence[str]) -> None:
    """Print rows that share their keys, all right-aligned but those of `text`.

    Columns of nothing but zeros and dashes are left out.
    """
    shown = [key for key in rows[0] if any(row[key] not in (0, None) for row in rows)]
    table = Table(box=None, header_style="bold", pad_edge=False)
    for key in shown:
        table.add_column(
            key.replace("_", " "), justify="left" if key in text else "right", no_wrap=key == shown[0]
        )
    for row in rows:
        table.add_row(*(cell_text(row[key]) for key in shown))
    console().print(table)


def print_json(content: Any) -> None:
    """Print one JSON document; a number that JSON does not have, such as NaN, is null."""
    print(json.dumps(_finite(content), indent=1))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
