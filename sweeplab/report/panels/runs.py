"""The runs of a study: learning curves, a table, a sample of the best one, losses over sizes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import cycle
from typing import Annotated, Any

import numpy as np
from pandas import DataFrame, Series, concat
from pandas.api.types import is_numeric_dtype

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
from sweeplab.data.prompts import HOLE
from sweeplab.errors import BadInput
from sweeplab.formatting import rounded, several, written
from sweeplab.hyperparameters import AUTO, TABLE
from sweeplab.laws.columns import SHAPE
from sweeplab.records.folders import StudyFolder
from sweeplab.report import style
from sweeplab.report.data import CURVES, FACTS, LOSSES, PROGRESS, ReportData, states_in_words, title_of
from sweeplab.report.options import Log, PanelOption, Params
from sweeplab.report.panels.base import Panel, TablePanel
from sweeplab.report.panels.lines import at_lines, less_excess, lines_by, lines_of
from sweeplab.report.style import (
    DASHES,
    GREY,
    SYMBOLS,
    Axis,
    Figure,
    Look,
    bars,
    by_look,
    hovering,
    looks,
    marked,
    padded,
    spaced,
)
from sweeplab.runs.generating import read_samples

# Above this number of points curves are drawn by WebGL, which stays quick but prints as pixels.
MANY = 20_000
_RUN = [*TRIAL, "seed"]
_MOST_BASELINES = 4
_Progress = Annotated[str, PanelOption(tuple(PROGRESS))]
_Curve = Annotated[str, PanelOption(tuple(CURVES), measures=True)]
_Any = Annotated[str, PanelOption((*FACTS, *TABLE), needed=f"any hyperparameter, {', '.join(FACTS)}")]
_Size = Annotated[str, PanelOption(tuple(TABLE))]
_Metric = Annotated[str, PanelOption((AUTO, *LOSSES), measures=True)]


class CurvesPanel(Panel, name="learning_curves"):
    """A metric over training. `data`: cell, trial, seed, x, value, best.

    `best` has the best trial of each cell, the mean of its seeds: cell, trial, n_params, x, value. `baselines` are
    the losses of n-grams, `view` is the range of losses shown at first: the start of the runs is far above it.
    """

    best: DataFrame
    baselines: tuple[float, ...] = ()
    view: tuple[float, float] | None = None

    @classmethod
    def _of(
        cls, report: ReportData, x: _Progress = "train_tokens", metric: _Curve = "val_loss", log: Log = ()
    ) -> Panel:
        runs = report.runs
        kept = runs[~runs["state"].isin(LOST)]
        drawn = report.curves(metric).merge(kept[_RUN], on=_RUN)
        drawn = drawn.assign(x=finite(drawn, x), value=finite(drawn, "value")).dropna(subset=["x", "value"])
        drawn = _positive(drawn, log, "value").merge(
            trials_table(runs)[[*TRIAL, "best", "n_params"]], on=TRIAL
        )
        drawn = drawn.sort_values(["n_params", *_RUN, "x"], ignore_index=True)
        left_out = states_in_words(runs.loc[~runs.index.isin(kept.index), "state"])
        if drawn.empty:
            raise BadInput(f"no run has a {metric} ({left_out})".removesuffix(" ()"))
        if drawn["x"].nunique() == 1 and not drawn["best"].any():
            raise BadInput("no run has two evaluations")  # a faint line needs them
        by_x = drawn[drawn["best"]].groupby([*TRIAL, "n_params", "x"], sort=False)
        notes = [
            "Bold: the best trial; colored: the best of each cell, mean of its seeds; faint: every run, pruned too."
        ]
        view = None
        if metric.endswith("loss") and "y" not in log:
            view = _after_the_start(drawn)
        if view:
            notes.append("The start of the runs is above the view; double-click to see all.")
        if left_out:
            notes.append(f"Not drawn: {left_out}.")
        return cls(
            data=drawn[[*_RUN, "x", "value", "best"]],
            notes=tuple(notes),
            view=view,
            x=Axis(x, PROGRESS[x], "x" in log),
            y=Axis(metric, report.measure_title(metric), "y" in log),
            best=by_x["value"].mean().reset_index(),
            baselines=_baselines(report) if metric == "val_loss" else (),
        )

    def _draw(self, figure: Figure) -> None:
        kind, of_run = "scatter", "%{cell}, trial %{trial}, seed %{seed}<br>%{x:.4s}: %{y:.4f}"
        if len(self.data) > MANY:
            kind, of_run = "scattergl", ""
        ends = self.data.drop_duplicates(_RUN, keep="last").assign(x=np.nan, value=np.nan)
        joined = concat([self.data, ends]).sort_index(kind="stable")  # with a gap after each run
        every, faint = Look("every run", GREY), {"width": 1}
        # Of many cells the legend names only the best.
        many = self.best["cell"].nunique() > style.MOST_LINES
        ends_of = self.best.groupby("cell", sort=False)["value"].min()
        # There is none if the study was stopped at once.
        winner = ends_of.idxmin() if len(ends_of) else None
        every.line(figure, joined, "x", "value", of_run, type=kind, line=faint, opacity=0.35)
        size = 5 * (len(self.best) <= 40 * self.best["cell"].nunique())
        for look, rows in by_look(self.best, "cell", self.palette):
            hover, named = f"{look.name}, trial %{{trial}}<br>%{{x:.4s}}: %{{y:.4f}}", spaced(look.name)
            settings: dict[str, Any] = {"line": {"width": 1 if many else 1.5}}
            if look.name == winner:
                named, settings = f"{named} (best)", {"line": {"width": 3.5}}
            elif many:
                settings |= {"opacity": 0.4, "showlegend": False}
            looked = replace(look, name=named)
            looked.line(figure, rows, "x", "value", hover, size=size, type=kind, **settings)
        # The run under the cursor is drawn here again, over all others.
        front = {"width": 3, "color": style.FRONT}
        nothing, meta = DataFrame({"x": [], "y": []}), {"front": True}
        Look("", GREY).line(figure, nothing, "x", "y", line=front, showlegend=False, meta=meta)
        for loss in self.baselines:
            figure.add_hline(y=loss, **marked(f"n-grams {loss:.3f}"))
        y = self.y.around(self.data["value"], *self.baselines)
        if self.view:
            y = self.y.over(*self.view)
        # A run begins at 0: a single evaluation is drawn where it lies after that.
        begin = () if self.x.log else (0.0, 1.0)
        figure.update_layout(xaxis=self.x.around(self.data["x"], *begin), yaxis=y)


def _after_the_start(drawn: DataFrame) -> tuple[float, float] | None:
    """Find the range of losses without each run's first and a few of the worst; None if that is the whole range."""
    later = drawn[drawn["x"] > drawn.groupby(_RUN)["x"].transform("min")]
    if later.empty:
        return None
    top = max(float(later.loc[later["best"], "value"].max()), float(later["value"].quantile(0.95)))
    low, top = padded(float(drawn["value"].min()), top, False)
    return (low, top) if drawn["value"].max() > top else None


