"""The loss that a law predicts for a run: draws of its bent form, of the run's noise, and of what its values cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from sweeplab.errors import BadInput
from sweeplab.laws.assessment import Assessment, Verdict
from sweeplab.laws.core import Array
from sweeplab.laws.forms import loss_at
from sweeplab.laws.points import path_of

INTERVAL_ONLY = "interval only"


@dataclass(frozen=True)
class Regret:
    """The expected excess of a run's log loss over that of the best values.

    `error` is due to the best values' not being known exactly, `known` to values that are meant to lie off them.
    """

    error: float = 0.0
    known: float = 0.0

    @property
    def mean(self) -> float:
        """Return the expected excess."""
        return self.error + self.known

    def draws(self, random: np.random.Generator, count: int) -> Array:
        """Return draws of the excess, [count].

        The excess is quadratic in the errors of the values. It is taken for the square of one error, whose tail is the
        longest.
        """
        errors = random.standard_normal(count)
        return np.asarray((math.sqrt(self.known) + math.sqrt(self.error) * errors) ** 2)


NO_REGRET = Regret()


@dataclass(frozen=True)
class Forecast:
    """The loss that a law predicts for a run, with its 90% prediction interval, which the verdict judges.

    `regret` is the part of the log loss that the run's values are expected to cost. A loss that is no number of a law
    has the verdict INTERVAL_ONLY.
    """

    loss: float
    low: float
    high: float
    verdict: Verdict
    regret: float = 0.0


def predict(
    assessment: Assessment, at: Mapping[str, float], seeds: int = 1, regret: Regret = NO_REGRET
) -> Forecast:
    """Predict the mean loss of `seeds` runs at a point {"params": …, "tokens": …}.

    A law is of tuned losses; `regret` is by how much the runs' values are expected to miss them.

    Raises:
        BadInput: the point lacks a column that the law uses, or it lies off the path that the law holds along.
    """
    points, law, fit = assessment.points, assessment.law, assessment.fit
    missing = [name for name in law.columns if name not in at]
    if missing:
        raise BadInput(f"{law.name} needs {' and '.join(missing)} too")
    quantity, path = loss_at(law, at), path_of(points)
    if path and len(law.columns) == 1 and path.misses(at):
        why = f"the law holds along one path, {path.words}, and this run lies off it"
        raise BadInput(f"{quantity.meaning} cannot be forecast: {why}")
    random = np.random.default_rng(2)
    # The mean of several seeds is less noisy only up to the number of seeds of the table's rows.
    few = min(float(seeds), float(np.median(points.weights)))
    noise = fit.errors(random, at, few)
    value, low, high = assessment.ends(quantity, noise + regret.draws(random, len(noise)))
    loss = value + regret.mean
    verdict = assessment.judged(quantity, loss, low, high)
    if not verdict.identified:
        verdict = replace(verdict, verdict=INTERVAL_ONLY)
    return Forecast(math.exp(loss), math.exp(low), math.exp(high), verdict, regret.mean)
