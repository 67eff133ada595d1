"""Turn a document, as read from a study file, into a typed study; report everything that is wrong with it at once."""

from __future__ import annotations

import graphlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from sweeplab.errors import BadInput, nearest
from sweeplab.expressions import Expression
from sweeplab.formatting import several
from sweeplab.hyperparameters import TABLE, Hyperparameters, is_number
from sweeplab.model.shape import SETTLED
from sweeplab.study.algorithms import read_algorithm
from sweeplab.study.file.entries import EVALUATED, WRONG, Written, expression, is_searched, share_of
from sweeplab.study.problems import LENGTHS, SECTIONS, Location, Problems, Refusal, dotted, shown
from sweeplab.study.rules import FACTS, LENGTHS_OF, UNSEEN, Rule
from sweeplab.study.search import Derived, Divisors, Range, SearchSpec, needs
from sweeplab.study.space import Space, cells, spaces_of, unmet
from sweeplab.study.spec import SEED_FORMS, Pruner, Sampler, StudySpec, seed_parts
from sweeplab.train.run import is_at_end

MOST_CELLS = 1000
# Every draw is checked against all constraints: more of them take minutes before the first trial.
MOST_CONSTRAINTS = 100
MOST_DIVIDED = 64
# Total draws over all cells in search of one that meets every rule.
MOST_DRAWS = 2000
# `seeds: 3` is probably meant as three seeds; a larger number as a seed.
MOST_COUNTED = 21
# No study finishes a grid with more points.
LARGEST_GRID = 100_000
# What is allowed, by the type of pydantic's error; braces hold the bounds of its context.
ALLOWED = {
    "greater_than_equal": "at least {ge:g}",
    "greater_than": "a number above {gt:g}",
    "less_than_equal": "at most {le:g}",
    "finite_number": "a number",
    "string_type": "a string",
    "string_too_short": "a string",
    "int_type": "a whole number",
    "float_type": "a number",
    "list_type": "a list",
    "too_short": "a list of one or more",
    "model_type": "a mapping",
    "dict_type": "a mapping",
}


def study_from(document: Any, problems: Problems) -> StudySpec:
    """Return the typed study that a document of plain values describes.

    Raises:
        BadInput: lists everything that is wrong, each at its place, including the problems found before.
    """
    if not isinstance(document, Mapping):
        problems.add((), "a study is a mapping of keys to values, such as `name: small`")
        raise BadInput(*problems.found)
    before = len(problems.found)
    # Checked first, because each entry takes work.
    for key, most in (("cells", MOST_CELLS), ("constraints", MOST_CONSTRAINTS)):
        if isinstance(entries := document.get(key), list) and len(entries) > most:
            problems.add((key,), f"{key} has {several(len(entries), 'entry')}", f"at most {most:,}")
    if len(problems.found) > before:
        raise BadInput(*problems.found)
    parts = _hyperparameters(document, problems)
    sound = len(problems.found) == before
    study = {**document, **parts}
    if "first_trial" in document:
        study["first_trial"] = _first_trial(document["first_trial"], parts["search"], problems)
    for key, model in (("sampler", Sampler), ("pruner", Pruner)):
        if key in document:
            study[key] = read_algorithm(model, document[key], (key,), problems) or model()
    # Check the space even if another part is wrong, so that all problems are reported at once.
    try:
        spec = StudySpec.model_validate(study)
    except ValidationError as error:
        for problem in error.errors():
            _retell(problem, problems)
        spec = StudySpec.model_construct(**parts, seeds=[], sampler=study.get("sampler", Sampler()))
    spec._source_map = problems.source
    for index, (_, when) in enumerate(map(seed_parts, spec.seeds)):
        _check_names(when, ("seeds", index, "when"), problems)
    metric, pruner = spec.objective.metric, spec.pruner.type
    if is_at_end(metric) and pruner != "none":
        what = f"pruner {pruner} compares nothing: {metric} is measured at a run's end"
        problems.add(("pruner",), what, "pruner: none, or a metric that is measured at every evaluation")
    if sound:
        _check_space(spec, problems)
    if problems.found:
        raise BadInput(*sorted(problems.found, key=lambda problem: (problem.line or 0, problem.column or 0)))
    return spec


