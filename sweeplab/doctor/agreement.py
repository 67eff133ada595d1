"""Whether Optuna, which knows how a trial ended, and MLflow, which has its numbers, say the same."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence

from sweeplab.doctor.check import Check, Patient, Place, end_of, named
from sweeplab.errors import BadInput
from sweeplab.records.runs import RunEnd, RunState
from sweeplab.sweep.trials.store import OPTUNA_STATES
from sweeplab.tracking.connection import tracking_uri, without_password
from sweeplab.tracking.tracker import TRACKERS, TrackedRun, TrackingUnavailable

LOOKED_AT = "Optuna's values and states against MLflow's"
RELATIVE_TOLERANCE = 1e-9
FINISHED = {state for state in RunState if state.is_finished}


def agreement(patient: Patient) -> Iterator[Check]:
    """Compare state and value of every run whose trial has ended with what MLflow has of it."""
    folder, spec = patient.folder, patient.spec
    tracked: dict[Place, list[TrackedRun]] = {}
    try:
        for run in TRACKERS["mlflow"](folder.lab, folder.name, spec.track.uri).runs():
            tracked.setdefault((run.cell, run.trial, run.seed), []).append(run)
    except BadInput as error:
        # Runs are only sent once the study is there.
        if patient.runs:
            yield Check("agreement", LOOKED_AT, "bad", str(error), patient.run_again)
        return
    except TrackingUnavailable as error:
        yield Check("agreement", LOOKED_AT, "bad", str(error), "start the tracking server")
        return
    yield from _compare(patient, {place: runs[0] for place, runs in tracked.items()})
    if twice := {place: runs[1:] for place, runs in tracked.items() if runs[1:]}:
        found = named("runs are more than once in MLflow", [_name(place) for place in twice])
        extra = [run for runs in twice.values() for run in runs]
        yield Check("agreement", LOOKED_AT, "bad", found, _delete(patient, extra))


def _compare(patient: Patient, tracked: Mapping[Place, TrackedRun]) -> Iterator[Check]:
    agreed = 0
    unsent: list[Place] = []
    lost: list[Place] = []
    differing: dict[Place, str] = {}
    for (cell, number), trial in patient.trials.items():
        if not trial.state.is_finished():
            continue
        for seed in patient.seeds[cell]:
            place = cell, number, seed
            run, there = patient.runs.get(place), tracked.get(place)
            if there is None or there.state not in FINISHED:
                is_marked = run is not None and (run.path / "shipped").exists()
                (lost if is_marked else unsent).append(place)
            elif said := _difference(trial.state.name, trial.value, end_of(run) if run else None, there):
                differing[place] = said
            else:
                agreed += 1
    if differing:
        found = named("runs differ", [f"{_name(place)} ({said})" for place, said in differing.items()])
        delete = _delete(patient, [tracked[place] for place in differing])
        yield Check("agreement", LOOKED_AT, "bad", found, f"{delete} && {_send_again(patient, [*differing])}")
    if lost:
        found = named("runs were sent and are not whole in MLflow", [_name(place) for place in lost])
        yield Check("agreement", LOOKED_AT, "bad", found, _send_again(patient, lost))
    if patient.is_running:
        unsent.clear()  # they are on their way
    if unsent:
        found = named("runs have not been sent to MLflow yet", [_name(place) for place in unsent])
        yield Check("agreement", LOOKED_AT, "warn", found, patient.run_again)
    if not (differing or lost or unsent):
        yield Check("agreement", LOOKED_AT, "ok", f"runs that agree: {agreed}")


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


def _delete(patient: Patient, runs: Sequence[TrackedRun]) -> str:
    """Return the command that takes runs out of MLflow."""
    uri = without_password(tracking_uri(patient.folder.lab, patient.spec.track.uri))
    ids = " ".join(run.run_id for run in runs)
    delete = f"MLFLOW_TRACKING_URI={shlex.quote(uri)} mlflow runs delete --run-id $run"
    return f"for run in {ids}; do {delete}; done"


def _send_again(patient: Patient, places: Sequence[Place]) -> str:
    """Return the commands that send runs again: MLflow finds those that it has, and gets what it lacks."""
    markers = [str(patient.folder.run(*place).path / "shipped") for place in places]
    return f"rm -f {shlex.join(markers)} && {patient.run_again}"


def _name(place: Place) -> str:
    cell, number, seed = place
    return f"{cell} #{number} seed {seed}"
