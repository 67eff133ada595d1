"""Every number of a law, with its interval and verdict, as a table."""

from __future__ import annotations

from sweeplab.report.panels.base import Panel, PanelSpec, TablePanel
from sweeplab.report.panels.material import Material
from sweeplab.report.panels.method import about_fit
from sweeplab.report.panels.misfit import flagged
from sweeplab.report.panels.numbers import data_of, shown_of
from sweeplab.report.words import several


def verdicts_panel(spec: PanelSpec, material: Material) -> Panel:
    """List what a law says: a number, or a dash where the points do not identify one.

    Raises:
        BadInput: the points allow no such fit.
    """
    found = material.assessment(spec.law, spec.delta)
    said = found.as_dict()
    entries = said["parameters"] | said["derived"]
    objectives = "The last columns have the same fit under each objective."
    if not any(each.identified for each in found.estimates):
        objectives = "These rows identify no number of it."
    return TablePanel(
        title=spec.title or f"{said['law']}: what may be believed",
        width=spec.width,
        data=data_of(entries),
        shown=shown_of(entries),
        notes=(f"{said['formula']}, fitted to {several(said['n_points'], 'row')}. {objectives}",),
        warnings=(*flagged(spec, material), *found.warnings),
        method=about_fit(found),
        result=said,
    )
