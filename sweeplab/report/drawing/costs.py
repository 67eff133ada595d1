"""Figures of what mattered in a sweep, what it took, and how studies differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pandas import DataFrame

from sweeplab.analysis.sweep.costs import PHASES
from sweeplab.analysis.sweep.differences import ALL_CELLS, DIFFERENT
from sweeplab.analysis.trials import WORST_FIRST
from sweeplab.report.drawing.style import GREY, axis_of, colors, padded, symbols
from sweeplab.report.panels.differences import DifferencesPanel
from sweeplab.report.panels.importances import ImportancePanel
from sweeplab.report.panels.pruning import ComputePanel, PruningPanel

if TYPE_CHECKING:
    import plotly.graph_objects as go

_GIVEN, _MIDDLE, _LOST = colors(3)
_FAINT = "rgba(128,128,128,0.45)"
# What came of the compute, by color; evaluation is hatched.
_STATES = {
    "complete": _GIVEN,
    "stopped": "rgb(110,150,220)",
    "pruned": _MIDDLE,
    "diverged": _LOST,
    "failed": "rgb(160,60,40)",
    "running": GREY,
    "waiting": _FAINT,
}


def draw_importances(panel: ImportancePanel) -> go.Figure:
    """Draw the importances of the scopes in front with their intervals, and those of single cells faintly."""
    import plotly.graph_objects as go

    figure, data = go.Figure(), panel.data
    keys = list(zip(data["study"], data["scope"], strict=True))
    names = _by_importance(data[[key in panel.scopes for key in keys]])
    apart = 0.6 / max(1, len(panel.scopes))
    behind = data[[key not in panel.scopes for key in keys]]
    if len(panel.scopes) < len(set(keys)) and len({study for study, _ in panel.scopes}) == 1:
        cells = behind[behind["hyperparameter"].isin(names)]
        figure.add_scatter(
            x=cells["importance"], y=[names.index(each) for each in cells["hyperparameter"]], mode="markers",
            name="one cell", marker={"color": _FAINT, "size": 6}, customdata=cells[["scope"]],
            hovertemplate="%{customdata[0]}: %{x:.0%}<extra></extra>",
        )  # fmt: skip
    looks = zip(panel.scopes.items(), colors(len(panel.scopes)), symbols(), strict=False)
    for at, (((study, scope), name), color, symbol) in enumerate(looks):
        rows = data[(data["study"] == study) & (data["scope"] == scope)]
        y = [
            names.index(each) + (at - (len(panel.scopes) - 1) / 2) * apart for each in rows["hyperparameter"]
        ]
        figure.add_scatter(
            x=rows["chance"].clip(upper=1.0), y=y, mode="markers", showlegend=False, hoverinfo="skip",
            marker={"symbol": "line-ns-open", "size": 13, "color": color, "line": {"width": 1.5}},
        )  # fmt: skip
        figure.add_scatter(
            x=rows["importance"], y=y, mode="markers", name=name,
            marker={"color": color, "symbol": symbol, "size": 9},
            error_x={
                "type": "data", "symmetric": False, "array": rows["high"] - rows["importance"],
                "arrayminus": rows["importance"] - rows["low"], "thickness": 1.5, "width": 4,
            },
            customdata=rows[["hyperparameter", "verdict", "n_trials"]],
            hovertemplate="%{customdata[0]}: %{x:.0%}, %{customdata[1]}<br>%{customdata[2]} trials<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(**axis_of(panel.x, -0.02, 1.02))
    _name_rows(figure, names)
    figure.update_layout(showlegend=len(panel.scopes) > 1)
    return figure


def _by_importance(data: DataFrame) -> list[str]:
    """Return the hyperparameters, those first that matter most in the first scope that has them."""
    first = data.assign(order=data.groupby("scope", sort=False).ngroup()).drop_duplicates("hyperparameter")
    return list(first.sort_values(["order", "importance"], ascending=[True, False])["hyperparameter"])


def draw_pruning(panel: PruningPanel) -> go.Figure:
    """Draw what each line was trained, and what its pruned trials were spared."""
    import plotly.graph_objects as go

    figure, data = go.Figure(), panel.data
    for column, name, color in (
        ("flops_spent", "trained", _GIVEN),
        ("flops_saved", "saved by pruning", _FAINT),
    ):
        figure.add_bar(
            x=data[column], y=list(range(len(data))), orientation="h", name=name, marker={"color": color},
            customdata=data[["line", "n_pruned", "n_trials", "share"]],
            hovertemplate=f"%{{customdata[0]}}: {name} %{{x:.3s}} FLOPs<br>%{{customdata[1]}} of %{{customdata[2]}} "
            "trials pruned, %{customdata[3]:.0%} saved<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(
        **axis_of(panel.x, 0.0, 1.02 * float((data["flops_spent"] + data["flops_saved"]).max()))
    )
    _name_rows(figure, [str(line).replace(",", ", ") for line in data["line"]])
    figure.update_layout(barmode="stack", showlegend=True)
    return figure


def draw_compute(panel: ComputePanel) -> go.Figure:
    """Draw the shares of FLOPs and of seconds by state, a bar each for every study; evaluation is hatched."""
    import plotly.graph_objects as go

    figure, data = go.Figure(), panel.data
    studies = list(dict.fromkeys(data["study"]))
    bars = [(study, what) for study in studies for what in ("flops", "seconds")]
    for state in reversed(WORST_FIRST):
        for phase in PHASES:
            rows = data[(data["state"] == state) & (data["phase"] == phase)].set_index("study")
            if rows.empty:
                continue
            shares = [float(rows[f"share of {what}"].get(study, 0.0)) for study, what in bars]
            figure.add_bar(
                x=[0.0 if share != share else share for share in shares], y=list(range(len(bars))),
                orientation="h", name=state if phase == PHASES[0] else f"{state}, evaluation",
                marker={
                    "color": _STATES[state],
                    "pattern": {
                        "shape": "/" if phase == PHASES[1] else "", "fillmode": "overlay", "fgcolor": "white", "size": 5
                    },
                },
                hovertemplate=f"{state}, {phase}: %{{x:.1%}}<extra></extra>",
            )  # fmt: skip
    names = {"flops": "FLOPs", "seconds": "run time"}
    figure.update_xaxes(**axis_of(panel.x, 0.0, 1.0) | {"tickformat": ".0%"})
    _name_rows(
        figure, [names[what] if len(studies) == 1 else f"{study}, {names[what]}" for study, what in bars]
    )
    figure.update_layout(barmode="stack", showlegend=True)
    return figure


def draw_differences(panel: DifferencesPanel) -> go.Figure:
    """Draw an interval a difference, beside the line of none."""
    import plotly.graph_objects as go

    figure = go.Figure()
    data = panel.data[panel.data["difference"].notna()].reset_index(drop=True)
    for verdict in dict.fromkeys(data["verdict"]):
        rows = data[data["verdict"] == verdict]
        over_all = rows["cell"] == ALL_CELLS
        figure.add_scatter(
            x=rows["difference"], y=list(rows.index), mode="markers", name=verdict,
            marker={
                "color": _LOST if verdict == DIFFERENT else GREY,
                "symbol": ["diamond" if each else "circle" for each in over_all],
                "size": [12 if each else 8 for each in over_all],
            },
            error_x={
                "type": "data", "symmetric": False, "array": (rows["high"] - rows["difference"]).fillna(0),
                "arrayminus": (rows["difference"] - rows["low"]).fillna(0), "thickness": 1.5, "width": 4,
            },
            customdata=rows[["a", "loss_a", "b", "loss_b"]],
            hovertemplate="%{customdata[0]}: %{customdata[1]:.4f}<br>%{customdata[2]}: %{customdata[3]:.4f}"
            "<br>%{x:+.4f}<extra></extra>",
        )  # fmt: skip
    ends = data[["low", "high", "difference"]].astype(float)
    figure.add_vline(x=0, line={"color": GREY, "width": 1.5})
    figure.update_xaxes(
        **axis_of(panel.x, *padded(min(0.0, ends.min().min()), max(0.0, ends.max().max()), False))
    )
    _name_rows(figure, data["line"].tolist())
    figure.update_layout(showlegend=True)
    return figure


def _name_rows(figure: go.Figure, names: list[str]) -> None:
    """Name the rows of a figure from the first down."""
    figure.update_yaxes(
        tickvals=list(range(len(names))), ticktext=names, range=[len(names) - 0.5, -0.5], showgrid=False,
        zeroline=False, automargin=True,
    )  # fmt: skip
