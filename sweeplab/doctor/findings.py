"""Find where Optuna's storage, the run folders and MLflow disagree: one finding for each run and fault.

`doctor` lists them with a cure, `study repair` repairs them. A trial's ending is written to its run folders first, then
reported to Optuna; its numbers are in the folders; MLflow shows them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeplab.doctor.check import OpenedStudy, Place, Verdict
from sweeplab.errors import DamagedFile
from sweeplab.hyperparameters import TABLE
from sweeplab.lab.showing import is_close
from sweeplab.records.runs import FROM_A_COPY, RunEnd, RunFolder, RunStart
from sweeplab.study.space import Space
from sweeplab.tracking import open_tracker
from sweeplab.tracking.tracker import BY_TOKENS, CURVES, WAITING, RunMeasures, TrackedRun

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial


@dataclass(frozen=True)
class Fault:
    """A kind of fault: its description, its verdict, and what repairing does; if it does nothing, the cure."""

    found: str
    verdict: Verdict
    repaired: str = ""
    cure: str = ""


_AGAIN = f"{FROM_A_COPY}; or {{repair}} recreates them"
_OF_THE_ARTIFACT = "put the run's artifact `checkpoint` from MLflow in its place"
IN_FOLDERS = {
    "damaged": Fault("files that are not valid JSON", "bad", "set aside, and recreated", _AGAIN),
    "cut_off": Fault("files that are not valid JSON, of runs that have not ended", "warn", "set aside"),
    "lost": Fault("ended trials whose runs have lost run.json or end.json", "bad", "recreated", _AGAIN),
    "no_curve": Fault("ended runs whose curves are gone", "bad", cure=FROM_A_COPY),
    "checkpoint": Fault("damaged or changed checkpoints", "bad", cure=_OF_THE_ARTIFACT),
    "no_checkpoint": Fault(
        "ended runs without the checkpoint that the study keeps", "warn", cure=_OF_THE_ARTIFACT
    ),
    "snapshot": Fault("damaged snapshots: the runs continue from the ones before", "warn", "removed"),
    "unreported": Fault(
        "ended runs that were not reported to the storage", "warn", "reported to the storage"
    ),
    "unknown": Fault("runs whose trial the storage does not have", "warn", "put back in the storage"),
    "differs": Fault("runs that the storage contradicts", "bad", "reported to the storage again"),
    "temporary": Fault("unfinished files left by a killed process", "warn", "removed"),
    "orphaned": Fault("folders that belong to no trial", "warn", "set aside"),
}
IN_MLFLOW = {
    "other": Fault("runs differ", "bad", "deleted in MLflow, and sent again"),
    "incomplete": Fault("runs were sent but are incomplete in MLflow", "bad", "sent again"),
    "unsent": Fault("runs have not been sent to MLflow yet", "warn", "sent"),
    "stale": Fault("runs wait for a worker but have another state in MLflow", "warn", "set to waiting"),
    "twice": Fault("runs are more than once in MLflow", "bad", "the duplicates deleted in MLflow"),
    "stray": Fault("runs in MLflow belong to no trial", "warn", "deleted in MLflow"),
}
FAULTS = IN_FOLDERS | IN_MLFLOW
# Kinds of fault that do not affect a trial's values or its ending.
BESIDE_TRIALS = {"temporary", "snapshot", "checkpoint", "no_checkpoint", "no_curve"}


@dataclass(frozen=True)
class Finding:
    """One fault of a run: its place, the file or folder, or the MLflow runs concerned; `said` gives details."""

    kind: str
    place: Place
    path: Path
    said: str = ""
    run_ids: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the run's name as a person would write it, with the details."""
        cell, number, seed = self.place
        return f"{cell} #{number} seed {seed}{f' ({self.said})' if self.said else ''}"


