"""The table of objectives, and values of a study that follow from its objective."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sweeplab.data.batches import DataKind, Split, kind_of
from sweeplab.data.objectives.base import Objective, OwnIds, SpecialTokens
from sweeplab.data.objectives.pairs import Classification, PairsObjective
from sweeplab.data.objectives.tokens import Masked, NextToken, Span
from sweeplab.hyperparameters import AUTO, Hyperparameters

OBJECTIVES: dict[str, type[Objective]] = {
    kind.name: kind for kind in (NextToken, Masked, Span, PairsObjective, Classification)
}

# The hyperparameters that determine the sequences of a split and the special tokens.
SETTINGS = ("objective", "family", "block_size", "mask_share", "span_length", "n_labels")

# The most targets of an evaluation on a whole split: see `paired_error` in tests/benchmarks.
MOST_WHOLE = 2**16


def evaluated_on(values: Hyperparameters) -> tuple[Any, ...]:
    """Return the values that determine the evaluated targets of a split: if they are equal, so are the targets."""
    return (
        *(getattr(values, name) for name in SETTINGS),
        values.vocab_size,
        values.evaluated_tokens,
    )


def wholly(values: Hyperparameters) -> Hyperparameters:
    """Return the values for an evaluation on the whole split, or on MOST_WHOLE targets of a very large one."""
    asked = values.evaluated_tokens
    if asked is None:
        return values
    return values.replace(eval_tokens=max(asked, MOST_WHOLE))


def settled_objective(values: Hyperparameters, kind: DataKind) -> str:
    """Return the objective; `auto` is the family's objective for this kind of data."""
    if values.objective != AUTO:
        return values.objective
    for objective in OBJECTIVES.values():
        if objective.learns == kind and values.family in objective.families:
            return objective.name
    return NextToken.name


def objective_of(values: Hyperparameters) -> type[Objective]:
    """Return a run's objective; an imported table that names none is of next tokens."""
    return OBJECTIVES.get(values.objective, NextToken)


def n_special(values: Hyperparameters) -> int:
    """Return the number of special tokens of a run's vocabulary; 0 if its values are impossible."""
    try:
        return len(OBJECTIVES[values.objective].special_names(values))
    except (KeyError, TypeError, ValueError):  # such as a derived block_size of 0
        return 0


def special_tokens(values: Hyperparameters, known: OwnIds = None) -> SpecialTokens:
    """Return the special tokens for a run's effective hyperparameters; `known` are the ids of an imported run."""
    return SpecialTokens(values.vocab_size, objective_of(values).special_names(values), known)


def make_objective(
    split: Split, values: Hyperparameters, own_special: OwnIds = None
) -> Objective:
    """Return the objective of a run on a split, which makes its batches; `own_special` are an imported run's ids.

    Raises:
        ValueError: the split is too short for block_size.
    """
    return OBJECTIVES[settled_objective(values, kind_of(split))](split, values, own_special)


def check_fits(splits: Mapping[str, Split], values: Hyperparameters) -> None:
    """Check that every split fits block_size.

    Raises:
        BadInput: one does not; the message says which, and which block_size is allowed.
    """
    for name, split in sorted(splits.items(), key=lambda split: len(split[1])):
        OBJECTIVES[values.objective].check(name, split, values)
