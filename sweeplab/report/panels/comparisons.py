"""Significant differences: between studies, and between the cells of one study."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pandas import DataFrame

from sweeplab.analysis.sweep import differences as losses
from sweeplab.analysis.sweep.costs import saved
from sweeplab.analysis.sweep.differences import ALL_CELLS, LossDifference, Ranking
from sweeplab.analysis.sweep.trials import Sweep
from sweeplab.errors import BadInput
from sweeplab.formatting import listed, sentence, several, short
from sweeplab.laws.comparing import FALSE_ALARM, PRIOR
from sweeplab.laws.evidence import DIFFERENT, UNKNOWN
from sweeplab.records.runs import MEASURED_ON
from sweeplab.report.data import ReportData, states_in_words
from sweeplab.report.panels.base import Panel, TablePanel
from sweeplab.report.style import BAD, GREY, Axis, Figure, Look, bars, cut, name_rows, spaced
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
    def of(cls, report: ReportData) -> Panel:
        """List the studies."""
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

    def figure(self) -> Figure | None:
        """Return the figure; None if nothing is compared, as the table says."""
        is_drawn = "line" in self.data and self.data["difference"].notna().any()
        return super().figure() if is_drawn else None

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
    def of(cls, report: ReportData) -> Panel:
        """Compare each pair of studies."""
        found = losses.differences(report.sweeps, report.objective)
        first = {(each.a, each.b): each for each in reversed(found)}  # of each pair, that over all cells
        lines = [(_pair(each) if len(first) > 1 else "") + spaced(each.cell) for each in found]
        rows = [_row(each) for each in found]
        untold = {each.evidence.why for each in found if each.verdict == UNKNOWN and each.cell != ALL_CELLS}
        shown = DataFrame([_shown_difference(each, len(untold) > 1) for each in found])
        if len(first) == 1:  # both are named once, at the head
            named = {"reference loss": f"loss of {found[0].a}", "loss": f"loss of {found[0].b}"}
            shown = shown.drop(columns="studies").rename(columns=named)
        return cls(
            data=DataFrame(rows).drop(columns="evidence").assign(line=lines),
            shown=shown,
            notes=(
                *(_in_words(each, report.loss_unit) for each in reversed(first.values())),
                *(f"For single cells it {UNKNOWN}: {why}." for why in untold if why and len(untold) == 1),
            ),
            method=_DIFFERENCES | {"Level": _LEVEL.format(found[0].level)},
            result={"differences": rows},
            x=Axis("difference", f"difference ({report.loss_unit})"),
        )


class ChoicesPanel(IntervalsPanel, name="choices", heading="Cells ranked by loss", source="sweeps"):
    """The cells of a study in order of their losses, and the significant differences between them.

    If each cell is the only one of its task, nothing is drawn and `data` lists the cells.
    """

    @classmethod
    def of(cls, report: ReportData) -> Panel:
        """Rank the cells of a study by their losses, task by task."""
        found = [
            (sweep.name, each) for sweep in report.sweeps for each in losses.rankings(sweep, report.objective)
        ]
        tasks = [ranking for _, ranking in found]
        if sum(len(each.cells) for each in tasks) < 2:
            raise BadInput("a ranking needs two cells or more with a trial that ended")
        of_studies, of_tasks = len(report.sweeps) > 1, len({each.task for each in tasks}) > 1
        varying = ["study"] * of_studies + ["task"] * of_tasks
        rows = [_choice(study, each, ranking, report) for study, ranking in found for each in ranking.cells]
        lines = [
            {"study": study, "task": ranking.task, **_row(each)}
            | {"line": _cut(each.b) + (f" ({study})" if of_studies else "")}
            for study, ranking in found
            for each in _from_reference(ranking)
        ]
        reference, *others = {_reference(each) for each in tasks}
        of = "the cell it is compared with" if others or len(reference) > _SHORT else spaced(reference)
        return cls(
            data=DataFrame(lines or rows).drop(columns="evidence", errors="ignore"),
            shown=_told(DataFrame([_shown_choice(row, varying) for row in rows])),
            notes=tuple(note for study, ranking in found for note in _ranked(study, ranking, varying)),
            warnings=(_unlike_tasks(tasks),) if of_tasks else (),
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
    best = ended.nsmallest(1, "loss").iloc[0] if len(ended) else None
    return {
        "study": sweep.name,
        "cells": len(sweep.cells),
        "trials": f"{len(sweep.trials)}\n{states_in_words(sweep.trials['state'])}",
        "seeds": int(sweep.trials["seeds"].max()),
        "lowest value": None if best is None else float(best["loss"]),
        "in cell": "" if best is None else str(best["cell"]),
        "seed spread (loss)": losses.seed_spread(sweep, at).sd,
        "FLOPs": float(flops),
        "run seconds": round(float(sum(each.seconds_spent for each in cells)), 1),
        "saved by pruning": f"{rest / max(flops + rest, 1.0):.0%}",
    }


def _pair(found: LossDifference) -> str:
    return f"{found.b} against {found.a}: "


def _row(found: LossDifference) -> dict[str, Any]:
    said = {"verdict": found.verdict, "why": found.evidence.why}
    return asdict(found) | {"difference": found.difference} | said


def _shown_difference(found: LossDifference, says_why: bool) -> dict[str, Any]:
    """Return a row of the shown table; a reason shared by all single cells stands beside the table, once."""
    known = found.verdict != UNKNOWN
    why = found.evidence.why if says_why or found.cell == ALL_CELLS else ""
    return {
        "studies": f"{found.b} against {found.a}",
        "cell": f"{found.cell}\n{found.n} cells" if found.cell == ALL_CELLS else found.cell,
        "reference loss": found.loss_a,
        "loss": found.loss_b,
        "difference": "–" if math.isnan(found.difference) else f"{found.difference:+.4f}",
        "interval": f"{found.low:+.4f} to {found.high:+.4f}" if known else "–",
        "verdict": found.verdict + (f"\n{why}" if why else ""),
    }


def _in_words(found: LossDifference, unit: str) -> str:
    if found.verdict == UNKNOWN:
        return f"{_pair(found)}{found.evidence.in_words()}."
    over = f"over {found.n} shared cells" if found.cell == ALL_CELLS else f"in {found.cell}"
    interval = f"{found.difference:+.4f} {unit} ({found.low:+.4f} to {found.high:+.4f}) {over}"
    return f"{_pair(found)}{found.verdict}, {interval}; {found.evidence.basis}."


def _reference(ranking: Ranking) -> str:
    """Return the cell that others are compared with: the base, or else the best."""
    cells = [each.cell for each in ranking.cells]
    return BASE if BASE in cells else cells[0]


def _from_reference(ranking: Ranking) -> list[LossDifference]:
    reference = _reference(ranking)
    return [ranking.between(reference, each.cell) for each in ranking.cells if each.cell != reference]


def _choice(study: str, choice: losses.RankedCell, ranking: Ranking, report: ReportData) -> dict[str, Any]:
    reference = _reference(ranking)
    compared: dict[str, Any] = {"difference": 0.0, "low": math.nan, "high": math.nan, "verdict": ""}
    if choice.cell != reference:
        found = ranking.between(reference, choice.cell)
        compared = {name: getattr(found, name) for name in compared}
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
    """Return a row of the shown table: the result first, its evidence last; a second line is set in small type."""
    own, known = row["choice"] == row["against"], row["verdict"] not in ("", UNKNOWN)
    shown = {
        **{name: row[name] for name in varying},
        "rank": row["rank"],
        "cell": spaced(row["choice"]),
        "loss": row["loss"],
        "difference": "–" if own else f"{row['difference']:+.4f}",
        "interval": f"{row['low']:+.4f} to {row['high']:+.4f}" if known else "–",
        "verdict": row["verdict"],
        "group": row["groups"],
        "seeds": f"{row['seeds']}" + ("" if math.isnan(row["seed_sd"]) else f"\nspread {row['seed_sd']:.4f}"),
        "parameters": short(row["n_params"]),
    }
    if row["n_params_active"] < row["n_params"]:
        shown["parameters"] += f"\n{short(row['n_params_active'])} active"
    if not math.isnan(row["bits_per_byte"]):
        shown["bits per byte"] = f"{row['bits_per_byte']:.4f}"
    if not math.isnan(row["n_grams"]):
        shown["n-grams"] = f"{row['n_grams']:.4f}\n{row['loss'] / row['n_grams'] - 1:+.1%}"
    return shown


def _told(shown: DataFrame) -> DataFrame:
    """Return the table without columns that are empty in all rows: the notes say once why there is no verdict."""
    if not shown["verdict"].isin(["", UNKNOWN]).all():
        return shown
    return shown.drop(columns=["interval", "verdict", "group"])


def _ranked(study: str, ranking: Ranking, varying: Sequence[str]) -> list[str]:
    """Say which cell is best, which do not differ from it, and which are better or worse than the base."""
    ours = ", ".join({"study": study, "task": ranking.task}[name] for name in varying)
    of = f"{sentence(ours)[:-1]}: " if ours else ""
    cells = [each.cell for each in ranking.cells]
    first = spaced(cells[0])
    if len(cells) == 1:
        return [f"{of}{first} is the only cell."]
    evidence = ranking.evidence.in_words()
    if ranking.evidence.verdict == UNKNOWN:
        return [f"{of}{first} has the lowest loss; whether by more than chance, {evidence}."]
    best, *alike = [each.cell for each in ranking.cells if 0 in each.group]
    if len(alike) + 1 == len(cells):
        said = f"{'no' if of else 'No'} two of the {len(cells)} cells differ significantly."
    elif alike:
        said = f"{_names([best, *alike])} are best and do not differ significantly from each other."
    else:
        said = f"{spaced(best)} is best, and differs significantly from the next."
    return [
        of + said,
        *([] if cells[0] == _reference(ranking) else _against_base(ranking)),
        sentence(evidence),
    ]


def _against_base(ranking: Ranking) -> list[str]:
    sides: dict[str, list[str]] = {"better": [], "worse": [], "no significant difference": []}
    for each in _from_reference(ranking):
        real = each.verdict == DIFFERENT
        side = "no significant difference" if not real else "better" if each.difference < 0 else "worse"
        sides[side].append(each.b)
    parts = [f"{side}: {_names(cells)}" for side, cells in sides.items() if cells]
    return [f"Against {BASE}, {'; '.join(parts)}."]


def _unlike_tasks(found: Sequence[Ranking]) -> str:
    tasks = "; ".join(f"{each.task} ({several(len(each.cells), 'cell')})" for each in found)
    return (
        f"Losses of {len(found)} tasks, ranked separately: {tasks}. Losses of different tasks cannot be compared, not "
        "even in bits per byte: they score different tokens, predicted from different context. The loss of a masked "
        "token with known surroundings says nothing about the loss of a text. Compare each with its own n-gram baseline"
    )


def _names(cells: Sequence[str]) -> str:
    named = [spaced(each) for each in cells[:_MOST_NAMED]]
    more = len(cells) - _MOST_NAMED
    return f"{', '.join(named)} and {more} more" if more > 0 else listed(named)


def _cut(cell: str) -> str:
    """Return a cell's name, shortened so that the figure keeps its width."""
    return cut(spaced(cell), _LONGEST)
