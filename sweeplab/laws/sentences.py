"""The sentences of verdicts and warnings: one template a code. Codes and facts are the data; no code reads a
sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Facts = Mapping[str, Any]
Plain = dict[str, Any]  # values as JSON holds them
Point = Mapping[str, float]  # a run's sizes by role

TEMPLATES = {
    # Verdicts by the width of an interval.
    "narrow": "its 90% interval ends {far} from the value",
    "wide": "its 90% interval ends {far} from the value; {needed} or less is needed",
    "too wide": "its 90% interval is {width} wide; {needed} or less is needed between the value and each end",
    "scale": "a scale is no better known than its exponent {exponent}, which is {verdict}",
    # What a design lacks.
    "decades": "{column} span {decades:.2f} decades and {needed} are needed",
    "one row": "{column} span {decades:.2f} decades without one row: all depends on that row",
    "few values": "{column} have only {count} distinct values",
    "ray": "all rows lie near one line of log {one} against log {other} (their sd across it is {spread:.2f}, {needed} "
    "is needed): the effects of the two on the loss cannot be separated",
    "ray but one": "all rows but one lie near one line of log {one} against log {other}: the effects of the two on the "
    "loss cannot be separated",
    "far from optimum": "no row is within a factor {factor:g} of the optimum in D/N",
    # Doubts: each makes every number weak at best, and its interval a union.
    "mistuned": "how the points were tuned is {how}: larger sizes may be tuned less well, by up to {share:.0%} of the "
    "loss; --tuned each says that each point is a run of its own, tuned and trained to its end",
    "not annealed": "points may be checkpoints of longer runs, up to {share:.0%} of the loss above runs of their own; "
    "--tuned each says that they are not",
    "stopped": "the longest runs may have stopped after {share:.0%} of their tokens; --tuned each says that none did",
    "large batch": "one batch size for all may cost the shortest runs {share:.0%} of their tokens; --tuned each says "
    "that it was tuned",
    "params": "it is not known whether params count the embeddings, which may be {share:.0%} of the smallest size; "
    "--count params=non-embedding or params=total says it",
    "tokens": "tokens may be in another unit; --columns tokens={column}*1 says that they are not",
    "drift": "the tuning excess may drift with size, by up to {drift:.2%} of the loss; more trials in every cell, "
    "or a wider range where the best value lies at an end, make it smaller",
    "form": "the form does not fit (chance {chance:.1%}, {direction}): the interval holds the fit of the form as it "
    "is, and that of one with bends",
    "outliers": "beyond {sigmas:g} sigma of the law: {rows}; the interval holds the fits with and without them",
    "large": "residuals of {sigma:.1%}: runs of one recipe rarely leave over {usual:.0%}, so more than {columns} "
    "affects the loss, or the form is wrong",
    # How points were tuned.
    "tuned: each": "each point by itself{why}; their tuning excess is not known",
    "tuned: shared": "one setting for all sizes{why}",
    "tuned: unknown": "not known{why}",
    "tuned: excess": "each point by itself{why}; the tuning excess of a point is {mean:.2%} of the loss ({low:.2%} to "
    "{high:.2%}): the fit leaves it out, and the intervals contain its drift",
    # The test of the form.
    "form not seen": "no departure of the form {law} is seen (chance {chance:.0%}); one that makes the forecast at 10 "
    "times the compute 5% wrong would be found in: {powers}",
    "form cannot be seen": "this design cannot show a misfit ({powers}); this is no evidence that {law} is right",
    "form flagged": "the form {law} does not fit: residuals follow {direction} (chance {chance:.1%})",
    # The hold-out.
    "holdout": "fitted to the rows up to {cut:.3g} {by}, {law} is off by {error:.2%} of the loss on the {rows} larger "
    "ones",
    "holdout none": "no cut in {by} leaves enough rows on both sides for a hold-out",
    # Hyperparameters.
    "few cells": "{cells} with an optimum between their values, and {needed} are needed",
    "optima outside": "the best {name} of {count} of {cells} lies at an end of the values tried",
    "best at end": "{what}",
    "bent": "the optima may not follow one power of {sizes}: a law that bends is as likely (chance {chance:.0%})",
    # Warnings.
    "path": "{law} holds along one path, {path}: what is due to tokens and what to params cannot be told",
}


@dataclass(frozen=True)
class Reason:
    """A reason as a code and its facts."""

    code: str
    facts: Facts

    @property
    def words(self) -> str:
        """Return it in words."""
        return sentence(self.code, self.facts)


def sentence(code: str, facts: Facts) -> str:
    """Return a code with its facts in words."""
    return TEMPLATES[code].format(**facts)
