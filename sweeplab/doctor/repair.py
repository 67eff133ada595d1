"""Repair a study: make Optuna's storage, the run folders and MLflow agree again, whatever happened to them.

Repairing uses the normal recovery: a disagreeing trial is set to running without a lease, and the worker that claims
it reports the end from the trial's folder, or trains it if there is none; a run is sent to MLflow again, which gets
what it lacks. Trials held by a live worker are left alone. Nothing is deleted irrevocably: damaged files are kept
beside the new ones, and MLflow keeps deleted runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from sweeplab.doctor.check import OpenedStudy
from sweeplab.doctor.findings import (
    FAULTS,
    Finding,
    end_of,
    folder_findings,
    stored_point,
    tracking_findings,
)
from sweeplab.errors import BadInput
from sweeplab.files import sync_folder
from sweeplab.formatting import several
from sweeplab.lab.describing import describe, summarize
from sweeplab.lab.showing import is_close
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import RunFolder, RunState
from sweeplab.study.inputs import recorded_dataset
from sweeplab.study.plan import Plan
from sweeplab.study.plugins import check_imported
from sweeplab.tracking import open_tracker

Trial = tuple[str, int]
# Faults of whole trials, as opposed to those of single files.
OF_TRIALS = ("damaged", "cut_off", "lost", "unreported", "unknown", "differs")


@dataclass
class Repaired:
    """What was repaired, or would be; what was left alone, with reasons; and the trials to be trained again."""

    done: list[tuple[Finding, str]] = field(default_factory=list)
    left: list[tuple[Finding | None, str]] = field(default_factory=list)
    to_train: list[Trial] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data for JSON."""

        def plain(each: Finding | None, what: str) -> dict[str, Any]:
            if each is None:
                return {"what": what}
            names = dict(zip(("cell", "trial", "seed"), each.place, strict=True))
            return {"fault": each.kind, **names, "said": each.said, "what": what}

        trained = [{"cell": cell, "trial": number} for cell, number in self.to_train]
        return {
            "done": [plain(*each) for each in self.done],
            "left": [plain(*each) for each in self.left],
            "to_train": trained,
        }


def repair_study(folder: StudyFolder, dry_run: bool = False, allow_plugins: bool = False) -> Repaired:
    """Repair the disagreements between a study's stores, or with `dry_run` only return what would be done.

    It may be repeated, and run beside workers. While a process runs the study, MLflow is left to that process.

    Raises:
        BadInput: a file that the study needs is gone or damaged, all its run folders are gone, or its data changed.
        StorageUnavailable: the storage does not answer.
        TrackingUnavailable: MLflow does not answer; everything else is repaired.
    """
    folder.check_whole()
    study, repaired = OpenedStudy(folder, allow_plugins), Repaired()
    with ExitStack() as stack:
        if not study.is_running:
            stack.enter_context(folder.held(f"study {folder.name} is being run by another process"))
        _Repair(study, repaired, dry_run).repair_trials()
        if study.is_running:
            repaired.left.append((None, "MLflow is left to the process that runs the study"))
            return repaired
        after = OpenedStudy(folder, allow_plugins)
        after.is_running = False  # it is held here
        _repair_tracking(after, repaired, dry_run)
    return repaired


