"""The compute-optimal size by IsoFLOP parabolas: at each compute budget a parabola of the loss in log N.

Hoffmann et al. 2022, Training compute-optimal large language models, approach 2. Departures: a minimum counts only
if the parabola is convex, and falls and rises again between the smallest and the largest size of its budget, by more
than the noise; the noise is one share of the loss, pooled over all budgets; the line is fitted to the rows of all
budgets at once (`valley`), which allows for skewed minima. A minimum's interval is Fieller's (1954), for the ratio of
two coefficients: for a parabola it equals the profile interval, and is unbounded exactly where the rows give no bound.

Rows share a budget if their FLOPs agree, or by bins that the user asks for. Rows of one budget are shifted to the same
FLOPs before a parabola is fitted to them: along their own tokens per parameter, and along the line of the lowest
losses. The shift matters in wide bins and hardly elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sweeplab.errors import BadInput, Problem
from sweeplab.laws.compute_optimal import lines
from sweeplab.laws.compute_optimal.lines import N_AT, Line, Number, RowNoise, n_sizes
from sweeplab.laws.compute_optimal.parabolas import (
    SIZES,
    IsoflopBudget,
    Parabola,
    Rows,
    parabola,
    tokens_of,
)
from sweeplab.laws.compute_optimal.valley import valley
from sweeplab.laws.estimation.forms import D_OPT, N_OPT, Array
from sweeplab.laws.estimation.intervals import Shared, student
from sweeplab.laws.estimation.verdicts import DECADES
from sweeplab.laws.points import Points

SAME = 1.10  # rows whose FLOPs follow each other within this factor have one budget
WIDEST = 1.25  # the largest factor between the FLOPs of one budget
_FAR = 1.5  # a row further than this factor from every budget that the user names belongs to none
_MOST_BINS = 100
_ROUNDS = 6


def parse_budgets(text: str) -> int | tuple[float, ...]:
    """Return a number of bins, or budgets in FLOPs: 8, or 1e17,3e17,1e18.

    Raises:
        BadInput: neither.
    """
    parts = [part.strip() for part in text.split(",")]
    if len(parts) == 1 and parts[0].isdecimal() and 1 <= int(parts[0]) <= _MOST_BINS:
        return int(parts[0])
    try:
        found = tuple(sorted({float(part) for part in parts}))
    except ValueError:
        found = (math.nan,)
    if not all(_MOST_BINS < each < math.inf for each in found):
        allowed = "a number of bins, such as 8, or FLOPs: 1e17,3e17,1e18"
        raise BadInput(Problem(f"--budgets {text!r}", allowed))
    return found


def budgets_of(
    points: Points, asked: int | tuple[float, ...] | None = None
) -> tuple[list[IsoflopBudget], str]:
    """Return the budgets with three or more sizes, smallest first, and how rows were assigned, or why none were."""
    log_c, log_n = np.log(points.columns["flops"]), np.log(points.columns["params"])
    if asked is None:
        groups, how = _shared(log_c, log_n)
    elif isinstance(asked, int):
        bins = np.array_split(np.argsort(log_c), asked)
        groups = [(float(log_c[rows].mean()), rows) for rows in bins if rows.size]
        how = f"the rows are binned by their FLOPs into {asked} budgets, as --budgets asks"
    else:
        at = np.log(np.array(asked))
        nearest = np.abs(log_c[:, None] - at).argmin(1)
        near = np.abs(log_c - at[nearest]) <= math.log(_FAR)
        groups = [(float(each), np.flatnonzero((nearest == k) & near)) for k, each in enumerate(at)]
        how = "each row belongs to the nearest budget that --budgets names"
    found = _shifted_to_budgets([(at, rows) for at, rows in groups if n_sizes(log_n[rows]) >= SIZES], points)
    return found, how if found or how.startswith("no ") else f"no budget has rows of {SIZES} sizes"


def _shared(log_c: Array, log_n: Array) -> tuple[list[tuple[float, Rows]], str]:
    order = np.argsort(log_c)
    breaks = np.flatnonzero(np.diff(log_c[order]) > math.log(SAME)) + 1
    groups = [rows for rows in np.split(order, breaks) if np.ptp(log_c[rows]) <= math.log(WIDEST)]
    groups = [rows for rows in groups if n_sizes(log_n[rows]) >= SIZES]
    held = sum(map(len, groups))
    if 2 * held < len(log_c):
        return [], (
            f"no budgets: only {held} of {len(log_c)} rows share their FLOPs with rows of {SIZES - 1} other sizes "
            f"(within {SAME - 1:.0%} from one to the next); --budgets 8 would bin them"
        )
    how = f"rows within {SAME - 1:.0%} of each other in FLOPs are one budget"
    if outside := len(log_c) - held:
        how += f"; {outside} rows belong to no budget of {SIZES} sizes"
    return [(float(log_c[rows].mean()), rows) for rows in groups], how


def _shifted_to_budgets(groups: Sequence[tuple[float, Rows]], points: Points) -> list[IsoflopBudget]:
    """Shift the rows of each group to its FLOPs; rows with equal tokens per parameter then have one size."""
    if not groups:
        return []
    log_c, log_n, log_loss = (np.log(points.columns[name]) for name in ("flops", "params", "loss"))
    at = np.array([each for each, _ in groups])
    lowest = np.array([log_loss[rows].min() for _, rows in groups])
    falls = np.zeros(len(groups))
    if len(groups) > 1:
        fall = np.polyfit(at - at.mean(), lowest, 2 if len(groups) > 4 else 1)
        falls = np.polyval(np.polyder(fall), at - at.mean())
    found = []
    for (budget, rows), slope in zip(groups, falls, strict=True):
        away = log_c[rows] - budget
        shifted = IsoflopBudget(math.exp(budget), rows, log_n[rows] - away / 2, log_loss[rows] - slope * away)
        found += [shifted] if n_sizes(shifted.log_n) >= SIZES else []
    return found


# Rows whose N differs by more than this factor from that of the lowest loss are left out, because the loss is
# parabolic only near the minimum: the first of these factors within which a cubic fits no better.
FACTORS = (10.0, 5.0, 3.0)
_BETWEEN = 25  # points of a parabola that is drawn
_SKEWED = 0.95


@dataclass(frozen=True)
class Minimum:
    """The result of one budget: its parabola, and log N_opt with its interval, or why it has none.

    `log_d` (value, low, high) is None if the table has no tokens.
    """

    parabola: Parabola
    log_n: tuple[float, float, float] | None = None
    log_d: tuple[float, float, float] | None = None
    why_none: str = ""

    def as_dict(self, points: Points) -> dict[str, Any]:
        """Return it as plain values, with the rows and the parabola to draw."""
        curve, budget = self.parabola, self.parabola.budget
        inside = budget.log_n[curve.used]
        n = np.linspace(inside.min(), inside.max(), _BETWEEN)
        said: dict[str, Any] = {
            "flops": budget.flops,
            "n_rows": len(budget.rows),
            "n_used": int(curve.used.sum()),
        }
        for name, found in (("n_opt", self.log_n), ("d_opt", self.log_d)):
            names = (name, f"{name}_low", f"{name}_high")
            said |= dict(zip(names, map(math.exp, found), strict=True) if found else dict.fromkeys(names))
        drawn = {role: points.columns[role][budget.rows].tolist() for role in ("params", "loss")}
        return said | {
            "loss": float(curve.loss(np.array([self.log_n[0]]))[0]) if self.log_n else None,
            "why_none": self.why_none,
            "rows": drawn | {"used": curve.used.tolist()},
            "parabola": {"params": np.exp(n).tolist(), "loss": curve.loss(n).tolist()},
        }


@dataclass(frozen=True)
class IsoFlop:
    """The minima of all budgets; `numbers` are the exponents, and N_opt at the budget asked for.

    `how` says how rows were assigned to budgets, or why there is none; `sigma` is the noise as a share of the loss.
    """

    points: Points
    how: str
    minima: tuple[Minimum, ...]
    sigma: float
    numbers: dict[str, Number]
    line: Line | None
    warnings: tuple[str, ...]
    noise: RowNoise | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values; `line` is N over FLOPs with its band, to draw."""
        return {
            "how": self.how,
            "sigma": self.sigma if self.minima else None,
            "numbers": {name: each.as_dict() for name, each in self.numbers.items()},
            "budgets": [each.as_dict(self.points) for each in self.minima],
            "line": self.line and self.line.as_dict(self.points.columns["flops"], _BETWEEN),
            "warnings": list(self.warnings),
        }


