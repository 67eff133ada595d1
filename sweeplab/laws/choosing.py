"""Choose the law of a table: by the sizes that vary, and between N and the shape by forecasts of larger runs.

A law of width and depth is chosen over one of N if it predicts the larger runs of a back-test better, and if the law of
N, were it right, would rarely be outdone as far by noise: in those predictions, or in the fit to all rows. The second
is the parametric bootstrap of a ratio of two fits (Cox 1961, Tests of separate families of hypotheses; Williams 1970):
few cells, of which two or three are held out, show a difference in it that their forecasts cannot.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sweeplab.formatting import listed, short
from sweeplab.laws.backtest import BY_CHANCE, Race, fit_chance, of_shapes, race, suited
from sweeplab.laws.columns import SHAPE
from sweeplab.laws.forms import LAWS, Array, Law
from sweeplab.laws.points import DECADES, SPREAD, UNLIKE, Points, design, path_of

_ALONE = {"params": "power-n", "tokens": "power-d"}
FEWEST_OF_FAMILY = 6  # sizes of one depth
MOST_OF_FAMILY = (0.6, 0.7)  # the least shares that one depth has, of the rows and of the range of log params
_ALIKE = 0.1  # sd of log(n_embd / n_layer): one family


@dataclass(frozen=True)
class LawChoice:
    """The law of a table, why, and the laws of shapes that it was compared with.

    `of_sizes` is the law without the shape; `doubt` is why what follows from N in such a law is weak at best, and
    `family` the shapes along which any law of the table holds.
    """

    law: Law
    of_sizes: Law
    says: tuple[str, ...] = ()
    doubt: str = ""
    family: str = ""

    def reasons(self, law: Law) -> tuple[str, ...]:
        """Return why the law was chosen, and along which shapes the one that was fitted holds."""
        if not self.family:
            return self.says
        return (*self.says, f"{law.name} holds along {self.family}")

    def doubt_of(self, law: Law) -> str:
        """Return the doubt where a law is one of N."""
        if "params" in law.columns:
            return self.doubt
        return ""


def along_family(points: Points) -> Points:
    """Return the rows of one depth, where most of a table's sizes have it, with a few others beside; else all rows.

    The loss at equal parameters depends on depth and width: the others would count as noise, or as a bend. Where depth
    grows with the size, the sizes are a family themselves.
    """
    depth = points.sizes.get("n_layer")
    if depth is None or len(np.unique(depth)) < 2:
        return points
    depths, counts = np.unique(depth, return_counts=True)
    most = float(depths[np.argmax(counts)])
    every = np.log10(points.columns["params"])
    params = every[depth == most]
    enough = len(np.unique(params.round(3))) >= FEWEST_OF_FAMILY and np.ptp(params) >= DECADES["params"]
    if (
        not enough
        or len(params) < MOST_OF_FAMILY[0] * points.n
        or np.ptp(params) < MOST_OF_FAMILY[1] * np.ptp(every)
    ):
        return points
    others = listed([f"{other:g}" for other in depths if other != most])
    return points.only(depth == most).left_out(
        f"of another depth (n_layer {others}): at equal parameters the loss differs",
        int((depth != most).sum()),
    )


def compared(points: Points, first: Law, others: Sequence[Law] | None = None) -> tuple[Points, list[Law]]:
    """Return the rows and the laws to compare with a first one; without `others`, all that suit these rows.

    The rows are those that a fit of the first takes: along one depth, unless a law of the shape is among the laws.
    """
    laws = [first, *(others or ())]
    if any("params" in law.columns for law in laws) and not any(law.reads_shape for law in laws):
        points = along_family(points)
    if others is None:
        laws += [law for law in suited(points) if law != first]
    return points, laws


def law_of_shape(points: Points) -> Law | None:
    """Return the law of the shape that suits a table best, even if one of N predicts as well; None if none does."""
    chosen, laws = choice_of(points).law, of_shapes(points)
    if chosen in laws or not laws:
        if laws:
            return chosen
        return None
    raced = race(points, laws)
    best = min(
        raced.fits,
        key=lambda name: (raced.errors.get(name, math.inf), raced.fits[name].sigma),
        default=laws[0].name,
    )
    return LAWS[best]


def law_of_counts(points: Points) -> Law:
    """Return the law of N, of D or of both that suits a table: of params where tokens follow them."""
    differs = "params" if path_of(points) else " ".join(points.varied & {"params", "tokens"})
    return LAWS[_ALONE.get(differs, "chinchilla")]


@lru_cache(maxsize=16)
def choice_of(points: Points) -> LawChoice:
    """Return the law of a table: of params where tokens follow them, and of the shape where it predicts better."""
    law, laws = law_of_counts(points), of_shapes(points)
    if "params" not in law.columns or not set(SHAPE) <= points.sizes.keys():
        return LawChoice(law, law)
    if not laws:
        return _family(points, law)
    raced = race(points, [law, *laws])
    names = listed([other.name for other in laws])
    if raced.why:
        why = f"{names} cannot be compared with {law.name} by their predictions of larger runs: {raced.why}"
        return LawChoice(law, law, (why,), f"the shapes are unlike, and {why}")
    chances = _chances(points, raced)
    chosen = _best(raced, chances)
    off = "off by, of the loss (residuals of all rows): " + listed(
        [f"{name} {error:.2%} ({raced.fits[name].sigma:.2%})" for name, error in raced.errors.items()]
    )
    if chosen is None:
        seen = [name for name, (_, by_fit) in chances.items() if by_fit <= _limit(chances)]
        doubt = ""
        if seen:
            doubt = f"the rows are fitted better by {listed(seen)}: the exponent depends on the shape"
        why = f"{names} do not predict larger runs better than {law.name} by more than noise"
        return LawChoice(law, law, (f"{why}; {off}",), doubt)
    by_lead, by_fit = chances[chosen]
    what = "such a lead" if by_lead <= by_fit else "such a fit"
    says = [
        f"{chosen} is chosen: it predicts larger runs better than {law.name}; {off}; if "
        f"{law.name} were right, noise would give {what} in {min(by_lead, by_fit):.1%} of tables"
    ]
    for other in laws:
        if other.name != chosen and other.name in raced.fits:
            against = race(points, [other, LAWS[chosen]])
            is_worse = _best(against, _chances(points, against)) == chosen
            says.append(f"{other.name} is {'' if is_worse else 'not '}distinguished from it")
    return LawChoice(
        LAWS[chosen],
        law,
        tuple(says),
        f"{chosen} predicts larger runs better: the exponent depends on the shape",
    )


def _chances(points: Points, raced: Race) -> dict[str, tuple[float, float]]:
    """How often noise alone would give a challenger's lead over the first law, and how often its fit."""
    first, *others = raced.fits.values()
    return {
        fit.law.name: (raced.leads[fit.law.name].chance or 1.0, fit_chance(points, first, fit))
        for fit in others
        if fit.law.name in raced.leads
    }


