"""Panels of a sweep's trials, by Optuna's own plots and named like them: history, EDF, importances, slice, rank …

Optuna draws one study without cells, so each plot is given an in-memory study of the trials that it shows.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import optuna
import pandas as pd
from optuna import visualization
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.exceptions import ExperimentalWarning
from pandas import DataFrame, Series

from sweeplab.analysis.sweep import (
    CHANCE,
    FEWEST_TRIALS,
    WITHIN_CHANCE,
    Sweep,
    has_ended,
    optuna_study,
    saved,
)
from sweeplab.analysis.trials import LOST, check_one_task, marks_of
from sweeplab.errors import BadInput
from sweeplab.formatting import listed, several, short
from sweeplab.report import style
from sweeplab.report.data import ReportData, title_of
from sweeplab.report.panels.base import Panel, Params
from sweeplab.report.style import (
    FAINT,
    GOOD,
    Axis,
    Figure,
    Look,
    by_look,
    hovering,
    name_rows,
    spaced,
)

MOST_DRAWN = 800  # trials on one figure, the best of each cell; the CSV has all
MOST_PAIRED = 4
_PAIR_HEIGHT = 190  # pixels of a small figure in a matrix of pairs
_PARETO = ("n_params", "train_flops")  # the costs, each with its front
_IMPORTANCES = {
    "Evaluator": "PED-ANOVA (Watanabe et al. 2023): how far the distribution of the best tenth of trials (at least 5) "
    "differs from that of all. Trials are ranked within their cell, so that sizes do not matter; those without a final "
    "loss rank below those that ended.",
    "Chance": "Importances after the losses were shuffled among the trials.",
}
_SAVED = {
    "Saved": "The FLOPs that each pruned trial would still have needed, and their seconds at the trial's own speed.",
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
    """The best loss so far over the trials of each cell. `data`: cell, trial, state, loss, best."""

    @classmethod
    def _of(cls, report: ReportData) -> Panel:
        sweep = _only(report, "histories")
        trials = sweep.trials.sort_values("trial", kind="stable")
        trials["loss"] = trials["loss"].where(has_ended(trials))
        by_cell = trials.groupby("cell", sort=False)
        trials["best"] = by_cell["loss"].cummin()
        trials["best"] = by_cell["best"].ffill()
        data = trials.loc[trials["best"].notna(), ["cell", "trial", "state", "loss", "best"]]
        if data.empty:
            raise BadInput("no trial has ended")
        note = "One line per cell; dots are trials that ended."
        return cls(data=data, notes=(note,), y=Axis("best", report.loss_title))

    def _plot(self) -> Figure:
        by_cell = self.data.rename(columns={"loss": "value"}).groupby("cell", sort=False)
        studies = [optuna_study(rows, name=str(cell)) for cell, rows in by_cell]
        plot = visualization.plot_optimization_history(studies, target_name=self.y.title)
        dots = {"mode": "markers"}
        plot.update_traces(marker={"size": 5, "opacity": 0.45}, showlegend=False, selector=dots)
        plot.update_layout(showlegend=1 < len(studies) <= style.MOST_LINES)
        return self._color_by_name(plot)


class EdfPanel(
    OptunaPanel, name="edf", heading="Empirical distribution function", source="sweeps"
):
    """The share of trials that ended with a loss no higher than x. `data`: study, cell, trial, loss."""

    @classmethod
    def _of(cls, report: ReportData) -> Panel:
        trials, x = ended_trials(report)
        data = trials[["study", "cell", "trial", x.column]].sort_values(
            ["study", x.column], kind="stable"
        )
        return cls(data=data.reset_index(drop=True), notes=("Of the trials that ended.",), x=x)

    def _plot(self) -> Figure:
        by_study = self.data.groupby("study", sort=False)[self.x.column]
        studies = [
            optuna_study(DataFrame({"value": loss}), name=str(name)) for name, loss in by_study
        ]
        plot = visualization.plot_edf(studies, target_name=self.x.title)
        plot.update_layout(showlegend=len(studies) > 1)
        return self._color_by_name(plot)


class ParetoPanel(Panel, name="pareto", heading="Loss against cost", source="sweeps"):
    """All trials that ended over what they cost, and those that no trial beats in both: on the front.

    `data`: study, cell, trial, loss, n_params, train_flops; `front of NAME` marks the front over one of these costs.
    """

    @classmethod
    def _of(cls, report: ReportData) -> Panel:
        report.check_runs()
        check_one_task(report.runs)
        data, _ = ended_trials(report)
        data = data[["study", "cell", "trial", "loss", *_PARETO]].dropna()
        if len(data) < 2:
            raise BadInput("a front needs two trials or more that ended and say what they cost")
        for cost in _PARETO:
            ordered = data.sort_values([cost, "loss"])
            data[f"front of {cost}"] = ordered["loss"] < ordered["loss"].cummin().shift(
                fill_value=math.inf
            )
        return cls(data=data, y=Axis("loss", report.loss_title))

    def _draw(self, figure: Figure) -> None:
        figure.set_subplots(1, len(_PARETO), shared_yaxes=True, horizontal_spacing=0.04)
        for column, cost in enumerate(_PARETO, start=1):
            place: dict[str, Any] = {"row": 1, "col": column, "showlegend": False}
            for look, rows in by_look(self.data, "study", self.palette):
                hover = "%{study}, %{cell}, trial %{trial}<br>%{x:.3s}: %{y:.4f}"
                look.points(figure, rows, cost, "loss", hover, marker={"opacity": 0.4}, **place)
            front = self.data[self.data[f"front of {cost}"]].sort_values(cost)
            Look("front", style.FRONT).line(
                figure, front, cost, "loss", size=6, line={"shape": "hv"}, **place
            )
            x = Axis(cost, title_of(cost), log=True).around(self.data[cost])
            figure.update_xaxes(**x, row=1, col=column)
        figure.update_yaxes(**self.y.around(self.data["loss"]) | {"title": {}})
        figure.update_yaxes(title={"text": self.y.title}, row=1, col=1)


class ImportancePanel(
    Panel,
    name="param_importances",
    heading="Importance of the hyperparameters",
    source="sweeps",
):
    """Importances beside chance. `data`: hyperparameter, importance, chance, n_trials, verdict."""

    @classmethod
    def _of(cls, report: ReportData) -> Panel:
        sweep = _only(report, "importances")
        if len(sweep.space) < 2:
            raise BadInput("importances need two searched hyperparameters or more")
        shares = report.importances(sweep)
        if not shares:
            raise BadInput(
                f"importances need {FEWEST_TRIALS} or more trials with different searched values"
            )
        notes = [f"Ticks: exceeded by {1 - CHANCE:.0%} of shuffles of the losses."]
        chance = [each.hyperparameter for each in shares if each.verdict == WITHIN_CHANCE]
        if chance:
            notes.append(f"Not distinguishable from chance: {listed(chance)}.")
        data = DataFrame([asdict(each) for each in shares])
        return cls(
            data=data.sort_values("importance", ascending=False, ignore_index=True),
            notes=tuple(notes),
            method=_IMPORTANCES,
            x=Axis("importance", "share of the importance"),
        )

    def _draw(self, figure: Figure) -> None:
        data, look = self.data, Look("importance", GOOD)
        tick = {"symbol": "line-ns-open", "size": 13, "line": {"width": 1.5}}
        look.points(figure, data, data["chance"].clip(upper=1.0), data.index, marker=tick)
        hover = "%{hyperparameter}: %{x:.0%}, %{verdict}<br>%{n_trials} trials"
        look.points(figure, data, "importance", data.index, hover, marker={"size": 9})
        name_rows(figure, data["hyperparameter"].tolist())
        height = max(150, 110 + 34 * len(data))
        figure.update_layout(xaxis=self.x.over(-0.02, 1.02), height=height, showlegend=False)


class SpacePanel(OptunaPanel, source="sweeps"):
    """Trials that ended, in the search space. `data` has a sweep's trials, with `study` and `drawn`."""

    space: Mapping[str, BaseDistribution]

    @property
    def drawn(self) -> DataFrame:
        """Return the trials that are drawn."""
        return self.data[self.data["drawn"]]

    def study(self) -> optuna.Study:
        """Return the trials that are drawn as a study of Optuna's."""
        drawn = self.drawn
        return optuna_study(drawn.assign(value=drawn[self.y.column]), self.space)


