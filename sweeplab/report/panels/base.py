"""What every panel is: what was asked for, and what there is to draw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pandas import DataFrame


@dataclass(frozen=True)
class PanelSpec:
    """One panel as the dashboard asks for it; an empty text or tuple is what was not said."""

    panel: str
    title: str = ""
    x: str = ""
    y: str = ""
    metric: str = ""
    lines: tuple[str, ...] = ()
    log: tuple[Literal["x", "y"], ...] = ()
    width: Literal["full", "half"] = "full"
    law: str = "chinchilla"
    laws: tuple[str, ...] = ()
    delta: str = "auto"
    against: tuple[str, ...] = ()
    params: tuple[str, ...] = ()
    evaluator: str = "ped-anova"


@dataclass(frozen=True)
class Axis:
    """One axis: the column it shows, its title with the unit, and the values to mark if there are few."""

    column: str
    title: str
    log: bool = False
    marks: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Panel:
    """What every panel has; `missing` says why there is nothing to draw, and is empty otherwise.

    `data` is all that is drawn, a row a mark, and what a reader gets to download; `shown` is a table that stands on
    the page, and for a table what is read of its data. `warnings` are notes that a
    reader must not pass over; `method` are paragraphs, each with its heading, for who wants to know how;
    `result` is what the analysis said, as plain values.
    """

    title: str
    width: str = "full"
    data: DataFrame = field(default_factory=DataFrame)
    shown: DataFrame | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    method: tuple[tuple[str, str], ...] = ()
    result: Mapping[str, Any] = field(default_factory=dict)
    missing: str = ""


@dataclass(frozen=True, kw_only=True)
class TablePanel(Panel):
    """A table to read and to sort."""


@dataclass(frozen=True, kw_only=True)
class TextPanel(TablePanel):
    """A text to read: its parts in order, each with whether a model found it."""

    text: tuple[tuple[bool, str], ...] = ()
