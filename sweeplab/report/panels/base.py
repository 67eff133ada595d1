"""The base class of all panels, and the dashboards that list the panels of a page."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from pandas import DataFrame
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, create_model

from sweeplab.errors import BadInput, nearest
from sweeplab.files import shipped
from sweeplab.hyperparameters import TABLE
from sweeplab.report.style import FONT, Axis, Figure, Look
from sweeplab.study.file.parse import file_text, parse
from sweeplab.study.problems import Location, Problems, Refusal
from sweeplab.study.values import Section
from sweeplab.train.run import METRICS

if TYPE_CHECKING:
    from sweeplab.report.data import ReportData

_FEW = 8  # a longer list of names is not printed


def one_of(*names: str, measures: bool = False) -> AfterValidator:
    """Return the check that a text is one of some names.

    With `measures` the metrics of plugins are allowed too: NAME, NAME_KEY, and best_NAME as a column of runs.
    """

    def check(text: str) -> str:
        measure = text.removeprefix("best_")
        if text in names:
            return text
        if measures and any(
            measure == name or measure.startswith(f"{name}_") for name in METRICS
        ):
            return text
        few = ""
        if len(names) < _FEW:
            few = ", ".join(names)
        known = [*names, *METRICS] if measures else names
        raise Refusal("", few, nearest(text, known))

    return AfterValidator(check)


# A list, which may be written as its only item.
MANY = BeforeValidator(lambda written: [written] if isinstance(written, str) else written)
Log = Annotated[Sequence[Literal["x", "y"]], MANY]
Params = Annotated[Sequence[Annotated[str, one_of(*TABLE)]], MANY]


class Item(Section):
    """What every panel takes."""

    title: str = ""
    width: Literal["full", "half"] = "full"


@dataclass(frozen=True)
class PanelSpec:
    """One panel as a dashboard asks for it; options that it does not name have the panel's own defaults."""

    panel: str
    options: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""
    width: str = "full"


# The data of a panel: the runs of one study, the points of any table, the trials of one study or several, or
# several studies.
Source = Literal["runs", "points", "sweeps", "studies"]
NO_AXIS = Axis("", "")
# Every panel that a dashboard can list, by its name there.
PANELS: dict[str, type[Panel]] = {}
# The sources of the panels that each page can show.
PAGES: dict[str, tuple[Source, ...]] = {
    "scaling": ("runs", "points", "sweeps"),
    "sweep": ("runs", "points", "sweeps"),
    "compare": ("sweeps", "studies"),
}


@typing.dataclass_transform(frozen_default=True, kw_only_default=True)
@dataclass(frozen=True, kw_only=True)
class Panel:
    """The fields of every panel; `missing` says why there is nothing to draw, and is empty otherwise.

    Subclasses are abstract or final, and become dataclasses like this one. A dashboard can list a subclass that has a
    `name`: `_of` makes the panel from the report's data and from its options, its keywords with their types, as
    pydantic checks them. `source` says which data it needs; `heading` is the title of a panel without its own.

    `data` has one row per mark that is drawn, and is what a reader can download. `shown` is the table on the page; a
    table panel without it shows `data`. `warnings` are notes that a reader must not miss, `method` explains the
    computation in paragraphs by heading, and `result` is the result of the analysis as plain values. `palette` has the
    looks of the page's studies or cells.
    """

    name: ClassVar[str] = ""
    heading: ClassVar[str] = ""
    source: ClassVar[Source] = "runs"

    title: str = ""
    width: str = "full"
    data: DataFrame = field(default_factory=DataFrame)
    shown: DataFrame | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    method: Mapping[str, str] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    missing: str = ""
    x: Axis = NO_AXIS
    y: Axis = NO_AXIS
    palette: Mapping[str, Look] = field(default_factory=dict)

    def __init_subclass__(
        cls, name: str = "", heading: str = "", source: Source | None = None
    ) -> None:
        """Register a subclass with a name for dashboards."""
        dataclass(frozen=True, kw_only=True)(cls)
        cls.name, cls.heading = name, heading or name.replace("_", " ").capitalize()
        cls.source = source or cls.source
        if name:
            PANELS[name] = cls

    @classmethod
    def _of(cls, report: ReportData, *args: Any, **options: Any) -> Panel:
        """Make the panel from the report's data and from its options."""
        raise NotImplementedError

    def _draw(self, figure: Figure) -> None:
        """Draw the data on an empty figure, which has the default height and legend."""
        raise NotImplementedError

    @property
    def is_drawn(self) -> bool:
        """Return whether there is something to draw."""
        return not self.missing

    def figure(self) -> Figure | None:
        """Return the figure in the common style; None if there is nothing to draw."""
        if not self.is_drawn:
            return None
        import plotly.graph_objects as go

        figure = go.Figure()
        figure.update_layout(
            font={"family": FONT, "size": 13},
            paper_bgcolor="rgba(0,0,0,0)",
            plot_bgcolor="rgba(0,0,0,0)",
            margin={"l": 64, "r": 16, "t": 12, "b": 52},
            hoverlabel={"font": {"family": FONT, "size": 12}},
            **_BY_WIDTH[self.width],
        )
        self._draw(figure)
        return figure


