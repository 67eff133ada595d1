"""The names that expressions can use, the order in which they are computed, and the rules for every trial."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from sweeplab.data import DataSizes, Sizes
from sweeplab.errors import BadInput
from sweeplab.expressions import Expression
from sweeplab.hyperparameters import TABLE, Hyperparameters
from sweeplab.model import accounting
from sweeplab.model.attention import SHAPE_REQUIREMENTS
from sweeplab.model.shape import SETTLED, ModelShape, Requirement, settled
from sweeplab.study.problems import Location
from sweeplab.study.spec import NOWHERE, StudySpec
from sweeplab.study.values import FACTS, LENGTHS_OF, Derived, Facts, needs
from sweeplab.train.run import REQUIREMENTS, row_lengths, train_flops, train_tokens

Values = Mapping[str, Any]


@lru_cache(maxsize=2)
def facts(values: Hyperparameters) -> Facts:
    """Compute the facts of a run from its effective hyperparameters; each constraint asks for them in turn."""
    shape = ModelShape.of(values)
    return Facts(
        accounting.n_params(shape),
        accounting.n_params_active(shape),
        accounting.n_params_non_embedding(shape),
        train_tokens(values, values.max_iters),
        train_flops(values, values.max_iters),
    )


def iterations(values: Hyperparameters, sizes: DataSizes) -> int:
    """Return the steps of a run: the fewest that read its `tokens_per_param`, those of its `epochs`, or max_iters."""
    if values.tokens_per_param is None:
        return sizes.iterations(values) or values.max_iters
    counted = {"total": accounting.n_params, "non_embedding": accounting.n_params_non_embedding}
    tokens = values.tokens_per_param * counted[values.params_counted](ModelShape.of(values))
    rows = tokens / sum(row_lengths(values))
    return min(int(TABLE["max_iters"].high or 1), max(1, int(-(-rows // values.batch_size))))


def evaluate(expression: Expression, values: Values) -> Any:
    """Evaluate an expression over hyperparameters and facts.

    Raises:
        ValueError: it cannot be evaluated.
    """
    if expression.names & SETTLED.keys():
        values = settled(values)
    if not expression.names & FACTS.keys():
        return expression.value(values)
    try:
        known = {**values, **facts(Hyperparameters.of(values))._asdict()}
    except (ArithmeticError, TypeError) as error:
        raise ValueError(f"{expression.text!r} cannot be evaluated: {error}") from error
    return expression.value(known)


def holds(expression: Expression, values: Values) -> bool:
    """Return whether an expression is true; one that cannot be evaluated is not."""
    try:
        return bool(evaluate(expression, values))
    except ValueError:
        return False


def derive(name: str, entry: Derived, values: Values) -> Any:
    """Compute a derived hyperparameter; NaN where its row does not allow the result."""
    try:
        return TABLE[name].check(evaluate(entry.expr, values))
    except (ValueError, ArithmeticError):
        return math.nan


def expanded(names: Iterable[str], fixed: Set[str], lengths: Iterable[str]) -> set[str]:
    """Return the hyperparameters among `names`, and those that the facts and automatic values among them depend on.

    Hyperparameters that a study gives are not automatic. `lengths` are those of LENGTHS_OF that determine max_iters.
    """
    known = {each for name in names for each in FACTS.get(name, (name,))}
    if "max_iters" in known:
        known = known.union(*(LENGTHS_OF[name] for name in lengths))
    return known.union(*(SETTLED[name][0] for name in known & SETTLED.keys() - fixed))


def follows(name: str, values: Values) -> bool:
    """Return whether a hyperparameter has the value that it would get automatically."""
    try:
        return bool(values[name] == SETTLED[name][1](values))
    # Values from another version may lack some names, or name unknown parts.
    except (ArithmeticError, KeyError, TypeError, ValueError):
        return False


def order(spec: StudySpec, needed: Mapping[str, Set[str]]) -> list[str]:
    """Return the names of the search, each after those `needed` for it, otherwise in the order of the file.

    Raises:
        BadInput: some depend on each other, or on themselves.
    """
    ordered, waiting = list[str](), [*needed]
    while waiting:
        ready = next((name for name in waiting if not needed[name] & {*waiting}), None)
        if ready is None:
            what = f"each of these needs itself or another of them: {', '.join(waiting)}"
            raise BadInput(spec.problem(("search", waiting[0]), what))
        ordered.append(ready)
        waiting.remove(ready)
    return ordered


@dataclass(frozen=True)
class Rule:
    """A condition for every trial: its text, its place in the study, and the hyperparameters it depends on."""

    text: str
    path: Location
    names: frozenset[str]
    holds: Meets


def rules(spec: StudySpec, sizes: Sizes) -> list[Rule]:
    """Return the rules that every trial of a study has to meet: first the built-in ones, then its constraints."""
    every = [
        _derived_rule(name, entry)
        for name, entry in spec.search.items()
        if isinstance(entry, Derived)
    ]
    texts = [*REQUIREMENTS]
    if spec.place("head_dim") == NOWHERE:
        texts.append("n_embd % n_head == 0")
    if sizes:
        texts.append(f"vocab_size >= {sizes.vocab_size}")
    for text in texts:
        names = sorted(Expression(text).names, reverse=True)
        every.append(_expression_rule(text, spec.place(*names)))
    for text, needed, meets in _rules_of_runs(spec, sizes):
        every.append(Rule(text, spec.place(*needed), frozenset(needed), meets))
    every += [
        _expression_rule(condition.text, ("constraints", index))
        for index, condition in enumerate(spec.constraints)
    ]
    return every


Meets = Callable[[Hyperparameters], bool]


def _rules_of_runs(
    spec: StudySpec, sizes: DataSizes | None
) -> Iterator[tuple[str, list[str], Meets]]:
    """Yield the rules of shapes, and between corpus, objective, family and sizes; of the vocabulary if it is known."""
    # Imported here because it imports numpy, which is slow.
    from sweeplab.data.objectives import OBJECTIVES, SETTINGS, n_special

    for shape in SHAPE_REQUIREMENTS:
        yield shape.text, shape.names.split(), partial(_meets, shape)
    kind, objectives = spec.kind, OBJECTIVES.items()
    if kind is not None:
        has = "is one text" if kind == "text" else f"has {kind}"
        suits = [name for name, objective in objectives if objective.learns == kind]
        text = f"objective is {' or '.join(suits)}, because corpus {spec.data.corpus} {has}"
        yield text, ["objective"], lambda values: values.objective in suits
    suited = ", ".join(
        f"{name}: {' or '.join(objective.families)}" for name, objective in objectives
    )
    yield (
        f"objective suits family ({suited})",
        ["objective", "family"],
        lambda values: values.family in OBJECTIVES[values.objective].families,
    )
    blocks = ", ".join(f"{name}: {objective.shortest_block}" for name, objective in objectives)
    yield (
        f"block_size is at least what objective needs ({blocks})",
        ["block_size", "objective"],
        lambda values: values.block_size >= OBJECTIVES[values.objective].shortest_block,
    )
    n_labels = (sizes and sizes.n_labels) or 0
    if n_labels:
        text = f"n_labels >= {n_labels}, as many as the data have"
        yield text, ["n_labels", "objective"], lambda values: (values.n_labels or 0) >= n_labels
    starting = [name for name, objective in objectives if objective.reads_start]
    if starting:
        yield (
            f"init_from names the trained run that objective {' or '.join(starting)} starts from",
            ["objective"],
            lambda values: spec.init_from is not None or values.objective not in starting,
        )
    groups = ", ".join(
        f"{name}: {each.per_loss}" for name, each in objectives if each.per_loss > 1
    )
    if groups:
        yield (
            f"batch_size / grad_accum is a multiple of what objective needs ({groups})",
            ["batch_size", "grad_accum", "objective"],
            lambda values: (
                not values.batch_size
                // values.grad_accum
                % OBJECTIVES[values.objective].per_loss
            ),
        )
    if sizes:
        n_symbols = sizes.vocab_size
        yield (
            f"vocab_size >= {n_symbols} + special tokens of the objective",
            ["vocab_size", "objective", "family", *SETTINGS],
            lambda values: values.vocab_size >= n_symbols + n_special(values),
        )


def _derived_rule(name: str, entry: Derived) -> Rule:
    def meets(values: Hyperparameters) -> bool:
        value = getattr(values, name)
        return bool(value == value)  # NaN marks an invalid result, and differs from itself

    text = f"{name} = {entry.expr.text} ({TABLE[name].allowed})"
    return Rule(text, ("search", name, "expr"), needs(entry) | {name}, meets)


def _meets(requirement: Requirement, values: Hyperparameters) -> bool:
    try:
        return requirement.holds(ModelShape.of(values))
    # A bad derived value, reported by its own rule.
    except (ArithmeticError, TypeError, ValueError):
        return False


def _expression_rule(text: str, path: Location) -> Rule:
    expression = Expression(text)
    return Rule(text, path, expression.names, lambda values: holds(expression, vars(values)))
