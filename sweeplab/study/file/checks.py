"""A document, as read from a study file, to a typed study; and everything that is wrong with it, at once."""

from __future__ import annotations

import graphlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from sweeplab.errors import BadInput, nearest
from sweeplab.hyperparameters import TABLE, Hyperparameter
from sweeplab.study.algorithms import read_algorithm
from sweeplab.study.cells import cells, unmet
from sweeplab.study.expressions import Expression
from sweeplab.study.file.presets import preset_names
from sweeplab.study.file.search import expression, is_searched, literal, literals, search_entry
from sweeplab.study.parameters import Parameter
from sweeplab.study.places import SECTIONS, Complaints, Location, Places, dotted, shown
from sweeplab.study.rules import FACTS, UNSEEN, Rule, needs
from sweeplab.study.space import Space
from sweeplab.study.spec import Derived, Divisors, Pruner, Range, Sampler, SearchSpec, StudySpec
from sweeplab.study.written import Refusal, Replicate

MOST_CELLS = 1000
MOST_DIVIDED = 64
# Draws in all, over the cells, until one meets every rule.
MOST_DRAWS = 2000
# A grid with more points is none that anyone finishes.
LARGEST_GRID = 100_000
# What the field also calls them.
SYNONYMS = {
    "lr": "learning_rate",
    "wd": "weight_decay",
    "d_model": "n_embd",
    "hidden_size": "n_embd",
    "num_layers": "n_layer",
    "num_heads": "n_head",
    "context_length": "block_size",
    "steps": "max_iters",
}
# What pydantic's complaints mean in our words; in braces the bounds that it names.
ALLOWED = {
    "greater_than_equal": "at least {ge:g}",
    "greater_than": "a number above {gt:g}",
    "less_than_equal": "at most {le:g}",
    "finite_number": "a number",
    "string_type": "a text",
    "string_too_short": "a text",
    "int_type": "a whole number",
    "float_type": "a number",
    "list_type": "a list",
    "too_short": "a list of one or more",
    "model_type": "a mapping",
    "dict_type": "a mapping",
}


def study_from(document: Any, complain: Complaints) -> StudySpec:
    """Return the typed study that a document of plain values describes.

    Raises:
        BadInput: with everything that is wrong, each at its place, and what was complained of before.
    """
    if not isinstance(document, Mapping):
        complain((), "a study is a mapping of keys to values, such as `name: small`")
        raise BadInput(*complain.problems)
    before = len(complain.problems)
    parts = _hyperparameters(document, complain)
    sound = len(complain.problems) == before
    study = {**document, **parts}
    for key, model in (("sampler", Sampler), ("pruner", Pruner)):
        if key in document:
            study[key] = read_algorithm(model, document[key], (key,), complain) or model()
    preset = document.get("preset")
    if isinstance(preset, str) and preset not in (known := preset_names()):
        what = f"preset is unknown: {shown(preset)}"
        complain(("preset",), what, " | ".join(known), nearest(preset, known))
    spec = _validated(study, complain)
    # Where only another part is wrong, the space is checked too: what is wrong is said all at once.
    draft = spec or StudySpec.model_construct(**parts, sampler=study.get("sampler", Sampler()))
    draft._places = complain.places
    for index, seed in enumerate(spec.seeds if spec else ()):
        if isinstance(seed, Replicate):
            _check_names(seed.when, ("seeds", index, "when"), complain)
    if sound:
        _check_space(draft, complain)
    if spec is None or complain.problems:
        raise BadInput(*sorted(complain.problems, key=lambda each: (each.line or 0, each.column or 0)))
    return spec


def _validated(study: Mapping[str, Any], complain: Complaints) -> StudySpec | None:
    try:
        return StudySpec.model_validate(study)
    except ValidationError as error:
        for each in error.errors():
            _retell(each, complain)
        return None


def _retell(error: Any, complain: Complaints) -> None:
    """Say one of pydantic's errors in our words."""
    path, kind, value = error["loc"], error["type"], error["input"]
    refusal = error.get("ctx", {}).get("error")
    what = f"{dotted(path)} is {shown(value)}"
    if kind == "missing":
        complain(path, f"{dotted(path)} is missing")
    elif kind == "extra_forbidden":
        complain.unknown(path, list(_fields(path[:-1])), "key")
    elif isinstance(refusal, Refusal):
        told = "" if refusal.is_secret else f": {shown(value)}"
        complain(path, f"{dotted(path)} {refusal.what}{told}", refusal.allowed, refusal.nearest)
    elif kind == "literal_error":
        choices = re.findall(r"'(.*?)'", error["ctx"]["expected"])
        near = nearest(value, choices) if isinstance(value, str) else ""
        complain(path, what, " | ".join(choices), near)
    else:
        allowed = ALLOWED.get(kind, error["msg"].removeprefix("Input should be "))
        complain(path, what, allowed.format(**error.get("ctx", {})))


