"""The cells of a study: the points of its grid, less those that its rules exclude."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.hyperparameters import AUTO, TABLE, defaults
from sweeplab.study.places import shown
from sweeplab.study.rules import Rule
from sweeplab.study.space import BASE, MOST_LISTED, WHOLE, Cell, Space
from sweeplab.study.spec import StudySpec

# As many values, or names of cells, are still read.
FEW = 12


def cells(spec: StudySpec, vocab_size: int | None) -> tuple[list[Cell], list[tuple[dict[str, Any], str]]]:
    """Return the cells of a study, and the points that are none, each with the reason.

    Points are each of the study's `cells` at each point of its grid.

    Before the data are read `vocab_size` is None, and rules that rest on it exclude nothing.

    Raises:
        BadInput: no cell is left.
    """
    kept: list[Cell] = []
    excluded: list[tuple[dict[str, Any], Rule]] = []
    for changes, *point in itertools.product(spec.cells or [{}], *spec.grid.values()):
        values = {**changes, **dict(zip(spec.grid, point, strict=True))}
        cell = Cell(len(kept), values, BASE if spec.cells else WHOLE)
        rule = Space(spec, cell, vocab_size).impossible()
        if rule is None:
            kept.append(cell)
        else:
            excluded.append((cell.values, rule))
    if not kept:
        broken = {rule.text: rule for _, rule in excluded}
        raise BadInput(*(unmet(spec, rule, "cell", vocab_size) for rule in broken.values()))
    return kept, [(values, rule.text) for values, rule in excluded]


def cells_named(spec: StudySpec, vocab_size: int | None, key: str | None) -> list[Cell]:
    """Return a study's cell of this name, or all where it is None.

    Raises:
        BadInput: there is none; offers the nearest.
    """
    found, _ = cells(spec, vocab_size)
    keys = [cell.key for cell in found]
    if key is not None and key not in keys:
        few = " | ".join(keys) if len(keys) < FEW else ""
        raise BadInput(Problem(f"{spec.name} has no cell {key!r}", few, nearest(key, keys)))
    return [cell for cell in found if key in (None, cell.key)]


def unmet(spec: StudySpec, rule: Rule, what: str, vocab_size: int | None) -> Problem:
    """Return the problem that no cell (or trial) meets a rule, with the values that it rests on."""
    given = defaults() | spec.fixed | spec.grid | spec.changed
    names = sorted(rule.names & given.keys() - spec.search.keys())
    values = [f"{name} is {shown(given[name])}" for name in names if given[name] != AUTO]
    text = f"no {what} meets {rule.text!r}" + (f" where {', '.join(values)}" if values else "")
    return spec.problem(rule.path, text, _possible_there(spec, rule, vocab_size))


def _possible_there(spec: StudySpec, rule: Rule, vocab_size: int | None) -> str:
    """Return which values would do in place of the one that stands where a rule is broken, if they are few."""
    section, name = (*rule.path, "")[:2]
    if section != "fixed" or name not in TABLE:
        return ""
    first = {**next(iter(spec.cells), {}), **{each: held[0] for each, held in spec.grid.items()}}

    def space(value: Any) -> Space:
        return Space(spec, Cell(0, {**first, name: value}), vocab_size)

    if name == "vocab_size":
        return f"auto, or at least {space(AUTO).given[name]}"
    row, values = TABLE[name], {**defaults(), **spec.fixed}
    options: Sequence[Any] = row.choices or ((True, False) if row.kind == "bool" else ())
    if row.kind == "int":
        sizes = [values[each] for each in rule.names & values.keys() if TABLE[each].kind == "int"]
        options = range(int(row.low or 0), 1 + max(each for each in sizes if each not in (AUTO, None)))
    if len(options) > MOST_LISTED:
        return ""
    fit = [shown(each) for each in options if space(each).impossible() is None]
    return f"{name} {' | '.join(fit)}" if 0 < len(fit) <= FEW else ""
