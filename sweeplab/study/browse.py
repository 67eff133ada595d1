"""What MLflow is to show of a study: a dashboard file, and the hyperparameters that the study searches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sweeplab.errors import BadInput, nearest
from sweeplab.hyperparameters import TABLE
from sweeplab.study.document import parse
from sweeplab.study.folder import StudyFolder
from sweeplab.study.listing import read_spec
from sweeplab.study.markdown import read_text
from sweeplab.study.places import Complaints, Location, Places
from sweeplab.tracking.folder import BY_TOKENS
from sweeplab.tracking.view import CURVES, NUMBERS, SEARCHED, TAGS, X_AXES, Chart, View

DEFAULT = Path(__file__).with_name("mlflow.yaml")
MAX_BYTES = 2**18

_AXES = (*NUMBERS, *TABLE)
_COLUMNS = (*TAGS, SEARCHED, *_AXES)
_COMMON: dict[str, Sequence[str] | None] = {"title": None, "width": ("full", "half")}
# What each option of each chart may be; None is any text.
CHARTS: dict[str, dict[str, Sequence[str] | None]] = {
    "line": {"metric": CURVES, "x": tuple(X_AXES), "log": ("x", "y")},
    "scatter": {"x": _AXES, "y": _AXES},
    "compare": {},
}
_NEEDED = {"line": ("metric", "x"), "scatter": ("x", "y"), "compare": ()}
_PARTS = ("columns", "sort", "charts")


def read_view(path: Path | None = None) -> View:
    """Read what MLflow is to show from a dashboard file, or from the default one.

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
    sort = document["sort"]
    charts = tuple(_chart(each) for each in document.get("charts", ()))
    return View(file.stem, tuple(document["columns"]), sort["by"], bool(sort.get("descending")), charts)


def searched(folder: StudyFolder) -> tuple[str, ...]:
    """Return the names of the hyperparameters that a study searches, as it was last run."""
    return tuple(read_spec(folder).search)


def _check(document: Any, complain: Complaints) -> None:
    if not isinstance(document, dict):
        complain((), "this shows nothing", "columns:, sort: and charts:")
        return
    for key in document:
        if key not in _PARTS:
            complain.unknown((key,), _PARTS, "part")
    columns, sort, charts = (document.get(part) for part in _PARTS)
    if isinstance(columns, list) and columns:
        for index, name in enumerate(columns):
            _one_of(name, _COLUMNS, ("columns", index), complain)
    else:
        complain(("columns",), "there is no list of columns", "[state, cell, searched, best_val_loss]")
    if isinstance(sort, dict) and "by" in sort:
        _one_of(sort["by"], _AXES, ("sort", "by"), complain)
        for key in sort.keys() - {"by", "descending"}:
            complain.unknown(("sort", key), ("by", "descending"), "option")
        if not isinstance(sort.get("descending", False), bool):
            complain(("sort", "descending"), "descending is true or false")
    else:
        complain(("sort",), "there is nothing to sort by", "{by: best_val_loss}")
    if charts is not None and not isinstance(charts, list):
        complain(("charts",), "charts is no list", "- chart: " + " | ".join(CHARTS))
        return
    for index, chart in enumerate(charts or ()):
        _check_chart(chart, ("charts", index), complain)


def _check_chart(chart: Any, place: Location, complain: Complaints) -> None:
    kind = chart.get("chart") if isinstance(chart, dict) else None
    if kind not in CHARTS:
        what = f"unknown chart {kind!r}" if kind else "this is no chart"
        complain(place, what, "chart: " + " | ".join(CHARTS), nearest(str(kind or ""), CHARTS))
        return
    options = {"chart": None, **_COMMON, **CHARTS[kind]}
    for name in [name for name in _NEEDED[kind] if name not in chart]:
        complain(place, f"{kind} needs {name}: …", ", ".join(options[name] or ())[:60])
    for name, written in chart.items():
        if name not in options:
            complain.unknown((*place, name), list(options), "option")
        elif (allowed := options[name]) is not None:
            for value in written if name == "log" and isinstance(written, list) else [written]:
                _one_of(value, allowed, (*place, name), complain)
    if chart.get("x") == "train_tokens" and chart.get("metric") in set(CURVES) - set(BY_TOKENS):
        complain((*place, "x"), f"MLflow has no {chart['metric']} over tokens", "iteration, time")


def _one_of(value: Any, allowed: Sequence[str], place: Location, complain: Complaints) -> None:
    if value not in allowed:
        few = ", ".join(allowed) if len(allowed) < 8 else ""
        name = [part for part in place if isinstance(part, str)][-1]
        complain(place, f"{name} cannot be {value!r}", few, nearest(str(value), allowed))


def _chart(written: Mapping[str, Any]) -> Chart:
    log = written.get("log", ())
    return Chart(
        kind=written["chart"],
        title=str(written.get("title", "")),
        x=written.get("x", ""),
        y=written.get("metric", written.get("y", "")),
        log=tuple(log) if isinstance(log, list | tuple) else (log,),
        width=written.get("width", "full"),
    )
