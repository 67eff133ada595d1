"""The best values of a size that was not tuned, the loss to expect with them, and what missing the optimum costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from sweeplab.errors import BadInput, Problem
from sweeplab.formatting import listed, short
from sweeplab.laws.assessment import Verdict, assess, law_for
from sweeplab.laws.forecasts import predict as forecast
from sweeplab.laws.hyperparameters.assessment import BAND, TIMESCALE, HyperparameterLaw, HyperparameterLaws
from sweeplab.laws.hyperparameters.line import Mixture
from sweeplab.laws.hyperparameters.runs import SIZES
from sweeplab.laws.points import EACH, Points, path_of


def with_prediction(laws: HyperparameterLaws, target: Mapping[str, float]) -> HyperparameterLaws:
    """Return the laws with what they predict at a size: the best values, their bands, the loss and the regret.

    Raises:
        BadInput: the target lacks a size that a law needs, or lies off the path that all cells lie on; or no searched
            value has a law.
    """
    runs, valley = laws.runs, laws.valley
    logs = {name: math.log(value) for name, value in target.items() if name in SIZES}
    for name in runs.sizes:  # what did not vary need not be named
        logs_of_cells = runs.log_of(name)
        if name not in logs and np.ptp(logs_of_cells) < 1e-6:
            logs[name] = float(logs_of_cells[0])
    path = path_of(_points_of_cells(laws))
    if path and path.misses({name: math.exp(log) for name, log in logs.items()}):
        # What is due to params and what to tokens cannot be told there.
        raise BadInput(f"the laws hold along one path, {path.words}, and this size lies off it")
    if {"params", "tokens"} <= logs.keys():
        logs["tokens per parameter"] = logs["tokens"] - logs["params"]
    mixtures: dict[str, Mixture] = {}
    entries: dict[str, Any] = {}
    for j, (name, searched) in enumerate(laws.searched.items()):
        if not searched.laws:
            continue
        law = _law_for(searched.laws, logs, name)
        mixture = searched.optimum(logs)
        low, high = mixture.interval()
        verdict: Verdict = law.verdict("ratio", mixture.mean, low, high)
        below, above = valley.reach(j, BAND)
        mixtures[name] = mixture
        shown = (math.exp(mixture.mean), math.exp(low), math.exp(high))
        entries[name] = verdict.entry(shown, f"the best {name}") | {"law": list(law.columns)}
        if verdict.identified:
            entries[name]["band"] = [math.exp(mixture.mean - below), math.exp(mixture.mean + above)]
    if not entries:
        why = "; ".join(f"{name}: {searched.why_none}" for name, searched in laws.searched.items())
        raise BadInput(f"no searched value has a law to predict from: {why}")
    places = [runs.names.index(name) for name in mixtures]
    bend = valley.bend[np.ix_(places, places)]
    sds = np.array([math.sqrt(mixture.variance) for mixture in mixtures.values()])
    sigma = np.outer(sds, sds) * laws.correlation[np.ix_(places, places)]
    regret = float(np.trace(bend @ sigma)) / 2
    loss = _loss(laws, logs, regret)
    if TIMESCALE in entries and "learning_rate" in entries and "tokens" in logs:
        entries["weight_decay"] = _weight_decay(entries, mixtures, logs["tokens"], sigma)
    prediction = {
        "at": dict(target),
        "beyond": _beyond(laws, logs),
        "best": entries,
        "regret": regret,
        "loss": loss,
        "asked": _asked(laws, target, mixtures, entries, regret, loss),
    }
    return replace(laws, prediction=prediction)


def _law_for(laws: tuple[HyperparameterLaw, ...], logs: Mapping[str, float], name: str) -> HyperparameterLaw:
    """Return the first law whose sizes the target gives, or refuse a target that no law has."""
    for law in laws:
        if all(column in logs for column in law.columns):
            return law
    lacks = [column for column in laws[0].columns if column not in logs]
    known = " or ".join(",".join(f"{column}=…" for column in law.columns) for law in laws)
    raise BadInput(Problem(f"--at lacks {listed(lacks)}, which the law of {name} needs", known))


def _beyond(laws: HyperparameterLaws, logs: Mapping[str, float]) -> dict[str, float]:
    """Return the factor by which each size lies outside of the cells' sizes; 1 inside."""
    factors = {}
    for name in laws.runs.sizes:
        if name in logs:
            logs_of_cells = laws.runs.log_of(name)
            away = max(logs[name] - float(logs_of_cells.max()), float(logs_of_cells.min()) - logs[name], 0.0)
            factors[name] = math.exp(away)
    return factors


