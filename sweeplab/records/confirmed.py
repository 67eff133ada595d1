"""The confirmed configurations of a study, and the looks at a test split: each confirmation of a lab that scored it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from sweeplab.files import opened, read_bytes, write_whole
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import read_json, reading, typed

# Losses by seed, in its objective's unit.
Losses = dict[int, float]
# A configuration: the cell and number of the trial that found it.
Found = tuple[str, int]


@dataclass(frozen=True)
class Confirmed:
    """One configuration: the trial that found it, its loss there, and its losses on fresh seeds.

    `searched`, `race` and `validation` are losses on the whole validation split, `test` on the whole test split. The
    last two are empty if another configuration won the race, or if a seed diverged. `look` counts how often a
    confirmation of this lab has scored the text's test split, this one included.
    """

    cell: str
    trial: int
    searched: float
    won: bool
    race: Losses
    validation: Losses
    test: Losses
    look: int = 1


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


def record_look(folder: StudyFolder, text_digest: str, confirmed: Sequence[Confirmed]) -> int:
    """Record that a study's winners were scored on the test split of a text; return the look's number for this text.

    The same losses of the same trials and seeds, from the same command given again, are the same look.

    Raises:
        DamagedFile: the file of looks is not as it was written.
    """
    losses = {f"{row.cell}/{row.trial}/{seed}": loss for row in confirmed for seed, loss in row.test.items()}
    look = {"text": text_digest, "study": folder.name, "test": losses}
    file, before = folder.lab / "looks.jsonl", []
    if file.exists():
        with reading(file, "put a copy of it back"):
            known = [json.loads(line) for line in read_bytes(file).splitlines()]
            before = [each for each in known if each["text"] == text_digest]
    if look in before:
        return before.index(look) + 1
    with opened(file, "ab") as stream:
        stream.write(f"{json.dumps(look)}\n".encode())
    return len(before) + 1
