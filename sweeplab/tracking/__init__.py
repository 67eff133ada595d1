"""Where a study's numbers and files are kept for people to browse; the only room that imports MLflow and W&B."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sweeplab.tracking.mlflow import MLflowTracker
    from sweeplab.tracking.tracker import Mirror


def open_tracker(lab: Path, study: str, uri: str | None = None) -> MLflowTracker:
    """Return what keeps a study's numbers, in MLflow at `uri`, or where the lab says."""
    from sweeplab.tracking.mlflow import MLflowTracker  # slow to import

    return MLflowTracker(lab, study, uri)


def mirror_in_words(fixed: Mapping[str, Any]) -> str:
    """Say where else a study's runs are sent by the values it fixes; nothing where that is nowhere."""
    if not (project := fixed.get("wandb_project")):
        return ""
    missing = "" if find_spec("wandb") else ", but wandb is not installed: nothing is sent"
    return f"mirror: Weights & Biases, project {project}{missing}"


def open_mirrors(fixed: Mapping[str, Any], folder: Path) -> list[Mirror]:
    """Return the mirrors that a study asks for by the values it fixes, but for those that are not installed."""
    if not fixed.get("wandb_project") or not find_spec("wandb"):
        return []
    from sweeplab.tracking.wandb import WandbMirror

    return [WandbMirror(folder, fixed["wandb_project"])]
