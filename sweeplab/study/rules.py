"""What expressions see, in which order they are computed, and what every trial has to meet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any

from sweeplab.hyperparameters import TABLE
from sweeplab.model import accounting
from sweeplab.model.legality import requirements
from sweeplab.model.requirement import Requirement
from sweeplab.model.shape import FIELDS, ModelShape, settled
from sweeplab.model.shape import SETTLED as SETTLED  # an analysis asks what only follows
from sweeplab.study.expressions import Expression
from sweeplab.study.places import Location
from sweeplab.study.spec import NOWHERE, Derived, Divisors, SearchSpec, StudySpec
from sweeplab.train.counting import train_flops, train_tokens
from sweeplab.train.requirements import REQUIREMENTS

# What the facts of a model follow from.
_SIZES = frozenset(FIELDS)
_ROW = frozenset({"objective", "family", "block_size", "mask_share", "span_length"})
_TOKENS = _ROW | {"max_iters", "batch_size", "batch_warmup_iters"}
FACTS: dict[str, frozenset[str]] = {
    "n_params": _SIZES,
    "n_params_active": _SIZES,
    "n_params_non_embedding": _SIZES - {"block_size"},
    "train_tokens": _TOKENS,
    "train_flops": _TOKENS | _SIZES,
}
# Not for expressions: a trial is the same for every seed and on every machine.
UNSEEN = frozenset(row.name for row in TABLE.values() if row.name == "seed" or row.category == "precision")


def facts(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what follows from a run's effective hyperparameters: sizes, tokens and FLOPs of training."""
    shape = ModelShape.of(values)
    return {
        "n_params": accounting.n_params(shape),
        "n_params_active": accounting.n_params_active(shape),
        "n_params_non_embedding": accounting.n_params_non_embedding(shape),
        "train_tokens": train_tokens(values, values["max_iters"]),
        "train_flops": train_flops(values, values["max_iters"]),
    }


def evaluate(expression: Expression, values: Mapping[str, Any]) -> Any:
    """Return the value of an expression over effective hyperparameters and what follows from them.

    Raises:
        ValueError: it has none.
    """
    if expression.names & SETTLED.keys():
        values = settled(values)
    if not expression.names & FACTS.keys():
        return expression.value(values)
    try:
        known = {**values, **facts(values)}
    except (ArithmeticError, TypeError) as error:
        raise ValueError(f"{expression.text!r} has no value: {error}") from error
    return expression.value(known)


def derive(name: str, entry: Derived, values: Mapping[str, Any]) -> Any:
    """Return a derived hyperparameter, or NaN where its row allows nothing of what comes out."""
    try:
        return TABLE[name].check(evaluate(entry.expr, values))
    except (ValueError, ArithmeticError):
        return math.nan


def wanted(entry: SearchSpec, values: Mapping[str, Any]) -> bool:
    """Say whether a hyperparameter is sampled where the others have these values."""
    if isinstance(entry, Derived) or entry.when is None:
        return True
    try:
        return bool(evaluate(entry.when, values))
    except ValueError:
        return False


def needs(entry: SearchSpec) -> frozenset[str]:
    """Return the names that an entry of the search has to know first."""
    if isinstance(entry, Derived):
        return entry.expr.names
    names = entry.when.names if entry.when else frozenset[str]()
    return names | {entry.of} if isinstance(entry, Divisors) else names


def expanded(names: Iterable[str], given: Set[str]) -> set[str]:
    """Return the hyperparameters among `names` and those that its facts and autos follow from.

    What a study gives is not auto.
    """
    known = {each for name in names for each in FACTS.get(name, (name,))}
    return known.union(*(SETTLED[name][0] for name in known & SETTLED.keys() - given))


def follows(name: str, values: Mapping[str, Any]) -> bool:
    """Say whether a hyperparameter has the value that follows from others where it is not given."""
    try:
        return bool(values[name] == SETTLED[name][1](values))
    # A table of another's lacks some, or knows other parts.
    except (ArithmeticError, KeyError, TypeError, ValueError):
        return False


def order(search: Mapping[str, SearchSpec], given: Set[str]) -> list[str]:
    """Return the names of the search so that each comes after what it needs, else as written.

    Raises:
        ValueError: some need each other.
    """
    ordered: list[str] = []
    waiting = {name: expanded(needs(entry), given) & search.keys() for name, entry in search.items()}
    while waiting:
        ready = next((name for name, needed in waiting.items() if needed <= set(ordered)), None)
        if ready is None:
            raise ValueError(f"{', '.join(waiting)} depend on each other")
        ordered.append(ready)
        del waiting[ready]
    return ordered


