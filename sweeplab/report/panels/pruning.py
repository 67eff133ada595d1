"""The cost of a sweep: what pruning saved, when trials ran, where compute and time went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import product
from typing import Any

from pandas import DataFrame, to_datetime

from sweeplab.analysis.sweep import (
    PHASES,
    Saved,
    occupancy,
    saved,
    spent,
)
from sweeplab.errors import BadInput
from sweeplab.formatting import duration, several, short
from sweeplab.report.data import ReportData, states_in_words
from sweeplab.report.panels.base import Panel
from sweeplab.report.style import FAINT, GOOD, STATE_COLORS, Axis, Figure, hovering, name_rows, spaced

_SUMS = ("n_trials", "n_pruned", "flops_spent", "flops_saved", "seconds_spent", "seconds_saved")
_METHOD = {
    "Saved": "The FLOPs that each pruned trial would still have needed, and their seconds at the trial's own speed.",
}
_MOST_BARS = 200


class PruningPanel(Panel, name="pruning", heading="What pruning saved", source="sweeps"):
    """The compute spent and saved. `data`: line, n_trials, n_pruned, flops_spent, flops_saved, seconds_…, share.

    A line is a cell, or a study if there are several.
    """

    @classmethod
    def _of(cls, report: ReportData) -> Panel:
        sweeps = report.sweeps
        by_study = [cells for cells in map(saved, sweeps) if cells]
        every = [cell for cells in by_study for cell in cells]
        if not any(cell.n_pruned for cell in every):
            raise BadInput("no trial was pruned")
        totals = [_total(cells) for cells in by_study]
        rows = totals
        if len(sweeps) == 1:
            rows = [asdict(cell) | {"share": cell.share, "line": cell.cell} for cell in every]
        return cls(
            data=DataFrame(rows),
            notes=tuple(_saved_in_words(each) for each in totals),
            method=_METHOD,
            result={"saved": totals},
            x=Axis("flops", "training FLOPs"),
        )

    def _draw(self, figure: Figure) -> None:
        data = self.data
        about = "%{n_pruned} of %{n_trials} trials pruned, %{share:.0%} saved"
        looks = {"flops_spent": ("trained", GOOD), "flops_saved": ("saved by pruning", FAINT)}
        for column, (name, color) in looks.items():
            hover = hovering(f"%{{line}}: {name} %{{x:.3s}} FLOPs<br>{about}", data)
            marker = {"color": color}
            figure.add_bar(x=data[column], y=data.index, orientation="h", name=name, marker=marker, **hover)
        most = float((data["flops_spent"] + data["flops_saved"]).max())
        name_rows(figure, [spaced(line) for line in data["line"]])
        x, height = self.x.over(0.0, 1.02 * most), 110 + 26 * len(data)
        figure.update_layout(xaxis=x, barmode="stack", height=height, showlegend=True)


class ComputePanel(Panel, name="compute", heading="Where compute and time went", source="sweeps"):
    """Shares of compute and time. `data`: study, state, phase, n_runs, flops, seconds, the shares of these."""

    @classmethod
    def _of(cls, report: ReportData) -> Panel:
        rows: list[dict[str, Any]] = []
        for sweep in report.sweeps:
            val_tokens = report.studies.data.get(sweep.name, {}).get("val_tokens")
            speeds = report.curves("tokens_per_second", sweep.name)
            rows += [asdict(each) for each in spent(sweep, speeds, val_tokens)]
        table = DataFrame(rows)
        for what in ("flops", "seconds"):
            table[f"share of {what}"] = table[what] / table.groupby("study")[what].transform("sum")
        if not table["flops"].sum() > 0:
            raise BadInput("no run has trained a step")
        states = report.runs.groupby("study")["state"]
        notes = [
            f"{study}: {short(float(row['flops']))} FLOPs, {duration(float(row['seconds']))} of run time "
            f"({states_in_words(states.get_group(study))})."
            for study, row in table.groupby("study", sort=False)[["flops", "seconds"]].sum().iterrows()
        ]
        for sweep in report.sweeps:
            share = occupancy(sweep)
            if share is not None:
                notes.append(
                    f"{sweep.name}: {share:.0%} of its stacks' slots were occupied, averaged over all steps."
                )
        return cls(
            data=table,
            notes=(*notes, "The seconds of a stack are divided among its runs."),
            result={"occupancy": {sweep.name: occupancy(sweep) for sweep in report.sweeps}},
            x=Axis("share", "share of the study"),
        )

    def _draw(self, figure: Figure) -> None:
        data = self.data
        studies = list(dict.fromkeys(data["study"]))
        for (state, color), phase in product(STATE_COLORS.items(), PHASES):
            rows = data[(data["state"] == state) & (data["phase"] == phase)].set_index("study")
            if len(rows):
                shares = rows[["share of flops", "share of seconds"]].reindex(studies).fillna(0.0)
                name, shape = {PHASES[1]: (f"{state}, evaluation", "/")}.get(phase, (state, ""))
                hatch = {"shape": shape, "fillmode": "overlay", "fgcolor": "white", "size": 5}
                figure.add_bar(
                    x=shares.to_numpy(float).ravel(),
                    y=list(range(shares.size)),
                    orientation="h",
                    name=name,
                    marker={"color": color, "pattern": hatch},
                    hovertemplate=f"{state}, {phase}: %{{x:.1%}}<extra></extra>",
                )
        heads = [(f"{study}, " if len(studies) > 1 else "") for study in studies]
        name_rows(figure, [f"{head}{what}" for head in heads for what in ("FLOPs", "run time")])
        x, height = self.x.over(0.0, 1.0) | {"tickformat": ".0%"}, 130 + 60 * len(studies)
        figure.update_layout(xaxis=x, barmode="stack", height=height, showlegend=True)


class TimelinePanel(Panel, name="timeline", source="sweeps"):
    """When each trial ran. `data`: study, cell, trial, state, begin and end (seconds since the first began)."""

    @classmethod
    def _of(cls, report: ReportData) -> Panel:
        rows = []
        for study in dict.fromkeys(report.runs["study"]) if len(report.runs) else ():
            folder = report.folder(str(study))
            for run in folder.runs() if folder else ():
                start, end = run.read_start(), run.read_end()
                if end and end.ended:
                    place = {"study": study, "cell": run.cell, "trial": run.trial, "seed": run.seed}
                    rows.append(place | {"state": str(end.state), "begin": start.started, "end": end.ended})
        if not rows:
            raise BadInput("no run has ended")
        data = DataFrame(rows).sort_values("begin", ignore_index=True)
        first = float(data["begin"].min())
        notes = [f"From {to_datetime(first, unit='s'):%Y-%m-%d %H:%M} UTC."]
        if len(data) > _MOST_BARS:
            notes.append(f"Drawn: the first {_MOST_BARS} of {several(len(data), 'run')}.")
        data = data.assign(begin=data["begin"] - first, end=data["end"] - first)
        return cls(data=data, notes=tuple(notes), x=Axis("end", "seconds since the first run began"))

    def _draw(self, figure: Figure) -> None:
        data = self.data.head(_MOST_BARS)
        for state, rows in data.groupby("state"):
            figure.add_bar(
                x=rows["end"] - rows["begin"],
                base=rows["begin"],
                y=rows.index,
                orientation="h",
                textposition="none",
                name=state,
                marker={"color": STATE_COLORS[str(state)]},
                customdata=rows[["cell", "trial", "seed", "end"]],
                hovertemplate="%{customdata[0]}, trial %{customdata[1]}, seed %{customdata[2]}"
                "<br>%{base:.1f} to %{customdata[3]:.1f} s<extra></extra>",
                meta={"trials": list(zip(rows["study"], rows["cell"], rows["trial"], strict=True))},
            )
        names = data["trial"].map("#{}".format)
        if data["cell"].nunique() > 1:
            names = data["cell"].map(spaced) + " " + names
        name_rows(figure, [name * (len(data) <= 40) for name in names])
        height = max(160, min(640, 110 + 16 * len(data)))
        figure.update_layout(
            xaxis=self.x.over(0.0, float(data["end"].max()) or 1.0), height=height, showlegend=True
        )


def _total(cells: Sequence[Saved]) -> dict[str, Any]:
    sums = {name: sum(getattr(each, name) for each in cells) for name in _SUMS}
    share = sums["flops_saved"] / max(sums["flops_spent"] + sums["flops_saved"], 1.0)
    return {"study": cells[0].study, **sums, "share": share, "line": cells[0].study}


def _saved_in_words(total: Mapping[str, Any]) -> str:
    trials = f"{total['n_pruned']} of {several(total['n_trials'], 'trial')}"
    return (
        f"{total['study']}: {trials} pruned, which saved {total['share']:.0%} of the training: "
        f"{short(total['flops_saved'])} FLOPs, {duration(total['seconds_saved'])} of run time."
    )
