"""How much each hyperparameter mattered."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from pandas import DataFrame

from sweeplab.analysis.sweep.importance import (
    CHANCE,
    EVALUATORS,
    FEWEST_TRIALS,
    LEVEL,
    OVER_ALL,
    WITHIN,
    WITHIN_CHANCE,
    Evaluator,
    Importance,
    importances,
)
from sweeplab.analysis.sweep.trials import Sweep
from sweeplab.errors import BadInput
from sweeplab.report.panels.base import Axis, Panel, PanelSpec
from sweeplab.report.panels.material import Material
from sweeplab.report.words import listed


@dataclass(frozen=True, kw_only=True)
class ImportancePanel(Panel):
    """Importances with their spread. `data`: study, scope, hyperparameter, importance, low, high, chance, verdict.

    `scopes` are those to be drawn in front, by (study, scope), with what they are called.
    """

    x: Axis
    scopes: dict[tuple[str, str], str]


def importance_panel(spec: PanelSpec, material: Material) -> Panel:
    """Rank the hyperparameters of each study by importance.

    Raises:
        BadInput: too few trials have ended, or nothing was searched.
    """
    evaluator: Evaluator = "fanova" if spec.evaluator == "fanova" else "ped-anova"
    sweeps = material.sweeps
    found = [each for sweep in sweeps for each in importances_of(material, sweep, evaluator)]
    if not found:
        raise BadInput(f"importances need {FEWEST_TRIALS} trials that differ in what was searched, or more")
    data = DataFrame([asdict(each) | {"verdict": each.verdict} for each in found])
    scopes = {key: name for sweep in sweeps for key, name in _scopes(sweep, len(sweeps) > 1).items()}
    n_cells = data.loc[~data["scope"].isin((WITHIN, OVER_ALL)), ["study", "scope"]].drop_duplicates()
    notes = [f"Bars: {LEVEL:.0%} interval. Ticks: what {1 - CHANCE:.0%} of shuffled losses exceed."]
    if len(scopes) < len(data[["study", "scope"]].drop_duplicates()):
        notes.append(f"Faint: {len(n_cells)} cells with {FEWEST_TRIALS} trials or more.")
    for (study, scope), name in scopes.items():
        chance = [
            each.hyperparameter
            for each in found
            if (each.study, each.scope, each.verdict) == (study, scope, WITHIN_CHANCE)
        ]
        if chance:
            notes.append(f"Not told from chance, {name}: {listed(chance)}.")
    return ImportancePanel(
        title=spec.title or "Importance of the hyperparameters",
        width=spec.width,
        data=data,
        notes=tuple(notes),
        method=(
            ("Evaluator", EVALUATORS[evaluator]),
            (
                "Within cells",
                "All cells together; a trial counts by its rank in its cell, so sizes do not matter.",
            ),
            (
                "Over all",
                "Losses as they are, of trials that ended; sizes compete with what was tuned.",
            ),
            ("Spread", "Halves of the trials, drawn without repetition: the delete-half jackknife."),
            ("Chance", "The same with losses shuffled among the trials."),
        ),
        result={"evaluator": evaluator},
        x=Axis("importance", "share of the importance"),
        scopes=scopes,
    )


def importances_of(material: Material, sweep: Sweep, evaluator: Evaluator = "ped-anova") -> list[Importance]:
    """Return the importances of a study's hyperparameters, computed once for all panels."""
    return material.once(("importances", sweep.name, evaluator), lambda: importances(sweep, evaluator))


def _scopes(sweep: Sweep, with_others: bool) -> dict[tuple[str, str], str]:
    """Return the scopes of a study that are drawn in front: of several studies only that inside of cells."""
    own = sweep.cells[0] if len(sweep.cells) == 1 else WITHIN
    if with_others:
        return {(sweep.name, own): sweep.name}
    return {(sweep.name, own): own} | ({(sweep.name, OVER_ALL): OVER_ALL} if own == WITHIN else {})
