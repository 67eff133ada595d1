"""A study in a few sentences: how its runs ended, what was compared, which trial is best."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from pandas import DataFrame, Series

from sweeplab.analysis.differences import settings
from sweeplab.analysis.studies import unlike_precision
from sweeplab.analysis.trials import (
    COUNTED,
    VALUED,
    are_best,
    grid_of,
    searched_of,
    tasks_of,
    trials_table,
)
from sweeplab.data.task import loss_unit
from sweeplab.formatting import counts, listed, rounded, sentence, several, several_named, span, written
from sweeplab.lab.findings import find_limits
from sweeplab.lab.identity import differences
from sweeplab.lab.listing import StudyTrials
from sweeplab.lab.showing import baselines_in_words, commands_about
from sweeplab.laws.assessment import IDENTIFIED, NOT_IDENTIFIED, WEAK, Assessment
from sweeplab.laws.check import FLAGGED
from sweeplab.laws.evidence import chosen_best
from sweeplab.laws.forms import LAWS, N_OPT, RATIO
from sweeplab.records.runs import MEASURED_ON
from sweeplab.report.data import ReportData, states_in_words
from sweeplab.report.headline import Headline, read_headline
from sweeplab.report.panels.base import Panel
from sweeplab.report.style import spaced

# At most this many different settings are named.
_MOST_SETTINGS = 8
_N_GRAMS = "N-gram baseline"
_POWERS = {name for law in LAWS.values() for name in law.exponents}
_EXPONENTS = _POWERS | {N_OPT}
_ANSWERS = _POWERS | {RATIO}
Entries = list[tuple[str, str]]


@dataclass(frozen=True)
class Summary:
    """The head of a report: the headline of one study, and further entries as (name, text).

    `best` is the trial of the lowest expected loss, if any, and `use` has the commands about it, by what they do. Runs
    with different tasks have no best trial. `answers` are those of a page that has no headline: of several studies, or
    of a table.
    """

    study: str
    entries: Sequence[tuple[str, str]]
    best: Mapping[str, Any] = field(default_factory=dict)
    headline: Headline | None = None
    answers: Sequence[str] = ()
    use: Mapping[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, str]:
        """Return all texts by their names."""
        texts = dict(self.entries)
        if self.answers:
            texts = {"Answer": " ".join(self.answers)} | texts
        return texts


def summarize(report: ReportData, metric: str = "best_val_loss") -> Summary:
    """Put the runs of a study into words; `metric` is the column of the loss that the page shows."""
    runs = report.runs
    if runs.empty:
        return Summary("no study", (("Runs", "none yet"),))
    grid = grid_of(runs, report.design)
    tuned = [name for name in searched_of(runs, report.design) if name not in grid]
    entries: Entries = []
    trials = trials_table(runs, metric)
    tasks = trials.assign(task=tasks_of(trials))
    folder = report.folder(report.study)
    confirming = folder.command("confirm") if folder else "study confirm"
    bests = [row for _, row in tasks[are_best(tasks, ["task"])].sort_values("loss").iterrows()]
    measure = MEASURED_ON[metric.removeprefix("best_").removeprefix("final_")]
    for row in bests:
        task = row["task"]
        named = "Best trial" + (f", {task}" if len(bests) > 1 else "")
        counted = tasks[tasks["state"].isin(COUNTED)]
        evidence = chosen_best(int(row["seeds"]), int((counted["task"] == task).sum()))
        unit = loss_unit(row.filter(["objective"]))
        ranking = report.ranked.get((str(row["study"]), task))
        choice = ranking and ranking.choice()
        clauses = choice.in_words(confirming) if choice else []
        if choice and choice.expected and metric != "best_val_loss":
            clauses[0] += f", {MEASURED_ON['val_loss']}"
        if metric != "best_val_loss":
            evidence = replace(evidence, why=f"the trial was selected by its loss {MEASURED_ON['val_loss']}")
        text = "; ".join([_best(row, tuned, f"{unit} {measure}"), *clauses, evidence.in_words()])
        entries.append((named, text))
    for _, cell in report.confirmed[:1]:
        if cell.test:
            text = f"{cell.test.value:.4f} {report.loss_unit} {MEASURED_ON['test_loss']}"
            if not math.isnan(cell.test.low):
                text += f", {cell.test.low:.4f} to {cell.test.high:.4f}"
            text += f": trial {cell.trial} in cell {spaced(cell.cell)}"
            if len(report.confirmed) > 1:
                text += f", the lowest of {several(len(report.confirmed), 'cell')}"
            entries.append(("Confirmed", text))
    best: dict[str, Any] = {}
    if len(bests) == 1:
        best = {
            "cell": bests[0]["cell"],
            "trial": int(bests[0]["trial"]),
            "loss": float(bests[0]["loss"]),
            "choice": choice and choice.as_dict(),
            "evidence": asdict(evidence),
            "n_params": bests[0]["n_params"],
            "hyperparameters": {name: bests[0][name] for name in (*grid, *tuned)},
        }
    if folder:
        limits = find_limits(StudyTrials(folder))
        entries += [("To change", sentence(limit.in_words())) for limit in limits]
    entries += [
        *_precision(runs),
        *_beside_baselines(report, best),
        ("Runs", _extent(runs)),
        ("Cells", _cells(runs, grid)),
    ]
    if tuned:
        ranges = (f"{name} ({_range(runs[name])})" for name in tuned)
        entries.append(("Varied within a cell", ", ".join(ranges)))
    use: Mapping[str, str] = {}
    first = None
    if folder and folder.plan_file.exists():
        first = read_headline(folder)
        if best:
            use = commands_about(folder, str(bests[0].get("objective", "")))
    return Summary(report.study, _joined(entries), best, first, use=use)


def _joined(entries: Entries) -> Entries:
    """Join texts of one name: no name stands twice."""
    texts: dict[str, list[str]] = {}
    for name, text in entries:
        texts.setdefault(name, []).append(text)
    return [(name, " ".join(of_name)) for name, of_name in texts.items()]


def _precision(runs: DataFrame) -> Entries:
    words = unlike_precision(runs)
    if words:
        return [("Precision", words)]
    return []


def _beside_baselines(report: ReportData, best: Mapping[str, Any]) -> Entries:
    """Describe the n-gram baselines, and how far the lowest loss is below or above the baseline of its cell."""
    # The page shows the name beside each text, so the text drops it.
    named = baselines_in_words(report.baselines)
    texts = [text.removeprefix(_N_GRAMS.lower()).lstrip(": ") for text in named]
    if best and best["cell"] in report.baselines:
        of_cell = report.baselines[best["cell"]]
        # N-grams are evaluated on the targets of the evaluations, as val_loss is.
        runs, baseline = report.runs, float(of_cell["loss"])
        of_trial = (runs["cell"] == best["cell"]) & (runs["trial"] == best["trial"])
        lowest = float(runs.loc[of_trial, "best_val_loss"].mean())
        where = "below" if lowest < baseline else "above"
        text = f"the loss {MEASURED_ON['val_loss']} is {abs(1 - lowest / baseline):.1%} {where} it"
        beaten = sum(lowest < loss for loss in of_cell.get("by_order", ()))
        if where == "above" and beaten:
            text += f", and below that of order {beaten}"
        texts.append(text)
    return [(_N_GRAMS, "; ".join(texts[:_MOST_SETTINGS]))][: len(texts)]


def summarize_scaling(report: ReportData, panels: Sequence[Panel]) -> Summary:
    """Put a study and its scaling law into words; all losses are those that the law is fitted to."""
    if report.runs.empty:
        return summarize(report)
    summary = summarize(report, report.law_metric)
    law = next((panel.result for panel in panels if "parameters" in panel.result), None)
    if law is None:
        return summary
    return replace(summary, entries=[*summary.entries, *summarize_law(law)])


def _with_value(law: Mapping[str, Any], names: Set[str]) -> dict[str, Mapping[str, Any]]:
    every = law["parameters"] | law["derived"]
    return {name: one for name, one in every.items() if name in names and one["value"] is not None}


def _law_in_words(law: Mapping[str, Any]) -> str:
    """Give a law's exponents with their intervals, or say that the points identify none."""
    known, named = _estimates_in_words(_with_value(law, _ANSWERS)), f"law {law['law']}, {law['formula']}"
    if known:
        return f"The {named}: {known} (90% intervals)."
    every = law["parameters"] | law["derived"]
    name, first = next((name, estimate) for name, estimate in every.items() if name in _ANSWERS)
    points, low, high = several(law["n_points"], "point"), first["low"], first["high"]
    ends = f"{name} is between {span(low, high).replace(' to ', ' and ')}"
    if high is None and low is None:
        ends = f"{name} may have any value"
    elif high is None or low is None:
        ends = f"{name} is {f'at least {rounded(low)}' if high is None else f'at most {rounded(high)}'}"
    return f"No exponent is identified by these {points} yet: in the {named}, {ends} (90% interval)."


