"""The runs of a study: losses over sizes with the law, learning curves, a table, the gradients of the best run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pandas import DataFrame, Series, concat

from sweeplab.analysis.studies import whole_losses
from sweeplab.analysis.trials import (
    LOST,
    TRIAL,
    VALUED,
    are_best,
    check_one_task,
    finite,
    grid_of,
    marks_of,
    searched_of,
    trials_table,
)
from sweeplab.errors import BadInput
from sweeplab.formatting import several, written
from sweeplab.hyperparameters import AUTO, TABLE
from sweeplab.laws.columns import SHAPE
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import read_gradients
from sweeplab.report import style
from sweeplab.report.data import (
    CURVES,
    FACTS,
    LOSSES,
    PROGRESS,
    ReportData,
    states_in_words,
    title_of,
)
from sweeplab.report.headline import AHEAD, forecast_at
from sweeplab.report.panels.base import Log, Panel, TablePanel, one_of
from sweeplab.report.style import (
    GREY,
    Axis,
    Figure,
    Look,
    bars,
    by_look,
    hovering,
    main_range,
    marked,
    spaced,
)

# Above this number of points curves are drawn by WebGL, which stays quick but prints as pixels.
MANY = 20_000
_RUN = [*TRIAL, "seed"]
_MOST_BASELINES = 4
_MOST_NUMBERS = 80  # more fields of a map are too small for their numbers
_BAND = 24  # points of a law's band
_Progress = Annotated[str, one_of(*PROGRESS)]
_Curve = Annotated[str, one_of(*CURVES, measures=True)]
_Any = Annotated[str, one_of(*FACTS, *TABLE)]
_Size = Annotated[str, one_of(*TABLE)]
_NORMS = {"gradient": "gradient norm", "relative_update": "update / weights"}
_ROW_HEIGHT = 24  # pixels of a layer's row
_GRADIENTS = (
    "At each point of the curve: the norm of a layer's gradient in that step, before clipping; and the norm of the "
    "step's weight update, divided by the norm of the weights before it. If the first blocks have much smaller "
    "gradients than the last, gradients vanish on the way back; updates of about a thousandth of the weights are usual."
)


class CurvesPanel(Panel, name="learning_curves"):
    """A metric over training. `data`: cell, trial, seed, x, value, best.

    `best` has the best trial of each cell, the mean of its seeds: cell, trial, n_params, x, value; `winner` is the cell
    of the best of all. `baselines` are the losses of n-grams, `view` is the range of losses shown at first.
    """

    best: DataFrame
    winner: str = ""
    baselines: tuple[float, ...] = ()
    view: tuple[float, float] | None = None

    @classmethod
    def _of(
        cls,
        report: ReportData,
        x: _Progress = "train_tokens",
        metric: _Curve = "val_loss",
        log: Log = (),
    ) -> Panel:
        runs, trials = report.runs, trials_table(report.runs)
        kept = runs[~runs["state"].isin(LOST)]
        left_out = states_in_words(runs.loc[~runs.index.isin(kept.index), "state"])
        drawn = report.curves(metric).merge(kept[_RUN], on=_RUN)
        drawn = drawn.assign(x=finite(drawn, x), value=finite(drawn, "value")).dropna(
            subset=["x", "value"]
        )
        drawn = _positive(drawn, log, "value").merge(
            trials[[*TRIAL, "best", "n_params"]], on=TRIAL
        )
        drawn = drawn.sort_values(["n_params", *_RUN, "x"], ignore_index=True)
        if drawn.empty:
            raise BadInput(f"no run has a {metric} ({left_out})".removesuffix(" ()"))
        if drawn["x"].nunique() == 1 and not drawn["best"].any():
            raise BadInput("no run has two evaluations")  # a faint line needs them
        notes = ["Bold: the best trial; colored: the best of each cell; faint: every run."]
        if left_out:
            notes.append(f"Not drawn: {left_out}.")
        baselines: tuple[float, ...] = ()
        if metric == "val_loss":
            baselines = _baselines(report)
        view = None
        if metric.endswith("loss") and "y" not in log:
            # Without the first loss of each run, which is far above the rest.
            later = drawn[drawn["x"] > drawn.groupby(_RUN)["x"].transform("min")]
            most = later["value"].quantile(0.95)
            view = main_range(
                later.loc[later["best"] | (later["value"] <= most), "value"], drawn["value"]
            )
        winner = trials.loc[are_best(trials, ["study"]), "cell"]
        by_x = drawn[drawn["best"]].groupby([*TRIAL, "n_params", "x"], sort=False)
        return cls(
            data=drawn[[*_RUN, "x", "value", "best"]],
            notes=tuple(notes),
            view=view,
            x=Axis(x, PROGRESS[x], "x" in log),
            y=Axis(metric, report.measure_title(metric), "y" in log),
            best=by_x["value"].mean().reset_index(),
            winner=next(iter(winner), ""),
            baselines=baselines,
        )

    def _draw(self, figure: Figure) -> None:
        kind, of_run = "scatter", "%{cell}, trial %{trial}, seed %{seed}<br>%{x:.4s}: %{y:.4f}"
        if len(self.data) > MANY:
            kind, of_run = "scattergl", ""
        ends = self.data.drop_duplicates(_RUN, keep="last").assign(x=np.nan, value=np.nan)
        # With a gap after each run.
        joined = concat([self.data, ends]).sort_index(kind="stable")
        every = Look("every run", GREY)
        every.line(
            figure, joined, "x", "value", of_run, type=kind, line={"width": 1}, opacity=0.35
        )
        is_crowded = self.best["cell"].nunique() > style.MOST_LINES
        for look, rows in by_look(self.best, "cell", self.palette):
            hover = f"{look.name}, trial %{{trial}}<br>%{{x:.4s}}: %{{y:.4f}}"
            name, settings = (
                spaced(look.name),
                {"line": {"width": 1.5}, "showlegend": not is_crowded},
            )
            if look.name == self.winner:
                name, settings = f"{name} (best)", {"line": {"width": 3.5}}
            elif is_crowded:
                settings["opacity"] = 0.4
            look.line(
                figure, rows, "x", "value", hover, size=5, type=kind, name=name, **settings
            )
        # The run under the cursor is drawn here again, over all others.
        front, nothing = {"width": 3, "color": style.FRONT}, DataFrame({"x": [], "y": []})
        every.line(
            figure, nothing, "x", "y", line=front, showlegend=False, meta={"front": True}
        )
        for loss in self.baselines:
            figure.add_hline(y=loss, **marked(f"n-grams {loss:.3f}"))
        y = self.y.around(self.data["value"], *self.baselines)
        if self.view:
            y = self.y.over(*self.view)
        x = self.x.around(self.data["x"])
        # A run begins at 0: a single evaluation is drawn where it lies after that.
        if not self.x.log:
            x = self.x.around(self.data["x"], 0.0, 1.0)
        figure.update_layout(xaxis=x, yaxis=y)


def _baselines(report: ReportData) -> tuple[float, ...]:
    """List the different losses of n-grams, lowest first; none if there are too many to distinguish."""
    # Rounded as in their labels, so that no label is drawn twice.
    losses = sorted({round(each["loss"], 3) for each in report.baselines.values()})
    if len(losses) > _MOST_BASELINES:
        return ()
    return tuple(losses)


def _positive(data: DataFrame, log: Sequence[str], y: str) -> DataFrame:
    """Keep the rows that logarithmic axes can show."""
    for axis in log:
        column = y if axis == "y" else axis
        data = data[data[column] > 0]
    return data


class RunsPanel(TablePanel, name="table", heading="Runs"):
    """Every run with the columns that vary among runs, the lowest loss first."""

    @classmethod
    def _of(cls, report: ReportData) -> Panel:
        report.check_runs()
        runs, grid = report.runs, grid_of(report.runs, report.design)
        tuned = [name for name in searched_of(runs, report.design) if name not in grid]
        columns = [
            *(grid or ["cell"]),
            *tuned,
            "trial",
            "seed",
            "state",
            *LOSSES,
            "iterations",
            *FACTS,
        ]
        known = [name for name in columns if name in runs and runs[name].notna().any()]
        return cls(data=runs.sort_values(report.value_column, ignore_index=True)[known])


class LossPanel(Panel, name="loss"):
    """Loss against a size. `data`: cell, trial, state, seeds, x, loss, loss_low, loss_high, line, best.

    A line is one combination of the grid's other sizes; `joined` says that one size alone changes along each. `view`
    is the range of losses shown at first, without far worse trials. `law` has the forecasts of the study's law, if that
    is one of parameters alone, on to `AHEAD` times the largest: x, loss, low, high.
    """

    joined: bool = True
    law: DataFrame | None = None
    view: tuple[float, float] | None = None

    @classmethod
    def _of(cls, report: ReportData, x: _Any, log: Log = ()) -> Panel:
        runs = report.runs
        if x == "n_params":
            x = report.params_column
        law = _law_of_size(report) if x == report.params_column else None
        metric = report.ranked_metric
        if law is not None:
            runs, metric = whole_losses(runs, report.objective)
        trials = trials_table(runs, metric)
        shown = trials[
            trials["state"].isin((*VALUED, "pruned")) & trials["loss"].notna()
        ].copy()
        shown["x"] = finite(shown, x)
        shown = _positive(shown, log, "loss_low").dropna(subset=["x"])
        _check_comparable(x, runs, shown, metric)
        lines, joined = _lines_over(
            x, [name for name in grid_of(runs, report.design) if name in runs], shown
        )
        labels = [
            shown[name].map(lambda value, name=name: f"{name} = {written(value)}")
            for name in lines
        ]
        shown["line"] = ""
        if labels:
            shown["line"] = concat(labels, axis=1).agg(", ".join, axis=1)
        # In a study of one cell the sizes are searched: the line joins the best trial of each size.
        by = ["cell"] if runs["cell"].nunique() > 1 else ["line", "x"]
        shown["best"] = are_best(shown, by)
        best = shown[shown["best"]]
        view = main_range(best["loss"], shown["loss"], room=1.5)
        columns = [
            *TRIAL,
            "state",
            "seeds",
            "x",
            "loss",
            "loss_low",
            "loss_high",
            "line",
            "best",
            *lines,
        ]
        return cls(
            title=f"Loss against {title_of(x)}",
            data=shown[columns].sort_values([*lines, "x", "loss"], ignore_index=True),
            notes=_notes(trials, shown, view),
            x=Axis(x, title_of(x), "x" in log, marks_of(shown["x"]) if x in TABLE else ()),
            y=Axis(metric, report.measure_title(metric), "y" in log),
            joined=joined,
            view=view,
            law=law,
        )

    def _draw(self, figure: Figure) -> None:
        hover = f"%{{cell}}<br>trial %{{trial}}, %{{state}}<br>{self.x.column} %{{x}}<br>loss %{{y:.4f}}"
        n_lines = self.data["line"].nunique()
        for look, rows in by_look(self.data, "line"):
            best, others = rows[rows["best"]], rows[~rows["best"]]
            for state, trials in others.groupby("state"):
                marker: dict[str, Any] = {"opacity": 0.35}
                if state == "pruned":
                    marker["symbol"] = f"{look.symbol}-open"
                group = {"legendgroup": look.name, "showlegend": False}
                look.points(figure, trials, "x", "loss", hover, marker=marker, **group)
            settings: dict[str, Any] = {
                "legendgroup": look.name,
                "showlegend": n_lines <= style.MOST_LINES,
            }
            if (best["seeds"] > 1).any():
                settings["error_y"] = bars(best, "loss", "loss_low", "loss_high", thickness=1.2)
            if self.joined:
                look.line(figure, best, "x", "loss", hover, size=9, **settings)
            else:
                look.points(figure, best, "x", "loss", hover, marker={"size": 9}, **settings)
        sizes, losses = (
            self.data["x"].tolist(),
            self.data[["loss", "loss_low", "loss_high"]].to_numpy(),
        )
        ends = list(self.view or (float(losses.min()), float(losses.max())))
        if self.law is not None:
            self._draw_law(figure, self.law)
            sizes.append(float(self.law["x"].max()))
            ends += [float(self.law["low"].min()), float(self.law["high"].max())]
        y = self.y.around(Series(ends))
        is_named = n_lines > 1 or self.law is not None
        figure.update_layout(xaxis=self.x.around(Series(sizes)), yaxis=y, showlegend=is_named)

    def _draw_law(self, figure: Figure, law: DataFrame) -> None:
        """Draw the law's forecasts with their 90% band, and mark the last one."""
        look, ahead = Look("law, 90% band", GREY), law.tail(1)
        look.band(figure, law, "x")
        look.line(
            figure,
            law,
            "x",
            "loss",
            line={"width": 1.5, "dash": "4px 4px"},
            legendgroup=look.name,
        )
        star = Look(f"forecast at {AHEAD:g}x", style.FRONT, "star")
        hover = "%{x:.4s}: %{y:.3f} (%{low:.3f} to %{high:.3f})"
        star.points(
            figure, ahead, "x", "loss", hover, marker={"size": 11}, error_y=bars(ahead, "loss")
        )


