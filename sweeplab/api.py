"""Studies from Python: what the command line does, as objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeplab.errors import BadInput
from sweeplab.study.folder import StudyFolder, lab_folder
from sweeplab.study.identity import check_same_study
from sweeplab.study.listing import VALUED, tracking_uri_of
from sweeplab.study.plan import Plan, make_plan
from sweeplab.study.reading import read_study
from sweeplab.study.supervisor import Event, Progress, run_study
from sweeplab.tracking.tracker import TRACKERS, TrackingUnavailable

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class StudyResult:
    """How a study stands after `run`; `status` is complete, interrupted or failed."""

    folder: StudyFolder
    status: str
    errors: list[str]
    report: Path | None

    def trials(self) -> pd.DataFrame:
        """Return every run as a row: cell, trial, seed, state, hyperparameters, metrics."""
        from sweeplab.analysis.table import runs_table

        return runs_table(self.folder.lab, self.folder.name, tracking_uri_of(self.folder))

    @property
    def best(self) -> dict[str, Any]:
        """Return the run with the lowest value, as plain values; empty when none has finished."""
        import pandas as pd

        rows = self.trials().astype(object).to_dict("records")
        best = min((row for row in rows if row["state"] in VALUED), key=lambda row: row["value"], default={})
        return {str(name): None if pd.isna(value) else value for name, value in best.items()}


class Study:
    """One study file, read and checked.

    Raises:
        BadInput: with everything that is wrong in the file.
    """

    def __init__(
        self, path: Path, lab: Path | None = None, name: str | None = None, overrides: Sequence[str] = ()
    ) -> None:
        self.spec = read_study(path, overrides, name)
        self.lab = lab_folder(lab)

    def plan(self) -> Plan:
        """Return what running the study would do.

        Raises:
            BadInput: it could not start.
        """
        plan = make_plan(self.spec, self.lab)[0]
        try:
            check_same_study(self.spec, StudyFolder(self.lab, self.spec.name), plan.data)
        except BadInput as error:
            return replace(plan, warnings=[*plan.warnings, f"cannot be run: {error}"])
        return plan

    def run(
        self,
        listen: Callable[[Event, Progress], None] = lambda event, progress: None,
        interrupts: Callable[[], int] = lambda: 0,
    ) -> StudyResult:
        """Run the study to the end of its budget, or go on with it, and write its report.

        What goes wrong on the way stands in the result's `errors`.

        `listen` hears the workers' events and a tick several times a second; `interrupts` counts how often
        the user has asked to stop.

        Raises:
            BadInput: it cannot start.
        """
        ending = run_study(self.spec, self.lab, listen, interrupts)
        errors, report = list(ending.errors), None
        if any(ending.folder.runs()):
            try:
                report = scaling_report(ending.folder)
            except (BadInput, TrackingUnavailable) as error:
                errors.append(f"no report: {error}")
        status = "failed" if errors and ending.status == "complete" else ending.status
        return StudyResult(ending.folder, status, errors, report)


def scaling_report(folder: StudyFolder, dashboard: Path | None = None) -> Path:
    """Write a study's scaling report from what tracking has of it, keep it there too, and return the page.

    Raises:
        BadInput: the dashboard asks for what there is not, or tracking has no such study.
    """
    from sweeplab.analysis.studies import read_studies
    from sweeplab.analysis.table import curves_table
    from sweeplab.report.columns import CURVES
    from sweeplab.report.scaling import write_scaling_report

    studied = read_studies(folder.lab, [folder.name])
    curves = curves_table(folder.lab, folder.name, tracking_uri_of(folder), metrics=tuple(CURVES))
    page = write_scaling_report(studied.runs, curves, folder.report, dashboard, studied, folder.lab)
    with suppress(TrackingUnavailable):  # the page is written, and the next one may be kept there again
        TRACKERS["mlflow"](folder.lab, folder.name, tracking_uri_of(folder)).attach(folder.report, "report")
    return page
