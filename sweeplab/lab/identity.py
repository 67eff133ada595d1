"""What identifies a study: its file, its data and the code that trains it, stored with its results."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sweeplab.errors import BadInput
from sweeplab.files import write_whole
from sweeplab.lab.orders import read_orders, write_orders
from sweeplab.records.folders import DataDescription, StudyFolder
from sweeplab.version import VERSION

if TYPE_CHECKING:
    from sweeplab.study.spec import StudySpec

# The values of keys that a study file may leave out.
ABSENT: Mapping[str, Any] = {"plugins": [], "init_from": None}
# The names for users of each part of the code and data that a process works with.
PARTS = {
    "sweeplab": "sweeplab",
    "sources": "sweeplab's sources",
    "torch": "torch",
    "python": "Python",
    "data": "the data's tokens",
}
DIGEST_CHARACTERS = 12


class Difference(NamedTuple):
    """A place in two records, as keys joined by dots, and the value of each there, None if it has none."""

    place: str
    a: Any
    b: Any


def differences(a: Any, b: Any, place: str = "") -> list[Difference]:
    """Return where two nested mappings differ, in the order of their keys."""
    if a == b:
        return []
    if not isinstance(a, Mapping) or not isinstance(b, Mapping):
        return [Difference(place, a, b)]
    return [
        each
        for key in dict.fromkeys([*a, *b])
        for each in differences(a.get(key), b.get(key), f"{place}.{key}" if place else str(key))
    ]


def check_same_study(spec: StudySpec, folder: StudyFolder, data: DataDescription) -> None:
    """Refuse to continue a study whose new results could not be compared with its old ones.

    `data` describes the corpus as it is now.

    Raises:
        BadInput: data, fixed, search, constraints, objective, seeds or plugins differ; says how, and offers --name.
        DamagedFile: a file of the study is damaged.
    """
    if not folder.has_started:
        return
    from sweeplab.study.spec import IDENTITY

    known, ours = folder.read(folder.canonical_file), spec.as_written()
    found = [
        f"{each.place} is {_said(each.a)} and was {_said(each.b)}"
        for part in IDENTITY
        for absent in [ABSENT.get(part)]
        for each in differences(ours.get(part, absent), known.get(part, absent), part)
    ]
    described = folder.data
    digests = (data.text_digest, data.token_digest)
    if ours["data"] == known["data"] and digests != (described.text_digest, described.token_digest):
        found.append("the text of the corpus has changed")
    if data.init_digest != described.init_digest:
        found.append("the weights that it starts from have changed")
    if found:
        raise BadInput(
            f"another study named {spec.name} exists in {folder.lab}: {'; '.join(found)}; "
            "give this one a --name of its own"
        )
    folder.check_whole()


def _said(value: Any) -> str:
    return "not given" if value is None else json.dumps(value)


def write_study(spec: StudySpec, folder: StudyFolder, data: DataDescription) -> None:
    """Store the study file as the user wrote it and as it was parsed (which workers read), and its data's digests.

    A study that continues from its own folder keeps its file. A budget that was ordered after the file was read stays.
    """
    if any(order.at > spec.read for order in read_orders(folder)):
        budget = type(spec.budget).model_validate(folder.read(folder.canonical_file)["budget"])
        spec = spec.model_copy(update={"budget": budget})
    understood = json.dumps(spec.as_written(), indent=1)
    if spec.source != folder.canonical_file:
        write_whole(folder.study_file, (spec.text if spec.source else understood).encode())
    write_orders(folder, spec, {})
    write_whole(folder.data_file, json.dumps(data.as_dict(), indent=1).encode())
    write_whole(folder.canonical_file, understood.encode())


def versions(token_digest: str) -> dict[str, str]:
    """Return the versions that this process works with; sources and data as the start of their digest."""
    return {**_code(), "data": token_digest[:DIGEST_CHARACTERS]}


def code_versions() -> dict[str, Any]:
    """Return the versions of the code that this process works with, and its git commit if there is one."""
    from sweeplab.tracking.environment import git_of_code

    return {**_code(), "git": git_of_code()}


def version_differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Say in which parts two processes differ; parts that only one of them names are ignored."""
    both = ours.keys() & theirs.keys()
    return [
        f"{PARTS[each.place]} ({each.a} here, {each.b} there)"
        for each in differences(ours, theirs)
        if each.place in both
    ]


def _code() -> dict[str, str]:
    from importlib.metadata import version

    root, digest = Path(__file__).parents[1], hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        digest.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes() + b"\0")
    return {
        "sweeplab": VERSION,
        "sources": digest.hexdigest()[:DIGEST_CHARACTERS],
        "torch": version("torch"),
        "python": platform.python_version(),
    }
