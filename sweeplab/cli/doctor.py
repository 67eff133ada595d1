"""`sweeplab doctor`: what may keep a study from running or its numbers from being right, and its repair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from sweeplab.cli import options
from sweeplab.cli.options import argument, flag
from sweeplab.cli.printing import console, print_answer, print_json, say
from sweeplab.errors import BadInput, Problem
from sweeplab.lab.listing import file_of, find_study, name_in
from sweeplab.records.folders import StudyFolder, lab_folder

if TYPE_CHECKING:
    from sweeplab.doctor import Check
    from sweeplab.doctor.repair import Repaired

COLORS = {"ok": "green", "warn": "yellow", "bad": "red"}


def doctor(
    name: Annotated[
        str | None, argument("[NAME]", "Name of a study, or its file.", autocompletion=options.study_files)
    ] = None,
    repair: Annotated[bool, flag("Make the study's storage, folders and MLflow agree.", "--repair")] = False,
    dry_run: Annotated[bool, flag("With --repair: only print what would be done.", "--dry-run")] = False,
    allow_plugins: options.AllowPlugins = False,
    lab: options.Lab = None,
    as_json: options.AsJson = False,
) -> None:
    """Check machine, lab and study, and suggest cures.

    Of a study that has not run yet it checks the engine. Exits with 1 if a check is bad: a study would
    not run, or its numbers may be wrong. --repair leaves alone what a worker holds; it can be run again, and while
    the study runs.

    \b
    $ sweeplab doctor small
    $ sweeplab doctor small --repair --dry-run
    """
    if repair:
        if name is None:
            raise BadInput(Problem("--repair is of a study", "NAME --repair"))
        _repair(find_study(lab, name_in(name)), dry_run, allow_plugins, as_json)
        return
    if dry_run:
        raise BadInput(Problem("--dry-run is of a repair", "NAME --repair --dry-run"))
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
            _print_check(check)
    if as_json:
        print_json([asdict(check) for check in checks])
    if any(check.verdict == "bad" for check in checks):
        raise typer.Exit(1)


def _print_check(check: Check) -> None:
    from rich.text import Text

    verdict = (f"{check.verdict:4}", COLORS[check.verdict])
    line = Text.assemble(verdict, f"  {check.name:9}  {check.found}  ", (check.looked_at, "dim"))
    console().print(line, soft_wrap=True)
    if check.cure:
        say(f"      → {check.cure}")


def _repair(folder: StudyFolder, dry_run: bool, allow_plugins: bool, as_json: bool) -> None:
    from sweeplab.doctor.repair import repair_study
    from sweeplab.lab.moving import finish_renaming

    renamed = not dry_run and finish_renaming(folder)
    repaired = repair_study(folder, dry_run, allow_plugins)
    lines = _repaired_in_words(folder, repaired)
    if renamed:
        lines = [f"renamed to {folder.name}", *lines]
    print_answer((repaired, "\n".join(lines or [f"study {folder.name} has nothing to repair"])), as_json)


def _repaired_in_words(folder: StudyFolder, repaired: Repaired) -> Sequence[str]:
    from sweeplab.doctor.findings import FAULTS

    lines = [f"{each.name}: {FAULTS[each.kind].what}: {what}" for each, what in repaired.done]
    lines += [f"left alone: {f'{each.name}: ' if each else ''}{what}" for each, what in repaired.left]
    if repaired.to_train:
        trials = ", ".join(f"{cell} #{number}" for cell, number in repaired.to_train)
        lines.append(f"{folder.command('resume')} trains again: {trials}")
    return lines
