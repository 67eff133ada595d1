"""The page of what a run attends to in a text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sweeplab.errors import BadInput, Problem
from sweeplab.report.page import render
from sweeplab.report.panels.attention import attention_panel
from sweeplab.report.summary import Summary
from sweeplab.report.words import several
from sweeplab.report.writer import write_files
from sweeplab.runs.attending import AttentionMap

# A page of more weights is slow to open.
MOST_WEIGHTS = 200_000


def write_attention(run: str, prompt: str, maps: Sequence[AttentionMap], file: Path) -> None:
    """Write a page with a panel a layer.

    Raises:
        BadInput: there are too many weights for a page, or the file cannot be written.
    """
    n_weights = sum(each.weights.size for each in maps)
    if n_weights > MOST_WEIGHTS:
        what = f"a page of {n_weights:,} attention weights"
        raise BadInput(Problem(what, f"at most {MOST_WEIGHTS:,}: --layer, --head or a shorter prompt"))
    entries = [
        ("Prompt", prompt),
        ("Read as", " ".join(maps[0].keys)),
        ("Found", " ".join(maps[-1].queries)),
        ("Shown", f"{several(len(maps), 'map')} of {several(len(maps[0].heads), 'head')}"),
    ]
    shown = entries if maps[-1].place == "cross" else [each for each in entries if each[0] != "Found"]
    panels = [attention_panel(each) for each in maps]
    write_files(file.parent, {file.name: render("attention", Summary(run, tuple(shown)), panels, {})})
