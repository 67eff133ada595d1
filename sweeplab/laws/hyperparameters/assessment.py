"""The laws of searched hyperparameters: their numbers with verdicts, and the best values of sizes that were not tuned.

Every number is a quantile of the draws of `surface.py`: the best value of a cell, the exponents, the best value of
another size, and what a value costs there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweeplab.errors import BadInput, Problem
from sweeplab.formatting import listed, several, several_named, short
from sweeplab.laws.assessment import Verdict, design_lacks, judge
from sweeplab.laws.core import LEVEL, Array, interval
from sweeplab.laws.hyperparameters.runs import SIZES, SearchedRuns
from sweeplab.laws.hyperparameters.surface import Surface, fit_surface
from sweeplab.laws.points import Points, path_of
from sweeplab.laws.sentences import Reason, sentence

FEWEST_CELLS = 6  # with an optimum between their values
BAND = 0.001  # excess of log loss at the ends of a band
_BENT = 0.5  # the chance of a bend above which numbers are weak: without one, it is a third
_EDGES = {-1: "at or below the smallest value", 1: "at or above the largest value", 0: ""}


@dataclass(frozen=True, eq=False)
class Searched:
    """What the surface tells about the value of an index `j`.

    `side` [C] is -1 where a cell's optimum is at or below the smallest value tried, 1 at or above the largest, else 0.
    `lacking` is what keeps its numbers from being identified, `doubt` why they are weak.
    """

    name: str
    j: int
    surface: Surface
    side: Array
    lacking: Reason | None
    doubt: Reason | None

    def verdict(self, kind: str, value: float, low: float, high: float) -> Verdict:
        """Return the verdict on a number with its interval, both in logs for a kind with a factor."""
        return judge(kind, value, low, high, self.lacking, self.doubt)

    def best_at(self, draws: Array, meaning: str) -> dict[str, Any]:
        """Return the entry of a best value by draws of its log."""
        value, low, high = interval(draws, LEVEL)
        shown = math.exp(value), math.exp(low), math.exp(high)
        return self.verdict("hyperparameter", value, low, high).entry(shown, meaning)

    @property
    def numbers(self) -> dict[str, dict[str, Any]]:
        """Return the exponents and the best value at the largest cell."""
        surface, entries = self.surface, dict[str, dict[str, Any]]()
        for k, size in enumerate(surface.sizes):
            value, low, high = interval(surface.exponents[:, k, self.j], LEVEL)
            meaning = f"the best {self.name} grows as {size} to this power"
            others = [other for other in surface.sizes if other != size]
            if others:
                meaning += f", {listed(others)} held"
            verdict = self.verdict("exponent", value, low, high)
            entries[f"exponent of {size}"] = verdict.entry((value, low, high), meaning)
        largest = _cell_logs(surface, int(surface.runs.logs.sum(axis=1).argmax()))
        law = surface.optimum(largest, scatters=False)[:, self.j]
        entries["at the largest cell"] = self.best_at(law, f"the best {self.name} there, on the law")
        return entries

    @property
    def flags(self) -> list[str]:
        """Return which cells have their best value at an end of those tried."""
        flags = []
        for side, code in ((-1, "best at smallest"), (1, "best at largest")):
            names = [self.surface.runs.cell_name(int(c)) for c in np.flatnonzero(self.side == side)]
            if names:
                cells = several(len(names), "cell")
                flags.append(sentence(code, {"cells": cells, "names": several_named(names)}))
        return flags

    def cell(self, c: int) -> dict[str, Any]:
        """Return the best value of a cell, which its rows and the law tell."""
        value, low, high = (math.exp(end) for end in interval(self.surface.optima[:, c, self.j], LEVEL))
        return {"value": value, "low": low, "high": high, "edge": _EDGES[int(self.side[c])]}

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"law": list(self.surface.sizes), "numbers": self.numbers, "flags": self.flags}


@dataclass(frozen=True, eq=False)
class HyperparameterLaws:
    """The surface of a table, and what it tells about every searched value."""

    surface: Surface
    searched: Mapping[str, Searched]

    @property
    def runs(self) -> SearchedRuns:
        """Return the runs, with the searched values that show a minimum."""
        return self.surface.runs

    def as_dict(self) -> dict[str, Any]:
        """Return all as plain values."""
        runs, surface, cells = self.runs, self.surface, []
        for c in range(runs.n_cells):
            sizes = {name: math.exp(runs.log_of(name)[c]) for name in runs.sizes}
            best = {name: found.cell(c) for name, found in self.searched.items()}
            cells.append({**sizes, "n_trials": int((runs.cell == c).sum()), "best": best})
        return {
            "n_trials": len(runs.y),
            "n_used": int(surface.used.sum()),
            "n_cells": runs.n_cells,
            "window": surface.window,
            "noise": surface.noise,
            "conventions": dict(runs.said),
            "dropped": dict(runs.dropped),
            "level": LEVEL,
            "cells": cells,
            "searched": {name: found.as_dict() for name, found in self.searched.items()},
            "warnings": list(runs.notes),
        }


def assess_hyperparameters(runs: SearchedRuns) -> HyperparameterLaws:
    """Fit the best values of all cells and the laws of the searched values.

    Raises:
        BadInput: the rows are too few, or have no minimum.
    """
    surface = fit_surface(runs)
    searched = {name: _searched(surface, j) for j, name in enumerate(surface.runs.names)}
    return HyperparameterLaws(surface, searched)


def _searched(surface: Surface, j: int) -> Searched:
    runs = surface.runs
    side = _sides(surface, j)
    n_outside = int((side != 0).sum())
    facts = {"name": runs.names[j], "count": n_outside, "cells": several(runs.n_cells, "cell")}
    at_end = runs.best_at_end(j)
    if 2 * n_outside > runs.n_cells:
        lacking: Reason | None = Reason("optima outside", facts)
    elif at_end:
        lacking = Reason("best at end", {"what": at_end})
    else:
        lacking = _lacking(surface, side == 0)
    doubt = None
    if 3 * n_outside > runs.n_cells:
        doubt = Reason("optima outside", facts)
    elif surface.bend_chance > _BENT:
        doubt = Reason("bent", {"chance": surface.bend_chance, "sizes": listed([*surface.sizes])})
    return Searched(runs.names[j], j, surface, side, lacking, doubt)


def _sides(surface: Surface, j: int) -> Array:
    """Return at which end of its values each cell's optimum lies: its interval comes within half a step of it."""
    low, high = surface.runs.ends(j)
    half = surface.runs.steps(j) / 2
    below, above = np.quantile(surface.optima[:, :, j], [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    is_low, is_high = below <= low + half, above >= high - half
    return np.where(is_high, 1, np.where(is_low, -1, 0))


def _lacking(surface: Surface, inside: NDArray[np.bool_]) -> Reason | None:
    """Return what the design lacks for a law in the surface's sizes, of cells with an optimum between their values."""
    count = int(inside.sum())
    if count < FEWEST_CELLS:
        return Reason("few cells", {"cells": several(count, "cell"), "needed": FEWEST_CELLS})
    sizes = {name: np.exp(surface.runs.log_of(name)[inside]) for name in surface.sizes}
    return design_lacks(Points(sizes, np.ones(count)), surface.sizes, surface.sizes)


def _cell_logs(surface: Surface, c: int) -> dict[str, float]:
    return {name: float(surface.runs.log_of(name)[c]) for name in surface.sizes}


def predict_values(laws: HyperparameterLaws, target: Mapping[str, float]) -> dict[str, Any]:
    """Return what the laws predict at a size: the best values, their bands and the regret.

    `target` has sizes, and searched values whose cost is asked for. `beyond` is the factor by which each size lies
    outside of the cells' sizes, 1 inside.

    Raises:
        BadInput: the target lacks a size that the law needs, or lies off the path that all cells lie on.
    """
    surface, runs = laws.surface, laws.runs
    logs = _logs_of(surface, target)
    beyond = {}
    for name in runs.sizes:
        if name in logs:
            known = runs.log_of(name)
            away = max(logs[name] - float(known.max()), float(known.min()) - logs[name], 0.0)
            beyond[name] = math.exp(away)
    best = surface.optimum(logs)
    values = np.median(best, axis=0)
    entries = {}
    for j, (name, searched) in enumerate(laws.searched.items()):
        entries[name] = searched.best_at(best[:, j], f"the best {name}") | {"law": list(surface.sizes)}
        if entries[name]["value"] is not None:
            reach = surface.reach(j, BAND)
            entries[name]["band"] = [math.exp(values[j] - reach), math.exp(values[j] + reach)]
    return {
        "at": dict(target),
        "beyond": beyond,
        "best": entries,
        "regret": float(surface.cost(values, best).mean()),
        "asked": _asked(laws, target, best, entries),
    }


def _logs_of(surface: Surface, target: Mapping[str, float]) -> dict[str, float]:
    """Return the log sizes of a target; what did not vary need not be named."""
    runs = surface.runs
    logs = {name: math.log(value) for name, value in target.items() if name in SIZES}
    for name in runs.sizes:
        if name not in logs and np.ptp(runs.log_of(name)) < 1e-6:
            logs[name] = float(runs.log_of(name)[0])
    lacks = [name for name in surface.sizes if name not in logs]
    if lacks:
        known = ",".join(f"{name}=…" for name in surface.sizes)
        raise BadInput(Problem(f"--at lacks {listed(lacks)}, which the laws need", known))
    counts = {name: np.exp(runs.log_of(name)) for name in runs.sizes if name in ("params", "tokens")}
    path = path_of(Points(counts, np.ones(runs.n_cells)))
    if path and path.misses({name: math.exp(log) for name, log in logs.items()}):
        # What is due to params and what to tokens cannot be told there.
        raise BadInput(f"the laws hold along one path, {path.words}, and this size lies off it")
    return logs


def _asked(
    laws: HyperparameterLaws, target: Mapping[str, float], best: Array, entries: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return what searched values that the target names would cost there; the others are at their predicted best.

    `excess` is of the log loss, and `off` the part that is due to the values' distance from the predicted ones.
    """
    surface, middle = laws.surface, np.median(best, axis=0)
    values = np.array(middle)
    asked = {name: math.log(target[name]) for name in laws.searched if name in target}
    if not asked:
        return None
    why = ""
    for name, value in asked.items():
        j = laws.searched[name].j
        values[j] = value
        reach = surface.reach(j, surface.window)
        if entries[name]["value"] is None:
            why = f"what {name}={short(math.exp(value))} costs is not known: the best one is {entries[name]['verdict']}"
        elif abs(value - middle[j]) > reach:
            factor = math.exp(abs(value - middle[j]))
            why = f"{name}={short(math.exp(value))} lies a factor {factor:.3g} from the best, "
            why += f"{short(math.exp(middle[j]))}: the rows say what a factor of {math.exp(reach):.3g} costs"
    if why:
        return {"excess": None, "off": None, "why": why}
    excess = float(surface.cost(values, best).mean())
    return {"excess": excess, "off": excess - float(surface.cost(middle, best).mean()), "why": ""}