def _law_of_size(report: ReportData) -> DataFrame | None:
    """Return the forecasts of the study's law over its parameters; None if it is none of parameters alone."""
    try:
        assessment = report.assessment(AUTO)
        if assessment.law.columns != ("params",):
            return None
        sizes = assessment.points.columns["params"]
        rows = []
        for size in np.geomspace(sizes.min(), AHEAD * sizes.max(), _BAND):
            forecast = forecast_at(assessment, float(size / sizes.max()))
            rows.append((size, forecast.loss, forecast.low, forecast.high))
    except BadInput:
        return None
    return DataFrame(rows, columns=["x", "loss", "low", "high"])


def _lines_over(x: str, grid: Sequence[str], shown: DataFrame) -> tuple[list[str], bool]:
    """Choose the columns that distinguish lines, and whether one size alone changes along each.

    Over a size of the grid these are all other columns of the grid; over a fact such as n_params, all but the last
    column that changes it. So each line has one cell at each x, however many dimensions the grid has.
    """
    # Sizes first: readers look for them.
    free = sorted((name for name in grid if name != x), key=lambda name: name not in SHAPE)
    if x in grid:
        return free, True
    if x not in FACTS or not grid:
        return [], not grid
    for along in reversed(free):
        rest = [name for name in free if name != along]
        lines = [shown]
        if rest:
            lines = [rows for _, rows in shown.groupby(rest, dropna=False)]
        if any(rows["x"].nunique() > 1 for rows in lines):
            return rest, True
    return free, False


