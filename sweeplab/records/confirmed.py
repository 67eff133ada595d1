"""The confirmed configurations of a study."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from sweeplab.files import write_whole
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import read_json, typed

# Losses by seed, in its objective's unit.
Losses = dict[int, float]
# A configuration: the cell and number of the trial that found it.
Found = tuple[str, int]


@dataclass(frozen=True)
class Confirmed:
    """One configuration: the trial that found it, its loss there, and its losses on fresh seeds.

    `searched`, `race` and `validation` are losses on the whole validation split, `test` on the whole test split. The
    last two are empty if another configuration won the race, or if a seed diverged.
    """

    cell: str
    trial: int
    searched: float
    won: bool
    race: Losses
    validation: Losses
    test: Losses


def write_confirmed(folder: StudyFolder, confirmed: Iterable[Confirmed]) -> None:
    """Write a study's confirmed configurations (confirm.json)."""
    write_whole(folder.confirm_file, json.dumps([asdict(each) for each in confirmed], indent=1).encode())


def read_confirmed(folder: StudyFolder) -> list[Confirmed]:
    """Return a study's confirmed configurations; none if it was not confirmed.

    Raises:
        DamagedFile: confirm.json is damaged.
    """
    if not folder.confirm_file.exists():
        return []
    cure = f"{folder.command('confirm')} writes it again"
    return read_json(folder.confirm_file, cure, lambda found: typed(list[Confirmed], found))
