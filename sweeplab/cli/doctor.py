"""`sweeplab doctor`: what is wrong, and the cure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sweeplab.cli.completion import studies
from sweeplab.cli.options import AsJson, Lab

if TYPE_CHECKING:
    from rich.console import Console

    from sweeplab.doctor import Check

COLOURS = {"ok": "green", "warn": "yellow", "bad": "red"}


def doctor(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="Name of a study.", show_default=False, autocompletion=studies),
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

    from sweeplab.cli.tables import console, print_json
    from sweeplab.doctor import examine
    from sweeplab.lab.listing import find_study
    from sweeplab.records.folders import lab_folder

    checks, out = [], console()
    for check in examine(lab_folder(lab), find_study(lab, name) if name else None):
        checks.append(check)
        if not as_json:
            _print(check, out)
    if as_json:
        print_json([asdict(check) for check in checks])
    if any(check.verdict == "bad" for check in checks):
        raise typer.Exit(1)


def _print(check: Check, out: Console) -> None:
    """Print a check on a line of its own, and its cure under it, unbroken, to be copied."""
    from rich.text import Text

    line = Text.assemble(
        (f"{check.verdict:4}", COLOURS[check.verdict]),
        f"  {check.name:9}  {check.found}  ",
        (check.looked_at, "dim"),
    )
    out.print(line, soft_wrap=True)
    if check.cure:
        out.print(Text(f"      → {check.cure}"), soft_wrap=True)
