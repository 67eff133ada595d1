"""Resolve what the document of a study names elsewhere: plugins, a preset, a starting run, and data.

This is the only step of reading a study that opens other files. Plugins are imported only if the user allows them once.
A study that was run records the digest of each file and the names that it registered, so that it can be read afterwards
without importing the files, even if they are gone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sweeplab import plugins
from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.hyperparameters import TABLE
from sweeplab.plugins import Code, import_allowed
from sweeplab.study.file.entries import lay_all_over, move_shares
from sweeplab.study.file.parse import parse
from sweeplab.study.problems import LENGTHS, SECTIONS, Location, Problems, shown
from sweeplab.study.spec import (
    DATA_FILES,
    PRESETS,
    TOKENIZER_SUFFIXES,
    Plugin,
    StudySpec,
    preset_names,
)

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
        raise BadInput(*problems.found)
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
        raise BadInput(*problems.found) from error
    except NO_CHECKPOINT as error:
        # Where nothing else is missing, the plan reports it: a recorded study is read without its starting run.
        if isinstance(data, dict) and "tokenizer" not in data:
            problems.add(("init_from",), *no_start(folder))
            raise BadInput(*problems.found) from error
        return
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
    problems = []
    for index, plugin in enumerate(spec.plugins):
        if not import_allowed(plugin.file, plugin.sha256):
            problems.append(spec.problem(("plugins", index), _not_allowed(plugin.file), HOW))
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
