"""The cost of a sweep: what pruning saved and cost, where trials failed, and where compute and time went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import product
from typing import Any

from pandas import DataFrame, Series, concat

from sweeplab.analysis.sweep.costs import (
    ALPHA,
    FOUND,
    PHASES,
    Cost,
    Saved,
    cost,
    occupancy,
    regions,
    saved,
    spent,
)
from sweeplab.errors import BadInput
from sweeplab.formatting import several, short, written
from sweeplab.laws.estimation.intervals import LEVEL
from sweeplab.report.data import ReportData, states_in_words
from sweeplab.report.panels.base import Panel, TablePanel
from sweeplab.report.style import BAD, FAINT, GOOD, GREY, MIDDLE, Axis, Figure, hovering, name_rows, spaced

# The color of each state, in the order of the stacked bars; evaluation is hatched.
_COLORS = {
    "complete": GOOD,
    "stopped": "rgb(110,150,220)",
    "waiting": FAINT,
    "running": GREY,
    "pruned": MIDDLE,
    "diverged": BAD,
    "failed": "rgb(160,60,40)",
}
_SUMS = ("n_trials", "n_pruned", "flops_spent", "flops_saved", "seconds_spent", "seconds_saved")
_METHOD = {
    "Saved": "The FLOPs that each pruned trial would still have needed, and their seconds at the trial's own speed.",
    "Cost": "A sample of the pruned trials is trained to the end, outside the study and its budget. The share of all "
    f"pruned trials has a {LEVEL:.0%} interval (Clopper and Pearson).",
}
_TEST = {
    "Test": "One-sided Fisher's exact test of the range (bounded by a decile of the trials) or choice where they are "
    f"most frequent. p is multiplied by the number of ranges tested (Bonferroni); significant below {ALPHA}.",
}
_AUDITED = {
    "cell": "cell",
    "trial": "trial",
    "iteration": "pruned at",
    "value_then": "loss when pruned",
    "value": "loss at the end",
    "best": "best loss of its cell",
}
_NO_AUDIT = "What pruning cost: sweeplab report sweep NAME --audit-pruning N trains N of them to the end."


class PruningPanel(Panel, name="pruning", heading="What pruning saved", source="sweeps"):
    """The compute spent and saved. `data`: line, n_trials, n_pruned, flops_spent, flops_saved, seconds_…, share.

    A line is a cell, or a study if there are several.
    """

    @classmethod
    def of(cls, report: ReportData) -> Panel:
        """Show what pruning saved in each cell, and what it cost according to the audited trials."""
        sweeps = report.sweeps
        by_study = [cells for sweep in sweeps if (cells := saved(sweep))]
        found = [each for cells in by_study for each in cells]
        if not any(each.n_pruned for each in found):
            raise BadInput("no trial was pruned" + ("" if found else " yet"))
        costs = [cost(sweep, audited) for sweep in sweeps if (audited := report.audited(sweep.name))]
        totals = [_total(cells) for cells in by_study]
        rows = totals
        if len(sweeps) == 1:
            rows = [asdict(each) | {"share": each.share, "line": each.cell} for each in found]
        said = [_saved_in_words(each) for each in totals] + [_cost_in_words(each) for each in costs]
        return cls(
            data=DataFrame(rows),
            shown=_audited(costs) if costs else None,
            notes=(*said, *(() if costs else (_NO_AUDIT,))),
            method=_METHOD,
            result={"saved": totals, "cost": [_cost(each) for each in costs]},
            x=Axis("flops", "training FLOPs"),
        )

    def _draw(self, figure: Figure) -> None:
        data = self.data
        about = "%{n_pruned} of %{n_trials} trials pruned, %{share:.0%} saved"
        looks = {"flops_spent": ("trained", GOOD), "flops_saved": ("saved by pruning", FAINT)}
        for column, (name, color) in looks.items():
            said = hovering(f"%{{line}}: {name} %{{x:.3s}} FLOPs<br>{about}", data)
            marker = {"color": color}
            figure.add_bar(x=data[column], y=data.index, orientation="h", name=name, marker=marker, **said)
        most = float((data["flops_spent"] + data["flops_saved"]).max())
        name_rows(figure, [spaced(line) for line in data["line"]])
        x, height = self.x.over(0.0, 1.02 * most), 110 + 26 * len(data)
        figure.update_layout(xaxis=x, barmode="stack", height=height, showlegend=True)


class ComputePanel(Panel, name="compute", heading="Where compute and time went", source="sweeps"):
    """Shares of compute and time. `data`: study, state, phase, n_runs, flops, seconds, the shares of these."""

    @classmethod
    def of(cls, report: ReportData) -> Panel:
        """Show on which runs, and in which phase, FLOPs and seconds were spent."""
        data = report.studied.data if report.studied else {}
        rows: list[dict[str, Any]] = []
        for sweep in report.sweeps:
            val_tokens = data.get(sweep.name, {}).get("val_tokens")
            speeds = report.curves("tokens_per_second", sweep.name)
            rows += [asdict(each) for each in spent(sweep, speeds, val_tokens)]
        table = DataFrame(rows)
        for what in ("flops", "seconds"):
            table[f"share of {what}"] = table[what] / table.groupby("study")[what].transform("sum")
        if not table["flops"].sum() > 0:
            raise BadInput("no run has trained a step yet")
        states = report.runs.groupby("study")["state"]
        notes = [
            f"{study}: {short(float(row['flops']))} FLOPs, {written(round(float(row['seconds']), 1))} s of run time "
            f"({states_in_words(states.get_group(study))})."
            for study, row in table.groupby("study", sort=False)[["flops", "seconds"]].sum().iterrows()
        ]
        for sweep in report.sweeps:
            if (share := occupancy(sweep)) is not None:
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
        for (state, color), phase in product(_COLORS.items(), PHASES):
            rows = data[(data["state"] == state) & (data["phase"] == phase)].set_index("study")
            if len(rows):
                shares = rows[["share of flops", "share of seconds"]].reindex(studies).fillna(0.0)
                hatch = {"shape": "/" if phase == PHASES[1] else "", "fillmode": "overlay"}
                figure.add_bar(
                    x=shares.to_numpy(float).ravel(),
                    y=list(range(shares.size)),
                    orientation="h",
                    name=state if phase == PHASES[0] else f"{state}, evaluation",
                    marker={"color": color, "pattern": {**hatch, "fgcolor": "white", "size": 5}},
                    hovertemplate=f"{state}, {phase}: %{{x:.1%}}<extra></extra>",
                )
        of = [f"{study}, " if len(studies) > 1 else "" for study in studies]
        name_rows(figure, [f"{study}{what}" for study in of for what in ("FLOPs", "run time")])
        x, height = self.x.over(0.0, 1.0) | {"tickformat": ".0%"}, 130 + 60 * len(studies)
        figure.update_layout(xaxis=x, barmode="stack", height=height, showlegend=True)


class RegionsPanel(TablePanel, name="regions", heading="Where trials diverged or failed", source="sweeps"):
    """The ranges in which trials diverged or failed more often than elsewhere."""

    @classmethod
    def of(cls, report: ReportData) -> Panel:
        """List the ranges, one per hyperparameter and state."""
        sweeps = report.sweeps
        found = [each for sweep in sweeps for each in regions(sweep)]
        if not found:
            ended = sum(len(sweep.ended) for sweep in sweeps)
            raise BadInput("no trial diverged or failed" + ("" if ended else " yet"))
        n_found = sum(each.verdict == FOUND for each in found)
        names = [*(["study"] if len(sweeps) > 1 else []), "state", "hyperparameter", "range"]
        shown = [
            {name: getattr(each, name) for name in names}
            | {"inside": f"{each.inside} of {each.n_inside}"}
            | {"outside": f"{each.outside} of {each.n_outside}"}
            | {"p": written(each.p), "verdict": each.verdict}
            for each in found
        ]
        return cls(
            data=DataFrame([asdict(each) | {"verdict": each.verdict} for each in found]),
            shown=DataFrame(shown),
            notes=(f"{n_found or 'None'} of {len(found)} hyperparameters predict where trials go wrong.",),
            method=_TEST,
        )


def _total(cells: Sequence[Saved]) -> dict[str, Any]:
    sums = {name: sum(getattr(each, name) for each in cells) for name in _SUMS}
    share = sums["flops_saved"] / max(sums["flops_spent"] + sums["flops_saved"], 1.0)
    return {"study": cells[0].study, **sums, "share": share, "line": cells[0].study}


def _saved_in_words(total: Mapping[str, Any]) -> str:
    trials = f"{total['n_pruned']} of {several(total['n_trials'], 'trial')}"
    seconds = written(round(total["seconds_saved"], 1))
    return (
        f"{total['study']}: {trials} pruned, which saved {total['share']:.0%} of the training: "
        f"{short(total['flops_saved'])} FLOPs, {seconds} s of run time."
    )


def _cost_in_words(found: Cost) -> str:
    n, cells = len(found.audited), "its cell" if found.n_better == 1 else "their cells"
    return (
        f"{found.study}: of {several(n, 'pruned trial')} trained to the end, {found.n_better} would have become the "
        f"best of {cells}; among all {found.n_pruned} pruned trials this share is {found.low:.0%} to {found.high:.0%}."
    )


def _audited(costs: Sequence[Cost]) -> DataFrame:
    table = concat([found.audited.assign(study=found.study) for found in costs], ignore_index=True)
    lost = table["value"].isna()
    names = (["study"] if len(costs) > 1 else []) + list(_AUDITED)
    ending = Series("not the best", index=table.index).mask(lost, "diverged")
    would_be = ending.mask(table["is_better"].astype(bool), "the best")
    return table[names].rename(columns=_AUDITED).assign(**{"would be": would_be})


def _cost(found: Cost) -> dict[str, object]:
    said = {"study": found.study, "audited": len(found.audited), "would_be_best": found.n_better}
    share = {"share_low": found.low, "share_high": found.high, "pruned": found.n_pruned}
    return {**said, **share, "trials": found.audited.to_dict("records")}
