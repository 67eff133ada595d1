"""The second road to the best use of compute: at each compute the size of the lowest training curve.

Hoffmann et al. 2022, Training compute-optimal large language models, approach 1. Departures: the line goes through
the places where the best size changes, not through every compute: there N_opt lies between the two sizes, while
along a tread it grows and the best of the sizes does not. The best size never shrinks as compute grows: of all such
paths the one of lowest summed log loss is taken, so that noise does not make it jump to and fro. A change counts
only where both sizes have a curve on both sides of it; a curve that begins or ends changes nothing. Intervals are
those of tables whose runs are drawn with replacement.

Legend: T computes, R curves, S sizes, B draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweeplab.analysis.compute_optimal.curves import SCHEDULES, Curves, sizes_of
from sweeplab.analysis.compute_optimal.lines import FEWEST, Number, no_number, number
from sweeplab.analysis.fit.forms import Array
from sweeplab.analysis.fit.intervals import LEVEL
from sweeplab.analysis.fit.verdicts import DECADES

N_COMPUTES = 256
N_DRAWS = 400
_MOST_LOST = 0.2  # of the draws may leave no line
_FAR = 1e3  # a log loss that is none: there is no curve


@dataclass(frozen=True)
class Envelope:
    """The lowest loss at each compute and whose it is, the changes of the best size, and the line through them.

    `log_flops`, `log_loss` and `log_n` [T] are the envelope; `changes` are (log C, log N) between two sizes.
    """

    log_flops: Array
    log_loss: Array
    log_n: Array
    changes: tuple[tuple[float, float], ...]
    n_runs: int
    n_sizes: int
    schedule: str
    numbers: dict[str, Number]
    warnings: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values, with what there is to draw."""
        return {
            "n_runs": self.n_runs,
            "n_sizes": self.n_sizes,
            "schedule": self.schedule,
            "numbers": {name: each.as_dict() for name, each in self.numbers.items()},
            "envelope": {
                "flops": np.exp(self.log_flops).tolist(),
                "loss": np.exp(self.log_loss).tolist(),
                "params": np.exp(self.log_n).tolist(),
            },
            "changes": [{"flops": math.exp(c), "params": math.exp(n)} for c, n in self.changes],
            "warnings": list(self.warnings),
        }


def envelope(curves: Curves, budget: float, n_draws: int = N_DRAWS, seed: int = 0) -> Envelope:
    """Return the envelope of training curves and the exponents of the best sizes; N_opt at a budget in FLOPs."""
    if curves.why_none:
        return _nothing(curves, curves.why_none, budget)
    log_n, belongs = sizes_of(curves.runs)
    if len(log_n) <= FEWEST:
        return _nothing(
            curves, f"the curves are of {len(log_n)} sizes; {FEWEST + 1} or more are needed", budget
        )
    begin, end = (
        min(each.log_flops[0] for each in curves.runs),
        max(each.log_flops[-1] for each in curves.runs),
    )
    log_c = np.linspace(begin, end, N_COMPUTES)
    losses = np.stack([np.interp(log_c, each.log_flops, each.log_loss, _FAR, _FAR) for each in curves.runs])
    own = _lowest(losses, belongs, np.ones((1, len(losses)), bool))
    path = _path(own)[0]
    lowest = own[0, path, np.arange(N_COMPUTES)]
    held = lowest < _FAR
    changes = _changes(own[0], path, log_c, log_n)
    random = np.random.default_rng(seed)
    drawn = random.multinomial(len(losses), np.full(len(losses), 1 / len(losses)), size=n_draws) > 0
    numbers, warnings = _numbers(
        curves, changes, _redrawn(losses, belongs, drawn, log_c, log_n), math.log(budget)
    )
    return Envelope(
        log_flops=log_c[held],
        log_loss=lowest[held],
        log_n=log_n[path][held],
        changes=tuple(map(tuple, changes.tolist())),
        n_runs=len(curves.runs),
        n_sizes=len(log_n),
        schedule=curves.schedule,
        numbers=numbers,
        warnings=tuple(warnings),
    )


def _lowest(losses: Array, belongs: Array, present: NDArray[np.bool_]) -> Array:
    """Return the lowest log loss of the curves of each size that are present, [B, S, T]."""
    found = np.full((len(present), len(belongs), losses.shape[1]), _FAR)
    for size, of in enumerate(belongs.astype(bool)):
        there = np.where(present[:, of, None], losses[of], _FAR)
        found[:, size] = there.min(1)
    return found


