"""The laws of searched hyperparameters: their numbers with verdicts, and the best values of sizes that were not tuned.

Every number is a quantile of the draws of `surface.py`: the best value of a cell, the exponents, the best value of
another size, and what a value costs there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sweeplab.errors import BadInput, Problem
from sweeplab.formatting import listed, several
from sweeplab.laws.assessment import design_lacks, judge
from sweeplab.laws.core import LEVEL, Array, interval
from sweeplab.laws.forms import shown
from sweeplab.laws.hyperparameters.runs import SearchedRuns
from sweeplab.laws.hyperparameters.surface import Surface, fit_surface
from sweeplab.laws.points import Points, path_of
from sweeplab.laws.sentences import Plain, Point, Reason

FEWEST_CELLS = 6  # with an optimum between their values


class Searched(NamedTuple):
    """What the surface tells about the value of an index `j`.

    `edges` [C] say at which end of its values a cell's optimum is, or are empty.
    `lacking` is what keeps its numbers from being identified, `doubt` why they are weak.
    """

    name: str
    j: int
    surface: Surface
    edges: NDArray[np.object_]
    lacking: Reason | None
    doubt: Reason | None

    def entry(self, kind: str, draws: Array, meaning: str) -> Plain:
        """Return the entry of a number by its draws, of the log of a best value."""
        ends = interval(draws)
        verdict = judge(kind, *ends, self.lacking, self.doubt)
        return verdict.entry(shown(kind, ends), meaning)

    @property
    def numbers(self) -> dict[str, Plain]:
        """Return the exponents and the best value at the largest cell."""
        surface = self.surface
        entries = {}
        for k, size in enumerate(surface.sizes):
            meaning = f"the best {self.name} grows as {size} to this power"
            others = [other for other in surface.sizes if other != size]
            if others:
                meaning += f", {listed(others)} held"
            draws = surface.exponents[:, k, self.j]
            entries[f"exponent of {size}"] = self.entry("exponent", draws, meaning)
        largest = surface.runs.logs.sum(axis=1).argmax()
        logs = {name: surface.runs.log_of(name)[largest] for name in surface.sizes}
        law = surface.optimum(logs, scatters=False)[:, self.j]
        meaning = f"the best {self.name} there, on the law"
        entries["at the largest cell"] = self.entry("hyperparameter", law, meaning)
        return entries

    def cell(self, c: int) -> Plain:
        """Return the best value of a cell, which its rows and the law tell."""
        value, low, high = (
            math.exp(end) for end in interval(self.surface.optima[:, c, self.j])
        )
        return {"value": value, "low": low, "high": high, "edge": str(self.edges[c])}


class HyperparameterLaws(NamedTuple):
    """The surface of a table, and what it tells about every searched value that shows a minimum."""

    surface: Surface
    searched: Mapping[str, Searched]

    def as_dict(self) -> Plain:
        """Return all as plain values."""
        runs = self.surface.runs
        cells = []
        for c in range(runs.n_cells):
            sizes = {name: math.exp(runs.log_of(name)[c]) for name in runs.sizes}
            best = {name: searched.cell(c) for name, searched in self.searched.items()}
            cells.append({**sizes, "n_trials": int((runs.cell == c).sum()), "best": best})
        return {
            "cells": cells,
            "searched": {
                name: {"numbers": searched.numbers} for name, searched in self.searched.items()
            },
            "warnings": list(runs.notes),
        }


def assess_hyperparameters(runs: SearchedRuns) -> HyperparameterLaws:
    """Fit the best values of all cells and the laws of the searched values.

    Raises:
        BadInput: the rows are too few, or have no minimum.
    """
    surface = fit_surface(runs)
    searched = {name: searched_value(surface, j) for j, name in enumerate(surface.runs.names)}
    return HyperparameterLaws(surface, searched)


def searched_value(surface: Surface, j: int, fewest: int = FEWEST_CELLS) -> Searched:
    """Return what the surface tells about a value; `fewest` cells must have an optimum between their values."""
    runs = surface.runs
    # An optimum lies at an end of a cell's values where its interval comes within half a step of that.
    low, high, distinct = (
        runs.of_cells(runs.x[:, j].round(4), how) for how in ("min", "max", "nunique")
    )
    half = (high - low) / np.maximum(distinct - 1, 1) / 2
    below, above = np.quantile(
        surface.optima[:, :, j], [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0
    )
    edges = np.full(runs.n_cells, "", dtype=object)
    edges[below <= low + half] = "at or below the smallest value"
    edges[above >= high - half] = "at or above the largest value"
    inside = edges == ""
    count = int(inside.sum())
    outside = runs.n_cells - count
    facts = {"name": runs.names[j], "count": outside, "cells": several(runs.n_cells, "cell")}
    doubt, lacking = None, None
    if 3 * outside > runs.n_cells:
        doubt = Reason("optima outside", facts)
    elif surface.bend_chance > 1 / 2:
        doubt = Reason(
            "bent", {"chance": surface.bend_chance, "sizes": listed([*surface.sizes])}
        )
    if 2 * outside > runs.n_cells:
        lacking = Reason("optima outside", facts)
    elif at_end := runs.best_at_end(j):
        lacking = Reason("best at end", {"what": at_end})
    elif count < fewest:
        lacking = Reason("few cells", {"cells": several(count, "cell"), "needed": fewest})
    else:
        sizes = {name: np.exp(runs.log_of(name)[inside]) for name in surface.sizes}
        lacking = design_lacks(Points(sizes, np.ones(count)), surface.sizes, surface.sizes)
    return Searched(runs.names[j], j, surface, edges, lacking, doubt)


def predict_values(laws: HyperparameterLaws, target: Point) -> Plain:
    """Return what the laws predict at a size: the best values and the regret.

    `target` has sizes.

    Raises:
        BadInput: the target lacks a size that the law needs, or lies off the path that all cells lie on.
    """
    surface = laws.surface
    runs = surface.runs
    lacks = [name for name in surface.sizes if name not in target]
    if lacks:
        known = ",".join(f"{name}=…" for name in surface.sizes)
        raise BadInput(Problem(f"--at lacks {listed(lacks)}, which the laws need", known))
    counts = {
        name: np.exp(runs.log_of(name)) for name in runs.sizes if name in ("params", "tokens")
    }
    path = path_of(Points(counts, np.ones(runs.n_cells)))
    if path and path.misses(target):
        # What is due to params and what to tokens cannot be told there.
        raise BadInput(f"the laws hold along one path, {path.words}, and this size lies off it")
    best = surface.optimum({name: math.log(target[name]) for name in surface.sizes})
    entries = {
        name: searched.entry("hyperparameter", best[:, searched.j], f"the best {name}")
        for name, searched in laws.searched.items()
    }
    return {
        "best": entries,
        "regret": surface.cost(np.median(best, axis=0), best).mean(),
    }
