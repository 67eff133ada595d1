"""Panels of a sweep's trials, by Optuna's own plots and named like them: history, EDF, importances, slice, rank …

Optuna draws one study without cells, so each plot is given an in-memory study of the trials that it shows.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import optuna
import pandas as pd
from optuna import visualization
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.trial import TrialState
from pandas import DataFrame

from sweeplab.analysis import importance
from sweeplab.analysis.importance import EVALUATOR, FEWEST_TRIALS, OVER_ALL, WITHIN
from sweeplab.analysis.sweep import Dimension, Sweep, has_ended
from sweeplab.analysis.trials import LOST
from sweeplab.errors import BadInput
from sweeplab.formatting import listed, several
from sweeplab.report import style
from sweeplab.report.data import ReportData
from sweeplab.report.options import Params
from sweeplab.report.panels.base import Panel
from sweeplab.report.style import Axis, Figure, Look, looks, name_rows

# A page draws at most this many trials: half are the best, the rest is evenly chosen. The CSV has all.
MOST_DRAWN = 800
MOST_PAIRED = 4
_PAIR_HEIGHT = 190  # pixels of a small figure in a matrix of pairs

_IMPORTANCES = {
    "Within cells": "Trials of all cells, ranked within their cell, so that the cells' sizes do not matter.",
    "Over all": "The losses themselves, of trials that ended; the grid's sizes are compared with what was tuned.",
    "Chance": "Importances after the losses were shuffled among the trials.",
}


class OptunaPanel(Panel, source="sweeps"):
    """A plot of `optuna.visualization`, in the style of the page."""

    def _plot(self) -> Figure:
        raise NotImplementedError

    def _draw(self, figure: Figure) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            plot = self._plot()
        layout = plot.layout.to_plotly_json()
        for name in ("template", "title", "width"):  # the page has its own
            layout.pop(name, None)
        figure.add_traces(plot.data)
        figure.update_layout(layout)

    def _color_by_name(self, plot: Figure) -> Figure:
        """Give the traces of each study or cell the color that it has in every panel."""
        for trace in plot.data:
            look = self.palette.get(str(trace.name).rpartition(" of ")[2])
            if look is not None:
                trace.update(line={"color": look.color}, marker={"color": look.color})
        return plot


class HistoryPanel(OptunaPanel, name="optimization_history", source="sweeps"):
    """The best loss so far over the trials. `data`: study, cell, trial, state, loss, best, line."""

    @classmethod
    def _of(cls, report: ReportData) -> Panel:
        tables = [_history(sweep) for sweep in report.sweeps]
        note, where = "One line per cell; dots are trials that ended.", ""
        if len(tables) > 1:
            shared = set.intersection(*(set(table["cell"]) for table in tables))
            tables = [_mean_history(table[table["cell"].isin(shared)]) for table in tables]
            note, where = "Mean over the cells that all studies have.", " in a cell that all studies have"
        data = pd.concat(tables, ignore_index=True)
        if data.empty:
            raise BadInput(f"no trial has ended{where}")
        return cls(data=data, notes=(note,), y=Axis("best", report.loss_title))

    def _plot(self) -> Figure:
        studies = []
        for line, rows in self.data.groupby("line", sort=False):
            losses = rows["loss"]
            if losses.isna().all():  # the mean of several cells has no trials of its own
                losses = rows["best"]
            studies.append(optuna_study(DataFrame({"value": losses}), name=str(line)))
        plot = visualization.plot_optimization_history(studies, target_name=self.y.title)
        plot.update_traces(marker={"size": 5, "opacity": 0.45}, selector={"mode": "markers"})
        plot.update_traces(showlegend=False, selector={"mode": "markers"})
        plot.update_layout(showlegend=1 < len(studies) <= style.MOST_LINES)
        return self._color_by_name(plot)


class EdfPanel(OptunaPanel, name="edf", heading="Empirical distribution function", source="sweeps"):
    """The share of trials that ended with a loss no higher than x. `data`: study, cell, trial, loss."""

    @classmethod
    def _of(cls, report: ReportData) -> Panel:
        trials, x = ended_trials(report)
        data = trials[["study", "cell", "trial", x.column]].sort_values(["study", x.column], kind="stable")
        return cls(data=data.reset_index(drop=True), notes=("Of the trials that ended.",), x=x)

    def _plot(self) -> Figure:
        by_study = self.data.groupby("study", sort=False)[self.x.column]
        studies = [optuna_study(DataFrame({"value": loss}), name=str(name)) for name, loss in by_study]
        plot = visualization.plot_edf(studies, target_name=self.x.title)
        plot.update_layout(showlegend=len(studies) > 1)
        return self._color_by_name(plot)


class ImportancePanel(
    Panel, name="param_importances", heading="Importance of the hyperparameters", source="sweeps"
):
    """Importances beside chance. `data`: study, scope, hyperparameter, importance, chance, n_trials, verdict.

    `scopes` are those drawn in front, by (study, scope), with their names.
    """

    scopes: Mapping[tuple[str, str], str]

    @classmethod
    def _of(cls, report: ReportData) -> Panel:
        sweeps = report.sweeps
        if all(len(sweep.dimensions) < 2 for sweep in sweeps):
            raise BadInput("importances need two searched hyperparameters or more")
        shares = [each for sweep in sweeps for each in report.importances(sweep)]
        if not shares:
            raise BadInput(f"importances need {FEWEST_TRIALS} or more trials with different searched values")
        data = DataFrame([asdict(each) | {"verdict": each.verdict} for each in shares])
        known = {(each.study, each.scope) for each in shares}
        in_front = {key: name for sweep in sweeps for key, name in _scopes(sweep, len(sweeps) > 1).items()}
        # Of a scope with too few trials there are no importances.
        scopes = {key: name for key, name in in_front.items() if key in known}
        notes = [f"Ticks: exceeded by {1 - importance.CHANCE:.0%} of shuffles of the losses."]
        n_cells = len(known - scopes.keys())
        if len(sweeps) == 1 and n_cells:
            notes.append(f"Faint: {several(n_cells, 'cell')} with {FEWEST_TRIALS} trials or more.")
        for key, name in scopes.items():
            within = [each for each in shares if (each.study, each.scope) == key]
            chance = [each.hyperparameter for each in within if each.verdict == importance.WITHIN_CHANCE]
            if chance:
                notes.append(f"Not distinguishable from chance, {name}: {listed(chance)}.")
        return cls(
            data=data,
            notes=tuple(notes),
            method={"Evaluator": EVALUATOR, **_IMPORTANCES},
            x=Axis("importance", "share of the importance"),
            scopes=scopes,
        )

    def _draw(self, figure: Figure) -> None:
        data, scopes = self.data, len(self.scopes)
        keys = data.set_index(["study", "scope"]).index
        front = keys.isin(list(self.scopes))
        names = _by_importance(data[front])
        places = {name: at for at, name in enumerate(names)}
        if scopes < keys.nunique() and data["study"].nunique() == 1:
            cells, look = data[~front & data["hyperparameter"].isin(names)], Look("one cell", style.FAINT)
            y, hover = cells["hyperparameter"].map(places), "%{scope}: %{x:.0%}"
            look.points(figure, cells, "importance", y, hover, marker={"size": 6})
        gap = 0.6 / scopes
        hover = "%{hyperparameter}: %{x:.0%}, %{verdict}<br>%{n_trials} trials"
        for at, (key, look) in enumerate(zip(self.scopes, looks([*self.scopes.values()]), strict=True)):
            look = self.palette.get(look.name, look)
            rows = data[keys.isin([key])]
            y_of = rows["hyperparameter"].map(places) * 1.0 + (at - (scopes - 1) / 2) * gap
            tick = {"symbol": "line-ns-open", "size": 13, "line": {"width": 1.5}}
            look.points(figure, rows, rows["chance"].clip(upper=1.0), y_of, marker=tick, showlegend=False)
            look.points(figure, rows, "importance", y_of, hover, marker={"size": 9})
        name_rows(figure, names)
        x, height = self.x.over(-0.02, 1.02), 110 + max(34, 20 * scopes) * len(names)
        figure.update_layout(xaxis=x, height=height, showlegend=scopes > 1)


class SpacePanel(OptunaPanel, source="sweeps"):
    """Trials that ended, in the search space. `data` has a sweep's trials, with `study` and `drawn`."""

    dimensions: tuple[Dimension, ...]

    @property
    def names(self) -> list[str]:
        """Return the hyperparameters that are drawn."""
        return [dimension.name for dimension in self.dimensions]

    @property
    def drawn(self) -> DataFrame:
        """Return the trials that are drawn."""
        return self.data[self.data["drawn"]]

    def study(self) -> optuna.Study:
        """Return the trials that are drawn as a study of Optuna's."""
        drawn = self.drawn
        return optuna_study(drawn.assign(value=drawn[self.y.column]), self.dimensions)