def folder_findings(study: OpenedStudy) -> Iterator[Finding]:
    """Yield what is missing or cut off in run folders, or contradicts the storage."""
    known = study.runs  # read before the storage: a trial that a worker starts now gets its folder later
    spaces = {space.cell.key: space for space in study.store.spaces}
    keeps = study.spec.track.checkpoints != "none"
    for place in sorted(
        {(*trial, seed) for trial in study.trials for seed in study.seeds[trial[0]]} | {*known}
    ):
        run, trial = study.folder.run(*place), study.trials.get(place[:2])
        found = list(_faults(run, trial.state.name if trial else "none", keeps))
        for kind, path in found:
            yield Finding(kind, place, path)
        if {kind for kind, _ in found} - BESIDE_TRIALS or place[0] not in spaces:
            continue
        if trial is None:
            yield Finding("unknown", place, run.path)
        elif run.has_started and (said := _contradiction(trial, run, spaces[place[0]])):
            yield Finding("differs", place, run.path, said)


def _faults(run: RunFolder, state: str, keeps: bool) -> Iterator[tuple[str, Path]]:
    from sweeplab.train.checkpoint import damaged_snapshots  # torch with it: slow to import

    described, ended = run.start_file, run.end_file
    if not described.exists() or not (ended.exists() or state in ("RUNNING", "none")):
        # A running trial gets its folder, or what is missing there, when it is continued.
        if state != "RUNNING":
            yield ("orphaned" if state == "none" else "lost"), run.path
        return
    for file in (described, ended):
        if file.exists() and read_said(file) is None:
            yield ("cut_off" if state == "RUNNING" else "damaged"), file
    for file in run.path.glob("*.tmp"):
        yield "temporary", file
    end = end_of(run)
    if state == "RUNNING" and end:
        yield "unreported", run.path
    for file in damaged_snapshots(run.path):
        yield "snapshot", file
    checkpoint, series = run.checkpoint(), [run.checkpoint_at(each) for each in run.series()]
    for each in [*([checkpoint] if checkpoint else ()), *series]:
        if why_damaged(each):
            yield "checkpoint", each
    if checkpoint is None and keeps and end and end.state.has_value:
        yield "no_checkpoint", run.path
    if end and _lacks_curve(run, end):
        yield "no_curve", run.points_file


def _lacks_curve(run: RunFolder, end: RunEnd) -> bool:
    return end.state.has_value and not run.points()


def why_damaged(checkpoint: Path) -> str:
    """Return what is missing or changed in a checkpoint; an empty text if it is whole."""
    from sweeplab.train.checkpoint import DamagedCheckpoint, read_content

    try:
        read_content(checkpoint, "model")
    except (DamagedCheckpoint, OSError) as error:
        return str(error).partition(";")[0]
    return ""


def read_said(file: Path) -> dict[str, Any] | None:
    """Return the content of a JSON file; None if it cannot be read."""
    try:
        said = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    return said if isinstance(said, dict) else None


def end_of(run: RunFolder) -> RunEnd | None:
    """Return how a run ended; None if it has not, or if its end.json cannot be read."""
    try:
        return run.read_end()
    except DamagedFile:
        return None


def stored_point(space: Space, start: RunStart) -> dict[str, Any]:
    """Return a run's searched values as Optuna stores them.

    Raises:
        ValueError: one is outside of its search range.
    """
    point: dict[str, Any] = {}
    for name, value in start.sampled.items():
        point |= space.stored(name, TABLE[name].check(value))
    return point


def _contradiction(trial: FrozenTrial, run: RunFolder, space: Space) -> str:
    """Return in what the storage contradicts a run's records; an empty text if in nothing."""
    from sweeplab.sweep.trials.store import OPTUNA_STATES

    try:
        point = stored_point(space, run.read_start())
    except (ValueError, DamagedFile) as error:
        return str(error)
    for name, value in trial.params.items():
        if point.get(name) != value:
            return f"{name} {value} in Optuna, {point.get(name)} on disk"
    end = end_of(run)
    if end is None or not trial.state.is_finished():
        return ""
    outcome, value = end.ending.outcome, end.ending.value
    if OPTUNA_STATES[outcome] != trial.state or trial.user_attrs["outcome"] != outcome:
        return f"{trial.user_attrs['outcome']} in Optuna, {outcome} on disk"
    if outcome.has_value and not is_close(trial.value, value):
        return f"value {trial.value} in Optuna, {value} on disk"
    return ""


