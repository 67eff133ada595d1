"""Whether forecasts say how far they may be believed: coverage by level and PIT values, over all that are scored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sweeplab.analysis.columns import Array
from sweeplab.analysis.fit.intervals import LEVEL
from sweeplab.analysis.ledger.outcomes import Outcome
from sweeplab.analysis.ledger.scoring import LAST_POINT, LAW, LOG_LINE

LEVELS = (0.5, 0.8, 0.9, 0.95)
_SURE = 0.9  # the level of the interval about a share


@dataclass(frozen=True)
class Coverage:
    """How many outcomes were inside of the central intervals of one level.

    `low` and `high` bound the share that forecasts like these would reach (Clopper and Pearson 1934, 90%).
    """

    level: float
    covered: int
    n: int
    low: float
    high: float

    @property
    def share(self) -> float:
        """Return the part of the outcomes that was inside."""
        return self.covered / self.n

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self) | {"share": self.share}


@dataclass(frozen=True)
class Skill:
    """The mean CRPS of the law and of a naive forecaster, over the forecasts that have both, in log units."""

    n: int
    law: float
    naive: float

    @property
    def ratio(self) -> float | None:
        """Return the law's part of the naive CRPS: under 1 the law is the better forecaster."""
        return self.law / self.naive if self.naive > 0 else None


@dataclass(frozen=True)
class Calibration:
    """All scored forecasts together; `pit` has the probability of less than the outcome, a value a forecast.

    `by_verdict` has the coverage of those intervals that were sealed. Forecasts of one run, or from one fit, err
    together: `n_runs` and `n_fits` say how many there are of each.
    """

    n: int
    n_runs: int
    n_fits: int
    coverage: tuple[Coverage, ...]
    by_verdict: Mapping[str, Coverage]
    pit: tuple[float, ...]
    skill: Mapping[str, Skill]

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "n": self.n,
            "n_runs": self.n_runs,
            "n_fits": self.n_fits,
            "coverage": [each.as_dict() for each in self.coverage],
            "by_verdict": {verdict: each.as_dict() for verdict, each in self.by_verdict.items()},
            "pit": list(self.pit),
            "crps": {name: asdict(each) | {"ratio": each.ratio} for name, each in self.skill.items()},
        }


def calibrate(outcomes: Iterable[Outcome]) -> Calibration:
    """Return the calibration of those outcomes that have a score; without any, it has no coverage."""
    scored = [(each.entry.forecast, each.score) for each in outcomes if each.score]
    pit = np.array([score.pit for _, score in scored])
    runs = {
        (*(said["run"]["studies"] or said["source"]["names"]), *sorted(said["at"].items()))
        for said, _ in scored
    }
    fits = {(said["data"]["digest"], said["fit"]["law"], said["fit"]["delta"]) for said, _ in scored}
    verdicts = [said["predicted"]["verdict"]["verdict"] for said, _ in scored]
    skill = {}
    for name in (LAST_POINT, LOG_LINE):
        both = [score.crps for _, score in scored if name in score.crps]
        if both:
            means = [float(np.mean([each[who] for each in both])) for who in (LAW, name)]
            skill[name] = Skill(len(both), *means)
    return Calibration(
        n=len(scored),
        n_runs=len(runs),
        n_fits=len(fits),
        coverage=tuple(_coverage(level, pit) for level in LEVELS) if scored else (),
        by_verdict={
            verdict: _coverage(LEVEL, pit[[each == verdict for each in verdicts]])
            for verdict in dict.fromkeys(verdicts)
        },
        pit=tuple(map(float, pit)),
        skill=skill,
    )


def _coverage(level: float, pit: Array) -> Coverage:
    from scipy.stats import beta

    n, covered = len(pit), int((np.abs(2 * pit - 1) <= level).sum())
    tail = (1 - _SURE) / 2
    low = float(beta.ppf(tail, covered, n - covered + 1)) if covered else 0.0
    high = float(beta.ppf(1 - tail, covered + 1, n - covered)) if covered < n else 1.0
    return Coverage(level, covered, n, low, high)