def _path(losses: Array) -> NDArray[np.intp]:
    """Return the sizes, never smaller than before, whose summed log loss over T is lowest: [B, T]."""
    n_draws, n_sizes, n_computes = losses.shape
    total = losses[:, :, 0]
    came = np.zeros((n_computes, n_draws, n_sizes), int)
    each = np.arange(n_sizes)
    for at in range(1, n_computes):
        best = np.minimum.accumulate(total, axis=1)
        came[at] = np.maximum.accumulate(np.where(total <= best, each, 0), axis=1)
        total = best + losses[:, :, at]
    path = np.empty((n_draws, n_computes), int)
    path[:, -1] = total.argmin(1)
    for at in range(n_computes - 1, 0, -1):
        path[:, at - 1] = came[at, np.arange(n_draws), path[:, at]]
    return path


def _changes(losses: Array, path: NDArray[np.intp], log_c: Array, log_n: Array) -> Array:
    """Return log C and log N of each change between two sizes that both have curves there, [changes, 2]."""
    at = np.flatnonzero(np.diff(path))
    old, new = path[at], path[at + 1]
    both = (losses[old, at + 1] < _FAR) & (losses[new, at] < _FAR)
    at, old, new = at[both], old[both], new[both]
    return np.stack([(log_c[at] + log_c[at + 1]) / 2, (log_n[old] + log_n[new]) / 2], axis=1)


def _redrawn(losses: Array, belongs: Array, drawn: NDArray[np.bool_], log_c: Array, log_n: Array) -> Array:
    """Return (slope, log N at log C = 0) of each draw, NaN where it has no line, [draws, 2]."""
    own = _lowest(losses, belongs, drawn)
    changes = [_changes(each, path, log_c, log_n) for each, path in zip(own, _path(own), strict=True)]
    return np.array([_line(each) if len(each) >= 2 else (math.nan, math.nan) for each in changes])


def _line(changes: Array) -> tuple[float, float]:
    slope, at = np.polyfit(changes[:, 0], changes[:, 1], 1)
    return float(slope), float(at)


def _numbers(curves: Curves, changes: Array, draws: Array, at: float) -> tuple[dict[str, Number], list[str]]:
    if len(changes) < FEWEST:
        why = f"the best size changes {len(changes)} times between sizes that both have curves; a line takes {FEWEST}"
        return _none(why, at), []
    lacking = []
    if (decades := float(np.ptp(changes[:, 0])) / math.log(10)) < DECADES["flops"]:
        lacking = [f"the changes span {decades:.2f} decades of FLOPs and {DECADES['flops']} are needed"]
    held = draws[np.isfinite(draws[:, 0])]
    if len(held) < (1 - _MOST_LOST) * len(draws):
        lacking.append("too few of the drawn tables have a line: the runs set it no limits")
    slope, offset = _line(changes)
    draws = held if len(held) else draws
    caution = SCHEDULES[curves.schedule]
    numbers = {}
    for name, value, drawn in (
        ("N_opt exponent", slope, draws[:, 0]),
        ("D_opt exponent", 1 - slope, 1 - draws[:, 0]),
        ("N_opt", offset + slope * at, draws @ np.array([at, 1.0])),
    ):
        low, high = map(float, np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
        meaning, kind, is_log = _meanings(at)[name]
        ends = (value, min(low, value), max(high, value))
        numbers[name] = number(name, meaning, kind, ends, lacking, caution, is_log)
    return numbers, [caution] if caution else []


def _meanings(at: float) -> dict[str, tuple[str, str, bool]]:
    return {
        "N_opt exponent": ("N_opt goes as C to this", "exponent", False),
        "D_opt exponent": ("D_opt goes as C to this", "exponent", False),
        "N_opt": (f"the parameters of lowest loss for {math.exp(at):.3g} FLOPs", "ratio", True),
    }


def _none(why: str, at: float) -> dict[str, Number]:
    return {name: no_number(name, meaning, kind, why) for name, (meaning, kind, _) in _meanings(at).items()}


def _nothing(curves: Curves, why: str, budget: float) -> Envelope:
    nothing = np.empty(0)
    sizes = len(sizes_of(curves.runs)[0]) if curves.runs else 0
    numbers = _none(why, math.log(budget))
    return Envelope(nothing, nothing, nothing, (), len(curves.runs), sizes, curves.schedule, numbers, ())
