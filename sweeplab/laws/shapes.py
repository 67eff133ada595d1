"""Depth against width: the shapes of a table, those that no other beats, and what a law of them says.

The law is that of the shape which predicts larger runs best, whether or not one of N alone predicts as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sweeplab.errors import BadInput
from sweeplab.formatting import rounded, span
from sweeplab.laws.assessment import Assessment, assess
from sweeplab.laws.choosing import choice_of, law_of_shape
from sweeplab.laws.columns import SHAPE
from sweeplab.laws.evidence import Evidence
from sweeplab.laws.points import Points
from sweeplab.laws.shape import BEST_EMBD, BEST_LAYER, DEPTH, WORST

if TYPE_CHECKING:
    from pandas import DataFrame

_FLAT = 0.01  # of the loss: shapes that differ by less are called flat
NO_LAW = "the effect of depth or width at equal parameters is not identified: {}"


@dataclass(frozen=True)
class Shapes:
    """The shapes of a table, a row per point in `cells`, and the law fitted to them; None, and why, if none."""

    points: Points
    cells: DataFrame
    assessment: Assessment | None
    why: str

    @property
    def says(self) -> list[str]:
        """Return what the law says of shapes at equal parameters."""
        if self.assessment is None:
            return [NO_LAW.format(self.why)]
        return _says(self.assessment.as_dict()["derived"], self.assessment.evidence)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values: those of the assessment, `cells`, those on the `frontier`, and what it `says`."""
        best = self.cells[self.cells["on_frontier"]].sort_values(["tokens", "params"])
        empty: dict[str, Any] = {"law": None, "n_points": self.points.n, "parameters": {}, "derived": {}}
        empty |= {"choice": [], "warnings": []}
        fitted = self.assessment.as_dict() if self.assessment else empty
        evidence = self.assessment and self.assessment.evidence
        return fitted | {
            "n_shapes": len(self.cells[[*SHAPE]].drop_duplicates()),
            "says": self.says,
            "evidence": evidence and asdict(evidence),
            "cells": self.cells.to_dict("records"),
            "frontier": best.to_dict("records"),
            "conventions": self.points.conventions,
            "dropped": self.points.dropped,
        }


def shapes_of(
    points: Points, params: float | None = None, say: Callable[[str], None] = lambda text: None
) -> Shapes:
    """Return the shapes of a table and their law; the best shape is that at `params`, by default the mean log size.

    Raises:
        BadInput: the table has no n_layer, n_embd or params, or no row has both.
    """
    missing = [name for name in (*SHAPE, "params") if name not in {*points.shape, *points.columns}]
    if missing:
        raise BadInput(f"the shape needs {' and '.join(missing)}, which the table lacks")
    known = np.asarray(np.isfinite([points.shape[name] for name in SHAPE]).all(0), np.bool_)
    if not known.all():
        points = points.only(known).left_out("without a shape", int((~known).sum()))
    if not points.n:
        raise BadInput("no row has both n_layer and n_embd")
    assessment, why = None, ""
    try:
        law = law_of_shape(points)
        if law:
            target = {"params": params} if params else None
            assessment = assess(points, law, target=target, others=("auto",), say=say)
        else:
            choice = choice_of(points)
            why = "; ".join(choice.reasons(choice.law))
    except BadInput as refused:
        why = "; ".join(map(str, refused.problems))
    return Shapes(points, cells_of(points), assessment, why)


def cells_of(points: Points) -> DataFrame:
    """Return a row for every point: name, n_layer, n_embd, aspect_ratio, params, tokens, loss, weight, on_frontier.

    A cell is on the frontier if no other with as many tokens and at most as many parameters has a loss as low.
    """
    from pandas import DataFrame

    params, loss = points.columns["params"], points.columns["loss"]
    tokens = points.columns.get("tokens")
    alike = np.ones((points.n, points.n), bool)
    if tokens is not None:
        alike = np.abs(np.log(tokens[:, None] / tokens)) < 0.01
    no_larger, no_worse = params <= params[:, None] * (1 + 1e-9), loss <= loss[:, None]
    better = (params < params[:, None] * (1 - 1e-9)) | (loss < loss[:, None])
    layer, embd = (points.shape[name].astype(int) for name in SHAPE)
    return DataFrame(
        {
            "name": points.names or [f"row {at}" for at in range(points.n)],
            "n_layer": layer,
            "n_embd": embd,
            "aspect_ratio": embd / layer,
            "params": params,
            "tokens": tokens,
            "loss": loss,
            "weight": points.weights,
            "on_frontier": ~(alike & no_larger & no_worse & better).any(1),
        }
    )


def _says(numbers: dict[str, dict[str, Any]], evidence: Evidence | None) -> list[str]:
    """Describe what the numbers of a law, as plain values, say of shapes at equal parameters: a sentence each."""
    depth, best, worst = numbers[DEPTH], numbers.get(BEST_LAYER, {}), numbers.get(WORST, {})
    if depth["value"] is None:
        return [NO_LAW.format(depth["why"])]
    share, low, high = (100 * (depth[end] - 1) for end in ("value", "low", "high"))
    sentence = f"at equal parameters doubling the depth changes the loss by {share:+.2f}%"
    sentence += f" (90% interval {low:+.2f}% to {high:+.2f}%)"
    if low <= 0 <= high:
        sentence += ", an interval that includes zero"
    if evidence:
        sentence += f"; {evidence.in_words()}"
    sentences = [sentence]
    for name in (BEST_LAYER, BEST_EMBD) if best else ():
        number = numbers[name]
        what = f"{name} is not identified, {number['why']}"
        if number["value"] is not None:
            what = f"{name} {rounded(number['value'])} ({span(number['low'], number['high'])})"
        sentences.append(f"{what}: {number['meaning']}")
    if worst and worst["value"] is not None:
        cost, most = worst["value"] - 1, worst["high"] - 1
        _, where, at = worst["meaning"].split(", ")
        if most < _FLAT:
            sentences.append(f"{at} the loss is flat: shapes of {where} are within {most:.2%} of the best")
        else:
            ends = f"{worst['low'] - 1:.2%} to {most:.2%}"
            sentences.append(f"{at} the worst shape of {where} costs {cost:.2%} ({ends}) of the loss")
        if not best:
            side = "widest" if depth["value"] > 1 else "deepest"
            sentences[-1] += f"; the {side} is the best: a product of powers is lowest at an end"
    return sentences
