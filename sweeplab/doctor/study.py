"""A study's storage, the workers that hold its trials, the folders of its runs, and what MLflow has of them.

Optuna knows how a trial ended, MLflow has its numbers.
"""

from __future__ import annotations

import json
import math
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sweeplab.doctor.check import Check, OpenedStudy, Place, Verdict, named
from sweeplab.errors import BadInput, DamagedFile, TrackingUnavailable
from sweeplab.lab.listing import read_spec
from sweeplab.lab.storage import count_trials
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import FROM_A_COPY, RunEnd, RunFolder, RunState
from sweeplab.sweep.trials.leases import Lease
from sweeplab.sweep.trials.storage import TrialStorage
from sweeplab.sweep.trials.store import OPTUNA_STATES
from sweeplab.tracking import open_tracker
from sweeplab.tracking.connection import tracking_uri, without_password
from sweeplab.tracking.tracker import TrackedRun

RELATIVE_TOLERANCE = 1e-9
OF_THE_ARTIFACT = "put there what artifact `checkpoint` of the run has in MLflow"
FINISHED = {state for state in RunState if state.is_finished}
# Kind of fault -> what it is, how bad, and the cure, in which {paths} are those found and {again} runs the study again.
FAULTS: dict[str, tuple[str, Verdict, str]] = {
    "damaged": ("files that are no JSON", "bad", FROM_A_COPY),
    "cut off": ("files that are no JSON, of runs that have not ended", "warn", "rm {paths} && {again}"),
    "lost": ("trials that have ended, whose runs' descriptions or ends are gone", "bad", FROM_A_COPY),
    "no_curve": ("runs that ended, whose curves are gone", "bad", FROM_A_COPY),
    "checkpoint": ("checkpoints that are not what was written", "bad", OF_THE_ARTIFACT),
    "no_checkpoint": ("runs that ended without the checkpoint that the study keeps", "warn", OF_THE_ARTIFACT),
    "snapshot": (
        "damaged snapshots, from which no run goes on: it takes the one before",
        "warn",
        "rm {paths} && {again}",
    ),
    "unreported": ("runs that ended, of which the storage was not told", "warn", "{again}"),
    "temporary": ("files that a kill left unfinished", "warn", "rm {paths}"),
    "orphaned": ("folders of no trial", "warn", "rm -r {paths}"),
}


def storage_check(study: StudyFolder) -> Check:
    """Read the study's descriptions and go through its database."""
    is_elsewhere = study.storage_file.exists()
    place = str(study.storage_file if is_elsewhere else study.database)
    try:
        study.check_whole()
        read_spec(study)
    except DamagedFile as error:
        return Check("storage", str(error.file), "bad", error.what, error.cure)
    except BadInput as error:
        found = f"its description cannot be read: {error}"
        return Check("storage", str(study.path), "bad", found, study.cure_of(study.canonical_file))
    try:
        n_trials = sum(each.states.total() for each in count_trials(study).values())
    except BadInput as error:
        return Check("storage", place, "bad", str(error), "start the database")
    return Check("storage", place, "ok", f"{'answers' if is_elsewhere else 'whole'}; trials: {n_trials}")


def unstarted_checks(lab: Path) -> Iterator[Check]:
    """Yield a check where a study was killed before it had written what it is."""
    place = lab / "studies"
    if folders := [each for each in sorted(place.glob("*/")) if not StudyFolder(lab, each.name).has_started]:
        found = named("folders of studies that never started", [each.name for each in folders])
        yield Check("storage", str(place), "warn", found, shlex.join(["rm", "-r", *map(str, folders)]))


def version_check(study: StudyFolder) -> Iterator[Check]:
    """Yield a check where the database is another Optuna's, whose tables this one does not read."""
    try:
        TrialStorage(study.storage_url).engine.dispose()
    except RuntimeError as error:
        cure = shlex.join(["optuna", "storage", "upgrade", "--storage", study.storage_url])
        found = str(error).partition(". ")[0]
        yield Check("storage", str(study.database), "bad", found, f"copy the file, then: {cure}")


# ------------------------------------------------------------------ workers


def worker_checks(study: OpenedStudy) -> Iterator[Check]:
    """Look for trials whose worker is gone or hangs."""
    check = partial(Check, "workers", "who holds which trial")
    with study.store.storage.reading() as connection:
        held_by = study.store.leases.all(connection)
    names: dict[str, list[str]] = {"held": [], "waiting": [], "gone": [], "stuck": []}
    stuck = set()
    for (cell, number), trial in study.trials.items():
        if trial.state.name == "RUNNING":
            lease = held_by.get(trial._trial_id)
            standing = _standing(lease) if lease else "gone"
            names[standing].append(f"{cell} #{number}")
            if lease and standing == "stuck":
                stuck.add(lease.owner.pid)
    if names["stuck"]:
        found = named("trials of workers that are there and do nothing", names["stuck"])
        yield check("bad", found, _kill(stuck, study))
    if names["gone"] and study.is_running:
        yield check("ok", named("trials wait to be taken over from a worker that is gone", names["gone"]))
    elif names["gone"]:
        yield check("warn", named("trials of workers that are gone", names["gone"]), study.run_again)
    elif not names["stuck"]:
        trained = f"trials being trained: {len(names['held'])}"
        yield check("ok", f"{trained}, waiting to be continued: {len(names['waiting'])}")


