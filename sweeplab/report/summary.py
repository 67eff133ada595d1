"""A study in a few sentences: how many runs ended how, what was compared, which was best."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from pandas import DataFrame

from sweeplab.analysis.fit.assessment import IDENTIFIED, NOT_IDENTIFIED, WEAK, Assessment
from sweeplab.analysis.misfit.form import FLAGGED
from sweeplab.analysis.sweep.differences import settings
from sweeplab.analysis.trials import VALUED, grid_of, searched_of, tasks_of, trials_table
from sweeplab.lab.listing import baselines_in_words
from sweeplab.report.panels.base import Panel
from sweeplab.report.panels.material import Material
from sweeplab.report.words import counted, listed, several, span, told, written

VERDICTS = (IDENTIFIED, WEAK, NOT_IDENTIFIED)
# Studies that differ in more hyperparameters than these are told by their files.
_MOST_SETTINGS = 8
_N_GRAMS = "Counting alone"
_TOLD = ("alpha", "beta", "N_opt exponent")


@dataclass(frozen=True)
class Summary:
    """What stands on top of a report, as (what, in words); `best` is the trial of the lowest loss, if any.

    Of runs with unlike tasks there is none.
    """

    study: str
    entries: tuple[tuple[str, str], ...]
    best: dict[str, Any] = field(default_factory=dict)


def summarize(runs: DataFrame) -> Summary:
    """Put the runs of a study, a row a run, into words."""
    if runs.empty:
        return Summary("no study", (("Runs", "none yet"),))
    study = str(runs["study"].iloc[0])
    grid = grid_of(runs)
    tuned = [name for name in searched_of(runs) if name not in grid]
    entries = [("Runs", _extent(runs)), ("Cells", _cells(runs, grid))]
    if tuned:
        ranges = (f"{name} ({_range(runs[name].tolist())})" for name in tuned)
        entries.append(("Varied within a cell", ", ".join(ranges)))
    trials = trials_table(runs)
    ended = trials[trials["state"].isin(VALUED) & trials["loss"].notna()]
    if ended.empty:
        return Summary(study, (*entries, ("Lowest loss", "no trial has ended with a loss yet")))
    by_task = list(ended.sort_values("loss").groupby(tasks_of(ended), sort=False))
    for task, own in by_task:
        row = own.iloc[0]
        best = {
            "cell": row["cell"],
            "trial": int(row["trial"]),
            "loss": float(row["loss"]),
            "n_params": row["n_params"],
            "hyperparameters": {name: row[name] for name in (*grid, *tuned)},
        }
        of = f"{task}: " if len(by_task) > 1 else ""
        entries.append(("Lowest loss", of + _best(best, int(row["seeds"]), tuned)))
    return Summary(study, tuple(entries), best if len(by_task) == 1 else {})


def summarize_scaling(material: Material, panels: Sequence[Panel]) -> Summary:
    """Put a study and its scaling law into words."""
    summary = _beside_baselines(summarize(material.runs), material)
    law = next((each.result for each in panels if "parameters" in each.result), None)
    if law:
        summary = replace(summary, entries=(*summary.entries, *summarize_law(law), *flagged(panels)))
    return summary


def _beside_baselines(summary: Summary, material: Material) -> Summary:
    """Say what n-grams reach, and by how much the lowest loss of a cell lies below what they do there."""
    baselines = material.baselines
    said = [(_N_GRAMS, words) for words in baselines_in_words(baselines)]
    if (best := summary.best) and best["cell"] in baselines:
        counted = float(baselines[best["cell"]]["loss"])
        where = "below" if best["loss"] < counted else "above"
        said.append((_N_GRAMS, f"the lowest loss is {abs(1 - best['loss'] / counted):.1%} {where} it"))
    return replace(summary, entries=(*summary.entries, *said[:_MOST_SETTINGS]))


def summarize_comparison(material: Material, panels: Sequence[Panel]) -> Summary:
    """Put several studies into words: what they have, in what they were set differently, whether they differ."""
    runs = material.runs
    if runs.empty:
        return Summary("no study", (("Runs", "none yet"),))
    studies = list(runs.groupby("study", sort=False))
    entries = [(str(name), _extent(own)) for name, own in studies]
    apart = [f"{name} {' / '.join(values)}" for name, values in settings(material.sweeps).items()]
    more = f" and {len(apart) - _MOST_SETTINGS} more" if len(apart) > _MOST_SETTINGS else ""
    entries.append(("Set differently", f"{', '.join(apart[:_MOST_SETTINGS])}{more}" if apart else "nothing"))
    found = [note for each in panels if "differences" in each.result for note in each.notes]
    entries += [("Difference", note) for note in found]
    return Summary(listed([str(name) for name, _ in studies]), tuple(entries))


def flagged(panels: Sequence[Panel]) -> tuple[tuple[str, str], ...]:
    """Return what is wrong with the law's form, as an entry of the summary, where a panel flags it."""
    said = next((each.result for each in panels if each.result.get("status") == FLAGGED), None)
    return (("Its form", said["sentences"][0]),) if said else ()