def _retell(error: Any, problems: Problems) -> None:
    path = tuple(part for part in error["loc"] if part not in SEED_FORMS)
    kind, value = error["type"], error["input"]
    refusal = error.get("ctx", {}).get("error")
    what = f"{dotted(path)} is {shown(value)}"
    if kind == "missing":
        problems.add(path, f"{dotted(path)} is missing")
    elif kind == "extra_forbidden" and len(path) == 1:
        problems.unknown(path, list(StudySpec.model_fields), "key", _places())
    elif kind == "extra_forbidden":
        part = next(_models(StudySpec.model_fields[str(path[0])].annotation))
        problems.unknown(path, list(part.model_fields), "key")
    elif isinstance(refusal, Refusal):
        more = f": {shown(value)}" if not refusal.is_secret else ""
        problems.add(path, f"{dotted(path)} {refusal.what}{more}", refusal.allowed, refusal.nearest)
    elif kind == "literal_error":
        choices = re.findall(r"'(.*?)'", error["ctx"]["expected"])
        problems.add(path, what, " | ".join(choices), nearest(value, choices))
    else:
        allowed = ALLOWED.get(kind, error["msg"].removeprefix("Input should be "))
        if kind == "list_type" and isinstance(value, int | float | str):
            is_count = path == ("seeds",) and value in range(1, MOST_COUNTED)
            allowed += f", such as {shown([*range(int(value))] if is_count else [value])}"
        problems.add(path, what, allowed.format(**error.get("ctx", {})))


@cache
def _places() -> list[str]:
    parts = ((key, next(_models(field.annotation), None)) for key, field in StudySpec.model_fields.items())
    places = [f"{key}.{name}" for key, part in parts if part for name in part.model_fields]
    return places + [f"fixed.{name}" for name in TABLE if name != "seed"]


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the parts of a study that an annotation such as `list[Plugin]` names."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)


def _hyperparameters(document: Mapping[str, Any], problems: Problems) -> dict[str, Any]:
    fixed: dict[str, Any] = {}
    grid: dict[str, list[Any]] = {}
    search: dict[str, SearchSpec] = {}
    changes = _listed(document, "cells", "a list of mappings, such as [{}, {norm: rmsnorm}]", problems)
    cells: list[dict[str, Any]] = [{} for _ in changes]
    lengths: dict[str, Location] = {}
    for written in _written(document, changes, problems):
        name, (section, index, *_) = written.row.name, written.path
        if name in LENGTHS:
            lengths.setdefault(name, written.path)
        share = share_of(written.row, written.value)
        if share and section in ("fixed", "search"):
            search[name] = Derived(Expression(share["expr"]))
        elif section == "grid":
            grid[name] = list(written.literals())
        elif section == "search":
            entry = written.entry()
            if entry:
                search[name] = entry
        elif section == "fixed":
            value = written.literal()
            if value is not WRONG:
                fixed[name] = value
        else:
            value = written.literal()
            if value is not WRONG:
                cells[int(index)][name] = value
    rivals = {name: lengths[name] for name in LENGTHS if name in lengths and fixed.get(name, 0) is not None}
    if len(rivals) > 1:
        problems.conflict(*[*rivals.values()][:2])
    read: dict[Location, Expression | None] = {}
    for index, text in enumerate(_listed(document, "constraints", "a list of expressions", problems)):
        read["constraints", index] = expression(text, ("constraints", index), problems)
    constraints = [constraint.text for constraint in read.values() if constraint]
    for name, entry in search.items():
        if isinstance(entry, Derived):
            read["search", name, "expr"] = entry.expr
        else:
            read["search", name, "when"] = entry.when
    for place, condition in read.items():
        if condition:
            _check_names(condition, place, problems)
    whole = [{**fixed, **cell} for cell in cells]
    in_every_cell = set.intersection(*map(set, whole or [fixed]))
    _check_cycles(search, {*grid, *search, *in_every_cell}, rivals.keys(), problems)
    for index, cell in enumerate(whole):
        first = whole.index(cell)
        if first < index and not problems.found:
            problems.add(("cells", index), f"cells[{index}] is the same as cells[{first}]")
    return {"fixed": fixed, "grid": grid, "cells": cells, "search": search, "constraints": constraints}


