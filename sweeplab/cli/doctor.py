"""`sweeplab doctor`: what is wrong, and the cure."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from sweeplab.cli.options import AsJson, Lab, MaybeStudyName
from sweeplab.cli.printing import console, print_json, say
from sweeplab.lab.listing import find_study
from sweeplab.records.folders import lab_folder

if TYPE_CHECKING:
    from sweeplab.doctor import Check

COLORS = {"ok": "green", "warn": "yellow", "bad": "red"}


def doctor(name: MaybeStudyName = None, lab: Lab = None, as_json: AsJson = False) -> None:
    """Check machine, lab and study, and suggest cures.

    Exits with 1 if a check is bad: a study would not run, or its numbers may be wrong.

    \b
    $ sweeplab doctor small
    """
    from sweeplab.doctor import examine

    checks = []
    for check in examine(lab_folder(lab), find_study(lab, name) if name else None):
        checks.append(check)
        if not as_json:
            _print(check)
    if as_json:
        print_json([asdict(check) for check in checks])
    if any(check.verdict == "bad" for check in checks):
        raise typer.Exit(1)


def _print(check: Check) -> None:
    """Print a check on one line, and its cure unbroken on the next, to be copied."""
    from rich.text import Text

    verdict = (f"{check.verdict:4}", COLORS[check.verdict])
    line = Text.assemble(verdict, f"  {check.name:9}  {check.found}  ", (check.looked_at, "dim"))
    console().print(line, soft_wrap=True)
    if check.cure:
        say(f"      → {check.cure}")
