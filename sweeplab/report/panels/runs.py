"""The runs of a study: learning curves, a table of runs, a sample of the best one, and losses over sizes."""

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
from sweeplab.laws.points import DEPTH_AND_WIDTH
from sweeplab.records.folders import StudyFolder
from sweeplab.report import style
from sweeplab.report.data import CURVES, FACTS, LOSSES, PROGRESS, ReportData, states_in_words, title_of
from sweeplab.report.options import Log, PanelOption, Params
from sweeplab.report.panels.base import Panel, TablePanel
from sweeplab.report.panels.law import lines_of
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
_Curve = Annotated[str, PanelOption(tuple(CURVES))]
_Any = Annotated[str, PanelOption((*FACTS, *TABLE), needed=f"any hyperparameter, {', '.join(FACTS)}")]
_Size = Annotated[str, PanelOption(tuple(TABLE))]
_Metric = Annotated[str, PanelOption(tuple(LOSSES))]


class CurvesPanel(Panel, name="learning_curves"):
    """A metric over training. `data`: cell, trial, seed, x, value, best.

    `best` has the best trial of each cell, the mean of its seeds: cell, trial, n_params, x, value. `baselines` are
    the losses of n-grams, `view` is the range of losses shown at first: the start of the runs is far above it.
    """

    best: DataFrame
    baselines: tuple[float, ...] = ()
    view: tuple[float, float] | None = None

    @classmethod
    def of(
        cls, report: ReportData, x: _Progress = "train_tokens", metric: _Curve = "val_loss", log: Log = ()
    ) -> Panel:
        """Plot a metric of every run over its training."""
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
            raise BadInput(f"no run has a {metric} yet" + (f" ({left_out})" if left_out else ""))
        by_x = drawn[drawn["best"]].groupby([*TRIAL, "n_params", "x"], sort=False)
        note = "Bold: the best trial; colored: the best of each cell, mean of its seeds; faint: every run, pruned too."
        view = _after_the_start(drawn) if metric.endswith("loss") and "y" not in log else None
        above = ("The start of the runs is above the view; double-click to see all.",) if view else ()
        return cls(
            data=drawn[[*_RUN, "x", "value", "best"]],
            notes=(note, *above, *((f"Not drawn: {left_out}.",) if left_out else ())),
            view=view,
            x=Axis(x, PROGRESS[x], "x" in log),
            y=Axis(metric, report.measure_title(metric), "y" in log),
            best=by_x["value"].mean().reset_index(),
            baselines=_baselines(report) if metric == "val_loss" else (),
        )

    def _draw(self, figure: Figure) -> None:
        kind = "scattergl" if len(self.data) > MANY else "scatter"
        ends = self.data.drop_duplicates(_RUN, keep="last").assign(x=np.nan, value=np.nan)
        joined = concat([self.data, ends]).sort_index(kind="stable")  # with a gap after each run
        every, faint = Look("every run", GREY), {"width": 1}
        # Of many cells the legend names only the best.
        many = self.best["cell"].nunique() > style.MOST_LINES
        ends_of = self.best.groupby("cell", sort=False)["value"].min()
        # There is none if the study was stopped at once.
        winner = ends_of.idxmin() if len(ends_of) else None
        of_run = (
            "%{cell}, trial %{trial}, seed %{seed}<br>%{x:.4s}: %{y:.4f}" if len(self.data) <= MANY else ""
        )
        every.line(figure, joined, "x", "value", of_run, type=kind, line=faint, opacity=0.35)
        size = 5 if len(self.best) <= 40 * self.best["cell"].nunique() else 0
        for look, rows in by_look(self.best, "cell"):
            hover, named = f"{look.name}, trial %{{trial}}<br>%{{x:.4s}}: %{{y:.4f}}", spaced(look.name)
            is_best = look.name == winner
            line = {"width": 3.5 if is_best else 1 if many else 1.5}
            own = {"opacity": 0.4, "showlegend": False} if many and not is_best else {}
            looked = replace(look, name=f"{named} (best)" if is_best else named)
            looked.line(figure, rows, "x", "value", hover, size=size, type=kind, line=line, **own)
        # The run under the cursor is drawn here again, over all others.
        front = {"width": 3, "color": style.FRONT}
        Look("", GREY).line(
            figure,
            DataFrame({"x": [], "y": []}),
            "x",
            "y",
            line=front,
            showlegend=False,
            meta={"front": True},
        )
        for loss in self.baselines:
            figure.add_hline(y=loss, **marked(f"n-grams {loss:.3f}"))
        y = self.y.over(*self.view) if self.view else self.y.around(self.data["value"], *self.baselines)
        # A run begins at 0: a single evaluation is drawn where it lies after that.
        begin = () if self.x.log else (0.0, 1.0)
        figure.update_layout(xaxis=self.x.around(self.data["x"], *begin), yaxis=y)


