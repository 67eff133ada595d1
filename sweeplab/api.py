"""Studies from Python: what the command line does, as objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sweeplab.study.folder import lab_folder
from sweeplab.study.plan import Plan, make_plan
from sweeplab.study.reading import read_study
from sweeplab.study.supervisor import Progress, StudyResult, run_study


class Study:
    """One study file, read and checked."""

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
        listen: Callable[[dict[str, Any], Progress], None] = lambda event, progress: None,
        interrupts: Callable[[], int] = lambda: 0,
    ) -> StudyResult:
        """Run the study to the end of its budget, or go on with it.

        Raises:
            BadInput: it cannot start.
        """
        return run_study(self.spec, self.lab, listen, interrupts)
