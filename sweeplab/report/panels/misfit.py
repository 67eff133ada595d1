"""Whether a law's form is right: what its residuals say of that, and how it predicts larger runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pandas import DataFrame

from sweeplab.analysis.fit.assessment import find_law
from sweeplab.analysis.fit.forms import LAWS
from sweeplab.analysis.fit.intervals import LEVEL
from sweeplab.analysis.misfit.comparison import SHARE_ABOVE, SHARE_BELOW, Comparison, compare
from sweeplab.analysis.misfit.form import FLAGGED, Misfit, misfit
from sweeplab.errors import BadInput
from sweeplab.report.columns import ROLES
from sweeplab.report.panels.base import Axis, Panel, PanelSpec, TablePanel
from sweeplab.report.panels.material import Material

_CHALLENGERS = ("joint",)
_TEST = (
    (
        "Test",
        "Rao's score test in many directions: what a departure from the law's form would leave in the residuals, once "
        "the law's own slopes are projected off. The largest is held against what errors alone give, drawn many times "
        "(Davies 1987).",
    ),
    (
        "Power",
        "The share of such draws that would be flagged if the departure were there, in a size that makes the law's "
        "forecast at ten times the compute 5% wrong. Where it is small, that nothing was flagged says nothing.",
    ),
)
_BACKTEST = (
    (
        "Back-test",
        f"A law is fitted to the rows below a compute cut, {SHARE_BELOW:.0%} of them or more, and predicts those "
        f"above, {SHARE_ABOVE:.0%} or more; for several cuts. Laws are compared by these errors, not by how they fit.",
    ),
    (
        "Lead",
        "A challenger predicts better only if its errors are smaller by more than they are on tables drawn from the "
        "first law's own fit, with its noise; the share of such tables with a lead as large stands below the lead.",
    ),
)


@dataclass(frozen=True, kw_only=True)
class BacktestPanel(Panel):
    """Errors of laws above cuts. `data`: law, cut (its compute), x's column, error (%), held.

    An error above zero is a prediction that was too high.
    """

    x: Axis
    y: Axis
    laws: tuple[str, ...]
    cuts: tuple[float, ...]


def misfit_panel(spec: PanelSpec, material: Material) -> Panel:
    """List what the form may be wrong in, whether it was flagged, and whether it could have been seen.

    Raises:
        BadInput: the points allow no such fit.
    """
    said = _misfit(spec, material).as_dict()
    table = DataFrame(said["kinds"])
    shown = DataFrame(
        {
            "departure": table["kind"],
            "form": table["status"],
            "power": [f"{power:.0%}" for power in table["power"]],
            "share of the residuals": [f"{share:.0%}" for share in table["share"]],
            "strongest direction": table["strongest"],
        }
    )
    return TablePanel(
        title=spec.title or f"{said['law']}: is the form right?",
        width=spec.width,
        data=table,
        shown=shown,
        notes=tuple(f"{each[0].upper()}{each[1:].rstrip('.')}." for each in said["sentences"]),
        method=_TEST,
        result=said,
    )


def flagged(spec: PanelSpec, material: Material) -> tuple[str, ...]:
    """Return what is wrong with the law's form in a sentence; nothing where none is flagged.

    Raises:
        BadInput: the points allow no such fit.
    """
    found = _misfit(spec, material)
    return found.sentences[:1] if found.status == FLAGGED else ()


def backtest_panel(spec: PanelSpec, material: Material) -> Panel:
    """Show how laws that saw the smaller runs predict the larger ones.

    Raises:
        BadInput: the points allow no such fit, or no cut.
    """
    found = _comparison(spec, material)
    if not found.cuts.cuts:
        raise BadInput(found.cuts.why)
    by = found.cuts.by
    column = material.points.columns[by]
    said = found.as_dict()
    rows = [
        {"law": each["law"], "cut": cut["at"], by: column[row], "error (%)": 100 * error, "held": held}
        for each in said["laws"]
        for cut in each["backtest"].get("by_cut", ())
        for row, error, held in zip(cut["rows"], cut["errors"], cut["held"], strict=True)
    ]
    if not rows:
        raise BadInput(said["laws"][0]["backtest"]["why_none"])
    return BacktestPanel(
        title=spec.title or "Back-test: fitted to smaller runs, tried on larger ones",
        width=spec.width,
        data=DataFrame(rows),
        shown=DataFrame([_shown(each) for each in said["laws"]]),
        notes=(f"{said['sentences'][0][0].upper()}{said['sentences'][0][1:]}.",),
        method=_BACKTEST,
        result=said,
        x=Axis(by, ROLES[by], True),
        y=Axis("error (%)", "predicted above what came (%)"),
        laws=tuple(each["law"] for each in said["laws"]),
        cuts=tuple(each.at for each in found.cuts.cuts),
    )


def _misfit(spec: PanelSpec, material: Material) -> Misfit:
    found = material.assessment(spec.law, spec.delta)
    return material.once(("misfit", spec.law, spec.delta), lambda: misfit(found.points, found.fit))


def _comparison(spec: PanelSpec, material: Material) -> Comparison:
    law = find_law(spec.law)
    others = spec.laws or tuple(each for each in _CHALLENGERS if set(LAWS[each].columns) == set(law.columns))
    laws = tuple(dict.fromkeys((spec.law, *others)))
    material.assessment(spec.law, spec.delta)  # what has no law is refused as elsewhere on the page
    return material.once(("compare", laws), lambda: compare(material.points, [LAWS[each] for each in laws]))


def _shown(said: dict[str, Any]) -> dict[str, str]:
    test, lead = said["backtest"], said["lead"]
    tested = not test["why_none"]
    return {
        "law": said["law"],
        "error on larger runs": f"{test['error']:.2%}" if tested else "–",
        "bias": f"{test['bias']:+.2%}" if tested else "–",
        f"inside of {LEVEL:.0%} intervals": f"{test['coverage']:.0%}" if tested else "–",
        "residuals of all": f"{said['in_sample']:.2%}",
        "form": said["misfit"]["status"],
        "lead": "" if lead is None else f"{lead['value']:+.2%}{_chance(lead['chance'])}",
    }


def _chance(chance: float | None) -> str:
    return "" if chance is None else f"\nnoise: {chance:.1%}"
