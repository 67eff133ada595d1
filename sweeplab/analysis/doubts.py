"""What a table is asked about before it is fitted: numbers that are possible, but hardly what was meant.

A doubt is a question in one line, never a correction: who means the numbers says so, as in params=N*1, and is not
asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sweeplab.analysis.columns import COUNTS, Array, Column
from sweeplab.errors import BadInput


@dataclass(frozen=True)
class Plausible:
    """What one number of a role may be, in the words of a person, and by which factors rows may be off."""

    least: float
    most: float
    too_small: str
    too_large: str
    steps: tuple[float, ...]


_COUNT = (1e6, 1e9, 1e12)
_FLOPS = (1e9, 1e12, 1e15, 1e18)
_UNIT = "is it in another unit?"
PLAUSIBLE = {
    "params": Plausible(30, 1e15, f"no model is so small; {_UNIT}", f"no model is so large; {_UNIT}", _COUNT),
    "tokens": Plausible(
        300, 1e17, f"no training is so short; {_UNIT}", f"no text is so long; {_UNIT}", _COUNT
    ),
    "flops": Plausible(
        1e5, 1e31, f"no training is so short; {_UNIT}", f"no training is so long; {_UNIT}", _FLOPS
    ),
    # Not its largest: a law may start far above the 13.9 nats of a uniform guess among 2^20 tokens.
    "loss": Plausible(
        1e-6, 20, _UNIT, "no vocabulary gives so much; is it a perplexity, or in percent?", (100.0,)
    ),
}
_SWAPPED = 1000  # no table has so many parameters a token
_SPARSE = 1e6  # nor so many tokens a parameter
_GAP = 0.4  # a gap in the values of this share of a step, in logs, may part two units
_NEAR = 3.0  # how far outside of the other rows' range the shifted ones may end
_FLOPS_OFF = 1e3  # C / (6 N D): attention, embeddings and experts account for less


def check_plausible(columns: Mapping[str, Column], keep: NDArray[np.bool_], source: str) -> None:
    """Ask about all that is hardly meant in the rows that `keep` has, [n].

    Raises:
        BadInput: a line a doubt.
    """
    doubted = {role: column.values[keep] for role, column in columns.items() if not column.is_meant}

    def each(question: Callable[[Array, str], str]) -> list[str]:
        asked = {role: question(values, role) for role, values in doubted.items()}
        return [
            f"column {columns[role].name!r} ({role}): {words} {columns[role].meant} in --columns says that it is meant"
            for role, words in asked.items()
            if words
        ]

    # In turn: what is wrong in one column shows in all that is asked after it.
    for questions in (each(_mixed), _swapped(doubted), each(_unlikely), _unlike_6nd(doubted)):
        if questions:
            raise BadInput(*(f"{source}: {question}" for question in questions))


def _mixed(values: Array, role: str) -> str:
    """Ask about rows that are in another unit than the rest: apart from it, and among it when scaled."""
    logs = np.unique(np.log(values))
    if len(logs) < 2:
        return ""
    at = int(np.argmax(np.diff(logs)))
    small, large = logs[: at + 1], logs[at + 1 :]
    low, high = large[0] - np.log(_NEAR), large[-1] + np.log(_NEAR)
    fitting = [
        f"{step:.0e}"
        for step in PLAUSIBLE[role].steps
        if large[0] - small[-1] >= _GAP * np.log(step)
        and small[-1] + np.log(step) >= low
        and small[0] + np.log(step) <= high
    ]
    if not fitting:
        return ""
    ends = [f"{np.exp(each):.4g}" for each in (small[0], small[-1], large[0], large[-1])]
    n_small = int((np.log(values) <= small[-1]).sum())
    return (
        f"{n_small} of {len(values)} rows have {ends[0]} to {ends[1]} and the others {ends[2]} to {ends[3]}; "
        f"are they in another unit, by a factor of {' or '.join(fitting)}?"
    )


def _unlikely(values: Array, role: str) -> str:
    plausible = PLAUSIBLE[role]
    low, high = float(values.min()), float(values.max())
    if low < plausible.least:
        return f"{low:.4g}; {plausible.too_small}"
    most = low if role == "loss" else high
    return f"{most:.4g}; {plausible.too_large}" if most > plausible.most else ""


def _swapped(columns: Mapping[str, Array]) -> list[str]:
    if not {"params", "tokens"} <= columns.keys():
        return []
    ratio = float(np.median(columns["params"] / columns["tokens"]))
    meant = "A factor of 1, as in params=COLUMN*1, says that it is meant"
    if ratio > _SWAPPED:
        return [
            f"{ratio:,.0f} parameters for each token; are params and tokens swapped in --columns? {meant}"
        ]
    if ratio < 1 / _SPARSE:
        return [f"{1 / ratio:.2g} tokens for each parameter; are they in different units? {meant}"]
    return []


def _unlike_6nd(columns: Mapping[str, Array]) -> list[str]:
    if not set(COUNTS) <= columns.keys():
        return []
    ratio = columns["flops"] / (6 * columns["params"] * columns["tokens"])
    off = (ratio > _FLOPS_OFF) | (ratio < 1 / _FLOPS_OFF)
    if not off.any():
        return []
    return [
        f"the FLOPs of {off.sum()} of {len(off)} rows are {ratio[off][0]:.2g} times 6 N D; in which units are params, "
        "tokens and flops? A factor of 1, as in flops=COLUMN*1, says that it is meant"
    ]
