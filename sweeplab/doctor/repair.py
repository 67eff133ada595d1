"""Repair a study: make Optuna's storage and the run folders agree again, and send to MLflow what it lacks.

Repairing uses the normal recovery: a disagreeing trial is set to running without a lease, and the worker that claims
it reports the end from the trial's folder, or trains it if there is none; a run is shipped to MLflow again. Trials held
by a live worker are left alone. Nothing is deleted: damaged files are kept beside the new ones.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sweeplab.doctor.findings import (
    FAULTS,
    OpenedStudy,
    RunFault,
    end_of,
    folder_findings,
    stored_point,
    tracking_findings,
)
from sweeplab.errors import BadInput
from sweeplab.files import make_folder, sync_folder
from sweeplab.formatting import several
from sweeplab.lab.storage import PROMOTED
from sweeplab.lab.studies import describe, summarize
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import RunFolder, RunStart, RunState
from sweeplab.study.file.resolve import check_imported
from sweeplab.study.inputs import recorded_dataset
from sweeplab.study.plan import Plan
from sweeplab.study.space import Cell
from sweeplab.tracking import open_tracker

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from sweeplab.sweep.trials.store import Store

Trial = tuple[str, int]
# Faults of whole trials, as opposed to those of single files.
OF_TRIALS = ("damaged", "cut_off", "lost", "unreported", "unknown", "differs")


@dataclass
class Repaired:
    """What was repaired, or would be; what was left alone, with reasons; and the trials to be trained again."""

    done: list[tuple[RunFault, str]] = field(default_factory=list)
    left: list[tuple[RunFault | None, str]] = field(default_factory=list)
    to_train: list[Trial] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data for JSON."""
        trained = [{"cell": cell, "trial": number} for cell, number in self.to_train]
        report: dict[str, Any] = {"to_train": trained}
        for name, entries in (("done", [*self.done]), ("left", self.left)):
            report[name] = [
                {"fault": fault and fault.kind, "place": fault and fault.place, "what": what}
                for fault, what in entries
            ]
        return report


def repair_study(
    folder: StudyFolder, dry_run: bool = False, allow_plugins: bool = False
) -> Repaired:
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
            stack.enter_context(
                folder.held(f"study {folder.name} is being run by another process")
            )
        _Repair(study, repaired, dry_run).repair_trials()
        if study.is_running:
            repaired.left.append((None, "MLflow is left to the process that runs the study"))
            return repaired
        after = OpenedStudy(folder, allow_plugins)
        after.is_running = False  # it is held here
        _repair_tracking(after, repaired, dry_run)
    return repaired


class _Repair:
    def __init__(self, study: OpenedStudy, repaired: Repaired, dry_run: bool) -> None:
        self.study, self.folder, self.store = study, study.folder, study.store
        self.repaired, self.dry_run = repaired, dry_run

    def repair_trials(self) -> None:
        """Repair the disagreements between the folders and the storage."""
        findings = list(folder_findings(self.study))
        ended = [
            place for place, trial in self.study.trials.items() if trial.state.is_finished()
        ]
        if ended and not self.study.runs:
            raise BadInput(
                f"{self.folder.path / 'runs'} has no run folders, though {several(len(ended), 'trial')} ended; "
                "put a copy of it back"
            )
        by_trial: dict[Trial, list[RunFault]] = {}
        for finding in findings:
            if finding.kind in OF_TRIALS:
                by_trial.setdefault(finding.place[:2], []).append(finding)
            else:
                self._repair_file(finding)
        unreported = [
            place for place, own in by_trial.items() if self._repair_trial(place, own)
        ]
        if unreported and not self.dry_run:
            # As a worker does that claims such a trial.
            from sweeplab.sweep.loop import Loop  # torch with it

            keys = {key for key, _ in unreported}
            Loop(self.store, self._dataset(), self.folder).tell_ends(keys)

    def _record(self, finding: RunFault) -> bool:
        """Record a repair; return whether to carry it out."""
        self.repaired.done.append((finding, FAULTS[finding.kind].repaired))
        return not self.dry_run

    def _repair_file(self, finding: RunFault) -> None:
        if not FAULTS[finding.kind].repaired:
            self.repaired.left.append((finding, FAULTS[finding.kind].cure))
        elif self.study.is_running:
            self.repaired.left.append((finding, "a worker may need it"))
        elif self._record(finding) and finding.kind in ("temporary", "snapshot"):
            finding.path.unlink()
        elif not self.dry_run:
            aside = self.folder.path / "aside" / finding.path.parent.name / finding.path.name
            make_folder(aside.parent)
            finding.path.rename(_free(aside))

    def _repair_trial(self, place: Trial, findings: list[RunFault]) -> bool:
        """Repair one trial except for reports to the storage; return whether there is something to report."""
        cell, number = next(cell for cell in self.store.cells if cell.key == place[0]), place[1]
        runs = [self.folder.run(*place, seed) for seed in self.study.seeds(place)]
        kinds = {finding.kind for finding in findings}
        with self.store.storage.transaction() as connection:
            trial = self.study.trials.get(place)
            leases = self.store.leases.all(connection)
            lease = trial and leases.get(self.store.trial_id(cell, number))
            if lease and not lease.is_dead:
                self.repaired.left += [
                    (finding, "a worker holds its trial") for finding in findings
                ]
                return False
            for finding in findings:
                self._record(finding)
            if self.dry_run:
                return False
            for finding in findings:
                if finding.kind in ("damaged", "cut_off"):
                    finding.path.rename(
                        _free(finding.path.with_name(f"{finding.path.name}.damaged"))
                    )
                    sync_folder(finding.path.parent)
            described = next((run for run in runs if run.has_started), None)
            if kinds & {"unknown", "differs"} and described:
                try:
                    _restore(self.store, connection, cell, described.read_start())
                except ValueError as error:
                    self.repaired.left += [
                        (finding, f"of another study: {error}") for finding in findings
                    ]
                    return False
            elif kinds & {"lost", "damaged"} and not self._ends_are_made(place, runs):
                self.store.reopen(connection, cell, self.study.trials[place])
        if not kinds & {"unknown", "differs", "lost", "damaged", "unreported"}:
            return False
        if not any(map(end_of, runs)):
            self.repaired.to_train.append(place)
            return False
        return "unreported" in kinds or any(
            trial.number == number and not trial.state.is_finished()
            for trial in self.store.trials(cell)
        )

    def _ends_are_made(self, place: Trial, runs: list[RunFolder]) -> bool:
        """Write lost ends from the curves if their value agrees with the storage's; return whether it does."""
        from sweeplab.sweep.trial import TrialRuns  # torch with it

        trial = self.study.trials[place]
        if not all(run.has_started for run in runs):
            return False
        starts = [(run, run.read_start()) for run in runs]
        ended = TrialRuns(self.study.spec, self._dataset(), starts)
        outcome = RunState(trial.user_attrs["outcome"])
        for training in ended.trainings.values():
            ended.restore_curve(training)
            points, values = training.folder.points(), training.run.values
            if outcome.has_value:
                is_whole = bool(points) and points[-1].iteration >= values.max_iters
                ended.states[training.folder.seed] = (
                    RunState.COMPLETE if is_whole else RunState.STOPPED
                )
        if outcome is RunState.FAILED:
            ended.error = "its traceback was lost with its end"
        ending = ended.ending(outcome)
        agree = trial.value in (None, ending.value)
        if agree:
            ended.write_ends(ending)
        return agree

    def _dataset(self) -> Any:
        check_imported(self.study.spec)
        return recorded_dataset(self.folder, self.study.spec)


