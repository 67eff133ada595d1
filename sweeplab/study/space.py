"""The cells of a study, and the search space of each: what is sampled, derived and required there."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from sweeplab.data import Sizes
from sweeplab.errors import BadInput, Problem
from sweeplab.hyperparameters import AUTO, Hyperparameters, defaults
from sweeplab.model.shape import settled
from sweeplab.records.folders import named_cell
from sweeplab.study.problems import shown
from sweeplab.study.rules import (
    Rule,
    derive,
    evaluate,
    expanded,
    holds,
    iterations,
    order,
    rules,
)
from sweeplab.study.spec import StudySpec, seed_parts
from sweeplab.study.values import (
    LENGTHS_OF,
    Derived,
    Sampled,
    Scalar,
    needs,
    stored_values,
)

if TYPE_CHECKING:
    from optuna.trial import BaseTrial

    from sweeplab.laws.surrogate import Floats

# A placeholder for the vocabulary size before the data are read; no rule depends on it.
VOCABULARY_STAND_IN = 256
# The name of the only cell of a study, and of the cell among several that changes nothing.
WHOLE, BASE = "all", "base"
# A folder is named after a cell: file systems stop at 255 bytes.
LONGEST_KEY = 150
# A rule is checked on all values (or combinations) if there are at most this many.
MOST_LISTED = 500
# Most draws of a cell's space in search of one that meets the rules.
N_TYPICAL = 64
# A message lists at most about this many cells.
FEW = 12


@dataclass(frozen=True)
class Cell:
    """One point of a study's grid, or one of its `cells`; `plain` is its name if it has no values."""

    index: int
    values: dict[str, Any]
    plain: str = WHOLE

    @cached_property
    def key(self) -> str:
        """Return the cell's name, such as `n_layer=1,n_embd=32`, usable as a folder name; `all` without a grid."""
        words = [f"{name}={_word(value)}" for name, value in self.values.items()]
        return folder_name(",".join(words) or self.plain)


def folder_name(name: str) -> str:
    """Return a name of something as that of its folder: a long one is cut, and gets its digest."""
    if len(name) <= LONGEST_KEY:
        return name
    return f"{name[:LONGEST_KEY]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def _word(value: Any) -> str:
    if isinstance(value, tuple):
        return "+".join(map(_word, value))
    if not isinstance(value, str):
        value = json.dumps(value)
    return quote(value, safe="")


