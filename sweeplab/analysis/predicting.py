"""What to train a size with that a study has not tried, the loss to expect there, and what such a prediction costs.

To tell the cost, a study's small sizes are tuned, its largest is predicted, and that is trained (`transfer`). The size
whose values lie farthest apart in the grid loses its largest value; each cell there is held out. The others are the
study NAME-transfer. `predict_size` gives the held-out cell's values and loss, which is sealed before the study
NAME-transfer-SIZE trains the cell with the predicted learning rate, with the one of the largest tuned cell, and with a
ladder around the predicted one. The same again continues where it stopped: a prediction is made once.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from sweeplab.analysis.sealing import (
    NOT_SETTINGS,
    Target,
    cell_targets,
    entry_of,
    forecasts_of,
    seal,
    size_targets,
)
from sweeplab.analysis.studies import Studies, read_studies, tuned_runs
from sweeplab.analysis.trials import VALUED, trials_table
from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.files import make_folder, read_bytes, write_whole
from sweeplab.formatting import listed, yaml_text
from sweeplab.hyperparameters import TABLE, is_number
from sweeplab.lab.listing import read_spec
from sweeplab.laws.assessment import Assessment, Forecast, assess, law_for, predict
from sweeplab.laws.columns import Counting
from sweeplab.laws.hyperparameters.assessment import assess_hyperparameters, predict_values
from sweeplab.laws.hyperparameters.runs import SIZES
from sweeplab.laws.points import Points
from sweeplab.laws.sentences import Facts, Plain
from sweeplab.records.folders import StudyFolder
from sweeplab.study.choice import is_tuned
from sweeplab.study.file.reading import read_study, study_from
from sweeplab.study.problems import LENGTHS, Problems
from sweeplab.study.values import Choices, Derived, Range

if TYPE_CHECKING:
    from pathlib import Path

    from sweeplab.study.plan import Plan
    from sweeplab.study.spec import StudySpec

RATE = "learning_rate"
STEP = 2.0  # between the rungs of a ladder
_AT = "--at "
# What --at may name, beside what the study's grid and search have.
_OF_SIZE = {
    "n_layer",
    "n_embd",
    "n_head",
    "n_kv_head",
    "head_dim",
    "d_ff",
    "n_encoder_layer",
    "n_decoder_layer",
}
_OF_SIZE |= {*LENGTHS}
# Of one trial, without what narrows or ends a search.
_ONE_TRIAL = (
    "constraints=[]",
    "budget={trials_per_cell: 1}",
    "pruner=none",
    "sampler=auto",
    "warm_start=[]",
)
Run = Callable[["StudySpec"], str]


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

    `regret` is what the values are expected to cost against the best ones, as a share of the loss, and `loss` contains
    it. It is None where a value has no law.
    """

    spec: StudySpec
    plan: Plan
    target: Target
    values: Mapping[str, Value]
    regret: float | None
    law: Assessment | None
    loss: Forecast | None
    why_none: str

    def as_dict(self) -> Plain:
        """Return it as plain values."""
        loss = {"value": None, "low": None, "high": None, "law": None, "why": self.why_none}
        if self.loss and self.law:
            loss = entry_of(self.law, self.loss)
        return {
            "name": self.spec.name,
            "cell": self.target.words,
            "at": dict(self.target.at),
            "values": {name: vars(value) for name, value in self.values.items()},
            "regret": self.regret,
            "loss": loss,
        }


