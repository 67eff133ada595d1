"""Loss against sizes: over one size, and as a heat map over two."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pandas import DataFrame, Series
from pandas.api.types import is_numeric_dtype

from sweeplab.analysis.trials import TRIAL, VALUED, check_one_task, finite, grid_of, marks_of, trials_table
from sweeplab.errors import BadInput
from sweeplab.formatting import several, written
from sweeplab.hyperparameters import TABLE
from sweeplab.report.data import FACTS, LOSSES, ReportData, states_in_words, title_of
from sweeplab.report.options import LOG, Option
from sweeplab.report.panels.base import Panel
from sweeplab.report.style import Axis, Figure, bars, by_look

_SIZES = (*FACTS, *TABLE)
_METRIC = Option(tuple(LOSSES))


@dataclass(frozen=True, kw_only=True)
class LossPanel(
    Panel,
    name="loss",
    heading="Loss",
    options={
        "x": Option(_SIZES, needed=f"any hyperparameter, {', '.join(FACTS)}"),
        "lines": Option(tuple(TABLE), many=True),
        "metric": _METRIC,
        "log": LOG,
    },
):
    """Loss against a size. `data`: cell, trial, state, seeds, x, loss, loss_low, loss_high, line, best.

    `view` is the range of losses to show at first where far worse trials would press the others together.
    """

    lines: tuple[str, ...] = ()
    view: tuple[float, float] | None = None

    @classmethod
    def of(
        cls,
        report: ReportData,
        x: str,
        lines: Sequence[str] = (),
        metric: str = "best_val_loss",
        log: Sequence[str] = (),
    ) -> Panel:
        """Compare the trials' losses over one size."""
        runs = report.runs
        trials = trials_table(runs, metric)
        shown = trials[trials["state"].isin((*VALUED, "pruned")) & trials["loss"].notna()].copy()
        shown["x"] = finite(shown, x)
        for axis in log:
            shown = shown[shown[{"x": "x", "y": "loss_low"}[axis]] > 0]
        shown = shown[shown["x"].notna()]
        check_comparable(x, runs, shown, metric)
        lines = [name for name in lines or _lines(x, grid_of(runs, report.design)) if name in runs]
        shown["line"] = _labels(shown, lines)
        # In a study of one cell the sizes are searched: there the best trial of each size makes the line.
        by = ["cell"] if runs["cell"].nunique() > 1 else ["line", "x"]
        ended = shown[shown["state"].isin(VALUED)]
        shown["best"] = shown.index.isin(ended.groupby(by)["loss"].idxmin())
        view, outside = _view(shown)
        columns = [*TRIAL, "state", "seeds", "x", "loss", "loss_low", "loss_high", "line", "best"]
        return cls(
            title=f"Loss against {title_of(x)}",
            data=shown[columns].sort_values(["line", "x", "loss"], key=_natural, ignore_index=True),
            notes=(*_notes(trials, shown), *outside),
            x=Axis(x, title_of(x), "x" in log, marks_of(shown["x"]) if x in TABLE else ()),
            y=Axis(metric, LOSSES[metric], "y" in log),
            lines=tuple(lines),
            view=view,
        )

    def draw(self, figure: Figure) -> None:
        """Draw the trials, the best of each cell in front."""
        columns = ["cell", "trial", "state"]
        hover = (
            f"%{{customdata[0]}}<br>trial %{{customdata[1]}}, %{{customdata[2]}}<br>{self.x.column} %{{x}}"
        )
        hover += "<br>loss %{y:.4f}"
        # Many trials fade, so that the best ones stay in front of them.
        crowd = max(0.3, min(1.0, (200 / len(self.data)) ** 0.5))
        for look, rows in by_look(self.data, "line"):
            others = rows[~rows["best"]]
            pruned = others["state"] == "pruned"
            own: dict[str, Any] = {"legendgroup": look.name}
            for shown, symbol, opacity in (
                (others[~pruned], look.symbol, 0.4 * crowd),
                (others[pruned], f"{look.symbol}-open", 0.65 * crowd),
            ):
                if len(shown):
                    marker = {"symbol": symbol, "opacity": opacity}
                    look.points(
                        figure, shown, "x", "loss", hover, columns, marker=marker, showlegend=False, **own
                    )
            best = rows[rows["best"]]
            spread = bars(best, "loss", "loss_low", "loss_high", thickness=1.2)
            spread["visible"] = bool((best["seeds"] > 1).any())
            look.line(figure, best, "x", "loss", hover, columns, size=9, error_y=spread, **own)
        losses = self.data[["loss", "loss_low", "loss_high"]]
        figure.update_yaxes(**(self.y.over(*self.view) if self.view else self.y.around(losses)))
        figure.update_xaxes(**self.x.around(self.data["x"]))
        figure.update_layout(showlegend=self.data["line"].nunique() > 1)


