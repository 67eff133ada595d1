"""Read a study file into a typed study: overrides replace its values, a preset and the starting run add to them.

Plugins are imported only if the user allows them once. A study that was run records the digest of each file and the
names that it registered, so that it can be read afterwards without importing the files, even if they are gone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sweeplab import plugins
from sweeplab.errors import BadInput, Problem, conflict, nearest
from sweeplab.files import downloading
from sweeplab.formatting import without_passwords
from sweeplab.hyperparameters import TABLE, canonical
from sweeplab.plugins import Code, import_allowed, installed, is_package
from sweeplab.study.file.checks import study_from
from sweeplab.study.file.document import file_text, parse
from sweeplab.study.file.entries import overrides_of
from sweeplab.study.problems import LENGTHS, SECTIONS, Location, Problems, SourceMap, dotted, shown
from sweeplab.study.spec import DATA_FILES, ENGINE_KEYS, PRESETS, Plugin, StudySpec, beside, preset_names

MAX_BYTES = 1_000_000
# Returns the checkpoint of the run with a name, or None where there is none.
FindRun = Callable[[str], Path | None]
# Keys whose value may be just the name of the type.
SHORT_FORMS = ("sampler", "pruner")


def _no_run(name: str) -> None:
    return None


def read_study(
    path: Path,
    overrides: Sequence[str] = (),
    name: str | None = None,
    allow_plugins: bool = False,
    ordered: Sequence[str] = (),
    find_run: FindRun = _no_run,
) -> StudySpec:
    """Read a study file, apply `name=value` overrides to it, and check it.

    An override names a hyperparameter, which is then fixed, or a place, such as `budget.time`; or it is an option of
    the command line as `overrides_of` has it. No two may set the same thing to different values. `name` gives the
    study another name. The study's plugins are imported only with `allow_plugins`. What was `ordered` before, as
    overrides, comes before all others, and does not count as said on this command line. `find_run` returns the
    checkpoint of a run whose name `init_from` gives.

    Raises:
        BadInput: lists everything that is wrong, each with its file, line and column, or its override.
    """
    return read_text(file_text(path, MAX_BYTES), path, overrides, name, allow_plugins, ordered, find_run)


def read_text(
    text: str,
    path: Path,
    overrides: Sequence[str] = (),
    name: str | None = None,
    allow_plugins: bool = False,
    ordered: Sequence[str] = (),
    find_run: FindRun = _no_run,
) -> StudySpec:
    """Read a study file's text as `read_study` does; `path` is its file, which need not exist."""
    problems = Problems(SourceMap(path, text=text))
    document = parse(text, problems)
    if document is None:
        if not problems.found:
            problems.add((), "the study is empty")
        raise BadInput(*problems.found)
    if ordered and isinstance(document, dict):
        _rename(document, problems)
        for override in ordered:
            _lay_over(document, override, problems, "")
    return _read(document, problems, overrides, name, allow_plugins, find_run)


def said_name(path: Path) -> str:
    """Return the study's name in a study file.

    Raises:
        BadInput: the file cannot be read, or has no name.
    """
    problems = Problems(SourceMap(path))
    document = parse(file_text(path, MAX_BYTES), problems)
    name = document.get("name") if isinstance(document, dict) else None
    if not isinstance(name, str):
        raise BadInput(*(problems.found or [Problem("the file gives no study name", file=path)]))
    return name


def read_plain(
    document: Mapping[str, Any],
    overrides: Sequence[str] = (),
    allow_plugins: bool = False,
    find_run: FindRun = _no_run,
) -> StudySpec:
    """Read a study from plain values instead of a file, as `read_study` does."""
    plain = json.loads(json.dumps(document, default=_plain))  # as in a file: tuples are lists, paths texts
    return _read(plain, Problems(), overrides, None, allow_plugins, find_run)


def _plain(value: Any) -> Any:
    from sweeplab.study.algorithms import as_written  # Optuna's samplers and pruners

    written = as_written(value)
    if written is not value:
        return written
    return value.item() if hasattr(value, "item") else str(value)  # NumPy's numbers; paths


