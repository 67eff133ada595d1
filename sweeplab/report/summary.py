"""The head of a page: the headline of a study, and what stands folded below it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pandas import DataFrame, Series

from sweeplab.analysis.studies import unlike_precision
from sweeplab.analysis.trials import (
    COUNTED,
    are_best,
    grid_of,
    searched_of,
    tasks_of,
    trials_table,
)
from sweeplab.data import loss_unit
from sweeplab.formatting import listed, rounded, sentence, several, several_named, span, written
from sweeplab.hyperparameters import AUTO
from sweeplab.lab.showing import commands_about
from sweeplab.laws.assessment import Assessment
from sweeplab.laws.columns import SHAPE
from sweeplab.laws.forms import LAWS, RATIO
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import MEASURED_ON
from sweeplab.report.data import ReportData, states_in_words
from sweeplab.report.headline import Headline, headline, read_facts, with_law
from sweeplab.report.panels.base import Panel
from sweeplab.report.style import spaced

_MOST_NAMED = 8
_ANSWERS = {RATIO, *(name for law in LAWS.values() for name in law.exponents)}


@dataclass(frozen=True)
class Summary:
    """The head of a page: the headline of one study, and further texts by their names.

    `best` is the chosen trial, and `use` has the commands about it, by what they do. `answers` are those of a page that
    has no headline: of several studies, or of a table.
    """

    study: str
    entries: Mapping[str, str]
    best: Mapping[str, Any] = field(default_factory=dict)
    headline: Headline | None = None
    answers: Sequence[str] = ()
    use: Mapping[str, str] = field(default_factory=dict)


def summarize(report: ReportData, panels: Sequence[Panel] = ()) -> Summary:
    """Put the runs of a study into words."""
    runs = report.runs
    study = next(iter(report.studies.specs), "no study") if runs.empty else report.study
    folder, first, facts = report.folder(study), None, None
    if folder and folder.plan_file.exists():
        facts = with_law(
            read_facts(folder), lambda: (report.assessment(AUTO), report.law_metric)
        )
        first = headline(facts)
    if runs.empty:
        return Summary(study, {"Runs": "none yet"}, headline=first)
    grid = grid_of(runs, report.design)
    tuned = [name for name in searched_of(runs, report.design) if name not in grid]
    trials = trials_table(runs, report.value_column)
    chosen = trials[are_best(trials, ["study"])]
    entries, use, best = dict[str, str](), dict[str, str](), dict[str, Any]()
    if len(chosen):
        row = chosen.iloc[0]
        entries["Best trial"] = _best_in_words(report, row, tuned, folder)
        if facts and folder:
            use = dict(commands_about(folder, str(row.get("objective", ""))))
        best = {"cell": row["cell"], "trial": int(row["trial"]), "loss": float(row["loss"])}
        best["hyperparameters"] = {name: row[name] for name in [*grid, *tuned]}
    if facts and facts.findings:
        entries["To change"] = " ".join(sentence(each.in_words()) for each in facts.findings)
    if precision := unlike_precision(runs):
        entries["Precision"] = precision
    entries["Runs"] = _extent(runs)
    sizes = " to ".join(
        dict.fromkeys(written(runs["n_params"].agg(end)) for end in ("min", "max"))
    )
    values = [f"{name} {_values(runs[name])}" for name in grid]
    entries["Cells"] = f"{'; '.join(values) or 'one'}; {sizes} parameters"
    return Summary(report.study, entries, best, first, use=use)


def _best_in_words(
    report: ReportData, row: Series, tuned: Sequence[str], folder: StudyFolder | None
) -> str:
    """Describe the chosen trial: its loss, cell, size and values, and by what it was chosen."""
    loss = f"{row['loss']:.4f} {loss_unit(row.filter(['objective']))}"
    if row["seeds"] > 1:
        loss += f" (the mean of {several(row['seeds'], 'seed')})"
    trial = f"trial {int(row['trial'])}"
    if row["cell"] != "all":
        trial += f" in cell {spaced(row['cell'])}"
    values = [f"{name} {written(row[name])}" for name in tuned]
    clauses = [
        f"{loss}: {trial}",
        ", ".join([f"{written(row['n_params'])} parameters", *values]),
    ]
    whole = row.get("best_whole_val_loss", math.nan)
    if whole == whole:
        clauses.append(f"{whole:.4f} {MEASURED_ON['whole_val_loss']}")
    ranking = report.ranked.get(str(row["study"]))
    choice = ranking and ranking.choice()
    if choice:
        clauses += choice.in_words(folder.command("confirm") if folder else "sweeplab confirm")
    return "; ".join(clauses)


def summarize_comparison(report: ReportData, panels: Sequence[Panel]) -> Summary:
    """Describe several studies: their best trials, whether these differ, and what stands behind each study."""
    runs = report.runs
    if runs.empty:
        return Summary("no study", {"Runs": "none yet"})
    studies = [str(name) for name in dict.fromkeys(runs["study"])]
    entries = {name: _behind(runs[runs["study"] == name]) for name in studies}
    if precision := unlike_precision(runs):
        entries["Precision"] = precision
    answers: list[str] = []
    trials = trials_table(runs, report.value_column)
    best = trials[are_best(trials, ["study"])].sort_values("loss").set_index("study")["loss"]
    if len(best) > 1 and tasks_of(runs).nunique() == 1:
        against = listed([f"{loss:.4f} of {name}" for name, loss in best.iloc[1:].items()])
        first = f"The best trial of {best.index[0]} has {best.iloc[0]:.4f} {report.loss_unit}"
        answers.append(f"{first}, against {against}.")
    for panel in panels:
        if "differences" in panel.result:
            answers += panel.notes
    return Summary(listed(studies), entries, answers=answers)


def _behind(runs: DataFrame) -> str:
    """Count the trials behind a study's losses: in all, per cell, and their seeds."""
    trials = trials_table(runs)
    counted = trials[trials["state"].isin(COUNTED)].groupby("cell").size()
    per_cell = " to ".join(dict.fromkeys(str(counted.agg(end)) for end in ("min", "max")))
    if counted.empty:
        per_cell = "0"
    return f"{_extent(runs)}; trials per cell: {per_cell}; {several(runs['seed'].nunique(), 'seed')}"