class LossMap(Panel):
    """The lowest loss at each pair of two sizes. `data`: one column for each size, loss, and what it is of."""

    def draw(self, figure: Figure) -> None:
        """Draw the loss of each pair of sizes as a field."""
        # Fields too small for their number are read by a scale of colors.
        crowded = len(self.data) > 80
        x, y = self.x.column, self.y.column
        table = self.data.pivot_table(index=y, columns=x, values="loss", aggfunc="min")
        figure.add_heatmap(
            z=table.to_numpy(),
            x=[f"{x:g}" for x in table.columns],
            y=[f"{y:g}" for y in table.index],
            colorscale="Cividis",
            colorbar={"thickness": 12, "outlinewidth": 0},
            showscale=crowded,
            texttemplate="" if crowded else "%{z:.3f}",
            textfont={"size": 13},
            hovertemplate=f"{y} %{{y}}<br>{x} %{{x}}<br>%{{z:.4f}}<extra></extra>",
            hoverongaps=False,
            xgap=3,
            ygap=3,
        )
        for update, axis in ((figure.update_xaxes, self.x), (figure.update_yaxes, self.y)):
            update(type="category", title={"text": axis.title}, showgrid=False, zeroline=False)
        figure.update_layout(height=min(figure.layout.height, 110 + 64 * len(self.y.marks)))


class HeatMapPanel(
    LossMap,
    name="heat_map",
    heading="Best loss of each cell",
    options={"x": Option(tuple(TABLE)), "y": Option(tuple(TABLE)), "metric": _METRIC},
):
    """The best loss of each cell over two sizes of the grid. `data`: y, x, loss, cell, trial."""

    @classmethod
    def of(cls, report: ReportData, x: str = "", y: str = "", metric: str = "best_val_loss") -> Panel:
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
            raise BadInput(
                f"a heat map needs two sizes that vary in the grid; here {grid[0] if grid else 'none'} does"
            )
        for name in (x, y):
            check_comparable(name, runs, ended, metric)
        lowest = ended.groupby([x, y])["loss"].idxmin()
        best = ended.loc[sorted(lowest), [y, x, "loss", "cell", "trial"]].reset_index(drop=True)
        others = ", ".join(name for name in grid if name not in (x, y))
        return cls(
            data=best,
            notes=(f"The lowest {LOSSES[metric]}{f', over {others}' if others else ''}.",),
            x=map_axis(x, best),
            y=map_axis(y, best),
        )


def map_axis(size: str, data: DataFrame) -> Axis:
    """Return the axis of a heat map, with every value of its size."""
    return Axis(size, title_of(size), marks=marks_of(data[size], most=None))


def check_comparable(column: str, runs: DataFrame, shown: DataFrame, metric: str) -> None:
    """Make sure that there are losses to compare over a column.

    Raises:
        BadInput: there are none, or the column is missing, no number, or the same in every run.
    """
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


def _notes(trials: DataFrame, shown: DataFrame) -> list[str]:
    notes = ["Large: the best trial of each cell; small: the others that ended."]
    if (shown["state"] == "pruned").any():
        notes.append("Hollow: pruned trials, at the best loss they reached.")
    if (shown["seeds"] > 1).any():
        notes.append("A trial is the mean of its seeds; bars span them.")
    left_out = states_in_words(trials.loc[~trials.index.isin(shown.index), "state"])
    return [*notes, *([f"Not drawn: {left_out}."] if left_out else [])]


def _view(shown: DataFrame) -> tuple[tuple[float, float] | None, list[str]]:
    """Return the range of losses that shows the best trials well, and how many lie outside of it."""
    best = shown[shown["best"]]
    low, high = best["loss"].min(), best["loss"].max()
    top = high + max(1.5 * (high - low), 0.15 * abs(high))
    above = int((shown["loss"] > top).sum())
    if not above:
        return None, []
    low = min(shown["loss"].min(), best["loss_low"].min())
    said = f"Above the view: {several(above, 'trial')}; double-click to see all."
    return (low - 0.04 * (top - low), top), [said]


def _lines(x: str, grid: Sequence[str]) -> Sequence[str]:
    """Return the sizes that name the lines: the grid's others, or over a sum of sizes the first of them."""
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
    keys = [tuple(map(float, re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", str(label)))) for label in column]
    ranks = {key: rank for rank, key in enumerate(sorted(set(keys)))}
    return Series([ranks[key] for key in keys], index=column.index)
