"""From a law and a table to sealed forecasts: what is said, and what is refused before it is said."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeplab.analysis.fit.assessment import Assessment
from sweeplab.analysis.fit.verdicts import IDENTIFIED
from sweeplab.analysis.ledger.begun import BegunRun, begun_in_words, begun_runs, runs_at
from sweeplab.analysis.ledger.chain import Entry, append
from sweeplab.analysis.ledger.digest import code_version, data_digest, row_marks
from sweeplab.analysis.ledger.outcomes import VERSION
from sweeplab.analysis.ledger.prediction import Prediction, naive_forecasts, predict
from sweeplab.analysis.ledger.sizes import SIZES, Counting, rows_at
from sweeplab.analysis.ledger.targets import CellTargets, Target
from sweeplab.analysis.points import Points
from sweeplab.errors import BadInput

if TYPE_CHECKING:
    from sweeplab.records.folders import StudyFolder


@dataclass(frozen=True)
class Source:
    """Where the points come from: the names of studies or that of a file, and how it was counted."""

    names: tuple[str, ...]
    is_file: bool
    counting: Counting


@dataclass(frozen=True)
class Sealed:
    """What was sealed, and what was not, by the reason."""

    entries: tuple[Entry, ...]
    left_out: Mapping[str, str]
    warnings: tuple[str, ...]


def seal(
    ledger: Path,
    source: Source,
    assessment: Assessment,
    asked: CellTargets,
    folders: Sequence[StudyFolder] = (),
) -> Sealed:
    """Seal a forecast of every target but those that have begun, or that the law cannot forecast.

    `folders` are those of the studies in which the runs will be, as far as these have been run.

    Raises:
        BadInput: no target is left, with the reason for each; the ledger is broken or cannot be written.
    """
    place = asked.targets[0].place if asked.targets else None
    runs = [run for folder in folders for run in begun_runs(folder, place.counting)] if place else []
    forecasts, left_out, warnings = [], dict(asked.left_out), list(assessment.warnings)
    for target in asked.targets:
        try:
            _refuse_known(target, assessment.points, source, runs)
            predicted = predict(assessment.points, assessment.fit, assessment.shared, target.at, target.seeds)
        except BadInput as error:
            left_out[target.words] = "; ".join(map(str, error.problems))
            continue
        forecasts.append(_forecast(source, assessment, target, predicted))
        if predicted.verdict.verdict != IDENTIFIED:
            warnings.append(
                f"{target.words}: the loss is {predicted.verdict.verdict} ({predicted.verdict.reason}); "
                "the forecast is sealed with this verdict"
            )
    if not forecasts:
        raise BadInput(*(f"{words}: {why}" for words, why in left_out.items()))
    return Sealed(append(ledger, forecasts), left_out, tuple(dict.fromkeys(warnings)))


def _refuse_known(target: Target, points: Points, source: Source, runs: Sequence[BegunRun]) -> None:
    if begun := runs_at(runs, target.at):
        raise BadInput(f"{begun_in_words(begun)}; a forecast is made before its run exists")
    known = rows_at(points, target.at)
    if known.size and (target.place is None or set(target.place.studies) & set(source.names)):
        loss = points.columns["loss"][known[0]]
        raise BadInput(f"{source.names[0]} has its loss already, {loss:.4g}; a forecast is made before")


def _forecast(
    source: Source, assessment: Assessment, target: Target, predicted: Prediction
) -> dict[str, Any]:
    """Return all that is sealed of one forecast, as plain values."""
    points, fit, place = assessment.points, assessment.fit, target.place
    largest = {role: float(points.columns[role].max()) for role in SIZES if role in points.columns}
    delta = fit.rows.delta
    return {
        "version": VERSION,
        "source": {
            "names": list(source.names),
            "is_file": source.is_file,
            "counting": _counting(source.counting),
        },
        "run": {
            "studies": dict(place.studies) if place else {},
            "counting": _counting(place.counting) if place else None,
            "cells": list(target.cells),
            "seeds": target.seeds,
        },
        "at": dict(target.at),
        "beyond": {role: target.at[role] / most for role, most in largest.items() if role in target.at},
        "predicted": predicted.as_dict(),
        "naive": {name: each.as_dict() for name, each in naive_forecasts(points, target.at).items()},
        "fit": {
            "law": fit.law.name,
            "formula": fit.law.formula,
            "parameters": fit.minimizer(),
            "verdicts": {each.quantity.name: each.verdict.verdict for each in assessment.estimates},
            "delta": assessment.delta,
            "delta_log_units": delta if math.isfinite(delta) else None,
            "objective": fit.objective,
            "sigma": fit.sigma,
            "warnings": list(assessment.warnings),
        },
        "data": {
            "digest": data_digest(points),
            "n_points": points.n,
            "dropped": dict(points.dropped),
            "conventions": dict(points.conventions),
            # A file has no times of its own: its rows say what was in it.
            "rows": sorted(row_marks(points)) if not place else None,
        },
        "code": code_version(),
    }


def _counting(counting: Counting) -> dict[str, dict[str, str]]:
    return {"conventions": asdict(counting.conventions), "columns": dict(counting.columns)}
