"""Panels of a sweep's trials, by Optuna's names of its plots: history, slice, parallel coordinates, ranks, EDF."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from pandas import DataFrame, Series

from sweeplab.analysis.sweep.importance import WITHIN
from sweeplab.analysis.sweep.trials import Dimension, Sweep, has_ended, merged
from sweeplab.errors import BadInput
from sweeplab.report.panels.base import Axis, Panel, PanelSpec
from sweeplab.report.panels.importances import importances_of
from sweeplab.report.panels.material import Material
from sweeplab.report.words import several

# A page draws no more trials than these: half are the best, the others evenly chosen. The CSV has all.
MOST_DRAWN = 800
MOST_PAIRED = 4
CUT_SHORT = ("diverged", "failed")


@dataclass(frozen=True, kw_only=True)
class HistoryPanel(Panel):
    """The best loss so far over the trials. `data`: study, cell, trial, state, loss, best, line."""

    x: Axis
    y: Axis


@dataclass(frozen=True, kw_only=True)
class SpacePanel(Panel):
    """Trials in the space that was searched. `data` as a sweep's trials, with `study` and `drawn`.

    `y` is the column of the losses; `top` is the highest that is shown.
    """

    dimensions: tuple[Dimension, ...]
    y: Axis
    top: float = float("nan")


@dataclass(frozen=True, kw_only=True)
class SlicePanel(SpacePanel):
    """Loss over one hyperparameter after the other."""


@dataclass(frozen=True, kw_only=True)
class ParallelPanel(SpacePanel):
    """Each trial as a line through the values that it had."""


@dataclass(frozen=True, kw_only=True)
class RankPanel(SpacePanel):
    """Trials over each pair of hyperparameters, told apart by where they stand."""


@dataclass(frozen=True, kw_only=True)
class EdfPanel(Panel):
    """The share of trials with a loss no higher than x. `data`: study, cell, trial, loss, share."""

    x: Axis
    y: Axis


def history_panel(spec: PanelSpec, material: Material) -> Panel:
    """Follow the best loss so far, in each cell, or of several studies its mean over the cells.

    Raises:
        BadInput: no trial has ended.
    """
    sweeps = material.sweeps
    tables = [_history(sweep) for sweep in sweeps]
    if len(sweeps) > 1:
        shared = set.intersection(*(set(table["cell"]) for table in tables))
        tables = [_mean_history(table[table["cell"].isin(shared)]) for table in tables]
    data = pd.concat(tables, ignore_index=True)
    if data.empty:
        raise BadInput(
            "no trial has ended yet" + (" in a cell that all studies have" if len(sweeps) > 1 else "")
        )
    one = "One line a cell; dots are trials that ended."
    return HistoryPanel(
        title=spec.title or "Optimization history",
        width=spec.width,
        data=data,
        notes=("Mean over the cells that all studies have." if len(sweeps) > 1 else one,),
        x=Axis("trial", "trials in the cell"),
        y=Axis("best", material.loss_title),
    )


def _history(sweep: Sweep) -> DataFrame:
    order = {cell: at for at, cell in enumerate(sweep.cells)}
    trials = sweep.trials.assign(
        study=sweep.name, line=sweep.trials["cell"], at=sweep.trials["cell"].map(order)
    )
    trials = trials.sort_values(["at", "trial"])
    trials["loss"] = trials["loss"].where(has_ended(trials))
    trials["best"] = trials.groupby("cell")["loss"].cummin()
    trials["best"] = trials.groupby("cell")["best"].ffill()
    trials["trial"] = trials.groupby("cell").cumcount() + 1
    return trials.loc[trials["best"].notna(), ["study", "cell", "trial", "state", "loss", "best", "line"]]


def _mean_history(table: DataFrame) -> DataFrame:
    """Return the mean of the best so far, from where every cell has one."""
    by_trial = table.pivot_table(index="trial", columns="cell", values="best").ffill().dropna()
    study = table["study"].iloc[0] if len(table) else ""
    return DataFrame(
        {"study": study, "cell": "mean", "trial": by_trial.index, "state": "", "loss": np.nan}
        | {"best": by_trial.mean(axis=1).to_numpy(float), "line": study}
    )


def slice_panel(spec: PanelSpec, material: Material) -> Panel:
    """Show the trials' losses over each hyperparameter.

    Raises:
        BadInput: no trial has ended, or nothing was searched.
    """
    sweeps = material.sweeps
    dimensions = _dimensions(spec, sweeps)
    data, y = _trials(material)
    ended = data.loc[has_ended(data), y.column]
    top = float(ended.quantile(0.9)) + 0.3 * float(ended.quantile(0.9) - ended.min())
    above = int((ended > top).sum()) if top > float(ended.min()) else 0
    cut_short = int(data["state"].isin(CUT_SHORT).sum())
    n_pruned = int((data["state"] == "pruned").sum())
    notes = [
        f"Above the view: {several(above, 'trial')}; double-click to see all." if above else "",
        f"Crosses on top: {several(cut_short, 'trial')} that diverged or failed." if cut_short else "",
        "Pruned trials are left out: their losses are of earlier iterations." if n_pruned else "",
    ]
    return SlicePanel(
        title=spec.title or "Slice",
        width=spec.width,
        data=data,
        notes=(*filter(None, notes), *_thinned(data)),
        dimensions=tuple(dimensions),
        y=y,
        top=top,
    )


def parallel_panel(spec: PanelSpec, material: Material) -> Panel:
    """Draw every trial that was counted through its hyperparameters, the best in front.

    Raises:
        BadInput: no trial has ended, nothing was searched, or there are several studies.
    """
    sweep = _only(material, "parallel coordinates")
    data, y = _trials(material)
    return ParallelPanel(
        title=spec.title or "Parallel coordinates",
        width=spec.width,
        data=data[data["standing"].notna()],
        notes=("Colored by where a trial stands in its cell; the best fifth in front.", *_thinned(data)),
        dimensions=(*(sweep.grid if not spec.params else ()), *_dimensions(spec, [sweep])),
        y=y,
    )


def rank_panel(spec: PanelSpec, material: Material) -> Panel:
    """Show the trials over pairs of hyperparameters, those that matter most first.

    Raises:
        BadInput: no trial has ended, fewer than two hyperparameters were searched, or there are several studies.
    """
    sweep = _only(material, "ranks")
    dimensions = _dimensions(spec, [sweep])
    if len(dimensions) < 2:
        raise BadInput(f"pairs need two searched hyperparameters; here there is {dimensions[0].name} alone")
    if not spec.params:
        found = importances_of(material, sweep)
        scope = WITHIN if len(sweep.cells) > 1 else sweep.cells[0]
        rank = {each.hyperparameter: -each.importance for each in found if each.scope == scope}
        dimensions = sorted(dimensions, key=lambda each: rank.get(each.name, 0.0))[:MOST_PAIRED]
    data, y = _trials(material)
    return RankPanel(
        title=spec.title or "Rank of the trials over pairs of hyperparameters",
        width=spec.width,
        data=data[data["standing"].notna()],
        notes=("Colored by where a trial stands in its cell; those cut short stand last.", *_thinned(data)),
        dimensions=tuple(dimensions),
        y=y,
    )


def edf_panel(spec: PanelSpec, material: Material) -> Panel:
    """Show how the losses of all counted trials are distributed; those cut short never reach one.

    Raises:
        BadInput: no trial has ended.
    """
    sweeps = material.sweeps
    trials = pd.concat([sweep.trials.assign(study=sweep.name) for sweep in sweeps], ignore_index=True)
    trials = trials[trials["standing"].notna()]
    loss = trials["loss"].where(has_ended(trials))
    one_cell = trials["cell"].nunique() == 1
    # Over cells of different sizes losses compare by how far they lie above the best there is.
    trials["loss"] = loss if one_cell else loss - loss.groupby(trials["cell"]).transform("min")
    counts = trials.groupby("study")["trial"].transform("count")
    trials["share"] = trials.groupby("study")["loss"].rank(method="max") / counts
    data = trials[trials["loss"].notna()].sort_values(["study", "loss"], kind="stable")
    if data.empty:
        raise BadInput("no trial has ended yet")
    title = material.loss_title if one_cell else _above(material)
    return EdfPanel(
        title=spec.title or "Empirical distribution function",
        width=spec.width,
        data=data[["study", "cell", "trial", "loss", "share"]].reset_index(drop=True),
        notes=("Trials that were cut short count, and never reach a loss.",),
        x=Axis("loss", title),
        y=Axis("share", "share of trials"),
    )


def _only(material: Material, what: str) -> Sweep:
    sweeps = material.sweeps
    if len(sweeps) > 1:
        raise BadInput(f"{what} are drawn for one study")
    return sweeps[0]


def _dimensions(spec: PanelSpec, sweeps: Sequence[Sweep]) -> list[Dimension]:
    """Return the dimensions asked for, else all that were searched, each once."""
    known = merged(each for sweep in sweeps for each in (*sweep.grid, *sweep.dimensions))
    if missing := [name for name in spec.params if name not in known]:
        raise BadInput(f"{missing[0]} does not vary")
    searched = dict.fromkeys(each.name for sweep in sweeps for each in sweep.dimensions)
    found = [known[name] for name in spec.params or searched]
    if not found:
        raise BadInput("no hyperparameter was searched that came out differently")
    return found


def _above(material: Material) -> str:
    title = material.loss_title.removesuffix(" (nats/token)")
    return f"{title} above the cell's best"


def _trials(material: Material) -> tuple[DataFrame, Axis]:
    """Return the trials of all studies and the axis of their losses; the best of a cell is that over all studies."""
    sweeps = material.sweeps
    data = pd.concat([sweep.trials.assign(study=sweep.name) for sweep in sweeps], ignore_index=True)
    ended = has_ended(data)
    if not ended.any():
        raise BadInput("no trial has ended with a value yet")
    data["above"] = data["loss"] - data["loss"].where(ended).groupby(data["cell"]).transform("min")
    one_cell = data["cell"].nunique() == 1
    data["drawn"] = _drawn(data)
    front = ["study", "cell", "trial", "state", "loss", "above", "standing"]
    return (
        data[[*front, *(name for name in data if name not in front)]],
        Axis("loss", material.loss_title) if one_cell else Axis("above", _above(material)),
    )


def _drawn(data: DataFrame) -> Series:
    """Say which trials are drawn: all, or the best and an even choice of the others."""
    order = data["standing"].rank(method="first")
    if len(data) <= MOST_DRAWN:
        return Series(True, index=data.index)
    best = order <= MOST_DRAWN // 2
    others = np.flatnonzero(~best)
    chosen = others[np.linspace(0, len(others) - 1, MOST_DRAWN - int(best.sum())).astype(int)]
    return best | Series(data.index.isin(data.index[chosen]), index=data.index)


def _thinned(data: DataFrame) -> tuple[str, ...]:
    drawn = int(data["drawn"].sum())
    if drawn == len(data):
        return ()
    return (f"Drawn are {drawn:,} of {len(data):,} trials: the best, and an even choice of the others.",)
