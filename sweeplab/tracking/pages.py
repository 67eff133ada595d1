"""MLflow's UI: a view of a study in it, and a server of ours that serves it to this machine only.

MLflow's UI stores a shared view as JSON in an experiment's tag, and loads it when a link names its key. Neither is
documented: the keys below are those that the UI of MLflow 3.17 reads, and a test checks them on the page.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sweeplab.errors import BadInput, TrackingUnavailable
from sweeplab.processes import end_with_parent, python, python_environment
from sweeplab.tracking.connection import SETTINGS, artifact_location, reaching
from sweeplab.tracking.experiment import Experiment
from sweeplab.tracking.tracker import BY_TOKENS, LOG_SIZE, SIZE

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

# ------------------------------------------------------------------ a view of a study

LOSS = "best_val_loss"
VIEW = "mlflow.sharedViewState.sweeplab"  # the tag of an experiment that has the view
WORKFLOW = "workflowType=machine_learning"  # of the UI's pages, as opposed to that for agents


def publish(
    lab: Path, uri: str, study: str, searched: Sequence[str], page: str
) -> dict[str, str]:
    """Write the view to the study's experiment, and return links into MLflow's page, such as `http://host:port/`.

    The links lead to the charts, to the table of runs, and to the study's own page with its description and files.

    Raises:
        BadInput: tracking has no such study.
        TrackingUnavailable: MLflow does not answer.
    """
    there = Experiment(lab, study, uri)
    with reaching(there.uri):
        experiment = there.find()
        parent = experiment and there.run(study)
        if not parent:
            raise BadInput(f"{there.place} has no study {study!r}: it has not been run yet")
        run_id = str(parent.info.run_id)
        there.client.set_experiment_tag(experiment, VIEW, json.dumps(view(run_id, searched)))
    runs = f"{page}#/experiments/{experiment}/runs"
    shared = f"{runs}?{WORKFLOW}&viewStateShareKey={VIEW.rpartition('.')[2]}&compareRunsMode="
    return {
        "charts": f"{shared}CHART",
        "table": f"{shared}TABLE",
        "study": f"{runs}/{run_id}?{WORKFLOW}",
    }


def view(parent: str, searched: Sequence[str]) -> dict[str, Any]:
    """Return the view as MLflow's UI reads it: the runs under `parent` by loss, searched values first, and charts."""
    columns = [f"params.`{name}`" for name in dict.fromkeys(searched)]
    columns += [
        f"metrics.`{LOSS}`",
        "tags.`sweeplab.state`",
        f"metrics.`{SIZE}`",
        "tags.`sweeplab.cell`",
    ]
    line = {
        "type": "LINE",
        "metricKey": BY_TOKENS,
        "selectedMetricKeys": [BY_TOKENS],
        "xAxisKey": "step",
        "useGlobalXaxisKey": False,
        "xAxisScaleType": "linear",
        "scaleType": "linear",
        "lineSmoothness": 0,
        "useGlobalLineSmoothing": False,
        "range": {},
    }
    scatter = {
        "type": "SCATTER",
        "runsCountToCompare": 100,
        "xaxis": {"key": LOG_SIZE, "type": "METRIC"},
        "yaxis": {"key": LOSS, "type": "METRIC"},
    }
    # MLflow adds charts of all other metrics to the last section, which is shown folded.
    sections = (
        ("losses", "Loss by tokens, and by size", 2, 280),
        ("rest", "Model metrics", 3, 330),
    )
    made = {"deleted": False, "isGenerated": False}
    return {
        "searchFilter": f"tags.`mlflow.parentRunId` = '{parent}'",
        "orderByKey": f"metrics.`{LOSS}`",
        "orderByAsc": True,
        "selectedColumns": columns,
        "columnOrder": columns,
        "runsExpanded": {parent: True},
        "runsHiddenMode": "SHOW_ALL",
        "compareRunCharts": [
            made | {"uuid": chart["type"], "metricSectionId": "losses"} | chart
            for chart in (line, scatter)
        ],
        "compareRunSections": [
            made
            | {"uuid": uuid, "name": name, "columns": columns_, "cardHeight": height}
            | {"display": uuid != "rest", "isReordered": True}
            for uuid, name, columns_, height in sections
        ],
        "isAccordionReordered": True,
        "hideEmptyCharts": False,
    }


