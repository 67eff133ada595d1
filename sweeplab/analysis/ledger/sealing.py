"""Seal forecasts of runs from a law and a table, and the checks before a forecast is sealed.

A table that is too small for a back-test gets a warning.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sweeplab.analysis.ledger import targets
from sweeplab.analysis.ledger.chain import Entry, append
from sweeplab.analysis.ledger.outcomes import VERSION
from sweeplab.errors import BadInput
from sweeplab.lab.listing import study_names
from sweeplab.laws.assessment import Assessment
from sweeplab.laws.columns import COUNTS
from sweeplab.laws.estimation.verdicts import IDENTIFIED
from sweeplab.laws.forecasts import METHOD, Prediction, naive_forecasts, predict
from sweeplab.laws.points import Points
from sweeplab.records.folders import StudyFolder
from sweeplab.tracking.environment import git_of_code
from sweeplab.version import VERSION as SWEEPLAB


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
    runs = _started(lab, wanted[0]) if wanted else []
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


def _started(lab: Path, target: targets.Target) -> list[targets.StartedRun]:
    """Return the runs that have started in the studies of a target, and in all others of the lab with its text."""
    if target.place is None:
        return []
    runs = []
    for name in dict.fromkeys([*target.place.studies, *(study_names(lab) if target.settings else ())]):
        folder = StudyFolder(lab, name)
        is_own = name in target.place.studies
        if is_own or (folder.data_file.exists() and folder.data.text_digest == target.text):
            started = targets.started_runs(folder, target.place.counting)
            runs += (
                started
                if is_own
                else [replace(run, key=f"{name}/{run.key}", is_own=False) for run in started]
            )
    return runs


def _refuse_known(
    target: targets.Target, points: Points, source: Source, runs: Sequence[targets.StartedRun]
) -> None:
    started = [
        run
        for run in runs
        if targets.same_point(run.at, target.at)
        and (run.is_own or target.settings.items() <= run.values.items())
    ]
    if started:
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
