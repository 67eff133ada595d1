"""What a command line sets in the document of a study: ranges, grids, and values by their place or their name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from sweeplab.errors import BadInput, Problem, conflict, nearest
from sweeplab.formatting import without_passwords, yaml_text
from sweeplab.hyperparameters import TABLE, Hyperparameter, canonical, is_number
from sweeplab.study.file.entries import RANGES, checked_range, share_of, values_of
from sweeplab.study.file.parse import parse
from sweeplab.study.problems import LENGTHS, SECTIONS, Location, Problems, dotted
from sweeplab.study.search import SUGGESTED, is_searched
from sweeplab.study.spec import ENGINE_KEYS, StudySpec

# The places in a study file that options of the command line set.
_PLACES = {"--engine": "engine.type", "--name": "name", "--preset": "preset"}
# Keys whose value may be just the name of the type.
SHORT_FORMS = ("sampler", "pruner")


def read_search(words: Sequence[str]) -> dict[str, Any]:
    """Parse the options `--search learning_rate=1e-4..1e-2`, `--search dropout,eps` into entries of `search`.

    A name alone gets the table's suggested range.

    Raises:
        BadInput: a hyperparameter is unknown, does not accept such a range, or is given two.
    """
    return {name: entry for name, (entry, _) in _searched(words).items()}


def _searched(words: Sequence[str]) -> dict[str, tuple[Any, str]]:
    entered = dict[str, tuple[Any, str]]()
    for word in words:
        names, equals, written = word.partition("=")
        rows = [_row(each, f"--search {word}") for each in names.split(",") if each.strip()]
        entries: dict[str, Any] = dict.fromkeys((row.name for row in rows), SUGGESTED)
        if equals:
            row = rows[0] if rows else _row(names, f"--search {word}")
            entry, wrong = checked_range(row, written)
            if len(rows) > 1 or entry is None or not is_searched(row):
                raise BadInput(Problem(f"--search {word} is not a range of {row.name}", RANGES))
            if wrong:
                placed = (replace(problem, what=f"--search {word}: {problem.what}") for problem in wrong)
                raise BadInput(*placed)
            entries = {row.name: entry}
        _add(entered, entries, f"--search {word}")
    return entered


def read_grid(
    words: Sequence[str], ranges: Mapping[str, Any], search: Sequence[str] = ()
) -> dict[str, list[Any]]:
    """Parse the options `--grid n_layer=1,2,4` into a grid; a name alone gets the values of its range.

    Raises:
        BadInput: a hyperparameter is unknown, does not accept a value, has no list of values, is given two lists, or
            is in one of the options `search` too.
    """
    grid, searched = dict[str, tuple[Any, str]](), _searched(search)
    for word in words:
        name, equals, written = word.partition("=")
        row = _row(name, f"--grid {word}")
        try:
            values = values_of(row, written) if equals else ranges.get(row.name, row.suggested)
        except ValueError as error:
            raise BadInput(Problem(f"--grid {word}: {error}", row.allowed)) from None
        if not isinstance(values, list | tuple) or not values:
            raise BadInput(Problem(f"--grid {row.name} has no list of values", f"{row.name}=A,B,C"))
        if row.name in searched:
            raise BadInput(conflict(f"--grid {word}", searched[row.name][1]))
        _add(grid, {row.name: list(dict.fromkeys(values))}, f"--grid {word}")
    return {name: values for name, (values, _) in grid.items()}


def _add(entered: dict[str, tuple[Any, str]], entries: Mapping[str, Any], option: str) -> None:
    """Add the entries of one more option, none of which may have been given differently before."""
    for name, entry in entries.items():
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


# Names elsewhere for the share of a run's steps that the warm-up takes.
RATIOS = ("warmup_ratio", "warmup_fraction", "warmup_share")


def move_shares(document: dict[str, Any], problems: Problems) -> None:
    """Write values that are a share of others, such as `warmup_iters: 5%`, as expressions under `search`."""
    for section in ("fixed", "search"):
        held = document.get(section)
        for name, value in [*held.items()] if isinstance(held, dict) else ():
            known = name
            if name in RATIOS and is_number(value):
                known, value = "warmup_iters", f"{value * 100:g}%"
            share = share_of(TABLE[known], value) if known in TABLE else None
            search = document.setdefault("search", {}) if share else None
            if held is None or not isinstance(search, dict):
                continue
            if known in search and (section, known) != ("search", name):
                problems.conflict(("search", known), (section, name))
            del held[name]
            search[known] = share
            problems.source.move((section, name), ("search", known))


def cell_changes(document: Mapping[str, Any]) -> list[Any]:
    """Return the entries of `cells` in a study's document."""
    cells = document.get("cells")
    return cells if isinstance(cells, list) else []