class SlicePanel(SpacePanel, name="slice"):
    """Loss over each hyperparameter in turn."""

    @classmethod
    def _of(cls, report: ReportData, params: Params = ()) -> Panel:
        sweep = _only(report, "slices")
        space = _space(params, sweep)
        data, y = ended_trials(report)
        notes = list(_thinned(data))
        lost = int(sweep.trials["state"].isin(LOST).sum())
        if lost:
            notes.append(f"Left out: {several(lost, 'trial')} that diverged or failed.")
        if (sweep.trials["state"] == "pruned").any():
            notes.append(
                "Pruned trials are left out: their losses were measured earlier in training."
            )
        return cls(data=data, notes=tuple(notes), space=space, y=y)

    def _plot(self) -> Figure:
        plot = visualization.plot_slice(
            self.study(), list(self.space), target_name=self.y.title
        )
        losses = self.data[self.y.column]
        view = style.main_range(losses[losses <= losses.quantile(0.9)], losses, room=0.3)
        if view:
            plot.update_yaxes(range=view)
        for trace in plot.data:
            x = trace.xaxis or "x"  # none in a plot of one hyperparameter
            name = plot.layout[x.replace("x", "xaxis")].title.text
            rows = self.drawn[self.drawn[name].notna()]
            # So that the page can show and open the trial.
            trace.meta = {
                "trials": list(zip(rows["study"], rows["cell"], rows["trial"], strict=True))
            }
        return plot


