"""Several studies side by side, whether they differ, and where in its space a study fails."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pandas import DataFrame

from sweeplab.analysis.sweep.costs import ALPHA, FOUND, Region, regions, saved
from sweeplab.analysis.sweep.differences import (
    ALL_CELLS,
    UNKNOWN,
    Difference,
    differences,
    seed_spread,
)
from sweeplab.analysis.sweep.trials import Sweep
from sweeplab.errors import BadInput
from sweeplab.report.panels.base import Axis, Panel, PanelSpec, TablePanel
from sweeplab.report.panels.material import Material
from sweeplab.report.words import counted, short, written


@dataclass(frozen=True, kw_only=True)
class DifferencesPanel(Panel):
    """Differences with their intervals.

    `data`: a, b, cell, loss_a, loss_b, difference, low, high, n, verdict, why, and the name of its line.
    """

    x: Axis


def differences_panel(spec: PanelSpec, material: Material) -> Panel:
    """Say of each pair of studies whether their best losses differ, over all shared cells and in each.

    Raises:
        BadInput: there is one study only.
    """
    sweeps, at = material.sweeps, objective_of(material)
    found = differences(sweeps, at)
    overall = {(each.a, each.b): each for each in reversed(found)}  # the first of each pair
    data = DataFrame([_row(each) | {"line": _line(each, len(overall) > 1)} for each in found])
    return DifferencesPanel(
        title=spec.title or "Differences",
        width=spec.width,
        data=data,
        shown=DataFrame([_shown(each) for each in found]),
        notes=tuple(_said(each) for each in reversed(overall.values())),
        method=(
            ("All shared cells", "The mean difference of the cells' best losses, with Student's t over the cells: its "
             "spread has both the luck of tuning and that of the seed. Of one shared cell, what its seeds say."),
            ("One cell", "Welch's interval of the best trials' means over seeds, a seed's spread pooled over each "
             "study's trials: whether these two trials differ. One cell in twenty differs by chance."),
            ("Level", f"{found[0].level:.1%}: several pairs share one rate of false alarms (Bonferroni)."),
        ),
        result={"differences": [_row(each) for each in found]},
        x=Axis("difference", "difference of the loss (nats/token)"),
    )  # fmt: skip


def objective_of(material: Material) -> str:
    """Return by which evaluation the studies value a run: the best, where they do not agree."""
    own = {spec.objective.at for spec in material.studied.specs.values()} if material.studied else set()
    return own.pop() if len(own) == 1 else "best"


def _line(found: Difference, with_pair: bool) -> str:
    return (f"{found.b} against {found.a}: " if with_pair else "") + found.cell.replace(",", ", ")


def _row(found: Difference) -> dict[str, Any]:
    return asdict(found) | {"difference": found.difference, "verdict": found.verdict}


def _shown(found: Difference) -> dict[str, Any]:
    told = found.verdict != UNKNOWN
    return {
        "studies": f"{found.b} against {found.a}",
        "cell": f"{found.cell}\n{found.n} cells" if found.cell == ALL_CELLS else found.cell,
        "loss of the other": found.loss_a,
        "loss": found.loss_b,
        "difference": f"{found.difference:+.4f}" if found.difference == found.difference else "–",
        "interval": f"{found.low:+.4f} to {found.high:+.4f}" if told else "–",
        "verdict": found.verdict + (f"\n{found.why}" if found.why else ""),
    }


def _said(found: Difference) -> str:
    over = f"over {found.n} shared cells" if found.cell == ALL_CELLS else f"in {found.cell}"
    if found.verdict == UNKNOWN:
        return f"{found.b} against {found.a}: cannot be told: {found.why}."
    interval = f"{found.difference:+.4f} nats/token ({found.low:+.4f} to {found.high:+.4f}) {over}"
    return f"{found.b} against {found.a}: {found.verdict}, {interval}."


def studies_panel(spec: PanelSpec, material: Material) -> Panel:
    """List the studies with what they took and reached, and how far their seeds lie apart.

    Raises:
        BadInput: no study has a run.
    """
    at = objective_of(material)
    rows = [_study(sweep, at) for sweep in material.sweeps]
    spread = "The standard deviation of one seed's loss around its trial's mean, pooled over all trials with several."
    return TablePanel(
        title=spec.title or "Studies",
        width=spec.width,
        data=DataFrame(rows),
        shown=DataFrame([row | {"FLOPs": short(row["FLOPs"])} for row in rows]),
        method=(("Seed spread", spread),),
    )


def _study(sweep: Sweep, at: str) -> dict[str, Any]:
    ended, spread, cells = sweep.ended, seed_spread(sweep, at), saved(sweep)
    flops, rest = (sum(getattr(each, name) for each in cells) for name in ("flops_spent", "flops_saved"))
    best = ended.nsmallest(1, "loss").iloc[0] if len(ended) else None
    return {
        "study": sweep.name,
        "cells": len(sweep.cells),
        "trials": f"{len(sweep.trials)}\n{counted(sweep.trials['state'])}",
        "seeds": int(sweep.trials["seeds"].max()),
        "lowest value": None if best is None else float(best["loss"]),
        "of cell": "" if best is None else str(best["cell"]),
        "seed spread (loss)": spread.sd,
        "FLOPs": float(flops),
        "run seconds": round(float(sum(each.seconds_spent for each in cells)), 1),
        "saved by pruning": f"{rest / max(flops + rest, 1.0):.0%}",
    }


def regions_panel(spec: PanelSpec, material: Material) -> Panel:
    """List the ranges in which trials diverged or failed out of proportion.

    Raises:
        BadInput: no trial diverged or failed.
    """
    sweeps = material.sweeps
    found = [each for sweep in sweeps for each in regions(sweep)]
    if not found:
        ended = sum(len(sweep.ended) for sweep in sweeps)
        raise BadInput("no trial diverged or failed" + ("" if ended else " yet"))
    crowded = sum(each.verdict == FOUND for each in found)
    test = (
        "Fisher's exact test, one-sided, of the range (cut at deciles of the trials) or choice where they crowd most; "
        f"p times the number of ranges looked at, told below {ALPHA}."
    )
    return TablePanel(
        title=spec.title or "Where trials diverged or failed",
        width=spec.width,
        data=DataFrame([asdict(each) | {"verdict": each.verdict} for each in found]),
        shown=DataFrame([_region(each, len(sweeps) > 1) for each in found]),
        notes=(f"{crowded or 'No'} of {len(found)} hyperparameters tell where.",),
        method=(("Test", test),),
    )


def _region(found: Region, with_study: bool) -> dict[str, Any]:
    return {
        **({"study": found.study} if with_study else {}),
        "state": found.state,
        "hyperparameter": found.hyperparameter,
        "range": found.range,
        "in it": f"{found.inside} of {found.n_inside}",
        "elsewhere": f"{found.outside} of {found.n_outside}",
        "p": written(found.p),
        "verdict": found.verdict,
    }
