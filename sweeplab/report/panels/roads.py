"""Three roads to the best use of compute: parabolas at equal FLOPs, the curves' envelope, the law's own optimum."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pandas import DataFrame, concat

from sweeplab.analysis.compute_optimal.approaches import ENVELOPE, ISOFLOP, PARAMETRIC, Roads, roads
from sweeplab.analysis.compute_optimal.envelope import Curves, curves_of_study
from sweeplab.analysis.compute_optimal.isoflop import D_OPT, N_AT, N_OPT
from sweeplab.analysis.fit.assessment import NEAR, NOT_IDENTIFIED, Assessment, find_law
from sweeplab.analysis.fit.forms import Array, Quantity, optimum_of
from sweeplab.errors import BadInput
from sweeplab.report.columns import ROLES
from sweeplab.report.panels.bands import band
from sweeplab.report.panels.base import Axis, Panel, PanelSpec
from sweeplab.report.panels.material import Material
from sweeplab.report.panels.numbers import data_of, shown_of
from sweeplab.report.words import listed, short

_USUAL = "chinchilla"
_HOFFMANN = "Hoffmann et al. 2022, Training compute-optimal large language models"
_ISOFLOP = (
    ("IsoFLOP", f"{_HOFFMANN}, approach 2: a parabola of the loss in log N through the rows of one budget."),
    (
        "Departures",
        "A minimum counts only where the parabola bends upward and the loss rises again on both sides of it, inside of "
        "the sizes, by more than the noise; its interval is Fieller's (1954); the line through the minima weighs each "
        "by its variance.",
    ),
)
_ROADS = (
    *_ISOFLOP,
    (
        "Envelope",
        f"{_HOFFMANN}, approach 1: at each compute the size of the lowest training curve. The line goes through the "
        "places where the best size changes, and the best size never shrinks as compute grows.",
    ),
    ("Parametric", f"{_HOFFMANN}, approach 3: the optimum of the fitted law."),
    (
        "Difference",
        "The parabolas and the law read the same rows: what their errors have in common is taken out of the interval "
        "of a difference.",
    ),
)


@dataclass(frozen=True, kw_only=True)
class IsoFlopPanel(Panel):
    """Losses at equal FLOPs. `data`: what (row, far row, parabola, minimum), flops, params, loss, low, high.

    `low` and `high` are the interval of a minimum's params. `budgets` are the labels of `flops`, in order.
    """

    x: Axis
    y: Axis
    budgets: Mapping[float, str]


@dataclass(frozen=True, kw_only=True)
class RoadsPanel(Panel):
    """The best size over compute. `data`: road, what (minimum, change, line), flops, params, low, high."""

    x: Axis
    y: Axis


def isoflop_panel(spec: PanelSpec, material: Material) -> Panel:
    """Draw what each budget's sizes reach, and the minimum where there is one.

    Raises:
        BadInput: the points have no budgets of several sizes.
    """
    found = _roads(spec, material).isoflop.as_dict()
    budgets = found["budgets"]
    if not budgets:
        raise BadInput(found["how"])
    names = {
        each["flops"]: f"{short(float(f'{flops:.3g}'))} FLOPs" for each in budgets if (flops := each["flops"])
    }
    without: dict[str, list[str]] = {}
    for each in budgets:
        if each["why_none"]:
            without.setdefault(each["why_none"], []).append(names[each["flops"]])
    return IsoFlopPanel(
        title=spec.title or "IsoFLOP: the best size at each budget",
        width=spec.width,
        data=concat([DataFrame(_isoflop_rows(each)) for each in budgets], ignore_index=True),
        shown=shown_of(found["numbers"]),
        notes=(
            f"{found['how'][0].upper()}{found['how'][1:]}. A star is a minimum, with its 90% interval.",
            *(f"{listed(which)}: {why}." for why, which in without.items()),
        ),
        warnings=tuple(found["warnings"]),
        method=_ISOFLOP,
        result=found,
        x=Axis("params", ROLES["params"], True),
        y=Axis("loss", ROLES["loss"]),
        budgets=names,
    )


def roads_panel(spec: PanelSpec, material: Material) -> Panel:
    """Draw the best size over compute as each road has it, and say whether the roads disagree.

    Raises:
        BadInput: no road leads anywhere: the points have too few sizes, or lack N or C.
    """
    found = _roads(spec, material)
    said = found.as_dict()
    rows = [*_minima(said[ISOFLOP]), *_envelope(said[ENVELOPE]), *_parametric(found)]
    entries = _entries(said["roads"])
    if not rows:
        raise BadInput(
            found.why_none or "; ".join(f"{name}: {each['why']}" for name, each in entries.items())
        )
    return RoadsPanel(
        title=spec.title or "Three roads to the best use of compute",
        width=spec.width,
        data=DataFrame(rows),
        shown=shown_of(entries),
        notes=tuple(
            f"{each['says'][0].upper()}{each['says'][1:]}."
            for each in said["disagreements"]
            if each["differences"]
        ),
        warnings=tuple(each for each in said["warnings"] if not each.startswith(PARAMETRIC)),
        method=_ROADS,
        result={**said, "table": data_of(entries).to_dict(orient="records")},
        x=Axis("flops", ROLES["flops"], True),
        y=Axis("params", "best size, in parameters", True),
    )


def _entries(roads: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, Mapping[str, Any]]:
    """Return the roads' numbers by name, side by side; a road that has none for one reason is one entry."""
    empty = {
        road: {**next(iter(numbers.values())), "meaning": f"{', '.join(numbers)}: none"}
        for road, numbers in roads.items()
        if len({each["why"] for each in numbers.values()}) == 1
        and all(each["verdict"] == NOT_IDENTIFIED for each in numbers.values())
    }
    found = {
        f"{name}, {road}": numbers[name]
        for name in (N_OPT, D_OPT, N_AT)
        for road, numbers in roads.items()
        if name in numbers and road not in empty
    }
    return found | empty


