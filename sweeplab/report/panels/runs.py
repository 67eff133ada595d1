"""Panels of a study's runs: loss against a size, the heat map, the curves, the table.

A panel with nothing to draw says why.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pandas import DataFrame, Series
from pandas.api.types import is_numeric_dtype

from sweeplab.analysis.trials import (
    TRIAL,
    VALUED,
    check_one_task,
    finite,
    grid_of,
    marks_of,
    searched_of,
    trials_table,
)
from sweeplab.hyperparameters import TABLE
from sweeplab.report.columns import CURVES, FACTS, LOSSES, PROGRESS, title_of
from sweeplab.report.panels.base import Axis, Panel, PanelSpec, TablePanel
from sweeplab.report.panels.material import Material
from sweeplab.report.words import counted, several, written

_RUN = [*TRIAL, "seed"]
_MOST_BASELINES = 4


@dataclass(frozen=True, kw_only=True)
class LossPanel(Panel):
    """Loss against a size. `data`: cell, trial, state, seeds, x, loss, loss_low, loss_high, line, best.

    `view` is the range of losses to show at first where far worse trials would press the others together.
    """

    x: Axis
    y: Axis
    lines: tuple[str, ...] = ()
    view: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class HeatMapPanel(Panel):
    """The best loss at each pair of sizes. `data`: a column a size, loss, cell, trial."""

    x: Axis
    y: Axis


@dataclass(frozen=True, kw_only=True)
class CurvesPanel(Panel):
    """A metric while training. `data`: cell, trial, seed, x, value, best.

    `best` has the best trial of each cell, the mean of its seeds: cell, trial, n_params, x, value. `baselines` are
    the losses that n-grams reach.
    """

    x: Axis
    y: Axis
    best: DataFrame
    baselines: tuple[float, ...] = ()


def loss_panel(spec: PanelSpec, material: Material) -> Panel:
    """Compare the trials' losses over one size."""
    runs = material.runs
    metric = spec.metric or "best_val_loss"
    trials = trials_table(runs, metric)
    shown = trials[trials["state"].isin((*VALUED, "pruned")) & trials["loss"].notna()].copy()
    shown["x"] = finite(shown, spec.x)
    for axis in spec.log:
        shown = shown[shown[{"x": "x", "y": "loss_low"}[axis]] > 0]
    shown = shown[shown["x"].notna()]
    lines = [name for name in spec.lines or _lines(spec.x, grid_of(runs)) if name in runs]
    shown["line"] = _labels(shown, lines)
    # In a study of one cell the sizes are searched: there the best trial of each size makes the line.
    apart = ["cell"] if runs["cell"].nunique() > 1 else ["line", "x"]
    ended = shown[shown["state"].isin(VALUED)]
    shown["best"] = shown.index.isin(ended.groupby(apart)["loss"].idxmin())
    view, outside = _view(shown)
    columns = [*TRIAL, "state", "seeds", "x", "loss", "loss_low", "loss_high", "line", "best"]
    return LossPanel(
        title=spec.title or f"Loss against {title_of(spec.x)}",
        width=spec.width,
        data=shown[columns].sort_values(["line", "x", "loss"], key=_natural, ignore_index=True),
        notes=(*_loss_notes(trials, shown), *outside),
        missing=_missing(spec.x, runs, shown, metric),
        x=Axis(spec.x, title_of(spec.x), "x" in spec.log, marks_of(shown["x"]) if spec.x in TABLE else ()),
        y=Axis(metric, LOSSES[metric], "y" in spec.log),
        lines=tuple(lines),
        view=view,
    )


def heat_map_panel(spec: PanelSpec, material: Material) -> Panel:
    """Give the lowest loss at each pair of two sizes.

    Raises:
        BadInput: the losses are of unlike tasks.
    """
    runs = material.runs
    metric = spec.metric or "best_val_loss"
    grid = [name for name in grid_of(runs) if finite(runs, name).nunique() > 1]
    free = [name for name in grid if name not in (spec.x, spec.y)]
    y = spec.y or (free.pop(0) if free else "")
    x = spec.x or (free.pop(0) if free else "")
    trials = trials_table(runs, metric)
    ended = trials[trials["state"].isin(VALUED) & trials["loss"].notna()]
    check_one_task(ended)
    if runs.empty or (x and y):
        missing = _missing(x, runs, ended, metric) or _missing(y, runs, ended, metric)
    else:
        missing = f"a heat map needs two sizes that vary in the grid; here {grid[0] if grid else 'none'} does"
    best = DataFrame()
    marks: dict[str, tuple[float, ...]] = {x: (), y: ()}
    if not missing:
        lowest = ended.groupby([x, y])["loss"].idxmin()
        best = ended.loc[sorted(lowest), [y, x, "loss", "cell", "trial"]].reset_index(drop=True)
        marks = {name: marks_of(best[name], most=None) for name in (x, y)}
    others = ", ".join(name for name in grid if name not in (x, y))
    return HeatMapPanel(
        title=spec.title or "Best loss of each cell",
        width=spec.width,
        data=best,
        notes=(f"The lowest {LOSSES[metric]}{f', over {others}' if others else ''}.",),
        missing=missing,
        x=Axis(x, title_of(x), marks=marks[x]),
        y=Axis(y, title_of(y), marks=marks[y]),
    )


