"""What a command line sets in the document of a study: ranges, grids, and values by their place or their name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sweeplab.errors import BadInput, Problem, conflict, nearest
from sweeplab.formatting import without_passwords, yaml_text
from sweeplab.hyperparameters import TABLE, Hyperparameter, canonical
from sweeplab.study.file.entries import RANGES, checked_range, share_of, values_of
from sweeplab.study.file.parse import parse
from sweeplab.study.problems import LENGTHS, SECTIONS, Location, Problems, dotted
from sweeplab.study.search import SUGGESTED, is_searched
from sweeplab.study.spec import ENGINE_KEYS, StudySpec

# The places in a study file that options of the command line set.
_PLACES = {"--engine": "engine.type", "--name": "name", "--preset": "preset"}
PLACES = "a hyperparameter, or a place such as budget.time"
# Keys whose value may be just the name of the type.
SHORT_FORMS = ("sampler", "pruner")


def read_search(words: Sequence[str]) -> dict[str, Any]:
    """Parse the options `--search learning_rate=1e-4..1e-2`, `--search dropout,eps` into entries of `search`.

    A name alone gets the table's suggested range.

    Raises:
        BadInput: a hyperparameter is unknown, does not accept such a range, or is given two.
    """
    return {name: entry for name, (entry, _) in _searched(words).items()}


# What options have set, by hyperparameter: the entry, and the option.
Entered = dict[str, tuple[Any, str]]


def _searched(words: Sequence[str]) -> Entered:
    entered: Entered = {}
    for word in words:
        option = f"--search {word}"
        names, equals, written = word.partition("=")
        if equals:
            row = _row(names, option)
            _add(entered, row.name, _range(row, written, option), option)
            continue
        for name in names.split(","):
            if name.strip():
                _add(entered, _row(name, option).name, SUGGESTED, option)
    return entered


def _range(row: Hyperparameter, written: str, option: str) -> Any:
    entry, wrong = checked_range(row, written)
    if entry is None or not is_searched(row):
        raise BadInput(Problem(f"{option} is not a range of {row.name}", RANGES))
    if wrong:
        raise BadInput(*(replace(problem, what=f"{option}: {problem.what}") for problem in wrong))
    return entry


def read_grid(
    words: Sequence[str], ranges: Mapping[str, Any], search: Sequence[str] = ()
) -> dict[str, list[Any]]:
    """Parse the options `--grid n_layer=1,2,4` into a grid; a name alone gets the values of its range.

    Raises:
        BadInput: a hyperparameter is unknown, does not accept a value, has no list of values, is given two lists, or
            is in one of the options `search` too.
    """
    grid: Entered = {}
    searched = _searched(search)
    for word in words:
        option = f"--grid {word}"
        name, equals, written = word.partition("=")
        row = _row(name, option)
        try:
            values = values_of(row, written) if equals else ranges.get(row.name, row.suggested)
        except ValueError as error:
            raise BadInput(Problem(f"{option}: {error}", row.allowed)) from None
        if not isinstance(values, list | tuple) or not values:
            raise BadInput(Problem(f"--grid {row.name} has no list of values", f"{row.name}=A,B,C"))
        if row.name in searched:
            raise BadInput(conflict(option, searched[row.name][1]))
        _add(grid, row.name, list(dict.fromkeys(values)), option)
    return {name: values for name, (values, _) in grid.items()}


def _add(entered: Entered, name: str, entry: Any, option: str) -> None:
    before, first = entered.setdefault(name, (entry, option))
    if before != entry:
        raise BadInput(conflict(first, option))


def overrides_of(option: str) -> list[str]:
    """Return the overrides of a study file that an option of the command line stands for.

    The option is `--grid WORD`, `--search WORD`, `--at NAME=VALUE`, one of `_PLACES` with its value, or an override
    itself.

    Raises:
        BadInput: as `read_grid` and `read_search` do.
    """
    kind, _, word = option.partition(" ")
    if kind in _PLACES:
        return [f"{_PLACES[kind]}={yaml_text(word)}"]
    if kind == "--at":
        return [word]
    if kind not in ("--grid", "--search"):
        return [option]
    section, (name, _, text) = kind[2:], word.partition("=")
    if "," not in name and text:
        row = _row(name, option)
        if row.kind == "str":
            return [f"{section}.{row.name}=[{text}]"]  # a plugin, not imported yet, may add choices
    entries = read_grid([word], {}) if section == "grid" else read_search([word])
    return [f"{section}.{each}={yaml_text(entry)}" for each, entry in entries.items()]


def _row(name: str, word: str) -> Hyperparameter:
    known = canonical(name.strip())
    if known not in TABLE:
        raise BadInput(Problem(f"{word}: unknown hyperparameter {name!r}", "", nearest(known, TABLE)))
    return TABLE[known]


def rename(document: dict[str, Any], problems: Problems) -> None:
    """Give hyperparameters their names of the table where the document has another name, such as lr."""
    places: list[tuple[Location, Any]] = [((key,), document.get(key)) for key in (*SECTIONS, "first_trial")]
    places += [(("cells", at), changes) for at, changes in enumerate(cell_changes(document))]
    for place, held in places:
        if not isinstance(held, dict) or all(name == canonical(name) for name in held):
            continue
        first = dict[str, str]()
        for name in [*held]:
            known = canonical(name)
            if first.setdefault(known, name) != name:
                problems.conflict((*place, first[known]), (*place, name))
        written = dict(held)
        held.clear()
        for known, name in first.items():
            held[known] = written[name]
            if known != name:
                problems.source.move((*place, name), (*place, known))


def move_shares(document: dict[str, Any], problems: Problems) -> None:
    """Write values that are a share of others, such as `warmup_iters: 5%`, as expressions under `search`."""
    for section in ("fixed", "search"):
        held = document.get(section)
        if not isinstance(held, dict):
            continue
        for name, value in [*held.items()]:
            share = share_of(TABLE[name], value) if name in TABLE else None
            search = document.setdefault("search", {}) if share else None
            if not isinstance(search, dict):
                continue
            if name in search and section != "search":
                problems.conflict(("search", name), (section, name))
            del held[name]
            search[name] = share
            problems.source.move((section, name), ("search", name))


def cell_changes(document: Mapping[str, Any]) -> list[Any]:
    """Return the entries of `cells` in a study's document."""
    cells = document.get("cells")
    return cells if isinstance(cells, list) else []


