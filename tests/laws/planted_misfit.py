"""Tables whose law is wrong in a known way: an interaction of N and D, powers that break, a third term, and a floor."""

import numpy as np
from laws.planted_laws import TRUTHS, losses

from sweeplab.laws.points import EACH, Points


def _interaction(size, truth, n, d, x, y):
    return losses(truth, n, d) * np.exp(size * x * y / 10)


def _broken(params, tokens):
    """Return the losses of powers whose exponents grow by `size` within a factor 3 of the middle of the table."""

    def losses_of(size, truth, n, d, x, y):
        bend_n, bend_d = (
            ((1 + np.exp(2 * z)) / 2) ** (-size * there / 2)
            for z, there in ((x, params), (y, tokens))
        )
        of_n, of_d = truth["A"] / n ** truth["alpha"], truth["B"] / d ** truth["beta"]
        return truth["E"] + of_n * bend_n + of_d * bend_d

    return losses_of


def _third_term(size, truth, n, d, x, y):
    """A loss that falls by `size` / 2 within the table, as where an ability is learned."""
    return losses(truth, n, d) + size / 2 / (1 + np.exp((x + y) / 2))


def _late_saturation(size, truth, n, d, x, y):
    """Gains that slow down beyond the middle of the table, as where a text runs out of news."""
    return losses(truth, n, d) * np.exp(size / 10 * np.log1p(np.exp(x + y - 2)))


WRONG = {
    "interaction": _interaction,
    "interaction, helpful": lambda size, *rest: _interaction(-size, *rest),
    "broken power of D": _broken(False, True),
    "broken powers of N and D": _broken(True, True),
    "broken power of N": _broken(True, False),
    "third term": _third_term,
    "late saturation": _late_saturation,
}
# The sizes, of 30 points, at which the fitted law is about 5% of the loss off at ten times the largest compute.
FIVE_PERCENT = {
    "interaction": 0.098,
    "interaction, helpful": 0.15,
    "broken power of D": 0.35,
    "broken powers of N and D": 0.077,
    "broken power of N": 0.1,
    "third term": 1.6,
    "late saturation": 0.415,
}


def wrong_losses(truth, kind, size, where):
    """Return a truth that departs from chinchilla about the middle of a design."""
    middle = [np.log(each).mean() for each in where]
    return lambda n, d: WRONG[kind](
        size, TRUTHS[truth], n, d, np.log(n) - middle[0], np.log(d) - middle[1]
    )


def wrong_table(truth, kind, size, where, noise, random):
    """Return a table of such a truth with log-normal errors."""
    n, d = where
    loss = wrong_losses(truth, kind, size, where)(n, d) * np.exp(
        noise * random.standard_normal(len(n))
    )
    return Points(
        {"params": n, "tokens": d, "flops": 6 * n * d, "loss": loss},
        np.ones(len(n)),
        tuned=EACH,
    )
