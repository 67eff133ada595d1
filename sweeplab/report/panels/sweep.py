"""Panels of a sweep's trials, by Optuna's names of its plots: history, EDF, slice, parallel coordinates and rank.

Places of a hyperparameter run from 0 to 1 over its range, so that numbers, logarithms and choices are drawn alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, cycle
from typing import Any

import numpy as np
import pandas as pd
from pandas import DataFrame, Series

from sweeplab.analysis.sweep.importance import WITHIN
from sweeplab.analysis.sweep.trials import Dimension, Sweep, has_ended, merged
from sweeplab.errors import BadInput
from sweeplab.formatting import several, short
from sweeplab.report.data import ReportData
from sweeplab.report.options import PARAMS
from sweeplab.report.panels.base import Panel
from sweeplab.report.style import GREY, Axis, Figure, Look, by_look, looks, padded, spaced, ticks_of

# A page draws no more trials than these: half are the best, the others evenly chosen. The CSV has all.
MOST_DRAWN = 800
MOST_PAIRED = 4
CUT_SHORT = ("diverged", "failed")
_DASHES = ("solid", "8px 4px", "2px 3px", "10px 3px 2px 3px")
_COLUMNS = 3
_FIFTHS = ("best fifth", "second", "third", "fourth", "worst fifth")
_FEW_TICKS = 4
_LONGEST = 12  # letters of a choice on an axis


class HistoryPanel(Panel, name="optimization_history", heading="Optimization history", source="sweeps"):
    """The best loss so far over the trials. `data`: study, cell, trial, state, loss, best, line."""

    @classmethod
    def of(cls, report: ReportData) -> Panel:
        """Follow the best loss so far, in each cell, or of several studies its mean over the cells."""
        tables = [_history(sweep) for sweep in report.sweeps]
        note, where = "One line per cell; dots are trials that ended.", ""
        if len(tables) > 1:
            shared = set.intersection(*(set(table["cell"]) for table in tables))
            tables = [_mean_history(table[table["cell"].isin(shared)]) for table in tables]
            note, where = "Mean over the cells that all studies have.", " in a cell that all studies have"
        data = pd.concat(tables, ignore_index=True)
        if data.empty:
            raise BadInput(f"no trial has ended yet{where}")
        x, y = Axis("trial", "trials in the cell"), Axis("best", report.loss_title)
        return cls(data=data, notes=(note,), x=x, y=y)

    def draw(self, figure: Figure) -> None:
        """Draw the best so far as steps, and each trial that ended as a dot."""
        data, best = self.data, self.data["best"]
        for look, rows in by_look(data, "line"):
            line = look.name
            group = {"legendgroup": line}
            dot, hover = {"size": 5, "opacity": 0.45}, f"{line}<br>trial %{{x}}: %{{y:.4f}}"
            ended = rows[rows["loss"].notna()]
            look.points(figure, ended, "trial", "loss", hover, marker=dot, showlegend=False, **group)
            named, hover = Look(spaced(line), look.color), f"{line}<br>best of %{{x}} trials: %{{y:.4f}}"
            named.line(figure, rows, "trial", "best", hover, line={"shape": "hv"}, **group)
        # The first trials of a sweep may be far worse than the rest.
        worst = float(max(best.max(), data["loss"].max()))
        top = min(float(best.max()) + 0.5 * float(best.max() - best.min()), worst)
        figure.update_xaxes(**self.x.over(*padded(1, max(2, float(data["trial"].max())), False)))
        figure.update_yaxes(**self.y.over(*padded(float(best.min()), top, False)))
        figure.update_layout(showlegend=data["line"].nunique() > 1)


class EdfPanel(Panel, name="edf", heading="Empirical distribution function", source="sweeps"):
    """The share of trials with a loss no higher than x. `data`: study, cell, trial, loss, share."""

    @classmethod
    def of(cls, report: ReportData) -> Panel:
        """Show how the losses of all counted trials are distributed; those cut short never reach one."""
        trials = _trials_of(report)
        trials = trials[trials["standing"].notna()]
        one_cell = trials["cell"].nunique() == 1
        # Over cells of different sizes losses compare by how far they lie above the best there is.
        loss = trials["loss"].where(has_ended(trials))
        trials["loss"] = loss if one_cell else loss - _best_of_cell(trials)
        counts = trials.groupby("study")["trial"].transform("count")
        trials["share"] = trials.groupby("study")["loss"].rank(method="max") / counts
        data = trials[trials["loss"].notna()].sort_values(["study", "loss"], kind="stable")
        if data.empty:
            raise BadInput("no trial has ended yet")
        return cls(
            data=data[["study", "cell", "trial", "loss", "share"]].reset_index(drop=True),
            notes=("Trials that were cut short count, and never reach a loss.",),
            x=_loss_axis(report, "loss", one_cell),
            y=Axis("share", "share of trials"),
        )

    def draw(self, figure: Figure) -> None:
        """Draw each study's distribution as steps."""
        for (look, rows), dash in zip(by_look(self.data, "study"), cycle(_DASHES), strict=False):
            hover = f"{look.name}<br>%{{y:.0%}} of trials at %{{x:.4f}} or below"
            look.line(figure, rows, "loss", "share", hover, line={"shape": "hv", "dash": dash})
        loss = self.data["loss"]
        figure.update_xaxes(**self.x.over(*padded(float(loss.min()), float(loss.quantile(0.95)), False)))
        figure.update_yaxes(**self.y.over(0.0, 1.02))
        figure.update_layout(showlegend=self.data["study"].nunique() > 1)