class SlicePanel(SpacePanel, name="slice"):
    """Loss over each hyperparameter in turn; `top` is the highest loss shown."""

    top: float

    @classmethod
    def _of(cls, report: ReportData, params: Params = ()) -> Panel:
        sweep = _only(report, "slices")
        dimensions = _dimensions(params, sweep)
        data, y = ended_trials(report)
        losses = data[y.column]
        top = float(losses.quantile(0.9)) + 0.3 * float(losses.quantile(0.9) - losses.min())
        notes = list(_thinned(data))
        above, lost = int((losses > top).sum()), int(sweep.trials["state"].isin(LOST).sum())
        if above and top > float(losses.min()):
            notes.append(f"Above the view: {several(above, 'trial')}; double-click to see all.")
        if lost:
            notes.append(f"Left out: {several(lost, 'trial')} that diverged or failed.")
        if (sweep.trials["state"] == "pruned").any():
            notes.append("Pruned trials are left out: their losses were measured earlier in training.")
        return cls(
            data=data,
            notes=tuple(notes),
            dimensions=tuple(dimensions),
            y=y,
            top=top,
        )

    def _plot(self) -> Figure:
        plot = visualization.plot_slice(self.study(), self.names, target_name=self.y.title)
        low = float(self.data[self.y.column].min())
        bottom, top = style.padded(low, max(self.top, low + 1e-3), False)
        plot.update_yaxes(range=[bottom, top])
        for trace in plot.data:
            x = trace.xaxis or "x"  # none in a plot of one hyperparameter
            name = plot.layout[x.replace("x", "xaxis")].title.text
            rows = self.drawn[self.drawn[name].notna()]
            # So that the page can show and open the trial.
            trace.meta = {"trials": list(zip(rows["study"], rows["cell"], rows["trial"], strict=True))}
        return plot


