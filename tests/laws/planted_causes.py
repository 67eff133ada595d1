"""Planted tables of runs over learning rates, seeds and shapes, in which the law's residual has known causes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sweeplab.laws.assessment import law_for
from sweeplab.laws.causes import BEND, EPOCHS, SEEDS, SHAPE, TUNING, free_directions, worth
from sweeplab.laws.cures import Cure, Diagnosis, diagnose
from sweeplab.laws.fitting import fit
from sweeplab.laws.hyperparameters.runs import runs_of_frame
from sweeplab.laws.points import points_of_frame

Array = NDArray[np.float64]

DESIGNS = {"9 points": (2e6,), "27 points": (5e5, 2e6, 8e6)}  # lengths in tokens, of nine shapes
CAUSES = {"9 points": (SEEDS, SHAPE, TUNING, BEND), "27 points": (SEEDS, SHAPE, TUNING, EPOCHS, BEND)}
LAW = {"E": 1.2, "A": 40.0, "alpha": 0.4, "B": 300.0, "beta": 0.4}
RATES, LOSS = (2e-3, 0.06), {"loss": "val_loss"}
_MIDDLES = {"n_params": 3e4, "train_tokens": 2e6}


@dataclass(frozen=True)
class World:
    """A law and what lies beside it; `effects` are functions of cells, `rates` [C, k] those that each cell tries.

    A run's log loss rises by `bowl` times about half the square of the log distance to the best learning rate.
    """

    depths: tuple[int, ...] = (1, 2, 4)
    widths: tuple[int, ...] = (16, 32, 64)
    lengths: tuple[float, ...] = (2e6,)
    seeds: int = 3
    rates: Array | None = None
    corpus: float = 1e9
    bowl: float = 0.06
    ratio: float | None = None  # tokens a parameter, in place of lengths
    noise: float = 0.0017
    effects: tuple[Callable[[pd.DataFrame], Array], ...] = ()

    def cells(self) -> pd.DataFrame:
        """Return the cells, a row each."""
        rows = product(self.depths, self.widths, self.lengths)
        table = pd.DataFrame(rows, columns=["n_layer", "n_embd", "train_tokens"])
        table["n_params"] = 12 * table.n_layer * table.n_embd**2 + 100 * table.n_embd
        if self.ratio:
            table["train_tokens"] = self.ratio * table.n_params
        return table.assign(epochs=np.maximum(table.train_tokens / self.corpus, 0.01))

    def truth(self) -> Array:
        """Return the log loss of each cell at its best learning rate, without noise."""
        cells = self.cells()
        of_n, of_d = LAW["A"] / cells.n_params ** LAW["alpha"], LAW["B"] / cells.train_tokens ** LAW["beta"]
        return np.asarray(np.log(LAW["E"] + of_n + of_d) + sum(effect(cells) for effect in self.effects))

    def tried(self) -> Array:
        """Return the learning rates that each cell tries, [C, k]."""
        if self.rates is not None:
            return self.rates
        return np.tile(np.geomspace(*RATES, 6), (len(self.cells()), 1))

    def excess(self) -> Array:
        """Return how far the log loss of each cell at each rate lies above its lowest, [C, k]."""
        best = np.log(1.5e-2) - 0.25 * centered(self.cells(), "n_params")
        z = np.log(self.tried()) - best[:, None]
        return np.asarray(self.bowl * (z**2 / 2 + z**3 / 15))

    def runs(self, key: int, again: int = 0, before: World | None = None) -> pd.DataFrame:
        """Return all runs; those that were there `before` keep their noise, the noise of others differs by `again`."""
        there = before or self
        known, n_rates = set(product(there.depths, there.widths)), there.tried().shape[1]
        cells, off, frames = self.cells(), self.excess(), []
        shapes = list(cells.itertuples(index=False, name=None))
        for at, seed in product(range(off.shape[1]), range(self.seeds)):
            new = [at >= n_rates or seed >= there.seeds or shape[:2] not in known for shape in shapes]
            marks = zip(new, shapes, strict=True)
            keys = ([key, again * fresh, *map(int, shape[:3]), at, seed] for fresh, shape in marks)
            noise = np.array([np.random.default_rng(each).standard_normal() for each in keys])
            loss = np.exp(self.truth() + off[:, at] + self.noise * noise)
            run = {"learning_rate": self.tried()[:, at], "seed": seed, "val_loss": loss, "excess": off[:, at]}
            frames.append(cells.assign(**run))
        return pd.concat(frames, ignore_index=True)


def centered(cells: pd.DataFrame, name: str) -> Array:
    """Return the log of a size about its middle."""
    return np.asarray(np.log(cells[name].to_numpy(float) / _MIDDLES[name]))


def free_of(world: World) -> Array:
    """Return the directions that the law without effects leaves free at the world's cells, [n, m]."""
    plain = replace(world, effects=())
    points = points_of_frame(plain.cells().assign(val_loss=np.exp(plain.truth())), "a table", LOSS)
    return free_directions(fit(points, law_for(points)))


