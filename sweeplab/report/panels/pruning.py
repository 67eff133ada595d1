"""The cost of a sweep: what pruning saved, when runs were trained, where compute and time went."""

from __future__ import annotations

import datetime
from dataclasses import asdict

import optuna
from optuna.trial import FrozenTrial, TrialState
from optuna.visualization import plot_timeline
from pandas import DataFrame

from sweeplab.analysis.sweep import PHASES, occupancy, saved, spent
from sweeplab.errors import BadInput
from sweeplab.formatting import duration, several, short
from sweeplab.report.data import ReportData, states_in_words
from sweeplab.report.panels.base import Panel
from sweeplab.report.panels.sweep import OptunaPanel
from sweeplab.report.style import FAINT, GOOD, STATE_COLORS, Axis, Figure, hovering, name_rows, spaced

_METHOD = {
    "Saved": "The FLOPs that each pruned trial would still have needed, and their seconds at the trial's own speed.",
}
_MOST_BARS = 200
# What Optuna's timeline calls the states of runs.
_ENDED = {"complete": TrialState.COMPLETE, "stopped": TrialState.COMPLETE, "failed": TrialState.FAIL}


class PruningPanel(Panel, name="pruning", heading="What pruning saved", source="sweeps"):
    """The compute spent and saved by cell. `data`: study, cell, n_trials, n_pruned, flops_spent, flops_saved, …"""

    @classmethod
    def _of(cls, report: ReportData) -> Panel:
        cells = [cell for sweep in report.sweeps for cell in saved(sweep)]
        if not any(cell.n_pruned for cell in cells):
            raise BadInput("no trial was pruned")
        data = DataFrame([asdict(cell) | {"share": cell.share} for cell in cells])
        notes = []
        for study, row in data.groupby("study", sort=False).sum(numeric_only=True).iterrows():
            share = row["flops_saved"] / max(row["flops_spent"] + row["flops_saved"], 1.0)
            trials = f"{row['n_pruned']:.0f} of {several(int(row['n_trials']), 'trial')}"
            seconds = duration(float(row["seconds_saved"]))
            notes.append(f"{study}: {trials} pruned, which saved {share:.0%} of the training, {seconds}.")
        x = Axis("flops", "training FLOPs")
        return cls(data=data, notes=tuple(notes), method=_METHOD, x=x)

    def _draw(self, figure: Figure) -> None:
        data, n_studies = self.data, self.data["study"].nunique()
        about = "%{n_pruned} of %{n_trials} trials pruned, %{share:.0%} saved"
        looks = {"flops_spent": ("trained", GOOD), "flops_saved": ("saved by pruning", FAINT)}
        for column, (name, color) in looks.items():
            hover = hovering(f"%{{study}}, %{{cell}}: {name} %{{x:.3s}} FLOPs<br>{about}", data)
            marker = {"color": color}
            figure.add_bar(x=data[column], y=data.index, orientation="h", name=name, marker=marker, **hover)
        names = data["cell"].map(spaced)
        if n_studies > 1:
            names = data["study"] + ": " + names
        name_rows(figure, names.tolist())
        most = float((data["flops_spent"] + data["flops_saved"]).max())
        x, height = self.x.over(0.0, 1.02 * most), 110 + 26 * len(data)
        figure.update_layout(xaxis=x, barmode="stack", height=height, showlegend=True)


class ComputePanel(Panel, name="compute", heading="Where compute and time went", source="sweeps"):
    """Shares of compute and time. `data`: study, state, phase, n_runs, flops, seconds, the shares of these."""

    @classmethod
    def _of(cls, report: ReportData) -> Panel:
        rows, notes = [], []
        for sweep in report.sweeps:
            val_tokens = report.studies.data.get(sweep.name, {}).get("val_tokens")
            rows += spent(sweep, report.curves("tokens_per_second", sweep.name), val_tokens)
        data = DataFrame([asdict(each) for each in rows])
        if not data["flops"].sum() > 0:
            raise BadInput("no run has trained a step")
        sums = data.groupby("study", sort=False)[["flops", "seconds"]].sum()
        for study, row in sums.iterrows():
            states = states_in_words(report.runs.loc[report.runs["study"] == study, "state"])
            costs = f"{short(float(row['flops']))} FLOPs, {duration(float(row['seconds']))}"
            notes.append(f"{study}: {costs} ({states}).")
        for sweep in report.sweeps:
            share = occupancy(sweep)
            if share is not None:
                notes.append(f"{sweep.name}: {share:.0%} of its stacks' slots were occupied.")
        notes.append("The seconds of a stack are divided among its runs.")
        shares = {f"share of {what}": data[what] / data["study"].map(sums[what]) for what in sums}
        x = Axis("share", "share of the study")
        return cls(data=data.assign(**shares), notes=tuple(notes), x=x)

    def _draw(self, figure: Figure) -> None:
        data = self.data
        studies = list(dict.fromkeys(data["study"]))
        for (state, phase), rows in data.groupby(["state", "phase"], sort=False):
            shares = (
                rows.set_index("study")[["share of flops", "share of seconds"]].reindex(studies).fillna(0.0)
            )
            pattern = {"shape": "", "fillmode": "overlay", "fgcolor": "white", "size": 5}
            if phase == PHASES[1]:
                pattern["shape"] = "/"
            figure.add_bar(
                x=shares.to_numpy(float).ravel(),
                y=list(range(shares.size)),
                orientation="h",
                name=f"{state}, {phase}",
                marker={"color": STATE_COLORS[str(state)], "pattern": pattern},
                hovertemplate=f"{state}, {phase}: %{{x:.1%}}<extra></extra>",
            )
        name_rows(figure, [f"{study}, {what}" for study in studies for what in ("FLOPs", "run time")])
        x, height = self.x.over(0.0, 1.0) | {"tickformat": ".0%"}, 130 + 60 * len(studies)
        figure.update_layout(xaxis=x, barmode="stack", height=height, showlegend=True)


class TimelinePanel(OptunaPanel, name="timeline", source="sweeps"):
    """When each run was trained. `data`: study, cell, trial, seed, state, begin and end (seconds since 1970)."""

    @classmethod
    def _of(cls, report: ReportData) -> Panel:
        rows: list[tuple[object, ...]] = []
        for study in report.studies.data:
            folder = report.folder(study)
            for run in folder.runs() if folder else ():
                start, end = run.read_start(), run.read_end()
                if end and end.ended:
                    times = (str(end.state), start.started, end.ended)
                    rows.append((study, run.cell, run.trial, run.seed, *times))
        if not rows:
            raise BadInput("no run has ended")
        columns = ["study", "cell", "trial", "seed", "state", "begin", "end"]
        data = DataFrame(rows, columns=columns).sort_values("begin", ignore_index=True)
        notes = ["One bar a run, in the order in which they began."]
        if len(data) > _MOST_BARS:
            notes.append(f"Drawn: the first {_MOST_BARS} of {several(len(data), 'run')}.")
        return cls(data=data, notes=tuple(notes))

    def _plot(self) -> Figure:
        study = optuna.create_study()
        for place, row in enumerate(self.data.head(_MOST_BARS).to_dict("records")):
            begin, end = (datetime.datetime.fromtimestamp(row[name]) for name in ("begin", "end"))
            about = {"run": f"{row['study']}/{row['cell']}/{row['trial']}-{row['seed']}"}
            state = _ENDED.get(row["state"], TrialState.PRUNED)
            value = 0.0 if state is TrialState.COMPLETE else None
            study.add_trial(FrozenTrial(place, state, value, begin, end, {}, {}, about, {}, {}, place))
        return plot_timeline(study)
