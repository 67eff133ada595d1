"""Curves as a terminal can show them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sweeplab.cli.tables import cell_text

Curve = Sequence[tuple[float, float]]
# A character of braille is two dots wide and four high; these are the bits of its dots, by column and row.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_BRAILLE = 0x2800


def plot(curves: Sequence[Curve], width: int, height: int) -> list[str]:
    """Return curves as lines of text, `width` characters wide without the labels; nothing where there is no point."""
    curves = [[point for point in curve if all(map(math.isfinite, point))] for curve in curves]
    points = [point for curve in curves for point in curve]
    if not points:
        return []
    (left, right), (low, high) = (_range([point[axis] for point in points]) for axis in (0, 1))
    n_columns, n_rows = 2 * width - 1, 4 * height - 1
    cells = [[0] * width for _ in range(height)]
    for curve in curves:
        dots = [
            (round((x - left) / (right - left) * n_columns), round((high - y) / (high - low) * n_rows))
            for x, y in curve
        ]
        for start, end in zip(dots, dots[1:] or dots, strict=False):
            for column, row in _between(start, end):
                cells[row // 4][column // 2] |= _DOTS[column % 2][row % 4]
    labels = [cell_text(high), *[""] * (height - 2), cell_text(low)]
    margin = max(map(len, labels))
    lines = [
        f"{label:>{margin}} ┤{''.join(chr(_BRAILLE + bits) for bits in row)}"
        for label, row in zip(labels, cells, strict=True)
    ]
    ends = f"{cell_text(left)}{cell_text(right):>{max(1, width - len(cell_text(left)))}}"
    return [*lines, f"{'':{margin}} └{'─' * width}", f"{'':{margin}}  {ends}"]


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def _between(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the dots of a straight line."""
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    return [
        (
            round(start[0] + (end[0] - start[0]) * step / steps),
            round(start[1] + (end[1] - start[1]) * step / steps),
        )
        for step in range(steps + 1)
    ]