def _limit(chances: dict[str, tuple[float, float]]) -> float:
    """The chance below which one of two numbers of each challenger is no noise (Bonferroni)."""
    return BY_CHANCE / (2 * len(chances))


def _best(raced: Race, chances: dict[str, tuple[float, float]]) -> str | None:
    """The challenger that predicts best among those ahead of the first law by more than noise."""
    sure = [name for name, both in chances.items() if min(both) <= _limit(chances)]
    ahead = [name for name in sure if raced.leads[name].value > 0]
    return max(ahead, key=lambda name: raced.leads[name].value, default=None)


def family_of(layer: Array, embd: Array) -> str:
    """Return what all shapes of a family have in common, such as "n_layer 2"; "" if they are of no family.

    `layer` and `embd` are the values of n_layer and n_embd, [n].
    """
    for column, words in ((layer, "n_layer {}"), (embd, "n_embd {}"), (embd / layer, "n_embd / n_layer {}")):
        if np.log(column).std() < _ALIKE:
            return words.format(short(float(np.exp(np.log(column).mean()))))
    return ""


def _family(points: Points, law: Law) -> LawChoice:
    """The family of shapes along which a law of N holds, where the table has one; else why its exponent is in doubt."""
    layer, embd = (points.sizes[name] for name in SHAPE)
    if family := family_of(layer, embd):
        return LawChoice(law, law, family=f"one family of shapes: {family} in all rows")
    aspect = embd / layer
    ends = f"n_embd / n_layer is {short(float(aspect.min()))} to {short(float(aspect.max()))}"
    if design(points, SHAPE)[UNLIKE] < SPREAD:
        return LawChoice(law, law, family=f"the line of shapes in the table: {ends}")
    why = f"the shapes are unlike ({ends}), with too few values of n_layer or n_embd for a law of both"
    return LawChoice(law, law, (why,), why)
