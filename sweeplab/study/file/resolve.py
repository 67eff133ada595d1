"""Resolve what the document of a study names elsewhere: plugins, a preset, a starting run, data, and a command line.

This is the only step of reading a study that opens other files. Plugins are imported only if the user allows them once.
A study that was run records the digest of each file and the names that it registered, so that it can be read afterwards
without importing the files, even if they are gone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sweeplab import plugins
from sweeplab.errors import BadInput, Problem, conflict, nearest
from sweeplab.formatting import without_passwords
from sweeplab.hyperparameters import TABLE, canonical
from sweeplab.plugins import Code, import_allowed
from sweeplab.study.file.entries import RANGES, read_range, share_of, values_of
from sweeplab.study.file.parse import parse
from sweeplab.study.problems import LENGTHS, SECTIONS, Location, Problems, dotted, shown
from sweeplab.study.spec import (
    DATA_FILES,
    PRESETS,
    TOKENIZER_SUFFIXES,
    Plugin,
    StudySpec,
    preset_names,
)
from sweeplab.study.values import SUGGESTED

# Returns the checkpoint of the run with a name, or None where there is none.
FindRun = Callable[[str], Path | None]


def no_run(name: str) -> None:
    """Find no run, where there is no lab to look into."""


def resolve(
    document: Any,
    problems: Problems,
    overrides: Sequence[str],
    allow_plugins: bool,
    find_run: FindRun,
) -> None:
    """Lay overrides over a document, and add to it what its plugins, preset, starting run and data imply.

    Raises:
        BadInput: a plugin is not allowed or wrong, or the starting run is missing; without it more would be wrong.
    """
    if not isinstance(document, dict):
        return
    of_plugins = [option for option in overrides if option.startswith("plugins")]
    lay_all_over(document, of_plugins, problems)
    before, written = len(problems.found), document.get("plugins")
    if isinstance(written, list):
        document["plugins"] = [
            _read_plugin(entry, ("plugins", index), problems, allow_plugins)
            for index, entry in enumerate(written)
        ]
    # Without the plugins, the names of their parts are unknown.
    if len(problems.found) > before:
        problems.refuse()
    lay_all_over(
        document, [option for option in overrides if option not in of_plugins], problems
    )
    move_shares(document, problems)
    if document.get("preset") in preset_names():
        _lay_under("preset", preset(document["preset"]).values, document, problems)
    _lay_start_under(document, problems, find_run)
    _lay_data_under(document, problems.file)


@dataclass(frozen=True)
class Preset:
    """A published model: its values by hyperparameter, and the lines of the comment at the top of its file.

    `vocab_size` is that of the model's own data, if its values leave the size to the study's data.
    """

    values: Mapping[str, Any]
    notes: tuple[str, ...]
    vocab_size: int | None = None


@cache
def preset(name: str) -> Preset:
    """Return a preset.

    Raises:
        BadInput: there is no preset of this name; suggests the nearest.
    """
    if name not in preset_names():
        known = " | ".join(preset_names())
        raise BadInput(
            Problem(f"unknown preset {name!r}", known, nearest(name, preset_names()))
        )
    text = (PRESETS / f"{name}.yaml").read_text(encoding="utf-8")
    head = text.partition("fixed:")[0].splitlines()
    document = parse(text, Problems())
    notes = tuple(line.removeprefix("#").strip() for line in head)
    return Preset(document["fixed"], notes, document.get("vocab_size"))


def beside(file: Path | None, path: str) -> Path:
    """Return the absolute path for one in a study file: a relative one starts at the file's folder."""
    folder = file.absolute().parent if file else Path.cwd()
    return folder / os.path.expanduser(path)  # noqa: PTH111 - that of paths raises where there is no such user