def lay_all_over(document: dict[str, Any], options: Sequence[str], problems: Problems) -> None:
    """Apply overrides to the document in turn; two that set the same thing differently are a problem."""
    laid: dict[str, tuple[Location, Any, str]] = {}
    for option in options:
        words = without_passwords(("-o " if not option.startswith("--") else "") + option)
        for override in overrides_of(option):
            placed = lay_over(document, override, problems, words)
            if placed is None:
                continue
            path, value = placed
            things = _things(path, value)
            for thing, (earlier, held, first) in laid.items():
                is_replaced = thing not in things and earlier[: len(path)] == path
                if is_replaced or things.get(thing, held) != held:
                    problems.found.append(conflict(first, words))
            laid |= {thing: (path, held, words) for thing, held in things.items()}


def _things(path: Location, value: Any) -> dict[str, Any]:
    """Return what an override sets, by hyperparameter or else by place, and to what."""
    section = str(path[0])
    if section == "cells" and isinstance(value, list):
        return {_thing(name): value for changes in value if isinstance(changes, dict) for name in changes}
    if section in SECTIONS and len(path) == 2:
        return {_thing(path[1]): (path, value)}
    if section in SECTIONS and isinstance(value, dict):
        return {_thing(name): ((section, name), each) for name, each in value.items()}
    if isinstance(value, dict):
        return {dotted((*path, name)): each for name, each in value.items()}
    if section in SHORT_FORMS and len(path) == 1:
        return {f"{section}.type": value}
    return {dotted(path): value}


def _thing(name: str | int) -> str:
    known = canonical(str(name))
    return "length" if known in LENGTHS else known


def lay_over(
    document: dict[str, Any], override: str, problems: Problems, words: str
) -> tuple[Location, Any] | None:
    """Apply `name=value` to the document; return the place and the value, or None where it is wrong.

    The value counts as said by these words of the command line, if there are any.
    """
    name, equals, text = override.partition("=")
    mistakes, path, value = Problems(), _place(name.strip()), None
    if not equals:
        mistakes.add((), "no value is given", "name=value")
    elif path is None:
        near = nearest(name, [*TABLE, *StudySpec.model_fields])
        mistakes.add((), f"{name!r} is unknown", PLACES, near)
    elif not all(str(part).strip() for part in path):
        mistakes.add((), f"{name!r} has an empty part", PLACES)
    else:
        value = parse(text, mistakes)
    if path and not mistakes.found:
        if path == ("engine",) and isinstance(value, str):
            path = ("engine", "type")
        _set(document, path, value, mistakes)
    for problem in mistakes.found:
        what = f"{words or override}: {problem.what}"
        problems.found.append(Problem(what, problem.allowed, problem.nearest))
    if path is None or mistakes.found:
        return None
    problems.source.forget(path)
    if words:
        problems.source.overrides[path] = words
    return path, value


def _place(name: str) -> Location | None:
    first, *below = name.split(".")
    if below and first in (*SECTIONS, "first_trial"):
        below[0] = canonical(below[0])
    if below or name in StudySpec.model_fields:
        return (first, *below)
    return ("fixed", canonical(name)) if canonical(name) in TABLE else None


def _set(document: dict[str, Any], path: Location, value: Any, problems: Problems) -> None:
    held: Any = document
    for depth, part in enumerate(path[:-1], start=1):
        below = held.get(part)
        if below is None:
            below = {}
        elif depth == 1 and part in SHORT_FORMS and isinstance(below, str):
            below = {"type": below}
        elif not isinstance(below, dict):
            problems.add((), f"{dotted(path[:depth])} has no keys to set")
            return
        held[part] = below
        held = below
    held[path[-1]] = value
    if path == ("engine", "type"):
        for key, engines in ENGINE_KEYS.items():
            if value not in engines:
                held.pop(key, None)
    if path[0] in SECTIONS and len(path) > 1:
        _drop_elsewhere(document, path, value)


def _drop_elsewhere(document: dict[str, Any], path: Location, value: Any) -> None:
    """Remove a hyperparameter from the other sections; of those that set the length of training only one stays."""
    for section in (*SECTIONS, *cell_changes(document)):
        held = document.get(section) if isinstance(section, str) else section
        if not isinstance(held, dict):
            continue
        if section != path[0]:
            held.pop(path[1], None)
        if path[1] in LENGTHS and value is not None:
            for rival in {*LENGTHS} - {path[1]}:
                held.pop(rival, None)