def _after_the_start(drawn: DataFrame) -> tuple[float, float] | None:
    """Return the range of losses without each run's first and a few of the worst; None if that is the whole range."""
    later = drawn[drawn["x"] > drawn.groupby(_RUN)["x"].transform("min")]
    if later.empty:
        return None
    top = max(float(later.loc[later["best"], "value"].max()), float(later["value"].quantile(0.95)))
    low, top = padded(float(drawn["value"].min()), top, False)
    return (low, top) if drawn["value"].max() > top else None


class RunsPanel(TablePanel, name="table", heading="Runs"):
    """Every run with the columns that vary among runs, the best first."""

    @classmethod
    def of(cls, report: ReportData) -> Panel:
        """List the runs with the columns that vary among them."""
        report.check_runs()
        runs, grid = report.runs, grid_of(report.runs, report.design)
        tuned = [name for name in searched_of(runs, report.design) if name not in grid]
        columns = [*(grid or ["cell"]), *grid, "trial", "seed", "state", *LOSSES, *tuned, *FACTS]
        known = list(dict.fromkeys(name for name in columns if name in runs))
        return cls(data=runs[known].sort_values("best_val_loss", ignore_index=True))


class SamplePanel(TablePanel, name="sample", heading="What the best run writes"):
    """A generated text: its parts in order, each with a flag that is true where the model wrote it."""

    @classmethod
    def of(cls, report: ReportData) -> Panel:
        """Show the best run's text, with prompt and generated parts told apart."""
        study = report.study
        samples = read_samples(StudyFolder(report.lab, study)) if report.lab else []
        if not samples:
            raise BadInput("no run with a saved checkpoint has generated a text")
        text: list[tuple[bool, str]] = []
        notes: list[str] = []
        where = "prompted with the beginning of the validation split"
        for said in samples:
            asked = {name: said[name] for name in ("temperature", "top_k", "top_p", "seed")}
            how = ", ".join(f"{name} {rounded(each)}" for name, each in asked.items() if each is not None)
            notes.append(f"Run {said['run']}, {where}: generated text is dark, with {how}.")
            text += [(False, "\n\n\n")] if text else []
            text += [(False, f"{said['run']}\n\n")] if len(samples) > 1 else []
            text += parts(said["prompt"], said["text"])
        return cls(data=DataFrame(samples), notes=tuple(notes), text=tuple(text))


def parts(prompt: str, text: str) -> tuple[tuple[bool, str], ...]:
    """Return a text in parts, each with whether it was written and not given.

    A text that is no continuation of the prompt stands behind it.
    """
    found: list[tuple[bool, str]] = []
    at = 0
    for index, piece in enumerate(prompt.split(HOLE)):
        place = text.find(piece, at)
        if place < 0 or (index == 0 and place > 0):
            return (False, f"{prompt}\n"), (True, text)
        found += [(True, text[at:place]), (False, piece)]
        at = place + len(piece)
    return tuple(each for each in (*found, (True, text[at:])) if each[1])


def _positive(data: DataFrame, log: Sequence[str], y: str) -> DataFrame:
    """Return the rows that logarithmic axes can show."""
    return data[(data[[{"x": "x", "y": y}[axis] for axis in log]] > 0).all(axis=1)]


def _baselines(report: ReportData) -> tuple[float, ...]:
    """Return the different losses of n-grams, lowest first; none if there are too many to distinguish."""
    # Rounded as in their labels, so that no label is drawn twice.
    found = sorted({round(each["loss"], 3) for each in report.baselines.values()})
    return tuple(found) if len(found) <= _MOST_BASELINES else ()


