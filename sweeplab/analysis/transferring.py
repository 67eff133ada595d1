"""Tune a study's small sizes, predict its largest, train that, and tell what the prediction cost.

The size that is asked for, else the one whose values lie farthest apart in the grid, loses its largest value; each cell
there is held out. The others are the study NAME-transfer. `predict_size` gives the held-out cell's values and loss,
which is sealed before the study NAME-transfer-SIZE trains the cell with the predicted learning rate, with the one of
the largest tuned cell, and with a ladder around the predicted one. The same again continues where it stopped: a
prediction is made once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sweeplab.analysis.ledger import FILE_NAME
from sweeplab.analysis.predicting import predict_size
from sweeplab.analysis.sealing import Source, cell_targets, seal
from sweeplab.analysis.studies import Counting, read_studies
from sweeplab.analysis.trials import VALUED, trials_table
from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.files import make_folder, read_bytes, write_whole
from sweeplab.formatting import yaml_text
from sweeplab.records.folders import StudyFolder
from sweeplab.study.choice import is_tuned
from sweeplab.study.file.checks import study_from
from sweeplab.study.problems import Problems, SourceMap
from sweeplab.study.search import Choices, Range
from sweeplab.study.space import Space, cells

if TYPE_CHECKING:
    from pathlib import Path

    from sweeplab.study.spec import StudySpec

RATE = "learning_rate"
STANDARD, MUP = "standard", "mup"
STEP = 2.0  # between the rungs of a ladder
_PREDICTED, _WITH_MUP = "predicted", "-mup"
Run = Callable[["StudySpec"], str]


@dataclass(frozen=True)
class Transferred:
    """What a prediction cost at a held-out size, under one parametrization.

    `losses` are the means over seeds by learning rate, None where a run diverged. `prediction` is as
    `Prediction.as_dict` gives it. `sealed` is the sha256 of the ledger's entry, or `why_not` says why there is none.
    """

    parametrization: str
    small: str
    large: str
    prediction: Mapping[str, Any]
    predicted: float
    copied: float
    copied_from: str
    sealed: str | None
    why_not: str
    losses: Mapping[float, float | None]

    @property
    def best(self) -> float | None:
        """Return the learning rate of the ladder with the lowest loss; None if all runs diverged."""
        known = {rate: loss for rate, loss in self.losses.items() if loss is not None}
        return min(known, key=lambda rate: known[rate], default=None)

    def cost(self, rate: float) -> float | None:
        """Return by what share of the loss a learning rate is worse than the best of the ladder; None: diverged."""
        loss = self.losses.get(rate)
        lowest = None if self.best is None else self.losses[self.best]
        if loss is None or lowest is None:
            return None
        return loss / lowest - 1

    @property
    def is_held(self) -> bool | None:
        """Return whether the predicted loss's 90% interval holds the loss seen; None where there is none."""
        loss, interval = self.losses.get(self.predicted), self.prediction["loss"]
        if loss is None or interval["low"] is None:
            return None
        return bool(interval["low"] <= loss <= interval["high"])

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        ladder = [{RATE: rate, "loss": loss, "cost": self.cost(rate)} for rate, loss in self.losses.items()]
        return asdict(self) | {
            "losses": ladder,
            "best": self.best,
            "best_is_at_end": self.best in (min(self.losses), max(self.losses)),
            "cost": self.cost(self.predicted),
            "cost_of_copying": self.cost(self.copied),
            "held": self.is_held,
        }


def transfer(
    spec: StudySpec, lab: Path, run: Run, ladder: float, with_mup: bool, axis: str = ""
) -> list[Transferred]:
    """Tune a study's small sizes, predict, seal and train each held-out one; return what it cost.

    The ladder's rungs lie STEP apart, up to a factor of `ladder` below and above the prediction. `run` runs a study to
    its end, or continues it, and returns its status. `with_mup` does all again under muP. The largest value of `axis`
    is held out; of a size that spans most if it is empty.

    Raises:
        BadInput: the grid has no such size to hold out, no learning rate is searched, or a study cannot start.
        Interrupted: a study did not come to its end.
    """
    axis, held_out = _held_out(spec, axis)
    kinds = (STANDARD, MUP) if with_mup else (str(spec.fixed.get("parametrization", STANDARD)),)
    results = []
    for small in [_small(spec, axis, kind) for kind in kinds]:
        _complete(small, run)
        results += [_at_size(small, lab, size, ladder, run) for size in held_out]
    return results


def _held_out(spec: StudySpec, axis: str) -> tuple[str, list[dict[str, Any]]]:
    entry = spec.search.get(RATE)
    if not isinstance(entry, Range | Choices) or entry.when:
        what = f"study {spec.name} does not search {RATE} in every trial: there is nothing to transfer"
        raise BadInput(spec.problem(("search",), what, f"search: {{{RATE}: suggested}}"))
    if len(spec.cells) > 1:
        what = f"study {spec.name} has cells that differ in more than sizes: no size follows from them"
        raise BadInput(spec.problem(("cells",), what, "a grid"))
    ratios = {
        name: (max(values) / min(values), name == "n_embd")
        for name, values in spec.grid.items()
        if len(values) > 1 and not is_tuned(name) and all(_is_size(value) for value in values)
    }
    if not ratios:
        what = f"the grid of study {spec.name} has no size with two values, of which one could be held out"
        raise BadInput(spec.problem(("grid",), what, "such as n_embd: [16, 32, 64]"))
    if axis and axis not in ratios:
        what = f"the grid of study {spec.name} has no size {axis!r} with two values to hold one out"
        raise BadInput(Problem(what, ", ".join(ratios), nearest(axis, ratios)))
    axis = axis or max(ratios, key=lambda name: ratios[name])
    sizes: list[dict[str, Any]] = [{}]
    for name, values in spec.grid.items():
        kept = [max(values)] if name == axis else values
        sizes = [{**size, name: value} for size in sizes for value in kept]
    return axis, sizes