def summarize_table(assessment: Assessment, source: str) -> Summary:
    """Describe a table: its rows, the law that was fitted to it, and what to run next."""
    points = assessment.points
    ranges = [
        f"{name} {span(float(column.min()), float(column.max()))}"
        for name, column in points.columns.items()
        if name not in SHAPE
    ]
    entries = {
        "Rows": f"{points.n:,}: {', '.join(ranges)}",
        "Next": f"sweeplab laws next {source}",
    }
    return Summary(source, entries, answers=[law_in_words(assessment.as_dict())])


def law_in_words(law: Mapping[str, Any]) -> str:
    """Give a law's exponents with their 90% intervals and verdicts."""
    texts = []
    for name, one in (law["parameters"] | law["derived"]).items():
        if name not in _ANSWERS:
            continue
        value = "" if one["value"] is None else f" {rounded(one['value'])}"
        texts.append(f"{name}{value} ({span(one['low'], one['high'])}, {one['verdict']})")
    return f"The law {law['law']}, {law['formula']}: {'; '.join(texts)}."


def _extent(runs: DataFrame) -> str:
    n_trials, n_cells = len(runs.groupby(["cell", "trial"])), runs["cell"].nunique()
    counts = f"{several(len(runs), 'run')} of {several(n_trials, 'trial')} in {several(n_cells, 'cell')}"
    return f"{counts}: {states_in_words(runs['state'])}"


def _values(column: Series) -> str:
    """Write the distinct values of a column, in order."""
    return several_named(
        [written(value) for value in column.dropna().drop_duplicates().sort_values()],
        _MOST_NAMED,
    )


# The head of each page.
SUMMARIES: dict[str, Callable[[ReportData, Sequence[Panel]], Summary]] = {
    "scaling": summarize,
    "sweep": summarize,
    "compare": summarize_comparison,
}
