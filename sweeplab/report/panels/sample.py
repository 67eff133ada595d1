"""What a study's best run writes, of each thing that its runs find."""

from __future__ import annotations

from typing import Any

from pandas import DataFrame

from sweeplab.data.prompts import HOLE
from sweeplab.errors import BadInput
from sweeplab.records.folders import StudyFolder
from sweeplab.report.panels.base import Panel, PanelSpec, TextPanel
from sweeplab.report.panels.material import Material
from sweeplab.report.words import told
from sweeplab.runs.sample import read_samples


def sample_panel(spec: PanelSpec, material: Material) -> Panel:
    """Show the best run's text, with what was given and what was found told apart.

    Raises:
        BadInput: there is none.
    """
    if material.runs.empty:
        raise BadInput("the study has no runs yet")
    study = str(material.runs["study"].iloc[0])
    samples = read_samples(StudyFolder(material.lab, study)) if material.lab else []
    if not samples:
        raise BadInput("no run that is kept has written a text")
    text: list[tuple[bool, str]] = []
    for said in samples:
        heading = [(False, f"{said['run']}\n\n")] if len(samples) > 1 else []
        text += [(False, "\n\n\n")] if text else []
        text += [*heading, *parts(said["prompt"], said["text"])]
    return TextPanel(
        title=spec.title or "What the best run writes",
        width=spec.width,
        data=DataFrame(samples),
        notes=tuple(
            f"Run {said['run']}, from the beginning of the validation split: dark is what it found, with {_how(said)}."
            for said in samples
        ),
        text=tuple(text),
    )


def _how(said: dict[str, Any]) -> str:
    named = ("temperature", "top_k", "top_p", "seed")
    return ", ".join(f"{name} {told(said[name])}" for name in named if said[name] is not None)


def parts(prompt: str, text: str) -> tuple[tuple[bool, str], ...]:
    """Return a text in parts, each with whether it was found and not given; with the prompt before another text."""
    found: list[tuple[bool, str]] = []
    at = 0
    for index, piece in enumerate(prompt.split(HOLE)):
        place = text.find(piece, at)
        if place < 0 or (index == 0 and place > 0):
            return (False, f"{prompt}\n"), (True, text)
        found += [(True, text[at:place]), (False, piece)]
        at = place + len(piece)
    return tuple(each for each in (*found, (True, text[at:])) if each[1])