def predict_size(
    folder: StudyFolder,
    studies: Studies,
    points: Points,
    sizes: Sequence[str],
    counting: Counting,
) -> Prediction:
    """Predict the best values and the loss of a size; `sizes` are written as `-o` takes them: n_embd=256.

    A searched value follows its law over the sizes; without one it is that of the best trial of the nearest cell. The
    law of the loss is the one that `laws fit` takes.

    Raises:
        BadInput: a name or a value that no study file has, or that is no size and not in the study's grid, a size of
            the grid that is not named, one that breaks a rule of the model, or a study without a trial that ended.
    """
    sized = _one_cell(folder, sizes)
    target, _ = _planned(sized, folder.lab, counting)
    laws, why = Plain(), ""
    try:
        runs = tuned_runs(studies.runs, folder.name, counting, studies.design)
        known = sized.fixed | dict(target.at)
        at = {name: known[name] for name in SIZES if name in known and name in runs.sizes}
        laws = predict_values(assess_hyperparameters(runs), at)
    except BadInput as refused:
        why = refused.problems[0].what
    trials = trials_table(studies.runs)
    best = trials[trials["best"]].to_dict("records")
    if not best:
        raise BadInput(f"no trial of {folder.name} has ended with a loss")
    best.sort(key=lambda row: _distance(row, sized.fixed))
    values = _values(sized, best, laws, why)
    law, loss, regret, why_none = None, None, None, ""
    # What the values cost is known where laws give all that have a law.
    of_laws = laws.get("best", {})
    if (
        of_laws
        and all(entry["value"] is not None for entry in of_laws.values())
        and of_laws.keys() <= sized.search.keys()
    ):
        regret = laws["regret"]
    try:
        law = assess(points, law_for(points, "auto"))
        loss = predict(law, target.at, target.seeds, regret or 0.0)
    except BadInput as refused:
        law, why_none = None, refused.problems[0].what
    # The run belongs to the study that is written, which searches nothing.
    spec = _one_cell(
        folder, [*(f"{name}={yaml_text(each.value)}" for name, each in values.items()), *sizes]
    )
    target, plan = _planned(spec, folder.lab, counting)
    return Prediction(
        spec, plan, replace(target, regret=regret or 0.0), values, regret, law, loss, why_none
    )


def _planned(spec: StudySpec, lab: Path, counting: Counting) -> tuple[Target, Plan]:
    """Plan the study of one cell; return that as the target of a prediction, and the plan."""
    from sweeplab.sweep.planning import make_plan

    planned = make_plan(spec, lab)
    targets, left_out = size_targets(spec, planned, counting)
    if not targets:
        raise BadInput(*(f"{spec.name}: {why}" for why in left_out.values()))
    return targets[0], planned[0]


def _values(
    sized: StudySpec, best: Sequence[Mapping[Any, Any]], laws: Facts, why: str
) -> dict[str, Value]:
    """Choose each searched value by its law, else by the `best` trials of the cells, the nearest cell first."""
    values = {}
    for name, entry in sized.search.items():
        known = [row for row in best if row.get(name) is not None and row[name] == row[name]]
        predicted = laws.get("best", {}).get(name, {"value": None, "why": why})
        if isinstance(entry, Derived):
            continue
        if predicted["value"] is not None:
            value = float(f"{predicted['value']:.4g}")
            if TABLE[name].kind == "int":
                value = round(predicted["value"])
            values[name] = Value(
                value, *(predicted[each] for each in ("low", "high", "verdict", "why"))
            )
        elif known:
            value = known[0][name]
            reason = f": {predicted['why']}" if predicted["why"] else ""
            values[name] = Value(value, why=f"of the nearest cell, {known[0]['cell']}{reason}")
    return values


def _one_cell(folder: StudyFolder, changes: Sequence[str]) -> StudySpec:
    """Return the study with one cell and one trial, under a name that its sizes tell."""
    whole = read_spec(folder)
    _check_names(whole, [change for change in changes if change.startswith(_AT)])
    if len(whole.cells) > 1:
        raise BadInput(
            f"{folder.name} has cells that differ in more than sizes: no size follows from them"
        )
    spec = read_study(folder.canonical_file, [*_ONE_TRIAL, *changes, f"--name {folder.name}"])
    if varied := [name for name, values in spec.grid.items() if len(values) > 1]:
        tried = " and ".join(f"{name}={yaml_text(spec.grid[name][-1])}" for name in varied)
        what = f"--at lacks {listed(varied)}, which the grid of {folder.name} has"
        raise BadInput(Problem(what, f"{tried}, say"))
    words = "-".join(
        f"{name}{yaml_text(spec.fixed[name])}" for name in whole.grid if name in spec.fixed
    )
    return spec.model_copy(update={"name": "-".join(filter(None, (folder.name, words)))})


