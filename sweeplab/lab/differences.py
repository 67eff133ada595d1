"""How two studies differ: in their files, their data, the code that trained them, and what came of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sweeplab.records.folders import StudyFolder
from sweeplab.data.task import task_of

# The order in which a person asks.
KINDS = ("file", "data", "code", "results")
Difference = dict[str, Any]


def differ(a: StudyFolder, b: StudyFolder) -> dict[str, Any]:
    """Return how two studies differ, as plain data: by kind, a list of `place`, `a` and `b`.

    Results are the best values of every cell that either has, whether they differ or not. Losses of unlike text or
    unlike tasks have no change; of one text in unlike tokens they are told in bits a byte, as `measure` says.
    """
    ours, theirs = (each.read(each.data_file) for each in (a, b))
    measure = "value" if ours["token_digest"] == theirs["token_digest"] else "best_bits_per_byte"
    return {
        "a": a.name,
        "b": b.name,
        "file": _between(_file(a), _file(b)),
        "data": _between(ours, theirs),
        "code": _between(a.read(a.code_file), b.read(b.code_file)),
        "measure": measure,
        "results": _results(a, b, measure, is_one_text=ours["text_digest"] == theirs["text_digest"]),
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


def _results(a: StudyFolder, b: StudyFolder, measure: str, is_one_text: bool) -> list[Difference]:
    ours, theirs = (_best_by_cell(each, measure) for each in (a, b))
    rows = []
    for cell in dict.fromkeys([*ours, *theirs]):
        (one, task), (other, its_task) = ours.get(cell, _NONE), theirs.get(cell, _NONE)
        change = None if one is None or other is None else other - one
        comparable = is_one_text and task == its_task
        rows.append({"place": cell, "a": one, "b": other, "change": change if comparable else None})
    return rows


_NONE: tuple[float | None, str] = (None, "")


def _best_by_cell(folder: StudyFolder, measure: str) -> dict[str, tuple[float | None, str]]:
    """Return each cell's lowest number that its runs ended with, and the task that it is of."""
    best: dict[str, tuple[float | None, str]] = {}
    for run in folder.runs():
        end = run.read_end()
        if not end or not end.ending.outcome.has_value or (value := getattr(end, measure)) is None:
            continue
        known, _ = best.get(run.cell, _NONE)
        if known is None or value < known:
            best[run.cell] = value, task_of(run.read_start().values)
    return best
