"""`sweeplab doctor` and `storage`: what may keep a lab's studies from running, its repair, and the lab's own server."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sweeplab.cli import options
from sweeplab.cli.options import argument, flag, option
from sweeplab.cli.printing import Answer, print_answer, print_json, say
from sweeplab.errors import BadInput, Problem
from sweeplab.lab.listing import file_of, find_study, name_in, study_names
from sweeplab.records.folders import StudyFolder, lab_folder

if TYPE_CHECKING:
    from sweeplab.doctor import Check
    from sweeplab.lab.server import Server


COLORS = {"ok": "green", "warn": "yellow", "bad": "red"}


def doctor(
    name: Annotated[
        str | None,
        argument("[NAME]", "Name of a study, or its file.", autocompletion=options.study_files),
    ] = None,
    repair: Annotated[
        bool, flag("Make the study's storage, folders and MLflow agree.", "--repair")
    ] = False,
    dry_run: Annotated[
        bool, flag("With --repair: only print what would be done.", "--dry-run")
    ] = False,
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
    say(
        f"{check.verdict:4}  {check.name:9}  {check.found}  {check.looked_at}",
        COLORS[check.verdict],
    )
    if check.cure:
        say(f"      → {check.cure}")


def _repair(folder: StudyFolder, dry_run: bool, allow_plugins: bool, as_json: bool) -> None:
    from sweeplab.doctor.findings import FAULTS
    from sweeplab.doctor.repair import repair_study
    from sweeplab.lab.studies import finish_renaming

    lines = []
    if not dry_run and finish_renaming(folder):
        lines.append(f"renamed to {folder.name}")
    repaired = repair_study(folder, dry_run, allow_plugins)
    lines += [
        f"{fault.name}: {FAULTS[fault.kind].what}: {what}" for fault, what in repaired.done
    ]
    for fault, what in repaired.left:
        lines.append(f"left alone: {fault.name}: {what}" if fault else f"left alone: {what}")
    if repaired.to_train:
        trials = ", ".join(f"{cell} #{number}" for cell, number in repaired.to_train)
        lines.append(f"{folder.command('resume')} trains again: {trials}")
    print_answer(
        (repaired, "\n".join(lines or [f"study {folder.name} has nothing to repair"])), as_json
    )


def _server(lab: Path | None) -> Server:
    from sweeplab.lab.server import Server

    return Server(lab_folder(lab))


def start_storage(
    host: Annotated[
        str | None,
        option(
            "ADDRESS",
            "Address to listen on; TLS beyond loopback.  [default: as before, else 127.0.0.1]",
        ),
    ] = None,
    port: Annotated[
        int | None,
        option("N", "Port to use.  [default: as before, else a free one]", min=1, max=65535),
    ] = None,
    allow_data: Annotated[
        bool, flag("Start data of somebody else: they may run programs.", "--allow-data")
    ] = False,
    lab: options.Lab = None,
) -> Answer:
    """Start a PostgreSQL server for the studies of a lab.

    The server keeps its data in the lab, and its password in a file that only you can read. New studies
    are stored there from now on. Slurm and Ray need it where no administrator offers a database.
    After a crash of the machine the same command recovers it.

    \b
    $ sweeplab storage start --host 0.0.0.0
    """
    server = _server(lab)
    state = "was running already"
    if server.start(host, port, allow_data):
        state = "is running now"
    started = {"version": server.check(), "address": server.address, "data": str(server.data)}
    place = f"on {server.address}; its data: {server.data}"
    return started, f"PostgreSQL {started['version']} {state}, {place}"


def stop_storage(lab: options.Lab = None) -> Answer:
    """Stop the PostgreSQL server of a lab.

    \b
    $ sweeplab storage stop
    """
    server = _server(lab)
    folders = [StudyFolder(server.lab, name) for name in study_names(server.lab)]
    for folder in folders:
        if folder.is_on_own_server and folder.is_run:
            raise BadInput(
                f"study {folder.name} is running; stop it first: {folder.command('stop')}"
            )
    how = "was not running"
    if server.stop():
        how = "has stopped"
    return {"data": str(server.data)}, f"the lab's storage {how}"


def backup_storage(
    output: Annotated[
        Path | None, option("FILE", "Where to write it.  [default: backups/ in the lab]")
    ] = None,
    lab: options.Lab = None,
) -> Answer:
    """Write all trials of a lab's server to one file.

    The file is a consistent dump in PostgreSQL's own format, without the password; studies may run meanwhile.
    The command that restores it is printed. The dump does not contain the runs' folders: copy the lab for them.

    \b
    $ sweeplab storage backup
    """
    server = _server(lab)
    file = output or server.lab / "backups" / f"{time.strftime('storage-%Y%m%d-%H%M%S')}.dump"
    restore = server.backup(file.absolute())
    lines = f"wrote {file}\nrestore, while no study runs: {restore}"
    return {"file": str(file), "restore": restore}, lines