def _standing(lease: Lease) -> str:
    """Say how a holder stands: it works on what it holds, gave it back, is gone, or is there and hangs."""
    if lease.owner.is_nobody:
        return "waiting"
    if not lease.is_over:
        return "gone" if lease.owner.is_gone else "held"
    return "stuck" if lease.owner.is_here and not lease.owner.is_gone else "gone"


def _kill(pids: Iterable[int], study: OpenedStudy) -> str:
    """Return the command that ends processes; whoever runs the study starts others, else running it again does."""
    kill = f"kill -9 {' '.join(map(str, sorted(pids)))}"
    return kill if study.is_running else f"{kill} && {study.run_again}"


# ------------------------------------------------------------------ folders of runs


def run_folder_checks(study: OpenedStudy) -> Iterator[Check]:
    """Look for what is missing, cut off, or contradicts the storage; one check per kind."""
    check = partial(Check, "runs", "folders of runs")
    found: dict[str, list[Path]] = {kind: [] for kind in FAULTS}
    n_unfinished = 0
    places = {(*trial, seed) for trial in study.trials for seed in study.seeds[trial[0]]} | {*study.runs}
    for place in sorted(places):
        trial = study.trials.get(place[:2])
        state = trial.state.name if trial else "none"
        faults = list(_faults(study.folder.run(*place), state, study.spec.track.checkpoints != "none"))
        n_unfinished += state == "RUNNING" and not faults
        for kind, path in faults:
            # What a command mends, those that work on the study are about to mend.
            if not (study.is_running and FAULTS[kind][1] == "warn"):
                found[kind].append(path)
    for kind, paths in found.items():
        if paths:
            what, verdict, cure = FAULTS[kind]
            names = [str(path.relative_to(study.folder.path / "runs")) for path in paths]
            written = cure.format(paths=shlex.join(map(str, paths)), again=study.run_again)
            yield check(verdict, named(what, names), written)
    if not any(found.values()):
        doing = "running" if study.is_running else "waiting to be continued"
        rest = f", of them {doing}: {n_unfinished}" if n_unfinished else ""
        yield check("ok", f"whole: {len(study.runs)}{rest}")


def _faults(run: RunFolder, state: str, keeps: bool) -> Iterator[tuple[str, Path]]:
    from sweeplab.train.checkpoint import damaged_snapshots  # torch with it: slow to import

    described, ended = run.start_file, run.end_file
    if not described.exists() or not (ended.exists() or state in ("RUNNING", "none")):
        # A trial that runs comes to its folder, or to what is missing there, when it is continued.
        if state != "RUNNING":
            yield ("orphaned" if state == "none" else "lost"), run.path
        return
    for file in (described, ended):
        if file.exists() and _said(file) is None:
            yield ("cut off" if state == "RUNNING" else "damaged"), file
    for file in run.path.glob("*.tmp"):
        yield "temporary", file
    end = end_of(run)
    if state == "RUNNING" and end:
        yield "unreported", run.path
    for file in damaged_snapshots(run.path):
        yield "snapshot", file
    if checkpoint := run.checkpoint():
        if why_damaged(checkpoint):
            yield "checkpoint", checkpoint
    elif keeps and end and end.state.has_value:
        yield "no_checkpoint", run.path
    if end and end.state.has_value and not run.points():
        yield "no_curve", run.points_file


def why_damaged(checkpoint: Path) -> str:
    """Say what a checkpoint lacks, or what of it is not what was written; nothing where it is whole."""
    from sweeplab.train.checkpoint import DamagedCheckpoint, whole_checkpoint

    try:
        whole_checkpoint(checkpoint, "model")
    except (DamagedCheckpoint, OSError) as error:
        return str(error).partition(";")[0]
    return ""


def start_check(study: OpenedStudy) -> Iterator[Check]:
    """Yield a check of the checkpoint that a study's runs start from, where they start from one."""
    if folder := study.spec.init_folder:
        digest, found = study.folder.data.init_digest, why_damaged(folder)
        if not found and digest not in (None, (_said(folder / "model.json") or {}).get("sha256")):
            found = "it is another run's than the one that the study started from"
        cure = "put a copy of it back: runs that have not begun start from it" if found else ""
        yield Check("init_from", str(folder), "bad" if found else "ok", found or "whole", cure)