def _first_trial(held: Any, search: Mapping[str, SearchSpec], problems: Problems) -> dict[str, Any]:
    first: dict[str, Any] = {}
    if not isinstance(held, Mapping):
        problems.add(("first_trial",), f"first_trial is {shown(held)}", "a mapping of names to values")
        return first
    for name, value in held.items():
        path, entry = ("first_trial", name), search.get(name)
        if name not in TABLE:
            problems.unknown(path, list(TABLE), "hyperparameter")
        if entry is None or isinstance(entry, Derived):
            continue
        typed = Written(TABLE[name], value, path, problems).literal()
        if typed is WRONG:
            continue
        try:
            if not isinstance(entry, Divisors):
                entry.stored(typed)
            first[name] = typed
        except (ValueError, TypeError) as error:
            what = f"first_trial.{name} is {shown(value)}, which the search does not contain"
            problems.add(path, what, str(error))
    return first


def _listed(document: Mapping[str, Any], key: str, allowed: str, problems: Problems) -> list[Any]:
    held = document.get(key)
    if isinstance(held, list):
        return held
    if held is not None:
        problems.add((key,), f"{key} is {shown(held)}", allowed)
    return []


def _written(document: Mapping[str, Any], changes: Sequence[Any], problems: Problems) -> Iterator[Written]:
    places: list[tuple[Location, Any]] = [((section,), document.get(section)) for section in SECTIONS]
    places += [(("cells", index), each) for index, each in enumerate(changes)]
    seen: dict[str, str] = {}
    for place, held in places:
        section = str(place[0])
        if section != "cells" and held is None:
            continue
        if not isinstance(held, Mapping):
            allowed = {"cells": "a mapping; {} changes nothing"}.get(section, "a mapping of hyperparameters")
            problems.add(place, f"{dotted(place)} is {shown(held)}", allowed)
            continue
        for name, value in held.items():
            path = (*place, name)
            if name in RATIOS and is_number(value):
                name, value = "warmup_iters", f"{value * 100:g}%"
            first = seen.setdefault(name, section)
            if name not in TABLE:
                problems.unknown(path, list(TABLE), "hyperparameter")
            elif name == "seed":
                problems.add(path, "seed is set by the key seeds, such as `seeds: [0, 1]`", at_key=True)
            elif first != section and (first, section) != ("fixed", "cells"):
                problems.conflict((first, name), path)
            elif name in EVALUATED and section != "fixed":
                what = f"{name} must be the same in the whole study, so that losses are comparable"
                problems.add(path, what, "under fixed", at_key=True)
            elif section == "search" and not is_searched(TABLE[name]):
                what = f"{name} cannot be searched: it depends on the machine"
                problems.add(path, what, "under fixed or grid", at_key=True)
            else:
                yield Written(TABLE[name], value, path, problems)


# Names elsewhere for the share of a run's steps that the warm-up takes.
RATIOS = ("warmup_ratio", "warmup_fraction", "warmup_share")


def _check_names(expression: Expression, path: Location, problems: Problems) -> None:
    known = [*TABLE, *FACTS]
    for name in sorted(expression.names):
        if name in UNSEEN:
            problems.add(
                path, f"{expression.text!r} uses {name}, which may differ between the runs of a trial"
            )
        elif name not in known:
            near = nearest(name, [*known, "True", "False", "None"])
            problems.add(path, f"{expression.text!r} uses the unknown name {name!r}", "", near)


