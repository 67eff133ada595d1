"""What the panels of one page are computed from; what several of them need is computed once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pandas import DataFrame

from sweeplab.analysis.laws.assessment import Assessment, assess, find_law
from sweeplab.analysis.points import Points, study_points
from sweeplab.errors import BadInput
from sweeplab.report.panels.trials import plain

if TYPE_CHECKING:
    from sweeplab.analysis.studies import Studies

_RUN_COLUMNS = ("study", "cell", "trial", "seed", "state", "best_val_loss", "final_val_loss", "n_params")
_CURVE_COLUMNS = ("cell", "trial", "seed", "iteration", "train_tokens", "metric", "value")
N_REFITS = 400
Result = TypeVar("Result")


@dataclass(frozen=True)
class Material:
    """The runs and curves of a study, which a page of a table does not have, and the points that laws read.

    `studied` has the study itself, where it is at hand, and `lab` is where its ledger lies.
    """

    runs: DataFrame
    curves: DataFrame
    table: Points | None = None
    studied: Studies | None = None
    lab: Path | None = None
    _kept: dict[Hashable, Any] = field(default_factory=dict)

    @classmethod
    def of_study(
        cls, runs: DataFrame, curves: DataFrame, studied: Studies | None = None, lab: Path | None = None
    ) -> Material:
        """Return what a study's page is made of; both tables may be empty."""
        return cls(plain(runs, _RUN_COLUMNS), plain(curves, _CURVE_COLUMNS), studied=studied, lab=lab)

    @classmethod
    def of_table(cls, found: Assessment) -> Material:
        """Return what the page of a table is made of: the law that was fitted to it, and its points."""
        material = cls(DataFrame(), DataFrame(), table=found.points)
        material._kept["assess", found.fit.law.name, found.delta] = found
        return material

    @property
    def points(self) -> Points:
        """Return the points that laws are fitted to.

        Raises:
            BadInput: no run has ended with a loss, or the table is none that a law may be fitted to.
        """
        if self.table is not None:
            return self.table
        if self.runs.empty:
            raise BadInput("the study has no runs yet")
        return self.once("points", self.studied.points if self.studied else lambda: study_points(self.runs))

    def assessment(self, law: str, delta: str = "auto") -> Assessment:
        """Return a law's fit to the points, with every interval and verdict.

        Raises:
            BadInput: the points allow no fit.
        """
        return self.once(
            ("assess", law, delta),
            lambda: assess(self.points, find_law(law), delta, n_refits=N_REFITS),
        )

    def once(self, key: Hashable, work: Callable[[], Result]) -> Result:
        """Return what `work` gives, or raise what it raises; the second time without working.

        Raises:
            BadInput: what the work refuses.
        """
        if key not in self._kept:
            try:
                self._kept[key] = work()
            except BadInput as refused:
                self._kept[key] = refused
        kept = self._kept[key]
        if isinstance(kept, BadInput):
            raise kept
        return kept  # type: ignore[no-any-return]
