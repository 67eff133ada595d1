"""`sweeplab study list` and `show`: the studies of a lab, one study, one trial."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

from sweeplab.cli.options import InCell, Lab, StudyName, option
from sweeplab.cli.printing import Answer, cell_text, console, print_rows, say
from sweeplab.formatting import duration
from sweeplab.lab.listing import find_study
from sweeplab.lab.showing import baselines_in_words, show_study, show_trial, states_in_words, study_rows
from sweeplab.records.folders import lab_folder

PLOT_WIDTH, PLOT_HEIGHT = 60, 10
PLOT_MARGIN = 12  # for the losses beside it
# A trial's hyperparameters by where they come from: what a person or the sampler chose comes first.
ORIGINS = ("enqueued", "searched", "derived", "cells", "grid", "fixed", "default")
# A character of braille is two dots wide and four high; these are the bits of its dots, by column and row.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_BRAILLE = 0x2800
Curve = Sequence[tuple[float, float]]


def list_studies(lab: Lab = None) -> Answer:
    """List the studies of the lab.

    \b
    $ sweeplab study list
    $ sweeplab study list --json
    """
    rows = study_rows(lab_folder(lab))
    return rows, _print_studies if rows else f"no studies in {lab_folder(lab)}"


def _print_studies(studies: list[dict[str, Any]]) -> None:
    rows = [row | {"states": states_in_words(row["states"])} for row in studies]
    print_rows(rows, text=("name", "states"), keys=("name", "trials", "best_value", "states"))


def show(
    name: StudyName,
    trial: Annotated[int | None, option("N", "Show this trial in full.")] = None,
    cell: InCell = None,
    lab: Lab = None,
) -> Answer:
    """Show how far a study is, or one trial in full.

    Of a study: one row per cell, and its best run. Of a trial: its hyperparameters and where each
    comes from, its curve, why it ended, its checkpoints, and where its time went.

    \b
    $ sweeplab study show small
    $ sweeplab study show small --trial 3 --cell n_layer=1,n_embd=32
    """
    folder = find_study(lab, name)
    if trial is not None:
        return show_trial(folder, trial, cell), _print_trial
    return show_study(folder), print_study


def print_study(shown: dict[str, Any]) -> None:
    """Print what `show_study` returned: one row per cell, the best run, and the failures."""
    total = shown["trials_per_cell"]
    rows = [
        {
            **{name: value for name, value in cell.items() if name != "baseline"},
            "n_params": f"{cell['n_params']:,}" if cell["n_params"] else None,
            "trials": f"{cell['trials']}/{total}" if total else cell["trials"],
        }
        for cell in shown["cells"]
    ]
    if rows:
        print_rows(rows, text=("cell",))
    for source, count in sum(map(Counter, shown["warm_start"].values()), Counter[str]()).items():
        say(f"warm start: {count} trials of {source}, which the sampler knows and the budget does not count")
    for words in baselines_in_words(shown["baselines"]):
        say(words)
    if best := shown["best"]:
        searched = ", ".join(f"{name}={cell_text(value)}" for name, value in best["sampled"].items())
        say(f"best: {shown['metric']} {best['value']:.4f} by {best['key']}  {searched}")
    for failure in shown["failures"]:
        say(f"failed: {failure['key']}: {failure['error']}", "red")


def _print_trial(shown: dict[str, Any]) -> None:
    value = "" if shown["value"] is None else f", {shown['metric']} {shown['value']:.4f}"
    again = "" if shown["retries"] is None else f"; retries trial {shown['retries']}"
    say(f"{shown['study']}: trial {shown['trial']} in cell {shown['cell']}: {shown['state']}{value}{again}")
    say(f"{shown['facts']['n_params']:,} parameters, {shown['facts']['train_tokens']:,} training tokens\n")
    rows = sorted(shown["hyperparameters"], key=lambda row: ORIGINS.index(row["from"].partition(",")[0]))
    print_rows(
        [{"name": row["name"], "value": _text(row["value"]), "from": row["from"]} for row in rows],
        text=("name", "value", "from"),
    )
    curves = [
        [(p["iteration"], p["val_loss"]) for p in run["curve"] if p["val_loss"] is not None]
        for run in shown["runs"]
    ]
    if lines := plot(curves, min(PLOT_WIDTH, console().width - PLOT_MARGIN), PLOT_HEIGHT):
        say("\nval_loss over iterations")
        say("\n".join(lines))
    for run in shown["runs"]:
        reason = f": {run['stop_reason']}" if run["stop_reason"] else f" at iteration {run['iteration']}"
        times = {name: seconds for name, seconds in run["seconds"].items() if seconds is not None}
        say(f"\nseed {run['seed']}: {run['state']}{reason}")
        say(f"  time: {', '.join(f'{name} {_seconds(seconds)}' for name, seconds in times.items())}")
        say(f"  checkpoint: {run['checkpoint'] or 'none'}")
        say(f"  folder: {run['folder']}")
    if shown["error"]:
        say(f"\n{shown['error'].rstrip()}")


def _text(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else cell_text(value)


def _seconds(seconds: float) -> str:
    return duration(seconds) if seconds >= 10 else f"{seconds:.2f}s"


def plot(curves: Sequence[Curve], width: int, height: int) -> list[str]:
    """Return curves as lines of braille, `width` characters wide without the labels; none where there is no point."""
    curves = [[point for point in curve if all(map(math.isfinite, point))] for curve in curves]
    points = [point for curve in curves for point in curve]
    if not points:
        return []
    (left, right), (low, high) = (_range([point[axis] for point in points]) for axis in (0, 1))
    n_columns, n_rows = 2 * width - 1, 4 * height - 1
    cells = [[0] * width for _ in range(height)]
    for curve in curves:
        dots = [
            (round((x - left) / (right - left) * n_columns), round((high - y) / (high - low) * n_rows))
            for x, y in curve
        ]
        for start, end in zip(dots, dots[1:] or dots, strict=False):
            for column, row in _between(start, end):
                cells[row // 4][column // 2] |= _DOTS[column % 2][row % 4]
    labels = [cell_text(high), *[""] * (height - 2), cell_text(low)]
    margin = max(map(len, labels))
    lines = [
        f"{label:>{margin}} ┤{''.join(chr(_BRAILLE + bits) for bits in row)}"
        for label, row in zip(labels, cells, strict=True)
    ]
    ends = f"{cell_text(left)}{cell_text(right):>{max(1, width - len(cell_text(left)))}}"
    return [*lines, f"{'':{margin}} └{'─' * width}", f"{'':{margin}}  {ends}"]


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def _between(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the dots of a straight line."""
    (x, y), (dx, dy) = start, (end[0] - start[0], end[1] - start[1])
    steps = max(abs(dx), abs(dy), 1)
    return [(round(x + dx * step / steps), round(y + dy * step / steps)) for step in range(steps + 1)]