class RunsPanel(TablePanel, name="table", heading="Runs"):
    """Every run with the columns that vary among runs, the best first."""

    @classmethod
    def _of(cls, report: ReportData) -> Panel:
        report.check_runs()
        runs, grid = report.runs, grid_of(report.runs, report.design)
        tuned = [name for name in searched_of(runs, report.design) if name not in grid]
        columns = [*(grid or ["cell"]), *grid, "trial", "seed", "state", *LOSSES, *tuned, *FACTS]
        known = list(dict.fromkeys(name for name in columns if name in runs))
        return cls(data=runs[known].sort_values("best_val_loss", ignore_index=True))


class SamplePanel(TablePanel, name="sample", heading="What the best run writes"):
    """A generated text: its parts in order, each with a flag that is true where the model wrote it."""

    @classmethod
    def _of(cls, report: ReportData) -> Panel:
        study = report.study
        samples = read_samples(StudyFolder(report.lab, study)) if report.lab else []
        if not samples:
            raise BadInput("no run with a saved checkpoint has generated a text")
        texts: list[list[tuple[bool, str]]] = []
        notes: list[str] = []
        where = "prompted with the beginning of the validation split"
        for sample in samples:
            asked = {name: sample[name] for name in ("temperature", "top_k", "top_p", "seed")}
            how = ", ".join(f"{name} {rounded(each)}" for name, each in asked.items() if each is not None)
            notes.append(f"Run {sample['run']}, {where}: its prompt is gray; with {how}.")
            head = [(False, f"{sample['run']}\n\n")] if len(samples) > 1 else []
            texts.append([*head, *parts(sample["prompt"], sample["text"])])
        text = [*texts[0], *(piece for pieces in texts[1:] for piece in [(False, "\n\n\n"), *pieces])]
        return cls(data=DataFrame(samples), notes=tuple(notes), text=tuple(text))


