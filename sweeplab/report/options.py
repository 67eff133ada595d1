"""The files of dashboards: lists of panels or charts with options, checked by pydantic with their place in the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, ValidationError

from sweeplab.errors import BadInput, nearest
from sweeplab.files import shipped
from sweeplab.hyperparameters import TABLE
from sweeplab.study.file.parse import file_text, parse
from sweeplab.study.problems import Location, Problems, Refusal, SourceMap
from sweeplab.study.values import Section
from sweeplab.train.run import METRICS

MAX_BYTES = 2**18
_FEW = 8  # a longer list of names is not printed
Form = TypeVar("Form", bound=Section)


def one_of(*names: str, measures: bool = False) -> AfterValidator:
    """Return the check that a text is one of some names.

    With `measures` the metrics of plugins are allowed too: NAME, NAME_KEY, and best_NAME as a column of runs.
    """

    def check(text: str) -> str:
        measure = text.removeprefix("best_")
        if text in names:
            return text
        if measures and any(measure == name or measure.startswith(f"{name}_") for name in METRICS):
            return text
        few = ""
        if len(names) < _FEW:
            few = ", ".join(names)
        raise Refusal("", few, nearest(text, names))

    return AfterValidator(check)


def _several(written: Any) -> Any:
    if isinstance(written, str):
        return [written]
    return written


# A list, which may be written as its only item.
MANY = BeforeValidator(_several)
Log = Annotated[Sequence[Literal["x", "y"]], MANY]
Params = Annotated[Sequence[Annotated[str, one_of(*TABLE)]], MANY]


class Item(Section):
    """What every panel and chart takes."""

    title: str = ""
    width: Literal["full", "half"] = "full"


@dataclass(frozen=True)
class PanelSpec:
    """One panel as a dashboard asks for it; options that it does not name have the panel's own defaults."""

    panel: str
    options: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""
    width: str = "full"


def default_dashboard(page: str) -> Path:
    """Return the default dashboard of a page."""
    return shipped("dashboards") / f"{page}.yaml"


def read_file(
    file: Path, form: type[Form], what: str, kinds: Mapping[str, type[Item]]
) -> tuple[Form, list[tuple[str, Item]]]:
    """Read a dashboard of a `form`, whose list of panels or charts (`what`) has items of some kinds.

    Raises:
        BadInput: the file cannot be read, or has unknown keys, items or values; every problem has its line.
    """
    problems = Problems(SourceMap(file))
    document = parse(file_text(file, MAX_BYTES), problems)
    if not problems.found and not isinstance(document, dict):
        problems.add((), "this is not a dashboard", " ".join(f"{key}:" for key in form.model_fields))
    if problems.found:
        raise BadInput(*problems.found)
    whole, items = None, document.get(f"{what}s")
    try:
        whole = form.model_validate(document)
    except ValidationError as error:
        problems.retell(error)
    checked = []
    if isinstance(items, list):
        checked = check_items(items, what, kinds, problems)
    if problems.found or whole is None:
        raise BadInput(*problems.found)
    return whole, checked


def check_items(
    items: Sequence[Any], what: str, kinds: Mapping[str, type[Item]], problems: Problems
) -> list[tuple[str, Item]]:
    """Return the panels or charts of a list, each with the name of its kind; add what is wrong with them."""
    checked = []
    for index, item in enumerate(items):
        place: Location = (f"{what}s", index)
        kind = item.get(what) if isinstance(item, dict) else None
        if kind is None:
            problems.add(place, f"this is not a {what}", f"{what}: " + " | ".join(kinds))
        elif kind not in list(kinds):
            near = nearest(str(kind), kinds)
            problems.add((*place, what), f"unknown {what} {kind!r}", ", ".join(kinds), near)
        else:
            options = {name: value for name, value in item.items() if name != what}
            try:
                checked.append((kind, kinds[kind].model_validate(options)))
            except ValidationError as error:
                problems.retell(error, place)
    return checked