def _estimates_in_words(estimates: Mapping[str, Mapping[str, Any]]) -> str:
    """List numbers with their intervals, those of one verdict together."""
    by_verdict: dict[str, list[str]] = {}
    for name, one in estimates.items():
        ends = f"{name} {rounded(one['value'])} ({span(one['low'], one['high'])})"
        by_verdict.setdefault(one["verdict"], []).append(ends)
    return "; ".join(f"{verdict}: {listed(each)}" for verdict, each in by_verdict.items())


def summarize_sweep(report: ReportData, panels: Sequence[Panel]) -> Summary:
    """Describe a study; its panels say which hyperparameters mattered in its search."""
    return summarize(report)


def summarize_comparison(report: ReportData, panels: Sequence[Panel]) -> Summary:
    """Describe several studies: their different settings, whether their losses differ, and the trials behind each."""
    runs = report.runs
    if runs.empty:
        return Summary("no study", (("Runs", "none yet"),))
    extents = {str(name): _behind(own) for name, own in runs.groupby("study", sort=False)}
    differing = _set_differently(report)
    set_differently = several_named(differing, _MOST_SETTINGS) or "nothing"
    compared = [(each, each.result["differences"]) for each in panels if "differences" in each.result]
    # The first notes are one per pair of studies; the notes after them are about single cells.
    answers = [
        note
        for panel, rows in compared
        for note in panel.notes[: len({(row["a"], row["b"]) for row in rows})]
    ]
    studies = [*extents]
    lowest = {
        sweep.name: float(sweep.ended["loss"].min()) for sweep in report.sweeps if not sweep.ended.empty
    }
    if len(lowest) > 1 and tasks_of(runs).nunique() == 1:
        first, *others = sorted(lowest, key=lambda name: lowest[name])
        against = listed([f"{lowest[name]:.4f} of {name}" for name in others])
        answers = [
            f"{first} has the lowest loss: {lowest[first]:.4f} {report.loss_unit}, against {against}.",
            *answers,
        ]
    return Summary(
        listed(studies),
        [
            *extents.items(),
            ("Set differently", f"{set_differently} ({' / '.join(studies)})"),
            *_precision(runs),
        ],
        answers=answers,
    )