def lay_all_over(document: dict[str, Any], options: Sequence[str], problems: Problems) -> None:
    """Apply overrides to the document in turn; one that removes what an earlier one has set is a problem."""
    laid: dict[Location, tuple[str, Any]] = {}
    for option in options:
        words = without_passwords(("-o " if not option.startswith("--") else "") + option)
        for override in overrides_of(option):
            path = lay_over(document, override, problems, words)
            lost = [place for place, (_, value) in laid.items() if not _holds(document, place, value)]
            for before, _ in map(laid.pop, lost):
                problems.found.append(conflict(before, words))
            if path and ("cells",) in laid and not _holds(document, path, _at(document, path)):
                problems.found.append(conflict(laid["cells",][0], words))
            if path:
                laid[path] = words, deepcopy(_at(document, path))


def _holds(document: dict[str, Any], path: Location, value: Any) -> bool:
    held, part = _at(document, path), value
    if not isinstance(value, dict):
        part = {"type": value}
    names = path[1:2] or tuple(value if part is value else ())
    cells = [change if isinstance(change, dict) else {} for change in cell_changes(document)]
    if path[0] == "fixed" and cells and any(all(name in change for change in cells) for name in names):
        return False  # every cell changes it
    if isinstance(held, dict):
        return bool(part.items() <= held.items())
    return bool(held == value)


def _at(document: Any, path: Location) -> Any:
    for part in path:
        document = document.get(part) if isinstance(document, dict) else None
    return document


def lay_over(document: dict[str, Any], override: str, problems: Problems, words: str) -> Location | None:
    """Apply `name=value` to the document, and record that the value came from these words, if any; return its place."""
    name, equals, text = override.partition("=")
    path, mistakes = _place(name.strip()), Problems()
    value = parse(text, mistakes)
    allowed = "a hyperparameter, or a place such as budget.time"
    if not equals:
        mistakes.add((), "no value is given", "name=value")
    elif path is None:
        mistakes.add((), f"{name!r} is unknown", allowed, nearest(name, [*TABLE, *StudySpec.model_fields]))
    elif not all(str(part).strip() for part in path):
        mistakes.add((), f"{name!r} has an empty part", allowed)
    elif not mistakes.found:
        if path in (("engine",), ("engine", "type")) and isinstance(value, str):
            path, engine = ("engine", "type"), document.get("engine")
            if isinstance(engine, dict):
                for key in [key for key, engines in ENGINE_KEYS.items() if value not in engines]:
                    engine.pop(key, None)
        _set(document, path, value, mistakes)
        problems.source.forget(path)
        if words:
            problems.source.overrides[path] = words
    for problem in mistakes.found:
        what = f"{words or override}: {problem.what}"
        problems.found.append(Problem(what, problem.allowed, problem.nearest))
    return None if mistakes.found else path


def _place(name: str) -> Location | None:
    first, *below = name.split(".")
    if below and first in (*SECTIONS, "first_trial"):
        below[0] = canonical(below[0])
    if below or name in StudySpec.model_fields:
        return (first, *below)
    return ("fixed", canonical(name)) if canonical(name) in TABLE else None


def _set(document: dict[str, Any], path: Location, value: Any, problems: Problems) -> None:
    inner: Any = document
    for depth, part in enumerate(path[:-1], start=1):
        held = inner.get(part)
        if held is None:
            held = {}
        elif depth == 1 and part in SHORT_FORMS and isinstance(held, str):
            held = {"type": held}
        elif not isinstance(held, dict):
            problems.add((), f"{dotted(path[:depth])} has no keys to set")
            return
        inner[part] = held
        inner = held
    inner[path[-1]] = value
    if path[0] in SECTIONS and len(path) > 1:
        # A hyperparameter is set in only one section: the override moves it.
        others = [document.get(section) for section in SECTIONS if section != path[0]] + cell_changes(
            document
        )
        gone = [(held, path[1]) for held in others]
        # The length of training is set by only one hyperparameter: remove the other.
        if path[1] in LENGTHS and value is not None:
            rivals = {*LENGTHS} - {path[1]}
            gone += [(held, rival) for held in [document.get(path[0]), *others] for rival in rivals]
        for held, name in gone:
            if isinstance(held, dict):
                held.pop(name, None)
