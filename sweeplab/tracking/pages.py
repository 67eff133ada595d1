"""MLflow's UI: a view of a study in it, and a server of ours that serves it to this machine only.

MLflow's UI stores a shared view as JSON in an experiment's tag, and loads it when a link names its key. Neither is
documented: the keys below are those that the UI of MLflow 3.17 reads, and a test checks them on the page.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal
from urllib.error import URLError

from sweeplab.errors import BadInput, TrackingUnavailable
from sweeplab.hyperparameters import TABLE
from sweeplab.processes import python, python_environment
from sweeplab.tracking.connection import SETTINGS, artifact_location, reaching
from sweeplab.tracking.experiment import Experiment
from sweeplab.tracking.private import HOST, listen, private_address
from sweeplab.tracking.tracker import BY_TOKENS, CURVES, FACTS, LOG_PARAMS, TOTALS

# ------------------------------------------------------------------ a view of a study

TAGS = ("state", "cell", "trial", "seed")
NUMBERS = (*TOTALS, *FACTS, LOG_PARAMS)
SEARCHED = "searched"
X_AXES = {"train_tokens": "step", "iteration": "step", "time": "time-relative"}
# MLflow adds charts of all other metrics to this section, which is shown folded.
THE_REST = "Model metrics"
# Tags (state, cell, searched values) come first, then the few metrics.
COMPARED = ("Tags", "Model metrics", "Parameters")
# On a screen of 1080 lines both kinds of row are visible.
CARD_PIXELS = {1: 600, 2: 280}
TAG_BYTES = 20_000
WORKFLOW = "workflowType=machine_learning"  # as opposed to that for agents


@dataclass(frozen=True)
class Chart:
    """One chart: a line's `y` is a curve, a scatter's axes are numbers or hyperparameters; compare has none."""

    kind: Literal["line", "scatter", "compare"]
    title: str = ""
    x: str = ""
    y: str = ""
    log: tuple[str, ...] = ()
    width: Literal["full", "half"] = "full"


@dataclass(frozen=True)
class ChartView:
    """A view of a study in MLflow's UI; `name` distinguishes the views of one study."""

    name: str
    columns: tuple[str, ...]
    sort: str
    descending: bool
    charts: tuple[Chart, ...]

    @property
    def key(self) -> str:
        """Return the view's key in a link and in the experiment's tag."""
        return f"sweeplab-{re.sub(r'[^A-Za-z0-9]+', '-', self.name)}"


def publish(
    lab: Path,
    uri: str,
    study: str,
    view: ChartView,
    grid: Sequence[str],
    searched: Sequence[str],
    page: str,
) -> dict[str, str]:
    """Write the view to the study's experiment, and return links into MLflow's page, such as `http://host:port/`.

    They lead to the charts, to the table of runs, and to the study's own page with its description and files.

    Raises:
        BadInput: tracking has no such study, or the view does not fit into a tag.
        TrackingUnavailable: MLflow does not answer.
    """
    there = Experiment(lab, study, uri)
    with reaching(there.uri):
        experiment = there.find()
        if not experiment or not (parent := there.run(study)):
            raise BadInput(f"{there.place} has no study {study!r}: it has not been run yet")
        run_id = str(parent.info.run_id)
        text = json.dumps(state(view, run_id, grid, searched))
        if len(text.encode()) > TAG_BYTES:
            raise BadInput(f"{view.name}: too many columns and charts; MLflow stores {TAG_BYTES:,} bytes")
        there.client.set_experiment_tag(experiment, f"mlflow.sharedViewState.{view.key}", text)
    runs = f"{page}#/experiments/{experiment}/runs"
    shared = f"{runs}?{WORKFLOW}&viewStateShareKey={view.key}&compareRunsMode="
    return {"charts": f"{shared}CHART", "table": f"{shared}TABLE", "study": f"{runs}/{run_id}?{WORKFLOW}"}