def isoflop(
    points: Points,
    asked: int | tuple[float, ...] | None = None,
    budget: float | None = None,
    shared: Shared | None = None,
) -> IsoFlop:
    """Return the compute-optimal size by parabolas at equal FLOPs.

    `asked` is the result of `parse_budgets`; when None, rows with equal FLOPs form budgets. `budget` is the compute at
    which to give N_opt (the largest of the table when None); `shared` are the errors shared within groups of rows.

    Raises:
        BadInput: a column that is missing, fewer than three sizes.
    """
    check(points)
    groups, how = budgets_of(points, asked)
    at = math.log(budget or float(points.columns["flops"].max()))
    parabolas: list[Parabola] = []
    skewed = False
    for factor in FACTORS:  # until the rows near the minimum follow a parabola
        parabolas = [parabola(points, each, factor) for each in groups]
        if not (skewed := _is_skewed(points, parabolas)):
            break
    freedom = sum(each.freedom for each in parabolas)
    if not parabolas or freedom < 1:
        why = how if not parabolas else f"no budget has more than {SIZES} rows: the noise cannot be estimated"
        minima = tuple(Minimum(each, why_none=why) for each in parabolas)
        return IsoFlop(points, how, minima, math.nan, lines.no_optimum(why, at), None, ())
    sigma = math.sqrt(sum(each.squares for each in parabolas) / freedom)
    minima = tuple(_minimum(points, each, sigma, student(freedom)) for each in parabolas)
    wide = [parabola(points, each, FACTORS[0]) for each in groups]
    line, numbers, warnings = _numbers(points, minima, wide, shared, at)
    noise = line.noise if line else RowNoise(sigma**2 / points.weights, freedom, shared)
    if skewed:
        skew = "a cubic fits better, so minima may be off to one side; sizes nearer to them would help"
        warnings.append(f"the losses of a budget do not follow a parabola: {skew}")
    return IsoFlop(points, how, minima, sigma, numbers, line, tuple(warnings), noise)