def curves_panel(spec: PanelSpec, material: Material) -> Panel:
    """Follow a metric of every run while it trains."""
    runs = material.runs
    metric, x = spec.metric or "val_loss", spec.x or "train_tokens"
    trials = trials_table(runs)
    kept = runs[~runs["state"].isin(("diverged", "failed"))]
    drawn = material.curves(metric).merge(kept[_RUN], on=_RUN)
    drawn = drawn.assign(x=finite(drawn, x), value=finite(drawn, "value")).dropna(subset=["x", "value"])
    for axis in spec.log:
        drawn = drawn[drawn[{"x": "x", "y": "value"}[axis]] > 0]
    drawn = drawn.merge(trials[[*TRIAL, "best", "n_params"]], on=TRIAL)
    drawn = drawn.sort_values(["n_params", *_RUN, "x"], ignore_index=True)
    by_x = drawn[drawn["best"]].groupby([*TRIAL, "n_params", "x"], sort=False)
    best = by_x["value"].mean().reset_index()
    left_out = counted(runs.loc[~runs.index.isin(kept.index), "state"])
    notes = ("Bold: the best trial of each cell, the mean of its seeds. Faint: every run, pruned ones too.",)
    return CurvesPanel(
        title=spec.title or "Learning curves",
        width=spec.width,
        data=drawn[[*_RUN, "x", "value", "best"]],
        notes=(*notes, *((f"Not drawn: {left_out}.",) if left_out else ())),
        missing="" if len(drawn) else f"no run has a {metric} yet" + (f" ({left_out})" if left_out else ""),
        x=Axis(x, PROGRESS[x], "x" in spec.log),
        y=Axis(metric, CURVES[metric], "y" in spec.log),
        best=best,
        baselines=_baselines(material) if metric == "val_loss" else (),
    )


def _baselines(material: Material) -> tuple[float, ...]:
    """Return the different losses of n-grams, lowest first; none where there are too many to tell apart."""
    found = sorted({round(each["loss"], 4) for each in material.baselines.values()})
    return tuple(found) if len(found) <= _MOST_BASELINES else ()


def table_panel(spec: PanelSpec, material: Material) -> Panel:
    """List the runs with what varies among them, the best first."""
    runs = material.runs
    grid = grid_of(runs)
    tuned = [name for name in searched_of(runs) if name not in grid]
    columns = [*grid, "trial", "seed", "state", *LOSSES, *tuned, *FACTS]
    columns = list(dict.fromkeys(name for name in (columns if grid else ["cell", *columns]) if name in runs))
    return TablePanel(
        title=spec.title or "Runs",
        width=spec.width,
        data=runs[columns].sort_values("best_val_loss", ignore_index=True),
        missing="" if len(runs) else "the study has no runs yet",
    )


def _loss_notes(trials: DataFrame, shown: DataFrame) -> list[str]:
    notes = ["Large: the best trial of each cell; small: the others that ended."]
    if (shown["state"] == "pruned").any():
        notes.append("Hollow: pruned trials, at the best loss they reached.")
    if (shown["seeds"] > 1).any():
        notes.append("A trial is the mean of its seeds; bars span them.")
    left_out = counted(trials.loc[~trials.index.isin(shown.index), "state"])
    return [*notes, *([f"Not drawn: {left_out}."] if left_out else [])]


def _view(shown: DataFrame) -> tuple[tuple[float, float] | None, list[str]]:
    """Return the range of losses that shows the best trials well, and how many lie outside of it."""
    best = shown.loc[shown["best"], "loss"]
    if best.empty:
        return None, []
    top = best.max() + max(1.5 * (best.max() - best.min()), 0.15 * abs(best.max()))
    above = int((shown["loss"] > top).sum())
    if not above:
        return None, []
    low = min(shown["loss"].min(), shown.loc[shown["best"], "loss_low"].min())
    return (low - 0.04 * (top - low), top), [
        f"Above the view: {several(above, 'trial')}; double-click to see all."
    ]


def _missing(column: str, runs: DataFrame, shown: DataFrame, metric: str) -> str:
    """Say why there is nothing to compare over a column, or nothing at all."""
    if runs.empty:
        return "the study has no runs yet"
    if column not in runs:
        return f"the runs have no {column}"
    values = finite(runs, column)
    if values.isna().all() and runs[column].notna().any():
        return f"{column} is not a number"
    if not shown["state"].isin(VALUED).any():
        return f"no trial has ended with a {metric} yet ({counted(runs['state'])})"
    if values.nunique() == 1:
        return f"{column} is {written(values.iloc[0])} in every run"
    return ""


def _lines(x: str, grid: Sequence[str]) -> Sequence[str]:
    """Return what tells the lines apart: the grid's other sizes, or over a sum of sizes the first of them."""
    others = [name for name in grid if name != x]
    return others if x in grid else others[:1] if len(others) > 1 else []


def _labels(table: DataFrame, names: Sequence[str]) -> Series:
    rows = table[list(names)].itertuples(index=False)
    labels = [", ".join(f"{name} = {value}" for name, value in zip(names, row, strict=True)) for row in rows]
    return Series(labels, index=table.index, dtype=object)


def _natural(column: Series) -> Series:
    """Make a column of labels sort by the numbers in them."""
    if is_numeric_dtype(column):
        return column
    keys = [
        tuple(float(part) for part in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", str(label))) for label in column
    ]
    ranks = {key: rank for rank, key in enumerate(sorted(set(keys)))}
    return Series([ranks[key] for key in keys], index=column.index)