def summarize_table(found: Assessment, source: str) -> Summary:
    """Put a table, and the law that was fitted to it, into words."""
    columns = found.points.columns
    ranges = (f"{name} {span(float(column.min()), float(column.max()))}" for name, column in columns.items())
    rows = f"{found.points.n:,}: {', '.join(ranges)}"
    return Summary(source, (("Rows", rows), *summarize_law(found.as_dict())))


def summarize_law(said: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Put a law into words: how many of its numbers are identified, and the exponents that are."""
    entries = said["parameters"] | said["derived"]
    verdicts = Counter(entry["verdict"] for entry in entries.values())
    exponents = (
        f"{name} {told(entry['value'])} ({span(entry['low'], entry['high'])}, {entry['verdict']})"
        for name, entry in entries.items()
        if entry["value"] is not None and name in _TOLD
    )
    counts = ", ".join(f"{verdicts[each]} {each}" for each in VERDICTS if each in verdicts)
    law = f"{said['law']}, {said['formula']}; of its numbers {counts}"
    return (("Scaling law", law), *((("Exponents", words),) if (words := ", ".join(exponents)) else ()))


def _extent(runs: DataFrame) -> str:
    n_trials, n_seeds = len(runs[["cell", "trial"]].drop_duplicates()), runs["seed"].nunique()
    trials = f" ({several(n_trials, 'trial')} of {several(n_seeds, 'seed')})" if n_seeds > 1 else ""
    cells = several(runs["cell"].nunique(), "cell")
    return f"{several(len(runs), 'run')}{trials} in {cells}: {counted(runs['state'])}"


def _cells(runs: DataFrame, grid: Sequence[str]) -> str:
    smallest, largest = written(runs["n_params"].min()), written(runs["n_params"].max())
    sizes = f"{smallest if smallest == largest else f'{smallest} to {largest}'} parameters"
    values = (f"{name} {', '.join(written(each) for each in _sorted(runs[name]))}" for name in grid)
    is_product = runs["cell"].nunique() == math.prod(runs[name].nunique() for name in grid)
    between = " by " if is_product else "; "  # all with all, or changed one by one
    return f"{between.join(values) or 'one'}; {sizes}"


def _best(best: dict[str, Any], seeds: int, tuned: Sequence[str]) -> str:
    values = ", ".join(f"{name} {written(best['hyperparameters'][name])}" for name in tuned)
    mean = f" (the mean of {seeds} seeds)" if seeds > 1 else ""
    cell = "" if best["cell"] == "all" else f" of {str(best['cell']).replace(',', ', ')}"
    size = f"{written(best['n_params'])} parameters"
    text = f"{best['loss']:.4f} nats/token{mean}, by trial {best['trial']}{cell} ({size})"
    return f"{text} with {values}" if values else text


def _range(values: Sequence[Any]) -> str:
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
SUMMARIES: dict[str, Callable[[Material, Sequence[Panel]], Summary]] = {
    "scaling": summarize_scaling,
    "sweep": lambda material, panels: _beside_baselines(summarize(material.runs), material),
    "compare": summarize_comparison,
}
