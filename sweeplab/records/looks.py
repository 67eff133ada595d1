"""The looks at a test split: each confirmation of a lab that scored it, whatever became of the study since."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sweeplab.files import opened, read_bytes
from sweeplab.records.folders import Confirmed, StudyFolder
from sweeplab.records.runs import reading


def looks_file(lab: Path) -> Path:
    """Return the file with a line for each look."""
    return lab / "looks.jsonl"


def record_look(folder: StudyFolder, text_digest: str, confirmed: Sequence[Confirmed]) -> int:
    """Record that a study's winners were scored on the test split of a text; return the look's number for this text.

    The same losses of the same trials and seeds, from the same command given again, are the same look.

    Raises:
        DamagedFile: the file of looks is not as it was written.
    """
    losses = {f"{row.cell}/{row.trial}/{seed}": loss for row in confirmed for seed, loss in row.test.items()}
    look = {"text": text_digest, "study": folder.name, "test": losses}
    before = [known for known in _looks(folder.lab) if known["text"] == text_digest]
    if look in before:
        return before.index(look) + 1
    with opened(looks_file(folder.lab), "ab") as file:
        file.write(f"{json.dumps(look)}\n".encode())
    return len(before) + 1


def _looks(lab: Path) -> Iterator[dict[str, Any]]:
    file = looks_file(lab)
    if file.exists():
        with reading(file, "put a copy of it back"):
            yield from map(json.loads, read_bytes(file).decode().splitlines())