def _fields(path: Location) -> dict[str, Any]:
    """Return the keys of the part of a study that a path leads to."""
    model: type[BaseModel] = StudySpec
    for part in path:
        model = model.model_fields[str(part)].annotation  # type: ignore[assignment]
    return dict(model.model_fields)


def _hyperparameters(document: Mapping[str, Any], complain: Complaints) -> dict[str, Any]:
    """Return fixed, grid, cells, search and constraints typed, without what is wrong in them."""
    fixed: dict[str, Any] = {}
    grid: dict[str, list[Any]] = {}
    cells: list[dict[str, Any]] = [{} for _ in _cells(document, complain)]
    search: dict[str, SearchSpec] = {}
    for path, row, written in _rows(document, complain):
        if path[0] == "fixed":
            for value in literal(row, written, path, complain):
                fixed[row.name] = value
        elif path[0] == "grid":
            grid[row.name] = list(literals(row, written, path, complain))
        elif path[0] == "cells":
            for value in literal(row, written, path, complain):
                cells[int(path[1])][row.name] = value
        elif entry := search_entry(row, written, path, complain):
            search[row.name] = entry
    expressions = dict(_expressions_of(search))
    constraints: list[str] = []
    written = document.get("constraints") or []
    if not isinstance(written, list):
        complain(("constraints",), f"constraints is {shown(written)}", "a list of expressions")
        written = []
    for index, each in enumerate(written):
        if found := expression(each, ("constraints", index), complain):
            expressions["constraints", index] = found
            constraints.append(found.text)
    for where, each in expressions.items():
        _check_names(each, where, complain)
    _check_cycles(search, complain)
    _check_distinct(fixed, cells, complain)
    return {"fixed": fixed, "grid": grid, "cells": cells, "search": search, "constraints": constraints}


def _rows(
    document: Mapping[str, Any], complain: Complaints
) -> Iterator[tuple[Location, Hyperparameter, Any]]:
    """Yield the place, row and written value of every hyperparameter that may stand where it stands."""
    seen: dict[str, str] = {}
    for section in SECTIONS:
        held = document.get(section)
        if held is not None and not isinstance(held, Mapping):
            complain((section,), f"{section} is {shown(held)}", "a mapping of hyperparameters")
            continue
        for name, written in (held or {}).items():
            path = (section, name)
            if not _is_known(path, complain):
                pass
            elif name in seen:
                complain(path, f"{name} stands in {seen[name]} and in {section}", "one of them", at_key=True)
            elif section == "search" and not is_searched(TABLE[name]):
                complain(path, f"{name} is not searched: it is the machine's", "fixed or grid", at_key=True)
            else:
                yield path, TABLE[name], written
            seen.setdefault(name, section)
    for index, changes in enumerate(_cells(document, Complaints(Places()))):
        for name, written in changes.items():
            at = ("cells", index, name)
            if not _is_known(at, complain):
                pass
            elif seen.get(name, "fixed") != "fixed":
                complain(at, f"{name} stands in {seen[name]} and in cells", "one of them", at_key=True)
            else:
                yield at, TABLE[name], written


def _is_known(path: Location, complain: Complaints) -> bool:
    """Say whether a place names a hyperparameter that a study sets, and complain where it does not."""
    name = str(path[-1])
    if name not in TABLE:
        complain.unknown(path, list(TABLE), "hyperparameter", SYNONYMS.get(name, ""))
    elif name == "seed":
        complain(path, "seed is set by seeds, such as `seeds: [0, 1]`", at_key=True)
    return name in TABLE and name != "seed"


def _cells(document: Mapping[str, Any], complain: Complaints) -> list[Mapping[str, Any]]:
    """Return what each of the `cells` changes, as written; nothing of one that is no mapping."""
    held = document.get("cells")
    if held is not None and not isinstance(held, list):
        complain(("cells",), f"cells is {shown(held)}", "a list of mappings, such as [{}, {norm: rmsnorm}]")
        return []
    for index, each in enumerate(held or ()):
        if not isinstance(each, Mapping):
            complain(("cells", index), f"cells[{index}] is {shown(each)}", "a mapping, {} for what is fixed")
    return [each if isinstance(each, Mapping) else {} for each in held or ()]