def _check_cycles(
    search: Mapping[str, SearchSpec], explicit: Set[str], lengths: Set[str], problems: Problems
) -> None:
    graph = {name: sorted(behind) for name, behind in FACTS.items()}
    graph |= {name: sorted(behind) for name, (behind, _) in SETTLED.items() if name not in explicit}
    for name in LENGTHS_OF.keys() & lengths:
        graph["max_iters"] = sorted(LENGTHS_OF[name])
    graph |= {name: sorted(needs(entry)) for name, entry in search.items()}
    while True:
        try:
            graphlib.TopologicalSorter(graph).prepare()
            return
        except graphlib.CycleError as error:
            circle = error.args[1][::-1]
            first = next(name for name in search if name in circle)
            start = circle.index(first)
            names = [*circle[start:-1], *circle[:start], first]
            what = f"{first} depends on itself: {' needs '.join(names)}"
            problems.add(("search", first), what, at_key=True)
            del graph[first]


def _check_space(spec: StudySpec, problems: Problems) -> None:
    before = len(problems.found)
    n_cells = math.prod(map(len, spec.grid.values())) * max(1, len(spec.cells))
    if n_cells > MOST_CELLS:
        problems.add(("grid",), f"the grid has {several(n_cells, 'cell')}", f"at most {MOST_CELLS:,}")
    for name, entry in spec.search.items():
        if not isinstance(entry, Divisors):
            continue
        # The divisors are listed before the divided hyperparameter is sampled.
        path, of = ("search", name, "divides"), spec.search.get(entry.of)
        what = f"{name} divides {entry.of}, which"
        if isinstance(of, Derived):
            problems.add(
                path, f"{what} is derived by an expression", "a hyperparameter that is sampled or fixed"
            )
        elif isinstance(of, Range) and (of.count or 0) > MOST_DIVIDED:
            allowed = f"at most {MOST_DIVIDED}: give {entry.of} a list or a step"
            problems.add(path, f"{what} has {several(of.count or 0, 'value')}", allowed)
    if len(problems.found) > before:
        return
    try:
        kept, _ = cells(spec, None)
    except BadInput as error:
        problems.found += error.problems
        return
    spaces = spaces_of(spec, kept, None)
    problems.found += [
        unmet(spec, rule, "trial", None, rule.why(spaces[0].typical), _draws(spaces))
        for rule in _never_met(spaces)
    ]
    if spec.sampler.type == "grid":
        _check_grid_sampler(spaces[0], problems)


def _never_met(spaces: Sequence[Space]) -> list[Rule]:
    broken: dict[str, Rule] = {}
    for space in spaces:
        for values in _draws([space], len(spaces)):
            rule = space.broken_rule(values)
            if rule is None:
                return []
            broken[rule.text] = rule
    return list(broken.values())


def _draws(spaces: Sequence[Space], n_spaces: int | None = None) -> Iterator[Hyperparameters]:
    """Yield some trials of spaces, which share the draws with others where there are `n_spaces`."""
    for space in spaces:
        yield from space.draws(max(4, MOST_DRAWS // (n_spaces or len(spaces))))


def _check_grid_sampler(space: Space, problems: Problems) -> None:
    for name, parameter in space.parameters.items():
        if parameter.count is None:
            what = f"the grid sampler cannot count the values of {name}"
            problems.add(("search", name), what, "a range with a step, a list, or another sampler")
    if space.has_conditions:
        what = "the grid sampler needs every parameter in every trial, but some have conditions"
        problems.add(("sampler",), what, "a search without `when` and `divides`, or another sampler")
    elif (space.n_points or 0) > LARGEST_GRID:
        what = f"the grid has {several(space.n_points or 0, 'point')}"
        problems.add(("sampler",), what, f"at most {LARGEST_GRID:,}")
