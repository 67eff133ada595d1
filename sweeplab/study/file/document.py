"""Read YAML 1.2 into plain values, with the line and column of every key and value, and edit values in YAML text.

A study may come from anyone: nothing in it may run code, expand without limit, or silently replace something else.
So tags, aliases and duplicate keys are refused, and depth and number of values are limited.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer, ComposerError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent
from ruamel.yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.formatting import yaml_text
from sweeplab.hyperparameters import canonical
from sweeplab.study.problems import Location, Mark, Problems, shown

MAX_DEPTH = 20
MAX_NODES = 20_000
MAX_BITS = 4096  # of a whole number: Python refuses to write one of more than 4,300 digits
_TAG = "tag:yaml.org,2002:"
# Dates and merge keys are read as strings.
_TEXTS = {_TAG + name for name in ("str", "timestamp", "merge")}
_CONSTRUCTED = {_TAG + name for name in ("int", "float", "bool", "null")}
# Given in place of a value: remove the key.
REMOVED: Final = object()

_Entry = tuple[Node, Node]


def file_text(path: Path, most_bytes: int) -> str:
    """Return the text of a file that the user wrote.

    Raises:
        BadInput: it cannot be read, is too large, or is not UTF-8.
    """
    try:
        with path.open("rb") as file:
            content = file.read(most_bytes + 1)
        if len(content) > most_bytes:
            raise BadInput(Problem("the file is too large", f"at most {most_bytes:,} bytes", file=path))
        return content.decode("utf-8-sig")
    except FileNotFoundError as error:
        suffixes = {path.suffix, ".yaml"}
        beside = [each.name for each in path.parent.glob("*") if each.suffix in suffixes]
        raise BadInput(Problem(str(error.strerror), "", nearest(path.name, beside), path)) from None
    except OSError as error:
        raise BadInput(Problem(error.strerror or str(error), file=path)) from error
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8", "replace")
        place = _position(before, len(before))
        raise BadInput(Problem("a byte that is not UTF-8", "", "", path, *place)) from error


def parse(text: str, problems: Problems) -> Any:
    """Return a YAML document as plain values and record the place of each; None where it is empty.

    Adds a problem for a duplicate key and takes the last one. Where the text is not YAML, or uses unsupported YAML,
    adds a problem and returns None.
    """
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer = _Composer
    yaml.max_depth = MAX_DEPTH
    try:
        root = yaml.compose(text)
    except YAMLError as error:
        problems.found.append(_problem(error, text, problems))
        return None
    reader = _Reader(yaml.constructor, problems)
    document = reader.plain(root, ()) if root is not None else None
    return None if reader.failed else document


def _position(text: str, offset: int) -> Mark:
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


def _problem(error: YAMLError, text: str, problems: Problems) -> Problem:
    mark: Mark = (1, 1)
    what, allowed = str(error), ""
    if isinstance(error, ReaderError):
        mark, what = _position(text, int(error.position)), f"character {error.character!r} is not allowed"
    elif isinstance(error, MarkedYAMLError):
        what = " ".join(filter(None, (error.context, error.problem)))
        if found := error.problem_mark or error.context_mark:
            mark = found.line + 1, found.column + 1
    if "'\\t'" in what:
        what, allowed = "a tab character", "spaces, with which YAML indents"
    elif what.startswith("maximum depth"):
        what, allowed = "values are nested too deeply", f"at most {MAX_DEPTH} levels"
    return Problem(what, allowed, "", problems.source.file, *mark)


class _Composer(Composer):
    """Composes nodes up to a limit and refuses aliases, which can expand to more than memory holds."""

    n_nodes = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.warn_double_anchors = False
        self.n_nodes += 1
        event = self.parser.peek_event()
        if isinstance(event, AliasEvent):
            what = f"the alias *{event.anchor} is not supported: write its value out"
            raise ComposerError(None, None, what, event.start_mark)
        if self.n_nodes > MAX_NODES:
            raise ComposerError(None, None, f"more than {MAX_NODES:,} values", event.start_mark)
        return super().compose_node(parent, index)


class _Reader:
    def __init__(self, constructor: Any, problems: Problems) -> None:
        self._constructor = constructor
        self._problems = problems
        self.failed = False

    def plain(self, node: Node, path: Location) -> Any:
        self._problems.source.values[path] = _start(node)
        if isinstance(node, MappingNode) and node.tag == _TAG + "map":
            return self._mapping(node, path)
        if isinstance(node, SequenceNode) and node.tag == _TAG + "seq":
            return [self.plain(each, (*path, index)) for index, each in enumerate(node.value)]
        if isinstance(node, ScalarNode) and node.tag in _TEXTS:
            return self._text(str(node.value), path)
        if isinstance(node, ScalarNode) and node.tag in _CONSTRUCTED:
            try:
                value = self._constructor.construct_object(node)
            except (KeyError, ValueError, YAMLError):  # a KeyError: of !!bool
                return self._fail(path, f"{shown(node.value)} is not a valid value")
            if isinstance(value, int) and value.bit_length() > MAX_BITS:
                return self._fail(path, f"{shown(node.value)} is a number without end")
            return value
        return self._fail(path, f"the YAML tag {node.tag} is not supported")

    def _text(self, text: str, path: Location) -> str:
        # Escapes can produce these characters, but neither file names nor files can contain them.
        if odd := next((each for each in text if each == "\0" or "\ud800" <= each <= "\udfff"), ""):
            self._fail(path, f"character {odd!r} is not allowed")
        return text

    def _fail(self, path: Location, what: str) -> None:
        self._problems.add(path, what)
        self.failed = True

    def _mapping(self, node: MappingNode, path: Location) -> dict[str, Any]:
        source, found = self._problems.source, dict[str, Any]()
        for key_node, value_node in node.value:
            if not isinstance(key_node, ScalarNode):
                self._fail(path, "a key that is not a string")
                continue
            key = self._text(str(key_node.value), path)
            below = (*path, key)
            first = source.keys.get(below)
            source.keys[below] = _start(key_node)
            if first:
                what = f"{shown(key)} is given twice, first on line {first[0]}"
                self._problems.add(below, what, at_key=True)
            found[key] = self.plain(value_node, below)
        return found


def _start(node: Node) -> Mark:
    return node.start_mark.line + 1, node.start_mark.column + 1


# ------------------------------------------------------------------ edits of a text


def edited(text: str, changes: Mapping[Location, Any]) -> str:
    """Return a study file's text with values set, or removed where they are REMOVED; all other text stays as it is.

    Paths have one or two keys; the value of the first key of two is a mapping.
    """
    for path, value in changes.items():
        text = _edited(text, YAML(typ="safe", pure=True).compose(text), path, value)
    return text


def _edited(text: str, holder: MappingNode, path: Location, value: Any) -> str:
    key, *below = path
    names = [(entry, entry[0].value) for entry in holder.value]
    entry = next((entry for entry, name in names if key in (name, canonical(name))), None)
    inner = entry[1] if entry else None
    if below and isinstance(inner, MappingNode):
        if value is not REMOVED or [canonical(each.value) for each, _ in inner.value] != below:
            return _edited(text, inner, tuple(below), value)
        value = {}
    elif below and value is not REMOVED:  # the section is missing or, as in `search:`, empty
        value = {below[0]: value}
    elif below:
        return text
    if value is REMOVED:
        return _without(text, holder, entry) if entry else text
    return _replaced(text, entry, value) if entry else _inserted(text, holder, key, value)


def _replaced(text: str, entry: _Entry, value: Any) -> str:
    node = entry[1]
    start, end = node.start_mark.index, _end(text, node)
    if start == end or (isinstance(node, CollectionNode) and not node.flow_style):
        # No value, or a block that begins on the next line: the comment on the key's line stays.
        colon = text.index(":", entry[0].end_mark.index) + 1
        line_end = text.find("\n", colon)
        kept = text[colon:line_end] if start < end else text[colon:]
        return f"{text[:colon]} {yaml_text(value)}{kept}{text[end:] if start < end else ''}"
    return f"{text[:start]}{yaml_text(value)}{text[end:]}"


def _inserted(text: str, holder: MappingNode, key: Any, value: Any) -> str:
    added = f"{key}: {yaml_text(value)}"
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
    """Return where a value ends; YAML's own end mark of a block comes after the comments that follow it."""
    if isinstance(node, CollectionNode) and not node.flow_style:
        last = node.value[-1]
        return _end(text, last[1] if isinstance(node, MappingNode) else last)
    return len(text[: node.end_mark.index].rstrip()) if node.value else int(node.end_mark.index)
