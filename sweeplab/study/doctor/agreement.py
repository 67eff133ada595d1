"""Whether Optuna, which knows how a trial ended, and MLflow, which has its numbers, say the same."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterator

from sweeplab.errors import BadInput
from sweeplab.study.doctor.check import Check, Patient, named, outcome_of
from sweeplab.study.store import TOLD
from sweeplab.tracking.tracker import ENDED, TRACKERS, TrackedRun, TrackingUnavailable

LOOKED_AT = "Optuna's values and states against MLflow's"
RELATIVE_TOLERANCE = 1e-9


def agreement(patient: Patient) -> Iterator[Check]:
    """Compare state and value of every run whose trial has ended with what MLflow has of it."""
    folder, spec = patient.folder, patient.spec
    try:
        found = list(TRACKERS["mlflow"](folder.lab, folder.name, spec.track.uri).runs())
    except BadInput as error:
        # Runs are only sent once the study is there.
        if patient.runs:
            yield Check("agreement", LOOKED_AT, "bad", str(error), _send_again(patient, "*"))
        return
    except TrackingUnavailable as error:
        yield Check("agreement", LOOKED_AT, "bad", str(error), "start the tracking server")
        return
    yield from _compare(patient, {(run.cell, run.trial, run.seed): run for run in found})
    counts = Counter((run.cell, run.trial, run.seed) for run in found)
    if twice := [_name(place) for place, count in counts.items() if count > 1]:
        cure = "delete the one of fewer points in MLflow"
        yield Check("agreement", LOOKED_AT, "bad", named("runs are twice in MLflow", twice), cure)


def _compare(patient: Patient, tracked: dict[tuple[str, int, int], TrackedRun]) -> Iterator[Check]:
    agreed = 0
    unsent: list[str] = []
    lost: list[str] = []
    differing: list[str] = []
    for (cell, number), trial in patient.trials.items():
        if not trial.state.is_finished():
            continue
        for seed in patient.spec.seeds:
            place = cell, number, seed
            run, there = patient.runs.get(place), tracked.get(place)
            marked = bool(run and (run.path / "shipped").exists())
            if there is None or (there.state not in ENDED and not marked):
                (lost if marked else unsent).append(_name(place))
            elif said := _difference(trial.state.name, trial.value, outcome_of(run) if run else None, there):
                differing.append(f"{_name(place)} ({said})")
            else:
                agreed += 1
    if differing:
        cure = f"delete the run in MLflow, then: {_send_again(patient, '<run>')}"
        yield Check("agreement", LOOKED_AT, "bad", named("runs differ", differing), cure)
    if lost:
        found = named("runs were sent and are not whole in MLflow", lost)
        yield Check("agreement", LOOKED_AT, "bad", found, _send_again(patient, "*"))
    if unsent and not patient.is_running:
        found = named("runs have not been sent to MLflow yet", unsent)
        yield Check("agreement", LOOKED_AT, "warn", found, patient.run_again)
    if not (differing or lost or (unsent and not patient.is_running)):
        yield Check("agreement", LOOKED_AT, "ok", f"runs that agree: {agreed}")


def _difference(state: str, value: float | None, ended: dict[str, object] | None, there: TrackedRun) -> str:
    """Say in what a run differs, or nothing; a run may have its own end inside a trial that ended otherwise."""
    told = TOLD.get(there.state)
    if ended and ended["state"] != there.state:
        return f"{ended['state']} on disk, {there.state} in MLflow"
    if not ended and (told is None or told.name != state):
        return f"{state} in Optuna, {there.state} in MLflow"
    sent = there.metrics.get("value")
    if state != "COMPLETE" or value is None:
        return ""
    if sent is not None and math.isclose(sent, value, rel_tol=RELATIVE_TOLERANCE):
        return ""
    return f"value {value:.6g} in Optuna, {sent} in MLflow"


def _send_again(patient: Patient, run: str) -> str:
    """Return the commands that send runs again: MLflow finds those that it has, and gets what it lacks."""
    runs = patient.folder.path / "runs"
    marker = f"{shlex.quote(str(runs))}/{'*/*' if run == '*' else run}/shipped"
    return f"rm {marker} && {patient.run_again}"


def _name(place: tuple[str, int, int]) -> str:
    cell, number, seed = place
    return f"{cell} #{number} seed {seed}"
