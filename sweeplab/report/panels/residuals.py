"""What a law leaves over, against N, D and C."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from pandas import DataFrame

from sweeplab.errors import BadInput
from sweeplab.report.columns import ROLES
from sweeplab.report.panels.base import Axis, Panel, PanelSpec
from sweeplab.report.panels.material import Material
from sweeplab.report.panels.method import about_fit

AGAINST = ("params", "tokens", "flops")


@dataclass(frozen=True, kw_only=True)
class ResidualsPanel(Panel):
    """Residuals over each of `axes`. `data`: the columns that are there, loss, fitted, residual.

    A residual is the log of loss over fitted in percent; `sigma` is their robust scale, in percent too.
    """

    axes: tuple[Axis, ...]
    sigma: float


def residuals_panel(spec: PanelSpec, material: Material) -> Panel:
    """Show how far each point is from the law.

    Raises:
        BadInput: the points allow no such fit, or have none of the columns that are asked for.
    """
    found = material.assessment(spec.law, spec.delta)
    columns, fit = found.points.columns, found.fit
    shown = [
        name for name in spec.against or AGAINST if name in columns and np.ptp(np.log(columns[name])) > 1e-9
    ]
    if not shown:
        raise BadInput(f"nothing of {', '.join(spec.against or AGAINST)} varies in the table")
    data = DataFrame({name: columns[name] for name in (*AGAINST, "loss") if name in columns})
    data = data.assign(fitted=columns["loss"] / np.exp(fit.residuals()), residual=100 * fit.residuals())
    return ResidualsPanel(
        title=spec.title or f"{fit.law.name}: what it leaves over",
        width=spec.width,
        data=data,
        notes=(
            f"log(loss / law) in percent; the shade is twice their robust scale, {fit.sigma:.2%}. "
            "A right law leaves no pattern.",
        ),
        method=about_fit(found),
        axes=tuple(Axis(name, ROLES[name], True) for name in shown),
        sigma=100 * fit.sigma,
    )
