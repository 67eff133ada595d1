"""How every figure looks: colors, axes and round numbers.

Ink, grid and ground are left to the page's style, so that a figure can be dark.
Colors run in order of size from indigo over magenta to orange: apart for the color-blind along blue-yellow,
and each at least 3:1 against white and against near-black. Shape of the marker says the same once more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from sweeplab.report.panels.base import Axis
from sweeplab.report.words import short

ORDERED = ((72, 92, 214), (190, 70, 160), (222, 110, 30))
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "star", "hexagon")
GREY = "rgb(128,128,128)"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"


def colors(n: int) -> list[str]:
    """Return `n` colors in order, evenly spread from the scale's one end to the other."""
    if n == 1:
        return [_rgb(ORDERED[0])]
    result = []
    for index in range(n):
        place = index / (n - 1) * (len(ORDERED) - 1)
        low = min(int(place), len(ORDERED) - 2)
        share = place - low
        pairs = zip(ORDERED[low], ORDERED[low + 1], strict=True)
        result.append(_rgb(tuple(round(a + share * (b - a)) for a, b in pairs)))
    return result


def axis_of(axis: Axis, low: float, high: float) -> dict[str, object]:
    """Return Plotly's settings of an axis that shows `low` to `high`."""
    ticks = [tick for tick in axis.marks or ticks_of(low, high, axis.log) if low <= tick <= high]
    return {
        "type": "log" if axis.log else "linear",
        "range": [math.log10(low), math.log10(high)] if axis.log else [low, high],
        "title": {"text": axis.title},
        "tickvals": ticks,
        "ticktext": [short(tick) for tick in ticks],
        "zeroline": False,
    }


def padded(low: float, high: float, log: bool) -> tuple[float, float]:
    """Return a range with some room on both sides."""
    if log:
        room = (high / low) ** 0.05 if high > low else 1.1
        return low / room, high * room
    room = 0.05 * (high - low) or abs(high) * 0.05 or 1.0
    return low - room, high + room


def ticks_of(low: float, high: float, log: bool) -> list[float]:
    """Return four to nine round values from `low` to `high`; on a log axis of decades 1, 2 and 5 of each."""
    if log:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for digits in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 6, 8)):
            values = [digit * 10.0**decade for decade in decades for digit in digits]
            inside = [value for value in values if low <= value <= high]
            if len(inside) >= 4:
                return inside
    power = 10.0 ** math.floor(math.log10((high - low) / 8))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= (high - low) / 8)
    return [round(index * step, 12) for index in range(math.ceil(low / step), math.floor(high / step) + 1)]


def symbols() -> Iterator[str]:
    """Yield the markers, over and over."""
    while True:
        yield from SYMBOLS


def faded(color: str, share: float) -> str:
    """Return a color that lets so much of what is below it through."""
    return color.replace("rgb(", "rgba(").replace(")", f",{share:g})")


def _rgb(color: Sequence[int]) -> str:
    return f"rgb({','.join(str(part) for part in color)})"
