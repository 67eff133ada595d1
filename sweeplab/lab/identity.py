"""What identifies a study: its file, its data and the code that trains it; and what a person ordered since about it.

The study's folder has the values in force (study.json), the file as it was last read (study.yaml), and which values
were ordered by a command (ordered.json). An order stays in force until the file itself changes there. Overrides are for
the run that they are given to.
"""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, NamedTuple

from sweeplab.errors import BadInput
from sweeplab.files import write_whole
from sweeplab.formatting import duration, yaml_text
from sweeplab.records.folders import DataDescription, StudyFolder
from sweeplab.version import VERSION

if TYPE_CHECKING:
    from sweeplab.study.spec import StudySpec


@dataclass(frozen=True)
class Order:
    """A value that a command set: its place, such as budget.time, the command, when, and what the file says there.

    `at` is in seconds since 1970.
    """

    place: str
    by: str
    at: float
    file: Any
    value: Any

    def in_words(self) -> str:
        """Say which value is in force, by which command, since when, and what the file says."""
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.at))
        in_force, in_file = _order_text(self.place, self.value), _order_text(self.place, self.file)
        return f"{self.place} is {in_force}, by {self.by} on {since}; the file says {in_file}"


def _order_text(place: str, value: Any) -> str:
    if value is None:
        return "nothing"
    if place == "budget.time" and isinstance(value, float):
        return duration(value)
    return yaml_text(value)


def read_orders(folder: StudyFolder) -> list[Order]:
    """Return the orders about a study."""
    return [Order(**order) for order in folder.read_if_written(folder.ordered_file).get("orders", ())]


def orders_in_words(folder: StudyFolder, spec: StudySpec) -> list[str]:
    """Say which earlier orders are in force in a study that is about to run."""
    study = spec.as_written()
    orders = [order for order in read_orders(folder) if order.value != order.file]
    return [order.in_words() for order in orders if _value_at(study, order.place) == order.value]


def standing(folder: StudyFolder, spec: StudySpec) -> list[str]:
    """Return the orders that a file, read just now, does not contradict by a change of its own, as overrides."""
    orders = read_orders(folder)
    if spec.source == folder.canonical_file or not orders:
        return []
    document = _document(spec.text)
    kept = [order for order in orders if _value_at(document, order.place) == order.file]
    return [f"{order.place}={yaml_text(order.value)}" for order in kept]


def write_orders(folder: StudyFolder, spec: StudySpec, places: Iterable[str] = ()) -> None:
    """Record the orders that hold for a study whose values are now `spec`: earlier ones, and those at the `places`.

    An order is dropped if the file that the study was last run from has another value at its place than it had then.
    """
    document = _document(folder.read_study())
    orders = {}
    for order in read_orders(folder):
        if order.file == _value_at(document, order.place):
            orders[order.place] = order
    study = spec.as_written()
    for place in places:
        in_file = _value_at(document, place)
        orders[place] = Order(place, "extend", spec.read, in_file, _value_at(study, place))
    if orders or folder.ordered_file.exists():
        lasting = {"orders": [asdict(order) for order in orders.values()]}
        write_whole(folder.ordered_file, json.dumps(lasting, indent=1).encode())


def _value_at(study: Mapping[str, Any], place: str) -> Any:
    value: Any = study
    for key in place.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def _document(text: str) -> dict[str, Any]:
    from sweeplab.study.file.parse import parse
    from sweeplab.study.problems import Problems, SourceMap

    document = parse(text.removeprefix("\ufeff"), Problems(SourceMap()))
    return document if isinstance(document, dict) else {}


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
    from sweeplab.study.spec import IDENTITY

    known, ours, changes = folder.read(folder.canonical_file), spec.as_written(), list[str]()
    for part in IDENTITY:
        for difference in differences(_identity(ours, part), _identity(known, part), part):
            changes.append(f"{difference.place} is {_said(difference.a)} and was {_said(difference.b)}")
    # With other data or plugins that one cannot be continued either.
    can_continue = not any(words.startswith("plugins") for words in changes)
    described, digests = folder.data, (data.text_digest, data.token_digest)
    if ours["data"] == known["data"] and digests != (described.text_digest, described.token_digest):
        can_continue = False
        changes.append("the text of the corpus has changed")
    if data.init_digest != described.init_digest:
        can_continue = False
        changes.append("the weights that it starts from have changed")
    if changes:
        cure = "give this one a --name of its own"
        if can_continue:
            cure += f", or {folder.command('resume')} continues that one"
        raise BadInput(
            f"another study named {spec.name} exists in {folder.lab}: {'; '.join(changes)}; {cure}"
        )
    folder.check_whole()


def _identity(study: Mapping[str, Any], part: str) -> Any:
    """Return what identifies a study in a part of it: of plugins their digests, not the rows that they have added."""
    value = study.get(part, ABSENT.get(part))
    if part != "plugins":
        return value
    return [{name: plugin[name] for name in plugin if name != "rows"} for plugin in value]


def _said(value: Any) -> str:
    if value is None:
        return "not given"
    if isinstance(value, Mapping) and [*value] == ["choices"]:
        value = value["choices"]  # its short form
    return shorten(yaml_text(value), LONGEST_VALUE, placeholder="…")


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
    write_orders(folder, spec)
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
        f"{PARTS[difference.place]} ({difference.a} here, {difference.b} there)"
        for difference in differences(ours, theirs)
        if difference.place in both
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