def _check_names(spec: StudySpec, changes: Sequence[str]) -> None:
    """Refuse what no law is about: the runs of a study have one value of it, and another may cost anything."""
    allowed = {*spec.grid, *_OF_SIZE, *NOT_SETTINGS}
    for change in changes:
        name, _, text = change.removeprefix(_AT).partition("=")
        default = TABLE[name].default if name in TABLE else None
        if name in allowed or text.strip() == yaml_text(spec.fixed.get(name, default)):
            continue
        what = f"{change}: no law of {spec.name} says what that costs"
        raise BadInput(Problem(what, ", ".join(spec.grid), nearest(name, sorted(allowed))))


def _distance(row: Mapping[Any, Any], wanted: Facts) -> float:
    sizes = [name for name in (*SIZES, *LENGTHS) if wanted.get(name) and row.get(name)]
    return sum(abs(math.log(float(row[name]) / float(wanted[name]))) for name in sizes)


@dataclass(frozen=True)
class Transferred:
    """What a prediction cost at a held-out size.

    `losses` are the means over seeds by learning rate, None where a run diverged. `prediction` is as
    `Prediction.as_dict` gives it. `sealed` is the sha256 of the ledger's entry, or `why_not` says why there is none.
    """

    parametrization: str
    small: str
    large: str
    prediction: Facts
    predicted: float
    copied: float
    copied_from: str
    sealed: str | None
    why_not: str
    losses: Mapping[float, float | None]

    def as_dict(self) -> Plain:
        """Return it as plain values.

        `cost` is by what share of the loss a learning rate is worse than the best of the ladder, None where it
        diverged; `held` says whether the loss's interval holds the loss seen, if both are known.
        """
        known = {loss: rate for rate, loss in self.losses.items() if loss is not None}
        costs = dict.fromkeys((*self.losses, self.copied))
        for loss, rate in known.items():
            costs[rate] = loss / min(known) - 1
        best = known[min(known)] if known else None
        seen, interval, held = self.losses.get(self.predicted), self.prediction["loss"], None
        if seen is not None and interval["low"] is not None:
            held = interval["low"] <= seen <= interval["high"]
        return asdict(self) | {
            "losses": [
                {RATE: rate, "loss": loss, "cost": costs[rate]}
                for rate, loss in self.losses.items()
            ],
            "best": best,
            "cost": costs[self.predicted],
            "cost_of_copying": costs[self.copied],
            "held": held,
        }


def transfer(spec: StudySpec, lab: Path, run: Run, ladder: float) -> list[Transferred]:
    """Tune a study's small sizes, predict, seal and train each held-out one; return what it cost.

    The ladder's rungs lie STEP apart, up to a factor of `ladder` below and above the prediction. `run` runs a study to
    its end, or continues it, and returns its status.

    Raises:
        BadInput: the grid has no such size to hold out, no learning rate is searched, or a study cannot start.
        Interrupted: a study did not come to its end.
    """
    axis = _held_out(spec)
    small = _small(spec, axis)
    _complete(small, run)
    kept = [[max(values)] if name == axis else values for name, values in spec.grid.items()]
    sizes = [dict(zip(spec.grid, each, strict=True)) for each in itertools.product(*kept)]
    return [_at_size(small.name, lab, size, ladder, run) for size in sizes]


def _held_out(spec: StudySpec) -> str:
    """Return the size of the grid that loses its largest value."""
    entry = spec.search.get(RATE)
    if not isinstance(entry, Range | Choices) or entry.when:
        what = f"study {spec.name} does not search {RATE} in every trial: there is nothing to transfer"
        raise BadInput(spec.problem(("search",), what, f"search: {{{RATE}: suggested}}"))
    if len(spec.cells) > 1:
        what = f"study {spec.name} has cells that differ in more than sizes: no size follows from them"
        raise BadInput(spec.problem(("cells",), what, "a grid"))
    ratios = {}
    for name, values in spec.grid.items():
        if (
            len(values) > 1
            and not is_tuned(name)
            and all(is_number(each) and each > 0 for each in values)
        ):
            ratios[name] = max(values) / min(values), name == "n_embd"
    if not ratios:
        what = f"the grid of study {spec.name} has no size with two values, of which one could be held out"
        raise BadInput(spec.problem(("grid",), what, "such as n_embd: [16, 32, 64]"))
    return max(ratios, key=lambda name: ratios[name])


