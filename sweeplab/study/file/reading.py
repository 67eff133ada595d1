"""A study file to a typed study, with overrides laid over it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.hyperparameters import TABLE
from sweeplab.study.file.checks import study_from
from sweeplab.study.file.document import parse, position
from sweeplab.study.file.presets import lay, lay_under
from sweeplab.study.places import SECTIONS, Complaints, Location, Places, dotted
from sweeplab.study.plugins import take_in
from sweeplab.study.spec import StudySpec, beside

MAX_BYTES = 1_000_000
# What may be written as the name of its type alone.
SHORT_FORMS = ("sampler", "pruner")


def read_study(
    path: Path, overrides: Sequence[str] = (), name: str | None = None, allow_plugins: bool = False
) -> StudySpec:
    """Read a study file, lay `name=value` overrides over it, and check it.

    An override names a hyperparameter, which is then fixed, or a place, such as `budget.time`. `name` gives
    the study another name. The study's plugins are imported with `allow_plugins` only.

    Raises:
        BadInput: with everything that is wrong, each with its file, line and column, or its override.
    """
    return read_text(_text(path), path, overrides, name, allow_plugins)


def read_text(
    text: str,
    path: Path,
    overrides: Sequence[str] = (),
    name: str | None = None,
    allow_plugins: bool = False,
) -> StudySpec:
    """Read a study file's text as `read_study` does; `path` is where it stands, or would."""
    complain = Complaints(Places(path))
    document = parse(text, complain)
    if document is None:
        if not complain.problems:
            complain((), "the study is empty")
        raise BadInput(*complain.problems)
    return _read(document, complain, overrides, name, allow_plugins)


def read_plain(document: dict[str, Any], overrides: Sequence[str] = ()) -> StudySpec:
    """Read a study of plain values, in no file, as `read_study` does."""
    return _read(document, Complaints(Places()), overrides)


def _read(
    document: Any,
    complain: Complaints,
    overrides: Sequence[str],
    name: str | None = None,
    allow_plugins: bool = False,
) -> StudySpec:
    if isinstance(document, dict):
        for override in overrides:
            _lay_over(document, override, complain)
        if name is not None:
            document["name"] = name
            complain.places.overrides["name",] = f"--name {name}"
        before = len(complain.problems)
        take_in(document, complain, allow_plugins)
        if len(complain.problems) > before:  # what the study names of them is not known
            raise BadInput(*complain.problems)
        lay_under(document, complain.places)
        _lay_start_under(document, complain.places)
    return study_from(document, complain)


def _lay_start_under(document: dict[str, Any], places: Places) -> None:
    """Write into a study's document, under `fixed`, the model that its runs start from, where it says no other."""
    if not isinstance(document.get("init_from"), str) or not isinstance(document.get("fixed") or {}, dict):
        return
    # Here and not above: with it comes numpy, which is slow to import.
    from sweeplab.study.starting import NO_CHECKPOINT, open_start

    with suppress(*NO_CHECKPOINT):  # said once the study is planned
        start = open_start(beside(places.file, document["init_from"]))
        lay("init_from", start.model_values, document, places)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        beside = [each.name for each in path.parent.glob("*.yaml")]
        raise BadInput(Problem("no such file", "", nearest(path.name, beside), path)) from None
    except OSError as error:
        raise BadInput(Problem(f"cannot be read: {error.strerror}", file=path)) from error
    if len(content) > MAX_BYTES:
        raise BadInput(Problem("too large for a study", f"at most {MAX_BYTES:,} bytes", file=path))
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8", "replace")
        place = position(before, len(before))
        raise BadInput(Problem("a byte that is not UTF-8", "", "", path, *place)) from error


def _lay_over(document: dict[str, Any], override: str, complain: Complaints) -> None:
    """Set what `name=value` says in the document, and note that it came from there."""
    name, equals, text = override.partition("=")
    path, own = _place(name.strip()), Complaints(Places())
    value = parse(text, own)
    if not equals:
        own((), "has no value", "name=value")
    elif path is None:
        near = nearest(name, [*TABLE, *StudySpec.model_fields])
        own((), f"{name!r} is unknown", "a hyperparameter, or a place such as budget.time", near)
    elif not own.problems:
        _set(document, path, value, own)
        complain.places.forget(path)
        complain.places.overrides[path] = f"-o {override}"
    for each in own.problems:
        complain.problems.append(Problem(f"-o {override}: {each.what}", each.allowed, each.nearest))


def _place(name: str) -> Location | None:
    """Return where an override is to be set: a bare hyperparameter is fixed."""
    if "." in name:
        return tuple(name.split("."))
    if name in StudySpec.model_fields:
        return (name,)
    return ("fixed", name) if name in TABLE else None


def _set(document: dict[str, Any], path: Location, value: Any, complain: Complaints) -> None:
    inner: Any = document
    for depth, part in enumerate(path[:-1], start=1):
        held = inner.get(part)
        if held is None:
            held = {}
        elif path[:depth] in [(each,) for each in SHORT_FORMS] and isinstance(held, str):
            held = {"type": held}
        elif not isinstance(held, dict):
            complain((), f"{dotted(path[:depth])} holds no keys")
            return
        inner[part] = held
        inner = held
    inner[path[-1]] = value
    if path[0] in SECTIONS and len(path) > 1:
        # A hyperparameter stands in one section: the override moves it.
        for section in set(SECTIONS) - {path[0]}:
            if isinstance(held := document.get(section), dict):
                held.pop(path[1], None)
        cells = document.get("cells")
        for each in cells if isinstance(cells, list) else ():
            if isinstance(each, dict):
                each.pop(path[1], None)
