"""The runs themselves: their learning curves, all of them as a table, and what the best one writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pandas import DataFrame

from sweeplab.analysis.trials import TRIAL, finite, grid_of, searched_of, trials_table
from sweeplab.data.prompts import HOLE
from sweeplab.errors import BadInput
from sweeplab.formatting import rounded
from sweeplab.records.folders import StudyFolder
from sweeplab.report.data import CURVES, FACTS, LOSSES, PROGRESS, ReportData, states_in_words
from sweeplab.report.options import LOG, Option
from sweeplab.report.panels.base import Panel, TablePanel
from sweeplab.report.style import GREY, Axis, Figure, by_look, spaced
from sweeplab.runs.generating import read_samples

# With more points than these a curve is drawn by WebGL, which stays quick but prints as pixels.
MANY = 20_000
_RUN = [*TRIAL, "seed"]
_MOST_BASELINES = 4


@dataclass(frozen=True, kw_only=True)
class CurvesPanel(
    Panel,
    name="learning_curves",
    heading="Learning curves",
    options={"x": Option(tuple(PROGRESS)), "metric": Option(tuple(CURVES)), "log": LOG},
):
    """A metric while training. `data`: cell, trial, seed, x, value, best.

    `best` has the best trial of each cell, the mean of its seeds: cell, trial, n_params, x, value. `baselines` are
    the losses that n-grams reach.
    """

    best: DataFrame
    baselines: tuple[float, ...] = ()

    @classmethod
    def of(
        cls, report: ReportData, x: str = "train_tokens", metric: str = "val_loss", log: Sequence[str] = ()
    ) -> Panel:
        """Follow a metric of every run while it trains."""
        runs = report.runs
        kept = runs[~runs["state"].isin(("diverged", "failed"))]
        drawn = report.curves(metric).merge(kept[_RUN], on=_RUN)
        drawn = drawn.assign(x=finite(drawn, x), value=finite(drawn, "value")).dropna(subset=["x", "value"])
        for axis in log:
            drawn = drawn[drawn[{"x": "x", "y": "value"}[axis]] > 0]
        drawn = drawn.merge(trials_table(runs)[[*TRIAL, "best", "n_params"]], on=TRIAL)
        drawn = drawn.sort_values(["n_params", *_RUN, "x"], ignore_index=True)
        left_out = states_in_words(runs.loc[~runs.index.isin(kept.index), "state"])
        if drawn.empty:
            raise BadInput(f"no run has a {metric} yet" + (f" ({left_out})" if left_out else ""))
        by_x = drawn[drawn["best"]].groupby([*TRIAL, "n_params", "x"], sort=False)
        note = "Bold: the best trial of each cell, the mean of its seeds. Faint: every run, pruned ones too."
        return cls(
            data=drawn[[*_RUN, "x", "value", "best"]],
            notes=(note, *((f"Not drawn: {left_out}.",) if left_out else ())),
            x=Axis(x, PROGRESS[x], "x" in log),
            y=Axis(metric, CURVES[metric], "y" in log),
            best=by_x["value"].mean().reset_index(),
            baselines=_baselines(report) if metric == "val_loss" else (),
        )

    def draw(self, figure: Figure) -> None:
        """Draw every run faintly and the best trial of each cell in front."""
        add = figure.add_scattergl if len(self.data) > MANY else figure.add_scatter
        x, y = _joined(self.data)
        faint = {"color": GREY, "width": 1}
        add(x=x, y=y, mode="lines", name="every run", hoverinfo="skip", line=faint, opacity=0.45)
        mode = "lines+markers" if len(self.best) <= 40 * self.best["cell"].nunique() else "lines"
        for look, rows in by_look(self.best, "cell"):
            add(
                x=rows["x"],
                y=rows["value"],
                mode=mode,
                name=spaced(look.name),
                line={"color": look.color, "width": 2},
                marker={"color": look.color, "symbol": look.symbol, "size": 5},
                hovertemplate=f"{look.name}, trial {rows['trial'].iloc[0]}<br>%{{x:.4s}}: %{{y:.4f}}<extra></extra>",
            )
        for loss in self.baselines:
            said = {"text": f"n-grams {loss:.3f}", "font": {"size": 11}}
            line = {"color": GREY, "width": 1.5, "dash": "dash"}
            figure.add_hline(y=loss, line=line, annotation=said, annotation_position="top right")
        figure.update_yaxes(**self.y.around(self.data["value"], *self.baselines))
        figure.update_xaxes(**self.x.around(self.data["x"]))


class RunsPanel(TablePanel, name="table", heading="Runs"):
    """Every run with what varies among them, the best first."""

    @classmethod
    def of(cls, report: ReportData) -> Panel:
        """List the runs with what varies among them."""
        report.check_runs()
        runs, grid = report.runs, grid_of(report.runs, report.design)
        tuned = [name for name in searched_of(runs, report.design) if name not in grid]
        columns = [*(grid or ["cell"]), *grid, "trial", "seed", "state", *LOSSES, *tuned, *FACTS]
        known = list(dict.fromkeys(name for name in columns if name in runs))
        return cls(data=runs[known].sort_values("best_val_loss", ignore_index=True))


class SamplePanel(TablePanel, name="sample", heading="What the best run writes"):
    """A text to read: its parts in order, each with whether the model wrote it."""

    @classmethod
    def of(cls, report: ReportData) -> Panel:
        """Show the best run's text, the prompt and what was written marked as such."""
        study = report.study
        samples = read_samples(StudyFolder(report.lab, study)) if report.lab else []
        if not samples:
            raise BadInput("no run with a saved checkpoint has written a text")
        text: list[tuple[bool, str]] = []
        for said in samples:
            heading = [(False, f"{said['run']}\n\n")] if len(samples) > 1 else []
            text += [(False, "\n\n\n")] if text else []
            text += [*heading, *parts(said["prompt"], said["text"])]
        where = "prompted with the beginning of the validation split"
        return cls(
            data=DataFrame(samples),
            notes=tuple(
                f"Run {said['run']}, {where}: dark is what it wrote, with {_how(said)}." for said in samples
            ),
            text=tuple(text),
        )


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


def _how(said: Mapping[str, Any]) -> str:
    named = ("temperature", "top_k", "top_p", "seed")
    return ", ".join(f"{name} {rounded(said[name])}" for name in named if said[name] is not None)


def _baselines(report: ReportData) -> tuple[float, ...]:
    """Return the different losses of n-grams, lowest first; none where there are too many to distinguish."""
    found = sorted({round(each["loss"], 4) for each in report.baselines.values()})
    return tuple(found) if len(found) <= _MOST_BASELINES else ()


def _joined(data: DataFrame) -> tuple[list[float | None], list[float | None]]:
    """Return the runs' curves as one, with a gap after each."""
    x: list[float | None] = []
    y: list[float | None] = []
    for _, rows in data.groupby(["cell", "trial", "seed"], sort=False):
        x += [*rows["x"], None]
        y += [*rows["value"], None]
    return x, y