def _lay_start_under(document: dict[str, Any], problems: Problems, find_run: FindRun) -> None:
    """Add to `fixed` the model values of the run in `init_from`, except those that the document sets itself.

    `init_from` becomes the absolute path of its checkpoint.
    """
    written, data = document.get("init_from"), document.get("data")
    if not isinstance(written, str) or not written:
        return
    # Imported here because it imports numpy, which is slow.
    from sweeplab.study.inputs import NO_CHECKPOINT, no_start, open_start

    folder = beside(problems.file, written)
    try:
        # The methods of paths raise where a name is too long.
        is_there = os.path.lexists(folder / "model.json")
        checkpoint = None if is_there else find_run(written)
        folder = checkpoint or folder
        document["init_from"] = str(folder)
        start = open_start(folder)
    except BadInput as error:
        problems.add(("init_from",), f"init_from: {error}")
        problems.refuse()
    except NO_CHECKPOINT:
        # Where nothing else is missing, the plan reports it: a recorded study is read without its starting run.
        if isinstance(data, dict) and "tokenizer" not in data:
            problems.add(("init_from",), *no_start(folder))
            problems.refuse()
    else:
        if isinstance(data, dict):
            data.setdefault("tokenizer", start.tokenizer.name)
        _lay_under("init_from", start.model_values, document, problems)


def _lay_data_under(document: dict[str, Any], file: Path | None) -> None:
    """Make the paths in `data` absolute, and add the corpus and the tokenizer that suit them where it names none."""
    data = document.get("data")
    if not isinstance(data, dict):
        return
    for key, place in data.items():
        is_tokenizer = key == "tokenizer" and str(place).endswith(TOKENIZER_SUFFIXES)
        if isinstance(place, str) and place and (key in DATA_FILES or is_tokenizer):
            data[key] = str(beside(file, place))
    named = {key: data[key] for key in DATA_FILES if isinstance(data.get(key), str)}
    if not named or {"corpus", "tokenizer"} <= data.keys():
        return
    from sweeplab.data.source import Source, guessed

    fields = data.get("field") or []
    if not isinstance(fields, list):
        fields = [fields]
    corpus, tokenizer = guessed(Source(**named, fields=tuple(map(str, fields))))
    document["data"] = {"corpus": corpus, "tokenizer": tokenizer, **data}


def _lay_under(
    key: str, values: Mapping[str, Any], document: dict[str, Any], problems: Problems
) -> None:
    """Add to `fixed` the values that the document's `key` implies, except those that a section sets itself."""
    fixed = document.get("fixed") or {}
    if not isinstance(fixed, dict):
        return
    sections = (document.get(section) for section in SECTIONS)
    held = {name for section in sections if isinstance(section, dict) for name in section}
    if held & {*LENGTHS}:
        held |= {*LENGTHS}
    laid = {name: value for name, value in values.items() if name not in held}
    document["fixed"] = {**laid, **fixed}
    for name in laid:
        if (key,) in problems.places:
            problems.places["fixed", name] = problems.places[key,]


HOW = "--allow-plugins, or allow_plugins=True from Python, once, if you trust it"


def check_imported(spec: StudySpec) -> None:
    """Import a study's plugins, if the user has allowed them earlier, and refuse to train it without them.

    Raises:
        BadInput: lists every plugin that is not allowed.
    """
    problems = [
        spec.problem(("plugins", index), _not_allowed(plugin.file), HOW)
        for index, plugin in enumerate(spec.plugins)
        if not import_allowed(plugin.file, plugin.sha256)
    ]
    if problems:
        raise BadInput(*problems)


def _not_allowed(file: str) -> str:
    return f"the plugin {file} is code that would run here"


