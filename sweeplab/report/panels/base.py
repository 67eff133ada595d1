"""What every panel is, what it shows, how it is drawn, and the dashboards that ask for panels of a page."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from pandas import DataFrame

from sweeplab.errors import BadInput
from sweeplab.report.options import Option, PanelSpec, check_items, default_dashboard, listed, read_checked
from sweeplab.report.style import FONT, Axis, Figure
from sweeplab.study.problems import Problems

if TYPE_CHECKING:
    from sweeplab.report.data import ReportData

# What a panel is made from: the runs of one study, the points of any table, the trials of one study or several, or
# several studies.
Source = Literal["runs", "points", "sweeps", "studies"]
NO_AXIS = Axis("", "")
# Every panel that can stand in a dashboard, by its name there.
PANELS: dict[str, type[Panel]] = {}
# What the panels of each page may be made from.
PAGES: dict[str, tuple[Source, ...]] = {
    "scaling": ("runs", "points", "sweeps"),
    "sweep": ("runs", "points", "sweeps"),
    "compare": ("sweeps", "studies"),
}
# Panels that had another name in earlier dashboards.
_RENAMED = {"roads": "compute_optimal"}


@typing.dataclass_transform(frozen_default=True, kw_only_default=True)
@dataclass(frozen=True, kw_only=True)
class Panel:
    """What every panel has; `missing` says why there is nothing to draw, and is empty otherwise.

    A class is abstract or final, and a dataclass as this one is. One with a `name` can be asked for in a dashboard:
    `of` makes its panel from the report's data, its `source`, and its options: those keywords of `of` that are
    annotated with an `Option`. `heading` is the title of a panel that has no other.

    `data` is all that is drawn, one row per mark, and what a reader gets to download; `shown` is a table that stands
    on the page, and for a table what is read of its data. `text` is to be read: its parts, each with whether a model
    wrote it. `warnings` are notes that a reader must not pass over; `method` are paragraphs by heading, for who wants
    to know how; `result` is what the analysis said, as plain values.
    """

    name: ClassVar[str] = ""
    heading: ClassVar[str] = ""
    source: ClassVar[Source] = "runs"
    options: ClassVar[Mapping[str, Option]] = {}

    title: str = ""
    width: str = "full"
    data: DataFrame = field(default_factory=DataFrame)
    shown: DataFrame | None = None
    text: tuple[tuple[bool, str], ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    method: Mapping[str, str] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    missing: str = ""
    x: Axis = NO_AXIS
    y: Axis = NO_AXIS

    def __init_subclass__(cls, name: str = "", heading: str = "", source: Source | None = None) -> None:
        """Take what a class says of its panels, and make a panel with a name known to dashboards."""
        dataclass(frozen=True, kw_only=True)(cls)
        cls.name, cls.heading = name, heading or name.replace("_", " ").capitalize()
        cls.source = source or cls.source
        if name:
            PANELS[name] = cls
            hints = typing.get_type_hints(cls.of, include_extras=True)
            own = {key: hint for key, hint in hints.items() if typing.get_origin(hint) is Annotated}
            cls.options = {key: hint.__metadata__[0] for key, hint in own.items()}

    @classmethod
    def of(cls, report: ReportData, *args: Any, **options: Any) -> Panel:
        """Make the panel from the report's data."""
        raise NotImplementedError

    def _draw(self, figure: Figure) -> None:
        """Draw the data on an empty figure, which has the height of most figures and their legend."""
        raise NotImplementedError

    def figure(self) -> Figure | None:
        """Return the figure, as all figures look; None where there is nothing to draw."""
        if self.missing:
            return None
        import plotly.graph_objects as go

        figure = go.Figure()
        figure.update_layout(
            font={"family": FONT, "size": 13},
            paper_bgcolor="rgba(0,0,0,0)",
            plot_bgcolor="rgba(0,0,0,0)",
            margin={"l": 64, "r": 16, "t": 12, "b": 52},
            height=380 if self.width == "half" else 440,
            hoverlabel={"font": {"family": FONT, "size": 12}},
            legend=_LEGENDS[self.width],
        )
        self._draw(figure)
        return figure


_LEGENDS = {
    "full": {"x": 1.01, "y": 1, "font": {"size": 12}},
    "half": {"x": 0, "y": 1.02, "yanchor": "bottom", "orientation": "h", "font": {"size": 12}},
}


class TablePanel(Panel):
    """A table to read and to sort."""

    def figure(self) -> None:
        """Return no figure: a table or a text is not drawn."""


class MissingPanel(TablePanel):
    """A panel with nothing to show; it says why."""


def make_panel(asked: PanelSpec, report: ReportData) -> Panel:
    """Return the panel that a dashboard asks for; one that cannot be made says why."""
    kind = PANELS[asked.panel]
    try:
        found = kind.of(report, **asked.options)
    except BadInput as refused:
        found = MissingPanel(missing="; ".join(problem.what for problem in refused.problems))
    return replace(found, title=asked.title or found.title or kind.heading, width=asked.width)


class Dashboard(NamedTuple):
    """A page's title and its panels, from top to bottom."""

    title: str
    panels: tuple[PanelSpec, ...]


def panels_of(page: str) -> list[str]:
    """Return the names of the panels that a page may have."""
    return [name for name, kind in sorted(PANELS.items()) if kind.source in PAGES[page]]


def read_dashboard(path: Path | None = None, page: str = "scaling") -> Dashboard:
    """Read a dashboard of a page, or its default one.

    Raises:
        BadInput: the file cannot be read, or asks for what does not exist; every problem has its line.
    """
    kinds = {name: PANELS[name].options for name in panels_of(page)}

    def check(document: Mapping[str, Any], problems: Problems) -> None:
        panels = document.get("panels")
        if isinstance(panels, list) and panels:
            for each in panels:
                if isinstance(each, dict) and str(each.get("panel")) in _RENAMED:
                    each["panel"] = _RENAMED[each["panel"]]
            check_items(panels, "panel", kinds, problems)
        else:
            problems.add(("panels",), "there is no list of panels", "- panel: " + " | ".join(kinds))

    document = read_checked(path or default_dashboard(page), ("title", "panels"), check)
    panels = tuple(_spec(kinds[each["panel"]], **each) for each in document["panels"])
    return Dashboard(str(document.get("title", page.capitalize())), panels)


def _spec(
    known: Mapping[str, Option], panel: str, title: object = "", width: str = "full", **options: Any
) -> PanelSpec:
    own = {name: listed(value) if known[name].many else value for name, value in options.items()}
    return PanelSpec(panel, own, str(title), width)
