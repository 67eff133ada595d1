"""The parts of dashboards: items of several kinds with options, checked with their place in the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from sweeplab.errors import BadInput, nearest
from sweeplab.files import shipped
from sweeplab.hyperparameters import TABLE
from sweeplab.study.file.parse import file_text, parse
from sweeplab.study.problems import Location, Problems, SourceMap
from sweeplab.train.run import METRICS

MAX_BYTES = 2**18


class PanelOption(NamedTuple):
    """The values of an option: one of those allowed, or any text if none are given.

    An option with `many` also takes a list. An option that must be given says in `needed` what it takes. With
    `measures` the metrics of plugins are allowed too: NAME, NAME_KEY, and best_NAME as a column of runs.
    """

    allowed: Sequence[str] = ()
    many: bool = False
    needed: str = ""
    measures: bool = False

    def allows(self, value: Any) -> bool:
        """Return whether the option takes a value."""
        measure = str(value).removeprefix("best_")
        if self.measures and any(measure == name or measure.startswith(f"{name}_") for name in METRICS):
            return True
        return not self.allowed or value in self.allowed

    def values(self, written: Any) -> list[Any]:
        """Return the values that are written: several, or one alone."""
        if self.many and isinstance(written, list):
            return written
        return [written]


COMMON = {"title": PanelOption(), "width": PanelOption(("full", "half"))}
LOG = PanelOption(("x", "y"), many=True)
Log = Annotated[Sequence[str], LOG]
Params = Annotated[Sequence[str], PanelOption(tuple(TABLE), many=True)]


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


def read_checked(
    file: Path, parts: Sequence[str], check: Callable[[Mapping[str, Any], Problems], None]
) -> dict[str, Any]:
    """Read a dashboard with these top-level `parts`, and check it with `check`.

    Raises:
        BadInput: the file cannot be read, or has unknown parts, items or options; every problem has its line.
    """
    problems = Problems(SourceMap(file))
    document = parse(file_text(file, MAX_BYTES), problems)
    if not problems.found and not isinstance(document, dict):
        problems.add((), "this is not a dashboard", " ".join(f"{part}:" for part in parts))
    if not problems.found:
        for key in document:
            if key not in parts:
                what, near = f"the dashboard has no part {key!r}", nearest(str(key), parts)
                problems.add((key,), what, ", ".join(parts), near, at_key=True)
        check(document, problems)
    if problems.found:
        raise BadInput(*problems.found)
    return dict(document)


def check_items(
    items: Sequence[Any], what: str, kinds: Mapping[str, Mapping[str, PanelOption]], problems: Problems
) -> None:
    """Check that each panel or chart of a list has a known kind, and only options of that kind."""
    for index, item in enumerate(items):
        place: Location = (f"{what}s", index)
        kind = item.get(what) if isinstance(item, dict) else None
        if kind is None:
            problems.add(place, f"this is not a {what}", f"{what}: " + " | ".join(kinds))
        elif kind not in list(kinds):
            near = nearest(str(kind), kinds)
            problems.add((*place, what), f"unknown {what} {kind!r}", ", ".join(kinds), near)
        else:
            options = {what: PanelOption(), **COMMON, **kinds[kind]}
            for name, option in options.items():
                if option.needed and name not in item:
                    problems.add(place, f"{kind} needs {name}: …", option.needed)
            check_options(item, options, place, problems)


def check_options(
    written: Mapping[str, Any], options: Mapping[str, PanelOption], place: Location, problems: Problems
) -> None:
    """Check that all options are known, and that each has an allowed value."""
    for name, value in written.items():
        if name not in options:
            problems.unknown((*place, name), list(options), "option")
            continue
        for item in options[name].values(value):
            check_value(item, options[name], (*place, name), problems)


def check_value(value: Any, option: PanelOption, place: Location, problems: Problems) -> None:
    """Check one value of an option."""
    if not option.allows(value):
        allowed = [*option.allowed, *(METRICS if option.measures else ())]
        few = ", ".join(allowed) * (len(allowed) < 8)
        name = [part for part in place if isinstance(part, str)][-1]
        problems.add(place, f"{name} cannot be {value!r}", few, nearest(str(value), allowed))
