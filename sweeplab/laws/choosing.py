"""Choose the law of a table by the sizes that vary, and the rows of one depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sweeplab.formatting import listed, short
from sweeplab.laws.backtest import suited
from sweeplab.laws.columns import SHAPE
from sweeplab.laws.forms import LAWS, Array, Law
from sweeplab.laws.points import DECADES, SPREAD, UNLIKE, Points, design, path_of

_ALONE = {"params": "power-n", "tokens": "power-d"}
FEWEST_OF_FAMILY = 6  # sizes of one depth
MOST_OF_FAMILY = (0.6, 0.7)  # the least shares that one depth has, of the rows and of the range of log params
_ALIKE = 0.1  # sd of log(n_embd / n_layer): one family


@dataclass(frozen=True)
class LawChoice:
    """The law of a table, and why.

    `doubt` is why what follows from N in such a law is weak at best, and `family` the shapes along which any law of the
    table holds.
    """

    law: Law
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

    The rows are those that a fit of the first takes: along one depth.
    """
    laws = [first, *(others or ())]
    if any("params" in law.columns for law in laws):
        points = along_family(points)
    if others is None:
        laws += [law for law in suited(points) if law != first]
    return points, laws


def law_of_counts(points: Points) -> Law:
    """Return the law of N, of D or of both that suits a table: of params where tokens follow them."""
    differs = "params" if path_of(points) else " ".join(points.varied & {"params", "tokens"})
    return LAWS[_ALONE.get(differs, "chinchilla")]


def choice_of(points: Points) -> LawChoice:
    """Return the law of a table: of the sizes that vary, and of params where tokens follow them."""
    law = law_of_counts(points)
    if "params" not in law.columns or not set(SHAPE) <= points.sizes.keys():
        return LawChoice(law)
    return _family(points, law)


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
        return LawChoice(law, family=f"one family of shapes: {family} in all rows")
    aspect = embd / layer
    ends = f"n_embd / n_layer is {short(float(aspect.min()))} to {short(float(aspect.max()))}"
    if design(points, SHAPE)[UNLIKE] < SPREAD:
        return LawChoice(law, family=f"the line of shapes in the table: {ends}")
    why = f"the shapes are unlike ({ends}): at equal parameters the loss differs"
    return LawChoice(law, (why,), why)
