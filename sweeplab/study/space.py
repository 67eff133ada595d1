"""The search space of one cell of a study: what is sampled, derived and required there."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from sweeplab.errors import BadInput
from sweeplab.hyperparameters import AUTO, Hyperparameters, defaults
from sweeplab.model.shape import settled
from sweeplab.study.expressions import Expression
from sweeplab.study.parameters import Parameter, Scalar
from sweeplab.study.places import shown
from sweeplab.study.rules import Rule, derive, evaluate, expanded, needs, order, rules, wanted
from sweeplab.study.rules import facts as facts  # part of what a space is asked for
from sweeplab.study.spec import Choices, Derived, Divisors, SearchSpec, StudySpec
from sweeplab.study.written import Replicate

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import BaseTrial

# Where a size is needed before the data are read; no rule rests on it.
VOCABULARY_STAND_IN = 256
# The cell of a study that has one, and the one of several that changes nothing.
WHOLE, BASE = "all", "base"
# A folder is named after a cell: file systems stop at 255 bytes.
LONGEST_KEY = 150
# Values (or combinations of them) up to which a rule is tried on every one.
MOST_LISTED = 500
# Points of a grid up to which every one is tried.
MOST_TRIED = 10_000


@dataclass(frozen=True)
class Cell:
    """One point of a study's grid, or one of its `cells`; `plain` is the name of one without values."""

    index: int
    values: dict[str, Any]
    plain: str = WHOLE

    @property
    def key(self) -> str:
        """Return the cell's name, such as `n_layer=1,n_embd=32`, fit for a folder; `all` without a grid."""
        key = ",".join(f"{name}={_word(value)}" for name, value in self.values.items()) or self.plain
        if len(key) <= LONGEST_KEY:
            return key
        return f"{key[:LONGEST_KEY]}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"


def _word(value: Any) -> str:
    if isinstance(value, tuple):
        return "+".join(map(_word, value))
    return quote(value if isinstance(value, str) else json.dumps(value), safe="")


