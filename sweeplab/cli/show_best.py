"""A study's best trial, and how two studies differ, as a person reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sweeplab.cli.tables import cell_text, console, print_rows
from sweeplab.lab.best import Trial
from sweeplab.lab.differences import KINDS
from sweeplab.study.problems import shown

SAME = {
    "file": "the same study file",
    "data": "the same data",
    "code": "the same code",
    "results": "no results yet",
}


def print_best(trial: Trial) -> None:
    """Print a trial: its value, what was searched for it, and all the rest."""
    out = console()
    value = f"{trial.value:.6f}" if trial.value is not None else "no value"
    seeds = f"seed{'s' if len(trial.seeds) > 1 else ''} {', '.join(map(str, trial.seeds))}"
    out.print(
        f"{value}  {trial.outcome}  trial {trial.trial} of {trial.cell}, {seeds}",
        markup=False,
        soft_wrap=True,
    )
    for name, each in trial.sampled.items():
        out.print(f"  {name}: {shown(each)}", markup=False, soft_wrap=True)
    rest = ", ".join(
        f"{name} {shown(each)}" for name, each in trial.values.items() if name not in trial.sampled
    )
    out.print(f"with {rest}", style="dim", markup=False, soft_wrap=True)


def print_differences(found: Mapping[str, Any]) -> None:
    """Print what `differ` returned: a table a kind, or that there is no difference."""
    out = console()
    for index, kind in enumerate(KINDS):
        if index:
            out.print()
        rows = found[kind]
        out.print(kind if rows else f"{kind}: {SAME[kind]}", style="bold" if rows else "", markup=False)
        if rows and kind == "results" and found["measure"] != "value":
            out.print("in bits a byte, for the tokens differ", markup=False)
        if rows:
            print_rows([_row(found, kind, row) for row in rows], text=("place", found["a"], found["b"]))


def _row(found: Mapping[str, Any], kind: str, row: Mapping[str, Any]) -> dict[str, Any]:
    if kind == "results":
        change = f"{row['change']:+.4f}" if row["change"] is not None else None
        return {"cell": row["place"], found["a"]: row["a"], found["b"]: row["b"], "change": change}
    return {"place": row["place"], found["a"]: _text(row["a"]), found["b"]: _text(row["b"])}


def _text(value: Any) -> str:
    return cell_text(None) if value is None else value if isinstance(value, str) else shown(value)
