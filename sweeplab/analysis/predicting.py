"""What to train a size with that a study has not tried, and the loss to expect there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sweeplab.analysis.sealing import NOT_SETTINGS, Target, rows_at, size_targets
from sweeplab.analysis.studies import Counting, Studies, tuned_runs
from sweeplab.analysis.trials import trials_table
from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.formatting import listed, several, yaml_text
from sweeplab.hyperparameters import TABLE
from sweeplab.lab.listing import read_spec
from sweeplab.laws.assessment import Assessment, assess, law_for
from sweeplab.laws.forecasts import NO_REGRET, Forecast, Regret, predict
from sweeplab.laws.hyperparameters.assessment import TIMESCALE, assess_hyperparameters
from sweeplab.laws.hyperparameters.prediction import with_prediction
from sweeplab.laws.hyperparameters.runs import SIZES
from sweeplab.laws.points import Points
from sweeplab.study.file.reading import read_study
from sweeplab.study.problems import LENGTHS
from sweeplab.study.search import Choices, Derived, Divisors

if TYPE_CHECKING:
    from sweeplab.records.folders import StudyFolder
    from sweeplab.study.plan import Plan
    from sweeplab.study.spec import StudySpec

_AT = "--at "
# What --at may name, beside what the study's grid and search have.
_OF_SIZE = (
    "n_layer",
    "n_embd",
    "n_head",
    "n_kv_head",
    "head_dim",
    "d_ff",
    "n_encoder_layer",
    "n_decoder_layer",
    *LENGTHS,
)

# Of one trial, without what narrows or ends a search.
_ONE_TRIAL = ("constraints=[]", "budget={trials_per_cell: 1}", "pruner=none", "sampler=auto", "warm_start=[]")


@dataclass(frozen=True)
class Value:
    """A searched hyperparameter's value to train with, its 90% interval where a law gives one, and where it is from."""

    value: Any
    low: float | None = None
    high: float | None = None
    verdict: str = "no law"
    why: str = ""


@dataclass(frozen=True)
class Prediction:
    """The study that trains a size, the values it takes, and the loss to expect, or why there is none.

    `beyond` has the factors by which sizes lie outside of the study's; `regret` is what the values are expected to cost
    against the best ones, as a share of the loss, and `loss` contains it. It is None where a value has no law.
    `is_row` tells that the size is one of the law's rows.
    """

    spec: StudySpec
    plan: Plan
    target: Target
    values: Mapping[str, Value]
    beyond: Mapping[str, float]
    regret: float | None
    law: Assessment | None
    loss: Forecast | None
    why_none: str
    is_row: bool

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        loss: dict[str, Any] = {"value": None, "low": None, "high": None, "law": None, "why": self.why_none}
        if self.loss and self.law:
            shown = (self.loss.loss, self.loss.low, self.loss.high)
            loss = self.loss.verdict.entry(shown, "the loss of a run") | {"law": self.law.fit.law.name}
        return {
            "name": self.spec.name,
            "cell": self.target.words,
            "at": dict(self.target.at),
            "beyond": dict(self.beyond),
            "values": {name: vars(value) for name, value in self.values.items()},
            "is_row": self.is_row,
            "regret": self.regret,
            "loss": loss,
        }


def predict_size(
    folder: StudyFolder, studies: Studies, points: Points, sizes: Sequence[str], counting: Counting
) -> Prediction:
    """Predict the best values and the loss of a size; `sizes` are written as `-o` takes them: n_embd=256.

    A searched value follows its law over the sizes; without one it is that of the best trial of the nearest cell, and
    a choice the most common of the cells' best trials, near ones counting most. What `sizes` names is taken as named.
    The law of the loss is the one that `laws fit` takes.

    Raises:
        BadInput: a name or a value that no study file has, or that is no size and neither in the study's grid nor
            searched, a size of the grid that is not named, one that breaks a rule of the model, or a study without a
            trial that ended.
    """
    from sweeplab.sweep.planning import make_plan

    sized = _one_cell(folder, sizes)
    targets, left_out = size_targets(sized, make_plan(sized, folder.lab), counting)
    if not targets:
        raise BadInput(*(f"{sized.name}: {why}" for why in left_out.values()))
    target = targets[0]
    searched = read_spec(folder).search
    named = {name: sized.fixed[name] for name in searched.keys() - sized.search.keys() - set(_OF_SIZE)}
    named = {name: value for name, value in named.items() if type(value) in (int, float) and value > 0}
    logs = {name: math.log(value) for name, value in (sized.fixed | dict(target.at)).items() if name in SIZES}
    laws, why = dict[str, Any](), ""
    try:
        runs = tuned_runs(studies.runs, folder.name, studies.design, counting.conventions)
        at = named | {name: math.exp(log) for name, log in logs.items() if name in runs.sizes}
        laws = dict(with_prediction(assess_hyperparameters(runs), at).prediction)
    except BadInput as refused:
        why = refused.problems[0].what
    trials = trials_table(studies.runs, "best_val_loss")
    best = trials[trials["best"]].to_dict("records")
    if not best:
        raise BadInput(f"no trial of {folder.name} has ended with a loss")
    best.sort(key=lambda row: _distance(row, sized.fixed))
    values = {}
    for name, entry in sized.search.items():
        known = [row[name] for row in best if row.get(name) is not None and row[name] == row[name]]
        predicted = laws.get("best", {}).get(name)
        if isinstance(entry, Derived) or not (known or predicted):
            continue
        if predicted and predicted["value"] is not None:
            value, low, high = predicted["value"], predicted["low"], predicted["high"]
            values[name] = Value(_rounded(name, value), low, high, predicted["verdict"], predicted["why"])
        elif isinstance(entry, Choices) and not all(isinstance(each, int | float) for each in entry.values):
            values[name] = _voted(name, best, sized.fixed)
        else:
            value = known[0]
            if isinstance(entry, Divisors):
                value = math.gcd(int(value), int(sized.fixed[entry.of]))
            reasons = [f"of the nearest cell, {best[0]['cell']}", predicted["why"] if predicted else why]
            values[name] = Value(value, why=": ".join(filter(None, reasons)))
    law, loss, why_none = None, None, ""
    regret = None
    try:
        regret = _regret(laws, sized.search.keys(), named)
        law = assess(points, law_for(points, "auto"))
        loss = predict(law, target.at, target.seeds, regret or NO_REGRET)
    except BadInput as refused:
        law, why_none = None, refused.problems[0].what
    spec = _one_cell(
        folder, [*(f"{name}={yaml_text(value.value)}" for name, value in values.items()), *sizes]
    )
    # The run belongs to the study that is written, which searches nothing.
    planned = make_plan(spec, folder.lab)
    (target, *_), _ = size_targets(spec, planned, counting)
    target = replace(target, regret=regret or NO_REGRET)
    beyond = {name: factor for name, factor in laws.get("beyond", {}).items() if factor > 1.001}
    cost = regret.mean if regret else None
    is_row = bool(rows_at(points, target.at).size)
    return Prediction(spec, planned[0], target, values, beyond, cost, law, loss, why_none, is_row)