def parts(prompt: str, text: str) -> tuple[tuple[bool, str], ...]:
    """Return a text in parts, each with whether it was written and not given.

    A text that is no continuation of the prompt stands behind it.
    """
    pieces: list[tuple[bool, str]] = []
    at = 0
    for index, piece in enumerate(prompt.split(HOLE)):
        place = text.find(piece, at)
        if place < 0 or (index == 0 and place > 0):
            return (False, f"{prompt}\n"), (True, text)
        pieces += [(True, text[at:place]), (False, piece)]
        at = place + len(piece)
    return tuple(each for each in (*pieces, (True, text[at:])) if each[1])


def _positive(data: DataFrame, log: Sequence[str], y: str) -> DataFrame:
    """Keep the rows that logarithmic axes can show."""
    return data[(data[[{"x": "x", "y": y}[axis] for axis in log]] > 0).all(axis=1)]


def _baselines(report: ReportData) -> tuple[float, ...]:
    """List the different losses of n-grams, lowest first; none if there are too many to distinguish."""
    # Rounded as in their labels, so that no label is drawn twice.
    losses = sorted({round(each["loss"], 3) for each in report.baselines.values()})
    return tuple(losses) if len(losses) <= _MOST_BASELINES else ()


class LossPanel(Panel, name="loss"):
    """Loss against a size. `data`: cell, trial, state, seeds, x, loss, loss_low, loss_high, line, best.

    `view` is the range of losses shown at first if far worse trials would squeeze the others. `lines` are the columns
    whose combinations are drawn as lines: the first column sets the color, the second the dash, a third has a selector.
    `joined` says that one size alone changes along each line. `law` has the lines of
    the study's law, if that is one of sizes of the model: law, line, x, value, low, high.
    """

    lines: tuple[str, ...] = ()
    joined: bool = True
    law: DataFrame | None = None
    view: tuple[float, float] | None = None

    @classmethod
    def _of(
        cls, report: ReportData, x: _Any, lines: Params = (), metric: _Metric = AUTO, log: Log = ()
    ) -> Panel:
        runs, metric = report.runs, report.loss_metric(metric)
        x = {"n_params": report.params_column}.get(x, x)
        trials = trials_table(runs, metric)
        shown = trials[trials["state"].isin((*VALUED, "pruned")) & trials["loss"].notna()].copy()
        shown["x"] = finite(shown, x)
        shown = _positive(shown, log, "loss_low").dropna(subset=["x"])
        _check_comparable(x, runs, shown, metric)
        grid = [name for name in grid_of(runs, report.design) if name in runs]
        lines, joined = _lines_over(x, [name for name in lines if name in runs], grid, shown)
        for name in lines:
            if shown[name].isna().any():  # the cells of another family lack it
                shown[name] = shown[name].map(written)
        shown["line"] = _labels(shown, lines)
        # In a study of one cell the sizes are searched: the line joins the best trial of each size.
        by = ["cell"] if runs["cell"].nunique() > 1 else ["line", "x"]
        shown["best"] = are_best(shown, by)
        view, outside = _view(shown)
        columns = [*TRIAL, "state", "seeds", "x", "loss", "loss_low", "loss_high", "line", "best", *lines]
        return cls(
            title=f"Loss against {title_of(x)}",
            data=shown[columns].sort_values(["line", "x", "loss"], key=_natural, ignore_index=True),
            notes=(*_notes(trials, shown), *outside),
            x=Axis(x, title_of(x), "x" in log, marks_of(shown["x"]) if x in TABLE else ()),
            y=Axis(metric, report.measure_title(metric), "y" in log),
            lines=tuple(lines),
            joined=joined,
            view=view,
            law=_law_of_size(report, x, metric),
        )

    def _draw(self, figure: Figure) -> None:
        hover = f"%{{cell}}<br>trial %{{trial}}, %{{state}}<br>{self.x.column} %{{x}}<br>loss %{{y:.4f}}"
        # Many trials are drawn faintly, so that the best ones stand out.
        crowd = max(0.3, min(1.0, (200 / len(self.data)) ** 0.5))
        for look, dash, rows, settings in self._combinations():
            others = rows[~rows["best"]]
            pruned = others["state"] == "pruned"
            for shown, is_open, opacity in ((others[~pruned], "", 0.4), (others[pruned], "-open", 0.65)):
                if len(shown):
                    marker = {"symbol": f"{look.symbol}{is_open}", "opacity": opacity * crowd}
                    look.points(
                        figure, shown, "x", "loss", hover, marker=marker, **settings | {"showlegend": False}
                    )
            best = rows[rows["best"]]
            spread = bars(best, "loss", "loss_low", "loss_high", thickness=1.2)
            spread["visible"] = bool((best["seeds"] > 1).any())
            if self.joined:
                look.line(
                    figure, best, "x", "loss", hover, size=9, line={"dash": dash}, error_y=spread, **settings
                )
            else:
                look.points(figure, best, "x", "loss", hover, marker={"size": 9}, error_y=spread, **settings)
        if len(self.lines) > 1:
            self._legend(figure)
        if self.law is not None:
            fitted, dashed = self.law["what"] == "fitted", {"width": 1.5, "dash": "4px 4px"}
            look = Look(f"{self.law['law'].iloc[0]}, with its 90% band", GREY)
            for at, (_, rows) in enumerate(self.law[~fitted].groupby("line")):
                look.band(figure, rows, "x")
                group: dict[str, Any] = {"legendgroup": look.name, "showlegend": at == 0}
                look.line(figure, rows, "x", "value", line=dashed, **group)
            if fitted.any():
                hollow, words = {"symbol": "circle-open"}, "%{x:.4s}: %{y:.4f} without the tuning excess"
                look = replace(look, name="losses that it is fitted to")
                look.points(figure, self.law[fitted], "x", "value", words, marker=hollow)
        law = [] if self.law is None else self.law["value"].tolist()
        y = self.y.around(self.data[["loss", "loss_low", "loss_high"]], *law)
        if self.view:
            y = self.y.over(min([self.view[0], *law]), max([self.view[1], *law]))
        named = self.data["line"].nunique() > 1 or bool(law)
        figure.update_layout(xaxis=self.x.around(self.data["x"]), yaxis=y, showlegend=named)

    def _encoded(self) -> tuple[dict[Any, Look], dict[Any, tuple[str, str]]]:
        """Encode the values of the first two columns: a look each, then a dash and symbol each."""
        first, second = (sorted(set(self.data[name]), key=_order) for name in self.lines[:2])
        marks = cycle(zip(DASHES, SYMBOLS, strict=False))
        return dict(zip(first, looks(first), strict=True)), dict(zip(second, marks, strict=False))

    def _combinations(self) -> Iterator[tuple[Look, str, DataFrame, dict[str, Any]]]:
        """Yield each line's look, dash, rows and settings of its traces."""
        if len(self.lines) < 2:
            for look, rows in by_look(self.data, "line"):
                yield look, "solid", rows, {"legendgroup": look.name}
            return
        first, second = self._encoded()
        for name, rows in self.data.groupby("line", sort=False):
            of = {each: str(rows[each].iloc[0]) for each in self.lines}
            color = first[rows[self.lines[0]].iloc[0]].color
            dash, symbol = second[rows[self.lines[1]].iloc[0]]
            settings = {"legendgroup": of[self.lines[0]], "showlegend": False, "meta": {"of_line": of}}
            if any(of[each] != value for each, value in self._shown().items()):
                settings["visible"] = False
            yield Look(str(name), color, symbol), dash, rows, settings

    def _shown(self) -> dict[str, str]:
        """Choose the first values of the selectors, for columns shown by neither color nor dash: the best trial's."""
        best = self.data[self.data["best"]].nsmallest(1, "loss").iloc[0]
        return {name: str(best[name]) for name in self.lines[2:]}

    def _legend(self, figure: Figure) -> None:
        """Explain each color, dash and symbol, and set the values of the selectors."""
        first, second = self._encoded()
        nothing = DataFrame({"x": [np.nan], "y": [np.nan]})
        for value, look in first.items():
            named = Look(f"{self.lines[0]} = {value}", look.color)
            named.line(figure, nothing, "x", "y", legendgroup=str(value))
        for value, (dash, symbol) in second.items():
            named = Look(f"{self.lines[1]} = {value}", GREY, symbol)
            named.line(figure, nothing, "x", "y", line={"dash": dash}, size=7)
        select = {
            name: {"values": [str(each) for each in sorted(set(self.data[name]), key=_order)], "shown": shown}
            for name, shown in self._shown().items()
        }
        figure.update_layout(meta={"select": select})