def _free(path: Any) -> Any:
    others = (path.with_name(f"{path.name}.{number}") for number in range(1, 1000))
    return next(each for each in (path, *others) if not each.exists())


def _repair_tracking(study: OpenedStudy, repaired: Repaired, dry_run: bool) -> None:
    folder, findings = study.folder, list(tracking_findings(study))
    repaired.done += [(finding, FAULTS[finding.kind].repaired) for finding in findings]
    if dry_run or not (findings or repaired.to_train):
        return
    tracker = open_tracker(folder.lab, folder.name, study.spec.track.uri)
    tracker.open(describe(study.spec, folder, Plan.from_dict(folder.read(folder.plan_file))))
    for finding in findings:
        if finding.kind == "gone":
            run = RunFolder(finding.path)
            run.shipped_file.unlink()
            run.tracked_file.unlink()
        tracker.ship(finding.path)
    for place in repaired.to_train:
        for seed in study.seeds(place):
            tracker.delete(folder.run(*place, seed))
    status = study.store.commands.read() and study.store.commands.state.status
    if not status or study.store.n_running():
        status = "interrupted"
    tracker.close(summarize(folder, status))


def _restore(store: Store, connection: Connection, cell: Cell, start: RunStart) -> None:
    """Set the trial of a run to running, as its record has it, in place of the one of this number in the storage.

    Missing numbers before it are filled with trials marked infeasible.

    Raises:
        ValueError: a searched value is outside of its range.
    """
    from optuna.trial import TrialState, create_trial  # slow to import

    study_id, point = store.study_id(cell), stored_point(store.spaces[cell.index], start)
    known = store.storage.cell(study_id).trials
    marks: dict[str, Any] = {}
    if start.enqueued is not None:
        marks["enqueued"] = start.enqueued
    if start.trial < len(known):
        old = known[start.trial]
        if PROMOTED in old.user_attrs:
            marks[PROMOTED] = old.user_attrs[PROMOTED]
        store.reopen(connection, cell, old, anew=True)
        trial_id = store.trial_id(cell, start.trial)
        store.storage.set_trial_system_attr(trial_id, "fixed_params", point)
        for name, value in marks.items():
            store.storage.set_trial_user_attr(trial_id, name, value)
        return
    for _ in range(start.trial - len(known)):
        void = create_trial(state=TrialState.FAIL, user_attrs={"infeasible": True})
        store.storage.create_new_trial(study_id, void)
    system = {"fixed_params": point}
    new = create_trial(state=TrialState.RUNNING, system_attrs=system, user_attrs=marks)
    store.storage.create_new_trial(study_id, new)
