"""A study in a few sentences: how its runs ended, what was compared, which trial is best."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from pandas import DataFrame, Series

from sweeplab.analysis.sweep.differences import settings
from sweeplab.analysis.sweep.importance import FEWEST_TRIALS, WITHIN, WITHIN_CHANCE
from sweeplab.analysis.sweep.trials import Sweep
from sweeplab.analysis.trials import COUNTED, VALUED, are_best, grid_of, searched_of, tasks_of, trials_table
from sweeplab.data.task import loss_unit
from sweeplab.formatting import counts, listed, rounded, sentence, several, several_named, span, written
from sweeplab.lab.findings import find_limits
from sweeplab.lab.identity import differences
from sweeplab.lab.listing import read_trials
from sweeplab.lab.showing import baselines_in_words, commands_about
from sweeplab.laws.assessment import Assessment
from sweeplab.laws.estimation.verdicts import IDENTIFIED, NOT_IDENTIFIED, WEAK
from sweeplab.laws.evidence import chosen_best
from sweeplab.laws.misfit.form import FLAGGED
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import MEASURED_ON
from sweeplab.report.data import ReportData, states_in_words
from sweeplab.report.panels.base import Panel
from sweeplab.report.style import spaced

# At most this many different settings are named.
_MOST_SETTINGS = 8
_N_GRAMS = "N-gram baseline"
_EXPONENTS = ("alpha", "beta", "N_opt exponent")
_ANSWERS = ("alpha", "beta", "gamma", "tokens per parameter")
Entries = list[tuple[str, str]]


@dataclass(frozen=True)
class Summary:
    """The head of a report: the question, the answers, and further entries as (name, text).

    `best` is the trial of the lowest loss, if any, and `use` has the commands about it, by what they do. Runs with
    different tasks have no best trial.
    """

    study: str
    entries: Sequence[tuple[str, str]]
    best: Mapping[str, Any] = field(default_factory=dict)
    asked: str = ""
    answers: Sequence[str] = ()
    use: Mapping[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, str]:
        """Return all texts by their names."""
        said = {"Asked": self.asked, "Answer": " ".join(self.answers)}
        return {what: words for what, words in said.items() if words} | dict(self.entries)


def summarize(report: ReportData) -> Summary:
    """Put the runs of a study into words."""
    runs = report.runs
    if runs.empty:
        return Summary("no study", (("Runs", "none yet"),))
    grid = grid_of(runs, report.design)
    tuned = [name for name in searched_of(runs, report.design) if name not in grid]
    entries: Entries = []
    trials = trials_table(runs)
    tasks = trials.assign(task=tasks_of(trials))
    bests = [row for _, row in tasks[are_best(tasks, ["task"])].sort_values("loss").iterrows()]
    if not bests:
        entries.append(("Best trial", "no trial has ended with a loss yet"))
    for row in bests:
        task = row["task"]
        of = f"{task}: " if len(bests) > 1 else ""
        counted = tasks[tasks["state"].isin(COUNTED)]
        evidence = chosen_best(int(row["seeds"]), int((counted["task"] == task).sum()))
        unit = loss_unit([row["objective"]] if "objective" in row else ())
        said = f"{_best(row, tuned, unit)}; {evidence.in_words()}"
        entries.append(("Best trial", of + said))
    for _, cell in report.confirmed[:1]:
        if test := cell.test:
            where = MEASURED_ON["test_loss"]
            ends = "" if math.isnan(test.low) else f", {test.low:.4f} to {test.high:.4f}"
            said = f"{test.value:.4f} {report.loss_unit} {where}{ends}"
            of = (
                f", the lowest of {several(len(report.confirmed), 'cell')}"
                if len(report.confirmed) > 1
                else ""
            )
            entries.append(("Confirmed", f"{said}: trial {cell.trial} in cell {spaced(cell.cell)}{of}"))
    best: dict[str, Any] = {}
    if len(bests) == 1:
        best = {
            "cell": bests[0]["cell"],
            "trial": int(bests[0]["trial"]),
            "loss": float(bests[0]["loss"]),
            "evidence": asdict(evidence),
            "n_params": bests[0]["n_params"],
            "hyperparameters": {name: bests[0][name] for name in (*grid, *tuned)},
        }
    if report.lab and report.studied:
        folder = StudyFolder(report.lab, report.study)
        limits = find_limits(folder, read_trials(folder))
        entries += [("To change", sentence(each.in_words())) for each in limits]
    entries += [*_beside_baselines(report, best), ("Runs", _extent(runs)), ("Cells", _cells(runs, grid))]
    if tuned:
        ranges = (f"{name} ({_range(runs[name])})" for name in tuned)
        entries.append(("Varied within a cell", ", ".join(ranges)))
    return Summary(report.study, entries, best, use=_use(report, bests))


def _use(report: ReportData, bests: Sequence[Series]) -> dict[str, str]:
    """Return the commands that generate with the best trial, train it again and open the study."""
    if len(bests) != 1 or not (report.lab and report.studied):
        return {}
    folder = StudyFolder(report.lab, report.study)
    return commands_about(folder, str(bests[0].get("objective", "")))


def _beside_baselines(report: ReportData, best: Mapping[str, Any]) -> Entries:
    """Describe the n-gram baselines, and how far the lowest loss is below or above the baseline of its cell."""
    # The page shows the name beside each text, so the text drops it.
    said = [each.removeprefix(_N_GRAMS.lower()).lstrip(": ") for each in baselines_in_words(report.baselines)]
    if best and best["cell"] in report.baselines:
        own = report.baselines[best["cell"]]
        baseline = float(own["loss"])
        where = "below" if best["loss"] < baseline else "above"
        beaten = sum(best["loss"] < loss for loss in own.get("by_order", ()))
        also = f", and below that of order {beaten}" if where == "above" and beaten else ""
        said.append(f"the lowest loss is {abs(1 - best['loss'] / baseline):.1%} {where} it{also}")
    return [(_N_GRAMS, words) for words in said[:_MOST_SETTINGS]]


def summarize_scaling(report: ReportData, panels: Sequence[Panel]) -> Summary:
    """Put a study and its scaling law into words."""
    found, runs = summarize(report), report.runs
    if runs.empty:
        return found
    law = next((each.result for each in panels if "parameters" in each.result), None)
    grid = grid_of(runs, report.design)
    tuned = [name for name in searched_of(runs, report.design) if name not in grid]
    of = listed(grid) if grid else "its size"
    each = f", each by its best trial over {listed(tuned)}" if tuned else ""
    cells = several(runs["cell"].nunique(), "cell")
    asked = f"How does the loss depend on {of}? Compared: {cells}{each}."
    answers = [*_trend(runs), *([_law_in_words(law)] if law else [])]
    entries = [*found.entries, *(summarize_law(law) if law else [])]
    return replace(found, entries=entries, asked=asked, answers=answers)


def _trend(runs: DataFrame) -> list[str]:
    """Give the lowest loss at the smallest and the largest model (or training), and where it is lowest."""
    trials = trials_table(runs)
    ended = trials[trials["state"].isin(VALUED) & trials["loss"].notna()]
    if tasks_of(ended).nunique() > 1:
        return []
    units = {"n_params": "parameters", "train_tokens": "training tokens"}
    role = next((each for each in units if ended[each].nunique() > 1), None)
    if role is None:
        return []
    lowest = ended.groupby(role)["loss"].min()
    (low, first), (high, last) = (next(iter(lowest.iloc[[end]].items())) for end in (0, -1))
    at: Any = lowest.idxmin()
    said = f"From {low:,.0f} to {high:,.0f} {units[role]} the lowest loss goes from {first:.4f} to {last:.4f}"
    return [f"{said}{'' if at == high else f'; it is lowest, {lowest[at]:.4f}, at {at:,.0f}'}."]


def _law_in_words(said: Mapping[str, Any]) -> str:
    """Give a law's exponents with their intervals, or say that the points identify none."""
    entries = {
        name: each for name, each in (said["parameters"] | said["derived"]).items() if name in _ANSWERS
    }
    known = [
        f"{name} {rounded(each['value'])} ({span(each['low'], each['high'])}, {each['verdict']})"
        for name, each in entries.items()
        if each["value"] is not None
    ]
    law = f"{said['law']}, {said['formula']},"
    if known:
        return f"The law {law} has {listed(known)} (90% intervals)."
    name, first = next(iter(entries.items()))
    ends = span(first["low"], first["high"])
    return f"These {said['n_points']} points do not identify the law {law} yet: the 90% interval of {name} is {ends}."


