"""MLflow's own pages, served by a process of ours to this machine alone."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.error import URLError

from sweeplab.tracking.connection import SETTINGS, artifact_location
from sweeplab.tracking.tracker import TrackingUnavailable

HOST, PORT = "127.0.0.1", 5000
PORTS_TRIED = 20
START_SECONDS, END_SECONDS = 120.0, 5.0
POLL_SECONDS = 0.1
# Jobs, pickles and the assistant's shell run what others wrote; none is needed to look at numbers. The assistant
# cannot be left out, but it can be forbidden to run anything on this machine outside of a container.
SAFE = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
    "MLFLOW_ENABLE_ASSISTANT_SANDBOX": "true",
    "MLFLOW_ENABLE_REMOTE_ASSISTANT": "false",
    "MLFLOW_ENABLE_AI_GATEWAY": "false",
    "MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE": "false",
    "DO_NOT_TRACK": "true",
}


@dataclass(frozen=True)
class Server:
    """A server that was started; `url` answers once `wait_until_ready` has returned."""

    port: int
    process: subprocess.Popen[bytes]
    log: IO[bytes]

    @property
    def url(self) -> str:
        """Return the address that links start with."""
        return f"http://{HOST}:{self.port}"

    def wait_until_ready(self) -> None:
        """Wait until the server answers.

        Raises:
            TrackingUnavailable: it ended instead, or does not answer for minutes.
        """
        # A proxy of the environment's has no business with this machine's own address.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(POLL_SECONDS)
                raise TrackingUnavailable(self._last_words())
            with suppress(URLError, OSError), opener.open(f"{self.url}/health", timeout=5):
                return
        raise TrackingUnavailable(f"{START_SECONDS:.0f} s are not enough; {self._last_words()}")

    def wait(self) -> None:
        """Wait until the server ends by itself.

        Raises:
            TrackingUnavailable: always, with the server's last words.
        """
        self.process.wait()
        raise TrackingUnavailable(self._last_words())

    def end(self) -> None:
        """End the server and what it started; nothing if it has ended."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            # The group outlives its first process where that was killed and its child was not.
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(END_SECONDS)

    def _last_words(self) -> str:
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").strip().splitlines()
        errors = [line for line in lines if re.search(r"(error|exception)\)?: ", line, re.IGNORECASE)]
        return f"MLflow's server: {(errors or lines or [f'ended with code {self.process.poll()}'])[-1]}"


def free_port(wanted: int = PORT) -> int:
    """Return the first free port from `wanted` on, or any that is free where many are taken."""
    for port in (*range(wanted, min(wanted + PORTS_TRIED, 2**16)), 0):
        with socket.socket() as tried:
            # As the server does: a port is free though a connection of its last holder is still fading.
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                tried.bind((HOST, port))
                return int(tried.getsockname()[1])
    raise OSError(f"{HOST} has no free port")


@contextmanager
def serve(lab: Path, uri: str, port: int) -> Iterator[Server]:
    """Start MLflow's server of the database at `uri` on a free port of this machine; end it on leaving.

    Only this machine reaches it. It runs no jobs, reads no pickles, and sends no telemetry.
    """
    command = [sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port)]
    command += ["--workers", "1", "--no-serve-artifacts"]
    # The database by the environment: its address may hold a password, and arguments are for all to see.
    places = {
        "MLFLOW_BACKEND_STORE_URI": uri,
        "MLFLOW_DEFAULT_ARTIFACT_ROOT": str(artifact_location(lab, uri)),
    }
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **SETTINGS, **SAFE, **places},
            cwd=tempfile.gettempdir(),  # where what libraries read beside them, such as .env, is nobody's
            start_new_session=True,
        )
        server = Server(port, process, log)
        try:
            yield server
        finally:
            server.end()
