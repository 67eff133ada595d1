"""A study in a few sentences: how many runs ended how, what was compared, which trial is best."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from pandas import DataFrame, Series

from sweeplab.analysis.assessment import Assessment
from sweeplab.analysis.fit.verdicts import IDENTIFIED, NOT_IDENTIFIED, WEAK
from sweeplab.analysis.misfit.form import FLAGGED
from sweeplab.analysis.sweep.differences import settings
from sweeplab.analysis.trials import COUNTED, VALUED, grid_of, searched_of, tasks_of, trials_table
from sweeplab.formatting import counts, listed, rounded, several, span, written
from sweeplab.lab.showing import baselines_in_words
from sweeplab.records.evidence import chosen_best
from sweeplab.report.data import ReportData, states_in_words
from sweeplab.report.panels.base import Panel
from sweeplab.report.style import spaced

# Studies that differ in more hyperparameters than these are described by their files.
_MOST_SETTINGS = 8
_N_GRAMS = "N-gram baseline"
_EXPONENTS = ("alpha", "beta", "N_opt exponent")
Entries = list[tuple[str, str]]


@dataclass(frozen=True)
class Summary:
    """What stands on top of a report, as (what, in words); `best` is the trial of the lowest loss, if any.

    Of runs with unlike tasks there is none.
    """

    study: str
    entries: Sequence[tuple[str, str]]
    best: Mapping[str, Any] = field(default_factory=dict)


def summarize(report: ReportData) -> Summary:
    """Put the runs of a study into words."""
    runs = report.runs
    if runs.empty:
        return Summary("no study", (("Runs", "none yet"),))
    grid = grid_of(runs, report.design)
    tuned = [name for name in searched_of(runs, report.design) if name not in grid]
    entries = [("Runs", _extent(runs)), ("Cells", _cells(runs, grid))]
    if tuned:
        ranges = (f"{name} ({_range(runs[name])})" for name in tuned)
        entries.append(("Varied within a cell", ", ".join(ranges)))
    trials = trials_table(runs)
    ended = trials[trials["state"].isin(VALUED) & trials["loss"].notna()]
    bests = [own.iloc[0] for _, own in ended.sort_values("loss").groupby(tasks_of(ended), sort=False)]
    if not bests:
        entries.append(("Lowest loss", "no trial has ended with a loss yet"))
    for task, row in zip(tasks_of(DataFrame(bests)), bests, strict=True):
        of = f"{task}: " if len(bests) > 1 else ""
        counted = trials[trials["state"].isin(COUNTED)]
        evidence = chosen_best(int(row["seeds"]), int((tasks_of(counted) == task).sum()))
        said = f"{_best(row, tuned)}; {evidence.in_words()}"
        entries.append(("Lowest loss", of + said))
    for _, cell in report.confirmed[:1]:
        if test := cell.test:
            said = f"{test.value:.4f} nats/token on the test split, {test.low:.4f} to {test.high:.4f}"
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
    return Summary(report.study, [*entries, *_beside_baselines(report, best)], best)


def _beside_baselines(report: ReportData, best: Mapping[str, Any]) -> Entries:
    """Say what n-grams reach, and how far the lowest loss of a cell lies below the baseline there."""
    said = baselines_in_words(report.baselines)
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
    found = summarize(report)
    law = next((each.result for each in panels if "parameters" in each.result), None)
    about_law = summarize_law(law) if law else []
    return Summary(found.study, [*found.entries, *about_law], found.best)


def summarize_comparison(report: ReportData, panels: Sequence[Panel]) -> Summary:
    """Put several studies into words: what they have, in what they were set differently, whether they differ."""
    runs = report.runs
    if runs.empty:
        return Summary("no study", (("Runs", "none yet"),))
    extents = {str(name): _extent(own) for name, own in runs.groupby("study", sort=False)}
    differing = [f"{name} {' / '.join(values)}" for name, values in settings(report.sweeps).items()]
    more = f" and {len(differing) - _MOST_SETTINGS} more" if len(differing) > _MOST_SETTINGS else ""
    set_differently = f"{', '.join(differing[:_MOST_SETTINGS])}{more}" if differing else "nothing"
    found = [("Difference", note) for each in panels if "differences" in each.result for note in each.notes]
    return Summary(listed([*extents]), [*extents.items(), ("Set differently", set_differently), *found])


def summarize_table(found: Assessment, source: str) -> Summary:
    """Put a table, and the law that was fitted to it, into words."""
    columns = found.points.columns
    ranges = (f"{name} {span(float(column.min()), float(column.max()))}" for name, column in columns.items())
    rows = f"{found.points.n:,}: {', '.join(ranges)}"
    return Summary(source, [("Rows", rows), *summarize_law(found.as_dict())])


def summarize_law(said: Mapping[str, Any]) -> Entries:
    """Put a law into words: how many of its numbers are identified, the exponents that are, a form that is wrong."""
    entries = said["parameters"] | said["derived"]
    found = Counter(entry["verdict"] for entry in entries.values())
    verdicts = counts({each: found[each] for each in (IDENTIFIED, WEAK, NOT_IDENTIFIED) if each in found})
    exponents = ", ".join(
        f"{name} {rounded(entry['value'])} ({span(entry['low'], entry['high'])}, {entry['verdict']})"
        for name, entry in entries.items()
        if entry["value"] is not None and name in _EXPONENTS
    )
    law = ("Scaling law", f"{said['law']}, {said['formula']}; of its numbers {verdicts}")
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
    between = " by " if is_product else "; "  # all with all, or changed one by one
    return f"{between.join(values) or 'one'}; {sizes}"


def _best(row: Series, tuned: Sequence[str]) -> str:
    """Say in words which trial has the lowest loss, of what size it is, and with which hyperparameters."""
    mean = f" (the mean of {row['seeds']} seeds)" if row["seeds"] > 1 else ""
    cell = "" if row["cell"] == "all" else f" in cell {spaced(row['cell'])}"
    values = ", ".join(f"{name} {written(row[name])}" for name in tuned)
    of = f"{written(row['n_params'])} parameters{f'; {values}' if values else ''}"
    return f"{row['loss']:.4f} nats/token{mean}: trial {int(row['trial'])}{cell} ({of})"


def _range(values: Iterable[Any]) -> str:
    distinct = _sorted(values)
    if len(distinct) > 4 and all(isinstance(value, int | float) for value in distinct):
        return f"{written(distinct[0])} to {written(distinct[-1])}"
    return ", ".join(written(value) for value in distinct)


def _sorted(values: Iterable[Any]) -> list[Any]:
    """Return the distinct values that are there, numbers by size and all else by what is written."""
    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    distinct = {str(value): value for value in plain if value is not None and value == value}
    return sorted(
        distinct.values(),
        key=lambda value: (0, value, "") if isinstance(value, int | float) else (1, 0, str(value)),
    )


# What stands on top of each page.
SUMMARIES: dict[str, Callable[[ReportData, Sequence[Panel]], Summary]] = {
    "scaling": summarize_scaling,
    "sweep": lambda report, panels: summarize(report),
    "compare": summarize_comparison,
}
