"""Where a study's numbers and files are kept for people to browse; the only room that imports MLflow and W&B."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sweeplab.tracking.tracker import Mirror, Tracker


def open_tracker(lab: Path, study: str, uri: str | None = None) -> Tracker:
    """Return what keeps a study's numbers, in MLflow at `uri`, or where the lab says."""
    from sweeplab.tracking.mlflow import MLflowTracker  # slow to import

    return MLflowTracker(lab, study, uri)


def _wandb(folder: Path, project: str) -> Mirror:
    from sweeplab.tracking.wandb import WandbMirror

    return WandbMirror(folder, project)


# By the package that each needs: the hyperparameter whose value is the project, and what makes one for a study's
# folder. Where it is set and the package is installed, every run is shown there too.
MIRRORS: dict[str, tuple[str, Callable[[Path, str], Mirror]]] = {"wandb": ("wandb_project", _wandb)}


def open_mirrors(fixed: Mapping[str, Any], folder: Path) -> list[Mirror]:
    """Return the mirrors that a study asks for by the values it fixes, but for those that are not installed."""
    return [
        make(folder, fixed[name])
        for package, (name, make) in MIRRORS.items()
        if fixed.get(name) and find_spec(package)
    ]