class _Repair:
    """Repairs a study's trials in its storage and its folders."""

    def __init__(self, study: OpenedStudy, repaired: Repaired, dry_run: bool) -> None:
        self.study, self.folder, self.store = study, study.folder, study.store
        self.repaired, self.dry_run = repaired, dry_run

    def repair_trials(self) -> None:
        """Repair the disagreements between the folders and the storage."""
        findings = list(folder_findings(self.study))
        ended = [place for place, trial in self.study.trials.items() if trial.state.is_finished()]
        if ended and not self.study.runs:
            raise BadInput(
                f"{self.folder.path / 'runs'} has no run folders, though {several(len(ended), 'trial')} ended; "
                "put a copy of it back"
            )
        by_trial: dict[Trial, list[Finding]] = {}
        for each in findings:
            if each.kind in OF_TRIALS:
                by_trial.setdefault(each.place[:2], []).append(each)
            else:
                self._repair_file(each)
        untold = [place for place, own in by_trial.items() if self._repair_trial(place, own)]
        if untold and not self.dry_run:
            self._tell(untold)

    def _record(self, each: Finding) -> bool:
        """Record a repair; return whether to carry it out."""
        self.repaired.done.append((each, FAULTS[each.kind].repaired))
        return not self.dry_run

    def _repair_file(self, each: Finding) -> None:
        if not FAULTS[each.kind].repaired:
            self.repaired.left.append((each, FAULTS[each.kind].cure))
        elif self.study.is_running:
            self.repaired.left.append((each, "a worker may need it"))
        elif self._record(each) and each.kind in ("temporary", "snapshot"):
            each.path.unlink()
        elif not self.dry_run:
            aside = self.folder.path / "aside" / each.path.parent.name / each.path.name
            aside.parent.mkdir(parents=True, exist_ok=True)
            each.path.rename(_free(aside))

    def _repair_trial(self, place: Trial, findings: list[Finding]) -> bool:
        """Repair one trial except for reports to the storage; return whether there is something to report."""
        cell, number = next(each for each in self.store.cells if each.key == place[0]), place[1]
        runs = [self.folder.run(*place, seed) for seed in self.study.seeds[cell.key]]
        kinds = {each.kind for each in findings}
        with self.store.storage.transaction() as connection:
            trial = self.study.trials.get(place)
            lease = self.store.leases.all(connection).get(trial._trial_id) if trial else None
            if lease and not lease.is_dead:
                self.repaired.left += [(each, "a worker holds its trial") for each in findings]
                return False
            for each in findings:
                self._record(each)
            if self.dry_run:
                return False
            for each in findings:
                if each.kind in ("damaged", "cut_off"):
                    each.path.rename(_free(each.path.with_name(f"{each.path.name}.damaged")))
                    sync_folder(each.path.parent)
            described = next((run for run in runs if run.has_started), None)
            if kinds & {"unknown", "differs"} and described:
                try:
                    point = stored_point(self.store.spaces[cell.index], described.read_start())
                except ValueError as error:
                    self.repaired.left += [(each, f"of another study: {error}") for each in findings]
                    return False
                start = described.read_start()
                asked = {"enqueued": start.enqueued, "retries": start.retries}
                study_id = self.store.study_id(cell)
                self.store.reopening.restore(connection, cell, study_id, number, point, asked)
            elif kinds & {"lost", "damaged"} and not self._ends_are_made(place, runs):
                self.store.reopening.reopen(connection, cell, self.study.trials[place])
        if not kinds & {"unknown", "differs", "lost", "damaged", "unreported"}:
            return False
        if not any(map(end_of, runs)):
            self.repaired.to_train.append(place)
            return False
        return "unreported" in kinds or self._runs_again(place)

    def _runs_again(self, place: Trial) -> bool:
        trials = next(self.store.trials(each) for each in self.store.cells if each.key == place[0])
        return any(trial.number == place[1] and not trial.state.is_finished() for trial in trials)

    def _ends_are_made(self, place: Trial, runs: list[RunFolder]) -> bool:
        """Write lost ends from the curves if their value agrees with the storage's; return whether it does."""
        from sweeplab.sweep.work.trial import TrialRuns  # torch with it

        trial = self.study.trials[place]
        if not all(run.has_started for run in runs):
            return False
        starts = [(run, run.read_start()) for run in runs]
        found = TrialRuns(self.study.spec, self._dataset(), starts)
        outcome = RunState(trial.user_attrs["outcome"])
        for training in found.trainings.values():
            found.restore_curve(training)
            points, values = training.folder.points(), training.run.values
            if outcome.has_value:
                is_whole = bool(points) and points[-1].iteration >= values.max_iters
                found.states[training.folder.seed] = RunState.COMPLETE if is_whole else RunState.STOPPED
        if outcome is RunState.FAILED:
            found.error = "its traceback was lost with its end"
        ending = found.ending(outcome)
        told, value = trial.value, ending.value
        agree = told is None or is_close(told, value)
        if agree:
            found.write_ends(ending)
        return agree

    def _dataset(self) -> Any:
        check_imported(self.study.spec)
        return recorded_dataset(self.folder, self.study.spec)

    def _tell(self, places: Iterable[Trial]) -> None:
        """Report the ends in the folders to the storage, as a worker does that claims such a trial."""
        from sweeplab.sweep.work.runner import Runner  # torch with it

        Runner(self.study.spec, self.store, self._dataset(), self.folder).tell_ends({*places})


def _free(path: Any) -> Any:
    """Return the path, with a number appended if such a file exists."""
    others = (path.with_name(f"{path.name}.{number}") for number in range(1, 1000))
    return next(each for each in (path, *others) if not each.exists())


def _repair_tracking(study: OpenedStudy, repaired: Repaired, dry_run: bool) -> None:
    """Bring MLflow up to date with the folders."""
    folder = study.folder
    findings = list(_tracking_findings(study))
    repaired.done += [(each, FAULTS[each.kind].repaired) for each in findings]
    if dry_run or not findings:
        return
    tracker = open_tracker(folder.lab, folder.name, study.spec.track.uri)
    plan = Plan.from_dict(folder.read(folder.plan_file))
    tracker.open(describe(study.spec, folder, plan))
    tracker.set_waiting(run_id for each in findings if each.kind == "stale" for run_id in each.run_ids)
    tracker.delete(run_id for each in findings if each.kind != "stale" for run_id in each.run_ids)
    for path in dict.fromkeys(
        each.path for each in findings if each.kind in ("other", "incomplete", "unsent")
    ):
        RunFolder(path).shipped_file.unlink(missing_ok=True)
        tracker.ship(path)
    status = study.store.commands.read() and study.store.commands.state.status
    tracker.close(summarize(folder, status if status and not study.store.n_running() else "interrupted"))


def _tracking_findings(study: OpenedStudy) -> Iterator[Finding]:
    try:
        yield from tracking_findings(study)
    except BadInput:  # MLflow does not have the study
        for place, run in study.runs.items():
            if run.has_started and end_of(run):
                yield Finding("unsent", place, run.path)
