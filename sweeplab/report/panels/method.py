"""How a law was fitted, in words: what stands folded below its figures."""

from __future__ import annotations

import math

import numpy as np

from sweeplab.analysis.fit.assessment import Assessment
from sweeplab.analysis.fit.intervals import LEVEL, correlations
from sweeplab.report.words import written

_FITTED = (
    "The sum of Huber losses of the log residuals is least at these numbers (log-sum-exp form and analytic "
    "derivatives, Levenberg-Marquardt); Hoffmann et al. 2022 fit so, with delta 1e-3."
)
_INTERVALS = (
    f"An interval holds the values at which the law, held to them, fits not much worse: a {LEVEL:.0%} profile, with "
    "the F distribution in place of chi-squared, which is too narrow for few rows. The bootstrap stands beside it."
)
_VERDICTS = (
    "A number is identified if the design can tell it (decades of N and D, spread of D/N, points near the optimum) "
    "and its interval is narrow. A number that is not identified is not shown."
)


def about_fit(found: Assessment) -> tuple[tuple[str, str], ...]:
    """Return the method of a fit as headed paragraphs: formula, source, objective, conventions, rows left out."""
    fit, law = found.fit, found.fit.law
    delta = "least squares" if math.isinf(fit.rows.delta) else f"delta {written(fit.rows.delta)} in log units"
    asked = f" ({found.delta})" if found.delta in ("auto",) else ""
    said = [
        ("Law", f"{law.name}: {law.formula}"),
        ("Source", f"{law.source}. Departures: {law.departures}."),
        (
            "Objective",
            f"{_FITTED} Here {delta}{asked}, sum {written(fit.objective)}; residuals of {fit.sigma:.2%}; "
            f"{fit.n_reached} of {fit.n_starts} starts reached this optimum.",
        ),
        ("Intervals", f"{_INTERVALS} {_shared(found)}"),
        ("Verdicts", _VERDICTS),
        ("Correlation", _strongest(found)),
        ("Conventions", "; ".join(f"{name}: {what}" for name, what in found.points.conventions.items())),
        ("Rows", _rows(found)),
    ]
    return tuple((name, words) for name, words in said if words)


def _rows(found: Assessment) -> str:
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in found.points.dropped.items())
    return f"{found.fit.n_points:,} fitted; left out: {dropped or 'none'}"


def _shared(found: Assessment) -> str:
    if found.shared is None:
        return "Rows are taken as independent."
    return (
        f"Rows of one group ({found.grouped_by}; {found.shared.n_groups} groups) may share an error: "
        f"{found.shared.share:.0%} of the variance."
    )


def _strongest(found: Assessment) -> str:
    matrix, names = np.tril(correlations(found.fit), -1), found.fit.law.parameters
    at = np.unravel_index(np.abs(matrix).argmax(), matrix.shape)
    return f"the closest pair of parameters is {names[at[1]]} and {names[at[0]]}, at {matrix[at]:.2f}"
