"""`sweeplab laws fit`: one law, one table, and what may be said."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sweeplab.cli.laws.source import Columns, Count, Source, points_from
from sweeplab.cli.options import AsJson, Lab


def fit(
    source: Source,
    columns: Columns = None,
    count: Count = None,
    law: Annotated[
        str,
        typer.Option(
            "--law",
            metavar="LAW",
            help="One of chinchilla, tied, kaplan, joint, power-n, power-d or power-c.",
        ),
    ] = "chinchilla",
    delta: Annotated[
        str,
        typer.Option(
            metavar="DELTA", help="Huber's delta in log units, auto (1.345 sigma), or least-squares."
        ),
    ] = "auto",
    flops: Annotated[
        float | None,
        typer.Option(
            metavar="C",
            help="Budget to find the optimum for.  [default: the table's largest]",
            show_default=False,
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="ROLE=NUMBER,…", help="Give the loss at params=…,tokens=… too.", show_default=False
        ),
    ] = None,
    bootstrap: Annotated[
        int, typer.Option(metavar="REFITS", min=0, help="Refits of resampled tables beside the intervals.")
    ] = 0,
    report: Annotated[
        Path | None,
        typer.Option(metavar="PAGE.html", help="Write a page of the law, with figures.", show_default=False),
    ] = None,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Fit a law to a table, and judge every number of it.

    A number that the table does not identify is not shown; the verdict says why.

    \b
    $ sweeplab laws fit runs.csv --columns params=N,tokens=D,loss=loss
    $ sweeplab laws fit small --law power-n --json
    $ sweeplab laws fit runs.csv --report law.html
    """
    from sweeplab.analysis.fit.assessment import assess, find_law, parse_target
    from sweeplab.cli.laws.show_fit import print_assessment
    from sweeplab.cli.tables import print_json

    form = find_law(law)
    target = parse_target(at) if at else None
    points = points_from(source, columns, lab, count)
    if report:
        from sweeplab.report.data import N_REFITS
        from sweeplab.report.writer import write_law_report

        bootstrap = bootstrap or N_REFITS
    assessed = assess(points, form, delta, flops, target, bootstrap)
    found = assessed.as_dict()
    if report:
        write_law_report(assessed, source, report)
    if as_json:
        print_json(found | ({"report": str(report)} if report else {}))
    else:
        print_assessment(found)
        if report:
            typer.echo(report)