def check(points: Points) -> None:
    """Refuse a table without N and C, or with too few sizes.

    Raises:
        BadInput: one line per fault.
    """
    missing = [name for name in ("params", "flops", "loss") if name not in points.columns]
    if missing:
        raise BadInput(*(points.lacks("the compute-optimal size", name) for name in missing))
    found = n_sizes(np.log(points.columns["params"]))
    if found < SIZES:
        sizes = "size" if found == 1 else "sizes"
        raise BadInput(f"the table has {found} {sizes}; the best size needs {SIZES}")


def _is_skewed(points: Points, parabolas: Sequence[Parabola]) -> bool:
    """Return whether a cubic in each budget fits better by more than noise: minima are then skewed."""
    from scipy.special import fdtri

    long = [each for each in parabolas if each.freedom >= 2]
    left = sum(each.squares for each in parabolas)
    gained = 0.0
    for each in long:
        z = each.budget.log_n[each.used] - each.center
        powers = np.vander(z, 4) * np.sqrt(points.weights[each.budget.rows[each.used]])[:, None]
        rest = each.residuals - powers @ np.linalg.lstsq(powers, each.residuals, rcond=None)[0]
        gained += each.squares - float(rest @ rest)
    freedom = sum(each.freedom for each in parabolas) - len(long)
    if not long or freedom < 1 or left <= gained:
        return False
    ratio = gained / len(long) / ((left - gained) / freedom)
    return bool(ratio > fdtri(len(long), freedom, _SKEWED))


