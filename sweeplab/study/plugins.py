"""The plugins that a study names: imported only if the user allows them once, never by reading a study.

A study that was run records the digest of each file and the names that it registered. So the study can be read
afterwards, with the names of its parts known, without importing the files, even if they are gone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sweeplab import plugins
from sweeplab.errors import BadInput, nearest
from sweeplab.plugin_code import Code, import_allowed, installed, is_package
from sweeplab.study.problems import Location, Problems, shown
from sweeplab.study.spec import Plugin, StudySpec, beside

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
    try:
        plugin = Plugin.model_validate(entry)
    except ValidationError:
        return entry
    place = plugin.file
    if not is_package(place):
        place = str(beside(problems.source.file, place))
    if (
        not allowed and "provides" in plugin.model_fields_set
    ):  # of a study that was run: names suffice to look at it
        plugins.add_names(plugin.provides, plugin.rows)
        return entry
    try:
        code = Code.at(place)
    except OSError as error:
        if not allowed:
            problems.add(path, _not_allowed(plugin.file), HOW)
            return entry
        known = [*installed(), *(file.name for file in Path(place).parent.glob("*.py"))]
        problems.add(
            path, f"no plugin {shown(place)}: {error.strerror}", "", nearest(Path(place).name, known)
        )
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
    rows = plugins.rows_of(provided.get("hyperparameter", ()))
    return {"file": place, "sha256": code.digest, "provides": provided, "rows": rows}
