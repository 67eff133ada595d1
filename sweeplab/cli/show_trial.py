"""One trial, as a person reads it."""

from __future__ import annotations

from typing import Any

from sweeplab.cli.plot import plot
from sweeplab.cli.tables import cell_text, console, print_rows
from sweeplab.cli.words import duration

PLOT_WIDTH, PLOT_HEIGHT = 60, 10
PLOT_MARGIN = 12  # for the losses beside it
# What a person asked for or the sampler chose comes first, what the table says last.
ORDER = ("enqueued", "searched", "derived", "cells", "grid", "fixed", "default")


def print_trial(shown: dict[str, Any]) -> None:
    """Print what `show_trial` returned."""
    out = console()

    def say(text: str = "") -> None:
        out.print(text, markup=False, soft_wrap=True)

    value = "" if shown["value"] is None else f", {shown['metric']} {shown['value']:.4f}"
    again = "" if shown["retries"] is None else f"; trial {shown['retries']} tried again"
    say(f"{shown['study']}: trial {shown['trial']} of {shown['cell']}: {shown['state']}{value}{again}")
    say(f"{shown['facts']['n_params']:,} parameters, {shown['facts']['train_tokens']:,} tokens to train on")
    say()
    rows = sorted(shown["hyperparameters"], key=lambda row: ORDER.index(row["from"].partition(",")[0]))
    print_rows(
        [{"name": row["name"], "value": _text(row["value"]), "from": row["from"]} for row in rows],
        text=("name", "value", "from"),
    )
    curves = [
        [(p["iteration"], p["val_loss"]) for p in run["curve"] if p["val_loss"] is not None]
        for run in shown["runs"]
    ]
    if lines := plot(curves, min(PLOT_WIDTH, out.width - PLOT_MARGIN), PLOT_HEIGHT):
        say("\nval_loss over iterations")
        for line in lines:
            say(line)
    for run in shown["runs"]:
        say()
        for line in _run(run):
            say(line)
    if shown["error"]:
        say(f"\n{shown['error'].rstrip()}")


def _run(run: dict[str, Any]) -> list[str]:
    reason = f": {run['stop_reason']}" if run["stop_reason"] else f" at iteration {run['iteration']}"
    times = {name: seconds for name, seconds in run["seconds"].items() if seconds is not None}
    return [
        f"seed {run['seed']}: {run['state']}{reason}",
        f"  time: {', '.join(f'{name} {_seconds(seconds)}' for name, seconds in times.items())}",
        f"  checkpoint: {run['checkpoint'] or 'none'}",
        f"  folder: {run['folder']}",
    ]


def _text(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else cell_text(value)


def _seconds(seconds: float) -> str:
    return duration(seconds) if seconds >= 10 else f"{seconds:.2f}s"
