"""A real PostgreSQL server on loopback, with a data folder of its own."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

IS_INSTALLED = bool(find_spec("psycopg")) and all(
    map(shutil.which, ("initdb", "postgres", "pg_ctl", "setpriv"))
)


@dataclass(frozen=True)
class Server:
    """A running server: its URL, and what restarts it without waiting for its clients."""

    url: str
    restart: Callable[[], None]


@contextmanager
def started():
    """Start a server; it will not run as root, so there it is nobody's."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    data = folder / "data"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    user = []
    if os.getuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        user = [
            "setpriv",
            f"--reuid={nobody.pw_uid}",
            f"--regid={nobody.pw_gid}",
            "--clear-groups",
        ]
    quiet = {"stdout": subprocess.DEVNULL, "check": True, "cwd": folder}
    subprocess.run(
        [*user, "initdb", "-D", data, "-U", "owner", "-A", "trust", "--no-sync"], **quiet
    )
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off"
    start = [*user, "pg_ctl", "-D", data, "-l", folder / "log", "-w", "-o", options, "start"]
    subprocess.run(start, **quiet)

    def restart():
        subprocess.run([*user, "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop"], **quiet)
        time.sleep(1.0)  # so that it is missed
        subprocess.run(start, **quiet)

    try:
        yield Server(f"postgresql://owner@127.0.0.1:{port}/postgres", restart)
    finally:
        subprocess.run([*user, "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop"], **quiet)
        shutil.rmtree(folder)
