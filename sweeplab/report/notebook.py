"""A study in a notebook, while it runs and afterwards: one row per cell, and the best run. Without scripts."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from html import escape
from typing import Any

from sweeplab.formatting import several
from sweeplab.lab.events import Event, RunEvaluated, Tick
from sweeplab.records.runs import RunState
from sweeplab.sweep.work.progress import StudyProgress

MOST_CELLS = 30
# In the text's own color, so that it is legible on light and dark.
_STYLE = (
    "<style>.sweeplab td,.sweeplab th{text-align:right!important;padding:2px 10px}"
    ".sweeplab td:first-child,.sweeplab th:first-child{text-align:left!important}"
    ".sweeplab tr.best td{font-weight:600}</style>"
)
REFRESH_SECONDS = 0.5
# Those that have ended first.
_STATES = (*filter(lambda state: state.is_finished, RunState), RunState.RUNNING, RunState.WAITING)


def study_html(name: str, lab: str, shown: Mapping[str, Any] | None) -> str:
    """Return the HTML for the result of `show_study`; None means that the study has not been run."""
    head = f"<div class='sweeplab'>{_STYLE}<b>{escape(name)}</b> <small>in {escape(lab)}</small>"
    if shown is None:
        return f"{head}<p>not run yet</p></div>"
    cells = shown["cells"]
    states = [state for state in _STATES if any(cell.get(state) for cell in cells)]
    titles = ["cell", "parameters", "trials", *states, shown["metric"]]
    lowest = min((cell["best_value"] for cell in cells if cell["best_value"] is not None), default=None)
    rows = [_row(cell, shown["trials_per_cell"], states, lowest) for cell in cells[:MOST_CELLS]]
    header = _cells(titles, "th")
    more = f"<p>and {several(len(cells) - MOST_CELLS, 'more cell')}</p>" if len(cells) > MOST_CELLS else ""
    return f"{head}<table><tr>{header}</tr>{''.join(rows)}</table>{more}{_best(shown)}</div>"


def _row(cell: Mapping[str, Any], total: int | None, states: Iterable[str], lowest: float | None) -> str:
    n_params, best = cell["n_params"], cell["best_value"]
    values = [
        cell["cell"],
        f"{n_params:,}" if n_params else "–",
        f"{cell['trials']}/{total}" if total else str(cell["trials"]),
        *(str(cell[state] or "–") if state in cell else "–" for state in states),
        "–" if best is None else f"{best:.4f}",
    ]
    mark = " class='best'" if best is not None and best == lowest else ""
    return f"<tr{mark}>{_cells(values, 'td')}</tr>"


def _cells(values: Iterable[str], tag: str) -> str:
    return "".join(f"<{tag}>{escape(value)}</{tag}>" for value in values)


def _best(shown: Mapping[str, Any]) -> str:
    best = shown["best"]
    if not best:
        return "<p>no trial has ended yet</p>"
    searched = ", ".join(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
                         for name, value in best["sampled"].items())  # fmt: skip
    return f"<p>best: {best['value']:.4f} by {escape(best['key'])} {f'with {escape(searched)}' if searched else ''}</p>"


def live_in_notebook(name: str) -> Callable[[Event, StudyProgress], None]:
    """Return a callback that shows a running study in this notebook; outside a notebook it does nothing."""
    ipython = sys.modules.get("IPython")
    if ipython is None or getattr(ipython.get_ipython(), "kernel", None) is None:
        return lambda event, progress: None
    from importlib import import_module

    shown: Any = import_module("IPython.display")
    handle, drawn = shown.display(shown.HTML(f"{escape(name)}: starting"), display_id=True), 0.0

    def show(event: Event, progress: StudyProgress) -> None:
        nonlocal drawn
        now = time.monotonic()
        if not isinstance(event, Tick) or now - drawn > REFRESH_SECONDS:
            drawn = now
            handle.update(shown.HTML(progress_html(name, progress)))

    return show


def progress_html(name: str, progress: StudyProgress) -> str:
    """Return the HTML of a running study: a bar, and what is done, best and running in each cell."""
    total, per_cell = progress.plan.trials, progress.plan.budget.trials_per_cell
    bar = f"<progress value='{progress.counted}' max='{total}'></progress> " if total else ""
    of = f" of {total}" if total else ""
    rows = []
    for plan in progress.plan.cells[:MOST_CELLS]:
        cell = progress.cells[plan.cell]
        running = [
            f"#{number} "
            + (f"{event.iteration} {event.val_loss:.3f}" if isinstance(event, RunEvaluated) else "…")
            for (key, number), event in sorted(progress.live.items())
            if key == plan.cell
        ]
        done = f"{cell.counted}/{plan.n_trials(per_cell)}" if per_cell else str(cell.counted)
        best = "–" if cell.best is None else f"{cell.best:.4f}"
        values = [plan.cell, f"{plan.n_params:,}", done, best, ", ".join(running) or "–"]
        rows.append(f"<tr>{_cells(values, 'td')}</tr>")
    header = _cells(["cell", "parameters", "trials", progress.plan.metric, "running"], "th")
    head = f"<b>{escape(name)}</b> {bar}{progress.counted}{of} trials"
    return f"<div class='sweeplab'>{_STYLE}{head}<table><tr>{header}</tr>{''.join(rows)}</table></div>"
