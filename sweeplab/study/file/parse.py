"""Read YAML 1.2 into plain values, with the line and column of every key and value.

A study may come from anyone: nothing in it may run code, expand without limit, or silently replace something else.
So tags, aliases and duplicate keys are refused, and depth and number of values are limited.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer, ComposerError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.files import opened
from sweeplab.hyperparameters import canonical, is_written_number
from sweeplab.study.problems import SECTIONS, Location, Mark, Problems, shown

MAX_BYTES = 1_000_000
MAX_DEPTH = 20
MAX_NODES = 20_000
MAX_BITS = 4096  # of a whole number: Python refuses to write one of more than 4,300 digits
_TAG = "tag:yaml.org,2002:"
# Dates and merge keys are read as strings.
_TEXTS = {_TAG + name for name in ("str", "timestamp", "merge")}
_NUMBERS = {_TAG + name for name in ("int", "float")}
_CONSTRUCTED = {*_NUMBERS, *(_TAG + name for name in ("bool", "null"))}


def file_text(path: Path) -> str:
    """Return the text of a file that the user wrote.

    Raises:
        BadInput: it cannot be read, is too large, or is not UTF-8.
    """
    try:
        with opened(path, "rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise BadInput(
                Problem("the file is too large", f"at most {MAX_BYTES:,} bytes", file=path)
            )
        return content.decode("utf-8-sig")
    except FileNotFoundError as error:
        suffixes = {path.suffix, ".yaml"}
        beside = [each.name for each in path.parent.glob("*") if each.suffix in suffixes]
        raise BadInput(
            Problem(str(error.strerror), "", nearest(path.name, beside), path)
        ) from None
    except OSError as error:
        raise BadInput(Problem(error.strerror or str(error), file=path)) from error
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8", "replace")
        place = _position(before, len(before))
        raise BadInput(Problem("a byte that is not UTF-8", "", "", path, *place)) from error


def parse(text: str, problems: Problems, place: Location = ()) -> Any:
    """Return a YAML document as plain values and record the place of each key and item; None where it is empty.

    Hyperparameters get their names of the table where the document has another common name, such as lr; `place` is
    that of a part of a document.

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
    document = reader.plain(root, place) if root is not None else None
    if reader.failed:
        return None
    return document


def _position(text: str, offset: int) -> Mark:
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


def _problem(error: YAMLError, text: str, problems: Problems) -> Problem:
    mark: Mark = (1, 1)
    what, allowed = str(error), ""
    if isinstance(error, ReaderError):
        mark, what = (
            _position(text, int(error.position)),
            f"character {error.character!r} is not allowed",
        )
    elif isinstance(error, MarkedYAMLError):
        what = " ".join(filter(None, (error.context, error.problem)))
        if place := error.problem_mark or error.context_mark:
            mark = place.line + 1, place.column + 1
    if "'\\t'" in what:
        what, allowed = "a tab character", "spaces, with which YAML indents"
    elif what.startswith("maximum depth"):
        what, allowed = "values are nested too deeply", f"at most {MAX_DEPTH} levels"
    return Problem(what, allowed, "", problems.file, *mark)


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
        self._problems.places.setdefault(path, _start(node))
        if isinstance(node, MappingNode) and node.tag == _TAG + "map":
            return self._mapping(node, path)
        if isinstance(node, SequenceNode) and node.tag == _TAG + "seq":
            return [self.plain(each, (*path, index)) for index, each in enumerate(node.value)]
        if isinstance(node, ScalarNode) and node.tag in _TEXTS:
            return self._text(str(node.value), path)
        if isinstance(node, ScalarNode) and node.tag in _CONSTRUCTED:
            if node.tag in _NUMBERS and not is_written_number(node.value):
                return self._text(node.value, path)
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
        if odd := next(
            (each for each in text if each == "\0" or "\ud800" <= each <= "\udfff"), ""
        ):
            self._fail(path, f"character {odd!r} is not allowed")
        return text

    def _fail(self, path: Location, what: str) -> None:
        self._problems.add(path, what)
        self.failed = True

    def _mapping(self, node: MappingNode, path: Location) -> dict[str, Any]:
        places, mapping = self._problems.places, dict[str, Any]()
        for key_node, value_node in node.value:
            if not isinstance(key_node, ScalarNode):
                places[*path, ""] = _start(key_node)
                self._fail((*path, ""), "a key that is not a string")
                continue
            key = self._text(str(key_node.value), path)
            if path[:-1] == ("cells",) or (
                len(path) == 1 and path[0] in (*SECTIONS, "first_trial")
            ):
                key = canonical(key)
            below = (*path, key)
            first = places.get(below)
            places[below] = _start(key_node)
            if first:
                what = f"{shown(key)} is given twice, first on line {first[0]}"
                self._problems.add(below, what)
            mapping[key] = self.plain(value_node, below)
        return mapping


def _start(node: Node) -> Mark:
    return node.start_mark.line + 1, node.start_mark.column + 1