def _is_size(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _small(spec: StudySpec, axis: str, parametrization: str) -> StudySpec:
    """Return the study of the sizes that are tuned; muP's base is the smallest of them if the file has none."""
    written = spec.as_written()
    written.pop("confirm", None)
    values, fixed = written["grid"][axis], {**written["fixed"], "parametrization": parametrization}
    if parametrization == MUP and "n_embd" in spec.grid:
        smallest = min(cells(spec, None)[0], key=lambda cell: cell.values["n_embd"])
        typical = Space(spec, smallest, None).typical
        fixed.setdefault("mup_base_width", typical.n_embd)
        fixed.setdefault("mup_base_head_dim", typical.head_dim)
    changes = {
        "name": f"{spec.name}-transfer" + _WITH_MUP * (parametrization == MUP),
        "grid": {**written["grid"], axis: [value for value in values if value < max(values)]},
        "fixed": fixed,
    }
    return study_from(written | changes, Problems(SourceMap()))


def _complete(spec: StudySpec, run: Run) -> None:
    from sweeplab.sweep.confirming import Interrupted

    if (status := run(spec)) != "complete":
        raise Interrupted(spec.name, status)


def _at_size(small: StudySpec, lab: Path, size: Mapping[str, Any], ladder: float, run: Run) -> Transferred:
    words = "-".join(f"{name}{yaml_text(value)}" for name, value in size.items())
    file = StudyFolder(lab, small.name).path / _PREDICTED / f"{words}.json"
    if not file.exists():
        make_folder(file.parent)
        write_whole(file, json.dumps(_predicted(small.name, lab, size), indent=1).encode())
    made = json.loads(read_bytes(file))
    rates = {made["predicted"], made["copied"], *_rungs(made["predicted"], ladder)}
    _complete(_at_rates(made["study"], sorted(rates)), run)
    return _trained(lab, small.name, made, rates)


def _trained(lab: Path, small: str, made: Mapping[str, Any], rates: Iterable[float] = ()) -> Transferred:
    made = dict(made)
    large = made.pop("study")
    trials = trials_table(read_studies(lab, [large["name"]]).runs).to_dict("records")
    known = {float(row[RATE]): float(row["loss"]) for row in trials if row["state"] in VALUED}
    losses = {rate: known.get(rate) for rate in sorted({*rates, *known})}
    return Transferred(large["fixed"]["parametrization"], small, large["name"], losses=losses, **made)


def read_transferred(lab: Path, name: str) -> list[Transferred]:
    """Return what predictions cost at the held-out sizes of a study of small sizes, under muP too if that was trained.

    Sizes of which no run has ended are left out.
    """
    base, results = name.removesuffix(_WITH_MUP), []
    for small in (base, base + _WITH_MUP):
        for file in sorted((StudyFolder(lab, small).path / _PREDICTED).glob("*.json")):
            try:
                result = _trained(lab, small, json.loads(read_bytes(file)))
            except BadInput:  # the study of this size does not exist yet
                continue
            results += [result] if result.best else []
    return results


def _rungs(rate: float, ladder: float) -> list[float]:
    n_rungs = math.floor(math.log(ladder, STEP) + 1e-9)
    return [float(f"{rate * STEP**power:.4g}") for power in range(-n_rungs, n_rungs + 1) if power]


def _at_rates(written: Mapping[str, Any], rates: Sequence[float]) -> StudySpec:
    return study_from({**written, "grid": {RATE: list(rates)}}, Problems(SourceMap()))


def _predicted(name: str, lab: Path, size: Mapping[str, Any]) -> dict[str, Any]:
    """Predict and seal a size; return the study that trains it, and what `Transferred` says of the prediction."""
    studies = read_studies(lab, [name])
    trials = trials_table(studies.runs)
    if any(all(row[each] == value for each, value in size.items()) for row in trials.to_dict("records")):
        words = ",".join(f"{each}={yaml_text(value)}" for each, value in size.items())
        raise BadInput(
            f"study {name} has trained {words} already: there is nothing to predict; --name takes another"
        )
    counting = Counting(studies.settled())
    points = studies.points(conventions=counting.conventions)
    sizes = [f"--at {each}={yaml_text(value)}" for each, value in size.items()]
    predicted = predict_size(StudyFolder(lab, name), studies, points, sizes, counting)
    trials = trials_table(studies.runs)
    largest = max(trials[trials["best"]].to_dict("records"), key=lambda row: row["train_flops"])
    rate, copied = float(predicted.values[RATE].value), float(largest[RATE])
    written = predicted.spec.as_written()
    written["fixed"].pop(RATE)
    sealed, why_not = None, predicted.why_none
    if predicted.law:
        # The ledger scores the best rate of the ladder, so what the predicted one may cost is no part of this forecast.
        targets, _ = cell_targets(_at_rates(written, [rate]), lab, counting)
        origin = Source((name,), False, counting)
        try:
            sealed = seal(lab / FILE_NAME, origin, predicted.law, lab, targets).entries[-1].sha256
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
