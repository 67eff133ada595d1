"""Choose the law of a table by the sizes that vary, and the rows of one depth."""

from __future__ import annotations

import numpy as np

from sweeplab.formatting import listed, short
from sweeplab.laws.columns import SHAPE
from sweeplab.laws.core import Array
from sweeplab.laws.forms import LAWS, Law
from sweeplab.laws.points import DECADES, SPREAD, UNLIKE, Points, design, path_of

_ALONE = {"params": "power-n", "tokens": "power-d"}
FEWEST_OF_FAMILY = 6  # sizes of one depth
MOST_OF_FAMILY = (0.6, 0.7)  # the least shares that one depth has, of the rows and of the range of log params
_ALIKE = 0.1  # sd of log(n_embd / n_layer): one family


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


def law_of_counts(points: Points) -> Law:
    """Return the law of N, of D or of both that suits a table: of params where tokens follow them."""
    differs = "params" if path_of(points) else " ".join(points.varied & {"params", "tokens"})
    return LAWS[_ALONE.get(differs, "chinchilla")]


def family_of(layer: Array, embd: Array) -> str:
    """Return what all shapes of a family have in common, such as "n_layer 2"; "" if they are of no family.

    `layer` and `embd` are the values of n_layer and n_embd, [n].
    """
    for column, words in ((layer, "n_layer {}"), (embd, "n_embd {}"), (embd / layer, "n_embd / n_layer {}")):
        if np.log(column).std() < _ALIKE:
            return words.format(short(float(np.exp(np.log(column).mean()))))
    return ""


def family_words(points: Points, law: Law) -> str:
    """Return along which shapes a law of N holds; empty if the table does not tell, or its shapes are of no family."""
    if "params" not in law.columns or not set(SHAPE) <= points.sizes.keys():
        return ""
    layer, embd = (points.sizes[name] for name in SHAPE)
    if family := family_of(layer, embd):
        return f"{law.name} holds along one family of shapes: {family} in all rows"
    if design(points, SHAPE)[UNLIKE] < SPREAD:
        aspect = embd / layer
        ends = f"{short(float(aspect.min()))} to {short(float(aspect.max()))}"
        return f"{law.name} holds along the line of shapes in the table: n_embd / n_layer is {ends}"
    return ""