def _law_of_size(report: ReportData, x: str, metric: str) -> DataFrame | None:
    """The lines of the study's law over a size of the model: law, line, what, x, value, low, high; None without one.

    Rows that are `fitted` are the losses that the law is fitted to, where these are not as measured.
    """
    role = {report.params_column: "params"}.get(x, x)
    if role == "params" and metric == report.law_metric:
        with suppress(BadInput):
            law = (assessment := report.assessment(AUTO)).law
            if not {"tokens", "flops"} & {*law.columns}:
                lines = lines_of(report, assessment, role).items()
                drawn = concat([rows.assign(line=name) for name, (rows, _) in lines], ignore_index=True)
                drawn = drawn[drawn["what"] == "law"]
                if less_excess(assessment):
                    values = {"x": assessment.points.columns[role]}
                    values["value"] = at_lines(assessment, lines_by(assessment, role), role)
                    drawn = concat([drawn, DataFrame(values).assign(what="fitted", line="")])
                return drawn.assign(law=law.name)
    return None


class LossMap(Panel):
    """The lowest loss at each pair of two sizes. `data`: one column for each size, loss, and its cell and trial."""

    @classmethod
    def _over(cls, x: str, y: str, data: DataFrame, note: str, **more: Any) -> Panel:
        """Draw the map over two sizes, each axis with every value of its size."""
        axes = (Axis(size, title_of(size), marks=marks_of(data[size], most=None)) for size in (x, y))
        return cls(data=data, notes=(note,), x=next(axes), y=next(axes), **more)

    def _draw(self, figure: Figure) -> None:
        # Fields too small to hold their number get a color scale.
        crowded = len(self.data) > 80
        x, y = self.x.column, self.y.column
        table = self.data.pivot_table(index=y, columns=x, values="loss", aggfunc="min")
        hover = hovering(f"{y} %{{y}}<br>{x} %{{x}}<br>%{{z:.4f}}", table)
        places = {"x": [f"{x:g}" for x in table.columns], "y": [f"{y:g}" for y in table.index]}
        scale = {
            "colorscale": "Cividis",
            "colorbar": {"thickness": 12, "outlinewidth": 0},
            "showscale": crowded,
        }
        number = {"texttemplate": ("%{z:.3f}" if not crowded else ""), "textfont": {"size": 13}}
        gaps = {"hoverongaps": False, "xgap": 3, "ygap": 3}
        figure.add_heatmap(z=table.to_numpy(), **places, **scale, **number, **hover, **gaps)
        plain = {"type": "category", "showgrid": False, "zeroline": False}
        figure.update_layout(
            xaxis={"title": {"text": self.x.title}, **plain},
            yaxis={"title": {"text": self.y.title}, **plain},
            height=min(figure.layout.height, 110 + 64 * len(self.y.marks)),
        )


