"""`sweeplab doctor`: what is wrong, and the cure."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from sweeplab.cli.options import AsJson, Lab, argument, study_files
from sweeplab.cli.printing import console, print_json, say
from sweeplab.lab.listing import file_of, find_study, name_in
from sweeplab.records.folders import StudyFolder, lab_folder

if TYPE_CHECKING:
    from sweeplab.doctor import Check

COLORS = {"ok": "green", "warn": "yellow", "bad": "red"}


def doctor(
    name: Annotated[
        str | None, argument("[NAME]", "Name of a study, or its file.", autocompletion=study_files)
    ] = None,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Check machine, lab and study, and suggest cures.

    Of a study that has not run yet it checks the engine. Exits with 1 if a check is bad: a study would
    not run, or its numbers may be wrong.

    \b
    $ sweeplab doctor small
    """
    from sweeplab.doctor import examine

    checks, place = [], lab_folder(lab)
    folder = spec = None
    if name and file_of(name).is_file() and not StudyFolder(place, name_in(name)).has_started:
        from sweeplab.study.file.reading import read_study

        spec = read_study(file_of(name))
        folder = StudyFolder(place, spec.name)
    elif name:
        folder = find_study(lab, name_in(name))
    for check in examine(place, folder, spec):
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