def _read(
    document: Any,
    problems: Problems,
    overrides: Sequence[str],
    name: str | None,
    allow_plugins: bool,
    find_run: FindRun,
) -> StudySpec:
    if isinstance(document, dict):
        _rename(document, problems)
        options = [*overrides, *([f"--name {name}"] if name is not None else [])]
        of_plugins = [option for option in options if option.startswith("plugins")]
        _lay_all_over(document, of_plugins, problems)
        before = len(problems.found)
        import_plugins(document, problems, allow_plugins)
        if len(problems.found) > before:  # without the plugins, the names of their parts are unknown
            raise BadInput(*problems.found)
        _lay_all_over(document, [option for option in options if option not in of_plugins], problems)
        _rename(document, problems)  # an override may set a whole section
        if document.get("preset") in preset_names():
            _lay_under("preset", preset(document["preset"]).values, document, problems.source)
        _lay_start_under(document, problems, find_run)
        _lay_data_under(document, problems.source)
    return study_from(document, problems)


def _rename(document: dict[str, Any], problems: Problems) -> None:
    """Give hyperparameters their names of the table where the document has another name, such as lr."""
    places: list[tuple[Location, Any]] = [((key,), document.get(key)) for key in (*SECTIONS, "first_trial")]
    places += [(("cells", at), changes) for at, changes in enumerate(_cells(document))]
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


def _cells(document: Mapping[str, Any]) -> list[Any]:
    cells = document.get("cells")
    return cells if isinstance(cells, list) else []


# ------------------------------------------------------------------ defaults from a preset or a starting run


@dataclass(frozen=True)
class Preset:
    """A published model: its values by hyperparameter, and the lines of the comment at the top of its file.

    `vocab_size` is that of the model's own data, if its values leave the size to the study's data.
    """

    values: Mapping[str, Any]
    notes: tuple[str, ...]
    vocab_size: int | None = None

    @property
    def meaning(self) -> str:
        """Return the first line of the notes."""
        return self.notes[0]


@cache
def preset(name: str) -> Preset:
    """Return a preset.

    Raises:
        BadInput: there is no preset of this name; suggests the nearest.
    """
    if name not in preset_names():
        known = " | ".join(preset_names())
        raise BadInput(Problem(f"unknown preset {name!r}", known, nearest(name, preset_names())))
    text = (PRESETS / f"{name}.yaml").read_text(encoding="utf-8")
    head = text.partition("fixed:")[0].splitlines()
    document = parse(text, Problems())
    notes = tuple(line.removeprefix("#").strip() for line in head)
    return Preset(document["fixed"], notes, document.get("vocab_size"))


def _lay_start_under(document: dict[str, Any], problems: Problems, find_run: FindRun) -> None:
    """Add to `fixed` the model values of the run in `init_from`, except those that the document sets itself."""
    written, data, source = document.get("init_from"), document.get("data"), problems.source
    if not isinstance(written, str) or downloading(written):
        return
    # Imported here because it imports numpy, which is slow.
    from sweeplab.study.inputs import NO_CHECKPOINT, no_start, open_start

    folder = beside(source.file, written)
    try:
        # The methods of paths raise where a name is too long.
        is_there = os.path.lexists(folder / "model.json")
        checkpoint = None if is_there else find_run(written)
        if checkpoint is not None:
            document["init_from"], folder = str(checkpoint), checkpoint
        start = open_start(folder)
    except BadInput as error:
        problems.add(("init_from",), f"init_from: {error}")
        raise BadInput(*problems.found) from error
    except NO_CHECKPOINT as error:
        # Where nothing else is missing, the plan reports it: a recorded study is read without its starting run.
        if isinstance(data, dict) and "tokenizer" not in data:
            problems.add(("init_from",), *no_start(folder))
            raise BadInput(*problems.found) from error
        return
    if isinstance(data, dict):
        data.setdefault("tokenizer", start.tokenizer.name)
    _lay_under("init_from", start.model_values, document, source)


def _lay_data_under(document: dict[str, Any], source: SourceMap) -> None:
    """Add to `data` the corpus and the tokenizer that suit its files, except those that the document sets itself."""
    data = document.get("data")
    if not isinstance(data, dict) or {"corpus", "tokenizer"} <= data.keys():
        return
    named = {key: data[key] for key in DATA_FILES if isinstance(data.get(key), str)}
    if not named:
        return
    from sweeplab.data.readers.source import Source, guessed

    fields, format = data.get("field") or [], data.get("format")
    if not isinstance(fields, list):
        fields = [fields]
    if not isinstance(format, str):
        format = ""
    places = {key: str(beside(source.file, place)) for key, place in named.items()}
    corpus, tokenizer = guessed(Source(**places, fields=tuple(map(str, fields)), format=format))
    document["data"] = {"corpus": corpus, "tokenizer": tokenizer, **data}


