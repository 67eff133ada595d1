"""`sweeplab laws verify`: is the ledger as it was written, and how good were the forecasts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sweeplab.cli.completion import studies
from sweeplab.cli.laws.place import Ledger, ledger_file
from sweeplab.cli.laws.source import Columns, Count
from sweeplab.cli.options import AsJson, Lab


def verify(
    study: Annotated[
        str | None,
        typer.Argument(
            metavar="STUDY",
            help="Only forecasts of this study, or from it.",
            show_default=False,
            autocompletion=studies,
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The table that forecasts were made from, with the new rows.",
            show_default=False,
        ),
    ] = None,
    columns: Columns = None,
    count: Count = None,
    ledger: Ledger = None,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Check the ledger, and score forecasts whose runs have ended.

    The error, whether the interval held, and the CRPS beside those of naive forecasters. A
    forecast that was made after its run began is refused; a broken chain ends with code 2.

    \b
    $ sweeplab laws verify small
    $ sweeplab laws verify --against runs.csv
    """
    from sweeplab.analysis.columns import parse_columns
    from sweeplab.analysis.conventions import Conventions, parse_conventions
    from sweeplab.analysis.ledger.chain import read_chain
    from sweeplab.analysis.ledger.outcomes import of_study, outcomes
    from sweeplab.analysis.ledger.targets import Counting
    from sweeplab.cli.laws.show_ledger import print_scores, scores_as_dict
    from sweeplab.cli.tables import print_json
    from sweeplab.errors import BadInput
    from sweeplab.records.folders import lab_folder

    counting = None
    if columns or count:
        if against is None:
            raise BadInput("--columns and --count are for the table of --against FILE")
        conventions = parse_conventions(count) if count else Conventions()
        counting = Counting(conventions, parse_columns(columns) if columns else {})
    chain = read_chain(ledger_file(ledger, lab))
    entries = of_study(chain.entries, study) if study else chain.entries
    found = outcomes(entries, lab_folder(lab), against, counting)
    if as_json:
        print_json(scores_as_dict(chain, found))
    else:
        print_scores(chain, found)
