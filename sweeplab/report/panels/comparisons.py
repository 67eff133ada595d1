"""Significant differences between studies and between the cells of one study, and the cells that were confirmed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pandas import DataFrame

from sweeplab.analysis import differences as losses
from sweeplab.analysis.differences import ALL_CELLS, CellConfirmed, CellRanking, LossDifference
from sweeplab.analysis.sweep import Sweep, saved
from sweeplab.errors import BadInput
from sweeplab.formatting import listed, measured, sentence, several, several_named, short
from sweeplab.laws.comparing import FALSE_ALARM, PRIOR
from sweeplab.laws.evidence import DIFFERENT, UNKNOWN
from sweeplab.laws.intervals import LEVEL
from sweeplab.records.runs import MEASURED_ON
from sweeplab.report.data import ReportData, states_in_words
from sweeplab.report.panels.base import Panel, TablePanel
from sweeplab.report.style import BAD, GREY, MIDDLE, Axis, Figure, Look, bars, cut, name_rows, spaced
from sweeplab.study.space import BASE

_MOST_NAMED = 6
_LONGEST = 56
_SHORT = 30
_STUDIES = {
    "Seed spread": "The standard deviation of a seed's loss around the mean of its trial, pooled over all trials with "
    "several seeds.",
    "Lowest value": f"Of the metric by which trials were chosen; val_loss is {MEASURED_ON['val_loss']}.",
}
_DIFFERENCES = {
    "All shared cells": "The mean difference of the cells' best losses, with a Student t interval over the cells: "
    "the spread over cells contains both the luck of tuning and the luck of the seed.",
    "One cell": "The best trials of one cell in two studies, compared like the cells of one study: which trials the "
    "search drew counts as chance too. In one report of twenty, some cell differs by chance alone.",
}
_LEVEL = "{:.1%}: all pairs of studies share one false-alarm rate (Bonferroni)."
_CHOICES = {
    "Cells": "Each cell is represented by its best trial: the mean loss of that trial's seeds, "
    f"{MEASURED_ON['val_loss']}.",
    "Differences": "Studies whose cells do not differ are simulated and analyzed like this one: trials are drawn, the "
    "best one is chosen, variances are estimated. A difference is significant if its ratio to its standard error is "
    f"larger than the largest such ratio of a simulated study in all but {FALSE_ALARM:.0%} of the simulations. So the "
    "test corrects for choosing the best of several trials, and for cells with more trials than others.",
    "Errors": "Model: loss = cell + trial + seed + residual. The effect of a seed on all cells alike cancels where "
    "cells share seeds. The variance of trials is estimated from the lower half of each cell's trials (those that "
    "did not end count as the highest), the residual variance from differences between seeds. A cell's "
    f"variances are pooled with those of all cells at a weight of {PRIOR:.0f} degrees of freedom, but never below the "
    "cell's own estimate; degrees of freedom are Welch's.",
    "Intervals": "In 19 of 20 studies all intervals of a task cover the true differences at once. An interval excludes "
    "0 exactly where the difference is significant. A difference that is not seen may still exist.",
    "N-grams": "The loss of the n-gram baseline on the same batches, and how far the cell's loss is above it.",
    "Groups": "Cells that share a letter do not differ significantly from each other.",
}


class StudiesPanel(TablePanel, name="studies", source="studies"):
    """The cost of each study, its best loss, and the spread of its seeds."""

    @classmethod
    def _of(cls, report: ReportData) -> Panel:
        rows = [_study(sweep, report.objective) for sweep in report.sweeps]
        return cls(
            data=DataFrame(rows),
            shown=DataFrame([row | {"FLOPs": short(row["FLOPs"])} for row in rows]).dropna(axis=1, how="all"),
            method=_STUDIES,
        )


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
            look = Look(str(verdict), BAD if verdict == DIFFERENT else GREY)
            over_all = rows["cell"] == ALL_CELLS
            marks = over_all.map({True: ("diamond", 12), False: ("circle", 8)})
            marker = {"symbol": marks.str[0].tolist(), "size": marks.str[1].tolist()}
            ends = rows.assign(**{end: rows[end].fillna(rows["difference"]) for end in ("low", "high")})
            interval = bars(ends, "difference")
            look.points(figure, rows, "difference", rows.index, hover, marker=marker, error_x=interval)
        figure.add_vline(x=0, line={"color": GREY, "width": 1.5})
        name_rows(figure, data["line"].tolist())
        x = self.x.around(data[["low", "high", "difference"]], 0.0)
        is_told = set(data["verdict"]) != {UNKNOWN}
        figure.update_layout(xaxis=x, height=max(150, 110 + 26 * len(self.data)), showlegend=is_told)


class DifferencesPanel(IntervalsPanel, name="differences", source="studies"):
    """Differences between the best losses of studies, over all shared cells and in each cell."""

    @classmethod
    def _of(cls, report: ReportData) -> Panel:
        differences = losses.differences(report.sweeps, report.objective)
        # Of each pair, the difference over all cells.
        first = {(one.a, one.b): one for one in reversed(differences)}
        lines = [_pair(each) * (len(first) > 1) + spaced(each.cell) for each in differences]
        rows = [_row(each) for each in differences]
        unknown = [each for each in differences if each.verdict == UNKNOWN and each.cell != ALL_CELLS]
        untold = {each.evidence.why for each in unknown}
        shown = DataFrame([_shown_difference(each, len(untold) > 1) for each in differences])
        if len(first) == 1:  # both are named once, at the head
            named = {"reference loss": f"loss of {differences[0].a}", "loss": f"loss of {differences[0].b}"}
            shown = shown.drop(columns="studies").rename(columns=named)
        return cls(
            data=DataFrame(rows).drop(columns="evidence").assign(line=lines),
            shown=shown,
            notes=(
                *(_in_words(each, report.loss_unit) for each in reversed(first.values())),
                *(f"For single cells it is {UNKNOWN}: {why}." for why in untold if why and len(untold) == 1),
            ),
            method=_DIFFERENCES | {"Level": _LEVEL.format(differences[0].level)},
            result={"differences": rows},
            x=Axis("difference", f"difference ({report.loss_unit})"),
        )


class ChoicesPanel(IntervalsPanel, name="choices", heading="Cells ranked by loss", source="sweeps"):
    """The cells of a study in order of their losses, and the significant differences between them.

    If each cell is the only one of its task, nothing is drawn and `data` lists the cells.
    """

    @classmethod
    def _of(cls, report: ReportData) -> Panel:
        at = report.objective
        rankings = [(sweep.name, each) for sweep in report.sweeps for each in losses.rankings(sweep, at)]
        tasks = [ranking for _, ranking in rankings]
        if sum(len(each.cells) for each in tasks) < 2:
            raise BadInput("a ranking needs two cells or more with a trial that ended")
        of_studies, of_tasks = len(report.sweeps) > 1, len({each.task for each in tasks}) > 1
        varying = ["study"] * of_studies + ["task"] * of_tasks
        rows = [_choice(study, cell, of, report) for study, of in rankings for cell in of.cells]
        lines = [
            {"study": study, "task": ranking.task, **_row(other)}
            | {"line": cut(spaced(other.b), _LONGEST) + f" ({study})" * of_studies}
            for study, ranking in rankings
            for other in _from_reference(ranking)
        ]
        reference, *others = {_reference(each) for each in tasks}
        of = spaced(reference)
        if others or len(reference) > _SHORT:
            of = "the cell it is compared with"
        shown = DataFrame([_shown_choice(row, varying) for row in rows])
        if shown["verdict"].isin(["", UNKNOWN]).all():  # the notes say once why there is no verdict
            shown = shown.drop(columns=["interval", "verdict", "group"])
        return cls(
            data=DataFrame(lines or rows).drop(columns="evidence", errors="ignore"),
            shown=shown,
            notes=tuple(note for study, ranking in rankings for note in _ranked(study, ranking, varying)),
            warnings=(_unlike_tasks(tasks),) * of_tasks,
            method=_CHOICES,
            result={
                "choices": rows,
                "tasks": [each.task for each in tasks],
                "evidence": [asdict(each.evidence) for each in tasks],
            },
            x=Axis("difference", f"loss above that of {of} ({report.loss_unit})"),
        )


def _study(sweep: Sweep, at: str) -> dict[str, Any]:
    ended, cells = sweep.ended, saved(sweep)
    flops, rest = (sum(getattr(each, name) for each in cells) for name in ("flops_spent", "flops_saved"))
    best: dict[Any, Any] = next(
        iter(ended.nsmallest(1, "loss").to_dict("records")), {"loss": None, "cell": ""}
    )
    return {
        "study": sweep.name,
        "cells": len(sweep.cells),
        "trials": f"{len(sweep.trials)}\n{states_in_words(sweep.trials['state'])}",
        "seeds": int(sweep.trials["seeds"].max()),
        "lowest value": best["loss"],
        "in cell": str(best["cell"]),
        "seed spread (loss)": losses.seed_spread(sweep, at).sd,
        "FLOPs": float(flops),
        "run seconds": round(float(sum(each.seconds_spent for each in cells)), 1),
        "saved by pruning": f"{rest / max(flops + rest, 1.0):.0%}",
    }


def _pair(difference: LossDifference) -> str:
    return f"{difference.b} against {difference.a}: "


def _row(difference: LossDifference) -> dict[str, Any]:
    texts = {"verdict": difference.verdict, "why": difference.evidence.why}
    return asdict(difference) | {"difference": difference.difference} | texts


def _shown_difference(difference: LossDifference, says_why: bool) -> dict[str, Any]:
    """Make a row of the shown table; a reason shared by all single cells stands beside the table, once."""
    over_all = difference.cell == ALL_CELLS
    verdict, cell = difference.verdict, difference.cell
    if difference.evidence.why and (says_why or over_all):
        verdict += f"\n{difference.evidence.why}"
    if over_all:
        cell += f"\n{several(difference.n, 'cell')}"
    return {
        "studies": f"{difference.b} against {difference.a}",
        "cell": cell,
        "reference loss": difference.loss_a,
        "loss": difference.loss_b,
        "difference": measured(difference.difference, "+.4f"),
        "interval": _interval(difference.verdict, difference.low, difference.high),
        "verdict": verdict,
    }


def _interval(verdict: str, low: float, high: float) -> str:
    if verdict in ("", UNKNOWN):
        return "–"
    return f"{low:+.4f} to {high:+.4f}"


def _in_words(difference: LossDifference, unit: str) -> str:
    if difference.verdict == UNKNOWN:
        return f"{_pair(difference)}{difference.evidence.in_words()}."
    if difference.cell == ALL_CELLS:
        over = f"over {several(difference.n, 'shared cell')}"
    else:
        over = f"in {difference.cell}"
    interval = f"{difference.difference:+.4f} {unit} ({difference.low:+.4f} to {difference.high:+.4f}) {over}"
    return f"{_pair(difference)}{difference.verdict}, {interval}; {difference.evidence.basis}."


def _reference(ranking: CellRanking) -> str:
    """Name the cell that others are compared with: the base, or else the best."""
    cells = [each.cell for each in ranking.cells]
    if BASE in cells:
        return BASE
    return cells[0]


def _from_reference(ranking: CellRanking) -> list[LossDifference]:
    reference = _reference(ranking)
    return [ranking.between(reference, each.cell) for each in ranking.cells if each.cell != reference]


def _choice(
    study: str, choice: losses.RankedCell, ranking: CellRanking, report: ReportData
) -> dict[str, Any]:
    reference = _reference(ranking)
    compared: dict[str, Any] = {"difference": 0.0, "low": math.nan, "high": math.nan, "verdict": ""}
    if choice.cell != reference:
        difference = ranking.between(reference, choice.cell)
        compared = {name: getattr(difference, name) for name in compared}
    return {
        "study": study,
        "task": ranking.task,
        "rank": 1 + ranking.cells.index(choice),
        "choice": choice.cell,
        "n_params": choice.n_params,
        "n_params_active": float(choice.values.get("n_params_active", choice.n_params)),
        "loss": choice.loss,
        "bits_per_byte": losses.bits_per_byte(choice),
        "n_grams": float(report.baselines.get(choice.cell, {}).get("loss", math.nan)),
        "seed_sd": choice.sd,
        "seeds": choice.n_seeds,
        "groups": "".join(chr(ord("a") + each % 26) for each in choice.group),
        "against": reference,
        **compared,
    }


def _shown_choice(row: dict[str, Any], varying: Sequence[str]) -> dict[str, Any]:
    """Make a row of the shown table: the result first, its evidence last; a second line is set in small type."""
    difference, seeds = "–", str(row["seeds"])
    if row["choice"] != row["against"]:
        difference = f"{row['difference']:+.4f}"
    if not math.isnan(row["seed_sd"]):
        seeds += f"\nspread {row['seed_sd']:.4f}"
    shown = {
        **{name: row[name] for name in varying},
        "rank": row["rank"],
        "cell": spaced(row["choice"]),
        "loss": row["loss"],
        "difference": difference,
        "interval": _interval(row["verdict"], row["low"], row["high"]),
        "verdict": row["verdict"],
        "group": row["groups"],
        "seeds": seeds,
        "parameters": short(row["n_params"]),
    }
    if row["n_params_active"] < row["n_params"]:
        shown["parameters"] += f"\n{short(row['n_params_active'])} active"
    if not math.isnan(row["bits_per_byte"]):
        shown["bits per byte"] = f"{row['bits_per_byte']:.4f}"
    if not math.isnan(row["n_grams"]):
        shown["n-grams"] = f"{row['n_grams']:.4f}\n{row['loss'] / row['n_grams'] - 1:+.1%}"
    return shown


def _ranked(study: str, ranking: CellRanking, varying: Sequence[str]) -> list[str]:
    """Say which cell is best, which do not differ from it, and which are better or worse than the base."""
    ours = ", ".join({"study": study, "task": ranking.task}[name] for name in varying)
    of = f"{sentence(ours)[:-1]}: " if ours else ""
    cells = [each.cell for each in ranking.cells]
    first = spaced(cells[0])
    if len(cells) == 1:
        return [f"{of}{first} is the only cell."]
    evidence = ranking.evidence.in_words()
    if ranking.evidence.verdict == UNKNOWN:
        return [f"{of}{first} has the lowest loss; whether by more than chance is {evidence}."]
    best, *alike = [each.cell for each in ranking.cells if 0 in each.group]
    if len(alike) + 1 == len(cells):
        text = f"no two of the {several(len(cells), 'cell')} differ significantly."
        if not of:
            text = sentence(text)
    elif alike:
        text = f"{_names([best, *alike])} are best and do not differ significantly from each other."
    else:
        text = f"{spaced(best)} is best, and differs significantly from the next."
    return [of + text, *_against_base(ranking), sentence(evidence)]


def _against_base(ranking: CellRanking) -> list[str]:
    if ranking.cells[0].cell == _reference(ranking):
        return []
    sides: dict[str, list[str]] = {"better": [], "worse": [], "no significant difference": []}
    for difference in _from_reference(ranking):
        side = "better" if difference.difference < 0 else "worse"
        if difference.verdict != DIFFERENT:
            side = "no significant difference"
        sides[side].append(difference.b)
    parts = [f"{side}: {_names(cells)}" for side, cells in sides.items() if cells]
    return [f"Against {BASE}, {'; '.join(parts)}."]


def _unlike_tasks(rankings: Sequence[CellRanking]) -> str:
    tasks = "; ".join(f"{each.task} ({several(len(each.cells), 'cell')})" for each in rankings)
    return (
        f"Losses of {several(len(rankings), 'task')}, ranked separately: {tasks}. Losses of different tasks cannot be "
        "compared, not even in bits per byte: they score different tokens, predicted from different context. "
        "The loss of a masked token with known surroundings says nothing about the loss of a text. Compare each with "
        "its own n-gram baseline"
    )


def _names(cells: Sequence[str]) -> str:
    named = [spaced(each) for each in cells]
    if len(named) <= _MOST_NAMED:
        return listed(named)
    return several_named(named, _MOST_NAMED)


_CONFIRMED = {
    "Confirmed": "The best trials of each cell are trained with fresh seeds: two each, then more while their order is "
    "undecided. The winner is trained again with other seeds and evaluated once on the test split, unused before.",
    "Intervals": f"Student's t at {LEVEL:.0%} of the mean over these seeds, whose losses did not choose the winner.",
    "Search": f"The loss of the search's own trial {MEASURED_ON['whole_val_loss']}; trials were chosen by their loss "
    f"{MEASURED_ON['val_loss']}. Optimism is the test loss minus the search's; selection bias is the part of it that "
    "fresh seeds show on the same split.",
    "Differences": "From the cell that was best in the search, paired by seed. The verdicts of all cells share one "
    "false-alarm rate.",
}


class ConfirmedPanel(Panel, name="confirmed", heading="Confirmed on fresh seeds", source="sweeps"):
    """Each cell's winner by its test loss, beside the loss that the search found."""

    @classmethod
    def _of(cls, report: ReportData) -> Panel:
        confirmed = report.confirmed
        if not confirmed:
            raise BadInput("nothing is confirmed: `sweeplab confirm NAME` trains the best with fresh seeds")
        of_studies = len({study for study, _ in confirmed}) > 1
        rows = [_confirmed(study, cell) for study, cell in confirmed]
        lines = [spaced(row["cell"]) + f" ({row['study']})" * of_studies for row in rows]
        verdicts = [cell.evidence for _, cell in confirmed if cell.evidence]
        n = sum(evidence.verdict == DIFFERENT for evidence in verdicts)
        others = f"{n} of {several(len(verdicts), 'other cell')}"
        do = "differ" + ("s" if len(verdicts) == 1 else "")
        notes = [f"{each.basis}: {others} {do} from the search's best cell" for each in verdicts[:1]]
        return cls(
            data=DataFrame(rows).assign(line=lines),
            notes=tuple(map(sentence, notes)),
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
        Look(f"fresh seeds, {MEASURED_ON['test_loss']}", MIDDLE).points(
            figure, data, "test", data.index, hover, error_x=bars(ends, "test")
        )
        Look(f"search, {MEASURED_ON['whole_val_loss']}", GREY, "circle-open").points(
            figure, data, "searched", data.index, hover
        )
        name_rows(figure, data["line"].tolist())
        figure.update_layout(
            xaxis=self.x.around(data[["low", "high", "test", "searched"]]),
            height=max(150, 110 + 26 * len(data)),
            showlegend=True,
        )


def _confirmed(study: str, cell: CellConfirmed) -> dict[str, Any]:
    row = {
        "study": study,
        "cell": cell.cell,
        "trial": cell.trial,
        "raced": cell.n_raced,
        "searched": cell.searched,
        "validation": cell.validation,
        **dict.fromkeys(("test", "low", "high")),
        "optimism": cell.optimism,
        "selection_bias": cell.selection_bias,
        **dict.fromkeys(("difference", "difference_low", "difference_high")),
        "verdict": "",
    }
    if cell.test:
        row |= {"test": cell.test.value, "low": cell.test.low, "high": cell.test.high}
    if cell.apart:
        ends = {"difference_low": cell.apart.low, "difference_high": cell.apart.high}
        row |= {"difference": cell.apart.value, **ends}
    if cell.evidence:
        row["verdict"] = cell.evidence.verdict
    return row