def _said(file: Path) -> dict[str, Any] | None:
    """Return what a JSON file says; None where it is torn."""
    try:
        said = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    return said if isinstance(said, dict) else None


def end_of(run: RunFolder) -> RunEnd | None:
    """Return how a run ended; None where it has not, or where that cannot be read."""
    try:
        return run.read_end()
    except DamagedFile:
        return None


# ------------------------------------------------------------------ Optuna and MLflow


def agreement_checks(study: OpenedStudy) -> Iterator[Check]:
    """Compare state and value of every run whose trial has ended with what MLflow has of it."""
    check = partial(Check, "agreement", "Optuna's values and states against MLflow's")
    tracked: dict[Place, list[TrackedRun]] = defaultdict(list)
    try:
        for run in open_tracker(study.folder.lab, study.folder.name, study.spec.track.uri).runs():
            tracked[run.cell, run.trial, run.seed].append(run)
    except BadInput as error:
        # Runs are only sent once the study is there.
        if study.runs:
            yield check("bad", str(error), study.run_again)
        return
    except TrackingUnavailable as error:
        yield check("bad", str(error), "start the tracking server")
        return
    yield from _compare(study, {place: runs[0] for place, runs in tracked.items()}, check)
    if twice := {place: runs[1:] for place, runs in tracked.items() if runs[1:]}:
        found = named("runs are more than once in MLflow", [*map(_name, twice)])
        yield check("bad", found, _delete(study, [run for runs in twice.values() for run in runs]))


def _compare(
    study: OpenedStudy, tracked: Mapping[Place, TrackedRun], check: Callable[..., Check]
) -> Iterator[Check]:
    agreed = 0
    unsent: list[Place] = []
    lost: list[Place] = []
    differing: dict[Place, str] = {}
    for (cell, number), trial in study.trials.items():
        for seed in study.seeds[cell] if trial.state.is_finished() else ():
            place = cell, number, seed
            run, there = study.runs.get(place), tracked.get(place)
            if there is None or there.state not in FINISHED:
                is_marked = run is not None and (run.path / "shipped").exists()
                (lost if is_marked else unsent).append(place)
            elif said := _difference(trial.state.name, trial.value, end_of(run) if run else None, there):
                differing[place] = said
            else:
                agreed += 1
    if differing:
        found = named("runs differ", [f"{_name(place)} ({said})" for place, said in differing.items()])
        delete = _delete(study, [tracked[place] for place in differing])
        yield check("bad", found, f"{delete} && {_send_again(study, [*differing])}")
    if lost:
        found = named("runs were sent and are not whole in MLflow", [*map(_name, lost)])
        yield check("bad", found, _send_again(study, lost))
    if study.is_running:
        unsent.clear()  # they are on their way
    if unsent:
        found = named("runs have not been sent to MLflow yet", [*map(_name, unsent)])
        yield check("warn", found, study.run_again)
    if not (differing or lost or unsent):
        yield check("ok", f"runs that agree: {agreed}")


def _difference(state: str, value: float | None, end: RunEnd | None, there: TrackedRun) -> str:
    """Say in what a run differs, or nothing; a run may have its own end inside a trial that ended otherwise."""
    if end and end.state != there.state:
        return f"{end.state} on disk, {there.state} in MLflow"
    if not end and OPTUNA_STATES[RunState(there.state)].name != state:
        return f"{state} in Optuna, {there.state} in MLflow"
    sent = there.metrics.get("value")
    if state != "COMPLETE" or value is None:
        return ""
    if sent is not None and math.isclose(sent, value, rel_tol=RELATIVE_TOLERANCE):
        return ""
    return f"value {value:.6g} in Optuna, {sent} in MLflow"


def _delete(study: OpenedStudy, runs: Sequence[TrackedRun]) -> str:
    """Return the command that takes runs out of MLflow."""
    uri = without_password(tracking_uri(study.folder.lab, study.spec.track.uri))
    ids = " ".join(run.run_id for run in runs)
    delete = f"MLFLOW_TRACKING_URI={shlex.quote(uri)} mlflow runs delete --run-id $run"
    return f"for run in {ids}; do {delete}; done"


def _send_again(study: OpenedStudy, places: Sequence[Place]) -> str:
    """Return the commands that send runs again: MLflow finds those that it has, and gets what it lacks."""
    markers = [str(study.folder.run(*place).path / "shipped") for place in places]
    return f"rm -f {shlex.join(markers)} && {study.run_again}"


def _name(place: Place) -> str:
    cell, number, seed = place
    return f"{cell} #{number} seed {seed}"