def _small(spec: StudySpec, axis: str) -> StudySpec:
    """Return the study of the sizes that are tuned."""
    written = spec.as_written()
    written.pop("confirm", None)
    values = written["grid"][axis]
    grid = {**written["grid"], axis: [value for value in values if value < max(values)]}
    changes = {"name": f"{spec.name}-transfer", "grid": grid}
    return study_from(written | changes, Problems())


def _complete(spec: StudySpec, run: Run) -> None:
    from sweeplab.sweep.confirming import Interrupted

    if (status := run(spec)) != "complete":
        raise Interrupted(spec.name, status)


def _at_size(small: str, lab: Path, size: Facts, ladder: float, run: Run) -> Transferred:
    words = "-".join(f"{name}{yaml_text(value)}" for name, value in size.items())
    file = StudyFolder(lab, small).path / "predicted" / f"{words}.json"
    if not file.exists():
        make_folder(file.parent)
        write_whole(file, json.dumps(_predicted(small, lab, size), indent=1).encode())
    made = json.loads(read_bytes(file))
    large = made.pop("study")
    n_rungs = math.floor(math.log(ladder, STEP) + 1e-9)
    rungs = [made["predicted"] * STEP**power for power in range(-n_rungs, n_rungs + 1) if power]
    rates = sorted(
        {made["predicted"], made["copied"], *(float(f"{rate:.4g}") for rate in rungs)}
    )
    _complete(_at_rates(large, rates), run)
    trials = trials_table(read_studies(lab, [large["name"]]).runs).to_dict("records")
    known = {float(row[RATE]): float(row["loss"]) for row in trials if row["state"] in VALUED}
    losses = {rate: known.get(rate) for rate in sorted({*rates, *known})}
    parametrization = large["fixed"].get("parametrization", TABLE["parametrization"].default)
    return Transferred(parametrization, small, large["name"], losses=losses, **made)


def _at_rates(written: Facts, rates: Sequence[float]) -> StudySpec:
    return study_from({**written, "grid": {RATE: list(rates)}}, Problems())


def _predicted(name: str, lab: Path, size: Facts) -> Plain:
    """Predict and seal a size; return the study that trains it, and what `Transferred` says of the prediction."""
    studies = read_studies(lab, [name])
    trials = trials_table(studies.runs)
    if any(
        all(row[each] == value for each, value in size.items())
        for row in trials.to_dict("records")
    ):
        words = ",".join(f"{each}={yaml_text(value)}" for each, value in size.items())
        nothing = "there is nothing to predict; --name takes another"
        raise BadInput(f"study {name} has trained {words} already: {nothing}")
    counting = studies.settled()
    points = studies.points(counting)
    sizes = [f"{_AT}{each}={yaml_text(value)}" for each, value in size.items()]
    predicted = predict_size(StudyFolder(lab, name), studies, points, sizes, counting)
    largest = max(trials[trials["best"]].to_dict("records"), key=lambda row: row["train_flops"])
    rate, copied = float(predicted.values[RATE].value), float(largest[RATE])
    written = predicted.spec.as_written()
    written["fixed"].pop(RATE)
    sealed, why_not = None, predicted.why_none
    if predicted.law:
        # The ledger scores the best rate of the ladder, so what the predicted one may cost is no part of this forecast.
        targets, _ = cell_targets(_at_rates(written, [rate]), lab, counting)
        try:
            forecasts, _ = forecasts_of(predicted.law, targets)
            entries, _ = seal([name], counting, predicted.law, lab, forecasts)
            sealed = entries[-1].sha256
        except BadInput as refused:
            why_not = refused.problems[0].what
    return {
        "study": written,
        "prediction": predicted.as_dict(),
        "predicted": rate,
        "copied": copied,
        "copied_from": largest["cell"],
        "sealed": sealed,
        "why_not": why_not,
    }