class ParallelPanel(SpacePanel, name="parallel_coordinate", heading="Parallel coordinates"):
    """Each trial that ended as a line through its values, which a reader can select along each axis."""

    @classmethod
    def _of(cls, report: ReportData, params: Params = ()) -> Panel:
        sweep = _only(report, "parallel coordinates")
        data, y = ended_trials(report)
        space = _space(params, sweep)
        if not params:
            space = {**sweep.grid, **space}
        return cls(
            data=data,
            notes=("Drag along an axis to select.", *_thinned(data)),
            space=space,
            y=y,
        )

    def _draw(self, figure: Figure) -> None:
        rows = self.drawn.dropna(subset=[*self.space])
        axes = [_parallel_axis(name, rows[name], space) for name, space in self.space.items()]
        losses = rows[self.y.column]
        axes.append({"label": self.y.column, "values": losses})
        line = {"color": losses, "colorscale": "Cividis", "reversescale": True}
        figure.add_parcoords(
            dimensions=axes, line=line | {"cmin": losses.min(), "cmax": losses.quantile(0.9)}
        )
        figure.update_layout(margin={"l": 64, "r": 64, "t": 64, "b": 24})


def _parallel_axis(name: str, column: Series, distribution: BaseDistribution) -> dict[str, Any]:
    """Return an axis of parallel coordinates, with a mark at each of few values, else at the quartiles."""
    if not isinstance(distribution, FloatDistribution):
        texts = column.astype(str)
        choices = sorted(set(texts))
        return {
            "label": name,
            "values": texts.map(choices.index),
            "tickvals": [*range(len(choices))],
            "ticktext": choices,
        }
    numbers = column.astype(float)
    marks = marks_of(numbers) or tuple(numbers.quantile([0, 0.25, 0.5, 0.75, 1]))
    scale = np.log if distribution.log else np.asarray
    return {
        "label": name,
        "values": scale(numbers),
        "tickvals": scale(marks),
        "ticktext": [*map(short, marks)],
    }


class RankPanel(
    SpacePanel, name="rank", heading="Rank of the trials over pairs of hyperparameters"
):
    """Trials over each pair of the hyperparameters asked for, or of the few that matter most, colored by their rank."""

    @classmethod
    def _of(cls, report: ReportData, params: Params = ()) -> Panel:
        sweep = _only(report, "pairs")
        space = _space(params, sweep)
        if len(space) < 2:
            raise BadInput(
                f"pairs need two searched hyperparameters; here only {next(iter(space))} was searched"
            )
        if not params:
            shares = {
                each.hyperparameter: each.importance for each in report.importances(sweep)
            }
            most = sorted(space, key=lambda name: -shares.get(name, 0.0))[:MOST_PAIRED]
            space = {name: space[name] for name in most}
        data, y = ended_trials(report)
        return cls(data=data, notes=_thinned(data), space=space, y=y)

    def _plot(self) -> Figure:
        plot = visualization.plot_rank(self.study(), list(self.space), target_name=self.y.title)
        return plot.update_layout(height=_PAIR_HEIGHT * max(2, len(self.space)))


