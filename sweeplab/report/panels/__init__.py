"""What each panel of a report shows, computed from the runs or from a law; drawing it is another package's.

A panel's `data` is all that is drawn, a row a mark, and what a reader gets to download. A panel with nothing
to draw says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from sweeplab.analysis.fit.assessment import DELTAS
from sweeplab.analysis.fit.forms import LAWS
from sweeplab.errors import BadInput
from sweeplab.hyperparameters import TABLE
from sweeplab.report.columns import CURVES, FACTS, LOSSES, PROGRESS
from sweeplab.report.panels.audit import audit_panel
from sweeplab.report.panels.base import Panel, PanelSpec
from sweeplab.report.panels.choices import choices_panel
from sweeplab.report.panels.differences import differences_panel, regions_panel, studies_panel
from sweeplab.report.panels.importances import importance_panel
from sweeplab.report.panels.laws import law_panel
from sweeplab.report.panels.ledger import calibration_panel, ledger_panel
from sweeplab.report.panels.material import Material
from sweeplab.report.panels.misfit import backtest_panel, misfit_panel
from sweeplab.report.panels.pruning import compute_panel, pruning_panel
from sweeplab.report.panels.residuals import AGAINST, residuals_panel
from sweeplab.report.panels.roads import isoflop_panel, roads_panel
from sweeplab.report.panels.runs import curves_panel, heat_map_panel, loss_panel, table_panel
from sweeplab.report.panels.sample import sample_panel
from sweeplab.report.panels.shape import SHAPES, shape_map_panel, shape_panel
from sweeplab.report.panels.sweep import (
    edf_panel,
    history_panel,
    parallel_panel,
    rank_panel,
    slice_panel,
)
from sweeplab.report.panels.verdicts import verdicts_panel


@dataclass(frozen=True)
class Kind:
    """A kind of panel: who computes it, what each option may be (None is any text), which options it needs.

    `of` is what it is computed from: the runs of one study, the points of any table, the sweeps of one study or
    several, or several studies; `named` is its title where there is nothing to show.
    """

    build: Callable[[PanelSpec, Material], Panel]
    options: Mapping[str, Sequence[str] | None]
    needs: Mapping[str, str] = field(default_factory=dict)
    of: Literal["runs", "points", "sweeps", "studies"] = "runs"
    named: str = ""


_SIZES = (*FACTS, *TABLE)
_PARAMS = {"params": tuple(TABLE)}
_LAW = {"law": tuple(LAWS), "delta": tuple(DELTAS)}
KINDS: dict[str, Kind] = {
    "loss": Kind(
        loss_panel,
        {"x": _SIZES, "lines": tuple(TABLE), "metric": tuple(LOSSES), "log": ("x", "y")},
        needs={"x": f"any hyperparameter, {', '.join(FACTS)}"},
    ),
    "heat_map": Kind(heat_map_panel, {"x": tuple(TABLE), "y": tuple(TABLE), "metric": tuple(LOSSES)}),
    "learning_curves": Kind(curves_panel, {"x": tuple(PROGRESS), "metric": tuple(CURVES), "log": ("x", "y")}),
    "table": Kind(table_panel, {}),
    "sample": Kind(sample_panel, {}, named="What the best run writes"),
    "verdicts": Kind(verdicts_panel, _LAW, of="points", named="Verdicts"),
    "law": Kind(law_panel, {**_LAW, "x": AGAINST}, of="points", named="Scaling law"),
    "residuals": Kind(residuals_panel, {**_LAW, "against": AGAINST}, of="points", named="Residuals"),
    "shape": Kind(shape_panel, {"x": SHAPES}, of="points", named="Shape at equal parameters"),
    "shape_map": Kind(shape_map_panel, {}, of="points", named="Shape alone"),
    "audit": Kind(audit_panel, {}, named="Audit"),
    "ledger": Kind(ledger_panel, {}, named="Forecasts"),
    "calibration": Kind(calibration_panel, {}, named="Calibration"),
    "misfit": Kind(misfit_panel, _LAW, of="points", named="Misfit"),
    "backtest": Kind(backtest_panel, {**_LAW, "laws": tuple(LAWS)}, of="points", named="Back-test"),
    "isoflop": Kind(isoflop_panel, _LAW, of="points", named="IsoFLOP"),
    "roads": Kind(roads_panel, _LAW, of="points", named="Roads to the best use of compute"),
    "optimization_history": Kind(history_panel, {}, of="sweeps", named="Optimization history"),
    "param_importances": Kind(
        importance_panel,
        {"evaluator": ("ped-anova", "fanova")},
        of="sweeps",
        named="Importance of the hyperparameters",
    ),
    "slice": Kind(slice_panel, _PARAMS, of="sweeps", named="Slice"),
    "parallel_coordinate": Kind(parallel_panel, _PARAMS, of="sweeps", named="Parallel coordinates"),
    "rank": Kind(rank_panel, _PARAMS, of="sweeps", named="Rank"),
    "edf": Kind(edf_panel, {}, of="sweeps", named="Empirical distribution function"),
    "pruning": Kind(pruning_panel, {}, of="sweeps", named="What pruning saved"),
    "compute": Kind(compute_panel, {}, of="sweeps", named="Where compute and time went"),
    "regions": Kind(regions_panel, {}, of="sweeps", named="Where trials diverged or failed"),
    "choices": Kind(choices_panel, {}, of="sweeps", named="Choices"),
    "studies": Kind(studies_panel, {}, of="studies", named="Studies"),
    "differences": Kind(differences_panel, {}, of="studies", named="Differences"),
}


def panel(spec: PanelSpec, material: Material) -> Panel:
    """Compute the panel that a dashboard asks for; one that cannot be had says why."""
    kind = KINDS[spec.panel]
    try:
        return kind.build(spec, material)
    except BadInput as refused:
        why = "; ".join(problem.what for problem in refused.problems)
        return Panel(title=spec.title or kind.named, width=spec.width, missing=why)
