"""Where the ledger of forecasts lies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Ledger = Annotated[
    Path | None,
    typer.Option(
        "--ledger",
        metavar="FILE",
        help="The file of sealed forecasts.  [default: ledger.jsonl in the lab]",
        show_default=False,
    ),
]


def ledger_file(given: Path | None, lab: Path | None) -> Path:
    """Return the ledger: as given, else the lab's."""
    from sweeplab.analysis.ledger.chain import FILE_NAME
    from sweeplab.records.folders import lab_folder

    return (given or lab_folder(lab) / FILE_NAME).expanduser().absolute()
