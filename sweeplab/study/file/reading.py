"""Read a study file into a typed study: overrides replace its values, a preset and the starting run add to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.formatting import without_passwords
from sweeplab.hyperparameters import TABLE, canonical
from sweeplab.study.file.checks import study_from
from sweeplab.study.file.document import file_text, parse
from sweeplab.study.file.values import overrides_of
from sweeplab.study.plugins import import_plugins
from sweeplab.study.problems import LENGTHS, SECTIONS, Location, Problems, SourceMap, dotted
from sweeplab.study.spec import ENGINE_KEYS, PRESETS, StudySpec, beside, preset_names

MAX_BYTES = 1_000_000
# Keys whose value may be just the name of the type.
SHORT_FORMS = ("sampler", "pruner")


def read_study(
    path: Path,
    overrides: Sequence[str] = (),
    name: str | None = None,
    allow_plugins: bool = False,
    ordered: Sequence[str] = (),
) -> StudySpec:
    """Read a study file, apply `name=value` overrides to it, and check it.

    An override names a hyperparameter, which is then fixed, or a place, such as `budget.time`; or it is an option of
    the command line as `overrides_of` has it. No two may set the same thing to different values. `name` gives the
    study another name. The study's plugins are imported only with `allow_plugins`. What was `ordered` before, as
    overrides, comes before all others, and does not count as said on this command line.

    Raises:
        BadInput: lists everything that is wrong, each with its file, line and column, or its override.
    """
    return read_text(file_text(path, MAX_BYTES), path, overrides, name, allow_plugins, ordered)


def read_text(
    text: str,
    path: Path,
    overrides: Sequence[str] = (),
    name: str | None = None,
    allow_plugins: bool = False,
    ordered: Sequence[str] = (),
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
    return _read(document, problems, overrides, name, allow_plugins)


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


def read_plain(document: dict[str, Any], overrides: Sequence[str] = ()) -> StudySpec:
    """Read a study from plain values instead of a file, as `read_study` does."""
    return _read(document, Problems(SourceMap()), overrides, None, False)


def _read(
    document: Any, problems: Problems, overrides: Sequence[str], name: str | None, allow_plugins: bool
) -> StudySpec:
    if isinstance(document, dict):
        _rename(document, problems)
        _lay_all_over(document, [*overrides, *([] if name is None else [f"--name {name}"])], problems)
        _rename(document, problems)  # an override may set a whole section
        before = len(problems.found)
        import_plugins(document, problems, allow_plugins)
        if len(problems.found) > before:  # without the plugins, the names of their parts are unknown
            raise BadInput(*problems.found)
        if document.get("preset") in preset_names():
            _lay_under("preset", preset(document["preset"]).values, document, problems.source)
        _lay_start_under(document, problems.source)
    return study_from(document, problems)


def _rename(document: dict[str, Any], problems: Problems) -> None:
    """Give hyperparameters their names of the table where the document has another name, such as lr."""
    changes = document.get("cells")
    places: list[tuple[Location, Any]] = [((key,), document.get(key)) for key in (*SECTIONS, "first_trial")]
    places += [(("cells", at), held) for at, held in enumerate(changes if isinstance(changes, list) else ())]
    for place, held in places:
        if not isinstance(held, dict) or all(name == canonical(name) for name in held):
            continue
        first = dict[str, str]()
        for name in [*held]:
            known = canonical(name)
            if first.setdefault(known, name) != name:
                what = f"{known} is given twice, as {first[known]} and as {name}"
                problems.add((*place, name), what, "only one of them", at_key=True)
        written = dict(held)
        held.clear()
        for known, name in first.items():
            held[known] = written[name]
            if known != name:
                problems.source.move((*place, name), (*place, known))


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
    if name not in (known := preset_names()):
        raise BadInput(Problem(f"unknown preset {name!r}", " | ".join(known), nearest(name, known)))
    text = (PRESETS / f"{name}.yaml").read_text(encoding="utf-8")
    head = text.partition("fixed:")[0].splitlines()
    document = parse(text, Problems(SourceMap()))
    notes = tuple(line.removeprefix("#").strip() for line in head)
    return Preset(document["fixed"], notes, document.get("vocab_size"))


def _lay_start_under(document: dict[str, Any], source: SourceMap) -> None:
    """Add to `fixed` the model values of the run in `init_from`, except those that the document sets itself."""
    if not isinstance(document.get("init_from"), str):
        return
    # Imported here because it imports numpy, which is slow.
    from sweeplab.study.inputs import NO_CHECKPOINT, open_start

    with suppress(*NO_CHECKPOINT):  # reported when the study is planned
        start = open_start(beside(source.file, document["init_from"]))
        _lay_under("init_from", start.model_values, document, source)


def _lay_under(key: str, values: Mapping[str, Any], document: dict[str, Any], source: SourceMap) -> None:
    """Add to `fixed` the values that the document's `key` implies, except those that a section sets itself."""
    fixed = document.get("fixed") or {}
    if not isinstance(fixed, dict):
        return
    sections = (document.get(section) for section in SECTIONS)
    given = {each for section in sections if isinstance(section, dict) for each in section}
    if given & {*LENGTHS}:
        given |= {*LENGTHS}
    laid = {each: value for each, value in values.items() if each not in given}
    document["fixed"] = {**laid, **fixed}
    paths: list[Location] = [("fixed", each) for each in laid]
    if (key,) in source.values:
        source.values |= dict.fromkeys(paths, source.values[key,])
    if (key,) in source.overrides:
        source.overrides |= dict.fromkeys(paths, source.overrides[key,])