def _set_differently(report: ReportData) -> list[str]:
    """List the settings in which the studies' files differ, with each study's value; for tables, the columns."""
    if not report.studied:
        return [f"{name} {' / '.join(values)}" for name, values in settings(report.sweeps).items()]
    written = [spec.as_written() | {"name": None} for spec in report.studied.specs.values()]
    places = dict.fromkeys(each.place for other in written[1:] for each in differences(written[0], other))

    def value(file: Any, place: str) -> str:
        for key in place.split("."):
            if not isinstance(file, Mapping):
                return "–"
            file = file.get(key)
        if file is None:
            return "–"
        return json.dumps(file)

    return [f"{place} {' / '.join(value(file, place) for file in written)}" for place in places]


def _behind(runs: DataFrame) -> str:
    """Count the trials behind a study's losses: in all, per cell, and their seeds."""
    trials = trials_table(runs)
    counted = trials[trials["state"].isin(COUNTED)].groupby("cell").size()
    least, most = map(int, counted.agg(["min", "max"]).fillna(0))
    per_cell, ended = several(most, "trial"), trials.loc[trials["state"].isin(VALUED), "loss"]
    if least < most:
        per_cell = f"{least} to {per_cell}"
    text = f"{_extent(runs)}; {per_cell} per cell, {several(runs['seed'].nunique(), 'seed')}"
    if ended.notna().any():
        text += f"; lowest loss {ended.min():.4f} {MEASURED_ON['val_loss']}"
    return text


