"""How two studies differ: in their files, their data, the code that trained them, and what came of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sweeplab.study.folder import StudyFolder
from sweeplab.study.listing import VALUED

# The order in which a person asks.
KINDS = ("file", "data", "code", "results")
Difference = dict[str, Any]


def differ(a: StudyFolder, b: StudyFolder) -> dict[str, Any]:
    """Return how two studies differ, as plain data: by kind, a list of `place`, `a` and `b`.

    Results are the best values of every cell that either has, whether they differ or not.
    """
    return {
        "a": a.name,
        "b": b.name,
        "file": _between(_file(a), _file(b)),
        "data": _between(a.read(a.data_file), b.read(b.data_file)),
        "code": _between(a.read(a.code_file), b.read(b.code_file)),
        "results": _results(a, b),
    }


def _file(folder: StudyFolder) -> dict[str, Any]:
    return {name: value for name, value in folder.read(folder.canonical_file).items() if name != "name"}


def _between(a: Any, b: Any, place: str = "") -> list[Difference]:
    if a == b:
        return []
    if not isinstance(a, Mapping) or not isinstance(b, Mapping):
        return [{"place": place, "a": a, "b": b}]
    return [
        each
        for key in dict.fromkeys([*a, *b])
        for each in _between(a.get(key), b.get(key), f"{place}.{key}" if place else str(key))
    ]


def _results(a: StudyFolder, b: StudyFolder) -> list[Difference]:
    ours, theirs = _best_by_cell(a), _best_by_cell(b)
    return [
        {"place": cell, "a": ours.get(cell), "b": theirs.get(cell), "change": _change(ours, theirs, cell)}
        for cell in dict.fromkeys([*ours, *theirs])
    ]


def _change(a: Mapping[str, float], b: Mapping[str, float], cell: str) -> float | None:
    return b[cell] - a[cell] if cell in a and cell in b else None


def _best_by_cell(folder: StudyFolder) -> dict[str, float]:
    best: dict[str, float] = {}
    for run in folder.runs():
        cell, outcome = run.path.parent.name, run.outcome
        if outcome and outcome["ending"]["outcome"] in VALUED and outcome["value"] is not None:
            best[cell] = min(outcome["value"], best.get(cell, outcome["value"]))
    return best