def state(view: ChartView, parent: str, grid: Sequence[str], searched: Sequence[str]) -> dict[str, Any]:
    """Return the view as MLflow's UI reads it: filtered to the runs under `parent`, which is expanded.

    Charts over hyperparameters that the study varies neither in its grid nor in its search are left out.
    """
    varied = {*grid, *searched}
    named = [name for each in view.columns for name in (searched if each == SEARCHED else [each])]
    columns = [_column(name) for name in dict.fromkeys(named)]
    shown = [each for each in view.charts if each.x not in TABLE or each.x in varied]
    rows = _rows(shown)
    charts = [_chart(chart, f"chart-{i}-{j}", f"row-{i}") for i, row in enumerate(rows) for j, chart in row]
    return {
        "searchFilter": f"tags.`mlflow.parentRunId` = '{parent}'",
        "orderByKey": _column(view.sort),
        "orderByAsc": not view.descending,
        "selectedColumns": columns,
        "columnOrder": columns,
        "runsExpanded": {parent: True},
        "columnWidths": {column: 50 + 8 * len(column.split("`")[1]) for column in columns},
        "runsHiddenMode": "SHOW_ALL",
        "compareRunCharts": charts,
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
    return f"metrics.`{name}`" if name in NUMBERS else f"params.`{name}`"


def _rows(charts: Sequence[Chart]) -> list[list[tuple[int, Chart]]]:
    """Arrange charts in rows: two consecutive charts of half width share one."""
    rows: list[list[tuple[int, Chart]]] = []
    for chart in charts:
        if rows and len(rows[-1]) == 1 and rows[-1][0][1].width == chart.width == "half":
            rows[-1].append((1, chart))
        else:
            rows.append([(0, chart)])
    return rows


def _title(row: Sequence[tuple[int, Chart]], number: int) -> str:
    """Return the heading of a row: MLflow titles the charts themselves only by the names of their metrics."""
    return " · ".join(chart.title for _, chart in row if chart.title) or f"Row {number + 1}"


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


def _chart(chart: Chart, uuid: str, row: str) -> dict[str, Any]:
    common = {"uuid": uuid, "metricSectionId": row, "deleted": False, "isGenerated": False}
    if chart.kind == "line":
        metric = f"{chart.y}{BY_TOKENS}" if chart.x == "train_tokens" else CURVES[chart.y]
        scales = {axis: "log" if axis in chart.log else "linear" for axis in "xy"}
        return common | {
            "type": "LINE",
            "metricKey": metric,
            "selectedMetricKeys": [metric],
            "xAxisKey": X_AXES[chart.x],
            "useGlobalXaxisKey": False,
            "xAxisScaleType": scales["x"],
            "scaleType": scales["y"],
            "lineSmoothness": 0,
            "useGlobalLineSmoothing": False,
            "range": {},
        }
    if chart.kind == "scatter":
        kinds = [(name, "METRIC" if name in NUMBERS else "PARAM") for name in (chart.x, chart.y)]
        x, y = ({"key": name, "type": kind} for name, kind in kinds)
        return common | {"type": "SCATTER", "runsCountToCompare": 100, "xaxis": x, "yaxis": y}
    shown = {"showDifferencesOnly": True, "showChangeFromBaseline": False, "baselineColumnUuid": ""}
    compared = {"chartName": chart.title, "compareGroups": list(COMPARED)}
    return common | {"type": "DIFFERENCE", **compared, **shown}


# ------------------------------------------------------------------ a server of the pages

PORT = 5000
PORTS_TRIED = 20
START_SECONDS, END_SECONDS = 120.0, 5.0
POLL_SECONDS = 0.1
_SERVING = "sweeplab.tracking.serving"
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

    port: int
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
        raise TrackingUnavailable(f"{START_SECONDS:.0f} s are not enough; {self._last_words()}")

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


def free_port(wanted: int = PORT) -> int:
    """Return the first free port from `wanted` on; any free port if the next PORTS_TRIED are taken."""
    for port in (*range(wanted, min(wanted + PORTS_TRIED, 2**16)), 0):
        with suppress(OSError), listen(port) as tried:
            return int(tried.getsockname()[1])
    raise OSError(f"{HOST} has no free port")


@contextmanager
def serve(lab: Path, uri: str, port: int) -> Iterator[PagesServer]:
    """Start MLflow's server for the database at `uri` on a port of this machine; end it when the context exits.

    It answers only who knows its address, `PagesServer.url`; see `private.py`. It gives and takes files in the lab
    alone, runs no jobs, reads no pickles, and sends no telemetry.
    """
    address = private_address(port)
    with listen(port) as listening, tempfile.TemporaryFile() as log, tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            python("-m", _SERVING),
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
        with suppress(OSError), process.stdin:  # one that has ended says why in its log
            process.stdin.write(f"{json.dumps(described)}\n".encode())
        listening.close()  # once the server has ended, nobody answers
        server = PagesServer(port, address, process, log)
        try:
            yield server
        finally:
            server.end()
