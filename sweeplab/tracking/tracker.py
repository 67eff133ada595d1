"""The contract between a study and whatever keeps its numbers, and the trackers there are.

A tracker ships run folders: it reads what a worker wrote (run.json, points.jsonl, end.json, the checkpoint)
and brings the tracking up to date with it. Shipping is idempotent, so a killed process simply ships again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypedDict

from sweeplab.tracking.measures import Measure


class TrackingUnavailable(Exception):  # noqa: N818 - a state of the world, not an error of the program
    """Say that tracking could not take something now; nothing is lost, the caller may try again later."""


class Summary(TypedDict, total=False):
    """How a study stands, when it opens and when it closes; `best_run` is a run key, `counts` runs by state.

    `state` is "complete", "failed", or anything else for a study that can be gone on with. `best_trials` are the
    best first, each the `key` of one of its runs, its `value`, and whatever else is to be read beside it.
    """

    state: str
    best_val_loss: float | None
    best_run: str | None
    best_trials: Sequence[Mapping[str, Any]]
    counts: Mapping[str, int]


class Description(TypedDict, total=False):
    """What a study says of itself when it opens: the study file's text, its plan, where it runs, how it stands.

    `note` is Markdown, for people.
    """

    study: str
    plan: Mapping[str, Any]
    environment: Mapping[str, Any]
    params: Mapping[str, Any]
    tags: Mapping[str, str]
    note: str
    summary: Summary


@dataclass(frozen=True)
class TrackedRun:
    """A run as tracking has it: its place in the study, its hyperparameters as text, its latest numbers."""

    run_id: str
    cell: str
    trial: int
    seed: int
    state: str
    values: Mapping[str, str]
    metrics: Mapping[str, float]


class Mirror(ABC):
    """Show the runs of one study; nothing is read back.

    Every method may raise TrackingUnavailable, and may be called again after it.
    """

    @abstractmethod
    def open(self, description: Description) -> str:
        """Find or create the study, bring its description up to date, and return its id."""

    @abstractmethod
    def ship(self, folder: Path) -> None:
        """Bring what is shown up to date with a run's folder; one shipped to its end costs microseconds."""

    @abstractmethod
    def close(self, summary: Summary) -> None:
        """Write the study's state and best values."""


class Tracker(Mirror):
    """Keep the numbers and files of one study: what analysis reads.

    `open` sets runs that tracking still has as running, from a process that was killed, back to waiting; `close`
    does so with what has not ended.
    """

    @abstractmethod
    def wait(self, folder: Path) -> None:
        """Say that a run shipped before is no longer worked on; the next new point makes it running again."""

    @abstractmethod
    def attach(self, files: Path, folder: str) -> None:
        """Keep a file, or all that lies in a folder, with the study; what had the same name there is replaced.

        Raises:
            BadInput: there is no such study.
        """

    @abstractmethod
    def runs(self) -> Iterator[TrackedRun]:
        """Yield every run of the study.

        Raises:
            BadInput: there is no such study.
        """

    @abstractmethod
    def histories(self, run_ids: Sequence[str], name: str) -> dict[str, list[Measure]]:
        """Return all points of one metric of each run, by step."""

    def history(self, run_id: str, name: str) -> list[Measure]:
        """Return all points of one metric of a run, by step."""
        return self.histories([run_id], name)[run_id]


def _mlflow(lab: Path, study: str, uri: str | None = None) -> Tracker:
    from sweeplab.tracking.mlflow import MLflowTracker

    return MLflowTracker(lab, study, uri)


def _wandb(folder: Path, project: str) -> Mirror:
    from sweeplab.tracking.wandb import WandbMirror

    return WandbMirror(folder, project)


TRACKERS: dict[str, Callable[[Path, str, str | None], Tracker]] = {"mlflow": _mlflow}
# By the package that each needs: the hyperparameter whose value is the project, and what makes one for a study's
# folder. Where it is set and the package is installed, every run is shown there too.
MIRRORS: dict[str, tuple[str, Callable[[Path, str], Mirror]]] = {"wandb": ("wandb_project", _wandb)}


def mirrors(fixed: Mapping[str, Any], folder: Path) -> list[Mirror]:
    """Return the mirrors that a study asks for by the values it fixes, but for those that are not installed."""
    return [
        make(folder, fixed[name])
        for package, (name, make) in MIRRORS.items()
        if fixed.get(name) and find_spec(package)
    ]
