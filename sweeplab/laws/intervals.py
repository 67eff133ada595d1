"""What intervals of all numbers have in common: their level, and two textbook quantiles."""

from __future__ import annotations

LEVEL = 0.9


def student(freedom: float, level: float = LEVEL) -> float:
    """Return the half width of a two-sided Student's t interval, in standard deviations."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + level) / 2))


def share_interval(hits: int, n: int) -> tuple[float, float]:
    """Return the interval at LEVEL of a share, seen as `hits` of `n` (Clopper and Pearson 1934)."""
    from scipy.special import betaincinv

    tail = (1 - LEVEL) / 2
    low = float(betaincinv(hits, n - hits + 1, tail)) if hits else 0.0
    high = float(betaincinv(hits + 1, n - hits, 1 - tail)) if hits < n else 1.0
    return low, high
