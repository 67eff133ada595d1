"""Mirror a study's runs in Weights & Biases: one group per study, one W&B run per run.

A run is sent once, completely, when it has ended: W&B cannot merge two halves of an offline run. Its W&B id is written
into its folder before sending, so a run whose sending was killed is sent again as the same run.
"""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

import wandb

from sweeplab.errors import TrackingUnavailable
from sweeplab.files import read_bytes, write_whole
from sweeplab.permissions import WANDB, check_address, mirror_address
from sweeplab.records.runs import RunEnd, RunFolder, RunState
from sweeplab.tracking.tracker import (
    BY_TOKENS,
    Description,
    Measure,
    Mirror,
    RunMeasures,
    StudySummary,
    run_name,
)

SENT = "wandb.json"  # in a run's folder: its id in W&B, and the end that was sent


class WandbMirror(Mirror):
    """Sends one study to a W&B project; without a login, to files that `wandb sync` sends later."""

    def __init__(self, folder: Path, project: str) -> None:
        self._folder, self._project = folder, project

    def open(self, description: Description) -> str:
        """Return where the runs go: the project, or a folder on this machine."""
        if self._mode == "offline":
            return str(self._folder / "wandb")
        return self._project

    @property
    def _mode(self) -> Any:
        default = "offline" if wandb.api.api_key is None else "online"
        return os.environ.get("WANDB_MODE") or default

    def ship(self, folder: Path) -> bool:
        """Send a run that has ended, once.

        Raises:
            TrackingUnavailable: W&B did not accept it.
        """
        end = RunFolder(folder).read_end()
        if end is None:
            return False
        mark = folder / SENT
        known: dict[str, Any] = {"id": uuid.uuid4().hex[:8], "sent": None}
        if mark.exists():
            known = json.loads(read_bytes(mark))
        # The end that was sent may have been replaced since.
        if known["sent"] != end.ended:
            write_whole(mark, json.dumps(known).encode())
            try:
                self._send(RunFolder(folder), end, known["id"])
            except (wandb.errors.Error, OSError) as error:
                raise TrackingUnavailable(f"Weights & Biases: {error}") from error
            write_whole(mark, json.dumps({**known, "sent": end.ended}).encode())
        return True

    def _send(self, folder: RunFolder, end: RunEnd, run_id: str) -> None:
        start, address = folder.read_start(), mirror_address()
        # A file of the working folder, or of the lab, could name another address.
        server: dict[str, Any] = {}
        if address:
            server["base_url"] = address
            check_address(WANDB, address)
        for place in (self._folder / "wandb", self._folder / ".wandb"):
            if place.is_symlink():
                raise TrackingUnavailable(f"{place} is a link, which is not followed")
        measures = RunMeasures(folder, start)
        run = wandb.init(
            project=self._project,
            id=run_id,
            dir=str(self._folder),
            group=self._folder.name,
            job_type=start.cell,
            name=run_name(start),
            tags=[str(end.state)],
            config={
                **start.values.applicable(),
                "cell": start.cell,
                "trial": start.trial,
                "seed": start.seed,
            },
            mode=self._mode,
            resume="allow" if self._mode == "online" else None,
            # Send only the run's own records, not this process' output or its machine's load.
            settings=wandb.Settings(
                console="off",
                silent=True,
                x_disable_stats=True,
                disable_git=True,
                save_code=False,
                **server,
            ),
        )
        for point in measures.new_points():
            run.log(_values(point), step=point[0].step)
        facts = {
            measure.name: measure.value
            for measure in [*measures.facts(), *measures.totals(end)]
        }
        run.summary.update({**facts, "state": str(end.state), "stop_reason": end.stop_reason})
        run.finish(exit_code=int(end.state is RunState.FAILED))

    def close(self, summary: StudySummary) -> None:
        """Do nothing: W&B has no place for the state of a study."""


def _values(point: list[Measure]) -> dict[str, float]:
    """Add a point's number of tokens to its numbers, as W&B's axes are metrics."""
    values: dict[str, float] = {}
    for measure in point:
        if measure.name.endswith(BY_TOKENS):
            values["train_tokens"] = measure.step
        else:
            values[measure.name] = measure.value
    return values
