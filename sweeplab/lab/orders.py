"""What a person ordered about a study since its file was written, which stays in force until the file itself changes.

The study's folder has the values in force (study.json), the file as it was last read (study.yaml), and which values
were ordered by a command (ordered.json). Overrides are for the run that they are given to.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from sweeplab.files import write_whole
from sweeplab.formatting import duration, yaml_text
from sweeplab.records.folders import StudyFolder

if TYPE_CHECKING:
    from sweeplab.study.spec import StudySpec


@dataclass(frozen=True)
class Order:
    """A value that a command set: its place, such as budget.time, the command, when, and what the file says there.

    `at` is in seconds since 1970. `last` is the value of the study's last run, which an override may have set.
    """

    place: str
    by: str
    at: float
    file: Any
    value: Any
    last: Any = None

    @property
    def origin(self) -> str:
        """Say which command gave the order, and when."""
        return f"{self.by} on {time.strftime('%Y-%m-%d %H:%M', time.localtime(self.at))}"

    def in_words(self) -> str:
        """Say which value is in force, why, and what the file says."""
        is_now = f"{self.place} is {self.text(self.value)}"
        if self.last != self.value:
            is_now = f"{self.place} was {self.text(self.last)} in the last run, and is {self.text(self.value)} again"
        return f"{is_now}, by {self.origin}; the file says {self.text(self.file)}"

    def text(self, value: Any) -> str:
        """Write a value of this place."""
        if value is None:
            return "nothing"
        return duration(value) if self.place == "budget.time" else yaml_text(value)


def read_orders(folder: StudyFolder) -> list[Order]:
    """Return the orders about a study."""
    if not folder.ordered_file.exists():
        return []
    orders, study = folder.read(folder.ordered_file)["orders"], folder.read(folder.canonical_file)
    return [Order(**order, last=_value_at(study, order["place"])) for order in orders]


def orders_in_words(folder: StudyFolder, spec: StudySpec) -> list[str]:
    """Say which earlier orders are in force in a study that is about to run, and which ones are not any more."""
    study, words = spec.as_written(), []
    for order in read_orders(folder):
        value = _value_at(study, order.place)
        if order.at >= spec.read or value == order.file == order.value:
            continue
        later = f"{order.place} is {order.text(value)}, said later than {order.text(order.value)} by {order.origin}"
        words.append(replace(order, last=value).in_words() if value == order.value else later)
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

    An order is dropped if the file that the study was last run from has another value at its place than it had then.
    """
    document = _document(folder.study_file.read_text(encoding="utf-8-sig"))
    study = spec.as_written()
    orders = {
        order.place: order
        for order in read_orders(folder)
        if order.file == _file_value(document, order.place)
    }
    for place, words in by.items():
        value = _value_at(study, place)
        orders[place] = Order(place, words, spec.read, _file_value(document, place), value)
    lasting = [
        {name: value for name, value in asdict(order).items() if name != "last"} for order in orders.values()
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