class PruningPanel(Panel, name="pruning", heading="What pruning saved", source="sweeps"):
    """The compute spent and saved by cell. `data`: study, cell, n_trials, n_pruned, flops_spent, flops_saved, …"""

    @classmethod
    def _of(cls, report: ReportData) -> Panel:
        data = pd.concat([saved(sweep) for sweep in report.sweeps], ignore_index=True)
        if not data["n_pruned"].sum():
            raise BadInput("no trial was pruned")
        notes = []
        for study, row in data.groupby("study", sort=False).sum(numeric_only=True).iterrows():
            share = row["flops_saved"] / max(row["flops_spent"] + row["flops_saved"], 1.0)
            trials = f"{row['n_pruned']:.0f} of {several(int(row['n_trials']), 'trial')}"
            notes.append(f"{study}: {trials} pruned, which saved {share:.0%} of the training.")
        return cls(
            data=data, notes=tuple(notes), method=_SAVED, x=Axis("flops", "training FLOPs")
        )

    def _draw(self, figure: Figure) -> None:
        data = self.data
        about = "%{n_pruned} of %{n_trials} trials pruned, %{share:.0%} saved"
        looks = {"flops_spent": ("trained", GOOD), "flops_saved": ("saved by pruning", FAINT)}
        for column, (name, color) in looks.items():
            hover = hovering(f"%{{study}}, %{{cell}}: {name} %{{x:.3s}} FLOPs<br>{about}", data)
            marker = {"color": color}
            figure.add_bar(
                x=data[column], y=data.index, orientation="h", name=name, marker=marker, **hover
            )
        names = data["cell"].map(spaced)
        if data["study"].nunique() > 1:
            names = data["study"] + ": " + names
        name_rows(figure, names.tolist())
        most = float((data["flops_spent"] + data["flops_saved"]).max())
        x, height = self.x.over(0.0, 1.02 * most), 110 + 26 * len(data)
        figure.update_layout(xaxis=x, barmode="stack", height=height, showlegend=True)


def ended_trials(report: ReportData) -> tuple[DataFrame, Axis]:
    """Return the trials of all studies that ended, and the axis of their losses.

    With several cells the axis has the distance `above` the best loss of the cell. `drawn` marks those that a figure
    shows, the best of each cell.

    Raises:
        BadInput: no trial has ended.
    """
    data = pd.concat(
        [sweep.ended.assign(study=sweep.name) for sweep in report.sweeps], ignore_index=True
    )
    if data.empty:
        raise BadInput("no trial has ended with a value")
    data["above"] = data["loss"] - data.groupby("cell")["loss"].transform("min")
    data["drawn"] = data["standing"].rank(method="first") <= MOST_DRAWN
    y = Axis("loss", report.loss_title)
    if data["cell"].nunique() > 1:
        y = Axis("above", f"{report.loss_title.partition(' ')[0]} above the cell's best")
    return data, y


def _only(report: ReportData, what: str) -> Sweep:
    sweep, *others = report.sweeps
    if others:
        raise BadInput(f"{what} are drawn for one study only")
    return sweep


def _space(params: Sequence[str], sweep: Sweep) -> dict[str, BaseDistribution]:
    """Find the dimensions asked for, else all that were searched and have different values in trials that ended."""
    ended = sweep.ended
    known = {
        name: distribution
        for name, distribution in {**sweep.grid, **sweep.space}.items()
        if ended[name].nunique() > 1
    }
    for name in params:
        if name not in known:
            raise BadInput(f"{name} does not vary")
    space = {name: known[name] for name in params or sweep.space if name in known}
    if not space:
        raise BadInput("no searched hyperparameter has different values in the trials")
    return space


def _thinned(data: DataFrame) -> tuple[str, ...]:
    if len(data) <= MOST_DRAWN:
        return ()
    return (f"Drawn: {MOST_DRAWN} of {several(len(data), 'trial')}, the best of each cell.",)
