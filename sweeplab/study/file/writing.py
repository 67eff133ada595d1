"""A study as the text of a study file: the whole of it, or changes that leave every other letter as it was."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.nodes import CollectionNode, MappingNode, Node

from sweeplab.study.file.template import scalar
from sweeplab.study.places import Location

# In the order of a study file.
PARTS = (
    *("name", "plugins", "data", "fixed", "grid", "cells", "search", "constraints"),
    *("objective", "budget", "sampler", "pruner", "seeds", "engine", "track", "warm_start", "init_from"),
)
REMOVED: Final = object()
_WIDTH = 100

_Entry = tuple[Node, Node]


def study_file(written: Mapping[str, Any], comments: Iterable[str] = ()) -> str:
    """Return the study file of a study as `as_written` gives it, with comments above it."""
    lines = [f"# {comment}\n" for comment in comments]
    return "".join([*lines, *(_part(name, written.get(name)) for name in PARTS)])


def flow(value: Any) -> str:
    """Write a value as YAML on one line."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {flow(each)}' for key, each in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(flow, value))}]"
    return scalar(value)


def edited(text: str, changes: Mapping[Location, Any]) -> str:
    """Return a study file's text with values set, or removed where they are REMOVED; comments stay.

    Places are one or two keys deep, and a first key's value is a mapping where there is a second one.
    """
    for path, value in changes.items():
        text = _edited(text, path, value)
    return text


def _part(name: str, value: Any) -> str:
    """Write one part of a study file, on one line where it is short; nothing for what is empty."""
    if isinstance(value, dict) and name not in ("fixed", "grid", "search"):  # there null switches a thing off
        value = {key: each for key, each in value.items() if each is not None}
    if value in (None, [], {}):
        return ""
    if len(line := f"{name}: {flow(value)}\n") <= _WIDTH:
        return line
    if isinstance(value, dict):
        return f"{name}:\n" + "".join(f"  {key}: {flow(each)}\n" for key, each in value.items())
    return f"{name}:\n" + "".join(f"  - {flow(each)}\n" for each in value)


def _edited(text: str, path: Location, value: Any) -> str:
    root = YAML(typ="safe", pure=True).compose(text)
    key, *below = path
    entry = _find(root, key)
    if not below:
        return _set(text, root, entry, key, value)
    if entry is None:
        return text if value is REMOVED else _inserted(text, root, key, {below[0]: value})
    holder = entry[1]
    if not isinstance(holder, MappingNode):  # such as `search:` with nothing in it
        return text if value is REMOVED else _replaced(text, entry, {below[0]: value})
    inner = _find(holder, below[0])
    if value is REMOVED and inner and len(holder.value) == 1:
        return _replaced(text, entry, {})
    return _set(text, holder, inner, below[0], value)


def _find(mapping: MappingNode, key: Any) -> _Entry | None:
    return next((entry for entry in mapping.value if entry[0].value == key), None)


def _set(text: str, holder: MappingNode, entry: _Entry | None, key: Any, value: Any) -> str:
    if value is REMOVED:
        return _without(text, holder, entry) if entry else text
    return _replaced(text, entry, value) if entry else _inserted(text, holder, key, value)


def _replaced(text: str, entry: _Entry, value: Any) -> str:
    node = entry[1]
    start, end = node.start_mark.index, _end(text, node)
    if start == end or (isinstance(node, CollectionNode) and not node.flow_style):
        # Nothing, or a block that begins on a line of its own: the key's line keeps its comment.
        colon = text.index(":", entry[0].end_mark.index) + 1
        line_end = text.find("\n", colon)
        kept = text[colon:line_end] if start < end else text[colon:]
        return f"{text[:colon]} {flow(value)}{kept}{text[end:] if start < end else ''}"
    return f"{text[:start]}{flow(value)}{text[end:]}"


def _inserted(text: str, holder: MappingNode, key: Any, value: Any) -> str:
    added = f"{key}: {flow(value)}"
    if holder.flow_style:
        at = _end(text, holder.value[-1][1]) if holder.value else holder.end_mark.index - 1
        return f"{text[:at]}{', ' if holder.value else ''}{added}{text[at:]}"
    at = text.find("\n", _end(text, holder.value[-1][1]))
    at = len(text) if at < 0 else at
    return f"{text[:at]}\n{' ' * holder.value[0][0].start_mark.column}{added}{text[at:]}"


def _without(text: str, holder: MappingNode, entry: _Entry) -> str:
    place = [each[0] for each in holder.value].index(entry[0])
    start, end = entry[0].start_mark.index, _end(text, entry[1])
    if not holder.flow_style:
        after = text.find("\n", end)
        return text[: text.rfind("\n", 0, start) + 1] + ("" if after < 0 else text[after + 1 :])
    if place + 1 < len(holder.value):
        end = holder.value[place + 1][0].start_mark.index
    elif place:
        start = _end(text, holder.value[place - 1][1])
    return text[:start] + text[end:]


def _end(text: str, node: Node) -> int:
    """Return where a value ends: YAML's own mark of a block lies after the comments that follow it."""
    if isinstance(node, CollectionNode) and not node.flow_style:
        last = node.value[-1]
        return _end(text, last[1] if isinstance(node, MappingNode) else last)
    return len(text[: node.end_mark.index].rstrip()) if node.value else int(node.end_mark.index)
