"""The data of a page: runs, curves and points, each computed once, and the titles of their columns."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pandas import DataFrame, Series

from sweeplab.analysis.differences import CellConfirmed, confirmed_cells
from sweeplab.analysis.studies import PARAMS, Studies, study_points, unit_of, whole_losses
from sweeplab.analysis.sweep import Importance, Sweep, importances, sweep_of
from sweeplab.analysis.trials import WORST_FIRST, plain, rankings, with_expected
from sweeplab.errors import BadInput
from sweeplab.formatting import counts, rounded
from sweeplab.hyperparameters import AUTO, TABLE
from sweeplab.laws.assessment import Assessment, assess, law_for
from sweeplab.laws.forms import Law
from sweeplab.laws.points import Points
from sweeplab.records.folders import StudyFolder
from sweeplab.records.kept import read_confirmed
from sweeplab.report.style import Look, looks
from sweeplab.study.choice import Ranking

if TYPE_CHECKING:
    from sweeplab.analysis.trials import StudyDesign

# Columns of the runs that are measured or computed, with their axis titles; a loss has its objective's unit.
FACTS = {
    "n_params": "parameters",
    "n_params_active": "active parameters per token",
    "n_params_non_embedding": "parameters without embeddings",
    "train_tokens": "training tokens",
    "train_flops": "training FLOPs",
    "wall_seconds": "wall time (s)",
}
LOSSES = {
    "best_val_loss": "val_loss ({unit})",
    "final_val_loss": "final val_loss ({unit})",
    "best_whole_val_loss": "whole_val_loss ({unit})",
    "final_whole_val_loss": "final whole_val_loss ({unit})",
}
CURVES = {
    "val_loss": LOSSES["best_val_loss"],
    "train_loss": "training loss ({unit})",
    "bits_per_byte": "validation loss (bits/byte)",
    "exact_match": "exact matches",
    "accuracy": "accuracy",
    "f1": "F1",
    "eval_train_loss": "loss on the training split ({unit})",
    "learning_rate": "learning rate",
    "grad_norm": "gradient norm",
    "tokens_per_second": "tokens per second",
}
PROGRESS = {"train_tokens": "training tokens", "iteration": "iteration"}
# The columns that laws use, from a study or any table.
ASPECT = "aspect_ratio"
ROLES = {"params": "parameters N", "tokens": "training tokens D", "flops": "training FLOPs C"}
ROLES |= {"n_layer": "n_layer", "n_embd": "n_embd", ASPECT: "n_embd / n_layer"}
# Grid entries that would make a study's points differ in a role; iterations are filled in.
_GRID_OF = {"params": "n_embd: [32, 64, 128]", "tokens": "max_iters: [{}, {}, {}]"}

_RUN_COLUMNS = (
    "study",
    "cell",
    "trial",
    "seed",
    "state",
    "best_val_loss",
    "final_val_loss",
    "n_params",
)
_CURVE_COLUMNS = ("cell", "trial", "seed", "iteration", "train_tokens", "metric", "value")
Result = TypeVar("Result")


def title_of(column: str) -> str:
    """Return the axis title of a hyperparameter or of a fact."""
    if column in TABLE and TABLE[column].unit:
        return f"{column} ({TABLE[column].unit})"
    return FACTS.get(column, column)


def states_in_words(states: Series) -> str:
    """Return the number of runs or trials in each state: 24 complete, 3 pruned."""
    numbers = states.value_counts()
    return counts(
        {state: numbers[state] for state in reversed(WORST_FIRST) if state in numbers}
    )


@dataclass(frozen=True)
class ReportData:
    """The runs and curves of studies (a table's page has none), and the points that laws are fitted to.

    `mlflow` says where each study's runs are in MLflow. `read_curve` is called with a metric when a panel first needs
    its curves. `studied` has the studies themselves, if they are available; `lab` is the folder with the studies and
    their ledger.
    """

    runs: DataFrame
    read_curve: Callable[[str], DataFrame]
    table: Points | None = None
    studied: Studies | None = None
    lab: Path | None = None
    mlflow: Mapping[str, str] = field(default_factory=dict)
    _kept: dict[Hashable, Any] = field(default_factory=dict)

    @classmethod
    def of_study(
        cls,
        runs: DataFrame,
        read_curve: Callable[[str], DataFrame],
        studied: Studies | None = None,
        lab: Path | None = None,
    ) -> ReportData:
        """Return the data of a page of studies, which may have no runs yet."""
        runs = plain(runs, _RUN_COLUMNS)
        ranked = (studied and studied.ranked) or (rankings(runs) if len(runs) else {})
        runs = with_expected(runs, ranked)
        return cls(runs, read_curve, None, studied, lab, _kept={"ranked": ranked})

    @classmethod
    def of_table(cls, assessment: Assessment) -> ReportData:
        """Return the data of a table's page: its points and the law fitted to them."""
        report = cls(DataFrame(), lambda metric: DataFrame(), table=assessment.raw)
        report._kept["assess", assessment.law.name] = assessment
        return report

    @property
    def study(self) -> str:
        """Return the name of the study, or of the first of several.

        Raises:
            BadInput: it has no runs.
        """
        self.check_runs()
        return str(self.runs["study"].iloc[0])

    def check_runs(self) -> None:
        """Raise unless there are runs.

        Raises:
            BadInput: there are none.
        """
        if self.runs.empty:
            raise BadInput("the study has no runs")

    @property
    def loss_unit(self) -> str:
        """Return the unit of the runs' losses, which is their objective's."""
        return unit_of(self.runs)

    def measure_title(self, metric: str) -> str:
        """Return the axis title of a curve, or of a loss of the runs."""
        titles = {**LOSSES, **CURVES}
        title = titles.get(metric, metric.removeprefix("best_"))
        return title.format(unit=self.loss_unit)

    @property
    def loss_title(self) -> str:
        """Return the title of the metric that trials are ranked by, with its unit if it has one."""
        metrics = {spec.objective.label for spec in self.studies.specs.values()}
        if metrics <= {"val_loss"}:
            return self.measure_title("val_loss")
        return " or ".join(sorted(metrics))

    @property
    def value_column(self) -> str:
        """Return the column of the value that trials are ranked by: the objective's, else the best val_loss."""
        if "value" in self.runs:
            return "value"
        return "best_val_loss"

    @property
    def objective(self) -> str:
        """Return which evaluation of a run counts, best or final; comparable studies agree in it."""
        return next((spec.objective.at for spec in self.studies.specs.values()), "best")

    @property
    def law_metric(self) -> str:
        """Return the column of the runs' losses that laws are fitted to, which figures of sizes show too."""
        return whole_losses(self.runs, self.objective)[1]

    @property
    def ranked_metric(self) -> str:
        """Return the column of the runs' losses by which trials are ranked."""
        return f"{self.objective}_val_loss"

    @property
    def law_loss_title(self) -> str:
        """Return the title of the loss that laws are fitted to: the measure of the runs, or a table's column."""
        if self.table is None:
            return self.measure_title(self.law_metric)
        return (
            f"loss ({self.table.conventions.get('loss', 'loss').removesuffix(', by its name')})"
        )

    @property
    def looks(self) -> Mapping[str, Look]:
        """Return the look that every panel gives each study, or each cell of one study; cells in order of size."""
        if self.runs.empty:
            return {}
        names = list(dict.fromkeys(self.runs["study"]))
        if len(names) == 1:
            names = list(
                self.runs.groupby("cell", sort=False)["n_params"]
                .first()
                .sort_values(kind="stable")
                .index
            )
        return {look.name: look for look in looks(names)}

    @property
    def studies(self) -> Studies:
        """Return the studies themselves; none for a table without a study's record."""
        return self.studied or Studies(self.runs, {}, {})

    @property
    def ranked(self) -> Mapping[str, Ranking]:
        """Return the order of the trials by study."""
        ranked: Mapping[str, Ranking] = self._kept.get("ranked", {})
        return ranked

    @property
    def baselines(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the n-gram baseline of each cell, from the first study that has the cell."""
        return dict(ChainMap(*map(dict, self.studies.baselines.values())))

    @property
    def design(self) -> StudyDesign | None:
        """Return the grids and search spaces of the studies; None for a table without a study's record."""
        if self.studied:
            return self.studied.design
        return None

    def folder(self, study: str) -> StudyFolder | None:
        """Return a study's folder; None for a table without a study's record."""
        if self.lab and self.studied:
            return StudyFolder(self.lab, study)
        return None

    def curves(self, metric: str, study: str | None = None) -> DataFrame:
        """Return a metric's curves, of all runs or of one study's."""
        curves = self.once(
            ("curves", metric), lambda: plain(self.read_curve(metric), _CURVE_COLUMNS)
        )
        if study and "study" in curves:
            return curves[curves["study"] == study]
        return curves

    @property
    def curves_read(self) -> list[DataFrame]:
        """Return the curves that panels have asked for, one table per metric."""
        return [
            kept
            for key, kept in self._kept.items()
            if isinstance(key, tuple) and key[0] == "curves"
        ]

    @property
    def sweeps(self) -> Sequence[Sweep]:
        """Return each study's trials.

        Raises:
            BadInput: no study has a run.
        """
        self.check_runs()
        by_study = self.runs.groupby("study", sort=False)

        def read() -> list[Sweep]:
            designs = self.studies.designs
            return [sweep_of(runs, designs.get(str(name))) for name, runs in by_study]

        return self.once("sweeps", read)

    @property
    def confirmed(self) -> list[tuple[str, CellConfirmed]]:
        """Return the confirmed cells with the name of their study; empty if nothing was confirmed."""
        folders = filter(None, map(self.folder, self.studies.data))
        return [
            (each.name, cell)
            for each in folders
            for cell in confirmed_cells(read_confirmed(each))
        ]

    @property
    def points(self) -> Points:
        """Return the points that laws are fitted to.

        Raises:
            BadInput: no run has ended with a loss, or no law may be fitted to the table.
        """
        if self.table is not None:
            return self.table
        self.check_runs()
        if self.studied:
            return self.once("points", self.studied.points)
        return self.once("points", lambda: study_points(self.runs))

    @property
    def params_column(self) -> str:
        """Return the column of the parameters that the study's laws count."""
        if self.studied:
            return PARAMS[self.studied.settled().conventions.chosen("params")]
        return PARAMS["total"]

    def law(self, name: str) -> Law:
        """Return a law by its name; `auto` is the law of the table's page, else the one for the columns that vary.

        Raises:
            BadInput: there is no such law, or no point.
        """
        fitted = [kept.law for kept in self._kept.values() if isinstance(kept, Assessment)]
        if name == AUTO and self.table is not None and fitted:
            return fitted[0]
        return law_for(self.points, name)

    def assessment(self, law: str) -> Assessment:
        """Return a law's fit to the points, with every interval and verdict.

        Raises:
            BadInput: the points allow no fit.
        """
        chosen = self.law(law)
        return self.once(("assess", chosen.name), lambda: assess(self.points, chosen))

    def check_differs(self, role: str) -> None:
        """Raise unless a study's points differ in their parameters or tokens.

        Raises:
            BadInput: they do not; says which grid would make them differ.
        """
        points = self.points
        if self.table is not None or role in points.varied:
            return
        longest = int(self.runs.get("max_iters", Series([1000])).max())
        grid = _GRID_OF[role].format(*(max(1, longest * times // 2) for times in (1, 2, 4)))
        value = f"{rounded(float(points.columns[role][0]))} {ROLES[role].rpartition(' ')[0]}"
        raise BadInput(f"every run has {value}; grid: {{{grid}}} in the study varies it")

    def importances(self, sweep: Sweep) -> list[Importance]:
        """Return the importances of a study's hyperparameters."""
        return self.once(("importances", sweep.name), lambda: importances(sweep))

    def once(self, key: Hashable, work: Callable[[], Result]) -> Result:
        """Return the result of `work`, or raise its BadInput; later calls reuse the first outcome.

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