def _roads(spec: PanelSpec, material: Material) -> Roads:
    law = spec.law if {"params", "tokens"} <= set(find_law(spec.law).columns) else _USUAL

    def work() -> Roads:
        found: Assessment | None = None
        try:
            found = material.assessment(law, spec.delta)
        except BadInput:
            material.points  # noqa: B018 - what has no points at all is refused here
        return roads(material.points, _curves(material), law, found=found)

    return material.once(("roads", law, spec.delta), work)


def _curves(material: Material) -> Curves | None:
    """Return a study's curves; None for a table, whose groups may be curves."""
    if material.table is not None:
        return None
    studied = material.studied
    runs = material.runs if studied is None else studied.runs
    return curves_of_study(runs, material.curves("val_loss"), studied.settled() if studied else None)


def _isoflop_rows(budget: dict[str, Any]) -> list[dict[str, Any]]:
    rows, curve, flops = budget["rows"], budget["parabola"], budget["flops"]
    found = [
        {"what": "row" if used else "far row", "flops": flops, "params": params, "loss": loss}
        for params, loss, used in zip(rows["params"], rows["loss"], rows["used"], strict=True)
    ]
    found += [
        {"what": "parabola", "flops": flops, "params": params, "loss": loss}
        for params, loss in zip(curve["params"], curve["loss"], strict=True)
    ]
    if budget["n_opt"] is not None:
        ends = {"low": budget["n_opt_low"], "high": budget["n_opt_high"]}
        minimum = {"what": "minimum", "flops": flops, "params": budget["n_opt"], "loss": budget["loss"]}
        found.append(minimum | ends)
    return [{"low": None, "high": None} | row for row in found]


def _minima(said: dict[str, Any]) -> list[dict[str, Any]]:
    rows = [
        {"road": ISOFLOP, "what": "minimum", "flops": each["flops"], "params": each["n_opt"]}
        | {"low": each["n_opt_low"], "high": each["n_opt_high"]}
        for each in said["budgets"]
        if each["n_opt"] is not None
    ]
    if said["line"] and said["numbers"][N_AT]["value"] is not None:
        line = zip(*(said["line"][name] for name in ("flops", "params", "low", "high")), strict=True)
        rows += [
            {"road": ISOFLOP, "what": "line", "flops": flops, "params": params, "low": low, "high": high}
            for flops, params, low, high in line
        ]
    return rows


def _envelope(said: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"road": ENVELOPE, "what": "change", **each, "low": None, "high": None} for each in said["changes"]
    ]


def _parametric(found: Roads) -> list[dict[str, Any]]:
    """Return the law's best size with its band, where the law identifies one and some size is near it."""
    assessed = found.parametric
    if assessed is None or not found.numbers[PARAMETRIC][N_AT].identified:
        return []
    k = found.points.flops_per_param_token
    flops = found.points.columns["flops"]
    ends = float(flops.min()), float(flops.max())
    line = band(assessed, lambda budget: _best_size(assessed, budget, k), *ends, ends[1])
    sizes = found.points.columns["params"]
    return [
        {"road": PARAMETRIC, "what": "line", "flops": x, "params": n, "low": low, "high": high}
        for x, n, low, high in zip(line.x, line.value, line.low, line.high, strict=True)
        if sizes.min() / NEAR <= n <= sizes.max() * NEAR
    ]


def _best_size(found: Assessment, budget: float, per_param_token: float) -> Quantity:
    """Return N_opt at a budget: what the tokens a parameter leave of it."""
    fit = found.fit
    quantities = optimum_of(fit.law, fit.center, budget, per_param_token)
    ratio = next(each for each in quantities if each.kind == "ratio")

    def measure(theta: Array) -> tuple[Array, Array]:
        value, slope = ratio.measure(theta)
        return (math.log(budget / per_param_token) - value) / 2, -slope / 2

    return Quantity(N_AT, "ratio", "the parameters of lowest loss", measure, ratio.needs, is_log=True)
