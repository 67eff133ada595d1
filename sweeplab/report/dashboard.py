"""Dashboards: YAML files that say which panels a report shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.hyperparameters import TABLE

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
    document = _document(file)
    problems = list(_unknown(file, document, ("title", "panels"), "key"))
    items: Any = document.get("panels")
    if not isinstance(items, list) or not items:
        problems.append(
            Problem("there is no list of panels", "panels: [{panel: loss, x: n_params}]", file=file)
        )
        items = []
    for index, item in enumerate(items):
        problems += _panel_problems(file, item, items.lc.item(index))
    if problems:
        raise BadInput(*problems)
    return Dashboard(str(document.get("title", "Scaling")), tuple(_spec(item) for item in items))


def _document(file: Path) -> Any:
    """Return the file as ruamel.yaml's mapping, which knows its lines."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        raw = file.read_bytes()
        if len(raw) > MAX_BYTES:
            raise BadInput(Problem(f"{len(raw):,} bytes are too many", f"{MAX_BYTES:,}", file=file))
        document = YAML().load(raw.decode())
    except OSError as error:
        raise BadInput(Problem(error.strerror or str(error), file=file)) from error
    except MarkedYAMLError as error:
        mark = error.problem_mark
        place = (mark.line + 1, mark.column + 1) if mark else (None, None)
        raise BadInput(Problem(str(error.problem or error.context), "", "", file, *place)) from error
    except (UnicodeDecodeError, YAMLError, RecursionError) as error:
        raise BadInput(Problem(f"not YAML: {str(error).splitlines()[0]}", file=file)) from error
    if not isinstance(document, dict):
        raise BadInput(Problem("a dashboard is a mapping", "title, panels", file=file))
    return document


def _panel_problems(file: Path, item: Any, place: tuple[int, int]) -> Iterator[Problem]:
    kind = item.get("panel") if isinstance(item, dict) else None
    if kind is None:
        yield _problem(file, place, "this is no panel", "panel: " + " | ".join(PANELS))
        return
    if not isinstance(kind, str) or kind not in PANELS:
        near = nearest(str(kind), PANELS)
        yield _problem(file, item.lc.value("panel"), f"unknown panel {kind!r}", ", ".join(PANELS), near)
        return
    options = {"panel": None, **_COMMON, **PANELS[kind]}
    yield from _unknown(file, item, options, f"option of {kind}")
    if kind == "loss" and "x" not in item:
        yield _problem(file, place, "loss says nothing of its x", "any hyperparameter, " + ", ".join(FACTS))
    for name, written in item.items():
        allowed = options.get(name)
        if allowed is None:
            continue
        for value in _listed(written) if name in _LISTS else [written]:
            if value not in allowed:
                few = ", ".join(allowed) if len(allowed) < 8 else ""
                near = nearest(str(value), allowed)
                yield _problem(file, item.lc.value(name), f"{name} cannot be {value!r}", few, near)


def _unknown(file: Path, mapping: Any, known: Iterable[str], kind: str) -> Iterator[Problem]:
    for key in mapping:
        if key not in known:
            allowed = ", ".join(known)
            yield _problem(
                file, mapping.lc.key(key), f"unknown {kind} {key!r}", allowed, nearest(str(key), known)
            )


def _problem(file: Path, place: tuple[int, int], what: str, allowed: str, near: str = "") -> Problem:
    return Problem(what, allowed, near, file, place[0] + 1, place[1] + 1)


def _listed(written: Any) -> list[Any]:
    return list(written) if isinstance(written, list) else [written]


def _spec(item: Mapping[str, Any]) -> PanelSpec:
    options: dict[str, Any] = {
        name: tuple(_listed(value)) if name in _LISTS else str(value) for name, value in item.items()
    }
    return PanelSpec(**options)