class ParallelPanel(SpacePanel, name="parallel_coordinate", heading="Parallel coordinates"):
    """Each trial that ended as a line through its values."""

    @classmethod
    def _of(cls, report: ReportData, params: Params = ()) -> Panel:
        sweep = _only(report, "parallel coordinates")
        data, y = ended_trials(report)
        dimensions = _dimensions(params, sweep)
        if not params:
            dimensions = [*sweep.grid, *dimensions]
        notes = ("Drag along an axis to select.", *_thinned(data))
        return cls(data=data, notes=notes, dimensions=tuple(dimensions), y=y)

    def _plot(self) -> Figure:
        return visualization.plot_parallel_coordinate(self.study(), self.names, target_name=self.y.title)


class PairsPanel(SpacePanel):
    """Trials that ended, over each pair of the hyperparameters asked for, or of the few that matter most."""

    @classmethod
    def _of(cls, report: ReportData, params: Params = ()) -> Panel:
        data, y = ended_trials(report)
        return cls(data=data, notes=_thinned(data), dimensions=tuple(_paired(report, params)), y=y)

    def _draw(self, figure: Figure) -> None:
        super()._draw(figure)
        figure.update_layout(height=_PAIR_HEIGHT * max(2, len(self.dimensions)))


class RankPanel(PairsPanel, name="rank", heading="Rank of the trials over pairs of hyperparameters"):
    """Trials over each pair of hyperparameters, colored by their rank."""

    def _plot(self) -> Figure:
        return visualization.plot_rank(self.study(), self.names, target_name=self.y.title)


class ContourPanel(PairsPanel, name="contour", heading="Loss over pairs of hyperparameters"):
    """The loss between the trials, interpolated over each pair of hyperparameters."""

    def _plot(self) -> Figure:
        return visualization.plot_contour(self.study(), self.names, target_name=self.y.title)


def optuna_study(
    trials: DataFrame, dimensions: Sequence[Dimension] = (), name: str | None = None
) -> optuna.Study:
    """Return an in-memory study of a table of trials; one without a `value` is pruned.

    A hyperparameter that a trial did not sample is left out of that trial.
    """
    study = optuna.create_study(study_name=name)
    spaces = {dimension.name: _distribution(dimension) for dimension in dimensions}
    for row in trials.to_dict("records"):
        params: dict[str, Any] = {}
        for dimension in dimensions:
            value = row[dimension.name]
            if pd.isna(value):
                continue
            if dimension.choices:
                params[dimension.name] = str(value)
            else:
                params[dimension.name] = min(max(float(value), dimension.low), dimension.high)
        state, value = TrialState.COMPLETE, row["value"]
        if pd.isna(value):
            state, value = TrialState.PRUNED, None
        distributions = {name: spaces[name] for name in params}
        trial = optuna.create_trial(state=state, value=value, params=params, distributions=distributions)
        study.add_trial(trial)
    return study


def _distribution(dimension: Dimension) -> BaseDistribution:
    if dimension.choices:
        return CategoricalDistribution(dimension.choices)
    return FloatDistribution(dimension.low, dimension.high, log=dimension.log)


def _paired(report: ReportData, params: Sequence[str]) -> list[Dimension]:
    """Return the dimensions whose pairs are drawn: those asked for, else the few that matter most."""
    sweep = _only(report, "pairs")
    dimensions = _dimensions(params, sweep)
    if len(dimensions) < 2:
        only = dimensions[0].name
        raise BadInput(f"pairs need two searched hyperparameters; here only {only} was searched")
    if params:
        return dimensions
    within = [each for each in report.importances(sweep) if each.scope == main_scope(sweep)]
    shares = {each.hyperparameter: each.importance for each in within}
    return sorted(dimensions, key=lambda dimension: -shares.get(dimension.name, 0.0))[:MOST_PAIRED]


