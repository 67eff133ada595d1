"""Show a study's runs in Weights & Biases: a group a study, a run a training.

A run is sent when it has ended, whole and once: W&B merges no two halves of a run that was offline. Its id is
written beside it before W&B hears of it, so what a kill cut short is sent again as the same run.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import wandb

from sweeplab.files import write_whole
from sweeplab.records.tracked import OVER_TOKENS, RunFolder, read_json
from sweeplab.tracking.tracker import Description, Measure, Mirror, Summary, TrackingUnavailable

SENT = "wandb.json"  # in a run's folder: its id in W&B, and whether all of it is there


class WandbMirror(Mirror):
    """Send one study to a project of W&B's; without a login, to files that `wandb sync` sends later."""

    def __init__(self, folder: Path, project: str) -> None:
        self._folder, self._project = folder, project
        self._sent: set[Path] = set()

    def open(self, description: Description) -> str:
        """Return where the runs go: the project, or a folder on this machine."""
        return str(self._folder / "wandb") if self._mode == "offline" else self._project

    @property
    def _mode(self) -> Any:
        known = wandb.api.api_key is not None
        return os.environ.get("WANDB_MODE") or ("online" if known else "offline")

    def ship(self, folder: Path) -> None:
        """Send a run that has ended, once.

        Raises:
            TrackingUnavailable: W&B could not take it.
        """
        if folder in self._sent or (end := read_json(folder / "end.json")) is None:
            return
        known = read_json(folder / SENT) or {"id": uuid.uuid4().hex[:8], "sent": False}
        if not known["sent"] and (run := read_json(folder / "run.json")):
            write_whole(folder / SENT, json.dumps(known).encode())
            with _reaching():
                self._send(RunFolder(folder, run), end, known["id"])
            write_whole(folder / SENT, json.dumps({**known, "sent": True}).encode())
        self._sent.add(folder)

    def _send(self, folder: RunFolder, end: dict[str, Any], run_id: str) -> None:
        cell, trial, seed = folder.place
        run = wandb.init(
            project=self._project,
            id=run_id,
            dir=str(self._folder),
            group=self._folder.name,
            job_type=cell,
            name=f"{cell} #{trial} seed {seed}",
            tags=[end["state"]],
            config={**folder.run["values"], "cell": cell, "trial": trial, "seed": seed},
            mode=self._mode,
            resume="allow" if self._mode == "online" else None,
            # Only what the run itself wrote: neither this process' output nor its machine's load.
            settings=wandb.Settings(
                console="off", silent=True, x_disable_stats=True, disable_git=True, save_code=False
            ),
        )
        for point in folder.points():
            run.log(_values(point), step=point[0].step)
        facts = {measure.name: measure.value for measure in [*folder.facts(), *folder.totals(end)]}
        run.summary.update({**facts, "state": end["state"], "stop_reason": end.get("stop_reason")})
        run.finish(exit_code=int(end["state"] == "failed"))

    def close(self, summary: Summary) -> None:
        """Do nothing: W&B has no place for a study's own state."""


def _values(point: list[Measure]) -> dict[str, float]:
    """Return a line's numbers; how many tokens it stands at is one of them, as W&B's axes are metrics."""
    tokens = [measure.step for measure in point if measure.name.endswith(OVER_TOKENS)]
    values = {measure.name: measure.value for measure in point if not measure.name.endswith(OVER_TOKENS)}
    return {**values, **({"train_tokens": tokens[0]} if tokens else {})}


@contextmanager
def _reaching() -> Iterator[None]:
    try:
        yield
    except (wandb.errors.Error, OSError) as error:
        raise TrackingUnavailable(f"Weights & Biases: {error}") from error