def summarize_table(assessment: Assessment, source: str) -> Summary:
    """Put a table, and the law that was fitted to it, into words."""
    columns = assessment.points.columns
    ranges = (f"{name} {span(float(column.min()), float(column.max()))}" for name, column in columns.items())
    rows, law = f"{assessment.points.n:,}: {', '.join(ranges)}", assessment.as_dict()
    return Summary(source, [("Rows", rows), *summarize_law(law)], answers=[_law_in_words(law)])


def summarize_law(law: Mapping[str, Any]) -> Entries:
    """Describe a law: how many numbers are identified, its exponents, and a form that does not fit."""
    estimates = law["parameters"] | law["derived"]
    numbers = Counter(each["verdict"] for each in estimates.values())
    verdicts = counts({name: numbers[name] for name in (IDENTIFIED, WEAK, NOT_IDENTIFIED) if name in numbers})
    exponents = _estimates_in_words(_with_value(law, _EXPONENTS))
    entries = [("Scaling law", f"{law['law']}, {law['formula']}; its numbers: {verdicts}")]
    if exponents:
        entries.append(("Exponents", exponents))
    if law["misfit"]["status"] == FLAGGED:
        entries.append(("Form of the law", law["misfit"]["sentences"][0]))
    return entries


def _extent(runs: DataFrame) -> str:
    seeds = runs.groupby(["cell", "trial"])["seed"].nunique()
    text = several(len(runs), "run")
    if seeds.max() > 1:
        fewest = f"{seeds.min()} to " if seeds.min() < seeds.max() else ""
        text += f" ({several(len(seeds), 'trial')} of {fewest}{several(seeds.max(), 'seed')})"
    return f"{text} in {several(runs['cell'].nunique(), 'cell')}: {states_in_words(runs['state'])}"


def _cells(runs: DataFrame, grid: Sequence[str]) -> str:
    sizes = " to ".join(dict.fromkeys([written(runs["n_params"].min()), written(runs["n_params"].max())]))
    values = (f"{name} {', '.join(map(written, _sorted(runs[name])))}" for name in grid)
    is_product = runs["cell"].nunique() == math.prod(runs[name].nunique() for name in grid)
    between = " by " if is_product else "; "  # the full product, or single changes
    return f"{between.join(values) or 'one'}; {sizes} parameters"


def _best(row: Series, tuned: Sequence[str], unit: str) -> str:
    """Describe the trial of the lowest loss: its loss, cell, size and hyperparameters."""
    loss, trial = f"{row['loss']:.4f} {unit}", f"trial {int(row['trial'])}"
    if row["seeds"] > 1:
        loss += f" (the mean of {several(row['seeds'], 'seed')})"
    if row["cell"] != "all":
        trial += f" in cell {spaced(row['cell'])}"
    of = f"{written(row['n_params'])} parameters"
    if tuned:
        of += f"; {', '.join(f'{name} {written(row[name])}' for name in tuned)}"
    return f"{loss}: {trial} ({of})"


def _range(values: Iterable[Any]) -> str:
    distinct = _sorted(values)
    if len(distinct) > 4 and all(isinstance(value, int | float) for value in distinct):
        return f"{written(distinct[0])} to {written(distinct[-1])}"
    return ", ".join(written(value) for value in distinct)


def _sorted(values: Iterable[Any]) -> list[Any]:
    """Sort the distinct values without missing ones, numbers by value and the rest by their text."""
    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    distinct = {str(value): value for value in plain if value is not None and value == value}
    numbers = [value for value in distinct.values() if isinstance(value, int | float)]
    others = [value for value in distinct.values() if not isinstance(value, int | float)]
    return [*sorted(numbers), *sorted(others, key=str)]


# The head of each page.
SUMMARIES: dict[str, Callable[[ReportData, Sequence[Panel]], Summary]] = {
    "scaling": summarize_scaling,
    "sweep": summarize_sweep,
    "compare": summarize_comparison,
}