def ended_trials(report: ReportData) -> tuple[DataFrame, Axis]:
    """Return the trials of all studies that ended, and the axis of their losses.

    With several cells the axis has the distance `above` the best loss of the cell. `drawn` marks all trials, or the
    best and an even choice of the rest.

    Raises:
        BadInput: no trial has ended.
    """
    data = pd.concat([sweep.trials.assign(study=sweep.name) for sweep in report.sweeps], ignore_index=True)
    data = data[has_ended(data)].reset_index(drop=True)
    if data.empty:
        raise BadInput("no trial has ended with a value")
    data["above"] = data["loss"] - data.groupby("cell")["loss"].transform("min")
    data["drawn"] = True
    if len(data) > MOST_DRAWN:
        best = data["standing"].rank(method="first") <= MOST_DRAWN // 2
        others = np.flatnonzero(~best)
        chosen = np.linspace(0, len(others) - 1, MOST_DRAWN - int(best.sum())).astype(int)
        data["drawn"] = best | data.index.isin(others[chosen])
    y = Axis("loss", report.loss_title)
    if data["cell"].nunique() > 1:
        y = Axis("above", f"{report.loss_title.partition(' ')[0]} above the cell's best")
    return data, y


def _history(sweep: Sweep) -> DataFrame:
    """Return the trials of each cell in their order, with the best loss up to each."""
    trials = sweep.trials.assign(study=sweep.name, line=sweep.trials["cell"])
    trials["at"] = trials["cell"].map({cell: at for at, cell in enumerate(sweep.cells)})
    trials = trials.sort_values(["at", "trial"])
    trials["loss"] = trials["loss"].where(has_ended(trials))
    trials["best"] = trials.groupby("cell")["loss"].cummin()
    trials["best"] = trials.groupby("cell")["best"].ffill()
    trials["trial"] = trials.groupby("cell").cumcount() + 1
    return trials.loc[trials["best"].notna(), ["study", "cell", "trial", "state", "loss", "best", "line"]]


def _mean_history(table: DataFrame) -> DataFrame:
    """Average the best so far, from where every cell has one."""
    by_trial = table.pivot_table(index="trial", columns="cell", values="best").ffill().dropna()
    study = next(iter(table["study"]), "")
    columns = {"study": study, "cell": "mean", "trial": by_trial.index, "state": "", "loss": np.nan}
    return DataFrame({**columns, "best": by_trial.mean(axis=1).to_numpy(float), "line": study})


def _only(report: ReportData, what: str) -> Sweep:
    sweep, *others = report.sweeps
    if others:
        raise BadInput(f"{what} are drawn for one study only")
    return sweep


def _dimensions(params: Sequence[str], sweep: Sweep) -> list[Dimension]:
    """Find the dimensions asked for, else all that were searched and have different values in trials that ended."""
    ended = sweep.ended
    known = {
        dimension.name: dimension
        for dimension in (*sweep.grid, *sweep.dimensions)
        if ended[dimension.name].nunique() > 1
    }
    for name in params:
        if name not in known:
            raise BadInput(f"{name} does not vary")
    searched = [dimension.name for dimension in sweep.dimensions if dimension.name in known]
    dimensions = [known[name] for name in params or searched]
    if not dimensions:
        raise BadInput("no searched hyperparameter has different values in the trials")
    return dimensions


def _by_importance(data: DataFrame) -> list[str]:
    """Order the hyperparameters by importance in the first scope that has them, the first one first."""
    first = data.assign(order=data.groupby("scope", sort=False).ngroup()).drop_duplicates("hyperparameter")
    return list(first.sort_values(["order", "importance"], ascending=[True, False])["hyperparameter"])


def main_scope(sweep: Sweep) -> str:
    """Return the scope of the importances that count: the only cell, or the trials of all within their cells."""
    if len(sweep.cells) == 1:
        return sweep.cells[0]
    return WITHIN


def _scopes(sweep: Sweep, with_others: bool) -> dict[tuple[str, str], str]:
    """Name the scopes of a study that are drawn in front; with other studies only the one within cells."""
    scope = main_scope(sweep)
    if with_others:
        return {(sweep.name, scope): sweep.name}
    shown = dict.fromkeys([scope, OVER_ALL][: len(sweep.cells)])
    return {(sweep.name, name): name for name in shown}


def _thinned(data: DataFrame) -> tuple[str, ...]:
    drawn = int(data["drawn"].sum())
    if drawn == len(data):
        return ()
    return (f"Drawn: {drawn:,} of {several(len(data), 'trial')}, the best and an even choice of the others.",)
