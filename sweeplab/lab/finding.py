"""Which trial is meant by a number, and perhaps a cell."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sweeplab.errors import BadInput, Problem, nearest

MOST_NAMED = 10


def find_trial(study: str, trials: Mapping[str, Collection[int]], number: int, cell: str | None) -> str:
    """Return the cell of the trial that is meant; `trials` has the numbers of each cell's.

    Raises:
        BadInput: there is no such cell or trial, or several cells have a trial of this number.
    """
    if cell is not None and cell not in trials:
        raise BadInput(Problem(f"study {study} has no cell {cell!r}", _some(trials), nearest(cell, trials)))
    searched = {cell: trials[cell]} if cell is not None else trials
    found = [key for key, numbers in searched.items() if number in numbers]
    if len(found) > 1:
        what = f"{len(found)} cells of study {study} have a trial {number}; --cell says which is meant"
        raise BadInput(Problem(what, _some(found)))
    if not found:
        where = f"cell {cell}" if cell is not None else f"study {study}"
        last = max((max(numbers) for numbers in searched.values() if numbers), default=None)
        raise BadInput(
            Problem(f"{where} has no trial {number}", "none yet" if last is None else f"0 to {last}")
        )
    return found[0]


def _some(names: Collection[str]) -> str:
    return ", ".join(list(names)[:MOST_NAMED]) + (", …" if len(names) > MOST_NAMED else "")