def _weight_decay(
    entries: Mapping[str, Any], mixtures: Mapping[str, Mixture], log_tokens: float, sigma: Any
) -> dict[str, Any]:
    """Return the weight decay of the best timescale: batch_size / (learning_rate tau tokens)."""
    powers = {TIMESCALE: -1.0, "learning_rate": -1.0, "batch_size": 1.0}
    signs = np.array([powers.get(name, 0.0) for name in mixtures])
    mean = float(signs @ np.array([mixture.mean for mixture in mixtures.values()])) - log_tokens
    sd = 1.645 * math.sqrt(max(float(signs @ sigma @ signs), 0.0))
    verdict = Verdict(entries[TIMESCALE]["verdict"], entries[TIMESCALE]["why"])
    meaning = "batch_size / (learning_rate timescale tokens)"
    return verdict.entry((math.exp(mean), math.exp(mean - sd), math.exp(mean + sd)), meaning)


def _points_of_cells(laws: HyperparameterLaws) -> Points:
    """Return the tuned loss of every cell as points of a law, weighted by its error, instead of the best of k runs."""
    runs, valley = laws.runs, laws.valley
    sizes = [name for name in ("params", "tokens") if name in runs.sizes]
    columns: dict[str, Any] = {name: np.exp(runs.log_of(name)) for name in sizes}
    columns["loss"] = np.exp(valley.level)
    if {"params", "tokens"} <= columns.keys():
        columns["flops"] = 6 * columns["params"] * columns["tokens"]
    weights = (np.median(valley.level_error) / valley.level_error) ** 2
    return Points(columns=columns, weights=np.clip(weights, 0.1, 10.0), is_searched=True, tuned=EACH)


def _loss(laws: HyperparameterLaws, logs: Mapping[str, float], regret: float) -> dict[str, Any]:
    inside = np.all([[cell.side == 0 for cell in each.cells] for each in laws.searched.values()], axis=0)
    points = _points_of_cells(laws).only(inside)
    varied = points.varied & {"params", "tokens"} if points.n else set()
    at = {name: math.exp(value) for name, value in logs.items() if name in ("params", "tokens")}
    try:
        if not varied or not varied <= at.keys():
            needed = listed(sorted(varied or {"params"}))
            raise BadInput(f"a law of the loss needs {needed} of the size and of the cells")
        law = law_for(points)
        predicted = forecast(assess(points, law, others=()), at)
    except BadInput as refused:
        return {"value": None, "low": None, "high": None, "why": refused.problems[0].what}
    entry = predicted.verdict.entry((predicted.loss, predicted.low, predicted.high), "the tuned loss")
    if entry["value"] is not None:
        entry["with_these_values"] = entry["value"] * math.exp(regret)
    return entry | {"law": law.name}


def _asked(
    laws: HyperparameterLaws,
    target: Mapping[str, float],
    mixtures: Mapping[str, Mixture],
    entries: Mapping[str, Any],
    regret: float,
    loss: Mapping[str, Any],
) -> dict[str, Any] | None:
    """Return what searched values that the target names would cost there; the others are at their predicted best."""
    asked = {name: math.log(target[name]) for name in laws.runs.names if name in target and name in mixtures}
    if not asked:
        return None
    z = np.zeros((1, len(laws.runs.names)))
    for name, value in asked.items():
        j, away = laws.runs.names.index(name), value - mixtures[name].mean
        z[0, j] = away
        if entries[name]["value"] is None:
            why = f"what {name}={short(math.exp(value))} costs is not known: the best one is {entries[name]['verdict']}"
            return {"excess": None, "off": None, "loss": None, "why": why}
        below, above = laws.valley.reach(j, laws.valley.window)
        if not -below <= away <= above:
            best, factor = math.exp(mixtures[name].mean), math.exp(abs(away))
            why = f"{name}={short(math.exp(value))} lies a factor {factor:.3g} from the best, {short(best)}: the rows "
            why += f"say what a factor of {math.exp(above if away > 0 else below):.3g} costs, and no more"
            return {"excess": None, "off": None, "loss": None, "why": why}
    off = float(laws.valley.excess(z)[0])
    tuned = loss.get("value")
    total = None if tuned is None else tuned * math.exp(off + regret)
    return {"excess": off + regret, "off": off, "loss": total, "why": ""}