def _check_distinct(
    fixed: Mapping[str, Any], cells: Sequence[Mapping[str, Any]], complain: Complaints
) -> None:
    whole = [{**fixed, **changes} for changes in cells]
    for index, each in enumerate(whole):
        if (first := whole.index(each)) < index and not complain.problems:
            complain(("cells", index), f"cells[{index}] is the same as cells[{first}]")


def _expressions_of(search: Mapping[str, SearchSpec]) -> Iterator[tuple[Location, Expression]]:
    for name, entry in search.items():
        if isinstance(entry, Derived):
            yield ("search", name, "expr"), entry.expr
        elif entry.when:
            yield ("search", name, "when"), entry.when


def _check_names(found: Expression, path: Location, complain: Complaints) -> None:
    known = [*TABLE, *FACTS]
    for name in sorted(found.names):
        if name in UNSEEN:
            complain(path, f"{found.text!r} rests on {name}, which is not the same for every run of a trial")
        elif name not in known:
            near = SYNONYMS.get(name) or nearest(name, [*known, "True", "False", "None"])
            complain(path, f"{found.text!r} names {name!r}, which is unknown", "", near)


def _check_cycles(search: Mapping[str, SearchSpec], complain: Complaints) -> None:
    """Complain of entries that need each other, a circle at a time."""
    graph = {name: sorted(needs(entry)) for name, entry in search.items()}
    graph |= {name: sorted(behind) for name, behind in FACTS.items()}
    while True:
        try:
            graphlib.TopologicalSorter(graph).prepare()
            return
        except graphlib.CycleError as error:
            circle = error.args[1][::-1]
            first = next(name for name in search if name in circle)
            start = circle.index(first)
            names = [*circle[start:-1], *circle[:start], first]
            complain(("search", first), f"{first} depends on itself: {' needs '.join(names)}", at_key=True)
            del graph[first]


def _check_space(spec: StudySpec, complain: Complaints) -> None:
    """Complain where nothing can be trained: too many cells, none, or no trial that meets the rules."""
    before = len(complain.problems)
    n_cells = math.prod(map(len, spec.grid.values())) * max(1, len(spec.cells))
    if n_cells > MOST_CELLS:
        complain(("grid",), f"the grid has {n_cells:,} cells", f"at most {MOST_CELLS:,}")
    for name, entry in spec.search.items():
        if isinstance(entry, Divisors):
            _check_divided(spec, name, entry.of, complain)
    if len(complain.problems) > before:
        return
    try:
        kept, _ = cells(spec, None)
    except BadInput as error:
        complain.problems += error.problems
        return
    spaces = [Space(spec, cell, None) for cell in kept]
    complain.problems += [unmet(spec, rule, "trial", None) for rule in _never_met(spaces)]
    if spec.sampler.type == "grid":
        _check_grid_sampler(spaces[0], complain)


def _check_divided(spec: StudySpec, name: str, of: str, complain: Complaints) -> None:
    """Complain of a hyperparameter whose divisors cannot be listed before it is sampled."""
    entry, path = spec.search.get(of), ("search", name, "divides")
    if isinstance(entry, Derived):
        complain(path, f"{name} divides {of}, which is derived", "a hyperparameter that is sampled or fixed")
    elif isinstance(entry, Range) and (count := Parameter(of, entry).count or 0) > MOST_DIVIDED:
        what = f"{name} divides {of}, which has {count:,} values"
        complain(path, what, f"at most {MOST_DIVIDED}: give {of} a list or a step")


def _never_met(spaces: Sequence[Space]) -> list[Rule]:
    """Return the rules that no drawn trial meets, or none if some trial of some cell meets all."""
    broken: dict[str, Rule] = {}
    for space in spaces:
        for values in space.draws(max(4, MOST_DRAWS // len(spaces))):
            rule = space.broken_rule(values)
            if rule is None:
                return []
            broken[rule.text] = rule
    return list(broken.values())


def _check_grid_sampler(space: Space, complain: Complaints) -> None:
    for parameter in space.parameters.values():
        if parameter.count is None:
            what = f"the grid sampler cannot count the values of {parameter.name}"
            complain(("search", parameter.name), what, "a step, a list, or another sampler")
    if space.has_conditions:
        what = "the grid sampler needs every parameter in every trial, and some have conditions"
        complain(("sampler",), what, "no `when` or `divides` on what is searched, or another sampler")
    elif (space.n_points or 0) > LARGEST_GRID:
        complain(("sampler",), f"the grid has {space.n_points:,} points", f"at most {LARGEST_GRID:,}")