def _notes(
    trials: DataFrame, shown: DataFrame, view: tuple[float, float] | None
) -> tuple[str, ...]:
    notes = ["Large marks: the best trial of each cell."]
    if (shown["state"] == "pruned").any():
        notes.append("Hollow: pruned, at the best loss they reached.")
    if (shown["seeds"] > 1).any():
        notes.append("Bars span the seeds.")
    left_out = states_in_words(trials.loc[~trials.index.isin(shown.index), "state"])
    if left_out:
        notes.append(f"Not drawn: {left_out}.")
    if view:
        above = int((shown["loss"] > view[1]).sum())
        notes.append(f"Above the view: {several(above, 'trial')}; double-click to see all.")
    return tuple(notes)


class HeatMapPanel(Panel, name="heat_map", heading="Best loss of each cell"):
    """The best loss of each cell over two sizes of the grid. `data`: y, x, loss, cell, trial."""

    @classmethod
    def _of(cls, report: ReportData, x: _Size = "", y: _Size = "") -> Panel:
        runs, metric = report.runs, report.ranked_metric
        grid = [
            name for name in grid_of(runs, report.design) if finite(runs, name).nunique() > 1
        ]
        others = iter([name for name in grid if name not in (x, y)])
        y = y or next(others, "")
        x = x or next(others, "")
        trials = trials_table(runs, metric)
        ended = trials[trials["state"].isin(VALUED) & trials["loss"].notna()]
        check_one_task(ended)
        if len(runs) and not (x and y):
            only = grid[0] if grid else "none"
            raise BadInput(
                f"a heat map needs two sizes that vary in the grid; varying here: {only}"
            )
        for name in (x, y):
            _check_comparable(name, runs, ended, metric)
        best = ended.loc[are_best(ended, [x, y]), [y, x, "loss", "cell", "trial"]].reset_index(
            drop=True
        )
        n_pairs = best[x].nunique() * best[y].nunique()
        if 2 * len(best) < n_pairs:
            what = f"{len(best)} of {several(n_pairs, 'pair')} of {y} and {x}"
            raise BadInput(f"a map needs a cell for half of its pairs or more; here: {what}")
        note = f"The {report.measure_title(metric)} of the best trial."
        return cls(data=best, notes=(note,), x=Axis(x, title_of(x)), y=Axis(y, title_of(y)))

    def _draw(self, figure: Figure) -> None:
        x, y = self.x.column, self.y.column
        table = self.data.pivot(index=y, columns=x, values="loss")
        number = "%{z:.3f}"
        if len(self.data) > _MOST_NUMBERS:  # their fields get a color scale instead
            number = ""
        figure.add_heatmap(
            x=[f"{value:g}" for value in table.columns],
            y=[f"{value:g}" for value in table.index],
            z=table.to_numpy(),
            colorscale="Cividis",
            showscale=not number,
            texttemplate=number,
            hoverongaps=False,
            xgap=3,
            ygap=3,
            **hovering(f"{y} %{{y}}<br>{x} %{{x}}<br>%{{z:.4f}}", table),
        )
        plain = {"type": "category", "showgrid": False, "zeroline": False}
        figure.update_layout(
            xaxis={"title": {"text": self.x.title}, **plain},
            yaxis={"title": {"text": self.y.title}, **plain},
            height=min(figure.layout.height, 110 + 64 * len(table)),
        )


