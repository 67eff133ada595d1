"""What the panels of one page are computed from; what several of them need is computed once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pandas import DataFrame

from sweeplab.analysis.fit.assessment import Assessment, assess, find_law
from sweeplab.analysis.points import Points, study_points
from sweeplab.analysis.sweep.trials import Sweep, sweep_of
from sweeplab.analysis.trials import plain
from sweeplab.errors import BadInput
from sweeplab.records.folders import StudyFolder
from sweeplab.sweep.work.pruned import Audited, audited_trials

if TYPE_CHECKING:
    from sweeplab.analysis.studies import Studies

_RUN_COLUMNS = ("study", "cell", "trial", "seed", "state", "best_val_loss", "final_val_loss", "n_params")
_CURVE_COLUMNS = ("cell", "trial", "seed", "iteration", "train_tokens", "metric", "value")
N_REFITS = 400
Result = TypeVar("Result")


@dataclass(frozen=True)
class Material:
    """The runs and curves of studies, which a page of a table does not have, and the points that laws read.

    `read_curve` is called for a metric when a panel first needs its curves. `studied` has the studies themselves,
    where they are at hand, and `lab` is where they and their ledger lie.
    """

    runs: DataFrame
    read_curve: Callable[[str], DataFrame]
    table: Points | None = None
    studied: Studies | None = None
    lab: Path | None = None
    _kept: dict[Hashable, Any] = field(default_factory=dict)

    @classmethod
    def of_study(
        cls,
        runs: DataFrame,
        curves: DataFrame | Callable[[str], DataFrame],
        studied: Studies | None = None,
        lab: Path | None = None,
    ) -> Material:
        """Return what a page of studies is made of; both tables may be empty, and curves be read by metric."""
        if callable(curves):
            return cls(plain(runs, _RUN_COLUMNS), curves, studied=studied, lab=lab)
        whole = plain(curves, _CURVE_COLUMNS)
        return cls(
            plain(runs, _RUN_COLUMNS),
            lambda metric: whole[whole["metric"] == metric],
            studied=studied,
            lab=lab,
        )

    @classmethod
    def of_table(cls, found: Assessment) -> Material:
        """Return what the page of a table is made of: the law that was fitted to it, and its points."""
        material = cls(DataFrame(), lambda metric: DataFrame(), table=found.points)
        material._kept["assess", found.fit.law.name, found.delta] = found
        return material

    @property
    def loss_title(self) -> str:
        """Return what a trial is valued by, with its unit where it has one."""
        own = {spec.objective.metric for spec in self.studied.specs.values()} if self.studied else set()
        return "loss (nats/token)" if own <= {"val_loss"} else " or ".join(sorted(own))

    @property
    def baselines(self) -> Mapping[str, Mapping[str, Any]]:
        """Return what counting alone makes of each cell's data; of several studies, the first that has a cell."""
        own = self.studied.baselines.values() if self.studied else ()
        return {cell: each for cells in reversed([*own]) for cell, each in cells.items()}

    def curves(self, metric: str, study: str | None = None) -> DataFrame:
        """Return a metric's curves, of all runs or of one study's."""
        curves = self.once(("curves", metric), lambda: plain(self.read_curve(metric), _CURVE_COLUMNS))
        return curves[curves["study"] == study] if study and "study" in curves else curves

    @property
    def curves_read(self) -> list[DataFrame]:
        """Return the curves that panels have asked for, a table a metric."""
        return [kept for key, kept in self._kept.items() if isinstance(key, tuple) and key[0] == "curves"]

    @property
    def sweeps(self) -> Sequence[Sweep]:
        """Return each study's trials.

        Raises:
            BadInput: no study has a run.
        """
        if self.runs.empty:
            raise BadInput("the study has no runs yet")
        search = self.studied.search if self.studied else {}
        return self.once(
            "sweeps",
            lambda: [
                sweep_of(own, search.get(str(name))) for name, own in self.runs.groupby("study", sort=False)
            ],
        )

    def audited(self, study: str) -> list[Audited]:
        """Return the study's pruned trials that were trained to their end after all."""
        lab = self.lab
        return self.once(
            ("audited", study),
            lambda: audited_trials(StudyFolder(lab, study)) if lab and self.studied else [],
        )

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
