"""A study as a notebook shows it: where it stands, a row a cell, and its best run. One table, no script."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

MOST_CELLS = 30
# Of the text's own color, so that it reads on light and on dark.
_STYLE = (
    "<style>.sweeplab td,.sweeplab th{text-align:right!important;padding:2px 10px}"
    ".sweeplab td:first-child,.sweeplab th:first-child{text-align:left!important}"
    ".sweeplab tr.best td{font-weight:600}</style>"
)
_STATES = ("complete", "stopped", "pruned", "diverged", "failed", "running", "waiting")


def study_html(name: str, lab: str, shown: Mapping[str, Any] | None) -> str:
    """Return the HTML of what `show_study` returned; of nothing, that the study has not been run."""
    head = f"<div class='sweeplab'>{_STYLE}<b>{escape(name)}</b> <small>in {escape(lab)}</small>"
    if shown is None:
        return f"{head}<p>not run yet</p></div>"
    cells = shown["cells"]
    states = [state for state in _STATES if any(cell.get(state) for cell in cells)]
    titles = ["cell", "parameters", "trials", *states, shown["metric"]]
    lowest = min((cell["best_value"] for cell in cells if cell["best_value"] is not None), default=None)
    rows = [_row(cell, shown["trials_per_cell"], states, lowest) for cell in cells[:MOST_CELLS]]
    header = _cells(titles, "th")
    more = f"<p>and {len(cells) - MOST_CELLS} cells more</p>" if len(cells) > MOST_CELLS else ""
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
        return "<p>no trial has come to its end yet</p>"
    searched = ", ".join(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
                         for name, value in best["sampled"].items())  # fmt: skip
    return f"<p>best: {best['value']:.4f} by {escape(best['key'])} {f'with {escape(searched)}' if searched else ''}</p>"
