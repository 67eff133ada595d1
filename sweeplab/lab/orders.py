"""What a person ordered about a study since its file was written, which stays in force until the file itself changes.

The study's folder has the values in force (study.json), the file as it was last read (study.yaml), and which values
were ordered by a command (ordered.json). Overrides are for the run that they are given to.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sweeplab.files import write_whole
from sweeplab.formatting import yaml_text
from sweeplab.records.folders import StudyFolder

if TYPE_CHECKING:
    from sweeplab.study.spec import StudySpec


@dataclass(frozen=True)
class Order:
    """A value that a command set: its place, such as budget.time, the command, when, and what the file says there.

    `at` is in seconds since 1970. The `value` is stored in study.json only.
    """

    place: str
    by: str
    at: float
    file: Any
    value: Any = None

    @property
    def origin(self) -> str:
        """Say which command gave the order, and when."""
        return f"{self.by} on {time.strftime('%Y-%m-%d %H:%M', time.localtime(self.at))}"

    def in_words(self) -> str:
        """Say which value is in force, why, and what the file says."""
        said = "nothing" if self.file is None else yaml_text(self.file)
        return f"{self.place} is {yaml_text(self.value)}, by {self.origin}; the file says {said}"


def read_orders(folder: StudyFolder) -> list[Order]:
    """Return the orders about a study."""
    if not folder.ordered_file.exists():
        return []
    orders, study = folder.read(folder.ordered_file)["orders"], folder.read(folder.canonical_file)
    return [Order(**order, value=_value_at(study, order["place"])) for order in orders]


def orders_in_words(folder: StudyFolder, spec: StudySpec) -> list[str]:
    """Say which earlier orders are in force in a study that is about to run, and which ones are not any more."""
    study, words = spec.as_written(), []
    for order in read_orders(folder):
        value = _value_at(study, order.place)
        if order.at >= spec.read or value == order.file == order.value:
            continue
        later = (
            f"{order.place} is {yaml_text(value)}, said later than {yaml_text(order.value)} by {order.origin}"
        )
        words.append(order.in_words() if value == order.value else later)
    return words


def standing(folder: StudyFolder, spec: StudySpec) -> list[str]:
    """Return the orders that a file, read just now, does not contradict by a change of its own, as overrides."""
    if spec.source == folder.canonical_file:
        return []
    orders = read_orders(folder)
    document = _document(spec.text) if orders else {}
    return [
        f"{order.place}={yaml_text(order.value)}"
        for order in orders
        if _file_value(document, order.place) == order.file
    ]


def write_orders(folder: StudyFolder, spec: StudySpec, by: Mapping[str, str]) -> None:
    """Record the orders that hold for a study whose values are now `spec`: earlier ones, and those at the places `by`.

    An order whose value another one has replaced is dropped.
    """
    from sweeplab.study.spec import IDENTITY

    document = _document(folder.study_file.read_text(encoding="utf-8-sig"))
    study = spec.as_written()
    orders = {
        order.place: order for order in read_orders(folder) if order.value == _value_at(study, order.place)
    }
    orders |= {
        place: Order(place, words, spec.read, _file_value(document, place)) for place, words in by.items()
    }
    lasting = [
        {name: value for name, value in asdict(order).items() if name != "value"}
        for place, order in orders.items()
        if place.partition(".")[0] not in (*IDENTITY, "name", "preset")
        # An engine lacks the keys of other engines.
        and (not place.startswith("engine.") or place.removeprefix("engine.") in study["engine"])
    ]
    if lasting or folder.ordered_file.exists():
        write_whole(folder.ordered_file, json.dumps({"orders": lasting}, indent=1).encode())


def _value_at(study: Mapping[str, Any], place: str) -> Any:
    """Return the value at a place of a study, or None if it has none."""
    value: Any = study
    for key in place.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _document(text: str) -> dict[str, Any]:
    from sweeplab.study.file.document import parse
    from sweeplab.study.problems import Problems, SourceMap

    document = parse(text, Problems(SourceMap()))
    return document if isinstance(document, dict) else {}


def _file_value(document: Mapping[str, Any], place: str) -> Any:
    """Return what a file says at a place, with the defaults of the sections of plain values."""
    from pydantic import BaseModel, ValidationError

    from sweeplab.study.spec import Budget, Engine, Track

    part = place.partition(".")[0]
    models: dict[str, type[BaseModel]] = {"budget": Budget, "engine": Engine, "track": Track}
    if model := models.get(part):
        with suppress(ValidationError):
            section = model.model_validate(document.get(part) or {}).model_dump(mode="json")
            return _value_at({part: section}, place)
    return _value_at(document, place)
