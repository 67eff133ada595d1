"""What makes a study the one it is: the file it was run from, kept beside its results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sweeplab.errors import BadInput
from sweeplab.files import write_whole
from sweeplab.records.folders import StudyFolder

if TYPE_CHECKING:
    from sweeplab.study.spec import StudySpec

DIGESTS = ("text_digest", "token_digest")
# What a study may have no word of.
ABSENT: Mapping[str, Any] = {"plugins": [], "init_from": None}


def as_written(spec: StudySpec) -> dict[str, Any]:
    """Return a study as a study file would say it, with the data's path made absolute; fit for JSON."""
    canonical = spec.canonical()
    written = {"name": spec.name, **canonical["identity"], **canonical["rest"]}
    written["data"] = {**written["data"], "path": spec.data_path}
    return dict(json.loads(json.dumps(written)))


def check_same_study(spec: StudySpec, folder: StudyFolder, data: Mapping[str, Any]) -> None:
    """Refuse to go on with a study whose results could not be compared with those it has.

    `data` describes the corpus as it is now.

    Raises:
        BadInput: data, fixed, search, constraints, objective, seeds or plugins differ; says in what, and offers --name.
    """
    if not folder.canonical_file.exists():
        return
    known, ours = json.loads(folder.canonical_file.read_text(encoding="utf-8")), as_written(spec)
    differences = [
        each
        for part in dict.fromkeys([*spec.canonical()["identity"], *ABSENT])
        for each in _differences(part, *(said.get(part, ABSENT.get(part)) for said in (ours, known)))
    ]
    described = json.loads(folder.data_file.read_text(encoding="utf-8"))
    if ours["data"] == known["data"] and any(data[name] != described[name] for name in DIGESTS):
        differences.append("the text of the corpus has changed")
    if data.get("init_digest") != described.get("init_digest"):
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


def write_study(spec: StudySpec, folder: StudyFolder, data: Mapping[str, Any]) -> None:
    """Keep the study file as the user wrote it, as it was understood (what workers read), and its data's digests.

    A study that goes on from its own folder keeps the file that it has.
    """
    understood = json.dumps(as_written(spec), indent=1)
    if spec.source != folder.canonical_file:
        text = spec.source.read_text(encoding="utf-8") if spec.source else understood
        write_whole(folder.study_file, text.encode())
    write_whole(folder.data_file, json.dumps(dict(data), indent=1).encode())
    write_whole(folder.canonical_file, understood.encode())
