"""What every panel is: what a dashboard may ask of it, what it shows, and how it is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pandas import DataFrame

from sweeplab.errors import BadInput
from sweeplab.report.options import Option, PanelSpec
from sweeplab.report.style import FONT, Axis, Figure

if TYPE_CHECKING:
    from sweeplab.report.data import ReportData

# What a panel is made from: the runs of one study, the points of any table, the trials of one study or several, or
# several studies.
Source = Literal["runs", "points", "sweeps", "studies"]
Paragraphs = tuple[tuple[str, str], ...]
NO_AXIS = Axis("", "")
# Every panel that can stand in a dashboard, by its name there.
PANELS: dict[str, type[Panel]] = {}


@dataclass(frozen=True, kw_only=True)
class Panel:
    """What every panel has; `missing` says why there is nothing to draw, and is empty otherwise.

    A class is abstract or final. One with a `name` can be asked for in a dashboard: `of` makes its panel from the
    report's data, its `source`, and its options, which are keywords of `of`. `heading` is the title of a panel that
    has no other.

    `data` is all that is drawn, one row per mark, and what a reader gets to download; `shown` is a table that stands
    on the page, and for a table what is read of its data. `text` is to be read: its parts, each with whether a model
    wrote it. `warnings` are notes that a reader must not pass over; `method` are paragraphs, each with its heading,
    for who wants to know how; `result` is what the analysis said, as plain values.
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
    method: Paragraphs = ()
    result: Mapping[str, Any] = field(default_factory=dict)
    missing: str = ""
    x: Axis = NO_AXIS
    y: Axis = NO_AXIS

    def __init_subclass__(
        cls,
        name: str = "",
        heading: str = "",
        source: Source | None = None,
        options: Mapping[str, Option] | None = None,
    ) -> None:
        """Take what a class says of its panels, and make a panel with a name known to dashboards."""
        cls.name, cls.heading = name, heading
        cls.source, cls.options = source or cls.source, options or cls.options
        if name:
            PANELS[name] = cls

    @classmethod
    def of(cls, report: ReportData, *args: Any, **options: Any) -> Panel:
        """Make the panel from the report's data."""
        raise NotImplementedError

    def draw(self, figure: Figure) -> None:
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
        self.draw(figure)
        return figure


_LEGENDS = {
    "full": {"x": 1.01, "y": 1, "font": {"size": 12}},
    "half": {"x": 0, "y": 1.02, "yanchor": "bottom", "orientation": "h", "font": {"size": 12}},
}


@dataclass(frozen=True, kw_only=True)
class TablePanel(Panel):
    """A table to read and to sort."""

    def figure(self) -> None:
        """Return no figure: a table or a text is not drawn."""


@dataclass(frozen=True, kw_only=True)
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
