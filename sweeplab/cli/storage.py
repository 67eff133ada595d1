"""`sweeplab storage start`, `stop` and `backup`: the lab's own PostgreSQL server."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from sweeplab.cli.options import Lab, flag, option
from sweeplab.cli.printing import Answer
from sweeplab.errors import BadInput
from sweeplab.lab.listing import study_names
from sweeplab.records.folders import StudyFolder, lab_folder

if TYPE_CHECKING:
    from sweeplab.lab.server import Server


def _server(lab: Path | None) -> Server:
    from sweeplab.lab.server import Server

    return Server(lab_folder(lab))


def start_storage(
    host: Annotated[
        str | None,
        option("ADDRESS", "Address to listen on; TLS beyond loopback.  [default: as before, else 127.0.0.1]"),
    ] = None,
    port: Annotated[
        int | None, option("N", "Port to use.  [default: as before, else a free one]", min=1, max=65535)
    ] = None,
    allow_data: Annotated[
        bool, flag("Start data of somebody else: they may run programs.", "--allow-data")
    ] = False,
    lab: Lab = None,
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
    status = {**server.status(), "version": server.check()}
    place = f"on {status['address']}; its data: {status['data']}"
    return status, f"PostgreSQL {status['version']} {state}, {place}"


def stop_storage(lab: Lab = None) -> Answer:
    """Stop the PostgreSQL server of a lab.

    \b
    $ sweeplab storage stop
    """
    server = _server(lab)
    folders = [StudyFolder(server.lab, name) for name in study_names(server.lab)]
    for folder in folders:
        if folder.is_on_own_server and folder.is_run:
            raise BadInput(f"study {folder.name} is running; stop it first: {folder.command('stop')}")
    how = "was not running"
    if server.stop():
        how = "has stopped"
    return server.status(), f"the lab's storage {how}"


def backup_storage(
    output: Annotated[
        Path | None, option("FILE", "Where to write it.  [default: backups/ in the lab]")
    ] = None,
    lab: Lab = None,
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