def tracking_findings(study: OpenedStudy) -> Iterator[Finding]:
    """Yield the differences between MLflow and the run folders of ended trials.

    Raises:
        BadInput: MLflow has no such study.
        TrackingUnavailable: MLflow does not answer.
    """
    tracker = open_tracker(study.folder.lab, study.folder.name, study.spec.track.uri)
    tracked: dict[Place, list[TrackedRun]] = defaultdict(list)
    for each in tracker.runs():
        tracked[each.cell, each.trial, each.seed].append(each)
    ended = {
        (cell, number, seed)
        for (cell, number), trial in study.trials.items()
        for seed in study.seeds[cell]
        if trial.state.is_finished()
    }
    ids = [tracked[place][0].run_id for place in ended if place in tracked]
    names = [*CURVES.values(), *(f"{name}{BY_TOKENS}" for name in ("train_loss", "val_loss"))]
    curves = {name: tracker.histories(ids, name) for name in names} if ids else {}
    for place in sorted(ended | {*tracked}):
        run, found = study.folder.run(*place), tracked.get(place, [])
        if found[1:]:
            yield Finding("twice", place, run.path, run_ids=tuple(each.run_id for each in found[1:]))
        if place in ended:
            yield from _compare(run, place, found, curves)
        elif not study.is_running and found:
            if run.has_started and not run.end_file.exists() and found[0].status != WAITING:
                yield Finding("stale", place, run.path, run_ids=(found[0].run_id,))
            if not run.path.exists() and place[:2] not in study.numbers:
                yield Finding("stray", place, run.path, run_ids=(found[0].run_id,))


def _compare(
    run: RunFolder,
    place: Place,
    found: Sequence[TrackedRun],
    curves: Mapping[str, Mapping[str, Sequence[Any]]],
) -> Iterator[Finding]:
    end = end_of(run)
    if end is None or read_said(run.start_file) is None or _lacks_curve(run, end):
        return  # the folder is at fault, and MLflow may have the only copy
    is_whole = bool(found) and found[0].status in ("FINISHED", "FAILED")
    if not is_whole:
        yield Finding("incomplete" if run.shipped_file.exists() else "unsent", place, run.path)
        return
    there, start = found[0], run.read_start()
    measures = RunMeasures(run, start)
    points = {(each.name, each.step): each.value for point in measures.new_points() for each in point}
    sent = {
        (name, each.step): each.value
        for name, by_run in curves.items()
        for each in by_run.get(there.run_id, ())
    }
    latest = {each.name: each.value for each in (*measures.facts(), *measures.totals(end))}
    other = [
        name
        for name, value in latest.items()
        if name in there.metrics and not is_close(there.metrics[name], value)
    ]
    if there.state != end.state:
        yield Finding("incomplete", place, run.path, f"{end.state} on disk, {there.state} in MLflow")
    elif other:
        said = f"{other[0]} {latest[other[0]]:.6g} on disk, {there.metrics[other[0]]} in MLflow"
        yield Finding("other", place, run.path, said, (there.run_id,))
    elif strange := [key for key in sent if key not in points or not is_close(sent[key], points[key])]:
        said = f"MLflow has another {strange[0][0]} at step {strange[0][1]}"
        yield Finding("other", place, run.path, said, (there.run_id,))
    elif missing := {*points} - {*sent} | {(name, 0) for name in latest if name not in there.metrics}:
        yield Finding("incomplete", place, run.path, f"missing points: {len(missing)}")
