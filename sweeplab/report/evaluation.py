"""The page of a run's evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sweeplab.report.page import render
from sweeplab.report.panels.positions import positions_panel
from sweeplab.report.summary import Summary
from sweeplab.report.words import written
from sweeplab.report.writer import write_files


def write_evaluation(found: Mapping[str, Any], page: Path) -> None:
    """Write what `evaluated` found as a page: its measures, and the loss by position.

    Raises:
        BadInput: the page cannot be written.
    """
    entries = [
        ("Validation split", f"of study {found['study']}"),
        *((name, written(value)) for name, value in found["measures"].items()),
        *(
            (
                f"{each['times']} x block_size",
                f"loss {each['val_loss']:.4f} nats/token, {each['targets']:,} targets",
            )
            for each in found["length_extrapolation"]
        ),
    ]
    text = render("evaluation", Summary(found["run"], tuple(entries)), [positions_panel(found)], {})
    write_files(page.parent, {page.name: text})