def _read_plugin(entry: Any, path: Location, problems: Problems, allowed: bool) -> Any:
    """Import a plugin and return its entry with its digest and names; if not allowed, only register the names.

    It is allowed here, or was earlier; to look at a study that was run, the names that it recorded suffice. Adds a
    problem for a file that is not allowed, is missing, has another digest than the document says, or raises. An entry
    that is no plugin is left to the reader of the document.
    """
    try:
        plugin = Plugin.model_validate(entry)
    except ValidationError:
        return entry
    place = str(beside(problems.file, plugin.file))
    # Of a study that was run: names suffice to look at it.
    if not allowed and "provides" in plugin.model_fields_set:
        plugins.add_names(plugin.provides, plugin.rows)
        return entry
    try:
        code = Code.at(place)
    except OSError as error:
        if not allowed:
            problems.add(path, _not_allowed(plugin.file), HOW)
            return entry
        near = nearest(
            Path(place).name, [file.name for file in Path(place).parent.glob("*.py")]
        )
        problems.add(path, f"no plugin {shown(place)}: {error.strerror}", "", near)
        return entry
    if plugin.sha256 not in ("", code.digest):
        what = f"{place} has changed: its sha256 begins with {code.digest[:12]}, not {plugin.sha256[:12]}"
        problems.add(path, what)
        return entry
    if not allowed and not code.is_allowed:
        problems.add(path, _not_allowed(plugin.file), HOW)
        return entry
    code.allow()
    try:
        parts = code.parts()
    except BadInput as error:
        problems.add(path, str(error))
        return entry
    provided = dict[str, list[str]]()
    for kind, name, _ in parts:
        provided.setdefault(kind, []).append(name)
    rows = {name: asdict(TABLE[name]) for name in provided.get("hyperparameter", ())}
    return {"file": place, "sha256": code.digest, "provides": provided, "rows": rows}


# ------------------------------------------------------------------ what a command line sets in a document


# The places in a study file that options of the command line set.
_PLACES: dict[str, Location] = {
    "--engine": ("engine", "type"),
    "--name": ("name",),
    "--preset": ("preset",),
}
# Keys whose value may be just the name of the type.
SHORT_FORMS = ("sampler", "pruner")


def read_options(options: Iterable[str]) -> dict[str, Any]:
    """Parse the options `--grid n_layer=1,2,4` and `--search learning_rate=1e-4..1e-2` into a document.

    Raises:
        BadInput: a hyperparameter is unknown, does not accept such values, or is given two of them.
    """
    document: dict[str, Any] = {"grid": {}, "search": {}}
    problems = Problems()
    lay_all_over(document, options, problems)
    problems.refuse()
    return document


def _entries(section: str, word: str) -> Iterator[tuple[str, Any]]:
    """Yield the hyperparameters of an option `--grid …` or `--search …` with their entries."""
    names, equals, written = word.partition("=")
    for name in [names] if equals else filter(str.strip, names.split(",")):
        known = canonical(name.strip())
        if known not in TABLE:
            raise BadInput(
                Problem(f"unknown hyperparameter {name!r}", "", nearest(known, TABLE))
            )
        row = TABLE[known]
        if section == "grid":
            try:
                values = values_of(row, written)
            except ValueError as error:
                raise BadInput(Problem(str(error), row.allowed)) from None
            if not values:
                raise BadInput(Problem("no list of values", f"{row.name}=A,B,C"))
            yield known, list(dict.fromkeys(values))
        elif equals:
            entry = read_range(row, written)
            if entry is None:
                raise BadInput(Problem(f"not a range of {row.name}", RANGES))
            yield known, entry
        else:
            yield known, SUGGESTED


def move_shares(document: dict[str, Any], problems: Problems) -> None:
    """Write values that are a share of others, such as `warmup_iters: 5%`, as expressions under `search`."""
    for section in ("fixed", "search"):
        held, search = document.get(section), document.get("search") or {}
        if not isinstance(held, dict) or not isinstance(search, dict):
            continue
        for name, value in [*held.items()]:
            share = share_of(TABLE[name], value) if name in TABLE else None
            if share is None or (section == "fixed" and name in search):
                continue
            del held[name]
            search[name] = share
            document["search"] = search
            if (section, name) in problems.places:
                problems.places["search", name] = problems.places[section, name]


