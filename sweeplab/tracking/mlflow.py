"""Ship a study to MLflow: an experiment a study, a parent run, and one nested run a training.

Three rules make a kill at any moment harmless. A run is found by its key, and made only when it is not
there. A point's timestamp follows from its line, and the numbers of one line are written in one transaction,
so the last step of a metric says what MLflow has. And an end is written in an order: numbers and tags, files,
the terminal status, and last the marker `shipped` in the run's folder.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from sweeplab.errors import BadInput
from sweeplab.tracking.connection import (
    artifact_location,
    connect,
    database_file,
    tracking_uri,
    without_password,
)
from sweeplab.tracking.describe import environment_tags, json_text, page, texts
from sweeplab.tracking.folder import RunFolder, read_json
from sweeplab.tracking.histories import read_histories
from sweeplab.tracking.tracker import Description, Measure, Summary, TrackedRun, Tracker, TrackingUnavailable

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

METRICS_A_BATCH, PARAMS_A_BATCH = 1000, 100
TAG_CHARACTERS, ERROR_CHARACTERS = 5000, 250

# A slow failure is not tried again at once: many runs to ship would block their caller for minutes.
SLOW_SECONDS, QUIET_SECONDS = 1.0, 30.0

# What is left over from a process that was killed, or may go on later, shows a clock in the UI; a pruned or
# diverged run did what it was asked to, and MLflow's KILLED would show it as a failure.
WAITING = "SCHEDULED"
STATUS_OF_RUN = dict.fromkeys(("complete", "stopped", "pruned", "diverged"), "FINISHED") | {
    "failed": "FAILED"
}
STATUS_OF_STUDY = {"complete": "FINISHED", "failed": "FAILED"}


@dataclass
class _Shipping:
    """A run under way: its folder as read so far, and what MLflow lacks of what was known at its start."""

    run_id: str
    folder: RunFolder
    waiting: bool
    params: dict[str, str]
    facts: list[Measure]


class MLflowTracker(Tracker):
    """Keep one study in MLflow, through a client of its own: MLflow's global state is left alone."""

    def __init__(self, lab: Path, study: str, uri: str | None = None) -> None:
        self._lab = lab.absolute()
        self._study = study
        self._uri = tracking_uri(self._lab, uri)
        self._place = without_password(self._uri)
        self._experiment = ""  # its id, once found
        self._parent: Run | None = None
        self._page = ""
        self._tags: dict[str, str] = {}
        self._shipping: dict[Path, _Shipping] = {}
        self._quiet_until = 0.0

    @cached_property
    def _client(self) -> MlflowClient:
        return connect(self._lab, self._uri)

    # ---------------------------------------------------------------- the study

    def open(self, description: Description) -> str:
        """Find or create the experiment and the parent run, and return the parent's run id.

        Raises:
            BadInput: the experiment was deleted in MLflow.
            TrackingUnavailable: MLflow could not take it.
        """
        self._lab.mkdir(parents=True, exist_ok=True)
        with self._reaching(), FileLock(self._lab / "tracking.lock"):
            experiment = self._find_experiment() or self._create_experiment()
            parent = self._find(self._study) or self._client.create_run(
                experiment,
                tags={"sweeplab.key": self._study, "sweeplab.study": self._study},
                run_name=self._study,
            )
            self._describe(parent, description)
            self._set_running_to_waiting(parent)
        self._parent = parent
        return str(parent.info.run_id)

    def _find_experiment(self) -> str:
        if not self._experiment and (found := self._client.get_experiment_by_name(self._study)):
            if found.lifecycle_stage != "active":
                restore = f"mlflow experiments restore -x {found.experiment_id}"
                raise BadInput(
                    f"experiment {self._study!r} was deleted in MLflow: {restore}, or another --name"
                )
            self._experiment = str(found.experiment_id)
        return self._experiment

    def _create_experiment(self) -> str:
        from mlflow.exceptions import MlflowException

        location = artifact_location(self._lab, self._uri)
        # The kind makes the UI open with runs and charts instead of traces.
        tags = {"mlflow.experimentKind": "custom_model_development"}
        try:
            self._experiment = self._client.create_experiment(self._study, location, tags)
        except MlflowException:
            if not self._find_experiment():  # else another machine was faster
                raise
        return self._experiment

    def _describe(self, parent: Run, description: Description) -> None:
        run_id, known = parent.info.run_id, parent.data.params
        environment = description.get("environment", {})
        params = texts(description.get("params", {}))
        self._tags = environment_tags(environment)
        self._page = page(self._study, description.get("note", ""), params)
        # Params cannot change, but a study's budget may: what is new about a known one goes to a tag.
        changed = {
            f"sweeplab.now.{name}": text for name, text in params.items() if known.get(name, text) != text
        }
        tags = self._tags | changed | dict(description.get("tags", {}))
        tags |= {"sweeplab.state": "running", "mlflow.note.content": self._page}
        self._log(run_id, [], {name: text for name, text in params.items() if name not in known}, tags)
        files = {
            "study.yaml": description.get("study"),
            "plan.json": json_text(description.get("plan")),
            "environment.json": json_text(environment),
        }
        for name, text in files.items():
            if text:
                self._client.log_text(run_id, text, name)
        if parent.info.status != "RUNNING":
            self._client.update_run(run_id, status="RUNNING")

    def close(self, summary: Summary) -> None:
        """Write state and best values to the parent; a study that can go on is SCHEDULED in MLflow.

        Raises:
            TrackingUnavailable: MLflow could not take it.
        """
        parent = self._opened
        run_id = parent.info.run_id
        state, counts = summary.get("state", "interrupted"), summary.get("counts", {})
        best, best_key = summary.get("best_val_loss"), summary.get("best_run")
        said = ", ".join(f"{count} {name}" for name, count in counts.items())
        result = f"Best val_loss {best} by `{best_key}`." if best is not None else ""
        tags = {"sweeplab.state": state} | {
            f"sweeplab.runs.{name}": str(count) for name, count in counts.items()
        }
        tags["mlflow.note.content"] = f"{self._page}\n\n**{state}**: {said}. {result}"
        # The parent's own start as the time: closing twice in the same state writes the same point.
        step = sum(counts.values())
        points = [] if best is None else [[Measure("best_val_loss", best, parent.info.start_time, step)]]
        self._shipping.clear()
        with self._reaching():
            self._set_running_to_waiting(parent)
            if best_key and (found := self._find(f"{self._study}/{best_key}")):
                tags |= {"sweeplab.best_key": best_key, "sweeplab.best_run": found.info.run_id}
            self._log(run_id, points, {}, tags)
            if state in STATUS_OF_STUDY:
                self._client.set_terminated(run_id, STATUS_OF_STUDY[state])
            else:
                self._client.update_run(run_id, status=WAITING)

    # ----------------------------------------------------------------- the runs

    def ship(self, folder: Path) -> None:
        """Find or create the nested run and write what is new; after the end also files and status.

        Raises:
            TrackingUnavailable: MLflow could not take it; the next ship finds out how far this one came.
        """
        if self._is_shipped(folder):
            return
        if time.monotonic() < self._quiet_until:
            raise TrackingUnavailable(f"{self._place} did not answer; it is left alone for some seconds")
        end = read_json(folder / "end.json")  # before the points: once it is there, they are all there
        with self._reaching(folder):
            shipping = self._shipping.get(folder) or self._start(folder)
            if shipping is None:
                return
            points = [shipping.facts, *shipping.folder.points()]
            if end is not None:
                self._finish(shipping, points, end)
                (folder / "shipped").write_text(self._shipped_to)
                del self._shipping[folder]
            elif shipping.params or any(points):
                resumed = shipping.waiting and any(points)
                tags = {"sweeplab.state": "running"} if resumed else {}
                self._log(shipping.run_id, points, shipping.params, tags)
                if resumed:
                    self._client.update_run(shipping.run_id, status="RUNNING")
                    shipping.waiting = False
                shipping.params, shipping.facts = {}, []

    def wait(self, folder: Path) -> None:
        """Set a run that this tracker ships, and that has not ended, to waiting.

        Raises:
            TrackingUnavailable: MLflow could not take it.
        """
        shipping = self._shipping.get(folder)
        if shipping and not shipping.waiting:
            with self._reaching(folder):
                self._set_waiting(shipping.run_id)
                shipping.waiting = True

    @property
    def _shipped_to(self) -> str:
        """Return what the marker says: the place, and the parent run, which is another one in a new database."""
        return f"{self._place} {self._opened.info.run_id}"

    def _is_shipped(self, folder: Path) -> bool:
        try:
            return (folder / "shipped").read_text() == self._shipped_to
        except FileNotFoundError:
            return False

    def _start(self, path: Path) -> _Shipping | None:
        parent = self._opened
        run = read_json(path / "run.json")
        if run is None:
            return None
        folder = RunFolder(path, run)
        params = texts(run["values"])
        tracked = self._find(f"{self._study}/{folder.key}")
        if tracked:
            folder.tracked.update({metric.key: metric.step for metric in tracked.data.to_proto().metrics})
            params = {name: text for name, text in params.items() if name not in tracked.data.params}
        else:
            cell, trial, seed = folder.place
            name = f"{cell} #{trial} seed {seed}"
            tags = self._run_tags(folder, parent)
            tracked = self._client.create_run(self._experiment, folder.started_ms, tags, name)
        waiting = tracked.info.status == WAITING
        self._shipping[path] = _Shipping(tracked.info.run_id, folder, waiting, params, folder.facts())
        return self._shipping[path]

    def _run_tags(self, folder: RunFolder, parent: Run) -> dict[str, str]:
        cell, trial, seed = folder.place
        tags = self._tags | {
            "mlflow.parentRunId": parent.info.run_id,
            "sweeplab.key": f"{self._study}/{folder.key}",
            "sweeplab.study": self._study,
            "sweeplab.cell": cell,
            "sweeplab.trial": str(trial),
            "sweeplab.seed": str(seed),
            "sweeplab.state": "running",
        }
        if "sampled" in folder.run:
            tags["sweeplab.searched"] = json.dumps(folder.run["sampled"])[:TAG_CHARACTERS]
        return tags

    def _finish(self, shipping: _Shipping, points: list[list[Measure]], end: Mapping[str, Any]) -> None:
        run_id, folder, state = shipping.run_id, shipping.folder, end["state"]
        error = (end.get("error") or "").strip()
        reasons = {"stop_reason": end.get("stop_reason"), "error": error.rpartition("\n")[2]}
        tags = {f"sweeplab.{name}": text[:ERROR_CHARACTERS] for name, text in reasons.items() if text}
        self._log(run_id, [*points, folder.totals(end)], shipping.params, tags | {"sweeplab.state": state})
        if error:
            self._client.log_text(run_id, error, "error.txt")
        if checkpoint := folder.checkpoint():
            self._client.log_artifacts(run_id, str(checkpoint), "checkpoint")
        ended_ms = folder.started_ms + round((end.get("wall_seconds") or 0.0) * 1000)
        self._client.set_terminated(run_id, STATUS_OF_RUN[state], ended_ms)

    def _set_running_to_waiting(self, parent: Run) -> None:
        nested = f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'"
        for run in list(self._search(f"attributes.status = 'RUNNING' and {nested}")):
            self._set_waiting(run.info.run_id)

    def _set_waiting(self, run_id: str) -> None:
        self._client.set_tag(run_id, "sweeplab.state", "waiting")
        self._client.update_run(run_id, status=WAITING)

    # ------------------------------------------------------------------ reading

    def runs(self) -> Iterator[TrackedRun]:
        """Yield the study's nested runs, a page at a time.

        Raises:
            BadInput: tracking has no such study.
            TrackingUnavailable: MLflow does not answer.
        """
        database = database_file(self._uri)
        with self._reaching():
            if (database and not database.exists()) or not self._find_experiment():
                raise BadInput(f"no study {self._study!r} in {self._place}")
            for run in self._search(f"tags.`sweeplab.study` = {_quoted(self._study)}"):
                tags = run.data.tags
                if "sweeplab.trial" in tags:
                    place = tags["sweeplab.cell"], int(tags["sweeplab.trial"]), int(tags["sweeplab.seed"])
                    state = tags["sweeplab.state"]
                    yield TrackedRun(run.info.run_id, *place, state, run.data.params, run.data.metrics)

    def histories(self, run_ids: Sequence[str], name: str) -> dict[str, list[Measure]]:
        """Return a metric's points of each run by step.

        Raises:
            TrackingUnavailable: MLflow does not answer.
        """
        with self._reaching():
            return read_histories(self._client, run_ids, name)

    # ------------------------------------------------------------ calls to MLflow

    @property
    def _opened(self) -> Run:
        if self._parent is None:
            raise RuntimeError("a study is opened before anything is shipped")
        return self._parent

    @contextmanager
    def _reaching(self, folder: Path | None = None) -> Iterator[None]:
        """Turn MLflow's failures into TrackingUnavailable, and forget the run that was being shipped."""
        from mlflow.exceptions import MlflowException

        began = time.monotonic()
        try:
            yield
        except BaseException as error:
            if folder is not None:
                self._shipping.pop(folder, None)
            if not isinstance(error, MlflowException | OSError):
                raise
            if time.monotonic() - began > SLOW_SECONDS:
                self._quiet_until = time.monotonic() + QUIET_SECONDS
            first_line = str(error).partition("\n")[0]
            raise TrackingUnavailable(f"{self._place}: {first_line}") from error

    def _find(self, key: str) -> Run | None:
        # The first, should two machines ever have made the same run at once.
        return next(self._search(f"tags.`sweeplab.key` = {_quoted(key)}"), None)

    def _search(self, condition: str) -> Iterator[Run]:
        token = None
        while True:
            order = ["attributes.start_time"]
            found = self._client.search_runs([self._experiment], condition, order_by=order, page_token=token)
            yield from found
            token = found.token
            if not token:
                return

    def _log(
        self,
        run_id: str,
        points: Iterable[Sequence[Measure]],
        params: Mapping[str, str],
        tags: Mapping[str, str],
    ) -> None:
        """Write everything in as few calls as MLflow's limits allow: almost always one."""
        from mlflow.entities import Metric, Param, RunTag

        all_params = [Param(name, text) for name, text in params.items()]
        calls = zip_longest(
            _batches(points),
            [all_params[first : first + PARAMS_A_BATCH] for first in range(0, len(params), PARAMS_A_BATCH)],
            [[RunTag(name, text[:TAG_CHARACTERS]) for name, text in tags.items()]],
            fillvalue=(),
        )
        for measures, some_params, some_tags in calls:
            metrics = [Metric(*measure) for measure in measures]
            self._client.log_batch(run_id, metrics, some_params, some_tags, synchronous=True)


def _batches(points: Iterable[Sequence[Measure]]) -> Iterator[list[Measure]]:
    """Gather points into batches of a size that MLflow takes; the numbers of one point stay together."""
    batch: list[Measure] = []
    for point in points:
        if len(batch) + len(point) > METRICS_A_BATCH:
            yield batch
            batch = []
        batch.extend(point)
    if batch:
        yield batch


def _quoted(text: str) -> str:
    return f'"{text}"' if "'" in text else f"'{text}'"
