"""The laws of searched hyperparameters: their numbers with verdicts, and the best values of sizes that were not tuned.

Every number is a quantile of the draws of `surface.py`: the best value of a cell, the exponents, the best value of
another size, what a value costs there, and what one value for all sizes costs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweeplab.errors import BadInput, Problem
from sweeplab.formatting import listed, rounded, several, several_named, short
from sweeplab.laws.assessment import Verdict, assess, judge, law_for
from sweeplab.laws.core import LEVEL, Array, interval
from sweeplab.laws.forecasts import predict as forecast
from sweeplab.laws.hyperparameters.runs import SIZES, SearchedRuns
from sweeplab.laws.hyperparameters.surface import Surface, fit_surface
from sweeplab.laws.points import DECADES, EACH, SPREAD, Points, path_of
from sweeplab.laws.sentences import Reason, sentence

FEWEST_CELLS, FEWEST_VALUES = 6, 4  # cells with an optimum between their values, and values of a cell
COARSEST = 1.5  # factor between neighboring values
FLAT, BAND, TRANSFERS = 0.0025, 0.001, 0.001  # excess of log loss
SURE = 0.95
YES, NO, UNTOLD = "transfers", "does not transfer", "may transfer or not"
_BENT = 0.5  # the chance of a bend above which numbers are weak: without one, it is a third
_DECADES = DECADES | {"n_embd": 0.4, "n_layer": 0.4}  # params grow as the square of the width
_DISTINCT = 3
_EDGES = {-1: "at or below the smallest value", 1: "at or above the largest value", 0: ""}


@dataclass(frozen=True, eq=False)
class Searched:
    """What the surface tells about the value of an index `j`.

    `side` [C] is -1 where a cell's optimum is at or below the smallest value tried, 1 at or above the largest, else 0.
    `lacking` is what keeps its numbers from being identified, `doubt` why they are weak, `flags` what may spoil them.
    """

    name: str
    j: int
    surface: Surface
    side: Array
    lacking: Reason | None
    doubt: Reason | None
    flags: tuple[str, ...]

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
            if len(surface.sizes) > 1:
                others = [other for other in surface.sizes if other != size]
                meaning += f", {listed(others)} held"
            entry = self.verdict("exponent", value, low, high).entry((value, low, high), meaning)
            entries[f"exponent of {size}"] = entry | {"drifts": not low <= 0 <= high}
        largest = _cell_logs(surface, int(surface.runs.logs.sum(axis=1).argmax()))
        law = surface.optimum(largest, scatters=False)[:, self.j]
        entries["at the largest cell"] = self.best_at(law, f"the best {self.name} there, on the law")
        return entries

    def cell(self, c: int) -> dict[str, Any]:
        """Return the best value of a cell, which its rows and the law tell."""
        value, low, high = (math.exp(end) for end in interval(self.surface.optima[:, c, self.j], LEVEL))
        n_values = int(self.surface.runs.steps(self.j)[0][c])
        edge = _EDGES[int(self.side[c])]
        return {"value": value, "low": low, "high": high, "edge": edge, "n_values": n_values}

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "law": list(self.surface.sizes),
            "numbers": self.numbers,
            "flat_factor": math.exp(self.surface.reach(self.j, FLAT)),
            "constant": [dict(each) for each in _constants(self.surface, self.j)],
            "flags": list(self.flags),
        }


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
        runs, surface = self.runs, self.surface
        levels = np.exp(surface.levels)
        cells = []
        for c in range(runs.n_cells):
            sizes = {name: math.exp(value) for name, value in zip(runs.sizes, runs.logs[c], strict=True)}
            tuned: dict[str, float | None] = {"tuned_loss": None, "tuned_loss_error": None}
            if np.isfinite(levels[0, c]):
                tuned = {
                    "tuned_loss": float(levels[:, c].mean()),
                    "tuned_loss_error": float(levels[:, c].std()),
                }
            best = {name: found.cell(c) for name, found in self.searched.items()}
            cells.append({**sizes, "n_trials": int((runs.cell == c).sum()), **tuned, "best": best})
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
    return Searched(runs.names[j], j, surface, side, lacking, doubt, tuple(_flags(runs, side, j)))


def _sides(surface: Surface, j: int) -> Array:
    """Return at which end of its values each cell's optimum lies: its interval comes within half a step of it."""
    runs = surface.runs
    low, high = runs.ends(j)
    half = runs.steps(j)[1] / 2
    below, above = np.quantile(surface.optima[:, :, j], [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    is_low, is_high = below <= low + half, above >= high - half
    return np.where(is_high, 1, np.where(is_low, -1, 0))


def _lacking(surface: Surface, inside: NDArray[np.bool_]) -> Reason | None:
    """Return what the design lacks for a law in the surface's sizes, of cells with an optimum between their values."""
    logs = np.column_stack([surface.runs.log_of(name) for name in surface.sizes])[inside]
    if len(logs) < FEWEST_CELLS:
        facts = {"cells": several(len(logs), "cell"), "needed": FEWEST_CELLS}
        return Reason("few cells", facts)
    for k, name in enumerate(surface.sizes):
        decades, count = float(np.ptp(logs[:, k])) / math.log(10), len(np.unique(logs[:, k].round(2)))
        needed = _DECADES.get(name, 0.4)
        if decades < needed:
            return Reason("decades", {"column": name, "decades": decades, "needed": needed})
        if count < _DISTINCT:
            return Reason("few values", {"column": name, "count": count})
    if surface.sizes[:2] == ("params", "tokens"):
        centered = logs - logs.mean(axis=0)
        across = math.sqrt(2 * max(float(np.linalg.eigvalsh(centered.T @ centered / len(logs))[0]), 0.0))
        if across < SPREAD:
            facts = {"line": "line of log tokens against log params", "what": "their sd across it"}
            return Reason("ray", facts | {"spread": across, "needed": SPREAD})
    return None


def _flags(runs: SearchedRuns, side: Array, j: int) -> list[str]:
    """Return what is known to spoil exponents: optima at an end, few values, coarse grids."""
    counts, steps = runs.steps(j)
    flags = []

    def flag(code: str, cells: NDArray[np.bool_], **facts: Any) -> None:
        names = several_named([runs.cell_name(int(c)) for c in np.flatnonzero(cells)])
        count = int(cells.sum())
        if count:
            flags.append(sentence(code, {"cells": several(count, "cell"), "names": names} | facts))

    flag("best at smallest", side == -1)
    flag("best at largest", side == 1)
    flag("few tried", counts < FEWEST_VALUES, needed=FEWEST_VALUES)
    coarse = np.exp(steps) > COARSEST * 1.001
    if coarse.any():
        flag("coarse", coarse, factor=rounded(math.exp(float(np.median(steps[coarse])))), most=COARSEST)
    return flags


def _cell_logs(surface: Surface, c: int) -> dict[str, float]:
    return {name: float(surface.runs.log_of(name)[c]) for name in surface.sizes}


def _constants(surface: Surface, j: int) -> list[Mapping[str, Any]]:
    """Return whether the best value of the smallest model does for the largest: an equivalence test.

    It does if, with 95% confidence, keeping it costs less than 0.1% of the loss; and it does not if it costs more with
    95% confidence. No difference seen is not enough.
    """
    results: list[Mapping[str, Any]] = []
    models = [name for name in surface.sizes if name != "tokens"]
    trained = [name for name in surface.sizes if name == "tokens"]
    for names in filter(None, (models, trained)):
        order = np.sum([surface.runs.log_of(name) for name in names], axis=0)
        small, large = (_cell_logs(surface, int(c)) for c in (order.argmin(), order.argmax()))
        small = large | {name: small[name] for name in names}
        moved = (surface.optimum(large, scatters=False) - surface.optimum(small, scatters=False))[:, j]
        cost = surface.bend[:, j, j] * moved**2 / 2
        is_small = float((cost < TRANSFERS).mean())
        verdict = UNTOLD
        if is_small >= SURE:
            verdict = YES
        elif is_small <= 1 - SURE:
            verdict = NO
        value, low, high = interval(moved, LEVEL)
        ends = dict(zip(("cost", "cost_low", "cost_high"), interval(cost, LEVEL), strict=True))
        shown = {
            "over": " and ".join(names),
            "factor": math.exp(value),
            "low": math.exp(low),
            "high": math.exp(high),
        }
        results.append({**shown, "drifts": not low <= 0 <= high, **ends, "verdict": verdict})
    return results


def predict_values(laws: HyperparameterLaws, target: Mapping[str, float]) -> dict[str, Any]:
    """Return what the laws predict at a size: the best values, their bands, the loss and the regret.

    `target` has sizes, and searched values whose cost is asked for.

    Raises:
        BadInput: the target lacks a size that the law needs, or lies off the path that all cells lie on.
    """
    surface, runs = laws.surface, laws.runs
    logs = {name: math.log(value) for name, value in target.items() if name in SIZES}
    for name in runs.sizes:  # what did not vary need not be named
        if name not in logs and np.ptp(runs.log_of(name)) < 1e-6:
            logs[name] = float(runs.log_of(name)[0])
    lacks = [name for name in surface.sizes if name not in logs]
    if lacks:
        known = ",".join(f"{name}=…" for name in surface.sizes)
        raise BadInput(Problem(f"--at lacks {listed(lacks)}, which the laws need", known))
    path = path_of(_points_of_cells(surface))
    if path and path.misses({name: math.exp(log) for name, log in logs.items()}):
        # What is due to params and what to tokens cannot be told there.
        raise BadInput(f"the laws hold along one path, {path.words}, and this size lies off it")
    best = surface.optimum(logs)
    values = np.median(best, axis=0)
    entries = {}
    for j, (name, searched) in enumerate(laws.searched.items()):
        entries[name] = searched.best_at(best[:, j], f"the best {name}") | {"law": list(surface.sizes)}
        if entries[name]["value"] is not None:
            reach = surface.reach(j, BAND)
            entries[name]["band"] = [math.exp(values[j] - reach), math.exp(values[j] + reach)]
    regret = float(surface.cost(values, best).mean())
    loss = _tuned_loss(laws, logs, regret)
    return {
        "at": dict(target),
        "beyond": _beyond(runs, logs),
        "best": entries,
        "regret": regret,
        "loss": loss,
        "asked": _asked(laws, target, best, entries, loss["value"]),
    }


def _beyond(runs: SearchedRuns, logs: Mapping[str, float]) -> dict[str, float]:
    """Return the factor by which each size lies outside of the cells' sizes; 1 inside."""
    factors = {}
    for name in runs.sizes:
        if name in logs:
            known = runs.log_of(name)
            away = max(logs[name] - float(known.max()), float(known.min()) - logs[name], 0.0)
            factors[name] = math.exp(away)
    return factors


def _points_of_cells(surface: Surface) -> Points:
    """Return the tuned loss of every cell as points of a law, weighted by its error, instead of the best of k runs."""
    runs, levels = surface.runs, surface.levels
    seen = np.isfinite(levels).all(axis=0)
    sizes = [name for name in runs.sizes if name in ("params", "tokens")]
    columns: dict[str, Array] = {name: np.exp(runs.log_of(name)[seen]) for name in sizes}
    columns["loss"] = np.exp(levels[:, seen].mean(axis=0))
    if {"params", "tokens"} <= columns.keys():
        columns["flops"] = 6 * columns["params"] * columns["tokens"]
    error = levels[:, seen].std(axis=0)
    weights = np.clip((np.median(error) / error) ** 2, 0.1, 10.0)
    return Points(columns=columns, weights=weights, is_searched=True, tuned=EACH)


def _tuned_loss(laws: HyperparameterLaws, logs: Mapping[str, float], regret: float) -> dict[str, Any]:
    points = _points_of_cells(laws.surface)
    inside = np.all([found.side == 0 for found in laws.searched.values()], axis=0)
    points = points.only(inside[np.isfinite(laws.surface.levels).all(axis=0)])
    varied = points.varied & {"params", "tokens"} if points.n else set()
    at = {name: math.exp(value) for name, value in logs.items() if name in ("params", "tokens")}
    try:
        if not varied or not varied <= at.keys():
            needed = listed(sorted(varied or {"params"}))
            raise BadInput(f"a law of the loss needs {needed} of the size and of the cells")
        law = law_for(points)
        predicted = forecast(assess(points, law), at)
    except BadInput as refused:
        return {"value": None, "low": None, "high": None, "why": refused.problems[0].what}
    entry = predicted.verdict.entry((predicted.loss, predicted.low, predicted.high), "the tuned loss")
    if entry["value"] is not None:
        entry["with_these_values"] = entry["value"] * math.exp(regret)
    return entry | {"law": law.name}


def _asked(
    laws: HyperparameterLaws,
    target: Mapping[str, float],
    best: Array,
    entries: Mapping[str, Any],
    tuned: float | None,
) -> dict[str, Any] | None:
    """Return what searched values that the target names would cost there; the others are at their predicted best."""
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
            factor, known = math.exp(abs(value - middle[j])), math.exp(reach)
            why = f"{name}={short(math.exp(value))} lies a factor {factor:.3g} from the best, "
            why += (
                f"{short(math.exp(middle[j]))}: the rows say what a factor of {known:.3g} costs, and no more"
            )
    if why:
        return {"excess": None, "off": None, "loss": None, "why": why}
    excess = float(surface.cost(values, best).mean())
    loss = None if tuned is None else tuned * math.exp(excess)
    off = excess - float(surface.cost(middle, best).mean())
    return {"excess": excess, "off": off, "loss": loss, "why": ""}