def lay_all_over(document: dict[str, Any], options: Iterable[str], problems: Problems) -> None:
    """Apply overrides to the document in turn; two that set the same thing differently are a problem.

    An override is `NAME=VALUE`, or an option of the command line: `--grid WORD`, `--search WORD`, `--at NAME=VALUE`,
    or one of `_PLACES` with its value.
    """
    laid: dict[str, tuple[Any, str]] = {}
    for option in options:
        words = without_passwords(option if option.startswith("--") else f"-o {option}")
        try:
            for path, value in _settings(option):
                _set(document, path, value)
                problems.forget(path)
                for length in range(1, len(path) + 1):
                    problems.places.setdefault(path[:length], words)
                for thing, held in _things(path, value):
                    before, first = laid.setdefault(thing, (held, words))
                    if before != held:
                        problems.found.append(conflict(first, words))
        except BadInput as error:
            for wrong in error.problems:
                what = f"{words}: {wrong.what}"
                problems.found.append(Problem(what, wrong.allowed, wrong.nearest))


def _settings(option: str) -> Iterator[tuple[Location, Any]]:
    """Yield the places in a document that an override sets, each with its value."""
    kind, _, word = option.partition(" ")
    if kind in ("--grid", "--search"):
        for known, entry in _entries(kind[2:], word):
            yield (kind[2:], known), entry
        return
    if kind in _PLACES:
        yield _PLACES[kind], word
        return
    name, equals, text = option.removeprefix("--at ").partition("=")
    path, problems = _place(name.strip()), Problems()
    if not equals:
        raise BadInput(Problem("no value is given", "name=value"))
    if not path:
        near = nearest(name, [*TABLE, *StudySpec.model_fields])
        raise BadInput(
            Problem(
                f"{name!r} is unknown", "a hyperparameter, or a place such as budget.time", near
            )
        )
    value = parse(text, problems, path)
    problems.refuse()
    yield path, value


def _things(path: Location, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an override sets, by hyperparameter or else by place, and to what."""
    section, *below = path
    if isinstance(value, dict) and not below:
        for name, entry in value.items():
            yield from _things((section, name), entry)
    elif section == "cells" and isinstance(value, list):
        for changes in value:
            if isinstance(changes, dict):
                yield from ((_thing(name), value) for name in changes)
    elif section in SECTIONS and len(below) == 1:
        yield _thing(below[0]), (path, value)
    elif section in SHORT_FORMS and not below:
        yield f"{section}.type", value
    else:
        yield dotted(path), value


def _thing(name: str | int) -> str:
    known = canonical(str(name))
    return "length" if known in LENGTHS else known


def _place(name: str) -> Location:
    first, *below = name.split(".")
    if below and first in (*SECTIONS, "first_trial"):
        below[0] = canonical(below[0])
    if below or name in StudySpec.model_fields:
        return (first, *below)
    if canonical(name) in TABLE:
        return ("fixed", canonical(name))
    return ()


def _set(document: dict[str, Any], path: Location, value: Any) -> None:
    held: Any = document
    for depth, part in enumerate(path[:-1], start=1):
        below = held.get(part)
        if below is None:
            below = {}
        elif depth == 1 and part in SHORT_FORMS and isinstance(below, str):
            below = {"type": below}
        elif not isinstance(below, dict):
            raise BadInput(f"{dotted(path[:depth])} has no keys to set")
        held[part] = below
        held = below
    held[path[-1]] = value
    if path[0] in SECTIONS and len(path) > 1:
        _drop_elsewhere(document, path, value)


def _drop_elsewhere(document: dict[str, Any], path: Location, value: Any) -> None:
    """Remove a hyperparameter from the other sections; of those that set the length of training only one stays."""
    section, name = str(path[0]), path[1]
    places = [document.get(each) for each in SECTIONS]
    if isinstance(document.get("cells"), list):
        places += document["cells"]
    for held in places:
        if not isinstance(held, dict):
            continue
        if held is not document[section]:
            held.pop(name, None)
        if name in LENGTHS and value is not None:
            for rival in {*LENGTHS} - {name}:
                held.pop(rival, None)
