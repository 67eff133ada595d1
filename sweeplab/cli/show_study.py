"""How far a study is, as a person reads it."""

from __future__ import annotations

from typing import Any

from sweeplab.cli.tables import cell_text, console, print_rows
from sweeplab.lab.listing import baselines_in_words


def print_study(shown: dict[str, Any]) -> None:
    """Print what `show_study` returned: a row a cell, the best run, and what failed."""
    out = console()
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
    for source in dict.fromkeys(each for sources in shown["warm_start"].values() for each in sources):
        count = sum(sources.get(source, 0) for sources in shown["warm_start"].values())
        out.print(
            f"warm start: {count} trials of {source}, known to the sampler and not counted",
            markup=False,
            soft_wrap=True,
        )
    for words in baselines_in_words(shown["baselines"]):
        out.print(words, markup=False, soft_wrap=True)
    if best := shown["best"]:
        searched = ", ".join(f"{name}={cell_text(value)}" for name, value in best["sampled"].items())
        out.print(
            f"best: {shown['metric']} {best['value']:.4f} by {best['key']}  {searched}",
            markup=False,
            soft_wrap=True,
        )
    for failure in shown["failures"]:
        out.print(f"failed: {failure['key']}: {failure['error']}", style="red", markup=False, soft_wrap=True)
