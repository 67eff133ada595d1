"""Which hyperparameters matter: for the loss, and for whether a trial comes to its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pandas import DataFrame

from sweeplab.analysis.sweep.costs import ALPHA, FOUND, Region, regions
from sweeplab.analysis.sweep.importance import (
    CHANCE,
    EVALUATORS,
    FEWEST_TRIALS,
    LEVEL,
    OVER_ALL,
    WITHIN,
    WITHIN_CHANCE,
    Evaluator,
)
from sweeplab.analysis.sweep.trials import Sweep
from sweeplab.errors import BadInput
from sweeplab.formatting import listed, written
from sweeplab.report.data import ReportData
from sweeplab.report.options import Option
from sweeplab.report.panels.base import Panel, TablePanel
from sweeplab.report.style import FAINT, Axis, Figure, Look, bars, looks, name_rows

_METHOD = (
    ("Within cells", "All cells together; a trial counts by its rank in its cell, so sizes do not matter."),
    ("Over all", "Losses as they are, of trials that ended; sizes compete with what was tuned."),
    ("Spread", "Halves of the trials, drawn without repetition: the delete-half jackknife."),
    ("Chance", "The same with losses shuffled among the trials."),
)
_TEST = (
    "Fisher's exact test, one-sided, of the range (cut at deciles of the trials) or choice where they are most "
    f"frequent; p times the number of ranges looked at, reported below {ALPHA}."
)


@dataclass(frozen=True, kw_only=True)
class ImportancePanel(
    Panel,
    name="param_importances",
    heading="Importance of the hyperparameters",
    source="sweeps",
    options={"evaluator": Option(("ped-anova", "fanova"))},
):
    """Importances with their spread. `data`: study, scope, hyperparameter, importance, low, high, chance, verdict.

    `scopes` are those to be drawn in front, by (study, scope), with what they are called.
    """

    scopes: Mapping[tuple[str, str], str]

    @classmethod
    def of(cls, report: ReportData, evaluator: Evaluator = "ped-anova") -> Panel:
        """Rank the hyperparameters of each study by importance."""
        sweeps = report.sweeps
        found = [each for sweep in sweeps for each in report.importances(sweep, evaluator)]
        if not found:
            raise BadInput(
                f"importances need {FEWEST_TRIALS} trials that differ in what was searched, or more"
            )
        data = DataFrame([asdict(each) | {"verdict": each.verdict} for each in found])
        scopes = {key: name for sweep in sweeps for key, name in _scopes(sweep, len(sweeps) > 1).items()}
        known = data[["study", "scope"]].drop_duplicates()
        notes = [f"Bars: {LEVEL:.0%} interval. Ticks: what {1 - CHANCE:.0%} of shuffled losses exceed."]
        if len(scopes) < len(known):
            n_cells = (~known["scope"].isin((WITHIN, OVER_ALL))).sum()
            notes.append(f"Faint: {n_cells} cells with {FEWEST_TRIALS} trials or more.")
        for key, name in scopes.items():
            own = [each for each in found if (each.study, each.scope) == key]
            if chance := [each.hyperparameter for each in own if each.verdict == WITHIN_CHANCE]:
                notes.append(f"Not distinguishable from chance, {name}: {listed(chance)}.")
        return cls(
            data=data,
            notes=tuple(notes),
            method=(("Evaluator", EVALUATORS[evaluator]), *_METHOD),
            result={"evaluator": evaluator},
            x=Axis("importance", "share of the importance"),
            scopes=scopes,
        )

    def draw(self, figure: Figure) -> None:
        """Draw the importances of the scopes in front with their intervals, and those of single cells faintly."""
        data, scopes = self.data, len(self.scopes)
        keys = data.set_index(["study", "scope"]).index
        front = keys.isin(list(self.scopes))
        names = _by_importance(data[front])
        places = {name: at for at, name in enumerate(names)}
        if scopes < keys.nunique() and len({study for study, _ in self.scopes}) == 1:
            cells, look = data[~front & data["hyperparameter"].isin(names)], Look("one cell", FAINT)
            y, hover = cells["hyperparameter"].map(places), "%{customdata[0]}: %{x:.0%}"
            look.points(figure, cells, "importance", y, hover, ["scope"], marker={"size": 6})
        gap = 0.6 / scopes
        columns = ["hyperparameter", "verdict", "n_trials"]
        hover = "%{customdata[0]}: %{x:.0%}, %{customdata[1]}<br>%{customdata[2]} trials"
        for at, (key, look) in enumerate(zip(self.scopes, looks([*self.scopes.values()]), strict=True)):
            rows = data[keys.isin([key])]
            y_of = rows["hyperparameter"].map(places) * 1.0 + (at - (scopes - 1) / 2) * gap
            tick = {"symbol": "line-ns-open", "size": 13, "line": {"width": 1.5}}
            look.points(figure, rows, rows["chance"].clip(upper=1.0), y_of, marker=tick, showlegend=False)
            spread = bars(rows, "importance")
            look.points(figure, rows, "importance", y_of, hover, columns, marker={"size": 9}, error_x=spread)
        figure.update_xaxes(**self.x.over(-0.02, 1.02))
        name_rows(figure, names)
        figure.update_layout(height=110 + max(34, 20 * scopes) * len(names), showlegend=scopes > 1)


class RegionsPanel(TablePanel, name="regions", heading="Where trials diverged or failed", source="sweeps"):
    """The ranges in which trials diverged or failed more often than elsewhere."""

    @classmethod
    def of(cls, report: ReportData) -> Panel:
        """List the ranges, one per hyperparameter and state."""
        sweeps = report.sweeps
        found = [each for sweep in sweeps for each in regions(sweep)]
        if not found:
            ended = sum(len(sweep.ended) for sweep in sweeps)
            raise BadInput("no trial diverged or failed" + ("" if ended else " yet"))
        n_found = sum(each.verdict == FOUND for each in found)
        return cls(
            data=DataFrame([asdict(each) | {"verdict": each.verdict} for each in found]),
            shown=DataFrame([_region(each, len(sweeps) > 1) for each in found]),
            notes=(f"{n_found or 'None'} of {len(found)} hyperparameters predict where.",),
            method=(("Test", _TEST),),
        )


def _by_importance(data: DataFrame) -> list[str]:
    """Return the hyperparameters, those first that matter most in the first scope that has them."""
    first = data.assign(order=data.groupby("scope", sort=False).ngroup()).drop_duplicates("hyperparameter")
    return list(first.sort_values(["order", "importance"], ascending=[True, False])["hyperparameter"])


def _scopes(sweep: Sweep, with_others: bool) -> dict[tuple[str, str], str]:
    """Return the scopes of a study that are drawn in front: of several studies only that inside of cells."""
    own = sweep.cells[0] if len(sweep.cells) == 1 else WITHIN
    if with_others:
        return {(sweep.name, own): sweep.name}
    return {(sweep.name, own): own} | ({(sweep.name, OVER_ALL): OVER_ALL} if own == WITHIN else {})


def _region(found: Region, with_study: bool) -> dict[str, Any]:
    return {
        **({"study": found.study} if with_study else {}),
        "state": found.state,
        "hyperparameter": found.hyperparameter,
        "range": found.range,
        "in it": f"{found.inside} of {found.n_inside}",
        "elsewhere": f"{found.outside} of {found.n_outside}",
        "p": written(found.p),
        "verdict": found.verdict,
    }