def summarize_sweep(report: ReportData, panels: Sequence[Panel]) -> Summary:
    """Describe a study and the hyperparameters that mattered in its search."""
    found = summarize(report)
    if report.runs.empty:
        return found
    (sweep,) = report.sweeps
    searched, grid = [each.name for each in sweep.dimensions], [each.name for each in sweep.grid]
    within = f" in each of {several(len(sweep.cells), 'cell')} of {listed(grid)}" if grid else ""
    asked = f"Which of {several(len(sweep.cells), 'cell')} is best?"
    if searched:
        asked = f"Which hyperparameters matter ({listed(searched)}){within}, and which values are good?"
    ranked = next((each.notes[0] for each in panels if "choices" in each.result and each.notes), "")
    return replace(found, asked=asked, answers=[*_what_mattered(report, sweep), *filter(None, [ranked])])


def _what_mattered(report: ReportData, sweep: Sweep) -> list[str]:
    """Name the hyperparameters whose importance is above chance, with their shares and good values."""
    if not sweep.dimensions:
        return []
    scope = WITHIN if len(sweep.cells) > 1 else sweep.cells[0]
    found = [each for each in report.importances(sweep) if each.scope == scope]
    if not found:
        return [f"Importances need {FEWEST_TRIALS} trials or more; there are {len(sweep.trials)}."]
    found.sort(key=lambda each: -each.importance)
    matters = [each for each in found if each.verdict != WITHIN_CHANCE]
    others = [each.hyperparameter for each in found if each.verdict == WITHIN_CHANCE]
    shares = [
        f"{each.hyperparameter} {each.importance:.0%} ({each.low:.0%} to {each.high:.0%})"
        for each in matters or found[:1]
    ]
    if not matters:
        n = several(found[0].n_trials, "trial")
        return [
            f"No searched hyperparameter is distinguishable from chance in {n}; the first is {shares[0]}."
        ]
    told = f"; not distinguishable from chance: {listed(others)}" if others else ""
    said = f"Share of the importance: {listed(shares)}{told}."
    return [said, *_good_values(sweep, [each.hyperparameter for each in matters])]