class HeatMapPanel(LossMap, name="heat_map", heading="Best loss of each cell"):
    """The best loss of each cell over two sizes of the grid. `data`: y, x, loss, cell, trial."""

    @classmethod
    def _of(cls, report: ReportData, x: _Size = "", y: _Size = "", metric: _Metric = AUTO) -> Panel:
        runs, metric = report.runs, report.loss_metric(metric)
        grid = [name for name in grid_of(runs, report.design) if finite(runs, name).nunique() > 1]
        others = iter([name for name in grid if name not in (x, y)])
        y = y or next(others, "")
        x = x or next(others, "")
        trials = trials_table(runs, metric)
        ended = trials[trials["state"].isin(VALUED) & trials["loss"].notna()]
        check_one_task(ended)
        if len(runs) and not (x and y):
            only = [*grid, "none"][0]
            raise BadInput(f"a heat map needs two sizes that vary in the grid; varying here: {only}")
        for name in (x, y):
            _check_comparable(name, runs, ended, metric)
        best = ended.loc[are_best(ended, [x, y]), [y, x, "loss", "cell", "trial"]].reset_index(drop=True)
        rest = ", ".join(name for name in grid if name not in (x, y))
        note = f"The {report.measure_title(metric)} of the best trial, over {rest}".removesuffix(", over ")
        return cls._over(x, y, best, f"{note}.")


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