def _check_comparable(column: str, runs: DataFrame, shown: DataFrame, metric: str) -> None:
    """Raise BadInput unless there are losses to compare over a column of numbers that differ between runs."""
    if runs.empty:
        raise BadInput("the study has no runs")
    if column not in runs:
        raise BadInput(f"the runs have no {column}")
    values = finite(runs, column)
    if values.isna().all() and runs[column].notna().any():
        raise BadInput(f"{column} is not a number")
    if not shown["state"].isin(VALUED).any():
        raise BadInput(f"no trial has ended with a {metric} ({states_in_words(runs['state'])})")
    if values.nunique() == 1:
        raise BadInput(f"{column} is {written(values.iloc[0])} in every run")


class GradientFlowPanel(Panel, name="gradient_flow", heading="Gradient flow by layer"):
    """The norms of gradients, and of updates over weights, by layer and iteration, of the best trial's first run.

    `data`: cell, trial, seed, iteration, layer, gradient, update, weights, relative_update.
    """

    @classmethod
    def _of(cls, report: ReportData) -> Panel:
        rows = []
        trials = trials_table(report.runs)
        best = trials[are_best(trials, ["study"])].to_dict("records")
        for trial in best if report.lab else ():
            run = {name: trial[name] for name in ("cell", "trial", "seed")}
            folder = StudyFolder(report.lab or Path(), report.study).run(*run.values())
            for point in read_gradients(folder):
                for layer, (gradient, update, weights) in point.layers.items():
                    norms = {"gradient": gradient, "update": update, "weights": weights}
                    rows.append({**run, "iteration": point.iteration, "layer": layer, **norms})
        if not rows:
            raise BadInput(
                "the best run has not recorded the norms of its layers; track: {gradients: true} in the study does"
            )
        data = DataFrame(rows).astype({"gradient": float, "update": float, "weights": float})
        data["relative_update"] = data["update"] / data["weights"].where(data["weights"] > 0)
        note = "The best trial, the first layer on top; colors are powers of ten."
        x = Axis("iteration", PROGRESS["iteration"])
        return cls(data=data, notes=(note,), method={"Gradient flow": _GRADIENTS}, x=x)

    def _draw(self, figure: Figure) -> None:
        layers = list(dict.fromkeys(self.data["layer"]))
        figure.set_subplots(
            len(_NORMS), 1, shared_xaxes=True, subplot_titles=list(_NORMS.values())
        )
        for row, (column, title) in enumerate(_NORMS.items(), start=1):
            table = self.data.pivot(index="layer", columns="iteration", values=column).loc[
                layers
            ]
            bar = {
                "thickness": 10,
                "outlinewidth": 0,
                "len": 0.45,
                "y": 1.28 - row / 2,
                "tickprefix": "1e",
            }
            figure.add_heatmap(
                x=table.columns,
                y=layers,
                z=np.log10(table.where(table > 0).to_numpy()),
                customdata=table.to_numpy(),
                colorscale="Cividis",
                colorbar=bar,
                hovertemplate=f"%{{y}}, iteration %{{x}}<br>{title} %{{customdata:.3g}}<extra></extra>",
                row=row,
                col=1,
            )
        plain = {"showgrid": False, "zeroline": False}
        figure.update_yaxes(type="category", autorange="reversed", automargin=True, **plain)
        figure.update_xaxes(**plain)
        iterations = self.data["iteration"].unique()
        if len(iterations) == 1:  # an axis of numbers would mark others beside it, by halves
            figure.update_xaxes(tickvals=[*iterations])
        figure.update_xaxes(title={"text": self.x.title}, row=len(_NORMS), col=1)
        figure.update_layout(height=160 + 2 * _ROW_HEIGHT * max(4, len(layers)))
