"""The page of the coordinate check."""

from __future__ import annotations

from pathlib import Path

from sweeplab.report.page import render
from sweeplab.report.panels.coordinates import coordinates_panels
from sweeplab.report.summary import Summary
from sweeplab.report.words import listed, several, written
from sweeplab.report.writer import write_files
from sweeplab.runs.coordinates import CoordinateCheck


def write_coordinates(found: CoordinateCheck, file: Path) -> None:
    """Write a page with a figure a parametrization, and the powers of the width.

    Raises:
        BadInput: the file cannot be written.
    """
    entries = [
        ("Widths", f"n_embd {listed([str(width) for width in found.widths])}"),
        ("Trained for", several(found.n_steps, "step")),
        *((name, written(value)) for name, value in found.values.items()),
        *steepest_in_words(found),
    ]
    page = render("coordinates", Summary(found.study, tuple(entries)), coordinates_panels(found), {})
    write_files(file.parent, {file.name: page})


def steepest_in_words(found: CoordinateCheck) -> list[tuple[str, str]]:
    """Say for each parametrization by which power of the width its activations go at the most."""
    return [
        (name, f"activations go as the width to the {power:.2f} behind {layer}")
        for name in found.parametrizations
        for layer, power in [found.steepest(name)]
    ]
