"""A study's file under another name: as its user wrote it, with what was laid over it then and is now."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sweeplab.errors import BadInput
from sweeplab.records.folders import StudyFolder
from sweeplab.lab.identity import as_written
from sweeplab.lab.listing import study_names
from sweeplab.study.places import Location
from sweeplab.study.file.reading import read_study, read_text
from sweeplab.study.file.writing import REMOVED, edited, study_file

# Written in more than one way, so that a change of it replaces it all.
_WHOLE = ("sampler", "pruner")


def clone_text(folder: StudyFolder, name: str, overrides: Sequence[str] = ()) -> str:
    """Return the study file of a study as it was last run, with another name and `name=value` overrides.

    Comments and all that does not change stay as the user wrote them. Paths are absolute, and what plugins provide
    is left out: they are imported anew.

    Raises:
        BadInput: the name is taken or is none, or an override is wrong.
    """
    if name in study_names(folder.lab):
        raise BadInput(f"a study {name!r} stands in {folder.lab}; give another name")
    wanted = as_written(read_study(folder.canonical_file, overrides, name))
    # The names of its parts are known without its plugins.
    known = [f"plugins={json.dumps(wanted['plugins'])}"] if "plugins" in wanted else []
    if known:
        wanted["plugins"] = [each["file"] for each in wanted["plugins"]]
    written = folder.study_file.read_text(encoding="utf-8-sig")
    try:
        said = as_written(read_text(written, folder.study_file, known))
        text = edited(written, _changes(said, wanted))
        if known or as_written(read_text(text, folder.study_file)) == wanted:
            return text
    except BadInput:  # the file says a whole study only with the overrides of its run
        pass
    return study_file(wanted, [f"Study {folder.name}, as {name}"])


def _changes(said: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[Location, Any]:
    """Return what is to be set and removed in a file that says one study so that it says another."""
    changes: dict[Location, Any] = {}
    for part in dict.fromkeys([*said, *wanted]):
        old, new = said.get(part), wanted.get(part)
        if old == new:
            continue
        if part in _WHOLE or not isinstance(old, dict) or not isinstance(new, dict):
            changes[part,] = REMOVED if new is None else new
            continue
        for key in dict.fromkeys([*old, *new]):
            if key not in new or (new[key] is None and part != "fixed"):  # there null switches a thing off
                changes[part, key] = REMOVED
            elif key not in old or old[key] != new[key]:
                changes[part, key] = new[key]
    return changes