def _minimum(points: Points, curve: Parabola, sigma: float, quantile: float) -> Minimum:
    budget, sizes = curve.budget, curve.budget.log_n[curve.used]
    log_n = curve.vertex(sigma, quantile)
    if log_n is None:
        return Minimum(curve, why_none="no minimum: the losses do not bend upward by more than the noise")
    lowest, smallest, largest = budget.log_n[budget.log_loss.argmin()], sizes.min(), sizes.max()
    sides = (("smallest", smallest, log_n[1] - smallest), ("largest", largest, largest - log_n[2]))
    for side, edge, inside in sides:
        why = ""
        if abs(lowest - edge) < 1e-9:
            why = f"the {side} size has the lowest loss, so the minimum may lie beyond it"
        elif inside <= 0:
            why = f"the rise of the loss towards the {side} size is within the noise"
        if why:
            return Minimum(curve, why_none=f"no minimum: {why}")
    if "tokens" not in points.columns:
        return Minimum(curve, log_n)
    slope, d_center = tokens_of(points, curve)
    d = [d_center + slope * (each - curve.center) for each in log_n]
    return Minimum(curve, log_n, (d[0], min(d[1:]), max(d[1:])))


def _numbers(
    points: Points, minima: Sequence[Minimum], wide: Sequence[Parabola], shared: Shared | None, at: float
) -> tuple[Line | None, dict[str, Number], list[str]]:
    """Return the line through the minima, its numbers, and warnings.

    `wide` are the parabolas of all budgets within the first of FACTORS; the line allows for their skew.
    """
    found, warnings = [each.log_n is not None for each in minima], list[str]()
    if (n := sum(found)) < len(minima):
        warnings.append(f"{len(minima) - n} of {len(minima)} budgets have no minimum")
    if n < lines.FEWEST:
        why = f"{n} of {len(minima)} budgets have a minimum; a line needs {lines.FEWEST}"
        return None, lines.no_optimum(why, at), warnings
    line, used = _line(points, minima, wide, shared)
    if line is None:
        why = f"the {n} budgets with a minimum do not determine a line"
        return None, lines.no_optimum(why, at), warnings
    log_c = np.array([math.log(wide[each].budget.flops) for each in used])
    lacking = []
    if (decades := float(np.ptp(log_c)) / math.log(10)) < DECADES["flops"]:
        lacking = [f"the minima span {decades:.2f} decades of FLOPs and {DECADES['flops']} are needed"]
    blank = lines.optimum_at(at)

    def number(name: str, value: float, half: float, influence: Array) -> Number:
        return replace(blank[name].of(value, value - half, value + half, lacking), influence=influence)

    if line.variance_ratio > 1:
        warnings.append("the minima do not lie on a line: they deviate from it by more than noise")
    numbers = {N_OPT: number(N_OPT, line.slope, line.half(line.influences[1]), line.influences[1])}
    if "tokens" in points.columns:
        x, slopes = log_c - line.center, [tokens_of(points, wide[each]) for each in used]
        log_d = [
            d + slope * (line.value(c)[0] - wide[k].center)
            for c, k, (slope, d) in zip(log_c, used, slopes, strict=True)
        ]
        line_weights = (x - x.mean()) / ((x - x.mean()) ** 2).sum() * [slope for slope, _ in slopes]
        influence = line_weights.sum() * line.influences[0] + (line_weights @ x) * line.influences[1]
        numbers[D_OPT] = number(D_OPT, float(np.polyfit(x, log_d, 1)[0]), line.half(influence), influence)
    numbers[N_AT] = number(N_AT, *line.value(at))
    return line, numbers, warnings


def _line(
    points: Points, minima: Sequence[Minimum], wide: Sequence[Parabola], shared: Shared | None
) -> tuple[Line | None, list[int]]:
    """Return the line and the budgets it is fitted to: those within whose sizes it passes.

    The common line decides which budgets are in, not the noisy minimum of each.
    """
    sizes = [each.budget.log_n[each.used] for each in wide]
    log_c = np.array([math.log(each.budget.flops) for each in wide])
    own = {k: each.log_n[0] for k, each in enumerate(minima) if each.log_n}
    used, line = list(own), None
    for _ in range(_ROUNDS):
        begin = [
            own.get(k, float(np.median(sizes[k]))) if line is None else line.value(log_c[k])[0] for k in used
        ]
        found = valley([wide[k] for k in used], points.weights, np.array(begin), shared)
        if found is None:
            break
        line, before = found, used
        through = [line.value(each)[0] for each in log_c]
        used = [k for k, at in enumerate(through) if sizes[k].min() < at < sizes[k].max()]
        if len(used) < lines.FEWEST:
            return None, before
        if used == before:
            break
    return line, before if line else used
