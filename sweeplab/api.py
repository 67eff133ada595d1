"""Studies from Python: what the command line does, as objects."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeplab.errors import BadInput
from sweeplab.study.folder import StudyFolder, lab_folder
from sweeplab.study.identity import check_same_study
from sweeplab.study.listing import VALUED, tracking_uri_of
from sweeplab.study.plan import Plan, make_plan
from sweeplab.study.reading import read_study
from sweeplab.study.space import LONGEST_KEY
from sweeplab.study.supervisor import Event, Progress, run_study
from sweeplab.tracking.tracker import TrackingUnavailable

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
                report = write_report("scaling", self.lab, [ending.folder.name])[0]
            except (BadInput, TrackingUnavailable) as error:
                errors.append(f"no report: {error}")
        status = "failed" if errors and ending.status == "complete" else ending.status
        return StudyResult(ending.folder, status, errors, report)


def write_report(
    page: str,
    lab: Path,
    names: Sequence[str],
    folder: Path | None = None,
    dashboard: Path | None = None,
    form: str = "html",
) -> list[Path]:
    """Write a page about studies from what tracking has of them, and return what there is to open.

    `page` is scaling or sweep, of one study, or compare, of several. A study's pages stand in its own folder, a
    comparison in the lab's `reports`, where no folder is given. `form` is html, or png, svg or pdf for a picture a
    figure.

    Raises:
        BadInput: the dashboard asks for what there is not, pictures cannot be made, tracking has no such study, or
            studies cannot be compared.
        TrackingUnavailable: tracking does not answer.
    """
    from sweeplab.analysis.studies import read_studies
    from sweeplab.report.columns import CURVES
    from sweeplab.report.panels.material import Material
    from sweeplab.report.writer import write_page

    studied = read_studies(lab, names)
    if len(names) > 1:
        studied.check_comparable()
    folder = folder or (
        StudyFolder(lab, names[0]).report if len(names) == 1 else lab / "reports" / _joined(names)
    )
    material = Material.of_study(studied.runs, lambda metric: studied.curves(lab, metric), studied, lab)
    for metric in CURVES if page == "scaling" else ():  # its curves.csv has them all
        material.curves(metric)
    return write_page(page, material, studied.runs, folder, dashboard, form)


def _joined(names: Sequence[str]) -> str:
    """Return the name of a folder for several studies; no study's own name has a plus."""
    text = "+".join(names)
    return (
        text if len(text) <= LONGEST_KEY else f"{len(names)}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    )
