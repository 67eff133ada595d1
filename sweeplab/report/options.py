"""The options of panels, as dashboards write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from sweeplab.errors import nearest
from sweeplab.files import shipped
from sweeplab.hyperparameters import TABLE
from sweeplab.study.problems import Refusal
from sweeplab.study.values import Section
from sweeplab.train.run import METRICS

_FEW = 8  # a longer list of names is not printed


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


def default_dashboard(page: str) -> Path:
    """Return the default dashboard of a page."""
    return shipped("dashboards") / f"{page}.yaml"
