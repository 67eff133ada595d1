"""`sweeplab doctor`: what is wrong, and the cure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from sweeplab.cli.options import AsJson, Lab

if TYPE_CHECKING:
    from sweeplab.study.doctor import Check

COLOURS = {"ok": "green", "warn": "yellow", "bad": "red"}


def doctor(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Name of a study.", show_default=False)
    ] = None,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Check machine, lab and study, and say the cures.

    Exits with 1 where something is bad: a study does not run, or its numbers may be wrong.

    \b
    $ sweeplab doctor small
    """
    from dataclasses import asdict

    from sweeplab.cli.tables import print_json
    from sweeplab.study.doctor import examine
    from sweeplab.study.folder import lab_folder
    from sweeplab.study.listing import find_study

    checks = list(examine(lab_folder(lab), find_study(lab, name) if name else None))
    if as_json:
        print_json([asdict(check) for check in checks])
    else:
        _print(checks)
    if any(check.verdict == "bad" for check in checks):
        raise typer.Exit(1)


def _print(checks: Iterable[Check]) -> None:
    from rich.table import Table
    from rich.text import Text

    from sweeplab.cli.tables import console

    checks, out = list(checks), console()
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("", "check", "of", "found"):
        table.add_column(heading, no_wrap=heading in ("", "check"), overflow="fold")
    for check in checks:
        verdict = Text(check.verdict, style=COLOURS[check.verdict])
        table.add_row(verdict, check.name, Text(check.looked_at), Text(check.found))
    out.print(table)
    for check in checks:
        if check.cure:
            out.print(f"{check.name}: {check.cure}", markup=False, soft_wrap=True)
