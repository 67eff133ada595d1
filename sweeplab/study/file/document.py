"""YAML 1.2 to plain values, with the line and column of every key and value.

A study comes from anyone: nothing in it may run, grow without end, or silently replace something else. So
there are no tags, no aliases, no second key of one name, and limits of depth and number.
"""

from __future__ import annotations

from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer, ComposerError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from sweeplab.errors import Problem
from sweeplab.study.places import Complaints, Location, Mark, shown

MAX_DEPTH = 20
MAX_NODES = 20_000
_TAG = "tag:yaml.org,2002:"
# A date is a text here, and so is the key of a merge.
_TEXTS = {_TAG + name for name in ("str", "timestamp", "merge")}
_CONSTRUCTED = {_TAG + name for name in ("int", "float", "bool", "null")}


def parse(text: str, complain: Complaints) -> Any:
    """Return a YAML document as plain values and note where each stands; None where it is empty.

    Complains of a key given twice, the last of which is taken. Complains of what is not YAML, or is not read,
    and returns None.
    """
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer = _Composer
    yaml.max_depth = MAX_DEPTH
    try:
        root = yaml.compose(text)
    except YAMLError as error:
        complain.problems.append(_problem(error, text, complain))
        return None
    reader = _Reader(yaml.constructor, complain)
    document = reader.plain(root, ()) if root is not None else None
    return None if reader.failed else document


def position(text: str, offset: int) -> Mark:
    """Return the line and column, from 1, of a character."""
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


def _problem(error: YAMLError, text: str, complain: Complaints) -> Problem:
    mark: Mark = (1, 1)
    what, allowed = str(error), ""
    if isinstance(error, ReaderError):
        mark, what = position(text, int(error.position)), f"character {error.character!r} is no text"
    elif isinstance(error, MarkedYAMLError):
        what = " ".join(filter(None, (error.context, error.problem)))
        if found := error.problem_mark or error.context_mark:
            mark = found.line + 1, found.column + 1
    if "'\\t'" in what:
        what, allowed = "a tab", "YAML indents with spaces"
    elif what.startswith("maximum depth"):
        what, allowed = "a value beyond the maximum depth", f"at most {MAX_DEPTH} levels"
    return Problem(what, allowed, "", complain.places.file, *mark)


class _Composer(Composer):
    """Composes nodes, but no aliases, which can stand for more than memory holds, and not without end."""

    n_nodes = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.warn_double_anchors = False
        self.n_nodes += 1
        event = self.parser.peek_event()
        if isinstance(event, AliasEvent):
            raise ComposerError(
                None, None, f"the alias *{event.anchor} is not read: write its value out", event.start_mark
            )
        if self.n_nodes > MAX_NODES:
            raise ComposerError(None, None, f"more than {MAX_NODES:,} values", event.start_mark)
        return super().compose_node(parent, index)


class _Reader:
    """Turns nodes into plain values."""

    def __init__(self, constructor: Any, complain: Complaints) -> None:
        self._constructor = constructor
        self._complain = complain
        self.failed = False

    def plain(self, node: Node, path: Location) -> Any:
        self._complain.places.values[path] = _start(node)
        if isinstance(node, MappingNode) and node.tag == _TAG + "map":
            return self._mapping(node, path)
        if isinstance(node, SequenceNode) and node.tag == _TAG + "seq":
            return [self.plain(each, (*path, index)) for index, each in enumerate(node.value)]
        if isinstance(node, ScalarNode) and node.tag in _TEXTS:
            return str(node.value)
        if isinstance(node, ScalarNode) and node.tag in _CONSTRUCTED:
            try:
                return self._constructor.construct_object(node)
            except (ValueError, YAMLError):
                return self._fail(path, f"{shown(node.value)} is no value")
        return self._fail(path, f"the tag {node.tag} is not read")

    def _fail(self, path: Location, what: str) -> None:
        self._complain(path, what)
        self.failed = True

    def _mapping(self, node: MappingNode, path: Location) -> dict[str, Any]:
        places, found = self._complain.places, dict[str, Any]()
        for key_node, value_node in node.value:
            if not isinstance(key_node, ScalarNode):
                self._fail(path, "a key that is no text")
                continue
            key = str(key_node.value)
            below = (*path, key)
            first = places.keys.get(below)
            places.keys[below] = _start(key_node)
            if first:
                self._complain(below, f"{shown(key)} is given twice, first on line {first[0]}", at_key=True)
            found[key] = self.plain(value_node, below)
        return found


def _start(node: Node) -> Mark:
    return node.start_mark.line + 1, node.start_mark.column + 1