# ------------------------------------------------------------------ pages for the person who serves them
# They are on this machine alone, at an address that nobody else can name: the first part of the path is a secret, and
# nothing outside of it is answered. A cookie would be sent to every port of this machine, so also to a server of
# another user; a browser sends a path only to the server that it belongs to.

HOST = "127.0.0.1"
_REFUSED = """<!DOCTYPE html><title>sweeplab</title>
<p>This page is for its owner alone, at the whole address that sweeplab ui or sweeplab dashboard prints.
"""


def listen(port: int | None) -> socket.socket:
    """Return a socket that listens on a port of this machine, by default a free one.

    A browser keeps what the pages of an earlier server at the same port have left, such as a service worker, and
    another user may have been that server: nobody knows a free port in advance. Requests wait in the socket until a
    server answers them.

    Raises:
        BadInput: the port is taken.
    """
    listening = socket.socket()
    # A port counts as free although old connections are still in TIME_WAIT.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port or 0))
        listening.listen()
    except OSError as error:
        listening.close()
        what = (
            "is in use"
            if error.errno == errno.EADDRINUSE
            else f"cannot be used: {error.strerror}"
        )
        raise BadInput(f"port {port} {what}; without --port a free one is found") from error
    return listening


def private_address(listening: socket.socket) -> str:
    """Return a new address of pages: `http://127.0.0.1:PORT/SECRET`."""
    return f"http://{HOST}:{listening.getsockname()[1]}/{secrets.token_urlsafe(24)}"