class Space:
    """What is sampled, derived and required in one cell.

    `vocab_size` is the tokenizer's; before the data are read it is None, and rules that rest on it are left out.
    """

    def __init__(self, spec: StudySpec, cell: Cell, vocab_size: int | None) -> None:
        self.cell, self.vocab_size = cell, vocab_size
        self._spec = spec
        self._search = spec.search
        self._of_pairs = spec.of_pairs
        self._n_symbols = vocab_size or VOCABULARY_STAND_IN
        self._base = defaults() | spec.fixed | cell.values
        derived = {name for name, entry in spec.search.items() if isinstance(entry, Derived)}
        self._auto = {name for name in ("objective", "vocab_size") if self._base[name] == AUTO} - derived
        self._unknown: set[str] = set() if vocab_size else self._auto & {"vocab_size"}
        self._base = self._settled(self._base)
        # What may differ between trials of the cell, and the values of what does not.
        self._varying = set(self._unknown)
        self._constant = dict(self._base)
        self._parameters: dict[str, Parameter] = {}
        self._of: dict[str, list[Parameter]] = {}
        self._given = {*spec.fixed, *cell.values, *spec.search}
        self._order = order(spec.search, self._given)
        self._conditional: set[str] = set()
        for name in self._order:
            self._enter(name, spec.search[name])
        self._rules = [
            rule for rule in rules(spec, vocab_size) if not self._expanded(rule.names) & self._unknown
        ]

    def _enter(self, name: str, entry: SearchSpec) -> None:
        """Take a hyperparameter of the search in; all that it needs has been."""
        needed = self._expanded(needs(entry))
        if isinstance(entry, Derived):
            self._constant = self._settled({**self._constant, name: derive(name, entry, self._constant)})
            for group in (self._varying, self._unknown):
                group |= {name} if needed & group else set()
            return
        if not needed & self._varying and not wanted(entry, self._constant):
            return
        if isinstance(entry, Divisors):
            self._of[name] = [
                Parameter(self._label(name, entry, of), Choices(divisors))
                for of in self._possible(entry.of) or ()
                if (divisors := tuple(n for n in range(entry.min, min(entry.max, of) + 1) if of % n == 0))
            ]
        else:
            self._of[name] = [Parameter(name, entry)]
        if self._of[name]:
            self._parameters |= {parameter.name: parameter for parameter in self._of[name]}
            self._conditional |= {name} if needed & self._varying else set()
            self._varying.add(name)

    def _expanded(self, names: Iterable[str]) -> set[str]:
        return expanded(names, self._given)

    def _settled(self, values: Mapping[str, Any], sampled: Container[str] = ()) -> dict[str, Any]:
        """Return the values with what is automatic of the data as it follows from the others."""
        # Here and not above: with it comes numpy, which is slow to import.
        from sweeplab.data.objectives import n_special, settled_objective

        settled = dict(values)
        auto = {name for name in self._auto if name not in sampled}
        if "objective" in auto:
            settled["objective"] = settled_objective({**settled, "objective": AUTO}, bool(self._of_pairs))
        if "vocab_size" in auto:
            settled["vocab_size"] = self._n_symbols + n_special(settled)
        return settled

    def _label(self, name: str, entry: SearchSpec, of: Any) -> str:
        """Return Optuna's name of a parameter: it refuses choices that change, so each list has its own."""
        varies = isinstance(entry, Divisors) and entry.of in self._varying
        return f"{name}@{entry.of}={of}" if isinstance(entry, Divisors) and varies else name

    def _possible(self, name: str) -> list[Any] | None:
        """Return every value that a hyperparameter can have here; None where they are too many to list."""
        if name not in self._varying:
            return [self._constant[name]]
        counts = [parameter.count or math.inf for parameter in self._of.get(name, ())]
        if not 0 < sum(counts) <= MOST_LISTED:
            return None
        values = [
            each for parameter in self._of[name] for each in map(parameter.decoded, parameter.stored_values())
        ]
        return list(dict.fromkeys([*values, *([self._base[name]] if name in self._conditional else [])]))

    @property
    def given(self) -> dict[str, Any]:
        """Return what every trial of the cell has where it samples nothing."""
        return dict(self._base)

    @property
    def has_conditions(self) -> bool:
        """Say whether some parameter is sampled in some trials only."""
        return bool(self._conditional)

    @property
    def parameters(self) -> dict[str, Parameter]:
        """Return what is sampled, by the name that Optuna stores."""
        return dict(self._parameters)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Return the seeds that every trial of the cell is trained with.

        Raises:
            BadInput: whether a seed is wanted rests on what varies inside of the cell, or cannot be told.
        """
        return tuple(
            each.seed if isinstance(each, Replicate) else each
            for index, each in enumerate(self._spec.seeds)
            if not isinstance(each, Replicate) or self._repeats(each.when, index)
        )

    def _repeats(self, when: Expression, index: int) -> bool:
        varying = sorted(self._expanded(when.names) & self._varying)
        try:
            if not varying:
                return bool(evaluate(when, self._constant))
            what = f"{when.text!r} rests on {varying[0]}, which varies inside of a cell"
        except ValueError as error:
            what = str(error)
        raise BadInput(
            self._spec.problem(("seeds", index, "when"), what, "what is fixed, in the grid, or follows")
        )

    @property
    def n_points(self) -> int | None:
        """Return how many different trials there are; None where they cannot be counted."""
        counts = [parameter.count for parameter in self._parameters.values()]
        return None if self.has_conditions or None in counts else math.prod(filter(None, counts))

    @property
    def n_valid(self) -> int | None:
        """Return how many different trials meet every rule; None where they are too many to try."""
        if self.n_points is None or self.n_points > MOST_TRIED:
            return None
        stored = itertools.product(*(parameter.stored_values() for parameter in self._parameters.values()))
        points = (dict(zip(self._parameters, values, strict=True)) for values in stored)
        return sum(self.broken(self._resolved(point)) is None for point in points)

    def _resolved(self, stored: Mapping[str, Scalar]) -> Hyperparameters:
        """Return the effective hyperparameters of a trial by what Optuna stores of it."""
        return self.resolve(self._choose(lambda parameter: parameter.decoded(stored[parameter.name])), seed=0)

    def distributions(self) -> dict[str, BaseDistribution]:
        """Return Optuna's distribution of every parameter, conditional ones included."""
        return {name: parameter.distribution() for name, parameter in self._parameters.items()}

    def suggest(self, trial: BaseTrial) -> dict[str, Any]:
        """Return a trial's sampled hyperparameters; asked again of the same trial, the same ones."""
        return self._choose(lambda parameter: parameter.suggest(trial))

    def _choose(self, value_of: Callable[[Parameter], Any]) -> dict[str, Any]:
        values, sampled = dict(self._base), dict[str, Any]()
        for name in self._order:
            entry = self._search[name]
            values = self._settled(values, sampled)
            if isinstance(entry, Derived):
                values[name] = derive(name, entry, values)
            elif wanted(entry, values):
                of = values[entry.of] if isinstance(entry, Divisors) else None
                if parameter := self._parameters.get(self._label(name, entry, of)):
                    values[name] = sampled[name] = value_of(parameter)
        return sampled

    def resolve(self, sampled: Mapping[str, Any], seed: int) -> Hyperparameters:
        """Return all effective hyperparameters of a run, in the table's order.

        A derived one whose row allows nothing of what comes out is NaN, and `broken` says so.
        """
        values = {**self._base, **sampled, "seed": seed}
        for name in self._order:
            entry = self._search[name]
            if isinstance(entry, Derived):
                values[name] = derive(name, entry, self._settled(values, sampled))
        known = settled(self._settled(values, sampled))
        return Hyperparameters.of(known)

    def broken(self, values: Mapping[str, Any]) -> str | None:
        """Return the first rule that effective hyperparameters do not meet, in words."""
        rule = self.broken_rule(values)
        return rule.text if rule else None

    def broken_rule(self, values: Mapping[str, Any]) -> Rule | None:
        """Return the first rule that effective hyperparameters do not meet."""
        return next((rule for rule in self._rules if not rule.holds(values)), None)

    def impossible(self) -> Rule | None:
        """Return the first rule that no trial of the cell can meet, as far as values can be listed."""
        return next((rule for rule in self._rules if not self._can_hold(rule)), None)

    def _can_hold(self, rule: Rule) -> bool:
        free = sorted(self._expanded(rule.names) & self._varying)
        options = [self._possible(name) for name in free]
        listed = [each for each in options if each is not None]
        if len(listed) < len(options) or math.prod(map(len, listed)) > MOST_LISTED:
            return True
        points = itertools.product(*listed)
        given = (dict(zip(free, point, strict=True)) for point in points)
        return any(rule.holds(self._settled(self._constant | each, each)) for each in given)

    def quasi_random(self, point: Sequence[float]) -> dict[str, Scalar]:
        """Map a point of the unit cube, a coordinate a distribution, to the parameters to enqueue."""
        pairs = zip(self._parameters.values(), point, strict=True)
        return {parameter.name: parameter.at(share) for parameter, share in pairs}

    def stored(self, name: str, value: Any) -> dict[str, Scalar]:
        """Return the parameters to enqueue for one searched hyperparameter of a given value.

        The divisors of what varies have a parameter for each of its values: all that allow the value are given.

        Raises:
            ValueError: the cell does not search it, or not there; says what it does search.
        """
        refusals = [f"nothing, for cell {self.cell.key} does not search it"]
        found: dict[str, Scalar] = {}
        for parameter in self._of.get(name, ()):
            try:
                found[parameter.name] = parameter.stored(value)
            except ValueError as error:
                refusals.append(str(error))
        if not found:
            raise ValueError(refusals[-1])
        return found

    def fitted(self, values: Mapping[str, Any]) -> tuple[dict[str, Scalar], Hyperparameters]:
        """Return what Optuna stores of a trial with these values of what is searched, and all that follows from them.

        Raises:
            ValueError: one that is sampled is missing, or lies outside of what is searched; says which.
        """
        names = {parameter.name: name for name, held in self._of.items() for parameter in held}
        stored: dict[str, Scalar] = {}

        def take(parameter: Parameter) -> Any:
            name = names[parameter.name]
            if name not in values:
                raise ValueError(f"without {name}, which is searched")
            try:
                stored[parameter.name] = parameter.stored(values[name])
            except ValueError as error:
                raise ValueError(f"{name} lies outside of {error}") from error
            except TypeError:
                raise ValueError(f"{name} is {shown(values[name])}, which is no number") from None
            return parameter.decoded(stored[parameter.name])

        sampled = self._choose(take)
        return stored, self.resolve(sampled, seed=0)

    def draws_with(self, stored: Mapping[str, Scalar], count: int) -> Iterator[Hyperparameters]:
        """Yield effective hyperparameters of `count` trials spread evenly over what the given parameters leave."""
        for point in _spread(len(self._parameters), count):
            yield self._resolved({**self.quasi_random(point), **stored})

    def draws(self, count: int) -> Iterator[Hyperparameters]:
        """Yield effective hyperparameters of `count` trials spread evenly over the space, always the same."""
        return self.draws_with({}, count)

    def share_valid(self, count: int = 256) -> float:
        """Return the share of trials that break no rule, before any is drawn again."""
        return sum(self.broken(values) is None for values in self.draws(count)) / count


def _spread(dimensions: int, count: int) -> Iterator[list[float]]:
    """Yield points that fill the unit cube evenly, by the additive recurrence of Roberts' sequence.

    Its steps are the powers of 1/g, g the root above 1 of g^(d+1) = g + 1 (M. Roberts, "The unreasonable
    effectiveness of quasirandom sequences", 2018).
    """
    root = 2.0
    for _ in range(64):
        root = (1 + root) ** (1 / (dimensions + 1))
    steps = [root ** -(axis + 1) for axis in range(dimensions)]
    for index in range(count):
        yield [(0.5 + (index + 1) * step) % 1.0 for step in steps]