def _good_values(sweep: Sweep, names: Sequence[str]) -> list[str]:
    """Give the values of hyperparameters in the best fifth of each cell's trials."""
    best = sweep.trials[sweep.trials["standing"] <= 1 / 5]
    values = [f"{name} {_range(best[name])}" for name in names]
    return [f"The best fifth of each cell's trials have {listed(values)}."] if len(best) > 1 else []


def summarize_comparison(report: ReportData, panels: Sequence[Panel]) -> Summary:
    """Describe several studies: their different settings, whether their losses differ, and the trials behind each."""
    runs = report.runs
    if runs.empty:
        return Summary("no study", (("Runs", "none yet"),))
    extents = {str(name): _behind(own) for name, own in runs.groupby("study", sort=False)}
    differing = _set_differently(report)
    set_differently = several_named(differing, _MOST_SETTINGS) or "nothing"
    found = [(each, each.result["differences"]) for each in panels if "differences" in each.result]
    # The first notes are one per pair of studies; the notes after them are about single cells.
    answers = [
        note for each, rows in found for note in each.notes[: len({(row["a"], row["b"]) for row in rows})]
    ]
    studies = [*extents]
    return Summary(
        listed(studies),
        [*extents.items(), ("Set differently", f"{set_differently} ({' / '.join(studies)})")],
        asked=f"Do the best losses of {listed(studies)} differ, and what was set differently?",
        answers=answers,
    )


def _set_differently(report: ReportData) -> list[str]:
    """Return the settings in which the studies' files differ, with each study's value; for tables, the columns."""
    if not report.studied:
        return [f"{name} {' / '.join(values)}" for name, values in settings(report.sweeps).items()]
    written = [spec.as_written() | {"name": None} for spec in report.studied.specs.values()]
    places = dict.fromkeys(each.place for other in written[1:] for each in differences(written[0], other))

    def value(file: Any, place: str) -> str:
        for key in place.split("."):
            file = file.get(key) if isinstance(file, Mapping) else None
        return "–" if file is None else json.dumps(file)

    return [f"{place} {' / '.join(value(file, place) for file in written)}" for place in places]


