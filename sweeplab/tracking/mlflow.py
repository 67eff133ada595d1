"""Ship a study to MLflow: one experiment and one parent run per study, one nested run per run.

Three rules make a kill at any moment harmless. A run is found by its key, and created only if it does not exist. A
point is sent only if MLflow has none at its step, and its timestamp is computed from its line. An end is written in a
fixed order: files, numbers and tags, the terminal status, and last the marker `shipped` in the run's folder.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from sweeplab.errors import BadInput, TrackingUnavailable
from sweeplab.files import write_whole
from sweeplab.records.runs import RunEnd, RunFolder, RunStart, RunState
from sweeplab.tracking.connection import Answer, database_file, is_of_lab, point_files_here, reaching
from sweeplab.tracking.describing import (
    TRIALS_ON_PAGE,
    csv_text,
    datasets,
    environment_tags,
    json_text,
    page,
    texts,
)
from sweeplab.tracking.experiment import TAG_CHARACTERS, Experiment, search_points, search_runs
from sweeplab.tracking.models import log_best_models
from sweeplab.tracking.tables import ParentRun, engine_of, read_parent, read_points, read_runs
from sweeplab.tracking.tracker import (
    WAITING,
    Description,
    Measure,
    Mirror,
    RunMeasures,
    StudySummary,
    TrackedRun,
    run_name,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput, Run, RunInfo
    from sqlalchemy import Engine

ERROR_CHARACTERS = 250

# After a slow failure nothing is sent for a while: many runs to ship would block their caller for minutes.
SLOW_SECONDS, QUIET_SECONDS = 1.0, 30.0

# Pruned and diverged runs are FINISHED too: MLflow's KILLED would show them as failures.
STATUS_OF_STUDY = {"complete": "FINISHED", "failed": "FAILED"}
# In charts complete runs have MLflow's own colors; these colors distinguish the others.
COLOR_OF_STATE = {
    RunState.PRUNED: "#b3b3b3",
    RunState.STOPPED: "#2e7d32",
    RunState.DIVERGED: "#e65100",
    RunState.FAILED: "#c62828",
}


@dataclass
class _Shipping:
    """A run being shipped: its curve as read so far, and the params and facts that MLflow still lacks."""

    info: RunInfo
    measures: RunMeasures
    waiting: bool
    params: dict[str, str]
    facts: list[Measure]


class MLflowTracker(Mirror):
    """Keeps the numbers and files of one study in MLflow, from where analysis reads them.

    `open` sets runs that a killed process left as running in MLflow back to waiting; `close` does the same with runs
    that have not ended. Every method may raise TrackingUnavailable, and may be called again after it.
    """

    def __init__(self, lab: Path, study: str, uri: str | None = None) -> None:
        self._experiment = Experiment(lab, study, uri)
        self._study, self._place = study, self._experiment.place
        self._parent: Run | None = None
        self._description: Description = {}
        self._tags: dict[str, str] = {}
        self._datasets: list[DatasetInput] = []
        self._shipping: dict[Path, _Shipping] = {}
        self._keys: set[str] | None = None  # of the runs that MLflow may have; None if it may have any
        self._quiet_until = 0.0

    @property
    def _client(self) -> MlflowClient:
        return self._experiment.client

    # ---------------------------------------------------------------- the study

    def open(self, description: Description) -> str:
        """Find or create the experiment and the parent run, and return the parent's run id.

        Raises:
            BadInput: the experiment was deleted in MLflow.
        """
        lab = self._experiment.lab
        lab.mkdir(parents=True, exist_ok=True)
        with self._reaching(), FileLock(lab / "tracking.lock"):
            is_new = not self._experiment.find()
            experiment = self._experiment.find_or_create()
            self._keys = set() if is_new else self._experiment.keys()
            parent = self._experiment.run(self._study) or self._client.create_run(
                experiment,
                tags={"sweeplab.key": self._study, "sweeplab.study": self._study},
                run_name=self._study,
            )
            self._describe(parent, description)
            self._set_running_to_waiting(parent)
        self._parent = parent
        return str(parent.info.run_id)

    def _describe(self, parent: Run, description: Description) -> None:
        run_id, known = parent.info.run_id, parent.data.params
        environment = description.get("environment", {})
        params = texts(description.get("params", {}))
        self._tags = environment_tags(environment)
        if found := datasets(environment.get("data", {})):
            self._datasets = found
            self._client.log_inputs(run_id, found)
        self._description = description
        # Params cannot change, but a study's budget may: changed values go to tags.
        new = {name: text for name, text in params.items() if known.get(name) != text}
        changed = {f"sweeplab.now.{name}": text for name, text in new.items() if name in known}
        tags = self._tags | changed | dict(description.get("tags", {}))
        note = self._page({**description.get("summary", {}), "state": "running"})
        tags |= {"sweeplab.state": "running", "mlflow.note.content": note}
        missing = {name: text for name, text in new.items() if name not in known}
        self._experiment.log(run_id, [], missing, tags)
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

    def close(self, summary: StudySummary) -> None:
        """Write state and best values to the parent run; a study that can be continued is SCHEDULED in MLflow."""
        parent = self._opened
        run_id = parent.info.run_id
        state, counts = summary.get("state", "interrupted"), summary.get("counts", {})
        best, best_key = summary.get("best_value"), summary.get("best_run")
        tags = {"sweeplab.state": state, "sweeplab.metric": summary.get("metric", "val_loss")} | {
            f"sweeplab.runs.{name}": str(count) for name, count in counts.items()
        }
        # With the parent's start as the timestamp, closing twice in the same state writes the same point.
        step = sum(counts.values())
        points = [] if best is None else [[Measure("best_value", best, parent.info.start_time, step)]]
        self._shipping.clear()
        with self._reaching():
            self._set_running_to_waiting(parent)
            if best_key and (found := self._experiment.run(f"{self._study}/{best_key}")):
                tags |= {"sweeplab.best_key": best_key, "sweeplab.best_run": found.info.run_id}
            tags["mlflow.note.content"] = self._page(summary)
            self._experiment.log(run_id, points, {}, tags)
            if trials := summary.get("best_trials"):
                self._client.log_text(run_id, csv_text(trials), "best_trials.csv")
            log_best_models(self._experiment, summary.get("checkpoints", {}))
            if state in STATUS_OF_STUDY:
                # The duration shown is the time that it was run, not the time since its start.
                seconds = summary.get("elapsed_seconds")
                ended = None if seconds is None else parent.info.start_time + round(1000 * seconds)
                self._client.set_terminated(run_id, STATUS_OF_STUDY[state], ended)
            else:
                self._client.update_run(run_id, status=WAITING)

    def _page(self, summary: StudySummary) -> str:
        """Return the study's description, with links to the runs of the best trials."""
        links = {}
        for trial in summary.get("best_trials", ())[:TRIALS_ON_PAGE]:
            if found := self._experiment.run(f"{self._study}/{trial['key']}"):
                links[trial["key"]] = f"#/experiments/{found.info.experiment_id}/runs/{found.info.run_id}"
        if summary.get("state") == "complete" and self._parent:
            there = self._parent.info
            report = f"runs/{there.run_id}/artifacts/report/scaling.html"
            links["report"] = f"#/experiments/{there.experiment_id}/{report}"
        return page(self._description, summary, links)

    def run_pages(self) -> str:
        """Return the common beginning of the addresses of run pages, relative to MLflow's address.

        Raises:
            BadInput: tracking has no such study.
        """
        with self._reaching():
            return f"#/experiments/{self._find_parent().experiment_id}/runs/"

    def attach(self, files: Path, folder: str) -> None:
        """Log a file, or all files of a folder, as artifacts of the study; artifacts of the same name are replaced.

        Raises:
            BadInput: tracking has no such study.
        """
        with self._reaching():
            self._experiment.log_artifacts(self._find_parent().artifact_uri, files, folder)

    def _find_parent(self) -> ParentRun:
        if not (parent := self._parent) and (file := self._file):
            point_files_here(self._experiment.lab, self._experiment.uri)
            if found := read_parent(file, self._study):
                return found
        is_there = parent or (self._experiment.may_exist and self._experiment.find())
        if not is_there or not (parent := parent or self._experiment.run(self._study)):
            raise BadInput(f"no study {self._study!r} in {self._place}")
        return ParentRun(parent.info.experiment_id, parent.info.run_id, parent.info.artifact_uri)

    # ----------------------------------------------------------------- the runs

    def ship(self, folder: Path) -> bool:
        """Find or create the nested run and send what is new; after the run's end also files and status.

        After a failure the next call finds out how far this one came.
        """
        if self._is_shipped(folder):
            return True
        if time.monotonic() < self._quiet_until:
            raise TrackingUnavailable(f"{self._place} did not answer; next try within {QUIET_SECONDS:.0f} s")
        # The marker belongs to the present end: a run that is promoted gets another end later.
        marker = self._marker(folder)
        end = RunFolder(folder).read_end()  # before the points: if there is an end, all points are written
        with self._reaching(folder):
            shipping = self._shipping.get(folder) or self._start(folder)
            if shipping is None:
                return False
            points = [shipping.facts, *shipping.measures.new_points()]
            if end is not None:
                self._finish(shipping, points, end)
                write_whole(RunFolder(folder).shipped_file, marker.encode())
                del self._shipping[folder]
            elif shipping.params or any(points):
                resumed = shipping.waiting and any(points)
                how = {"sweeplab.state": "running"}, "RUNNING"
                self._experiment.write_new(
                    shipping.info.run_id, points, shipping.params, *(how if resumed else ())
                )
                shipping.waiting &= not resumed
                shipping.params, shipping.facts = {}, []
        return end is not None

    def end_pause(self) -> None:
        """Allow calls again at once after a slow failure."""
        self._quiet_until = 0.0

    def wait(self, folder: Path) -> None:
        """Set a run that this tracker ships, and that has not ended, to waiting, until its next new point."""
        shipping = self._shipping.get(folder)
        if shipping and not shipping.waiting:
            with self._reaching(folder):
                self._set_waiting(shipping.info.run_id)
                shipping.waiting = True

    def delete(self, run_ids: Iterable[str]) -> None:
        """Move runs to MLflow's deleted ones."""
        with self._reaching():
            for run_id in run_ids:
                self._client.delete_run(run_id)

    def _marker(self, folder: Path) -> str:
        """Return the marker of a completely shipped run: the place, the parent run's id, and the digest of the end.

        In a new database the parent run has another id. An empty text if the run has no end.
        """
        own = is_of_lab(self._experiment.lab, self._experiment.uri)  # by name, as the lab may be moved
        try:
            digest = hashlib.sha256(RunFolder(folder).end_file.read_bytes()).hexdigest()[:16]
        except FileNotFoundError:
            return ""
        return f"{'mlflow.db' if own else self._place} {self._opened.info.run_id} {digest}"

    def _is_shipped(self, folder: Path) -> bool:
        marker = self._marker(folder)
        try:
            return bool(marker) and RunFolder(folder).shipped_file.read_text() == marker
        except FileNotFoundError:
            return False

    def _start(self, path: Path) -> _Shipping | None:
        parent = self._opened
        folder = RunFolder(path)
        if not folder.has_started:
            return None
        start = folder.read_start()
        measures = RunMeasures(folder, start)
        params = texts(start.values.applicable())
        key = f"{self._study}/{start.key}"
        tracked = self._experiment.run(key) if self._keys is None or key in self._keys else None
        if tracked:
            run_id, names = tracked.info.run_id, tracked.data.metrics
            sent = {name: {each.step for each in self.history(run_id, name)} for name in names}
            measures.tracked.update(sent)
            params = {name: text for name, text in params.items() if name not in tracked.data.params}
            if "mlflow.runColor" in tracked.data.tags:  # from an end that was removed
                self._client.delete_tag(run_id, "mlflow.runColor")
        else:
            tags = self._run_tags(start, parent)
            if self._keys is not None:
                self._keys.add(key)  # even if the call below fails, the run may exist
            tracked = self._client.create_run(
                self._experiment.find(), measures.started_ms, tags, run_name(start)
            )
            if self._datasets:
                self._client.log_inputs(tracked.info.run_id, self._datasets)
        waiting = tracked.info.status != "RUNNING"
        self._shipping[path] = _Shipping(tracked.info, measures, waiting, params, measures.facts())
        return self._shipping[path]

    def _run_tags(self, start: RunStart, parent: Run) -> dict[str, str]:
        return self._tags | {
            "mlflow.parentRunId": parent.info.run_id,
            "sweeplab.key": f"{self._study}/{start.key}",
            "sweeplab.study": self._study,
            "sweeplab.cell": start.cell,
            "sweeplab.trial": str(start.trial),
            "sweeplab.seed": str(start.seed),
            "sweeplab.state": "running",
            "sweeplab.searched": json.dumps(start.sampled)[:TAG_CHARACTERS],
        }

    def _finish(self, shipping: _Shipping, points: list[list[Measure]], end: RunEnd) -> None:
        run_id, measures, state = shipping.info.run_id, shipping.measures, end.state
        error = (end.error or "").strip()
        reasons = {"stop_reason": end.stop_reason, "error": error.rpartition("\n")[2]}
        tags = {f"sweeplab.{name}": text[:ERROR_CHARACTERS] for name, text in reasons.items() if text}
        tags["sweeplab.state"] = str(state)
        if end.grad_accum is not None:
            tags["sweeplab.grad_accum"] = str(end.grad_accum)
        if state in COLOR_OF_STATE:
            tags["mlflow.runColor"] = COLOR_OF_STATE[state]
        if error:
            self._client.log_text(run_id, error, "error.txt")
        if checkpoint := measures.folder.checkpoint():
            self._experiment.log_artifacts(shipping.info.artifact_uri, checkpoint, "checkpoint")
        ended_ms = measures.started_ms + round(end.wall_seconds * 1000)
        status = "FAILED" if state is RunState.FAILED else "FINISHED"
        points = [*points, measures.totals(end)]
        self._experiment.write_new(run_id, points, shipping.params, tags, status, ended_ms)

    def _set_running_to_waiting(self, parent: Run) -> None:
        nested = f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'"
        for run in list(self._experiment.runs(f"attributes.status = 'RUNNING' and {nested}")):
            self._set_waiting(run.info.run_id)

    def set_waiting(self, run_ids: Iterable[str]) -> None:
        """Set runs to waiting."""
        with self._reaching():
            for run_id in run_ids:
                self._set_waiting(run_id)

    def _set_waiting(self, run_id: str) -> None:
        self._experiment.write_new(run_id, tags={"sweeplab.state": "waiting"}, status=WAITING)

    # ------------------------------------------------------------------ reading

    @property
    def _file(self) -> Path | None:
        """Return tracking's SQLite file, if it is one: reading it does not need MLflow."""
        return database_file(self._experiment.uri)

    def runs(self) -> Iterator[TrackedRun]:
        """Yield the study's nested runs.

        Raises:
            BadInput: tracking has no such study.
        """
        if (found := self._read(lambda tables: read_runs(tables, self._study))) is not None:
            yield from found
            return
        with self._reaching():
            self._find_parent()
            yield from search_runs(self._experiment)

    def histories(self, run_ids: Sequence[str], name: str) -> dict[str, list[Measure]]:
        """Return a metric's points for each run, ordered by step."""
        found = self._read(lambda tables: read_points(tables, run_ids, name))
        with self._reaching():
            return search_points(self._client, run_ids, name) if found is None else found

    def _read(self, read: Callable[[Path | Engine], Answer | None]) -> Answer | None:
        """Return what `read` finds in MLflow's tables; None if tracking is a server, or `read` finds nothing."""
        if (file := self._file) and (found := read(file)) is not None:
            return found
        if not self._experiment.may_exist:
            return None
        with self._reaching():
            engine = engine_of(self._client)
            return read(engine) if engine else None

    def history(self, run_id: str, name: str) -> list[Measure]:
        """Return all points of one metric of a run, by step."""
        return self.histories([run_id], name)[run_id]

    # ------------------------------------------------------------ calls to MLflow

    @property
    def _opened(self) -> Run:
        if self._parent is None:
            raise RuntimeError("a study has to be opened before anything is shipped")
        return self._parent

    @contextmanager
    def _reaching(self, folder: Path | None = None) -> Iterator[None]:
        """Turn MLflow's failures into TrackingUnavailable, and forget the state of the run being shipped."""
        began = time.monotonic()
        try:
            with reaching(self._experiment.uri):
                yield
        except BaseException as error:
            if folder is not None:
                self._shipping.pop(folder, None)
            if isinstance(error, TrackingUnavailable) and time.monotonic() - began > SLOW_SECONDS:
                self._quiet_until = time.monotonic() + QUIET_SECONDS
            raise
