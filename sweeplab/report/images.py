"""Figures as pictures, one file each, by Plotly's Kaleido and the browser that it finds."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from sweeplab.errors import BadInput, Problem
from sweeplab.report.panels.base import Panel, TablePanel

WIDTHS = {"full": 1000, "half": 560}
SCALE = 2  # pixels of a picture for one of the page
INK, RULE = "#1c1f24", "#e3e6ea"


def check_images(form: str) -> None:
    """Make sure that pictures can be made.

    Raises:
        BadInput: Kaleido is not installed.
    """
    if find_spec("kaleido") is None:
        raise BadInput(f"--format {form} needs Kaleido: pip install 'sweeplab[images]'; html needs nothing")


def write_images(panels: Sequence[Panel], folder: Path, page: str, form: str) -> list[Path]:
    """Write each figure as FOLDER/PAGE-NUMBER-TITLE.FORM, on white, and return the files.

    Raises:
        BadInput: Kaleido's browser is missing, no panel has a figure, or the folder cannot be written to.
    """
    from plotly.io import write_images as write

    from sweeplab.report.drawing import draw

    drawn = {
        folder / f"{page}-{number}-{_word(panel.title)}.{form}": (draw(panel), WIDTHS[panel.width])
        for number, panel in enumerate(panels, start=1)
        if not panel.missing and not isinstance(panel, TablePanel)
    }
    if not drawn:
        raise BadInput(f"no panel has a figure: {panels[0].missing or 'all are tables'}")
    for figure, _ in drawn.values():
        figure.update_layout(paper_bgcolor="white", plot_bgcolor="white", font={"color": INK})
        figure.update_xaxes(gridcolor=RULE)
        figure.update_yaxes(gridcolor=RULE)
    figures, widths = zip(*drawn.values(), strict=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write(
            fig=list(figures), file=list(drawn), format=form, scale=SCALE, width=list(widths),
            height=[figure.layout.height for figure in figures],
        )  # fmt: skip
    except OSError as error:
        raise BadInput(Problem(f"cannot be written: {error.strerror or error}", file=folder)) from error
    except Exception as error:
        if (
            type(error).__name__ != "ChromeNotFoundError"
        ):  # Kaleido's own, which cannot be imported without it
            raise
        raise BadInput("Kaleido finds no Chrome or Chromium: plotly_get_chrome installs one") from error
    return list(drawn)


def _word(title: str) -> str:
    """Return a title as part of a file's name."""
    return "-".join("".join(each if each.isalnum() else " " for each in title.lower()).split())