class LossPanel(Panel, name="loss"):
    """Loss against a size. `data`: cell, trial, state, seeds, x, loss, loss_low, loss_high, line, best.

    `view` is the range of losses shown at first if far worse trials would squeeze the others. `lines` are the columns
    whose combinations are drawn as lines: the first column sets the color, the second the dash, a third has a selector.
    `joined` says that one size alone changes along each line. `law` is the line of the law of N alone, if that is the
    study's law: x, value, low, high.
    """

    lines: tuple[str, ...] = ()
    joined: bool = True
    law: DataFrame | None = None
    view: tuple[float, float] | None = None

    @classmethod
    def of(
        cls, report: ReportData, x: _Any, lines: Params = (), metric: _Metric = "best_val_loss", log: Log = ()
    ) -> Panel:
        """Compare the trials' losses over one column, such as a size."""
        runs = report.runs
        trials = trials_table(runs, metric)
        shown = trials[trials["state"].isin((*VALUED, "pruned")) & trials["loss"].notna()].copy()
        shown["x"] = finite(shown, x)
        shown = _positive(shown, log, "loss_low").dropna(subset=["x"])
        _check_comparable(x, runs, shown, metric)
        grid = [name for name in grid_of(runs, report.design) if name in runs]
        lines, joined = _lines_over(x, [name for name in lines if name in runs], grid, shown)
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
            law=_law_of_size(report)
            if x == "n_params" and metric == f"{report.objective}_val_loss"
            else None,
        )

    def _draw(self, figure: Figure) -> None:
        hover = f"%{{cell}}<br>trial %{{trial}}, %{{state}}<br>{self.x.column} %{{x}}<br>loss %{{y:.4f}}"
        # Many trials are drawn faintly, so that the best ones stand out.
        crowd = max(0.3, min(1.0, (200 / len(self.data)) ** 0.5))
        for look, dash, rows, own in self._combinations():
            others = rows[~rows["best"]]
            pruned = others["state"] == "pruned"
            for shown, is_open, opacity in ((others[~pruned], "", 0.4), (others[pruned], "-open", 0.65)):
                if len(shown):
                    marker = {"symbol": f"{look.symbol}{is_open}", "opacity": opacity * crowd}
                    look.points(
                        figure, shown, "x", "loss", hover, marker=marker, **own | {"showlegend": False}
                    )
            best = rows[rows["best"]]
            spread = bars(best, "loss", "loss_low", "loss_high", thickness=1.2)
            spread["visible"] = bool((best["seeds"] > 1).any())
            if self.joined:
                look.line(
                    figure, best, "x", "loss", hover, size=9, line={"dash": dash}, error_y=spread, **own
                )
            else:
                look.points(figure, best, "x", "loss", hover, marker={"size": 9}, error_y=spread, **own)
        if len(self.lines) > 1:
            self._legend(figure)
        if self.law is not None:
            look = Look("power-n, with its 90% band", GREY)
            look.band(figure, self.law, "x")
            look.line(
                figure, self.law, "x", "value", line={"width": 1.5, "dash": "4px 4px"}, legendgroup=look.name
            )
        losses = self.data[["loss", "loss_low", "loss_high"]]
        y = self.y.over(*self.view) if self.view else self.y.around(losses)
        named = self.data["line"].nunique() > 1 or self.law is not None
        figure.update_layout(xaxis=self.x.around(self.data["x"]), yaxis=y, showlegend=named)

    def _encoded(self) -> list[dict[str, Any]]:
        """Return the encoding of the values of the first two columns: a look each, then a dash and symbol each."""
        values = [sorted(set(self.data[name]), key=_order) for name in self.lines[:2]]
        first = dict(zip(values[0], looks(values[0]), strict=True)) if values else {}
        second = (
            dict(zip(values[1], cycle(zip(DASHES, SYMBOLS, strict=False)), strict=False))
            if values[1:]
            else {}
        )
        return [first, second]

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
            own = {"legendgroup": of[self.lines[0]], "showlegend": False, "meta": {"of_line": of}}
            if any(of[each] != value for each, value in self._shown().items()):
                own["visible"] = False
            yield Look(str(name), color, symbol), dash, rows, own

    def _shown(self) -> dict[str, str]:
        """Return the first values of the selectors, for columns shown by neither color nor dash: the best trial's."""
        ended = self.data[self.data["best"]]
        best = ended.nsmallest(1, "loss").iloc[0]
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


def _law_of_size(report: ReportData) -> DataFrame | None:
    """Return the line of the law of N alone over the study's sizes; None if its points allow no such law."""
    with suppress(BadInput):
        found = report.assessment(AUTO)
        if found.fit.law.columns == ("params",):
            ((line, _),) = lines_of(report, found, "params").values()
            return line[line["what"] == "law"]
    return None


