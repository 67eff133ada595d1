"""Scaling laws from Python: what `sweeplab laws fit` does, with a DataFrame in and numbers, forecasts and a plot out.

>>> from sweeplab import laws
>>> law = laws.fit("runs.csv", law="chinchilla", where="epochs == 1")
>>> law.numbers["alpha"], law.warnings
>>> law.predict(larger)  # loss, low, high and verdict of each row
>>> law.plot().show()
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.laws.sentences import Plain

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure

    from sweeplab.laws.assessment import Assessment


@dataclass(frozen=True)
class FittedLaw:
    """A law that was fitted to a table.

    `assessment` holds the fit, the points and every number; its `as_dict` is what `sweeplab laws fit --json` prints.
    """

    assessment: Assessment

    @property
    def numbers(self) -> dict[str, Plain]:
        """Return each number by its name: value (None if it is not identified), low, high, verdict, why, meaning."""
        return {each.quantity.name: each.as_dict() for each in self.assessment.estimates}

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what speaks against the fit, one sentence each."""
        return self.assessment.warnings

    def predict(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Predict the loss of a run for each row, with a 90% prediction interval and the verdict on it.

        `frame` has sizes by role, such as params and tokens. A row that cannot be predicted has no numbers, and `why`
        says the reason.
        """
        import pandas as pd

        from sweeplab.laws.assessment import predict

        rows: list[tuple[Any, ...]] = []
        for sizes in frame.to_dict("records"):
            try:
                seen = predict(
                    self.assessment, {str(name): float(size) for name, size in sizes.items()}
                )
                rows.append(
                    (seen.loss, seen.low, seen.high, seen.verdict.verdict, seen.verdict.words)
                )
            except BadInput as refused:
                rows.append((None, None, None, "not identified", str(refused)))
        return pd.DataFrame(
            rows, columns=["loss", "low", "high", "verdict", "why"], index=frame.index
        )

    def plot(self) -> Figure:
        """Return the figure of the law through its points, as in the report.

        Raises:
            BadInput: the points allow no such figure.
        """
        from sweeplab.report.data import ReportData
        from sweeplab.report.panels.base import make_panel, panel_spec

        assessment = self.assessment
        asked = panel_spec("law", {"law": assessment.law.name})
        panel = make_panel(asked, ReportData.of_table(assessment))
        figure = panel.figure()
        if figure is None:
            raise BadInput(f"nothing to draw: {panel.missing}")
        return figure


def fit(
    table: pd.DataFrame | str | Path,
    law: str = "auto",
    *,
    columns: Mapping[str, str] | None = None,
    count: Mapping[str, str] | None = None,
    where: str = "",
    flops: float | None = None,
    tuned: str | None = None,
) -> FittedLaw:
    """Fit a law to a DataFrame, or to a table's file.

    `columns` such as {"params": "N", "tokens": "D*1e9", …} is needed if names are not the usual ones; `count`, `where`,
    and `flops` are as on the command line: {"rows": "best"}, "epochs == 1", the budget of the optimum.
    `tuned` says how the points were tuned: "each" by itself, all by one "shared" setting, or "unknown".
    """
    from sweeplab.laws.assessment import assess, law_for
    from sweeplab.laws.columns import ROLES, Counting, parse_conventions
    from sweeplab.laws.hyperparameters.excess import file_points, searched_points

    for role in columns or ():
        if role not in ROLES:
            raise BadInput(
                Problem(f"columns has no {role!r}", ", ".join(ROLES), nearest(role, ROLES))
            )
    asked = ",".join(f"{what}={how}" for what, how in (count or {}).items())
    counting = Counting(parse_conventions(asked), columns or {}, where, tuned or "")
    if isinstance(table, str | Path):
        points = file_points(Path(table), counting)
    else:
        points = searched_points(table, "the table", counting)
    return FittedLaw(assess(points, law_for(points, law), flops))