def _pattern(cause: str, random: np.random.Generator, n_lengths: int) -> Callable[[pd.DataFrame], Any]:
    if cause == SHAPE:
        middle, slope = random.uniform(1.5, 3.5), random.uniform(-1, 1)

        def of_shape(cells: pd.DataFrame) -> Any:
            aspect = np.log(cells.n_embd / cells.n_layer)
            return (aspect - middle) ** 2 / 2 + slope * aspect

        return of_shape
    if cause == EPOCHS:
        lean = random.uniform(0, 0.3)
        return lambda cells: worth(cells.epochs.to_numpy()) * (1 + lean * centered(cells, "n_params"))
    if n_lengths > 1 and random.random() < 0.5:
        return lambda cells: centered(cells, "n_params") * centered(cells, "train_tokens")
    at, sign = random.uniform(-0.5, 0.5), random.choice([-1, 1])

    # A bend where tokens do not grow with the size.
    def of_ratio(cells: pd.DataFrame) -> Any:
        ratio = centered(cells, "n_params") - centered(cells, "train_tokens")
        return sign * np.logaddexp(0, 2 * (ratio - at))

    return of_ratio


def make(design: str, sizes: Mapping[str, float], random: np.random.Generator) -> World | None:
    """Return a world whose causes have these sizes in the law's residual; None if the law absorbs nearly all of one."""
    lengths = DESIGNS[design]
    world = World(lengths=lengths, corpus=1e6 if EPOCHS in sizes else 1e9)
    free, cells = free_of(world), world.cells()
    for cause, size in sizes.items():
        if cause == SEEDS:
            world = replace(world, noise=size * world.seeds**0.5)
        elif cause == TUNING:  # a range that ends too low, or few trials
            rates = np.exp(random.uniform(*np.log(RATES), (len(cells), 4)))
            if random.random() < 0.5:
                rates = np.tile(np.geomspace(RATES[0], random.choice([0.012, 0.018]), 4), (len(cells), 1))
            world = replace(world, rates=rates, bowl=1.0)
            world = replace(world, bowl=size / _rms(free.T @ world.excess().min(1)))
            if not 0.01 < world.bowl < 0.5:
                return None
        else:
            pattern = _pattern(cause, random, len(lengths))
            off = np.asarray(pattern(cells), float)
            scale = size / _rms(free.T @ off)
            if scale * off.std() > 8 * size:
                return None
            effect = _scaled(pattern, scale)
            world = replace(world, effects=(*world.effects, effect))
    return world


def _scaled(pattern: Callable[[pd.DataFrame], Any], scale: float) -> Callable[[pd.DataFrame], Array]:
    return lambda cells: np.asarray(scale * pattern(cells), np.float64)


def _rms(values: Array) -> float:
    return float(np.sqrt((values**2).mean()))


def look(runs: pd.DataFrame) -> tuple[Diagnosis, Array]:
    """Return the diagnosis of a table of runs, and the true tuning excess of its points, [n]."""
    frame = runs.drop(columns="excess")
    points = points_of_frame(frame, "a table", LOSS)
    rows = [int(name.split()[1]) for name in points.names]
    diagnosis = diagnose(points, runs_of_frame(frame, "a table", LOSS), frame.loc[rows, "epochs"].to_numpy())
    return diagnosis, runs.loc[rows, "excess"].to_numpy()


def cured(world: World, cure: Cure, key: int, again: int) -> pd.DataFrame:
    """Return the runs of a world after a cure."""
    change, before = cure.change, world
    if "rows" in change:
        runs = replace(world, seeds=world.seeds + change["seeds"]).runs(key, again, before)
        cell = np.tile(np.arange(len(world.cells())), len(runs) // len(world.cells()))
        return runs[(runs.seed < world.seeds) | np.isin(cell, change["rows"])].reset_index(drop=True)
    if "n_layer" in change:
        world = replace(world, depths=(change["n_layer"],), widths=tuple(change["n_embd"]))
        if world.rates is not None:
            world = replace(world, rates=np.tile(world.rates[:1], (len(world.cells()), 1)))
    elif "tokens" in change:
        world = replace(world, corpus=1e9)
    else:
        tried = world.tried()
        ends = change.get("min", tried.min()), change.get("max", tried.max())
        more = np.exp(np.random.default_rng(key).uniform(*np.log(ends), tried.shape))
        world = replace(world, rates=np.hstack([tried, more]))
    return world.runs(key, again, before)
