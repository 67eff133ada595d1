"""MLflow's UI: a view of a study in it, and a server of ours that serves it to this machine only.

MLflow's UI stores a shared view as JSON in an experiment's tag, and loads it when a link names its key. Neither is
documented: the keys below are those that the UI of MLflow 3.17 reads, and a test checks them on the page.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.error import URLError

from sweeplab.errors import BadInput, TrackingUnavailable
from sweeplab.formatting import duration
from sweeplab.hyperparameters import TABLE
from sweeplab.processes import end_with_parent, python, python_environment
from sweeplab.tracking.connection import SETTINGS, artifact_location, reaching
from sweeplab.tracking.experiment import SHARED_VIEW, WORKFLOW, Experiment
from sweeplab.tracking.private import Private, listen, private_address
from sweeplab.tracking.tracker import BY_TOKENS, CURVES, LOG_SIZE, SIZE, TOTALS

# ------------------------------------------------------------------ a view of a study

TAGS = ("state", "cell", "trial", "seed")
NUMBERS = (*TOTALS, SIZE, LOG_SIZE)
SEARCHED = "searched"
X_AXES = {"train_tokens": "step", "iteration": "step", "time": "time-relative"}
# MLflow adds charts of all other metrics to this section, which is shown folded.
THE_REST = "Model metrics"
# Tags (state, cell, searched values) come first, then the few metrics.
COMPARED = ("Tags", "Model metrics", "Parameters")
# On a screen of 1080 lines both kinds of row are visible.
CARD_PIXELS = {1: 600, 2: 280}
TAG_BYTES = 20_000


# A view as a dashboard has it: columns, sort, and charts, which are lines, scatters, or a comparison of runs.
View = Mapping[str, Any]


def publish(
    lab: Path,
    uri: str,
    study: str,
    name: str,
    view: View,
    grid: Sequence[str],
    searched: Sequence[str],
    page: str,
) -> dict[str, str]:
    """Write the view to the study's experiment, and return links into MLflow's page, such as `http://host:port/`.

    `name` distinguishes the views of one study. The links lead to the charts, to the table of runs, and to the study's
    own page with its description and files.

    Raises:
        BadInput: tracking has no such study, or the view does not fit into a tag.
        TrackingUnavailable: MLflow does not answer.
    """
    there, key = Experiment(lab, study, uri), f"sweeplab-{re.sub(r'[^A-Za-z0-9]+', '-', name)}"
    with reaching(there.uri):
        experiment = there.find()
        parent = experiment and there.run(study)
        if not parent:
            raise BadInput(f"{there.place} has no study {study!r}: it has not been run yet")
        run_id = str(parent.info.run_id)
        text = json.dumps(state(view, run_id, grid, searched))
        if len(text.encode()) > TAG_BYTES:
            raise BadInput(f"{name}: too many columns and charts; MLflow stores {TAG_BYTES:,} bytes")
        there.client.set_experiment_tag(experiment, f"{SHARED_VIEW}{key}", text)
        there.describe()
    runs = f"{page}#/experiments/{experiment}/runs"
    shared = f"{runs}?{WORKFLOW}&viewStateShareKey={key}&compareRunsMode="
    return {"charts": f"{shared}CHART", "table": f"{shared}TABLE", "study": f"{runs}/{run_id}?{WORKFLOW}"}


def state(view: View, parent: str, grid: Sequence[str], searched: Sequence[str]) -> dict[str, Any]:
    """Return the view as MLflow's UI reads it: filtered to the runs under `parent`, which is expanded.

    Charts over hyperparameters that the study varies neither in its grid nor in its search are left out.
    """
    varied = {*grid, *searched}
    named = [name for column in view["columns"] for name in {SEARCHED: searched}.get(column, [column])]
    columns = [_column(name) for name in dict.fromkeys(named)]
    charts = [chart for chart in view.get("charts") or () if chart.get("x") not in TABLE.keys() - varied]
    rows = _rows(charts)
    drawn = [_chart(chart, f"chart-{i}-{j}", f"row-{i}") for i, row in enumerate(rows) for j, chart in row]
    return {
        "searchFilter": f"tags.`mlflow.parentRunId` = '{parent}'",
        "orderByKey": _column(view["sort"]["by"]),
        "orderByAsc": not view["sort"].get("descending"),
        "selectedColumns": columns,
        "columnOrder": columns,
        "runsExpanded": {parent: True},
        "columnWidths": {column: 50 + 8 * len(column.split("`")[1]) for column in columns},
        "runsHiddenMode": "SHOW_ALL",
        "compareRunCharts": drawn,
        "compareRunSections": [
            *(_section(f"row-{i}", _title(row, i), len(row)) for i, row in enumerate(rows)),
            _section("rest", THE_REST, 3, display=False),
        ],
        "isAccordionReordered": True,
        "hideEmptyCharts": False,
    }


def _column(name: str) -> str:
    if name in TAGS:
        return f"tags.`sweeplab.{name}`"
    if name in NUMBERS:
        return f"metrics.`{name}`"
    return f"params.`{name}`"


def _rows(charts: Sequence[View]) -> list[list[tuple[int, View]]]:
    """Arrange charts in rows: two consecutive charts of half width share one."""
    rows: list[list[tuple[int, View]]] = []
    for chart in charts:
        if rows and len(rows[-1]) == 1 and rows[-1][0][1].get("width") == chart.get("width") == "half":
            rows[-1].append((1, chart))
        else:
            rows.append([(0, chart)])
    return rows


def _title(row: Sequence[tuple[int, View]], number: int) -> str:
    """Head a row: MLflow titles the charts themselves only by the names of their metrics."""
    title = " · ".join(str(chart["title"]) for _, chart in row if chart.get("title"))
    return title[:1].upper() + title[1:] or f"Row {number + 1}"


def _section(uuid: str, name: str, columns: int, display: bool = True) -> dict[str, Any]:
    return {
        "uuid": uuid,
        "name": name,
        "display": display,
        "columns": columns,
        "cardHeight": CARD_PIXELS.get(columns, 330),
        "isReordered": True,
        "deleted": False,
        "isGenerated": False,
    }


def _chart(chart: View, uuid: str, row: str) -> dict[str, Any]:
    common = {"uuid": uuid, "metricSectionId": row, "deleted": False, "isGenerated": False}
    if chart["chart"] == "line":
        metric = CURVES[chart["metric"]]
        if chart["x"] == "train_tokens":
            metric = BY_TOKENS
        scales = {axis: "log" if axis in chart.get("log", ()) else "linear" for axis in "xy"}
        return common | {
            "type": "LINE",
            "metricKey": metric,
            "selectedMetricKeys": [metric],
            "xAxisKey": X_AXES[chart["x"]],
            "useGlobalXaxisKey": False,
            "xAxisScaleType": scales["x"],
            "scaleType": scales["y"],
            "lineSmoothness": 0,
            "useGlobalLineSmoothing": False,
            "range": {},
        }
    if chart["chart"] == "scatter":
        names = (chart["x"], chart["y"])
        x, y = ({"key": name, "type": "METRIC" if name in NUMBERS else "PARAM"} for name in names)
        return common | {"type": "SCATTER", "runsCountToCompare": 100, "xaxis": x, "yaxis": y}
    shown = {"showDifferencesOnly": True, "showChangeFromBaseline": False, "baselineColumnUuid": ""}
    compared = {"chartName": str(chart.get("title", "")), "compareGroups": list(COMPARED)}
    return common | {"type": "DIFFERENCE", **compared, **shown}


# ------------------------------------------------------------------ a server of the pages

PORT = 5000  # that of links in reports
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
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(POLL_SECONDS)
                raise TrackingUnavailable(self._last_words())
            with suppress(URLError, OSError), opener.open(f"{self.url}/health", timeout=5):
                return
        raise TrackingUnavailable(f"{duration(START_SECONDS)} are not enough; {self._last_words()}")

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
        errors = [line for line in lines if re.search(r"(error|exception)\)?: ", line, re.IGNORECASE)]
        return f"MLflow's server: {(errors or lines or [f'ended with code {self.process.poll()}'])[-1]}"


@contextmanager
def serve(lab: Path, uri: str, port: int | None = None) -> Iterator[PagesServer]:
    """Start MLflow's server for the database at `uri` on a port of this machine; end it when the context exits.

    It answers only who knows its address, `PagesServer.url`; see `private.py`. It gives and takes files in the lab
    alone, runs no jobs, reads no pickles, and sends no telemetry.

    Raises:
        BadInput: the port is taken.
    """
    with listen(port) as listening, tempfile.TemporaryFile() as log, tempfile.TemporaryDirectory() as folder:
        address = private_address(listening)
        process = subprocess.Popen(
            python("-m", __name__),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=python_environment(**SETTINGS, **SAFE),
            cwd=folder,  # an empty one of this user: libraries read a .env and the like of the working folder
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
            process.stdin.flush()  # and stays open: however this process ends, the server ends then
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
    from mlflow.store.artifact.artifact_repository_registry import get_registered_artifact_repositories
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
    config = uvicorn.Config(Private(app, served["address"]), log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=served["descriptor"])])


if __name__ == "__main__":
    main()
