"""Ship a study to MLflow: one experiment and one parent run per study, one nested run per run.

Nothing is read back: the records are the truth. Three rules make a kill at any moment harmless. A run's id in MLflow
stands in its folder (`tracked`); if a kill came before that was written, the run is found by its key. A point has the
same timestamp and value each time that it is sent, so MLflow keeps it once. An end is written in
a fixed order: files, numbers and tags, the terminal status, and last the marker `shipped` in the run's folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from sweeplab.errors import BadInput
from sweeplab.files import GrowingFile, make_folder, read_bytes, write_whole
from sweeplab.processes import switched_off
from sweeplab.records.folders import StudyFolder, TrackedStudy
from sweeplab.records.runs import RunEnd, RunFolder, RunState, present
from sweeplab.tracking.connection import is_of_lab, reaching
from sweeplab.tracking.experiment import KEY, NOTE, STUDY, TAG_CHARACTERS, Experiment, quoted
from sweeplab.tracking.tracker import (
    USE,
    WAITING,
    Description,
    Measure,
    Mirror,
    RunMeasures,
    StudySummary,
    rounded,
    run_name,
)

if TYPE_CHECKING:
    from mlflow.entities import Run, RunInfo


ERROR_CHARACTERS = 250

# Pruned and diverged runs are FINISHED too: MLflow's KILLED would show them as failures.
STATUS_OF_STUDY = {"complete": "FINISHED", "failed": "FAILED"}


class MLflowTracker(Experiment, Mirror):
    """Shows the numbers and files of one study in MLflow.

    `open` sets runs that a killed process left as running in MLflow back to waiting; `close` does the same with runs
    that have not ended. Every method may raise TrackingUnavailable, and may be called again after it.
    """

    def __init__(self, lab: Path, study: str, uri: str | None = None) -> None:
        super().__init__(lab, study, uri)
        self._folder = StudyFolder(self.lab, study)
        is_own = is_of_lab(self.lab, self.uri)
        # By name, as the lab may be moved.
        self._mark_place = "mlflow.db" if is_own else self.place
        self._parent: Run | None = None
        self._note = ""
        self._tags: dict[str, str] = {}
        # The runs being shipped, and their curves as read so far.
        self._shipping: dict[Path, tuple[RunInfo, RunMeasures]] = {}
        self._use: dict[Path, GrowingFile] = {}  # by workers
        self._use_points: list[list[Measure]] = []  # not sent yet

    # ---------------------------------------------------------------- the study

    def open(self, description: Description) -> str:
        """Find or create the experiment and the parent run, and return the parent's run id.

        Raises:
            BadInput: the experiment was deleted in MLflow.
        """
        make_folder(self.lab)
        with self._reaching(), FileLock(self.lab / "tracking.lock"):
            experiment, parent = self.find_or_create(), self.run(self.study)
            if parent is None:
                tags = {KEY: self.study, STUDY: self.study}
                parent = self.client.create_run(experiment, tags=tags, run_name=self.study)
            self._describe(parent, description)
            self._set_running_to_waiting(parent)
        self._parent, run_id = parent, str(parent.info.run_id)
        self._folder.write_tracked(TrackedStudy(self._mark_place, experiment, run_id))
        return run_id

    def _describe(self, parent: Run, description: Description) -> None:
        run_id, environment = parent.info.run_id, description.get("environment", {})
        self._tags, self._note = _environment_tags(environment), description.get("note", "")
        note = self._page({**description.get("summary", {}), "state": "running"})
        # Params cannot change in MLflow; the study file that is kept with the run has those of today.
        missing = _texts(description.get("params", {}), without=parent.data.params)
        tags = self._tags | {"sweeplab.state": "running", NOTE: note}
        self.log(run_id, [], missing, tags, "RUNNING")
        contents = {
            "study.yaml": description.get("study"),
            "plan.json": description.get("plan"),
            "environment.json": environment,
            **description.get("changes", {}),
        }
        for name, content in contents.items():
            if content:
                text = content
                if not isinstance(text, str):
                    text = json.dumps(content, indent=1, default=str)
                self.log_text(run_id, text, name, parent.info.artifact_uri)

    def close(self, summary: StudySummary) -> None:
        """Write state and best values to the parent run; a study that can be continued is SCHEDULED in MLflow."""
        parent = self._parent
        assert parent
        run_id, state, counts = parent.info.run_id, summary["state"], summary.get("counts", {})
        best, best_key = summary.get("best_value"), summary.get("best_run")
        tags = {"sweeplab.state": state, "sweeplab.metric": summary.get("metric", "val_loss")}
        points = []
        if best is not None:
            # With the parent's start as the timestamp, closing twice in the same state writes the same point.
            points.append(
                [Measure("best_value", best, parent.info.start_time, sum(counts.values()))]
            )
        self._shipping.clear()
        with self._reaching():
            self._set_running_to_waiting(parent)
            if best_key and (best_run := self._run_id(best_key)):
                tags |= {"sweeplab.best_key": best_key, "sweeplab.best_run": best_run}
            tags[NOTE] = self._page(summary)
            self.log(run_id, points, {}, tags)
            if state not in STATUS_OF_STUDY:
                self.client.update_run(run_id, status=WAITING)
                return
            self.client.set_terminated(run_id, STATUS_OF_STUDY[state])

    def _page(self, summary: StudySummary) -> str:
        """Describe a study in the UI by Markdown, the best trial first: MLflow shows only its first lines."""
        parts = []
        best, key = summary.get("best_value"), summary.get("best_run")
        if best is not None and key:
            searched = ", ".join(
                f"{name} {value}" for name, value in summary.get("best_searched", {}).items()
            )
            link = f"#/experiments/{self.find()}/runs/{self._run_id(key)}"
            parts.append(
                f"**Best {summary.get('metric', 'val_loss')} {best:.4f}**: [{key}]({link}) {searched}"
            )
        counts = ", ".join(
            f"{count} {state}" for state, count in summary.get("counts", {}).items()
        )
        parts += [f"**{summary['state']}** {counts}", self._note]
        return "\n\n".join(part.strip() for part in parts if part)

    def _run_id(self, key: str) -> str:
        """Look a run's id up by its key; an empty text if it was not sent."""
        cell, trial, seed = key.rsplit("/", 2)
        return self._folder.run(cell, int(trial), int(seed)).tracked_id

    def annotate(self, text: str, runs: Iterable[RunFolder] | None = None) -> None:
        """Show a note with the study, or with those `runs` of a trial that were sent."""
        with self._reaching():
            if runs is None:
                parent = self.run(self.study) if self.may_exist and self.find() else None
                if parent is None:
                    raise BadInput(f"no study {self.study!r} in {self.place}")
                self.log(parent.info.run_id, tags={"sweeplab.note": text})
                return
            for run in runs:
                if run.tracked_id:
                    self.log(run.tracked_id, tags={NOTE: text})

    # ----------------------------------------------------------------- the runs

    def ship(self, folder: Path) -> bool:
        """Find or create the nested run and send what is new; after the run's end also files and status.

        After a failure the next call finds out how far this one came.
        """
        if self.is_shipped(folder):
            return True
        assert self._parent
        run, marker = RunFolder(folder), b""
        # Before the points: if there is an end, all points are written.
        if run.end_file.exists():
            # The marker belongs to the present end: a run that is promoted gets another end later.
            marker = self._marker(run, self._parent.info.run_id)
        end = run.read_end()
        with self._reaching(folder):
            if folder not in self._shipping and not self._start(run):
                return False
            info, measures = self._shipping[folder]
            self.log(info.run_id, measures.new_points())
            if end is not None:
                self._finish(info, measures, end)
                write_whole(run.shipped_file, marker)
                del self._shipping[folder]
        return end is not None

    def ship_use(self) -> None:
        """Log what each worker has written of its machine to the parent run; steps are seconds since its start."""
        assert self._parent
        began, points = self._parent.info.start_time, self._use_points
        for path in sorted(self._folder.path.glob(f"{USE}/*.jsonl")):
            for line in self._use.setdefault(path, GrowingFile(path)).new_lines().splitlines():
                try:
                    used = json.loads(line)
                except ValueError:  # a kill may have cut the line off
                    continue
                at = round(1000 * used.pop("time"))
                prefix, step = f"{USE}/{path.stem}", (at - began) // 1000
                points.append(
                    [Measure(f"{prefix}/{name}", used[name], at, step) for name in used]
                )
        with self._reaching():
            self.log(self._parent.info.run_id, points)
            points.clear()

    def is_shipped(self, folder: Path) -> bool:
        """Return whether a run has ended, and was completely sent to this place."""
        study = self._parent.info if self._parent else self._folder.read_tracked()
        if study is None:
            return False
        run = RunFolder(folder)
        try:
            return read_bytes(run.shipped_file) == self._marker(run, study.run_id)
        except FileNotFoundError:
            return False

    def is_complete(self, folders: Iterable[Path]) -> bool:
        """Return whether all of these runs have ended and were completely sent to this place, which still exists."""
        if not self.may_exist or (switched_off() and not self.find()):
            return False
        return all(self.is_shipped(folder) for folder in folders)

    def _marker(self, run: RunFolder, parent: str) -> bytes:
        """Name a completely shipped run by the place, the parent run's id, and the digest of the end.

        In a new database the parent run has another id.
        """
        digest = hashlib.sha256(read_bytes(run.end_file)).hexdigest()[:16]
        return f"{self._mark_place} {parent} {digest}".encode()

    def run_ids(self) -> set[str]:
        """Return the ids of all runs that MLflow has of the study."""
        with self._reaching():
            if self.may_exist and self.find():
                return {run.info.run_id for run in self.runs()}
        return set()

    def _start(self, folder: RunFolder) -> bool:
        """Find or create the nested run; return False if the run has not started."""
        if not folder.has_started:
            return False
        assert self._parent
        start, parent = folder.read_start(), self._parent.info.run_id
        measures, mark = RunMeasures(folder, start), f"{self._mark_place} {parent}"
        if folder.tracked.rpartition(" ")[0] == mark:
            run: Run | None = self.client.get_run(folder.tracked_id)
        else:  # sent by a process that died before it could write that down
            run = self.run(f"{self.study}/{start.key}")
        if run is None or run.info.lifecycle_stage != "active":  # deleted there by hand
            tags = self._tags | {
                "sweeplab.cell": start.cell,
                "sweeplab.trial": str(start.trial),
                "sweeplab.seed": str(start.seed),
                "sweeplab.state": "running",
                # To the last digit.
                "sweeplab.searched": json.dumps(start.sampled)[:TAG_CHARACTERS],
                "mlflow.parentRunId": parent,
                KEY: f"{self.study}/{start.key}",
                STUDY: self.study,
            }
            run = self.client.create_run(
                self.find(), measures.started_ms, tags, run_name(start)
            )
        # Those that MLflow lacks: it refuses to change one.
        params = _texts(start.values.applicable() | rounded(start), without=run.data.params)
        write_whole(folder.tracked_file, f"{mark} {run.info.run_id}".encode())
        tags, status = dict[str, str](), ""
        if run.info.status != "RUNNING":
            tags, status = {"sweeplab.state": "running"}, "RUNNING"
        self.log(run.info.run_id, [measures.facts()], params, tags, status)
        self._shipping[folder.path] = run.info, measures
        return True

    def delete(self, run: RunFolder) -> None:
        """Move a run that will be trained again to MLflow's deleted ones."""
        # Not by its key, which has the name that the study had then.
        trial = f"tags.`sweeplab.cell` = {quoted(run.cell)} and tags.`sweeplab.trial` = '{run.trial}'"
        same = f"{trial} and tags.`sweeplab.seed` = '{run.seed}'"
        with self._reaching():
            for old in [*self.runs(same)]:
                self.client.delete_run(old.info.run_id)
        for mark in (run.tracked_file, run.shipped_file):
            mark.unlink(missing_ok=True)

    def _finish(self, info: RunInfo, measures: RunMeasures, end: RunEnd) -> None:
        run_id, state = info.run_id, end.state
        error = (end.error or "").strip()
        reasons = {"stop_reason": end.stop_reason, "error": error.rpartition("\n")[2]}
        tags = {
            f"sweeplab.{name}": text[:ERROR_CHARACTERS]
            for name, text in reasons.items()
            if text
        }
        tags["sweeplab.state"] = str(state)
        if error:
            self.log_text(run_id, error, "error.txt", info.artifact_uri)
        checkpoint = measures.folder.checkpoint()
        if checkpoint:
            self.log_artifacts(run_id, checkpoint, "checkpoint", info.artifact_uri)
        ended_ms = measures.started_ms + round(end.wall_seconds * 1000)
        status = "FAILED" if state is RunState.FAILED else "FINISHED"
        self.log(run_id, [measures.totals(end)], {}, tags, status, ended_ms)

    def _set_running_to_waiting(self, parent: Run) -> None:
        nested = f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'"
        for run in [*self.runs(f"attributes.status = 'RUNNING' and {nested}")]:
            self.log(run.info.run_id, tags={"sweeplab.state": "waiting"}, status=WAITING)

    # ------------------------------------------------------------ calls to MLflow

    @contextmanager
    def _reaching(self, folder: Path | None = None) -> Iterator[None]:
        """Turn MLflow's failures into TrackingUnavailable, and forget the state of the run being shipped."""
        try:
            with reaching(self.uri):
                yield
        except BaseException:
            if folder is not None:
                self._shipping.pop(folder, None)
            raise


PARAM_CHARACTERS = 6000  # MLflow silently truncates a longer one


def _texts(values: Mapping[str, Any], without: Container[str]) -> dict[str, str]:
    texts = {}
    for name, value in values.items():
        if name not in without:
            text = json.dumps(value, default=str) if isinstance(value, dict) else str(value)
            texts[name] = text[:PARAM_CHARACTERS]
    return texts


def _environment_tags(environment: Mapping[str, Any]) -> dict[str, str]:
    repositories = environment.get("git", {})
    git = repositories.get("code") or repositories.get("study") or {}
    tags = {
        "mlflow.source.name": "sweeplab",
        "mlflow.source.git.commit": git.get("commit"),
        "sweeplab.git_dirty": git.get("dirty"),
    }
    return {name: str(value) for name, value in present(tags).items()}
