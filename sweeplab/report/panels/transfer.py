"""The ladder of learning rates at the sizes that `study transfer` held out, and what its predictions cost there."""

from __future__ import annotations

from pandas import DataFrame

from sweeplab.analysis.predicting import RATE, Transferred, read_transferred
from sweeplab.errors import BadInput
from sweeplab.formatting import rounded
from sweeplab.report.data import ReportData, title_of
from sweeplab.report.panels.base import Panel
from sweeplab.report.style import FAINT, Axis, Figure, bars, by_look

_METHOD = {
    "Prediction": "The learning rate follows its law over the tuned sizes, or is that of the nearest cell. It was made "
    "before a run at the held-out size began; the forecast of the loss was sealed where a law gives one.",
    "Ladder": "Runs at the predicted learning rate, at that of the largest tuned size, and around them; losses are "
    "means over seeds. The lowest of several noisy losses is low by luck, so regrets are too large rather than small.",
}


class TransferPanel(Panel, name="transfer", heading="Predicted sizes", source="runs"):
    """The ladders. `data`: size, learning_rate, loss, cost (a share), what (predicted, copied), interval low, high."""

    @classmethod
    def _of(cls, report: ReportData) -> Panel:
        results = read_transferred(report.lab, report.study) if report.lab else []
        if not results:
            raise BadInput("no size was predicted and trained; sweeplab study transfer does")
        return cls(
            title="Loss at sizes that were predicted, not tuned",
            data=DataFrame([row for each in results for row in _rows(each)]).astype(
                {"low": float, "high": float}
            ),
            notes=tuple(_in_words(each) for each in results),
            method=_METHOD,
            result={"sizes": [each.as_dict() for each in results]},
            x=Axis(RATE, title_of(RATE), True),
            y=Axis("loss", report.measure_title("val_loss"), True),
        )

    def _draw(self, figure: Figure) -> None:
        hover = "%{size}: %{y:.4f} at %{x:.3g}, %{cost:.2%} above the best"
        for look, rows in by_look(self.data, "size"):
            look.line(figure, rows, RATE, "loss", hover, size=6)
            predicted = rows[rows["what"].str.startswith("predicted")]
            bar = bars(predicted, RATE, thickness=5, width=0, color=FAINT)
            marker = {"size": 12, "symbol": "diamond"}
            look.points(figure, predicted, RATE, "loss", hover, marker=marker, error_x=bar, showlegend=False)
        figure.update_layout(xaxis=self.x.around(self.data[RATE]), yaxis=self.y.around(self.data["loss"]))


def _rows(result: Transferred) -> list[dict[str, object]]:
    marks = {result.copied: "copied", result.predicted: "predicted"}
    rows = [
        {"size": _name(result), **rung, "what": marks.get(rung[RATE], "")}
        for rung in result.as_dict()["losses"]
    ]
    ends = {end: result.prediction["values"][RATE][end] for end in ("low", "high")}
    return [row | (ends if row["what"] == "predicted" else {}) for row in rows]


def _in_words(result: Transferred) -> str:
    costs = [result.cost(rate) for rate in (result.predicted, result.copied)]
    shares = ["diverged" if cost is None else f"costs {cost:.2%}" for cost in costs]
    loss = {True: "holds the loss seen", False: "does not hold it", None: "is not known"}[result.is_held]
    rates = rounded(result.predicted), rounded(result.best or 0.0)
    return (
        f"{_name(result)}: the predicted learning rate {rates[0]} {shares[0]} against the ladder's best, {rates[1]}; "
        f"that of {result.copied_from} {shares[1]}. The predicted interval of the loss {loss}."
    )


def _name(result: Transferred) -> str:
    return f"{result.large.removeprefix(f'{result.small}-')}, {result.parametrization}"
