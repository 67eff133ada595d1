"""Tracking: a study's numbers and files for people to browse, written and never read back.

It is the only package that imports MLflow and W&B.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sweeplab.tracking.mlflow import MLflowTracker
    from sweeplab.tracking.tracker import Mirror


def open_tracker(lab: Path, study: str, uri: str | None = None) -> MLflowTracker:
    """Return the tracker of a study, in MLflow at `uri`, or by default in the lab."""
    from sweeplab.tracking.mlflow import MLflowTracker  # slow to import

    return MLflowTracker(lab, study, uri)


def mirror_in_words(fixed: Mapping[str, Any]) -> str:
    """Return in words to which mirror a study's fixed values send its runs; an empty text if to none."""
    project = fixed.get("wandb_project")
    if not project:
        return ""
    text = f"mirror: Weights & Biases, project {project}"
    if find_spec("wandb"):
        return text
    return f"{text}, but wandb is not installed: nothing is sent"


def open_mirrors(fixed: Mapping[str, Any], folder: Path) -> list[Mirror]:
    """Return the mirrors that a study's fixed values ask for, without those that are not installed."""
    if not fixed.get("wandb_project") or not find_spec("wandb"):
        return []
    from sweeplab.tracking.wandb import WandbMirror

    return [WandbMirror(folder, fixed["wandb_project"])]