def _notes(trials: DataFrame, shown: DataFrame) -> Iterator[str]:
    yield "Large marks: the best trial of each cell; small: the others that ended."
    if (shown["state"] == "pruned").any():
        yield "Hollow: pruned trials, at the best loss they reached."
    if (shown["seeds"] > 1).any():
        yield "A trial is the mean of its seeds; bars span their losses."
    left_out = states_in_words(trials.loc[~trials.index.isin(shown.index), "state"])
    if left_out:
        yield f"Not drawn: {left_out}."


def _view(shown: DataFrame) -> tuple[tuple[float, float] | None, list[str]]:
    """Find the range of losses that shows the best trials well, and a note on trials outside of it."""
    best = shown[shown["best"]]
    low, high = best["loss"].min(), best["loss"].max()
    top = high + max(1.5 * (high - low), 0.15 * abs(high))
    above = int((shown["loss"] > top).sum())
    if not above:
        return None, []
    low = min(shown["loss"].min(), best["loss_low"].min())
    note = f"Above the view: {several(above, 'trial')}; double-click to see all."
    return (low - 0.04 * (top - low), top), [note]


def _lines_over(
    x: str, asked: Sequence[str], grid: Sequence[str], shown: DataFrame
) -> tuple[list[str], bool]:
    """Choose the columns that distinguish lines, those asked for first, and whether one size alone changes along each.

    Over a size of the grid these are all other columns of the grid; over a fact such as n_params, all but the last
    column that changes it. So each line has one cell at each x, however many dimensions the grid has.
    """
    # Sizes first: readers look for them, and they get the colors.
    free = sorted(
        (name for name in grid if name != x and name not in asked),
        key=lambda name: name not in SHAPE,
    )
    if x in grid:
        return [*asked, *free], True
    if x not in FACTS or not grid:
        return [*asked], not grid

    def moves(along: str) -> bool:
        rest = [*asked, *(name for name in free if name != along)]
        if not rest:
            return bool(shown["x"].nunique() > 1)
        return bool((shown.groupby(rest, dropna=False)["x"].nunique() > 1).any())

    along = next(filter(moves, reversed(free)), None)
    return [*asked, *(name for name in free if name != along)], along is not None


def _order(value: Any) -> tuple[Any, ...]:
    """Make a sort key: numbers by value, everything else by its text."""
    return (0, value) if isinstance(value, int | float) else (1, str(value))


def _labels(table: DataFrame, names: Sequence[str]) -> Series:
    rows = table[list(names)].itertuples(index=False)
    labels = [", ".join(f"{name} = {value}" for name, value in zip(names, row, strict=True)) for row in rows]
    return Series(labels, index=table.index, dtype=object)


def _natural(column: Series) -> Series:
    """Make a column of labels sort by the numbers in them."""
    if is_numeric_dtype(column):
        return column
    keys = [tuple(map(float, re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", str(label)))) for label in column]
    ranks = {key: rank for rank, key in enumerate(sorted(set(keys)))}
    return Series([ranks[key] for key in keys], index=column.index)
