"""`sweeplab laws isoflop`: three roads to the best use of compute, and whether they agree."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sweeplab.cli.laws.source import Columns, Count, Source, is_file, points_from, studies_from
from sweeplab.cli.options import AsJson, Lab

if TYPE_CHECKING:
    from sweeplab.analysis.compute_optimal.envelope import Curves
    from sweeplab.analysis.points import Points


def isoflop(
    source: Source,
    columns: Columns = None,
    count: Count = None,
    budgets: Annotated[
        str | None,
        typer.Option(
            metavar="N|FLOPS,…",
            help="Bin the rows into N budgets, or take those nearest to the ones named.  "
            "[default: those that rows share]",
            show_default=False,
        ),
    ] = None,
    law: Annotated[
        str, typer.Option("--law", metavar="LAW", help="The parametric road's: one of N and D.")
    ] = "chinchilla",
    flops: Annotated[
        float | None,
        typer.Option(
            metavar="C", help="Budget to give N_opt for.  [default: the table's largest]", show_default=False
        ),
    ] = None,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Find the best use of compute on three roads.

    Parabolas at equal compute, the envelope of training curves and a fitted law, compared. A minimum without rows on
    both sides is none.

    \b
    $ sweeplab laws isoflop runs.csv --columns params=N,tokens=D,loss=loss
    $ sweeplab laws isoflop small --budgets 6 --json
    """
    from sweeplab.analysis.compute_optimal.approaches import approaches
    from sweeplab.analysis.compute_optimal.isoflop import parse_budgets
    from sweeplab.cli.tables import print_json

    asked = parse_budgets(budgets) if budgets else None
    points, curves = _read(source, columns, count, lab)
    found = approaches(points, curves, law, asked, flops).as_dict()
    if as_json:
        print_json(found)
    else:
        _show(found)


def _read(
    source: str, columns: str | None, count: str | None, lab: Path | None
) -> tuple[Points, Curves | None]:
    """Return the points of a file or of studies, and a study's curves; a file has its own in its groups."""
    if is_file(source):
        return points_from(source, columns, lab, count), None
    from sweeplab.analysis.columns import parse_columns
    from sweeplab.analysis.conventions import parse_conventions
    from sweeplab.records.folders import lab_folder

    studies = studies_from(source, lab)
    chosen = studies.settled(parse_conventions(count) if count else None)
    points = studies.points(parse_columns(columns) if columns else None, chosen)
    return points, studies.loss_curves(lab_folder(lab), chosen)


def _show(found: dict[str, Any]) -> None:
    from sweeplab.cli.tables import cell_text, console, print_rows

    out = console()

    def say(text: str, style: str | None = None) -> None:
        out.print(text, style=style, markup=False, soft_wrap=True)

    say(f"{found['n_points']} rows; N_opt at {found['budget_flops']:.3g} FLOPs; {found['isoflop']['how']}")
    say("; ".join(f"{name}: {what}" for name, what in found["conventions"].items()))
    rows = [
        {
            "road": road,
            "quantity": name,
            "value": entry["value"],
            "low": cell_text(entry["low"]),
            "high": cell_text(entry["high"]),
            "verdict": entry["verdict"],
        }
        for road, numbers in found["roads"].items()
        for name, entry in numbers.items()
    ]
    out.print()
    print_rows(rows, text=("road", "quantity", "verdict"))
    if budgets := found["isoflop"]["budgets"]:
        keys = ("flops", "n_rows", "n_opt", "n_opt_low", "n_opt_high", "d_opt", "loss", "why_none")
        out.print()
        print_rows([{key: each[key] for key in keys} for each in budgets], text=("why_none",))
    out.print()
    for road, numbers in found["roads"].items():
        reasons: dict[str, list[str]] = {}
        for name, entry in numbers.items():
            if entry["verdict"] != "identified":
                reasons.setdefault(f"{entry['verdict']}: {entry['why']}", []).append(name)
        for why, names in reasons.items():
            say(f"{road}: {', '.join(names)}: {why}")
    for each in found["disagreements"]:
        say(each["says"])
    for warning in found["warnings"]:
        say(f"warning: {warning}", "yellow")
