"""`sweeplab laws compare`: laws by what they predict, and whether their form is right."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sweeplab.cli.laws.source import Columns, Count, Source, points_from
from sweeplab.cli.options import AsJson, Lab


def compare(
    source: Source,
    columns: Columns = None,
    count: Count = None,
    laws: Annotated[
        str | None,
        typer.Option(
            "--laws",
            metavar="LAW,…",
            help="The first is what the others are held against.  [default: all that suit the table]",
            show_default=False,
        ),
    ] = None,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Compare laws by their forecasts of larger runs.

    Each law is fitted below several compute cuts and predicts above them. A form is flagged where its residuals follow
    a pattern; what the design could not have shown is said.

    \b
    $ sweeplab laws compare runs.csv --columns params=N,tokens=D,loss=loss
    $ sweeplab laws compare small --laws chinchilla,joint --json
    """
    from sweeplab.analysis.fit.assessment import find_law
    from sweeplab.analysis.misfit.comparison import compare as hold
    from sweeplab.cli.tables import print_json

    names = list(dict.fromkeys(name.strip() for name in laws.split(","))) if laws else []
    forms = [find_law(name) for name in names]
    found = hold(points_from(source, columns, lab, count), forms or None).as_dict()
    if as_json:
        print_json(found)
    else:
        _show(found)


def _show(found: dict[str, Any]) -> None:
    from sweeplab.cli.tables import console, print_rows

    out = console()

    def say(text: str, style: str | None = None) -> None:
        out.print(text, style=style, markup=False, soft_wrap=True)

    cuts = found["cuts"]
    where = ", ".join(f"{each['at']:.3g} ({each['rows_above']} above)" for each in cuts["cuts"])
    say(f"{found['n_points']} rows; cuts in {cuts['by']}: {where or 'none'}")
    out.print()
    print_rows([_row(each) for each in found["laws"]], text=("law", "form"))
    out.print()
    for sentence in found["sentences"]:
        say(sentence)
    for name, why in found["left_out"].items():
        say(f"{name} is left out: {why}", "yellow")


def _row(law: dict[str, Any]) -> dict[str, Any]:
    test, lead = law["backtest"], law["lead"] or {}
    chance = lead.get("chance")
    return {
        "law": law["law"],
        "back-test error": _percent(test.get("error")),
        "bias": _percent(test.get("bias"), "+"),
        "coverage of 90%": _percent(test.get("coverage"), digits=0),
        "lead": _percent(lead.get("value"), "+"),
        "by chance": _percent(chance, digits=1),
        "in sample": _percent(law["in_sample"]),
        "form": law["misfit"]["status"],
    }


def _percent(share: float | None, sign: str = "", digits: int = 2) -> str | None:
    return None if share is None else f"{share:{sign}.{digits}%}"