class LossMap(Panel):
    """The lowest loss at each pair of two sizes. `data`: one column for each size, loss, and its cell and trial."""

    @classmethod
    def _over(cls, x: str, y: str, data: DataFrame, note: str, **more: Any) -> Panel:
        """Return the map over two sizes, each axis with every value of its size."""
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
        number = {"texttemplate": "" if crowded else "%{z:.3f}", "textfont": {"size": 13}}
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
    def of(cls, report: ReportData, x: _Size = "", y: _Size = "", metric: _Metric = "best_val_loss") -> Panel:
        """Give the lowest loss at each pair of two sizes."""
        runs = report.runs
        grid = [name for name in grid_of(runs, report.design) if finite(runs, name).nunique() > 1]
        free = [name for name in grid if name not in (x, y)]
        y = y or (free.pop(0) if free else "")
        x = x or (free.pop(0) if free else "")
        trials = trials_table(runs, metric)
        ended = trials[trials["state"].isin(VALUED) & trials["loss"].notna()]
        check_one_task(ended)
        if len(runs) and not (x and y):
            only = grid[0] if grid else "none"
            raise BadInput(f"a heat map needs two sizes that vary in the grid; varying here: {only}")
        for name in (x, y):
            _check_comparable(name, runs, ended, metric)
        best = ended.loc[are_best(ended, [x, y]), [y, x, "loss", "cell", "trial"]].reset_index(drop=True)
        others = ", ".join(name for name in grid if name not in (x, y))
        note = f"The {report.measure_title(metric)} of the best trial{f', over {others}' if others else ''}."
        return cls._over(x, y, best, note)


def _check_comparable(column: str, runs: DataFrame, shown: DataFrame, metric: str) -> None:
    """Raise BadInput unless there are losses to compare over a column of numbers that differ between runs."""
    if runs.empty:
        raise BadInput("the study has no runs yet")
    if column not in runs:
        raise BadInput(f"the runs have no {column}")
    values = finite(runs, column)
    if values.isna().all() and runs[column].notna().any():
        raise BadInput(f"{column} is not a number")
    if not shown["state"].isin(VALUED).any():
        raise BadInput(f"no trial has ended with a {metric} yet ({states_in_words(runs['state'])})")
    if values.nunique() == 1:
        raise BadInput(f"{column} is {written(values.iloc[0])} in every run")


def _notes(trials: DataFrame, shown: DataFrame) -> Iterator[str]:
    yield "Large marks: the best trial of each cell; small: the others that ended."
    if (shown["state"] == "pruned").any():
        yield "Hollow: pruned trials, at the best loss they reached."
    if (shown["seeds"] > 1).any():
        yield "A trial is the mean of its seeds; bars span their losses."
    if left_out := states_in_words(trials.loc[~trials.index.isin(shown.index), "state"]):
        yield f"Not drawn: {left_out}."


def _view(shown: DataFrame) -> tuple[tuple[float, float] | None, list[str]]:
    """Return the range of losses that shows the best trials well, and a note on trials outside of it."""
    best = shown[shown["best"]]
    low, high = best["loss"].min(), best["loss"].max()
    top = high + max(1.5 * (high - low), 0.15 * abs(high))
    above = int((shown["loss"] > top).sum())
    if not above:
        return None, []
    low = min(shown["loss"].min(), best["loss_low"].min())
    said = f"Above the view: {several(above, 'trial')}; double-click to see all."
    return (low - 0.04 * (top - low), top), [said]


def _lines_over(
    x: str, asked: Sequence[str], grid: Sequence[str], shown: DataFrame
) -> tuple[list[str], bool]:
    """Return the columns that distinguish lines, those asked for first, and whether one size alone changes along each.

    Over a size of the grid these are all other columns of the grid; over a fact such as n_params, all but the last
    column that changes it. So each line has one cell at each x, however many dimensions the grid has.
    """
    # Sizes first: readers look for them, and they get the colors.
    free = sorted(
        (name for name in grid if name != x and name not in asked),
        key=lambda name: name not in DEPTH_AND_WIDTH,
    )
    if x in grid:
        return [*asked, *free], True
    if x not in FACTS or not grid:
        return [*asked], not grid

    def moves(along: str) -> bool:
        rest = [*asked, *(name for name in free if name != along)]
        groups = shown.groupby(rest, dropna=False)["x"].nunique() if rest else Series([shown["x"].nunique()])
        return bool((groups > 1).any())

    along = next(filter(moves, reversed(free)), None)
    return [*asked, *(name for name in free if name != along)], along is not None


def _order(value: Any) -> tuple[Any, ...]:
    """Return a sort key: numbers by value, everything else by its text."""
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