@dataclass(frozen=True, kw_only=True)
class SpacePanel(Panel, source="sweeps", options={"params": PARAMS}):
    """Trials in the space that was searched. `data` as a sweep's trials, with `study` and `drawn`.

    `y` is the column of the losses.
    """

    dimensions: tuple[Dimension, ...]

    @property
    def drawn(self) -> DataFrame:
        """Return the trials that are drawn."""
        return self.data[self.data["drawn"]]

    def _grid(self, figure: Figure, count: int, share_y: bool) -> list[dict[str, int]]:
        """Make room for so many small figures, and return the place of each."""
        n_rows, n_columns = math.ceil(count / _COLUMNS), min(_COLUMNS, count)
        spacing = {"horizontal_spacing": (0.03 if share_y else 0.27) / n_columns}
        spacing["vertical_spacing"] = 0.36 / max(2, n_rows)
        figure.set_subplots(n_rows, n_columns, shared_yaxes=share_y, **spacing)
        figure.update_layout(height=70 + (230 if share_y else 250) * n_rows)
        return [{"row": at // n_columns + 1, "col": at % n_columns + 1} for at in range(count)]


@dataclass(frozen=True, kw_only=True)
class SlicePanel(SpacePanel, name="slice", heading="Slice"):
    """Loss over one hyperparameter after the other; `top` is the highest that is shown."""

    top: float

    @classmethod
    def of(cls, report: ReportData, params: Sequence[str] = ()) -> Panel:
        """Show the trials' losses over each hyperparameter."""
        dimensions = _dimensions(params, report.sweeps)
        data, y = _trials(report)
        ended = data.loc[has_ended(data), y.column]
        top = float(ended.quantile(0.9)) + 0.3 * float(ended.quantile(0.9) - ended.min())
        above = int((ended > top).sum()) if top > float(ended.min()) else 0
        cut_short = int(data["state"].isin(CUT_SHORT).sum())
        notes = [
            f"Above the view: {several(above, 'trial')}; double-click to see all." if above else "",
            f"Crosses on top: {several(cut_short, 'trial')} that diverged or failed." if cut_short else "",
            "Pruned trials are left out: their losses are of earlier iterations."
            if (data["state"] == "pruned").any()
            else "",
        ]
        said = (*filter(None, notes), *_thinned(data))
        return cls(data=data, notes=said, dimensions=tuple(dimensions), y=y, top=top)

    def draw(self, figure: Figure) -> None:
        """Draw loss over each hyperparameter, side by side on one scale; what has no loss stands on top."""
        places = self._grid(figure, len(self.dimensions), share_y=True)
        data, column = self.drawn, self.y.column
        studies = list(dict.fromkeys(data["study"]))
        ended, lost = has_ended(data), data["state"].isin(CUT_SHORT)
        low = float(data.loc[ended, column].min())
        bottom, top = padded(low, max(self.top, low + 1e-3), False)
        words, dot = data.astype(str), {"size": 5, "opacity": _opacity(len(data))}
        for place, dimension in zip(places, self.dimensions, strict=False):
            x, columns = dimension.coordinates(data[dimension.name]), _columns_of(dimension)
            for look in looks(studies):
                own = data["study"] == look.name
                here, hover = ended & own, _hover(dimension, measured=True)
                group = {"legendgroup": look.name, "showlegend": place == places[0], **place}
                look.points(
                    figure, words[here], x[here], data.loc[here, column], hover, columns, marker=dot, **group
                )
                here, hover = lost & own, _hover(dimension)
                cross = Look("", GREY if len(studies) == 1 else look.color, "x-thin-open")
                group = {"showlegend": False, "cliponaxis": False, **place}
                cross.points(
                    figure,
                    words[here],
                    x[here],
                    [top] * here.sum(),
                    hover,
                    columns,
                    marker={"size": 6},
                    **group,
                )
            figure.update_xaxes(**_axis(dimension), **place)
            figure.update_yaxes(**self.y.over(bottom, top) | {"title": {}}, **place)
        figure.update_yaxes(title={"text": self.y.title}, row=places[-1]["row"] // 2 + 1, col=1)
        figure.update_layout(showlegend=len(studies) > 1)


class ParallelPanel(SpacePanel, name="parallel_coordinate", heading="Parallel coordinates"):
    """Each trial as a line through the values that it had."""

    @classmethod
    def of(cls, report: ReportData, params: Sequence[str] = ()) -> Panel:
        """Draw every trial that was counted through its hyperparameters, the best in front."""
        sweep = _only(report, "parallel coordinates")
        data, y = _trials(report)
        return cls(
            data=data[data["standing"].notna()],
            notes=("Colored by a trial's rank in its cell; the best fifth in front.", *_thinned(data)),
            dimensions=(*(sweep.grid if not params else ()), *_dimensions(params, [sweep])),
            y=y,
        )

    def draw(self, figure: Figure) -> None:
        """Draw each trial as a line from hyperparameter to hyperparameter, the best fifth in front.

        As ordinary lines: Plotly's own parallel coordinates need WebGL, and print as pixels.
        """
        data, last = self.drawn, len(self.dimensions) - 1
        columns = [each.coordinates(data[each.name]) for each in self.dimensions]
        for look, chosen in _fifths(data):
            x: list[int | None] = []
            y: list[float | None] = []
            for row in zip(*(column[chosen] for column in columns), strict=True):
                x += [*range(len(columns)), None]
                y += [*(None if math.isnan(place) else round(place, 4) for place in row), None]
            front = look.name == _FIFTHS[0]
            figure.add_scatter(
                x=x,
                y=y,
                mode="lines" if last else "lines+markers",
                name=look.name,
                hoverinfo="skip",
                line={"color": look.color, "width": 1.6 if front else 1},
                opacity=(1.0 if front else 0.7) * _opacity(len(data)),
            )
        for at, dimension in enumerate(self.dimensions):
            figure.add_vline(x=at, line={"color": GREY, "width": 1})
            for place, label in _ticks(dimension):
                beside = {"showarrow": False, "xanchor": "left", "xshift": 4, "font": {"size": 11}}
                figure.add_annotation(x=at, y=place, text=label, **beside)
        marks = {"tickvals": list(range(last + 1)), "ticktext": [each.name for each in self.dimensions]}
        figure.update_xaxes(**marks, range=[-0.1, last + 0.35], showgrid=False, zeroline=False)
        figure.update_yaxes(range=[-0.05, 1.05], visible=False)
        figure.update_layout(legend={"traceorder": "reversed"})


class RankPanel(SpacePanel, name="rank", heading="Rank of the trials over pairs of hyperparameters"):
    """Trials over each pair of hyperparameters, colored by their rank."""

    @classmethod
    def of(cls, report: ReportData, params: Sequence[str] = ()) -> Panel:
        """Show the trials over pairs of hyperparameters, those that matter most first."""
        sweep = _only(report, "ranks")
        dimensions = _dimensions(params, [sweep])
        if len(dimensions) < 2:
            raise BadInput(
                f"pairs need two searched hyperparameters; here there is {dimensions[0].name} alone"
            )
        if not params:
            scope = WITHIN if len(sweep.cells) > 1 else sweep.cells[0]
            own = [each for each in report.importances(sweep) if each.scope == scope]
            importance = {each.hyperparameter: each.importance for each in own}
            dimensions.sort(key=lambda each: -importance.get(each.name, 0.0))
            dimensions = dimensions[:MOST_PAIRED]
        data, y = _trials(report)
        return cls(
            data=data[data["standing"].notna()],
            notes=("Colored by a trial's rank in its cell; those cut short rank last.", *_thinned(data)),
            dimensions=tuple(dimensions),
            y=y,
        )

    def draw(self, figure: Figure) -> None:
        """Draw the trials over each pair of hyperparameters, the best fifth in front."""
        pairs = list(combinations(self.dimensions, 2))
        places = self._grid(figure, len(pairs), share_y=False)
        data, dot = self.drawn, {"size": 5, "opacity": 0.8}
        words = data.astype(str)
        for place, (first, second) in zip(places, pairs, strict=True):
            x, y = (each.coordinates(data[each.name]) for each in (first, second))
            hover, columns = _hover(first, second), _columns_of(first, second)
            for look, chosen in _fifths(data):
                group = {"legendgroup": look.name, "showlegend": place == places[0], **place}
                look.points(figure, words[chosen], x[chosen], y[chosen], hover, columns, marker=dot, **group)
            figure.update_xaxes(**_axis(first), **place)
            figure.update_yaxes(automargin=True, **_axis(second), **place)
        figure.update_layout(legend={"traceorder": "reversed"})


def _trials_of(report: ReportData) -> DataFrame:
    """Return the trials of all studies, each with its study's name."""
    return pd.concat([each.trials.assign(study=each.name) for each in report.sweeps], ignore_index=True)


def _best_of_cell(trials: DataFrame) -> Series:
    """Return for each trial the lowest loss of its cell, over all studies."""
    ended = trials["loss"].where(has_ended(trials))
    return ended.groupby(trials["cell"]).transform("min")


def _loss_axis(report: ReportData, column: str, one_cell: bool) -> Axis:
    """Return the axis of losses, or of how far they lie above the best of their cell."""
    title = report.loss_title
    return Axis(column, title if one_cell else f"{title.removesuffix(' (nats/token)')} above the cell's best")


def _history(sweep: Sweep) -> DataFrame:
    trials = sweep.trials.assign(study=sweep.name, line=sweep.trials["cell"])
    trials["at"] = trials["cell"].map({cell: at for at, cell in enumerate(sweep.cells)})
    trials = trials.sort_values(["at", "trial"])
    by_cell = trials["cell"]
    trials["loss"] = trials["loss"].where(has_ended(trials))
    trials["best"] = trials["loss"].groupby(by_cell).cummin()
    trials["best"] = trials["best"].groupby(by_cell).ffill()
    trials["trial"] = trials.groupby("cell").cumcount() + 1
    return trials.loc[trials["best"].notna(), ["study", "cell", "trial", "state", "loss", "best", "line"]]


def _mean_history(table: DataFrame) -> DataFrame:
    """Return the mean of the best so far, from where every cell has one."""
    by_trial = table.pivot_table(index="trial", columns="cell", values="best").ffill().dropna()
    study = table["study"].iloc[0] if len(table) else ""
    best = by_trial.mean(axis=1).to_numpy(float)
    own = {"study": study, "cell": "mean", "trial": by_trial.index, "state": "", "loss": np.nan}
    return DataFrame({**own, "best": best, "line": study})


def _only(report: ReportData, what: str) -> Sweep:
    sweep, *others = report.sweeps
    if others:
        raise BadInput(f"{what} are drawn for one study")
    return sweep


def _dimensions(params: Sequence[str], sweeps: Sequence[Sweep]) -> list[Dimension]:
    """Return the dimensions asked for, else all that were searched, each once."""
    known = merged(each for sweep in sweeps for each in (*sweep.grid, *sweep.dimensions))
    if missing := [name for name in params if name not in known]:
        raise BadInput(f"{missing[0]} does not vary")
    searched = dict.fromkeys(each.name for sweep in sweeps for each in sweep.dimensions)
    found = [known[name] for name in params or searched]
    if not found:
        raise BadInput("no hyperparameter was searched that came out differently")
    return found


def _trials(report: ReportData) -> tuple[DataFrame, Axis]:
    """Return the trials of all studies and the axis of their losses; the best of a cell is that over all studies."""
    data = _trials_of(report)
    if not has_ended(data).any():
        raise BadInput("no trial has ended with a value yet")
    data["above"] = data["loss"] - _best_of_cell(data)
    one_cell = data["cell"].nunique() == 1
    data["drawn"] = _drawn(data)
    front = ["study", "cell", "trial", "state", "loss", "above", "standing"]
    columns = [*front, *(name for name in data if name not in front)]
    return data[columns], _loss_axis(report, "loss" if one_cell else "above", one_cell)


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


def _fifths(data: DataFrame) -> Iterator[tuple[Look, Series]]:
    """Yield each fifth of the trials by their rank, the worst first, so that the best are drawn over it."""
    order = data["standing"].rank(method="average", pct=True)
    for at, look in reversed(list(enumerate(looks(_FIFTHS)))):
        chosen = (order > at / 5) & (order <= (at + 1) / 5)
        if chosen.any():
            yield look, chosen


def _opacity(n: int) -> float:
    """Return how opaque a mark is among so many."""
    return max(0.35, min(0.9, math.sqrt(150 / max(1, n))))


def _axis(dimension: Dimension) -> dict[str, Any]:
    labels = dict(_ticks(dimension))
    marks = {"tickvals": list(labels), "ticktext": list(labels.values()), "zeroline": False}
    return {"range": [-0.05, 1.05], "title": {"text": dimension.name}, **marks}


def _ticks(dimension: Dimension) -> Iterator[tuple[float, str]]:
    """Yield the places that are marked on an axis, with what stands there."""
    if dimension.choices:
        last = max(1, len(dimension.choices) - 1)
        for at, choice in enumerate(dimension.choices):
            yield at / last, choice if len(choice) <= _LONGEST else f"{choice[: _LONGEST - 1]}…"
        return
    values = ticks_of(dimension.low, dimension.high, dimension.log)
    values = [value for value in values if dimension.low <= value <= dimension.high]
    for value in values[:: max(1, math.ceil(len(values) / _FEW_TICKS))]:
        place = (value - dimension.low) / (dimension.high - dimension.low)
        if dimension.log:
            place = math.log(value / dimension.low) / math.log(dimension.high / dimension.low)
        yield place, short(value)


def _columns_of(*dimensions: Dimension) -> list[str]:
    return ["cell", "trial", "state", *dict.fromkeys(each.name for each in dimensions)]


def _hover(first: Dimension, second: Dimension | None = None, measured: bool = False) -> str:
    values = f"{first.name} %{{customdata[3]}}" + (f"<br>{second.name} %{{customdata[4]}}" if second else "")
    loss = "<br>loss %{y:.4f}" if measured else ""
    return f"%{{customdata[0]}}, trial %{{customdata[1]}}, %{{customdata[2]}}<br>{values}{loss}"
