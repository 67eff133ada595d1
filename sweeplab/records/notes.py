"""What people write about a study and its trials, kept in the study's folder."""

from __future__ import annotations

import json

from sweeplab.errors import BadInput
from sweeplab.files import write_whole
from sweeplab.records.folders import StudyFolder

MOST_LETTERS = 2000


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
    notes = read_notes(folder) | {place: text}
    kept = {place: {"text": note} for place, note in notes.items() if note}
    write_whole(folder.notes_file, json.dumps(kept, indent=1).encode())