def _lay_under(key: str, values: Mapping[str, Any], document: dict[str, Any], source: SourceMap) -> None:
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
        if (key,) in source.values:
            source.values["fixed", name] = source.values[key,]
        if (key,) in source.overrides:
            source.overrides["fixed", name] = source.overrides[key,]


# ------------------------------------------------------------------ overrides


def _lay_all_over(document: dict[str, Any], options: Sequence[str], problems: Problems) -> None:
    """Apply overrides to the document in turn; one that removes what an earlier one has set is a problem."""
    laid: dict[Location, tuple[str, Any]] = {}
    for option in options:
        words = without_passwords(("-o " if not option.startswith("--") else "") + option)
        for override in overrides_of(option):
            path = _lay_over(document, override, problems, words)
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
    cells = [change if isinstance(change, dict) else {} for change in _cells(document)]
    if path[0] == "fixed" and cells and any(all(name in change for change in cells) for name in names):
        return False  # every cell changes it
    if isinstance(held, dict):
        return bool(part.items() <= held.items())
    return bool(held == value)


def _at(document: Any, path: Location) -> Any:
    for part in path:
        document = document.get(part) if isinstance(document, dict) else None
    return document


def _lay_over(document: dict[str, Any], override: str, problems: Problems, words: str) -> Location | None:
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
        others = [document.get(section) for section in SECTIONS if section != path[0]] + _cells(document)
        gone = [(held, path[1]) for held in others]
        # The length of training is set by only one hyperparameter: remove the other.
        if path[1] in LENGTHS and value is not None:
            rivals = {*LENGTHS} - {path[1]}
            gone += [(held, rival) for held in [document.get(path[0]), *others] for rival in rivals]
        for held, name in gone:
            if isinstance(held, dict):
                held.pop(name, None)


HOW = "--allow-plugins, or allow_plugins=True from Python, once, if you trust it"


def import_plugins(document: dict[str, Any], problems: Problems, allowed: bool) -> None:
    """Import the plugins of a study's document and record their digests in it; if not allowed, only register names.

    They are allowed here, or were earlier; to look at a study that was run, the names that it recorded suffice.

    Adds a problem for a file that is not allowed, is missing, has another digest than the document says, or raises.
    Entries that are not plugins are left to the reader of the document.
    """
    written = document.get("plugins")
    if isinstance(written, list):
        document["plugins"] = [
            _read_plugin(entry, ("plugins", index), problems, allowed) for index, entry in enumerate(written)
        ]


def check_imported(spec: StudySpec) -> None:
    """Import a study's plugins, if the user has allowed them earlier, and refuse to train it without them.

    Raises:
        BadInput: lists every plugin that is not allowed.
    """
    problems = []
    for index, plugin in enumerate(spec.plugins):
        if not import_allowed(plugin.file, plugin.sha256):
            problems.append(spec.problem(("plugins", index), _not_allowed(plugin.file), HOW))
    if problems:
        raise BadInput(*problems)


def _not_allowed(file: str) -> str:
    return f"the plugin {file} is code that would run here"


def _read_plugin(entry: Any, path: Location, problems: Problems, allowed: bool) -> Any:
    try:
        plugin = Plugin.model_validate(entry)
    except ValidationError:
        return entry
    place = plugin.file
    if not is_package(place):
        place = str(beside(problems.source.file, place))
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
            Path(place).name, [*installed(), *(file.name for file in Path(place).parent.glob("*.py"))]
        )
        problems.add(path, f"no plugin {shown(place)}: {error.strerror}", "", near)
        return entry
    if plugin.sha256 not in ("", code.digest):
        what = f"{place} has changed: its sha256 begins with {code.digest[:12]}, not {plugin.sha256[:12]}"
        problems.add(path, what)
        return entry
    if not allowed and not code.is_allowed:
        changed = " and has changed since you allowed it" * code.was_another
        problems.add(path, f"{_not_allowed(plugin.file)}{changed}", HOW)
        return entry
    code.allow()
    try:
        parts = code.parts()
    except BadInput as error:
        problems.add(path, str(error))
        return entry
    provides = {kind: [name for known, name, _ in parts if known == kind] for kind in plugins.KINDS}
    provided = {kind: names for kind, names in provides.items() if names}
    rows = {name: plugins.row_of(name) for name in provided.get("hyperparameter", ())}
    return {"file": place, "sha256": code.digest, "provides": provided, "rows": rows}
