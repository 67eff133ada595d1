"""Panels of a sweep's trials, named like Optuna's plots: history, EDF, importances, slice, rank …

A hyperparameter's range is mapped to 0 to 1, so that linear, logarithmic and categorical ones are drawn alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import combinations, cycle
from typing import Annotated, Any, get_args

import numpy as np
import pandas as pd
from pandas import DataFrame, Series

from sweeplab.analysis import importance
from sweeplab.analysis.importance import EVALUATORS, FEWEST_TRIALS, LEVEL, OVER_ALL, WITHIN, Evaluator
from sweeplab.analysis.sweep import FEW, Dimension, Sweep, has_ended, merged
from sweeplab.analysis.trials import LOST
from sweeplab.errors import BadInput
from sweeplab.formatting import listed, rounded, sentence, several, short
from sweeplab.report import style
from sweeplab.report.data import ReportData
from sweeplab.report.options import PanelOption, Params
from sweeplab.report.panels.base import Panel
from sweeplab.report.style import (
    GREY,
    Axis,
    Figure,
    Look,
    by_look,
    looks,
    marked,
    name_rows,
    padded,
    spaced,
    ticks_of,
)
from sweeplab.study.choice import Unstable

# A page draws at most this many trials: half are the best, the rest is evenly chosen. The CSV has all.
MOST_DRAWN = 800
MOST_PAIRED = 4
MOST_MARKS = 10
_COLUMNS = 3
_FIFTHS = ("best fifth", "second", "third", "fourth", "worst fifth")
_FEW_TICKS = 4
_LONGEST = 12  # letters of a choice on an axis
_PLACES = 30  # along each side of a map
_FEWEST_ON_MAP = 5  # trials

_Evaluator = Annotated[Evaluator, PanelOption(get_args(Evaluator))]
_IMPORTANCES = {
    "Within cells": "Trials of all cells, ranked within their cell, so that the cells' sizes do not matter.",
    "Over all": "The losses themselves, of trials that ended; the grid's sizes are compared with what was tuned.",
    "Spread": "The delete-half jackknife: importances of halves of the trials, drawn without replacement.",
    "Chance": "Importances after the losses were shuffled among the trials.",
}


class HistoryPanel(Panel, name="optimization_history", source="sweeps"):
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
        x, y = Axis("trial", "trials in the cell"), Axis("best", report.loss_title)
        return cls(data=data, notes=(note,), x=x, y=y)

    def _draw(self, figure: Figure) -> None:
        data, best = self.data, self.data["best"]
        # Of many cells the legend names only the best.
        many, winner = data["line"].nunique() > style.MOST_LINES, data["line"].iloc[int(best.argmin())]
        for look, rows in by_look(data, "line", self.palette):
            ended, hover = rows[rows["loss"].notna()], f"{look.name}<br>trial %{{x}}: %{{y:.4f}}"
            group = {"legendgroup": look.name, "marker": {"size": 5, "opacity": 0.45}, "showlegend": False}
            look.points(figure, ended, "trial", "loss", hover, **group)
            hover = f"{look.name}<br>best up to trial %{{x}}: %{{y:.4f}}"
            settings: dict[str, Any] = {"legendgroup": look.name}
            width, named = 2, replace(look, name=spaced(look.name))
            if many and look.name == winner:
                width = 3
            elif many:
                settings |= {"opacity": 0.4, "showlegend": False}
            if many:
                named = replace(named, name=f"{named.name} (best)")
            named.line(figure, rows, "trial", "best", hover, line={"shape": "hv", "width": width}, **settings)
        # The first trials of a sweep may be far worse than the rest.
        worst = float(max(best.max(), data["loss"].max()))
        top = min(float(best.max()) + 0.5 * float(best.max() - best.min()), worst)
        last = max(2, int(data["trial"].max()))
        marks = tuple(range(1, last + 1)) if last <= MOST_MARKS else ()
        x = replace(self.x, marks=marks).over(*padded(1, last, False))
        y = self.y.over(*padded(float(best.min()), top, False))
        figure.update_layout(xaxis=x, yaxis=y, showlegend=data["line"].nunique() > 1)


class EdfPanel(Panel, name="edf", heading="Empirical distribution function", source="sweeps"):
    """The share of trials with a loss no higher than x. `data`: study, cell, trial, loss, share."""

    @classmethod
    def _of(cls, report: ReportData) -> Panel:
        trials = _trials(report)
        trials = trials[trials["standing"].notna()]
        x = _loss_axis(report, trials)
        trials["loss"] = trials[x.column].where(has_ended(trials))
        counts = trials.groupby("study")["trial"].transform("count")
        trials["share"] = trials.groupby("study")["loss"].rank(method="max") / counts
        data = trials[trials["loss"].notna()].sort_values(["study", "loss"], kind="stable")
        if data.empty:
            raise BadInput("no trial has ended")
        return cls(
            data=data[["study", "cell", "trial", "loss", "share"]].reset_index(drop=True),
            notes=("Trials that were pruned, diverged or failed count in the total and never reach a loss.",),
            x=x,
            y=Axis("share", "share of trials"),
        )

    def _draw(self, figure: Figure) -> None:
        studies = by_look(self.data, "study", self.palette)
        for (look, rows), dash in zip(studies, cycle(style.DASHES), strict=False):
            hover = f"{look.name}<br>%{{y:.0%}} of trials at %{{x:.4f}} or below"
            look.line(figure, rows, "loss", "share", hover, line={"shape": "hv", "dash": dash})
        loss = self.data["loss"]
        x = self.x.over(*padded(float(loss.min()), float(loss.quantile(0.95)), False))
        several_studies = self.data["study"].nunique() > 1
        figure.update_layout(xaxis=x, yaxis=self.y.over(0.0, 1.02), showlegend=several_studies)


class ImportancePanel(
    Panel, name="param_importances", heading="Importance of the hyperparameters", source="sweeps"
):
    """Importances with their spread. `data`: study, scope, hyperparameter, importance, low, high, chance, verdict.

    `scopes` are those drawn in front, by (study, scope), with their names.
    """

    scopes: Mapping[tuple[str, str], str]

    @classmethod
    def _of(cls, report: ReportData, evaluator: _Evaluator = "ped-anova") -> Panel:
        sweeps = report.sweeps
        shares = [each for sweep in sweeps for each in report.importances(sweep, evaluator)]
        if not shares:
            raise BadInput(f"importances need {FEWEST_TRIALS} or more trials with different searched values")
        data = DataFrame([asdict(each) | {"verdict": each.verdict} for each in shares])
        known = {(each.study, each.scope) for each in shares}
        in_front = {key: name for sweep in sweeps for key, name in _scopes(sweep, len(sweeps) > 1).items()}
        # Of a scope with too few trials there are no importances.
        scopes = {key: name for key, name in in_front.items() if key in known}
        notes = [
            f"Bars: {LEVEL:.0%} intervals. Ticks: exceeded by {1 - importance.CHANCE:.0%} of shuffles of the losses."
        ]
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
            method={"Evaluator": EVALUATORS[evaluator], **_IMPORTANCES},
            result={"evaluator": evaluator},
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
            spread = style.bars(rows, "importance")
            look.points(figure, rows, "importance", y_of, hover, marker={"size": 9}, error_x=spread)
        name_rows(figure, names)
        x, height = self.x.over(-0.02, 1.02), 110 + max(34, 20 * scopes) * len(names)
        figure.update_layout(xaxis=x, height=height, showlegend=scopes > 1)


class SpacePanel(Panel, source="sweeps"):
    """Trials in the search space. `data` has a sweep's trials, with `study` and `drawn`."""

    dimensions: tuple[Dimension, ...]

    @classmethod
    def _by_rank(cls, trials: tuple[DataFrame, Axis], dimensions: Sequence[Dimension], note: str) -> Panel:
        """Show all counted trials, in fifths by their rank."""
        data, y = trials
        notes = (f"Colored by a trial's rank in its cell; {note}", *_thinned(data))
        return cls(data=data[data["standing"].notna()], notes=notes, dimensions=tuple(dimensions), y=y)

    def grid(self, figure: Figure, count: int, share_y: bool) -> list[dict[str, int]]:
        """Lay out a number of small figures, and return the place of each."""
        n_rows, n_columns = math.ceil(count / _COLUMNS), min(_COLUMNS, count)
        gap, height = (0.03, 230) if share_y else (0.27, 250)
        spacing = {"horizontal_spacing": gap / n_columns, "vertical_spacing": 0.36 / max(2, n_rows)}
        figure.set_subplots(n_rows, n_columns, shared_yaxes=share_y, **spacing)
        figure.update_layout(height=70 + height * n_rows)
        return [{"row": at // n_columns + 1, "col": at % n_columns + 1} for at in range(count)]


class SlicePanel(SpacePanel, name="slice"):
    """Loss over each hyperparameter in turn; `top` is the highest loss shown, `unstable` are ranges that are marked."""

    top: float
    unstable: tuple[Unstable, ...] = ()

    @classmethod
    def _of(cls, report: ReportData, params: Params = ()) -> Panel:
        dimensions = _dimensions(params, report.sweeps)
        data, y = drawn_trials(report)
        ended = data.loc[has_ended(data), y.column]
        top = float(ended.quantile(0.9)) + 0.3 * float(ended.quantile(0.9) - ended.min())
        above = int((ended > top).sum()) if top > float(ended.min()) else 0
        cut_short, pruned = int(data["state"].isin(LOST).sum()), (data["state"] == "pruned").any()
        notes = {
            f"Above the view: {several(above, 'trial')}; double-click to see all.": above,
            f"Crosses at the top: {several(cut_short, 'trial')} that diverged or failed.": cut_short,
            "Pruned trials are left out: their losses were measured earlier in training.": pruned,
        }
        unstable = tuple(
            zone
            for ranking in report.ranked.values()
            for zone in ranking.unstable
            if zone.name in {dimension.name for dimension in dimensions}
        )
        notes |= {sentence(zone.in_words()): True for zone in unstable}
        shown = (*(note for note, holds in notes.items() if holds), *_thinned(data))
        return cls(
            data=data,
            notes=shown,
            result={"unstable": [zone.as_dict() for zone in unstable]},
            dimensions=tuple(dimensions),
            y=y,
            top=top,
            unstable=unstable,
        )

    def _draw(self, figure: Figure) -> None:
        places = self.grid(figure, len(self.dimensions), share_y=True)
        data, column = self.data[self.data["drawn"]], self.y.column
        studies = list(dict.fromkeys(data["study"]))
        ended, lost = has_ended(data), data["state"].isin(LOST)
        low = float(data.loc[ended, column].min())
        bottom, top = padded(low, max(self.top, low + 1e-3), False)
        # Many marks fade.
        words, dot = data.astype(str), {"size": 5, "opacity": max(0.35, min(0.9, (150 / len(data)) ** 0.5))}
        for place, dimension in zip(places, self.dimensions, strict=True):
            x, hover = dimension.coordinates(data[dimension.name]), hover_of(dimension)
            measured = f"{hover}<br>loss %{{y:.4f}}"
            for look in map(self.palette.get, studies, looks(studies)):
                here = ended & (data["study"] == look.name)
                group = {"legendgroup": look.name, "showlegend": place == places[0], **place}
                y = data.loc[here, column]
                look.points(figure, words[here], x[here], y, measured, marker=dot, **group)
                here = lost & (data["study"] == look.name)
                cross = Look("", GREY if len(studies) == 1 else look.color, "x-thin-open")
                group = {"marker": {"size": 6}, "showlegend": False, "cliponaxis": False, **place}
                cross.points(figure, words[here], x[here], [top] * here.sum(), hover, **group)
            for zone in self.unstable:
                if zone.name == dimension.name:
                    edge = float(dimension.coordinates(Series([zone.edge])).iloc[0])
                    figure.add_vline(x=edge, **marked(f"unstable {zone.side} {rounded(zone.edge)}"), **place)
            figure.update_xaxes(**axis_of(dimension), **place)
            figure.update_yaxes(**self.y.over(bottom, top) | {"title": {}}, **place)
        figure.update_yaxes(title={"text": self.y.title}, row=places[-1]["row"] // 2 + 1, col=1)
        figure.update_layout(showlegend=len(studies) > 1)


class ParallelPanel(SpacePanel, name="parallel_coordinate", heading="Parallel coordinates"):
    """Each trial as a line through its values."""

    @classmethod
    def _of(cls, report: ReportData, params: Params = ()) -> Panel:
        sweep = _only(report, "parallel coordinates")
        data, y = drawn_trials(report)
        ended = data[has_ended(data)]
        dimensions, note = _dimensions(params, [sweep]), "drag along an axis to select."
        if not params:
            dimensions = [*sweep.grid, *dimensions]
        left = len(data) - len(ended)
        if left:
            note += f" Left out: {several(left, 'trial')} without a final loss."
        return cls._by_rank((ended, y), dimensions, note)

    def _draw(self, figure: Figure) -> None:
        # Plotly's own parallel coordinates let the reader brush a range on each axis.
        data = self.data[self.data["drawn"]]
        axes = [{"label": each.name, **_scale(each, data[each.name])} for each in self.dimensions]
        loss = data[self.y.column]
        ticks = ticks_of(*padded(float(loss.min()), float(loss.max()), False), False)
        label = {"loss": "loss"}.get(self.y.column, "above best")
        axes.append({"label": label, "values": loss, "tickvals": ticks})
        scale = [[at / (len(_FIFTHS) - 1), look.color] for at, look in enumerate(looks(_FIFTHS))]
        # The best last, so that they are drawn over the others.
        order = np.argsort(-data["standing"].to_numpy(float), kind="stable")
        for axis in axes:
            axis["values"] = np.asarray(axis["values"], float)[order].round(6)
        color = data["standing"].to_numpy(float)[order].round(4)
        line = {"color": color, "colorscale": scale, "cmin": 0, "cmax": 1}
        figure.add_parcoords(dimensions=axes, line=line, labelfont={"size": 13}, tickfont={"size": 12})
        figure.update_layout(margin={"l": 70, "r": 50, "t": 50, "b": 24})


def _scale(dimension: Dimension, column: Series) -> dict[str, Any]:
    """Make an axis of parallel coordinates from 0 to 1, marked at its values if they are few."""
    labels = dict(_ticks(dimension))
    if not dimension.choices and column.nunique() <= FEW:
        known = column.dropna().drop_duplicates()
        labels = {
            place: short(float(value))
            for value, place in zip(known, dimension.coordinates(known), strict=True)
        }
    marks = {"tickvals": [*labels], "ticktext": [*labels.values()]}
    return {"values": dimension.coordinates(column), "range": [0, 1], **marks}


class RankPanel(SpacePanel, name="rank", heading="Rank of the trials over pairs of hyperparameters"):
    """Trials over each pair of hyperparameters, colored by their rank."""

    @classmethod
    def _of(cls, report: ReportData, params: Params = ()) -> Panel:
        return cls._by_rank(
            drawn_trials(report),
            paired(report, params, "ranks"),
            "trials that were pruned, diverged or failed rank last.",
        )

    def _draw(self, figure: Figure) -> None:
        pairs = list(combinations(self.dimensions, 2))
        places = self.grid(figure, len(pairs), share_y=False)
        data, dot = self.data[self.data["drawn"]], {"size": 5, "opacity": 0.8}
        words = data.astype(str)
        for place, (first, second) in zip(places, pairs, strict=True):
            x, y = (each.coordinates(data[each.name]) for each in (first, second))
            hover = hover_of(first, second)
            for look, chosen in _fifths(data):
                group = {"legendgroup": look.name, "showlegend": place == places[0], **place}
                look.points(figure, words[chosen], x[chosen], y[chosen], hover, marker=dot, **group)
            figure.update_xaxes(**axis_of(first), **place)
            figure.update_yaxes(automargin=True, **axis_of(second), **place)
        figure.update_layout(legend={"traceorder": "reversed"})


class ContourPanel(SpacePanel, name="contour", heading="Loss over pairs of hyperparameters"):
    """The loss between the trials that ended, interpolated over each pair of hyperparameters."""

    @classmethod
    def _of(cls, report: ReportData, params: Params = ()) -> Panel:
        data, y = drawn_trials(report)
        ended = data[has_ended(data)]
        if len(ended) < _FEWEST_ON_MAP:
            raise BadInput(f"a map needs {_FEWEST_ON_MAP} trials that ended; there are {len(ended)}")
        note = "Colors: interpolated between the trials, which are the dots; the worst tenth count as the next best."
        return cls(data=ended, notes=(note,), dimensions=tuple(paired(report, params, "maps")), y=y)

    def _draw(self, figure: Figure) -> None:
        pairs, places = list(combinations(self.dimensions, 2)), np.linspace(0, 1, _PLACES)
        data, rows = self.data[self.data["drawn"]], self.grid(figure, len(pairs), share_y=False)
        losses = data[self.y.column].to_numpy(float)
        losses = np.minimum(losses, np.quantile(losses, 0.9))
        words, dot = data.astype(str), {"size": 4, "line": {"width": 1, "color": "white"}}
        for place, (first, second) in zip(rows, pairs, strict=True):
            x, y = (each.coordinates(data[each.name]) for each in (first, second))
            known = x.notna() & y.notna()
            # Inverse distances: unlike a triangulation they need no points around a place, nor two different values.
            at = np.stack(np.meshgrid(places, places), -1)[..., None, :] - np.stack([x[known], y[known]], -1)
            weights = 1 / ((at**2).sum(-1) ** 1.5 + 1e-4)
            z = (weights * losses[known]).sum(-1) / weights.sum(-1)
            figure.add_contour(
                x=places,
                y=places,
                z=z.round(5),
                coloraxis="coloraxis",
                hoverinfo="skip",
                line={"width": 0.5},
                **place,
            )
            look = Look("trials", GREY)
            hover = f"{hover_of(first, second)}<br>loss %{{loss}}"
            look.points(
                figure, words[known], x[known], y[known], hover, marker=dot, showlegend=False, **place
            )
            figure.update_xaxes(**axis_of(first) | {"range": [0, 1]}, **place)
            figure.update_yaxes(automargin=True, **axis_of(second) | {"range": [0, 1]}, **place)
        bar = {"title": {"text": "loss", "side": "top"}, "thickness": 12, "outlinewidth": 0}
        figure.update_layout(coloraxis={"colorscale": "Cividis", "colorbar": bar})


def paired(report: ReportData, params: Sequence[str], what: str) -> list[Dimension]:
    """Return the dimensions whose pairs are drawn: those asked for, else the few that matter most."""
    sweep = _only(report, what)
    dimensions = _dimensions(params, [sweep])
    if len(dimensions) < 2:
        only = dimensions[0].name
        raise BadInput(f"pairs need two searched hyperparameters; here only {only} was searched")
    if params:
        return dimensions
    within = [each for each in report.importances(sweep) if each.scope == main_scope(sweep)]
    shares = {each.hyperparameter: each.importance for each in within}
    return sorted(dimensions, key=lambda dimension: -shares.get(dimension.name, 0.0))[:MOST_PAIRED]


def _trials(report: ReportData) -> DataFrame:
    """Gather the trials of all studies, each with its study and how far it lies `above` the best of its cell."""
    data = pd.concat([each.trials.assign(study=each.name) for each in report.sweeps], ignore_index=True)
    ended = data["loss"].where(has_ended(data))
    return data.assign(above=data["loss"] - ended.groupby(data["cell"]).transform("min"))


def _loss_axis(report: ReportData, trials: DataFrame) -> Axis:
    """Make the axis of losses; for several cells it is the distance above the best loss of the cell."""
    if trials["cell"].nunique() == 1:
        return Axis("loss", report.loss_title)
    return Axis("above", f"{report.loss_title.partition(' ')[0]} above the cell's best")


def _history(sweep: Sweep) -> DataFrame:
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


def _dimensions(params: Sequence[str], sweeps: Sequence[Sweep]) -> list[Dimension]:
    """Find the dimensions asked for, else all that were searched, each once."""
    known = merged(each for sweep in sweeps for each in (*sweep.grid, *sweep.dimensions))
    missing = [name for name in params if name not in known]
    if missing:
        raise BadInput(f"{missing[0]} does not vary")
    searched = dict.fromkeys(each.name for sweep in sweeps for each in sweep.dimensions)
    dimensions = [known[name] for name in params or searched]
    if not dimensions:
        raise BadInput("no searched hyperparameter has different values in the trials")
    return dimensions


def drawn_trials(report: ReportData) -> tuple[DataFrame, Axis]:
    """Return the trials and the axis of their losses; `drawn` marks all, or the best and an even choice of the rest."""
    data = _trials(report)
    if not has_ended(data).any():
        raise BadInput("no trial has ended with a value")
    best = data["standing"].rank(method="first") <= MOST_DRAWN // 2
    others = np.flatnonzero(~best)
    chosen = np.linspace(0, len(others) - 1, MOST_DRAWN - int(best.sum())).astype(int)
    data["drawn"] = best | data.index.isin(others[chosen]) if len(data) > MOST_DRAWN else True
    front = ["study", "cell", "trial", "state", "loss", "above", "standing"]
    return data[[*front, *data.columns.difference(front, sort=False)]], _loss_axis(report, data)


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


def _fifths(data: DataFrame) -> Iterator[tuple[Look, Series]]:
    """Yield each fifth of the trials by their rank, the worst first, so that the best are drawn over it."""
    order = data["standing"].rank(method="average", pct=True)
    for at, look in reversed(list(enumerate(looks(_FIFTHS)))):
        chosen = (order > at / 5) & (order <= (at + 1) / 5)
        if chosen.any():
            yield look, chosen


def axis_of(dimension: Dimension) -> dict[str, Any]:
    """Return Plotly's settings of an axis over a dimension."""
    labels = dict(_ticks(dimension))
    marks = {"tickvals": list(labels), "ticktext": list(labels.values()), "zeroline": False}
    room = 0.05
    if dimension.choices:  # for the names of the first and the last
        room = 0.5 / max(1, len(dimension.choices) - 1)
    return {"range": [-room, 1 + room], "title": {"text": dimension.name}, **marks}


def _ticks(dimension: Dimension) -> Iterator[tuple[float, str]]:
    """Yield the marked places of an axis with their labels."""
    if dimension.choices:
        last = max(1, len(dimension.choices) - 1)
        for at, choice in enumerate(dimension.choices):
            yield at / last, style.cut(choice, _LONGEST)
        return
    low, high = dimension.low, dimension.high
    values = [value for value in ticks_of(low, high, dimension.log) if low <= value <= high]
    for value in values[:: max(1, math.ceil(len(values) / _FEW_TICKS))]:
        if dimension.log:
            place = math.log(value / low) / math.log(high / low)
        else:
            place = (value - low) / (high - low)
        yield place, short(value)


def hover_of(*dimensions: Dimension) -> str:
    """Return the hover text of a trial with its values of these dimensions."""
    values = "<br>".join(f"{each.name} %{{{each.name}}}" for each in dimensions)
    return f"%{{cell}}, trial %{{trial}}, %{{state}}<br>{values}"
