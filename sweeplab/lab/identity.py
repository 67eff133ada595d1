"""What makes a study the one it is: the file it was run from, kept beside its results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sweeplab.errors import BadInput
from sweeplab.files import write_whole
from sweeplab.records.data import DataDescription
from sweeplab.records.folders import StudyFolder

if TYPE_CHECKING:
    from sweeplab.study.spec import StudySpec

# What a study may have no word of.
ABSENT: Mapping[str, Any] = {"plugins": [], "init_from": None}


def check_same_study(spec: StudySpec, folder: StudyFolder, data: DataDescription) -> None:
    """Refuse to go on with a study whose results could not be compared with those it has.

    `data` describes the corpus as it is now.

    Raises:
        BadInput: data, fixed, search, constraints, objective, seeds or plugins differ; says in what, and offers --name.
    """
    if not folder.canonical_file.exists():
        return
    from sweeplab.study.spec import IDENTITY

    known, ours = json.loads(folder.canonical_file.read_text(encoding="utf-8")), spec.as_written()
    differences = [
        each
        for part in IDENTITY
        for each in _differences(part, *(said.get(part, ABSENT.get(part)) for said in (ours, known)))
    ]
    described = DataDescription.of(folder.read(folder.data_file))
    digests = (data.text_digest, data.token_digest)
    if ours["data"] == known["data"] and digests != (described.text_digest, described.token_digest):
        differences.append("the text of the corpus has changed")
    if data.init_digest != described.init_digest:
        differences.append("the weights that it starts from have changed")
    if differences:
        raise BadInput(
            f"another study named {spec.name} stands in {folder.lab}: {'; '.join(differences)}; "
            "give this one a --name of its own"
        )


def _differences(place: str, ours: Any, known: Any) -> list[str]:
    """Say in which of its keys a part of a study differs from what it was."""
    if ours == known:
        return []
    if isinstance(ours, dict) and isinstance(known, dict):
        keys = [*ours, *(key for key in known if key not in ours)]
        found = [_differences(f"{place}.{key}", ours.get(key), known.get(key)) for key in keys]
        return [each for differences in found for each in differences]
    return [f"{place} is {_said(ours)} and was {_said(known)}"]


def _said(value: Any) -> str:
    return "not given" if value is None else json.dumps(value)


def write_study(spec: StudySpec, folder: StudyFolder, data: DataDescription) -> None:
    """Keep the study file as the user wrote it, as it was understood (what workers read), and its data's digests.

    A study that goes on from its own folder keeps the file that it has.
    """
    understood = json.dumps(spec.as_written(), indent=1)
    if spec.source != folder.canonical_file:
        text = spec.source.read_text(encoding="utf-8") if spec.source else understood
        write_whole(folder.study_file, text.encode())
    write_whole(folder.data_file, json.dumps(data.as_dict(), indent=1).encode())
    write_whole(folder.canonical_file, understood.encode())
