"""Studies from Python: what the command line does, as objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeplab.study.folder import StudyFolder, lab_folder
from sweeplab.study.listing import tracking_uri_of
from sweeplab.study.plan import Plan, make_plan
from sweeplab.study.reading import read_study
from sweeplab.study.supervisor import Event, Progress, run_study

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
        """Return the run of the trial with the lowest validation loss; empty when none has finished."""
        frame = self.trials()
        ended = frame[frame["state"].isin(["complete", "stopped"])]
        if ended.empty:
            return {}
        return {str(name): value for name, value in ended.loc[ended["value"].idxmin()].items()}


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
        return make_plan(self.spec, self.lab)[0]

    def run(
        self,
        listen: Callable[[Event, Progress], None] = lambda event, progress: None,
        interrupts: Callable[[], int] = lambda: 0,
    ) -> StudyResult:
        """Run the study to the end of its budget, or go on with it, and write its report.

        `listen` hears the workers' events and a tick several times a second; `interrupts` counts how often
        the user has asked to stop.

        Raises:
            BadInput: it cannot start.
        """
        ending = run_study(self.spec, self.lab, listen, interrupts)
        report = scaling_report(ending.folder) if any(ending.folder.runs()) else None
        return StudyResult(ending.folder, ending.status, ending.errors, report)


def scaling_report(folder: StudyFolder, dashboard: Path | None = None) -> Path:
    """Write a study's scaling report from what tracking has of it, and return the page.

    Raises:
        BadInput: the dashboard asks for what there is not, or tracking has no such study.
    """
    from sweeplab.analysis.table import curves_table, runs_table
    from sweeplab.report.dashboard import CURVES
    from sweeplab.report.scaling import write_scaling_report

    uri = tracking_uri_of(folder)
    runs = runs_table(folder.lab, folder.name, uri)
    curves = curves_table(folder.lab, folder.name, uri, metrics=tuple(CURVES))
    return write_scaling_report(runs, curves, folder.report, dashboard)