def _behind(runs: DataFrame) -> str:
    """Count the trials behind a study's losses: in all, per cell, and their seeds."""
    trials = trials_table(runs)
    counted = trials[trials["state"].isin(COUNTED)].groupby("cell").size()
    least, most = (int(counted.min()), int(counted.max())) if len(counted) else (0, 0)
    per_cell = f"{least} to {most} trials" if least < most else several(most, "trial")
    ended = trials.loc[trials["state"].isin(VALUED), "loss"]
    lowest = f"; lowest loss {ended.min():.4f} {MEASURED_ON['val_loss']}" if ended.notna().any() else ""
    seeds = several(runs["seed"].nunique(), "seed")
    return f"{_extent(runs)}; {per_cell} per cell, {seeds}{lowest}"


def summarize_table(found: Assessment, source: str) -> Summary:
    """Put a table, and the law that was fitted to it, into words."""
    columns = found.points.columns
    ranges = (f"{name} {span(float(column.min()), float(column.max()))}" for name, column in columns.items())
    rows = f"{found.points.n:,}: {', '.join(ranges)}"
    return Summary(source, [("Rows", rows), *summarize_law(found.as_dict())])


def summarize_law(said: Mapping[str, Any]) -> Entries:
    """Describe a law: how many numbers are identified, its exponents, and a form that does not fit."""
    entries = said["parameters"] | said["derived"]
    found = Counter(entry["verdict"] for entry in entries.values())
    verdicts = counts({each: found[each] for each in (IDENTIFIED, WEAK, NOT_IDENTIFIED) if each in found})
    exponents = ", ".join(
        f"{name} {rounded(entry['value'])} ({span(entry['low'], entry['high'])}, {entry['verdict']})"
        for name, entry in entries.items()
        if entry["value"] is not None and name in _EXPONENTS
    )
    law = ("Scaling law", f"{said['law']}, {said['formula']}; its numbers: {verdicts}")
    form = said["misfit"]
    flag = [("Form of the law", form["sentences"][0])] if form["status"] == FLAGGED else []
    return [law, *([("Exponents", exponents)] if exponents else []), *flag]


def _extent(runs: DataFrame) -> str:
    n_trials, n_seeds = len(runs[["cell", "trial"]].drop_duplicates()), runs["seed"].nunique()
    trials = f" ({several(n_trials, 'trial')} of {several(n_seeds, 'seed')})" if n_seeds > 1 else ""
    cells = several(runs["cell"].nunique(), "cell")
    return f"{several(len(runs), 'run')}{trials} in {cells}: {states_in_words(runs['state'])}"


def _cells(runs: DataFrame, grid: Sequence[str]) -> str:
    smallest, largest = written(runs["n_params"].min()), written(runs["n_params"].max())
    sizes = f"{smallest if smallest == largest else f'{smallest} to {largest}'} parameters"
    values = (f"{name} {', '.join(written(each) for each in _sorted(runs[name]))}" for name in grid)
    is_product = runs["cell"].nunique() == math.prod(runs[name].nunique() for name in grid)
    between = " by " if is_product else "; "  # the full product, or single changes
    return f"{between.join(values) or 'one'}; {sizes}"


def _best(row: Series, tuned: Sequence[str], unit: str) -> str:
    """Describe the trial of the lowest loss: its loss, cell, size and hyperparameters."""
    mean = f" (the mean of {row['seeds']} seeds)" if row["seeds"] > 1 else ""
    cell = "" if row["cell"] == "all" else f" in cell {spaced(row['cell'])}"
    values = ", ".join(f"{name} {written(row[name])}" for name in tuned)
    of = f"{written(row['n_params'])} parameters{f'; {values}' if values else ''}"
    return f"{row['loss']:.4f} {unit} {MEASURED_ON['val_loss']}{mean}: trial {int(row['trial'])}{cell} ({of})"


def _range(values: Iterable[Any]) -> str:
    distinct = _sorted(values)
    if len(distinct) > 4 and all(isinstance(value, int | float) for value in distinct):
        return f"{written(distinct[0])} to {written(distinct[-1])}"
    return ", ".join(written(value) for value in distinct)


def _sorted(values: Iterable[Any]) -> list[Any]:
    """Return the distinct values without missing ones, numbers by value and the rest by their text."""
    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    distinct = {str(value): value for value in plain if value is not None and value == value}
    return sorted(
        distinct.values(),
        key=lambda value: (0, value, "") if isinstance(value, int | float) else (1, 0, str(value)),
    )


# The head of each page.
SUMMARIES: dict[str, Callable[[ReportData, Sequence[Panel]], Summary]] = {
    "scaling": summarize_scaling,
    "sweep": summarize_sweep,
    "compare": summarize_comparison,
}