@dataclass(frozen=True)
class Rule:
    """What every trial has to meet: in words, where the study says so, and on what it rests."""

    text: str
    path: Location
    names: frozenset[str]
    holds: Callable[[Mapping[str, Any]], bool]


def rules(spec: StudySpec, vocab_size: int | None) -> list[Rule]:
    """Return what every trial of a study has to meet: first what is built in, then its constraints."""
    found = [_search_rule(name, entry) for name, entry in spec.search.items()]
    found += [_shape_rule(each, spec) for each in requirements()]
    if spec.place("head_dim") == NOWHERE:
        found.append(_expression_rule("n_embd % n_head == 0", spec.place("n_head", "n_embd")))
    if vocab_size is not None:
        found.append(_expression_rule(f"vocab_size >= {vocab_size}", spec.place("vocab_size")))
    for text in REQUIREMENTS:
        names = Expression(text).names
        found.append(_expression_rule(text, spec.place(*sorted(names))))
    found += _data_rules(spec, vocab_size)
    for index, text in enumerate(spec.constraints):
        found.append(_expression_rule(text, ("constraints", index)))
    return [rule for rule in found if rule]


def _data_rules(spec: StudySpec, n_symbols: int | None) -> list[Rule]:
    """Return what corpus, objective, family and sizes ask of each other; of the vocabulary where it is known."""
    # Here and not above: with it comes numpy, which is slow to import.
    from sweeplab.data.objectives import OBJECTIVES, SETTINGS, n_special

    def of(values: Mapping[str, Any]) -> Any:
        return OBJECTIVES[values["objective"]]

    suited = ", ".join(f"{name}: {' or '.join(kind.families)}" for name, kind in OBJECTIVES.items())
    blocks = ", ".join(f"{name}: {kind.shortest_block}" for name, kind in OBJECTIVES.items())
    found = [
        Rule(
            f"objective suits family ({suited})",
            spec.place("objective", "family"),
            frozenset({"objective", "family"}),
            lambda values: values["family"] in of(values).families,
        ),
        Rule(
            f"block_size is at least what objective takes ({blocks})",
            spec.place("block_size"),
            frozenset({"objective", "block_size"}),
            lambda values: values["block_size"] >= of(values).shortest_block,
        ),
    ]
    if n_symbols is not None:
        fits = Rule(
            f"vocab_size >= {n_symbols} + special tokens of the objective",
            spec.place("vocab_size", "objective", "family"),
            frozenset({"vocab_size", *SETTINGS}),
            lambda values: values["vocab_size"] >= n_symbols + n_special(values),
        )
        found.append(fits)
    if (of_pairs := spec.of_pairs) is None:
        return found
    corpus = f"corpus {spec.data.corpus} {'has pairs' if of_pairs else 'is one text'}"
    text = f"objective is{'' if of_pairs else ' not'} pairs, for {corpus}"
    suits_corpus = Rule(
        text,
        spec.place("objective"),
        frozenset({"objective"}),
        lambda values: of(values).of_pairs == of_pairs,
    )
    return [suits_corpus, *found]


def _search_rule(name: str, entry: SearchSpec) -> Rule | None:
    if isinstance(entry, Derived):
        text = f"{name} = {entry.expr.text} ({TABLE[name].allowed})"
        return Rule(text, ("search", name, "expr"), needs(entry) | {name}, lambda v: v[name] == v[name])
    if not isinstance(entry, Divisors):
        return None

    def divides(values: Mapping[str, Any]) -> bool:
        value = values[name]
        divisor = entry.min <= value <= entry.max and values[entry.of] % value == 0
        return divisor or not wanted(entry, values)

    text = f"{name}, from {entry.min} to {entry.max}, divides {entry.of}"
    return Rule(text, ("search", name), needs(entry) | {name}, divides)


def _shape_rule(requirement: Requirement, spec: StudySpec) -> Rule:
    def holds(values: Mapping[str, Any]) -> bool:
        try:
            return requirement.holds(ModelShape.of(values))
        except (ArithmeticError, TypeError, ValueError):  # a derived value that is none; its own rule says so
            return False

    return Rule(requirement.text, spec.place(*requirement.names), frozenset(requirement.names), holds)


def _expression_rule(text: str, path: Location) -> Rule:
    expression = Expression(text)

    def holds(values: Mapping[str, Any]) -> bool:
        try:
            return bool(evaluate(expression, values))
        except ValueError:
            return False

    return Rule(text, path, expression.names, holds)