_BY_WIDTH: dict[str, dict[str, Any]] = {
    "full": {"height": 440, "legend": {"x": 1.01, "y": 1, "font": {"size": 12}}},
    "half": {
        "height": 380,
        "legend": {
            "x": 0,
            "y": 1.02,
            "yanchor": "bottom",
            "orientation": "h",
            "font": {"size": 12},
        },
    },
}


class TablePanel(Panel):
    """A table that a reader can sort."""

    is_drawn = False


class MissingPanel(TablePanel):
    """A panel with nothing to show; it says why."""


def make_panel(asked: PanelSpec, report: ReportData) -> Panel:
    """Return the panel that a dashboard asks for, or one that says why it cannot be made."""
    kind = PANELS[asked.panel]
    try:
        panel = kind._of(report, **asked.options)
    except BadInput as refused:
        panel = MissingPanel(missing="; ".join(problem.what for problem in refused.problems))
    title = asked.title or panel.title or kind.heading
    return replace(panel, title=title, width=asked.width, palette=report.looks)


class Dashboard(NamedTuple):
    """A page's title and its panels, from top to bottom; those after the `first` are folded, if it is given."""

    title: str
    panels: tuple[PanelSpec, ...]
    first: int | None = None


def panels_of(page: str) -> list[str]:
    """Return the names of the panels that a page may have."""
    return [name for name, kind in sorted(PANELS.items()) if kind.source in PAGES[page]]


@cache
def options_of(name: str) -> type[Item]:
    """Return what a panel takes in a dashboard: a title, a width, and the keywords of `of`."""
    making = PANELS[name]._of
    hints = typing.get_type_hints(making, include_extras=True)
    fields: dict[str, Any] = {}
    _report, *options = inspect.signature(making).parameters.values()
    for option in options:
        default = ... if option.default is option.empty else option.default
        fields[option.name] = hints[option.name], default
    return create_model(name, __base__=Item, **fields)


class _Dashboard(Section):
    title: str = ""
    first: Annotated[int, Field(ge=0)] | None = None
    panels: Annotated[list[Any], Field(min_length=1)]


def read_dashboard(path: Path | None = None, page: str = "scaling") -> Dashboard:
    """Read the dashboard of a page from a file, or the page's default dashboard.

    Raises:
        BadInput: the file cannot be read, or has unknown panels, options or values; every problem has its line.
    """
    file = path or shipped("dashboards") / f"{page}.yaml"
    problems = Problems(file)
    document = parse(file_text(file), problems)
    if not problems.found and not isinstance(document, dict):
        problems.add((), "this is not a dashboard", "title: first: panels:")
    if problems.found:
        raise BadInput(*problems.found)
    try:
        whole = _Dashboard.model_validate(document)
    except ValidationError as error:
        problems.retell(error)
    specs, panels = [], document.get("panels")
    for index, panel in enumerate(panels if isinstance(panels, list) else ()):
        specs += _read_panel(panel, panels_of(page), ("panels", index), problems)
    if problems.found:
        raise BadInput(*problems.found)
    return Dashboard(whole.title or page.capitalize(), tuple(specs), whole.first)


def panel_spec(panel: str, options: Mapping[str, Any]) -> PanelSpec:
    """Return one panel as asked for outside a dashboard.

    Raises:
        BadInput: there is no such panel, option or value, or a needed option is missing.
    """
    problems = Problems()
    specs = _read_panel({"panel": panel, **options}, sorted(PANELS), ("panels", 0), problems)
    if problems.found:
        raise BadInput(*problems.found)
    return specs[0]


def _read_panel(
    written: Any, names: Sequence[str], place: Location, problems: Problems
) -> list[PanelSpec]:
    """Return a panel with the options that are written; none if one of them is wrong, which is added."""
    if not isinstance(written, dict) or "panel" not in written:
        problems.add(place, "this is not a panel", "panel: " + " | ".join(names))
        return []
    name = written["panel"]
    if name not in list(names):
        problems.add(
            (*place, "panel"),
            f"unknown panel {name!r}",
            ", ".join(names),
            nearest(str(name), names),
        )
        return []
    try:
        item = options_of(name).model_validate(
            {key: each for key, each in written.items() if key != "panel"}
        )
    except ValidationError as error:
        problems.retell(error, place)
        return []
    # Of a set: in another order each time.
    names = sorted(item.model_fields_set - Item.model_fields.keys())
    options = {key: getattr(item, key) for key in names}
    return [PanelSpec(name, options, item.title, item.width)]
