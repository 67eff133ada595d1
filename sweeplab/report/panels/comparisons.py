"""Which differences are real: between studies, and between the choices of one study."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pandas import DataFrame

from sweeplab.analysis.comparing import FALSE_ALARM, PRIOR
from sweeplab.analysis.sweep import differences as losses
from sweeplab.analysis.sweep.costs import saved
from sweeplab.analysis.sweep.differences import ALL_CELLS, LossDifference, Ranking
from sweeplab.analysis.sweep.trials import Sweep
from sweeplab.errors import BadInput
from sweeplab.formatting import listed, sentence, several, short
from sweeplab.records.evidence import DIFFERENT, UNKNOWN
from sweeplab.report.data import ReportData, states_in_words
from sweeplab.report.panels.base import Panel, TablePanel
from sweeplab.report.style import BAD, GREY, Axis, Figure, Look, bars, cut, name_rows, spaced
from sweeplab.study.space import BASE

_MOST_NAMED = 6
_LONGEST = 56
_SHORT = 30
_STUDIES = {
    "Seed spread": "The standard deviation of one seed's loss around its trial's mean, pooled over all trials with "
    "several.",
}
_DIFFERENCES = {
    "All shared cells": "The mean difference of the cells' best losses, with Student's t over the cells: its spread "
    "has both the luck of tuning and that of the seed.",
    "One cell": "The best trials of one cell in two studies, compared as the choices of one study are: which trials "
    "were drawn is luck too. In one report of twenty any cell differs by chance.",
}
_LEVEL = "{:.1%}: several pairs share one rate of false alarms (Bonferroni)."
_CHOICES = {
    "A choice": "A cell by its best trial: the mean of its seeds' losses.",
    "Differences": "Studies of cells that are alike are drawn at random and analyzed as this one is: trials are drawn, "
    "the best is chosen, variances are estimated. A difference is real if it is larger, beside its error, than the "
    f"largest of a study is in all but {FALSE_ALARM:.0%} of the draws. So the luck of the best of several trials is "
    "allowed for, and that of more trials in one cell than in another.",
    "Errors": "Loss = cell + trial + seed + rest: what a seed does to all cells alike is left out where they share "
    "seeds. The spread of trials is that of the lower half of each cell's trials, those cut short being the highest; "
    f"the rest is seen between seeds. A cell's variances are pooled with all cells' at a weight of {PRIOR:.0f} degrees "
    "of freedom, and are no less than the cell shows; degrees of freedom are Welch's.",
    "Intervals": "All intervals of a task together miss a difference in one study of twenty. One leaves 0 out where, "
    "and only where, the difference is significant. No difference seen is not none.",
    "N-grams": "The loss of the n-gram baseline on the same batches, and by how much the choice's loss differs.",
    "Groups": "Choices that share a letter do not differ significantly from each other.",
}


class StudiesPanel(TablePanel, name="studies", source="studies"):
    """What each study took and reached, and the spread of its seeds."""

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
    """Whether the best losses of studies differ, over the cells that they share and in each."""

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
            named = {"loss of the other": f"loss of {found[0].a}", "loss": f"loss of {found[0].b}"}
            shown = shown.drop(columns="studies").rename(columns=named)
        return cls(
            data=DataFrame(rows).drop(columns="evidence").assign(line=lines),
            shown=shown,
            notes=(
                *(_in_words(each, report.loss_unit) for each in reversed(first.values())),
                *(f"In single cells it {UNKNOWN}: {why}." for why in untold if why and len(untold) == 1),
            ),
            method=_DIFFERENCES | {"Level": _LEVEL.format(found[0].level)},
            result={"differences": rows},
            x=Axis("difference", f"difference ({report.loss_unit})"),
        )


class ChoicesPanel(IntervalsPanel, name="choices", source="sweeps"):
    """The choices of a study in order of their losses, and which differences between them are real.

    Where each choice is alone in its task there is nothing to draw, and the data are the choices.
    """

    @classmethod
    def of(cls, report: ReportData) -> Panel:
        """Rank the cells of a study by their losses, task by task."""
        found = [
            (sweep.name, each) for sweep in report.sweeps for each in losses.rankings(sweep, report.objective)
        ]
        tasks = [ranking for _, ranking in found]
        if sum(len(each.cells) for each in tasks) < 2:
            raise BadInput("choices are ranked where two cells or more have a trial that ended")
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
        of = "the choice it is compared with" if others or len(reference) > _SHORT else spaced(reference)
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

    def figure(self) -> Figure | None:
        """Return the figure; None where no choice is compared with another."""
        return super().figure() if "line" in self.data else None


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
        "of cell": "" if best is None else str(best["cell"]),
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
    """Return a row as it is read; a reason that all single cells share is said beside the table, once."""
    known = found.verdict != UNKNOWN
    why = found.evidence.why if says_why or found.cell == ALL_CELLS else ""
    return {
        "studies": f"{found.b} against {found.a}",
        "cell": f"{found.cell}\n{found.n} cells" if found.cell == ALL_CELLS else found.cell,
        "loss of the other": found.loss_a,
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
    """Return the cell that others are compared with: the one that changes nothing, or else the best."""
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
    """Return a row as it is read: the result first, what it rests on last; a second line is a quiet one."""
    own, known = row["choice"] == row["against"], row["verdict"] not in ("", UNKNOWN)
    shown = {
        **{name: row[name] for name in varying},
        "rank": row["rank"],
        "choice": spaced(row["choice"]),
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
    """Return the table without what no row can tell: the notes say once why there is no verdict."""
    if not shown["verdict"].isin(["", UNKNOWN]).all():
        return shown
    return shown.drop(columns=["interval", "verdict", "group"])


def _ranked(study: str, ranking: Ranking, varying: Sequence[str]) -> list[str]:
    """Say which choice is best, what does not differ from it, and what is better or worse than the base."""
    ours = ", ".join({"study": study, "task": ranking.task}[name] for name in varying)
    of = f"{sentence(ours)[:-1]}: " if ours else ""
    cells = [each.cell for each in ranking.cells]
    first = spaced(cells[0])
    if len(cells) == 1:
        return [f"{of}{first} stands alone."]
    evidence = ranking.evidence.in_words()
    if ranking.evidence.verdict == UNKNOWN:
        return [f"{of}{first} has the lowest loss; whether by more than chance {evidence}."]
    best, *alike = [each.cell for each in ranking.cells if 0 in each.group]
    if len(alike) + 1 == len(cells):
        said = f"{'no' if of else 'No'} two of the {len(cells)} choices differ significantly."
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
    tasks = "; ".join(f"{each.task} ({several(len(each.cells), 'choice')})" for each in found)
    return (
        f"Losses of {len(found)} tasks, ranked separately: {tasks}. Losses of different tasks are of different tokens, "
        "predicted from different context, in bits per byte too: what a masked token costs once all around it is known "
        "says nothing of what a text costs. Compare each with the n-gram baseline of its own task"
    )


def _names(cells: Sequence[str]) -> str:
    named = [spaced(each) for each in cells[:_MOST_NAMED]]
    more = len(cells) - _MOST_NAMED
    return f"{', '.join(named)} and {more} more" if more > 0 else listed(named)


def _cut(cell: str) -> str:
    """Return a cell's name that leaves a figure room."""
    return cut(spaced(cell), _LONGEST)