class Private:
    """Passes on to an application what is asked below an address, by paths relative to it, and refuses all else.

    Host and Origin are checked too: another site in the browser that has learned the address is refused.
    """

    def __init__(self, app: ASGIApp, address: str) -> None:
        place = urlsplit(address)
        self._app, self._secret = app, place.path.strip("/")
        self._hosts = [f"{host}:{place.port}" for host in (HOST, "localhost")]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        from starlette.datastructures import Headers, MutableHeaders
        from starlette.responses import HTMLResponse, RedirectResponse

        async def send_private(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["Referrer-Policy"] = "no-referrer"
            await send(message)

        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        host, origin = headers.get("host"), headers.get("origin")
        secret, slash, path = scope["path"].removeprefix("/").partition("/")
        is_owner = secrets.compare_digest(secret.encode(), self._secret.encode())
        app: ASGIApp = self._app
        # It would answer whoever opens this port later.
        is_worker = headers.get("service-worker") == "script"
        if (
            is_worker
            or not is_owner
            or host not in self._hosts
            or origin not in (None, f"http://{host}")
        ):
            app = HTMLResponse(_REFUSED, 403)
        elif not slash:
            # Earlier servers at the port may have left something in the browser.
            app = RedirectResponse(
                f"/{self._secret}/", headers={"Clear-Site-Data": '"storage"'}
            )
        inner = {name: value for name, value in scope.items() if name != "raw_path"}
        await app({**inner, "path": f"/{path}"}, receive, send_private)


@contextmanager
def leading_to(url: str, folder: Path) -> Iterator[str]:
    """Yield the address of a file that leads a browser to a page, and that only its owner can read.

    Everybody can read the arguments of a browser's process. The file is in `folder`, if that can be written: some
    browsers have a temporary folder of their own.
    """
    place = folder if os.access(folder, os.W_OK) else None
    with tempfile.NamedTemporaryFile(
        "w", prefix="open-", suffix=".html", dir=place, encoding="utf-8"
    ) as file:
        file.write(
            f'<!DOCTYPE html><meta http-equiv="refresh" content="0; url={escape(url)}">\n'
        )
        file.flush()
        yield Path(file.name).absolute().as_uri()


# ------------------------------------------------------------------ a server of the pages

START_SECONDS, END_SECONDS = 120.0, 5.0
POLL_SECONDS = 0.1
# Jobs, pickles and the assistant's shell run foreign code, and none is needed to look at numbers. The assistant cannot
# be removed, but it can be forbidden to run anything on this machine outside of a container.
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
class PagesServer:
    """A started server; `url`, with which links start, answers once `wait_until_ready` has returned."""

    url: str
    process: subprocess.Popen[bytes]
    log: IO[bytes]

    def wait_until_ready(self) -> None:
        """Wait until the server answers.

        Raises:
            TrackingUnavailable: it ended instead, or does not answer for minutes.
        """
        # No proxy from the environment for this machine's own address.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        # The socket holds the request until the server answers; it is closed when the server ends.
        try:
            opener.open(f"{self.url}/health", timeout=START_SECONDS).close()
        except OSError as error:
            raise TrackingUnavailable(self._last_words()) from error

    def wait(self) -> None:
        """Wait until the server ends by itself.

        Raises:
            TrackingUnavailable: always, with the server's last error message.
        """
        self.process.wait()
        raise TrackingUnavailable(self._last_words())

    def end(self) -> None:
        """End the server and its child processes, if they have not ended."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            # The process group outlives its leader if only that was killed.
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(END_SECONDS)

    def _last_words(self) -> str:
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").strip().splitlines()
        errors = [
            line for line in lines if re.search(r"(error|exception)\)?: ", line, re.IGNORECASE)
        ]
        return f"MLflow's server: {(errors or lines or [f'ended with code {self.process.poll()}'])[-1]}"


@contextmanager
def serve(lab: Path, uri: str, port: int | None = None) -> Iterator[PagesServer]:
    """Start MLflow's server for the database at `uri` on a port of this machine; end it when the context exits.

    It answers only who knows its address, `PagesServer.url`; see `Private`. It gives and takes files in the lab
    alone, runs no jobs, reads no pickles, and sends no telemetry.

    Raises:
        BadInput: the port is taken.
    """
    with (
        listen(port) as listening,
        tempfile.TemporaryFile() as log,
        tempfile.TemporaryDirectory() as folder,
    ):
        address = private_address(listening)
        process = subprocess.Popen(
            python("-m", __name__),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=python_environment(**SETTINGS, **SAFE),
            # An empty one of this user: libraries read a .env and the like of the working folder.
            cwd=folder,
            pass_fds=[listening.fileno()],
            start_new_session=True,
        )
        # Not by arguments, which everybody can see: the database's address may contain a password.
        described = {
            "lab": str(lab.absolute()),
            "uri": uri,
            "artifacts": str(artifact_location(lab, uri)),
            "address": address,
            "descriptor": listening.fileno(),
        }
        assert process.stdin
        with suppress(OSError):  # one that has ended says why in its log
            process.stdin.write(f"{json.dumps(described)}\n".encode())
            # And stays open: however this process ends, the server ends then.
            process.stdin.flush()
        listening.close()  # once the server has ended, nobody answers
        server = PagesServer(address, process, log)
        try:
            yield server
        finally:
            server.end()
            with suppress(OSError):
                process.stdin.close()


def main() -> None:
    """Serve what a line of standard input describes, as `serve` writes it; files outside the lab are refused."""
    served: dict[str, Any] = json.loads(sys.stdin.readline())
    end_with_parent()
    import uvicorn
    from mlflow.exceptions import MlflowException
    from mlflow.server import constants
    from mlflow.store.artifact.artifact_repository_registry import (
        get_registered_artifact_repositories,
    )
    from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository

    lab = Path(served["lab"]).resolve()

    class LabArtifacts(LocalArtifactRepository):
        """The files of a run, which lie in the lab; MLflow itself follows no link out of their folder."""

        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **settings)
            if not Path(self.artifact_dir).resolve().is_relative_to(lab):
                raise MlflowException.invalid_parameter_value(
                    f"{self.artifact_dir} leads outside of the lab {lab}"
                )

    known: dict[str, Any] = get_registered_artifact_repositories()
    for scheme in known.keys() - {"runs", "models"}:  # these lead to one of the others
        del known[scheme]
    known |= {"": LabArtifacts, "file": LabArtifacts}
    os.environ[constants.BACKEND_STORE_URI_ENV_VAR] = served["uri"]
    os.environ[constants.ARTIFACT_ROOT_ENV_VAR] = served["artifacts"]
    from mlflow.server.fastapi_app import app
    from mlflow.server.handlers import initialize_backend_stores

    initialize_backend_stores(served["uri"], served["uri"], served["artifacts"])
    config = uvicorn.Config(
        Private(app, served["address"]), log_level="warning", access_log=False
    )
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=served["descriptor"])])


if __name__ == "__main__":
    main()
