"""Dashboards: YAML files that say which panels a report shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sweeplab.errors import BadInput, nearest
from sweeplab.hyperparameters import TABLE
from sweeplab.study.document import parse
from sweeplab.study.markdown import read_text
from sweeplab.study.places import Complaints, Location, Places

DEFAULT = Path(__file__).with_name("scaling.yaml")
MAX_BYTES = 2**18

# Columns of the runs that are measured or computed, with their axis titles.
FACTS = {
    "n_params": "parameters",
    "n_params_non_embedding": "parameters without embeddings",
    "train_tokens": "training tokens",
    "train_flops": "training FLOPs",
    "wall_seconds": "wall time (s)",
}
LOSSES = {
    "best_val_loss": "validation loss (nats/token)",
    "final_val_loss": "final validation loss (nats/token)",
}
CURVES = {
    "val_loss": "validation loss (nats/token)",
    "train_loss": "training loss (nats/token)",
    "learning_rate": "learning rate",
    "grad_norm": "norm of the gradient",
    "tokens_per_second": "tokens per second",
}
PROGRESS = {"train_tokens": "training tokens", "iteration": "iteration"}

_SIZES = (*FACTS, *TABLE)
_COMMON: dict[str, Sequence[str] | None] = {"title": None, "width": ("full", "half")}
# What each option of each panel may be; None is any text.
PANELS: dict[str, dict[str, Sequence[str] | None]] = {
    "loss": {"x": _SIZES, "lines": tuple(TABLE), "metric": tuple(LOSSES), "log": ("x", "y")},
    "heat_map": {"x": tuple(TABLE), "y": tuple(TABLE), "metric": tuple(LOSSES)},
    "learning_curves": {"x": tuple(PROGRESS), "metric": tuple(CURVES), "log": ("x", "y")},
    "table": {},
}
_LISTS = {"log", "lines"}
_PARTS = ("title", "panels")


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


@dataclass(frozen=True)
class Dashboard:
    """A page's title and its panels, from top to bottom."""

    title: str
    panels: tuple[PanelSpec, ...]


def read_dashboard(path: Path | None = None) -> Dashboard:
    """Read a dashboard, or the default one.

    Raises:
        BadInput: the file cannot be read, or asks for what there is not; every problem has its line.
    """
    file = path or DEFAULT
    complain = Complaints(Places(file))
    document = parse(read_text(file, MAX_BYTES), complain)
    if not complain.problems:
        _check(document, complain)
    if complain.problems:
        raise BadInput(*complain.problems)
    return Dashboard(str(document.get("title", "Scaling")), tuple(map(_spec, document["panels"])))


def _check(document: Any, complain: Complaints) -> None:
    if not isinstance(document, dict):
        complain((), "this is no dashboard", "title: and panels:")
        return
    for key in [key for key in document if key not in _PARTS]:
        near = nearest(key, _PARTS)
        complain((key,), f"unknown part {key!r} of a dashboard", ", ".join(_PARTS), near, at_key=True)
    panels = document.get("panels")
    if not isinstance(panels, list) or not panels:
        complain(("panels",), "there is no list of panels", "- panel: " + " | ".join(PANELS))
        return
    for index, panel in enumerate(panels):
        _check_panel(panel, ("panels", index), complain)


def _check_panel(panel: Any, place: Location, complain: Complaints) -> None:
    kind = panel.get("panel") if isinstance(panel, dict) else None
    if kind is None:
        complain(place, "this is no panel", "panel: " + " | ".join(PANELS))
        return
    if kind not in PANELS:
        complain((*place, "panel"), f"unknown panel {kind!r}", ", ".join(PANELS), nearest(str(kind), PANELS))
        return
    options = {"panel": None, **_COMMON, **PANELS[kind]}
    if kind == "loss" and "x" not in panel:
        complain(place, "loss needs an x", f"any hyperparameter, {', '.join(FACTS)}")
    for name, written in panel.items():
        allowed = options.get(name)
        if name not in options:
            complain.unknown((*place, name), list(options), "option")
        elif allowed is not None:
            for value in _listed(written) if name in _LISTS else [written]:
                if value not in allowed:
                    few = ", ".join(allowed) if len(allowed) < 8 else ""
                    complain((*place, name), f"{name} cannot be {value!r}", few, nearest(str(value), allowed))


def _spec(written: dict[str, Any]) -> PanelSpec:
    options: dict[str, Any] = {
        name: tuple(_listed(value)) if name in _LISTS else str(value) for name, value in written.items()
    }
    return PanelSpec(**options)


def _listed(written: Any) -> list[Any]:
    return written if isinstance(written, list) else [written]