def _regret(laws: Mapping[str, Any], searched: Set[str], named: Mapping[str, float]) -> Regret | None:
    """Return by how much values are expected to miss the best ones; None unless laws give all that have a law.

    Raises:
        BadInput: a named value has no law, or lies where its cost is not known.
    """
    asked = laws.get("asked") or {"off": 0.0, "why": ""}
    if asked["why"]:
        raise BadInput(asked["why"])
    with_law = {"weight_decay" if name == TIMESCALE else name for name in laws.get("best", ())}
    if lacks := named.keys() - with_law:
        what = ", ".join(f"{name}={yaml_text(named[name])}" for name in sorted(lacks))
        raise BadInput(f"no law says what {what} costs")
    unknown = any(entry["value"] is None for entry in laws.get("best", {}).values())
    if not with_law or not with_law <= searched | named.keys() or unknown:
        return None
    return Regret(laws["regret"], asked["off"])


def _voted(name: str, best: Sequence[Mapping[Any, Any]], wanted: Mapping[str, Any]) -> Value:
    """Return the choice of most of the cells' best trials; a cell counts e times less a factor e away in size."""
    votes, held = dict[str, float](), dict[str, Any]()
    cells = [row for row in best if row.get(name) is not None and row[name] == row[name]]
    for row in cells:
        text = yaml_text(row[name])
        held[text], votes[text] = row[name], votes.get(text, 0.0) + math.exp(-_distance(row, wanted))
    common = max(votes, key=lambda text: votes[text])
    count = sum(yaml_text(row[name]) == common for row in cells)
    return Value(
        held[common], why=f"best in {count} of {several(len(cells), 'cell')}, near ones counting most"
    )


def _one_cell(folder: StudyFolder, changes: Sequence[str]) -> StudySpec:
    """Return the study with one cell and one trial, under a name that its sizes tell.

    Raises:
        BadInput: the changes are wrong, or leave more than one cell.
    """
    whole = read_spec(folder)
    _check_names(whole, [change for change in changes if change.startswith(_AT)])
    if len(whole.cells) > 1:
        raise BadInput(f"{folder.name} has cells that differ in more than sizes: no size follows from them")
    spec = read_study(folder.canonical_file, [*_ONE_TRIAL, *changes], folder.name)
    if varied := [name for name, values in spec.grid.items() if len(values) > 1]:
        tried = " and ".join(f"{name}={yaml_text(spec.grid[name][-1])}" for name in varied)
        raise BadInput(
            Problem(f"--at lacks {listed(varied)}, which the grid of {folder.name} has", f"{tried}, say")
        )
    words = "-".join(f"{name}{yaml_text(spec.fixed[name])}" for name in whole.grid if name in spec.fixed)
    return spec.model_copy(update={"name": "-".join(filter(None, (folder.name, words)))})


def _check_names(spec: StudySpec, changes: Sequence[str]) -> None:
    """Refuse what no law is about: the runs of a study have one value of it, and another may cost anything."""
    searched = {name for name, entry in spec.search.items() if not isinstance(entry, Derived)}
    allowed = {*spec.grid, *searched, *_OF_SIZE, *NOT_SETTINGS}
    for change in changes:
        name, _, text = change.removeprefix(_AT).partition("=")
        if name in allowed:
            continue
        what = f"{change}: {name!r} is unknown"
        if name in TABLE:
            if text.strip() == yaml_text(spec.fixed.get(name, TABLE[name].default)):
                continue
            what = f"{change}: no law of {spec.name} says what that costs"
        known = [*spec.grid, *sorted(searched)]
        raise BadInput(Problem(what, ", ".join(known), nearest(name, sorted(allowed))))


def _distance(row: Mapping[Any, Any], wanted: Mapping[str, Any]) -> float:
    sizes = [name for name in (*SIZES, *LENGTHS) if wanted.get(name) and row.get(name)]
    return sum(abs(math.log(float(row[name]) / float(wanted[name]))) for name in sizes)


def _rounded(name: str, value: float) -> float:
    if TABLE[name].kind == "int":
        return round(value)
    return float(f"{value:.4g}")
