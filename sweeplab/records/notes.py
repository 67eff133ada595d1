"""What people write about a study and its trials: texts and tags, kept in the study's folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sweeplab.errors import BadInput
from sweeplab.files import write_whole
from sweeplab.records.folders import StudyFolder

MOST_LETTERS = 2000
MOST_TAGS = 20


@dataclass(frozen=True)
class Note:
    """A text about a trial or a study, and its tags."""

    text: str = ""
    tags: tuple[str, ...] = ()


def read_notes(folder: StudyFolder) -> dict[str, Note]:
    """Return the notes of a study's trials by `CELL/TRIAL`; that of the study itself by an empty text."""
    kept = folder.read_if_written(folder.notes_file)
    return {place: Note(each["text"], tuple(each["tags"])) for place, each in kept.items()}


def write_note(
    folder: StudyFolder, text: str, tags: Sequence[str] = (), trial: tuple[str, int] | None = None
) -> Note:
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
    stripped = dict.fromkeys(tag.strip() for tag in tags)
    note = Note(text.strip(), tuple(tag for tag in stripped if tag))
    longest = max(map(len, note.tags), default=0)
    if len(note.text) > MOST_LETTERS or len(note.tags) > MOST_TAGS or longest > 100:
        raise BadInput(f"a note has at most {MOST_LETTERS:,} letters, and {MOST_TAGS} tags of at most 100")
    notes = read_notes(folder) | {place: note}
    kept = {place: asdict(each) for place, each in notes.items() if each != Note()}
    write_whole(folder.notes_file, json.dumps(kept, indent=1).encode())
    return note
