"""Published models as fragments of study files: sweeplab/presets/NAME.yaml, sources as comments, values as `fixed`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.study.file.document import parse
from sweeplab.study.places import SECTIONS, Complaints, Location, Places

_FOLDER = files("sweeplab") / "presets"
_SUFFIX = ".yaml"


@dataclass(frozen=True)
class Preset:
    """A published model: its values by hyperparameter, and what its file's head says of it, line by line.

    `vocab_size` is that of its data where its values leave it to a study's own.
    """

    values: Mapping[str, Any]
    notes: tuple[str, ...]
    vocab_size: int | None = None

    @property
    def meaning(self) -> str:
        """Return the first line of the notes."""
        return self.notes[0]


@cache
def preset_names() -> tuple[str, ...]:
    """Return the names of all presets, in their alphabet's order."""
    names = (each.name for each in _FOLDER.iterdir())
    return tuple(sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)))


@cache
def preset(name: str) -> Preset:
    """Return a preset.

    Raises:
        BadInput: there is none of that name; offers the nearest.
    """
    if name not in preset_names():
        known = preset_names()
        raise BadInput(Problem(f"unknown preset {name!r}", " | ".join(known), nearest(name, known)))
    text = (_FOLDER / f"{name}{_SUFFIX}").read_text(encoding="utf-8")
    head = text.partition("fixed:")[0].splitlines()
    document = parse(text, Complaints(Places()))
    notes = tuple(line.removeprefix("#").strip() for line in head)
    return Preset(document["fixed"], notes, document.get("vocab_size"))


def lay_under(document: dict[str, Any], places: Places) -> None:
    """Write into a study's document, under `fixed`, what its preset says and the document does not.

    A name that is no preset's, or sections that are none, are left to the reader of the document.
    """
    name, fixed = document.get("preset"), document.get("fixed") or {}
    if name not in preset_names() or not isinstance(fixed, dict):
        return
    lay("preset", preset(name).values, document, places)


def lay(key: str, values: Mapping[str, Any], document: dict[str, Any], places: Places) -> None:
    """Write into a document, under `fixed`, the values that follow from its key and that no section gives."""
    sections = (document.get(section) for section in SECTIONS)
    given = {each for section in sections if isinstance(section, dict) for each in section}
    laid = {each: value for each, value in values.items() if each not in given}
    document["fixed"] = {**laid, **(document.get("fixed") or {})}
    paths: list[Location] = [("fixed", each) for each in laid]
    if (key,) in places.values:
        places.values |= dict.fromkeys(paths, places.values[key,])
    if (key,) in places.overrides:
        places.overrides |= dict.fromkeys(paths, places.overrides[key,])
