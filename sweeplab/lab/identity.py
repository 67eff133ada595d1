"""What identifies a study: its file, its data and the code that trains it.

The study's folder has the values in force (study.json) and the file as it was last read (study.yaml).
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, NamedTuple

from sweeplab.errors import BadInput
from sweeplab.files import write_whole
from sweeplab.formatting import yaml_text
from sweeplab.records.folders import DataDescription, StudyFolder
from sweeplab.version import VERSION

if TYPE_CHECKING:
    from sweeplab.study.spec import StudySpec

# The names for users of each part of the code and data that a process works with.
PARTS = {
    "sweeplab": "sweeplab",
    "sources": "sweeplab's sources",
    "torch": "torch",
    "python": "Python",
    "data": "the data's tokens",
}
DIGEST_CHARACTERS = 12
# A longer value is cut where it is shown.
LONGEST_VALUE = 120


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
    changed = []
    for key in dict.fromkeys([*a, *b]):
        changed += differences(a.get(key), b.get(key), f"{place}.{key}".lstrip("."))
    return changed


def check_same_study(spec: StudySpec, folder: StudyFolder, data: DataDescription) -> None:
    """Refuse to continue a study whose new results could not be compared with its old ones.

    `data` describes the corpus as it is now.

    Raises:
        BadInput: data, fixed, search, constraints, objective, seeds or plugins differ; says how, and offers --name.
        DamagedFile: a file of the study is damaged.
    """
    if not folder.has_started:
        return
    known, ours, was = folder.read(folder.canonical_file), spec.as_written(), folder.data
    changed = differences(_identity(ours), _identity(known))
    changes = [f"{place} is {_said(a)} and was {_said(b)}" for place, a, b in changed]
    has_other_text = (data.text_digest, data.token_digest) != (was.text_digest, was.token_digest)
    has_other_text = has_other_text and ours["data"] == known["data"]
    has_other_weights = data.init_digest != was.init_digest
    if has_other_text:
        changes.append("the text of the corpus has changed")
    if has_other_weights:
        changes.append("the weights that it starts from have changed")
    if changes:
        cure = "give this one a --name of its own"
        # With other files of these kinds that one cannot be continued either.
        has_other_plugins = any(each.place.startswith("plugins") for each in changed)
        if not (has_other_text or has_other_weights or has_other_plugins):
            cure += f", or {folder.command('resume')} continues that one"
        raise BadInput(
            f"another study named {spec.name} exists in {folder.lab}: {'; '.join(changes)}; {cure}"
        )
    folder.check_whole()


def _identity(study: Mapping[str, Any]) -> dict[str, Any]:
    """Return what identifies a study: of plugins their digests, not the rows that they have added."""
    from sweeplab.study.spec import IDENTITY

    identity = {part: study.get(part) for part in IDENTITY}
    identity["plugins"] = [
        {name: value for name, value in plugin.items() if name != "rows"}
        for plugin in study.get("plugins") or ()
    ]
    return identity


def _said(value: Any) -> str:
    if value is None:
        return "not given"
    if isinstance(value, Mapping) and [*value] == ["choices"]:
        value = value["choices"]  # its short form
    return shorten(yaml_text(value), LONGEST_VALUE, placeholder="…")


def write_study(spec: StudySpec, folder: StudyFolder, data: DataDescription) -> None:
    """Store the study file as the user wrote it and as it was parsed (which workers read), and its data's digests.

    A study that continues from its own folder keeps its file.
    """
    understood = json.dumps(spec.as_written(), indent=1)
    if spec.source != folder.canonical_file:
        write_whole(folder.study_file, (spec.text if spec.source else understood).encode())
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
    both = [name for name in PARTS if name in ours and name in theirs and ours[name] != theirs[name]]
    return [f"{PARTS[name]} ({ours[name]} here, {theirs[name]} there)" for name in both]


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