class Space:
    """The search space of one cell: its sampled and derived hyperparameters, and the rules for its trials.

    `sizes` are the data's; before the data are read they are None, and no rule that depends on them makes the cell
    impossible.
    `given` holds the values of a trial that are not sampled, `parameters` the sampled ones, by Optuna's names;
    the `conditional` ones are sampled only in some trials.
    `known` are the rules of the study, which are the same for every cell.
    """

    def __init__(
        self, spec: StudySpec, cell: Cell, sizes: Sizes, known: Sequence[Rule]
    ) -> None:
        self.cell, self.sizes = cell, sizes
        self._spec = spec
        self.given = defaults() | spec.fixed | cell.values
        self._auto = {name for name in ("objective", "vocab_size") if self.given[name] == AUTO}
        # What determines the steps of a run comes before all that is computed from them.
        self._lengths = {
            name for name in LENGTHS_OF if self.given[name] is not None or name in spec.search
        }
        if self._lengths:
            self._auto.add("max_iters")
        self._auto -= {
            name for name, entry in spec.search.items() if isinstance(entry, Derived)
        }
        self.given = self._settled(self.given)
        # The names whose values differ between trials of the cell, and the values that are the same.
        self._varying = set[str]()
        if self.sizes is None:
            self._varying |= self._auto & {"vocab_size", "max_iters"}
        self._constant = dict(self.given)
        self.parameters: dict[str, Sampled] = {}
        self._explicit = {*spec.fixed, *cell.values, *spec.search}
        needed = {name: self._expanded(needs(entry)) for name, entry in spec.search.items()}
        self._order = order(spec, needed)
        self.conditional: set[str] = set()
        if self._lengths and self._expanded(["max_iters"]) & spec.search.keys():
            self._varying.add("max_iters")
        for name in self._order:
            entry, varies = spec.search[name], bool(needed[name] & self._varying)
            if isinstance(entry, Derived):
                self._constant[name] = derive(name, entry, self._constant)
                self._constant = self._settled(self._constant)
            elif varies or entry.when is None or holds(entry.when, self._constant):
                self.parameters[name] = entry
                if varies:
                    self.conditional.add(name)
                varies = True
            if varies:
                self._varying.add(name)
        self._rules = known

    def _expanded(self, names: Iterable[str]) -> set[str]:
        return expanded(names, self._explicit, self._lengths)

    def _settled(
        self, values: Mapping[str, Any], sampled: Iterable[str] = ()
    ) -> dict[str, Any]:
        """Replace automatic values that depend on the data by values computed from the others."""
        # Imported here because it imports numpy, which is slow.
        from sweeplab.data.objectives import n_special, settled_objective

        settled = dict(values)
        auto = self._auto.difference(sampled)
        if "objective" in auto:
            asked = Hyperparameters.of({**settled, "objective": AUTO})
            settled["objective"] = settled_objective(asked, self._spec.kind or "text")
        if self.sizes and self.sizes.n_labels and settled["n_labels"] is None:
            settled["n_labels"] = self.sizes.n_labels
        if "vocab_size" in auto:
            n_symbols = self.sizes.vocab_size if self.sizes else VOCABULARY_STAND_IN
            settled["vocab_size"] = n_symbols + n_special(Hyperparameters.of(settled))
        if "max_iters" in auto and self.sizes:
            # A derived value may be invalid, which its own rule reports.
            with suppress(ArithmeticError, TypeError, ValueError):
                settled["max_iters"] = iterations(Hyperparameters.of(settled), self.sizes)
        return settled

    @property
    def seeds(self) -> tuple[int, ...]:
        """Return the seeds that every trial of the cell is trained with.

        Raises:
            BadInput: the condition of a seed depends on values that vary within the cell, or cannot be evaluated.
        """
        kept = []
        for index, (seed, when) in enumerate(map(seed_parts, self._spec.seeds)):
            varying = sorted(self._expanded(when.names) & self._varying)
            try:
                if varying:
                    raise ValueError(
                        f"{when.text!r} depends on {varying[0]}, which varies within a cell"
                    )
                if evaluate(when, self._constant):
                    kept.append(seed)
            except ValueError as error:
                allowed = "names that are fixed, in the grid, or derived from these"
                problem = self._spec.problem(("seeds", index, "when"), str(error), allowed)
                raise BadInput(problem) from None
        return tuple(kept)

    @cached_property
    def n_points(self) -> int | None:
        """Return the number of different trials, of those that meet every rule if they are few; None without end."""
        total = 1
        for parameter in self.parameters.values():
            if self.conditional or parameter.count is None:
                return None
            total *= parameter.count
        if total <= MOST_LISTED:
            return sum(self.broken(values) is None for values in self.trials())
        return total

    def trials(self) -> Iterator[Hyperparameters]:
        """Yield the effective hyperparameters of every different trial; requires that they can be counted."""
        for point in itertools.product(*map(stored_values, self.parameters.values())):
            yield self.values_of(dict(zip(self.parameters, point, strict=True)))

    def values_of(self, stored: Mapping[str, Scalar]) -> Hyperparameters:
        """Return all effective hyperparameters of a trial with these parameters, as Optuna stores them."""
        return self.resolve(
            self._choose(lambda name: self.parameters[name].decoded(stored[name])), seed=0
        )

    def suggest(self, trial: BaseTrial) -> dict[str, Any]:
        """Return a trial's sampled hyperparameters; repeated calls for the same trial return the same ones."""
        return self._choose(lambda name: self.parameters[name].suggest(trial, name))

    def _choose(self, value_of: Callable[[str], Any]) -> dict[str, Any]:
        """Return a trial's sampled hyperparameters, whose values `value_of` gives by Optuna's names."""
        sampled = dict[str, Any]()
        for name, entry in self.parameters.items():
            when = entry.when if name in self.conditional else None
            if when is None or holds(when, self._computed(sampled)):
                sampled[name] = value_of(name)
        return sampled

    def _computed(self, sampled: Mapping[str, Any]) -> dict[str, Any]:
        """Return all values of a trial with these sampled ones; a derived value that its row does not allow is NaN."""
        values = {**self.given, **sampled}
        for name in self._order:
            entry = self._spec.search[name]
            if isinstance(entry, Derived):
                values[name] = derive(name, entry, self._settled(values, sampled))
        return self._settled(values, sampled)

    def resolve(self, sampled: Mapping[str, Any], seed: int) -> Hyperparameters:
        """Return all effective hyperparameters of a run.

        A derived value that its row does not allow is NaN, which `broken` reports.
        """
        return Hyperparameters.of(settled({**self._computed(sampled), "seed": seed}))

    def broken(self, values: Hyperparameters) -> Rule | None:
        """Return the first rule that effective hyperparameters break, or None."""
        return next((rule for rule in self._rules if not rule.holds(values)), None)

    def impossible(self) -> Rule | None:
        """Return the first rule that the cell breaks, whatever is sampled in it, or None."""
        values = Hyperparameters.of(self._settled(self._constant))
        for rule in self._rules:
            if not self._expanded(rule.names) & self._varying and not rule.holds(values):
                return rule
        return None

    @cached_property
    def typical(self) -> Hyperparameters:
        """Return the effective hyperparameters of a trial that meets the rules, always the same one.

        If none of N_TYPICAL draws meets them, return the last draw.
        """
        for values in self.draws(N_TYPICAL):
            if self.broken(values) is None:
                break
        return values

    def _all_at(self, at: Sequence[float], fixed: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Map a point of the unit cube to all parameters, as Optuna stores them; `fixed` ones are taken as they are."""
        pairs = zip(self.parameters.items(), at, strict=True)
        return {name: parameter.at(share) for (name, parameter), share in pairs} | dict(fixed)

    def point(self, at: Sequence[float], fixed: Mapping[str, Scalar] = {}) -> dict[str, Scalar]:
        """Map a point of the unit cube, with one coordinate per parameter, to the parameters of a trial.

        They are as Optuna stores them. Those `fixed` are taken as they are.
        """
        stored = self._all_at(at, fixed)
        if not self.conditional:
            return stored
        sampled = self._choose(lambda name: self.parameters[name].decoded(stored[name]))
        return {name: stored[name] for name in sampled}

    def stored(self, name: str, value: Any) -> dict[str, Scalar]:
        """Return the parameter to enqueue so that a searched hyperparameter has a given value.

        Raises:
            ValueError: the cell does not search this value; the message says what it searches.
        """
        if name not in self.parameters:
            raise ValueError(f"nothing: cell {self.cell.key} does not search it")
        return {name: self.parameters[name].stored(value)}

    def fitted(self, values: Mapping[str, Any]) -> tuple[dict[str, Scalar], Hyperparameters]:
        """Return what Optuna stores for a trial with these searched values, and all its hyperparameters.

        Raises:
            ValueError: a sampled value is missing or outside of its search range; the message says which.
        """
        stored: dict[str, Scalar] = {}

        def take(name: str) -> Any:
            parameter = self.parameters[name]
            if name not in values:
                raise ValueError(f"without {name}, which is searched")
            try:
                stored[name] = parameter.stored(values[name])
            except ValueError as error:
                raise ValueError(f"{name} lies outside of {error}") from error
            return parameter.decoded(stored[name])

        sampled = self._choose(take)
        return stored, self.resolve(sampled, seed=0)

    def draws(self, count: int, stored: Mapping[str, Scalar] = {}) -> Iterator[Hyperparameters]:
        """Yield effective hyperparameters of `count` trials spread evenly over the space, always the same ones.

        All of them have the parameters given in `stored`; if nothing is sampled there is only one.
        """
        n_axes = len(self.parameters)
        for index in range(count if n_axes else 1):
            yield self.values_of(self._all_at(spread(index, n_axes).tolist(), stored))


def spread(index: int, dimensions: int) -> Floats:
    """Return a point of the unit cube: those of 0, 1, 2, … fill it evenly (the recurrence of Roberts' sequence).

    Its steps are the powers of 1/g, where g is the root above 1 of g^(d+1) = g + 1 (M. Roberts, "The unreasonable
    effectiveness of quasirandom sequences", 2018).
    """
    import numpy as np

    root = 2.0
    for _ in range(64):
        root = (1 + root) ** (1 / (dimensions + 1))
    steps = root ** -np.arange(1.0, dimensions + 1)
    return np.asarray((0.5 + (index + 1) * steps) % 1.0)


# ------------------------------------------------------------------ the cells of a study


def spaces_of(
    spec: StudySpec, sizes: Sizes
) -> tuple[list[Space], list[tuple[dict[str, Any], str]]]:
    """Return the spaces of a study's cells, and the excluded points, each with the reason.

    The points are each of the study's `cells` at each point of its grid.

    Before the data are read `sizes` is None, and rules that depend on them exclude nothing.

    Raises:
        BadInput: no cell is left.
    """
    kept: list[Space] = []
    excluded: list[tuple[dict[str, Any], Rule]] = []
    known = rules(spec, sizes)
    for changes, *point in itertools.product(spec.cells or [{}], *spec.grid.values()):
        values = {**changes, **dict(zip(spec.grid, point, strict=True))}
        cell = Cell(len(kept), values, BASE if spec.cells else WHOLE)
        space = Space(spec, cell, sizes, known)
        rule = space.impossible()
        if rule is None:
            kept.append(space)
        else:
            excluded.append((values, rule))
    if not kept:
        broken = {rule.text: rule for _, rule in excluded}
        raise BadInput(*(unmet(spec, rule, "cell") for rule in broken.values()))
    return kept, [(values, rule.text) for values, rule in excluded]


def spaces_named(spec: StudySpec, sizes: Sizes, key: str | None) -> list[Space]:
    """Return the space of the cell of this name in a list, or those of all cells if `key` is None.

    Raises:
        BadInput: the study has no such cell; suggests the nearest name.
    """
    every, _ = spaces_of(spec, sizes)
    if key is None:
        return every
    key = named_cell(spec.name, [space.cell.key for space in every], key)
    return [space for space in every if space.cell.key == key]


def unmet(spec: StudySpec, rule: Rule, what: str) -> Problem:
    """Return the problem that no cell (or trial) meets a rule, with the values that the rule depends on."""
    known = defaults() | spec.fixed | spec.grid | spec.changed
    names = sorted(rule.names & known.keys() - spec.search.keys())
    values = ", ".join(
        f"{name} is {shown(known[name])}" for name in names if known[name] != AUTO
    )
    text = f"no {what} meets {rule.text!r}" + (f" where {values}" if values else "")
    return spec.problem(rule.path, text)
