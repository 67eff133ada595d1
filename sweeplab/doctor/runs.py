"""A study's runs: whether their folders are whole, and whether Optuna and MLflow say the same of them.

Optuna knows how a trial ended, MLflow has its numbers.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from sweeplab.doctor.check import Check, OpenedStudy, Place, Verdict, named
from sweeplab.errors import BadInput, TrackingUnavailable
from sweeplab.records.runs import RunEnd, RunFolder, RunState
from sweeplab.sweep.trials.store import OPTUNA_STATES
from sweeplab.tracking import open_tracker
from sweeplab.tracking.connection import tracking_uri, without_password
from sweeplab.tracking.tracker import TrackedRun

FOLDERS = "folders of runs"
AGREEMENT = "Optuna's values and states against MLflow's"
RELATIVE_TOLERANCE = 1e-9
FINISHED = {state for state in RunState if state.is_finished}
FROM_A_COPY = "put them back from a copy of the lab; MLflow still has what was sent"
# Kind of fault -> what it is, how bad, and the cure, in which {paths} are those found and {again} runs the study again.
FAULTS: dict[str, tuple[str, Verdict, str]] = {
    "damaged": ("files that are no JSON", "bad", FROM_A_COPY),
    "cut off": ("files that are no JSON, of runs that have not ended", "warn", "rm {paths} && {again}"),
    "lost": ("trials that have ended, whose runs' descriptions or ends are gone", "bad", FROM_A_COPY),
    "no_weights": (
        "checkpoints without their weights",
        "bad",
        "put there what artifact `checkpoint` of the run has in MLflow",
    ),
    "unreported": ("runs that ended, of which the storage was not told", "warn", "{again}"),
    "temporary": ("files that a kill left unfinished", "warn", "rm {paths}"),
    "orphaned": ("folders of no trial", "warn", "rm -r {paths}"),
}


def run_folder_checks(study: OpenedStudy) -> Iterator[Check]:
    """Look for what is missing, cut off, or contradicts the storage; one check per kind."""
    found: dict[str, list[Path]] = {kind: [] for kind in FAULTS}
    n_unfinished = 0
    places = {(*trial, seed) for trial in study.trials for seed in study.seeds[trial[0]]} | {*study.runs}
    for place in sorted(places):
        trial = study.trials.get(place[:2])
        state = trial.state.name if trial else "none"
        faults = list(_faults(study.folder.run(*place), state))
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
            yield Check("runs", FOLDERS, verdict, named(what, names), written)
    if not any(found.values()):
        doing = "running" if study.is_running else "waiting to be continued"
        rest = f", of them {doing}: {n_unfinished}" if n_unfinished else ""
        yield Check("runs", FOLDERS, "ok", f"whole: {len(study.runs)}{rest}")


def _faults(run: RunFolder, state: str) -> Iterator[tuple[str, Path]]:
    described, ended = run.start_file, run.end_file
    if not described.exists() or not (ended.exists() or state in ("RUNNING", "none")):
        # A trial that runs comes to its folder, or to what is missing there, when it is continued.
        if state != "RUNNING":
            yield ("orphaned" if state == "none" else "lost"), run.path
        return
    for file in (described, ended):
        if file.exists() and not _is_json(file):
            yield ("cut off" if state == "RUNNING" else "damaged"), file
    for file in run.path.glob("*.tmp"):
        yield "temporary", file
    if state == "RUNNING" and end_of(run):
        yield "unreported", run.path
    for name in ("best", "last"):
        facts = run.path / name / "model.json"
        if facts.exists() and not _weights_are_there(facts):
            yield "no_weights", facts.parent


def end_of(run: RunFolder) -> RunEnd | None:
    """Return how a run ended; None where it has not, or where that cannot be read."""
    try:
        return run.read_end()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _is_json(file: Path) -> bool:
    return _holds(lambda: isinstance(json.loads(file.read_bytes()), dict))


def _weights_are_there(facts: Path) -> bool:
    return _holds(lambda: (facts.parent / json.loads(facts.read_bytes())["tensors"]).stat().st_size > 0)


def _holds(ask: Callable[[], bool]) -> bool:
    try:
        return ask()
    except (OSError, ValueError, KeyError):
        return False


# ------------------------------------------------------------------ Optuna and MLflow


def agreement_checks(study: OpenedStudy) -> Iterator[Check]:
    """Compare state and value of every run whose trial has ended with what MLflow has of it."""
    folder, spec = study.folder, study.spec
    tracked: dict[Place, list[TrackedRun]] = {}
    try:
        for run in open_tracker(folder.lab, folder.name, spec.track.uri).runs():
            tracked.setdefault((run.cell, run.trial, run.seed), []).append(run)
    except BadInput as error:
        # Runs are only sent once the study is there.
        if study.runs:
            yield Check("agreement", AGREEMENT, "bad", str(error), study.run_again)
        return
    except TrackingUnavailable as error:
        yield Check("agreement", AGREEMENT, "bad", str(error), "start the tracking server")
        return
    yield from _compare(study, {place: runs[0] for place, runs in tracked.items()})
    if twice := {place: runs[1:] for place, runs in tracked.items() if runs[1:]}:
        found = named("runs are more than once in MLflow", [_name(place) for place in twice])
        extra = [run for runs in twice.values() for run in runs]
        yield Check("agreement", AGREEMENT, "bad", found, _delete(study, extra))


def _compare(study: OpenedStudy, tracked: Mapping[Place, TrackedRun]) -> Iterator[Check]:
    agreed = 0
    unsent: list[Place] = []
    lost: list[Place] = []
    differing: dict[Place, str] = {}
    for (cell, number), trial in study.trials.items():
        if not trial.state.is_finished():
            continue
        for seed in study.seeds[cell]:
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
        yield Check("agreement", AGREEMENT, "bad", found, f"{delete} && {_send_again(study, [*differing])}")
    if lost:
        found = named("runs were sent and are not whole in MLflow", [_name(place) for place in lost])
        yield Check("agreement", AGREEMENT, "bad", found, _send_again(study, lost))
    if study.is_running:
        unsent.clear()  # they are on their way
    if unsent:
        found = named("runs have not been sent to MLflow yet", [_name(place) for place in unsent])
        yield Check("agreement", AGREEMENT, "warn", found, study.run_again)
    if not (differing or lost or unsent):
        yield Check("agreement", AGREEMENT, "ok", f"runs that agree: {agreed}")


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
