"""Significant differences between studies and between the cells of one study, and the cells that were confirmed."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from pandas import DataFrame

from sweeplab.analysis import differences as losses
from sweeplab.analysis.differences import ALL_CELLS, CellConfirmed, CellRanking, LossDifference
from sweeplab.analysis.sweep import Sweep
from sweeplab.analysis.trials import are_best
from sweeplab.errors import BadInput
from sweeplab.formatting import sentence, several, several_named, short
from sweeplab.laws.comparing import DIFFERENT, FALSE_ALARM, UNKNOWN
from sweeplab.laws.core import LEVEL
from sweeplab.records.runs import MEASURED_ON
from sweeplab.report.data import ReportData, states_in_words
from sweeplab.report.panels.base import Panel, TablePanel
from sweeplab.report.style import BAD, GREY, MIDDLE, Axis, Figure, Look, bars, name_rows, spaced

_MOST_NAMED = 6
_DIFFERENCES = {
    "All shared cells": "The mean difference of the cells' best losses, with a Student t interval over the cells.",
    "One cell": "The best trials of one cell in two studies, compared like the cells of one study.",
    "Level": "All pairs of studies share one false-alarm rate (Bonferroni).",
}
_CHOICES = {
    "Cells": f"Each cell by its best trial: the mean loss of its seeds, {MEASURED_ON['val_loss']}.",
    "Differences": "Studies whose cells do not differ are simulated and analyzed like this one, with the choice of the "
    "best of several trials. A difference is significant if its ratio to its standard error is larger than the largest "
    f"such ratio of a simulated study in all but {FALSE_ALARM:.0%} of the simulations.",
    "Intervals": "In 19 of 20 studies all intervals of a task cover the true differences at once.",
}
_CONFIRMED = {
    "Confirmed": "The best trials of each cell are trained with fresh seeds: two each, then more while their order is "
    "undecided. The winner is trained again with other seeds and evaluated once on the test split, unused before.",
    "Intervals": f"Student's t at {LEVEL:.0%} of the mean over these seeds, whose losses did not choose the winner.",
    "Search": f"The loss of the search's own trial {MEASURED_ON['whole_val_loss']}. Optimism is the test loss minus "
    "the search's; selection bias is the part of it that fresh seeds show on the same split.",
}


class StudiesPanel(TablePanel, name="studies", source="studies"):
    """The cost of each study, and its best trial."""

    @classmethod
    def _of(cls, report: ReportData) -> Panel:
        rows = [_study(sweep) for sweep in report.sweeps]
        return cls(data=DataFrame(rows).dropna(axis=1, how="all"))


def _study(sweep: Sweep) -> dict[str, Any]:
    trials = sweep.trials
    best = trials[are_best(trials.assign(study=sweep.name), ["study"])]
    return {
        "study": sweep.name,
        "cells": len(sweep.cells),
        "trials": f"{len(trials)}\n{states_in_words(trials['state'])}",
        "seeds": int(trials["seeds"].max()),
        "loss of the best trial": next(iter(best["loss"]), None),
        "in cell": next(iter(best["cell"]), ""),
        "FLOPs": short(float(trials["train_flops"].sum())),
    }


class IntervalsPanel(Panel):
    """Differences with their intervals.

    `data`: a, b, cell, loss_a, loss_b, difference, low, high, n, verdict, why, and the name of its line.
    """

    @property
    def is_drawn(self) -> bool:
        """Return whether something is compared; else the table says that nothing is."""
        return "line" in self.data and bool(self.data["difference"].notna().any())

    def _draw(self, figure: Figure) -> None:
        data = self.data[self.data["difference"].notna()].reset_index(drop=True)
        hover = "%{a}: %{loss_a:.4f}<br>%{b}: %{loss_b:.4f}<br>%{x:+.4f}"
        for verdict, rows in data.groupby("verdict", sort=False):
            look = Look(str(verdict), GREY)
            if verdict == DIFFERENT:
                look = Look(str(verdict), BAD)
            ends = rows.assign(
                **{end: rows[end].fillna(rows["difference"]) for end in ("low", "high")}
            )
            look.points(
                figure, rows, "difference", rows.index, hover, error_x=bars(ends, "difference")
            )
        figure.add_vline(x=0, line={"color": GREY, "width": 1.5})
        name_rows(figure, data["line"].tolist())
        x = self.x.around(data[["low", "high", "difference"]], 0.0)
        figure.update_layout(xaxis=x, height=max(150, 110 + 26 * len(data)), showlegend=True)


class DifferencesPanel(IntervalsPanel, name="differences", source="studies"):
    """Differences between the best losses of studies, over all shared cells and in each cell."""

    @classmethod
    def _of(cls, report: ReportData) -> Panel:
        differences = losses.differences(report.sweeps, report.objective)
        rows = [_row(each) | {"line": spaced(each.cell)} for each in differences]
        # Over all cells of the pair.
        first = {(each.a, each.b): each for each in reversed(differences)}
        if len(first) > 1:
            for row in rows:
                row["line"] = f"{row['b']} against {row['a']}: {row['line']}"
        return cls(
            data=DataFrame(rows),
            notes=tuple(_in_words(each, report.loss_unit) for each in reversed(first.values())),
            method=_DIFFERENCES,
            result={"differences": rows},
            x=Axis("difference", f"difference ({report.loss_unit})"),
        )


def _row(difference: LossDifference) -> dict[str, Any]:
    row = asdict(difference) | {
        "difference": difference.difference,
        "verdict": difference.verdict,
    }
    row["why"] = row.pop("evidence")["why"]
    return row


def _in_words(difference: LossDifference, unit: str) -> str:
    pair = f"{difference.b} against {difference.a}"
    if difference.verdict == UNKNOWN:
        return f"{pair}: {difference.evidence.in_words()}."
    over = f"in {difference.cell}"
    if difference.cell == ALL_CELLS:
        over = f"over {several(difference.n, 'shared cell')}"
    interval = (
        f"{difference.difference:+.4f} {unit} ({difference.low:+.4f} to {difference.high:+.4f})"
    )
    return f"{pair}: {difference.verdict}, {interval} {over}; {difference.evidence.basis}."


class ChoicesPanel(
    IntervalsPanel, name="choices", heading="Cells ranked by loss", source="sweeps"
):
    """The cells of a study in order of their losses, and the significant differences from the base or the best."""

    @classmethod
    def _of(cls, report: ReportData) -> Panel:
        at = report.objective
        ranked = [(sweep.name, losses.rank_cells(sweep, at)) for sweep in report.sweeps]
        rankings = [(study, ranking) for study, ranking in ranked if ranking]
        if sum(len(each.cells) for _, each in rankings) < 2:
            raise BadInput("a ranking needs two cells or more with a trial that ended")
        rows, lines, notes = [], [], []
        for study, ranking in rankings:
            rows += [{"study": study} | row for row in _choices(ranking, report)]
            notes += _ranked(ranking)
            for cell, difference in ranking.differences.items():
                lines.append({"study": study} | _row(difference) | {"line": spaced(cell)})
        shown = DataFrame(rows).dropna(axis=1, how="all")
        if shown["study"].nunique() == 1:
            shown = shown.drop(columns="study")
        return cls(
            data=DataFrame(lines or rows),
            shown=shown.assign(cell=shown["cell"].map(spaced)),
            notes=tuple(notes),
            method=_CHOICES,
            result={"choices": rows},
            x=Axis(
                "difference", f"loss above that of the cell compared with ({report.loss_unit})"
            ),
        )


def _choices(ranking: CellRanking, report: ReportData) -> list[dict[str, Any]]:
    rows = []
    for rank, cell in enumerate(ranking.cells, start=1):
        difference = ranking.differences.get(cell.cell)
        rows.append(
            {
                "rank": rank,
                "cell": cell.cell,
                "loss": cell.loss,
                "against": ranking.reference,
                "verdict": difference.verdict if difference else "",
                "seeds": cell.n_seeds,
                "seed spread": cell.sd,
                "parameters": float(cell.values.get("n_params") or math.nan),
                "bits per byte": cell.bits_per_byte,
                "n-grams": float(report.baselines.get(cell.cell, {}).get("loss", math.nan)),
            }
        )
    return rows


def _ranked(ranking: CellRanking) -> list[str]:
    """Say which cell is best, and which differ from the one compared with."""
    best = spaced(ranking.cells[0].cell)
    if len(ranking.cells) == 1:
        return [f"{best} is the only cell."]
    evidence = ranking.evidence.in_words()
    if ranking.evidence.verdict == UNKNOWN:
        return [f"{best} has the lowest loss; whether by more than chance is {evidence}."]
    differ = [
        spaced(cell) for cell, each in ranking.differences.items() if each.verdict == DIFFERENT
    ]
    names = several_named(differ, _MOST_NAMED) or "no cell"
    text = f"{best} has the lowest loss; from {spaced(ranking.reference)} differ significantly: {names}."
    return [text, sentence(evidence)]


class ConfirmedPanel(
    Panel, name="confirmed", heading="Confirmed on fresh seeds", source="sweeps"
):
    """Each cell's winner by its test loss, beside the loss that the search found."""

    @classmethod
    def _of(cls, report: ReportData) -> Panel:
        confirmed = report.confirmed
        if not confirmed:
            raise BadInput(
                "nothing is confirmed: `sweeplab confirm NAME` trains the best with fresh seeds"
            )
        notes = []
        verdicts = [cell.evidence for _, cell in confirmed if cell.evidence]
        if verdicts:
            n = sum(evidence.verdict == DIFFERENT for evidence in verdicts)
            others = several(len(verdicts), "other cell")
            notes = [
                sentence(
                    f"{verdicts[0].basis}: different from the search's best cell: {n} of {others}"
                )
            ]
        return cls(
            data=DataFrame([_confirmed(study, cell) for study, cell in confirmed]),
            notes=tuple(notes),
            method=_CONFIRMED,
            result={"cells": [{"study": study, **cell.as_dict()} for study, cell in confirmed]},
            x=Axis("test", f"loss ({report.loss_unit})"),
        )

    @property
    def is_drawn(self) -> bool:
        """Return whether some winner has a loss; else the table shows that all diverged on a fresh seed."""
        return bool(self.data["test"].notna().any())

    def _draw(self, figure: Figure) -> None:
        data = self.data[self.data["test"].notna()].reset_index(drop=True)
        hover = "%{cell}, trial %{trial}<br>test %{test:.4f}<br>search %{searched:.4f}"
        ends = data.assign(**{end: data[end].fillna(data["test"]) for end in ("low", "high")})
        test = Look(f"fresh seeds, {MEASURED_ON['test_loss']}", MIDDLE)
        test.points(figure, data, "test", data.index, hover, error_x=bars(ends, "test"))
        search = Look(f"search, {MEASURED_ON['whole_val_loss']}", GREY, "circle-open")
        search.points(figure, data, "searched", data.index, hover)
        name_rows(figure, [spaced(cell) for cell in data["cell"]])
        x = self.x.around(data[["low", "high", "test", "searched"]])
        figure.update_layout(xaxis=x, height=max(150, 110 + 26 * len(data)), showlegend=True)


def _confirmed(study: str, cell: CellConfirmed) -> dict[str, Any]:
    row = {"study": study, "cell": cell.cell, "trial": cell.trial, "raced": cell.n_raced}
    row |= {
        "searched": cell.searched,
        "validation": cell.validation,
        "test": None,
        "low": None,
        "high": None,
    }
    if cell.test:
        row |= asdict(cell.test)
        row["test"] = row.pop("value")
    row |= {"optimism": cell.optimism, "selection_bias": cell.selection_bias, "verdict": ""}
    if cell.evidence:
        row["verdict"] = cell.evidence.verdict
    return row
