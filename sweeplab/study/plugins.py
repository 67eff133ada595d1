"""The Python files that a study names: imported only if the user allows it, never by reading a study.

A study that was run records the digest of each file and the names that it registered. So the study can be read
afterwards, with the names of its parts known, without importing the files, even if they are gone.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import ValidationError

from sweeplab import plugins
from sweeplab.errors import BadInput, nearest, said
from sweeplab.files import read_bytes
from sweeplab.study.problems import Location, Problems, shown
from sweeplab.study.spec import Plugin, StudySpec, beside

HOW = "--allow-plugins, or allow_plugins=True from Python, if you trust it"
# The parts registered by each file that this process has imported, by file and digest.
_imported: dict[tuple[str, str], list[tuple[str, str, Any]]] = {}


def import_plugins(document: dict[str, Any], problems: Problems, allowed: bool) -> None:
    """Import the plugins of a study's document and record their digests in it; if not allowed, only register names.

    Adds a problem for a file that is not allowed, is missing, has another digest than the document says, or raises.
    Entries that are not plugins are left to the reader of the document.
    """
    written = document.get("plugins")
    if isinstance(written, list):
        document["plugins"] = [
            _read_plugin(entry, ("plugins", index), problems, allowed) for index, entry in enumerate(written)
        ]


def check_imported(spec: StudySpec) -> None:
    """Refuse to train a study whose plugins this process has not imported.

    Raises:
        BadInput: lists every plugin that is not imported.
    """
    problems = [
        spec.problem(("plugins", index), _not_allowed(plugin.file), HOW)
        for index, plugin in enumerate(spec.plugins)
        if (plugin.file, plugin.sha256) not in _imported
    ]
    if problems:
        raise BadInput(*problems)


def _not_allowed(file: str) -> str:
    return f"the plugin {file} is code that would run here"


def _read_plugin(entry: Any, path: Location, problems: Problems, allowed: bool) -> Any:
    try:
        plugin = Plugin.model_validate(entry)
    except ValidationError:
        return entry
    if not allowed:
        if "provides" not in plugin.model_fields_set:
            problems.add(path, _not_allowed(plugin.file), HOW)
        plugins.add_names(plugin.provides, plugin.rows)
        return entry
    file = beside(problems.source.file, plugin.file)
    try:
        content = read_bytes(file)
    except OSError as error:
        near = nearest(file.name, [each.name for each in file.parent.glob("*.py")])
        problems.add(path, f"no plugin {shown(str(file))}: {error.strerror}", "", near)
        return entry
    digest = hashlib.sha256(content).hexdigest()
    if plugin.sha256 not in ("", digest):
        what = f"{file} has changed: its sha256 begins with {digest[:12]}, not {plugin.sha256[:12]}"
        problems.add(path, what)
        return entry
    try:
        parts = _import(file, content, digest)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        problems.add(path, said(error, file))
        return entry
    provides = {kind: [name for each, name, _ in parts if each == kind] for kind in plugins.KINDS}
    provided = {kind: names for kind, names in provides.items() if names}
    rows = plugins.rows_of(provided.get("hyperparameter", ()))
    return {"file": str(file), "sha256": digest, "provides": provided, "rows": rows}


def _import(file: Path, content: bytes, digest: str) -> list[tuple[str, str, Any]]:
    """Execute a file once and return the parts that it registers; executes exactly the bytes with this digest."""
    known = _imported.get((str(file), digest))
    if known is not None:
        for part in known:  # another study's file may have replaced a name since
            plugins.add(*part)
        return known
    module = ModuleType(f"sweeplab_plugin_{digest[:12]}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module  # inspect, pickle and dataclasses look there
    before = len(plugins.added)
    try:
        exec(compile(content, str(file), "exec"), module.__dict__)
    except BaseException:
        del sys.modules[module.__name__]
        raise
    _imported[str(file), digest] = plugins.added[before:]
    return _imported[str(file), digest]
