"""The confirmation of a study: one record per configuration, with its losses on fresh seeds and on the test split."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sweeplab.files import write_whole
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import reading

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

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Confirmed:
        """Read the record of a configuration."""
        losses = ("race", "validation", "test")
        read = {name: {int(seed): float(loss) for seed, loss in said[name].items()} for name in losses}
        return cls(**{**said, **read})


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
    with reading(folder.confirm_file, f"{folder.command('study confirm')} writes it again"):
        return [Confirmed.from_json(each) for each in json.loads(folder.confirm_file.read_bytes())]
