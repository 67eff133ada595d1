"""Seal forecasts from a law and a table: an interval for a run's loss, and the checks before it is sealed.

METHOD says how the interval is computed. Without the form's error, for a linear law with normal errors, it is the
classical prediction interval. A table that is too small for a back-test gets a warning.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sweeplab.analysis.assessment import Assessment
from sweeplab.analysis.columns import COUNTS
from sweeplab.analysis.fit.forms import loss_at
from sweeplab.analysis.fit.intervals import LEVEL, profiles, run_noise, student
from sweeplab.analysis.fit.verdicts import IDENTIFIED, Verdict, gate, judge
from sweeplab.analysis.ledger import targets
from sweeplab.analysis.ledger.chain import Entry, append
from sweeplab.analysis.ledger.outcomes import LAST_POINT, LOG_LINE, VERSION, Normal
from sweeplab.analysis.points import Points
from sweeplab.errors import BadInput
from sweeplab.records.folders import StudyFolder
from sweeplab.tracking.environment import git_of_code
from sweeplab.version import VERSION as SWEEPLAB

METHOD = (
    "profile of the law (F quantile), a run's noise and the form's error in the back-test (t quantiles), "
    "added in quadrature in log loss"
)
_NORMAL_END = 1.6448536269514722  # of the standard normal distribution at 95%
_FEWEST_FOR_A_LINE = 3


@dataclass(frozen=True)
class Prediction:
    """The loss that a law predicts for a run (None if not identified), with its prediction interval at `level`.

    `log_loss` is the normal distribution of the log loss with this interval; `law_low` and `law_high` bound the law
    alone, `noise` is the sd of a run's log loss about the law, and `form` the sd of the form's error there.
    """

    loss: float | None
    low: float
    high: float
    level: float
    log_loss: Normal
    law_low: float
    law_high: float
    noise: float
    form: float
    verdict: Verdict


@dataclass(frozen=True)
class Naive:
    """A forecast without a law, or why there is none."""

    log_loss: Normal | None
    why: str


def predict(assessment: Assessment, at: Mapping[str, float], seeds: int = 1) -> Prediction:
    """Predict the mean loss of `seeds` runs at a point {"params": …, "tokens": …}.

    Raises:
        BadInput: the point lacks a column that the law uses, or the rows do not bound the loss there.
    """
    points, fit, shared = assessment.points, assessment.fit, assessment.shared
    if missing := [name for name in fit.law.columns if name not in at]:
        raise BadInput(f"{fit.law.name} needs {' and '.join(missing)} too: --{' and --'.join(missing)}")
    quantity = loss_at(fit.law, fit.center, at)
    (interval,) = profiles(fit, [quantity], shared, assessment.noise)
    if interval.open_ends:
        why = f"the {fit.n_points} rows give it no {interval.open_ends[0]} bound, so there is no interval to seal"
        raise BadInput(f"{quantity.meaning} cannot be forecast: {why}")
    # The mean of several seeds is less noisy only up to the number of seeds of the table's rows.
    few = np.minimum([float(seeds)], np.median(fit.rows.weights))
    logs = fit.centered({name: np.array([at[name]]) for name in fit.law.columns})
    (noise,), quantile = run_noise(fit, shared, assessment.noise, logs, few)
    form = assessment.form_error.sd(fit, quantity)
    reached = assessment.form_error.widened(fit, quantity, interval)
    low = interval.value - math.hypot(interval.value - reached.low, quantile * noise)
    high = interval.value + math.hypot(reached.high - interval.value, quantile * noise)
    if not math.isfinite(low + high) or max(abs(low), abs(high)) > 700:
        raise BadInput(f"{quantity.meaning} cannot be forecast: its interval has no end that is a number")
    verdict = judge(quantity, reached, fit, gate(quantity, points, fit), assessment.doubt)
    return Prediction(
        loss=math.exp(interval.value) if verdict.identified else None,
        low=math.exp(low),
        high=math.exp(high),
        level=LEVEL,
        log_loss=Normal((low + high) / 2, (high - low) / 2 / _NORMAL_END),
        law_low=math.exp(interval.low),
        law_high=math.exp(interval.high),
        noise=noise,
        form=form,
        verdict=verdict,
    )


def naive_forecasts(points: Points, at: Mapping[str, float]) -> dict[str, Naive]:
    """Return the forecasts without a law: the loss of the next smaller run, and a line of log loss over log C.

    Without FLOPs in the table, the line is over N or D.
    """
    known = points.columns.keys() & at.keys()
    x_name = next((name for name in ("flops", "params", "tokens") if name in known), "")
    if not x_name:
        return dict.fromkeys((LAST_POINT, LOG_LINE), Naive(None, "the table and the point share no column"))
    x, y = np.log(points.columns[x_name]), np.log(points.columns["loss"])
    where = math.log(at[x_name])
    smaller = np.flatnonzero(x <= where)
    if smaller.size:
        last = smaller[np.argmax(x[smaller])]
        nearest = Naive(Normal(float(y[last]), 0.0), f"the loss of the row with the next smaller {x_name}")
    else:
        nearest = Naive(None, f"every row has more {x_name}")
    return {LAST_POINT: nearest, LOG_LINE: _line(points, x_name, where)}


def _line(points: Points, x_name: str, where: float) -> Naive:
    """Return the prediction of a weighted straight line of log loss over the log of one column."""
    x, y, weights = np.log(points.columns[x_name]), np.log(points.columns["loss"]), points.weights
    total = float(weights.sum())
    center = float(weights @ x) / total
    spread = float(weights @ (x - center) ** 2)
    if points.n < _FEWEST_FOR_A_LINE or spread < 1e-12:
        return Naive(None, f"{points.n} rows at {len(np.unique(x))} values of {x_name} make no line")
    slope = float(weights @ ((x - center) * y)) / spread
    offset = float(weights @ y) / total
    residual = y - offset - slope * (x - center)
    variance = float(weights @ residual**2) / (points.n - 2)
    error = math.sqrt(variance * (1 / float(np.median(weights)) + 1 / total + (where - center) ** 2 / spread))
    mean = offset + slope * (where - center)
    end = error * student(points.n - 2)
    return Naive(Normal(mean, end / _NORMAL_END), f"log loss as a line of log {x_name}")


@dataclass(frozen=True)
class Source:
    """Where the points come from: the names of studies or of a file, and how it was counted."""

    names: tuple[str, ...]
    is_file: bool
    counting: targets.Counting


@dataclass(frozen=True)
class Sealed:
    """The sealed entries, and the reason of each target that was left out."""

    entries: tuple[Entry, ...]
    left_out: Mapping[str, str]
    warnings: tuple[str, ...]


def seal(
    ledger: Path,
    source: Source,
    assessment: Assessment,
    lab: Path,
    wanted: Sequence[targets.Target],
    left_out: Mapping[str, str] | None = None,
) -> Sealed:
    """Seal a forecast of every target, except those that have started or that the law cannot forecast.

    Started runs are looked up in the studies of `lab`; `left_out` has reasons for targets left out before.

    Raises:
        BadInput: no target is left, with the reason for each; the ledger is broken or cannot be written.
    """
    runs: list[targets.StartedRun] = []
    if wanted and (place := wanted[0].place):
        for name in place.studies:
            runs += targets.started_runs(StudyFolder(lab, name), place.counting)
    forecasts, left_out, warnings = [], dict(left_out or {}), list(assessment.warnings)
    if why := assessment.form_error.test.why:
        warnings.append(f"intervals assume that the form is right: {why} for a back-test")
    for target in wanted:
        try:
            _refuse_known(target, assessment.points, source, runs)
            predicted = predict(assessment, target.at, target.seeds)
        except BadInput as error:
            left_out[target.words] = "; ".join(map(str, error.problems))
            continue
        forecasts.append(_forecast(source, assessment, target, predicted))
        if (found := predicted.verdict).verdict != IDENTIFIED:
            said = f"the loss is {found.verdict} ({found.reason}); the forecast is sealed with this verdict"
            warnings.append(f"{target.words}: {said}")
    if not forecasts:
        raise BadInput(*(f"{words}: {why}" for words, why in left_out.items()))
    return Sealed(append(ledger, forecasts), left_out, tuple(dict.fromkeys(warnings)))


def _refuse_known(
    target: targets.Target, points: Points, source: Source, runs: Sequence[targets.StartedRun]
) -> None:
    if started := [run for run in runs if targets.same_point(run.at, target.at)]:
        raise BadInput(f"{targets.started_in_words(started)}; a forecast must be made before its run starts")
    known = targets.rows_at(points, target.at)
    if known.size and (target.place is None or set(target.place.studies) & set(source.names)):
        loss = points.columns["loss"][known[0]]
        raise BadInput(f"{source.names[0]} has its loss already, {loss:.4g}; a forecast must be made before")


def _forecast(
    source: Source, assessment: Assessment, target: targets.Target, predicted: Prediction
) -> dict[str, Any]:
    """Return the sealed content of one forecast, as plain values."""
    points, fit, place = assessment.points, assessment.fit, target.place
    said = {each.quantity.name: each for each in assessment.estimates}
    largest = {role: float(points.columns[role].max()) for role in COUNTS if role in points.columns}
    delta = fit.rows.delta
    return {
        "version": VERSION,
        "source": asdict(source),
        "run": {
            "studies": dict(place.studies) if place else {},
            "counting": asdict(place.counting) if place else None,
            "cells": list(target.cells),
            "seeds": target.seeds,
        },
        "at": dict(target.at),
        "beyond": {role: target.at[role] / most for role, most in largest.items() if role in target.at},
        "predicted": asdict(predicted) | {"method": METHOD},
        "naive": {name: asdict(each) for name, each in naive_forecasts(points, target.at).items()},
        "fit": {
            "law": fit.law.name,
            "formula": fit.law.formula,
            "parameters": {name: value for name, value in fit.minimizer().items() if said[name].identified},
            "form": {"status": assessment.misfit.status, "sentences": list(assessment.misfit.sentences)},
            "verdicts": {name: each.verdict.verdict for name, each in said.items()},
            "delta": assessment.delta,
            "delta_log_units": delta if math.isfinite(delta) else None,
            "objective": fit.objective,
            "sigma": fit.sigma,
            "warnings": list(assessment.warnings),
        },
        "data": {
            "digest": targets.data_digest(points),
            "n_points": points.n,
            "dropped": dict(points.dropped),
            "conventions": dict(points.conventions),
            # A file has no times of its own: digests of its rows record what was in it.
            "rows": sorted(targets.row_marks(points)) if not place else None,
        },
        # The commit, and whether it is dirty, where the code lies in a repository of its own.
        "code": {"sweeplab": SWEEPLAB, **(git_of_code() or {"commit": None, "dirty": None})},
    }
