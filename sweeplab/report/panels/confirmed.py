"""The losses of each cell's best configuration with fresh seeds, on the test split."""

from __future__ import annotations

from typing import Any

from pandas import DataFrame

from sweeplab.analysis.confirmation import CellConfirmed
from sweeplab.errors import BadInput
from sweeplab.formatting import sentence, several
from sweeplab.laws.estimation.intervals import LEVEL
from sweeplab.laws.evidence import DIFFERENT
from sweeplab.records.runs import MEASURED_ON
from sweeplab.report.data import ReportData
from sweeplab.report.panels.base import Panel
from sweeplab.report.style import GREY, MIDDLE, Axis, Figure, Look, bars, name_rows, spaced

_METHOD = {
    "Confirmed": "The best trials of each cell are trained with fresh seeds: two each, then more while their order is "
    "undecided. The winner is trained again with other seeds and evaluated once on the test split, unused before.",
    "Intervals": f"Student's t at {LEVEL:.0%} of the mean over these seeds, whose losses did not choose the winner.",
    "Search": f"The loss of the search's own trial {MEASURED_ON['whole_val_loss']}; trials were chosen by their loss "
    f"{MEASURED_ON['val_loss']}. Optimism is the test loss minus the search's; selection bias is the part of it that "
    "fresh seeds show on the same split.",
    "Differences": "From the cell that was best in the search, paired by seed. The verdicts of all cells share one "
    "false-alarm rate.",
}


class ConfirmedPanel(Panel, name="confirmed", heading="Confirmed on fresh seeds", source="sweeps"):
    """Each cell's winner by its test loss, beside the loss that the search found."""

    @classmethod
    def of(cls, report: ReportData) -> Panel:
        """List the cells of the studies that were confirmed."""
        found = report.confirmed
        if not found:
            raise BadInput(
                "nothing is confirmed yet: `sweeplab study confirm NAME` trains the best with fresh seeds"
            )
        of_studies = len({study for study, _ in found}) > 1
        rows = [_row(study, cell) for study, cell in found]
        lines = [spaced(row["cell"]) + (f" ({row['study']})" if of_studies else "") for row in rows]
        told = [cell.evidence for _, cell in found if cell.evidence]
        n = sum(evidence.verdict == DIFFERENT for evidence in told)
        others = f"{n} of {several(len(told), 'other cell')}"
        note = (
            f"{told[0].basis}: {others} {'differs' if len(told) == 1 else 'differ'} from the search's best cell."
            if told
            else ""
        )
        return cls(
            data=DataFrame(rows).assign(line=lines),
            notes=(sentence(note),) if note else (),
            method=_METHOD,
            result={"cells": [{"study": study, **cell.as_dict()} for study, cell in found]},
            x=Axis("test", f"loss ({report.loss_unit})"),
        )

    def figure(self) -> Figure | None:
        """Return the figure; None if each winner diverged on a fresh seed, as the table shows."""
        return super().figure() if self.data["test"].notna().any() else None

    def _draw(self, figure: Figure) -> None:
        data = self.data[self.data["test"].notna()].reset_index(drop=True)
        hover = "%{cell}, trial %{trial}<br>test %{test:.4f}<br>search %{searched:.4f}"
        ends = data.assign(**{end: data[end].fillna(data["test"]) for end in ("low", "high")})
        Look(f"fresh seeds, {MEASURED_ON['test_loss']}", MIDDLE).points(
            figure, data, "test", data.index, hover, error_x=bars(ends, "test")
        )
        Look(f"search, {MEASURED_ON['whole_val_loss']}", GREY, "circle-open").points(
            figure, data, "searched", data.index, hover
        )
        name_rows(figure, data["line"].tolist())
        figure.update_layout(
            xaxis=self.x.around(data[["low", "high", "test", "searched"]]),
            height=max(150, 110 + 26 * len(data)),
            showlegend=True,
        )


def _row(study: str, cell: CellConfirmed) -> dict[str, Any]:
    test, apart = cell.test, cell.apart
    return {
        "study": study,
        "cell": cell.cell,
        "trial": cell.trial,
        "raced": cell.n_raced,
        "searched": cell.searched,
        "validation": cell.validation,
        "test": test.value if test else None,
        "low": test.low if test else None,
        "high": test.high if test else None,
        "optimism": cell.optimism,
        "selection_bias": cell.selection_bias,
        "difference": apart.value if apart else None,
        "difference_low": apart.low if apart else None,
        "difference_high": apart.high if apart else None,
        "verdict": cell.evidence.verdict if cell.evidence else "",
    }
