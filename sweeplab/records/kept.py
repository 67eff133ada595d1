"""What a study's folder keeps beside its trials: the confirmed configurations, and the notes of people."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from sweeplab.errors import BadInput
from sweeplab.files import write_whole
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import read_json, typed, write_json

MOST_LETTERS = 2000  # of a note
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
    # A loss may be infinite.
    write_whole(
        folder.confirm_file, json.dumps([asdict(each) for each in confirmed], indent=1).encode()
    )


def read_confirmed(folder: StudyFolder) -> list[Confirmed]:
    """Return a study's confirmed configurations; none if it was not confirmed.

    Raises:
        DamagedFile: confirm.json is damaged.
    """
    if not folder.confirm_file.exists():
        return []
    cure = f"{folder.command('confirm')} writes it again"
    return read_json(folder.confirm_file, cure, lambda found: typed(list[Confirmed], found))


def read_notes(folder: StudyFolder) -> dict[str, str]:
    """Return the notes of a study's trials by `CELL/TRIAL`; that of the study itself by an empty text."""
    kept = folder.read_if_written(folder.notes_file)
    return {place: str(each["text"]) for place, each in kept.items()}


def write_note(folder: StudyFolder, text: str, trial: tuple[str, int] | None = None) -> None:
    """Keep a note of a study, or of a trial given by cell and number, in place of an earlier one.

    An empty note removes it.

    Raises:
        BadInput: there is no such trial, or the note is too long.
    """
    place = ""
    if trial is not None:
        cell, number = trial
        place = f"{cell}/{number}"
        if not any((run.cell, run.trial) == trial for run in folder.runs()):
            raise BadInput(f"study {folder.name} has no trial {number} in cell {cell}")
    if len(text) > MOST_LETTERS:
        raise BadInput(f"a note has at most {MOST_LETTERS:,} letters")
    kept = {
        place: {"text": note}
        for place, note in (read_notes(folder) | {place: text}).items()
        if note
    }
    write_json(folder.notes_file, kept)
