"""What pruning saved and cost, and where compute and time went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pandas import DataFrame

from sweeplab.analysis.sweep.costs import LEVEL, Cost, Saved, cost, saved, spent
from sweeplab.errors import BadInput
from sweeplab.report.panels.base import Axis, Panel, PanelSpec
from sweeplab.report.panels.material import Material
from sweeplab.report.words import counted, several, short, written


@dataclass(frozen=True, kw_only=True)
class PruningPanel(Panel):
    """What was trained and what was not. `data`: line, n_trials, n_pruned, flops_spent, flops_saved, seconds_…, share.

    A line is a cell, or of several studies a study.
    """

    x: Axis


@dataclass(frozen=True, kw_only=True)
class ComputePanel(Panel):
    """Shares of compute and time. `data`: study, state, phase, n_runs, flops, seconds, the shares of these."""

    x: Axis


def pruning_panel(spec: PanelSpec, material: Material) -> Panel:
    """Show what pruning saved by cell, and what the audited trials say of what it cost.

    Raises:
        BadInput: no trial was pruned.
    """
    sweeps = material.sweeps
    by_study = [saved(sweep) for sweep in sweeps]
    found = [each for cells in by_study for each in cells]
    if not any(each.n_pruned for each in found):
        raise BadInput("no trial was pruned" + ("" if found else " yet"))
    costs = [cost(sweep, audited) for sweep in sweeps if (audited := material.audited(sweep.name))]
    several_studies = len(sweeps) > 1
    rows = (
        [_sum(cells, cells[0].study) for cells in by_study if cells]
        if several_studies
        else [asdict(each) | {"share": each.share, "line": each.cell} for each in found]
    )
    return PruningPanel(
        title=spec.title or "What pruning saved",
        width=spec.width,
        data=DataFrame(rows),
        shown=_audited(costs) if costs else None,
        notes=(*(_said(cells) for cells in by_study if cells), *map(_costs_said, costs), *_unaudited(costs)),
        method=(
            ("Saved", "FLOPs to the end of each pruned trial, and the seconds of these at the trial's own pace."),
            ("Cost", "A sample of the pruned trials, trained to their end outside of the study and its budget. "
             f"The share of all pruned trials has a {LEVEL:.0%} interval (Clopper and Pearson)."),
        ),
        result={"saved": [_sum(cells, cells[0].study) for cells in by_study if cells]}
        | {"cost": [_cost_result(each) for each in costs]},
        x=Axis("flops", "training FLOPs"),
    )  # fmt: skip


def _sum(cells: Sequence[Saved], study: str) -> dict[str, object]:
    names = ("n_trials", "n_pruned", "flops_spent", "flops_saved", "seconds_spent", "seconds_saved")
    sums = {name: sum(getattr(each, name) for each in cells) for name in names}
    share = sums["flops_saved"] / max(sums["flops_spent"] + sums["flops_saved"], 1.0)
    return {"study": study, **sums, "share": share, "line": study}


def _said(cells: Sequence[Saved]) -> str:
    sums = {name: sum(getattr(each, name) for each in cells) for name in ("n_trials", "n_pruned")}
    flops, seconds = (sum(getattr(each, f"{what}_saved") for each in cells) for what in ("flops", "seconds"))
    share = flops / max(sum(each.flops_spent for each in cells) + flops, 1.0)
    return (
        f"{cells[0].study}: {sums['n_pruned']} of {several(sums['n_trials'], 'trial')} pruned, which saved {share:.0%} "
        f"of the training: {short(flops)} FLOPs, {written(round(seconds, 1))} s of runs."
    )


def _costs_said(found: Cost) -> str:
    n = len(found.audited)
    return (
        f"{found.study}: of {several(n, 'pruned trial')} trained to the end, {found.n_better} would have become "
        f"the best of {'its cell' if found.n_better == 1 else 'their cells'}: {found.low:.0%} to {found.high:.0%} "
        f"of all {found.n_pruned} pruned."
    )


def _unaudited(costs: Sequence[Cost]) -> tuple[str, ...]:
    return (
        ()
        if costs
        else ("What it cost: sweeplab report sweep NAME --audit-pruning N trains some to their end.",)
    )


def _audited(costs: Sequence[Cost]) -> DataFrame:
    rows = [
        {
            **({"study": found.study} if len(costs) > 1 else {}),
            "cell": row["cell"],
            "trial": row["trial"],
            "pruned at": row["iteration"],
            "loss then": row["value_then"],
            "loss at its end": row["value"],
            "best loss of its cell": row["best"],
            "would be": _would_be(row),
        }
        for found in costs
        for row in found.audited.to_dict("records")
    ]
    return DataFrame(rows)


def _would_be(row: Mapping[Any, Any]) -> str:
    if row["is_better"]:
        return "the best"
    return "diverged" if row["value"] is None or row["value"] != row["value"] else "not the best"


def _cost_result(found: Cost) -> dict[str, object]:
    return {
        "study": found.study,
        "audited": len(found.audited),
        "would_be_best": found.n_better,
        "share_low": found.low,
        "share_high": found.high,
        "pruned": found.n_pruned,
        "trials": found.audited.to_dict("records"),
    }


def compute_panel(spec: PanelSpec, material: Material) -> Panel:
    """Show on which runs, and in which phase, FLOPs and seconds were spent.

    Raises:
        BadInput: no run has taken any.
    """
    data = material.studied.data if material.studied else {}
    found = [
        each
        for sweep in material.sweeps
        for each in spent(
            sweep,
            material.curves("tokens_per_second", sweep.name),
            data.get(sweep.name, {}).get("val_tokens"),
        )
    ]
    table = DataFrame([asdict(each) for each in found])
    for what in ("flops", "seconds"):
        table[f"share of {what}"] = table[what] / table.groupby("study")[what].transform("sum")
    if not table["flops"].sum() > 0:
        raise BadInput("no run has trained a step yet")
    runs = material.runs
    totals = table.groupby("study", sort=False)[["flops", "seconds"]].sum()
    notes = [
        f"{study}: {short(float(row['flops']))} FLOPs, {written(round(float(row['seconds']), 1))} s of runs "
        f"({counted(runs.loc[runs['study'] == study, 'state'])})."
        for study, row in totals.iterrows()
    ]
    return ComputePanel(
        title=spec.title or "Where compute and time went",
        width=spec.width,
        data=table,
        notes=(*notes, "Runs that share a stack share its seconds."),
        x=Axis("share", "share of the study"),
    )
