"""What can be learned of a corpus: the table of objectives, and what of a study's values follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sweeplab.data.batches import DataKind, Split, kind_of
from sweeplab.data.objectives.base import Objective
from sweeplab.data.objectives.labels import Classification, Similarity, Tagging
from sweeplab.data.objectives.pairs import PairsObjective, Preference
from sweeplab.data.objectives.span import Span
from sweeplab.data.objectives.tokens import Masked, NextToken
from sweeplab.data.prompts import SpecialTokens
from sweeplab.hyperparameters import AUTO, Hyperparameters

OBJECTIVES: dict[str, type[Objective]] = {
    each.name: each
    for each in (NextToken, Masked, Span, PairsObjective, Classification, Tagging, Similarity, Preference)
}

# What decides how a split is cut, and into how many special tokens.
SETTINGS = ("objective", "family", "block_size", "mask_share", "span_length", "n_labels")

# When a run ends it is evaluated on a whole split, but on no more targets than these: with small.yaml's models they
# take as long as a quarter of its 300 steps, and with 10,000 steps nothing.
MOST_WHOLE = 2**18


def evaluated_on(values: Hyperparameters) -> tuple[Any, ...]:
    """Return what decides which targets a run is evaluated on: equal values have the same ones of a split."""
    return (*(getattr(values, name) for name in SETTINGS), values.vocab_size, values.evaluated_tokens)


def wholly(values: Hyperparameters) -> Hyperparameters:
    """Return values with which an evaluation has the whole split, or of a very large one MOST_WHOLE of its targets."""
    asked = values.evaluated_tokens
    return values if asked is None else values.replace(eval_tokens=max(asked, MOST_WHOLE))


def settled_objective(values: Hyperparameters, kind: DataKind) -> str:
    """Return the objective; `auto` is that of the family for such a corpus."""
    if values.objective != AUTO:
        return values.objective
    fitting = (each for each in OBJECTIVES.values() if each.learns == kind)
    return next((each.name for each in fitting if values.family in each.families), NextToken.name)


def objective_of(values: Hyperparameters) -> type[Objective]:
    """Return a run's objective; a table of other origin, which names none, is of next tokens."""
    return OBJECTIVES.get(values.objective, NextToken)


def n_special(values: Hyperparameters) -> int:
    """Return how many special tokens a run's vocabulary has; 0 where its values are impossible."""
    try:
        return len(OBJECTIVES[values.objective].special_names(values))
    except (KeyError, TypeError, ValueError):  # such as a derived block_size that came to nothing
        return 0


def special_tokens(values: Hyperparameters, own: Mapping[str, int] | None = None) -> SpecialTokens:
    """Return the special tokens of a run by its effective hyperparameters; `own` are ids that it came with."""
    return SpecialTokens(values.vocab_size, objective_of(values).special_names(values), own)


def make_objective(
    split: Split, values: Hyperparameters, own_special: Mapping[str, int] | None = None
) -> Objective:
    """Return what makes a run's batches out of a split; `own_special` are the special tokens that it came with.

    Raises:
        ValueError: the split is shorter than block_size asks for.
    """
    return OBJECTIVES[settled_objective(values, kind_of(split))](split, values, own_special)


def check_fits(splits: Mapping[str, Split], values: Hyperparameters) -> None:
    """Make sure that block_size suits every split.

    Raises:
        BadInput: says which one it does not, and how long it may be.
    """
    for name, split in sorted(splits.items(), key=lambda each: len(each[1])):
        OBJECTIVES[values.objective].check(name, split, values)