# ------------------------------------------------------------------ overrides


def _lay_all_over(document: dict[str, Any], options: Sequence[str], problems: Problems) -> None:
    """Apply overrides to the document in turn; one that removes what an earlier one has set is a problem."""
    laid: dict[Location, tuple[str, Any]] = {}
    for option in options:
        words = option if option.startswith("--") else f"-o {option}"
        for override in overrides_of(option):
            path = _lay_over(document, override, problems, without_passwords(words))
            lost = [place for place, (_, value) in laid.items() if not _holds(document, place, value)]
            for before, _ in map(laid.pop, lost):
                what = without_passwords(f"{before} and {words} exclude each other")
                problems.found.append(Problem(what, "one of them"))
            if path:
                laid[path] = words, deepcopy(_at(document, path))


def _holds(document: dict[str, Any], path: Location, value: Any) -> bool:
    """Return whether the document still has a value that was laid over it, alone or with more keys beside it."""
    held = _at(document, path)
    if isinstance(held, dict):
        part = value if isinstance(value, dict) else {"type": value}
        return part.items() <= held.items()
    return bool(held == value)


def _at(document: Any, path: Location) -> Any:
    """Return the value at a place of a document, or None if it has none."""
    for part in path:
        document = document.get(part) if isinstance(document, dict) else None
    return document


def _lay_over(document: dict[str, Any], override: str, problems: Problems, words: str) -> Location | None:
    """Apply `name=value` to the document, and record that the value came from these words, if any; return its place."""
    name, equals, text = override.partition("=")
    path, own = _place(name.strip()), Problems(SourceMap())
    value = parse(text, own)
    allowed = "a hyperparameter, or a place such as budget.time"
    if not equals:
        own.add((), "no value is given", "name=value")
    elif path is None:
        own.add((), f"{name!r} is unknown", allowed, nearest(name, [*TABLE, *StudySpec.model_fields]))
    elif not all(str(part).strip() for part in path):
        own.add((), f"{name!r} has an empty part", allowed)
    elif not own.found:
        if path in (("engine",), ("engine", "type")) and isinstance(value, str):
            path = ("engine", "type")
            _drop_keys_of_others(document, value)
        _set(document, path, value, own)
        problems.source.forget(path)
        if words:
            problems.source.overrides[path] = words
    for each in own.found:
        problems.found.append(Problem(f"{words or override}: {each.what}", each.allowed, each.nearest))
    return None if own.found else path


def _drop_keys_of_others(document: dict[str, Any], engine: str) -> None:
    """Remove from a document the keys that this engine does not have."""
    written = document.get("engine")
    if isinstance(written, dict):
        for name in [each for each, engines in ENGINE_KEYS.items() if engine not in engines]:
            written.pop(name, None)


def _place(name: str) -> Location | None:
    """Return the location that an override sets: a bare hyperparameter is set under `fixed`."""
    first, *below = name.split(".")
    if below:
        is_of_hyperparameters = first in (*SECTIONS, "first_trial")
        return (first, canonical(below[0]) if is_of_hyperparameters else below[0], *below[1:])
    if name in StudySpec.model_fields:
        return (name,)
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
        cells = document.get("cells")
        others = [document.get(section) for section in SECTIONS if section != path[0]]
        for held in [*others, *(cells if isinstance(cells, list) else ())]:
            if isinstance(held, dict):
                held.pop(path[1], None)
        # The length of training is set by only one hyperparameter: remove the other.
        if path[1] in LENGTHS and value is not None:
            for held in [document.get(path[0]), *others, *(cells if isinstance(cells, list) else ())]:
                for rival in LENGTHS:
                    if isinstance(held, dict) and rival != path[1]:
                        held.pop(rival, None)
