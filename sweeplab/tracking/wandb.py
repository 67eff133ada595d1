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
from sweeplab.files import write_whole
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
        return str(self._folder / "wandb") if self._mode == "offline" else self._project

    @property
    def _mode(self) -> Any:
        known = wandb.api.api_key is not None
        return os.environ.get("WANDB_MODE") or ("online" if known else "offline")

    def ship(self, folder: Path) -> bool:
        """Send a run that has ended, once.

        Raises:
            TrackingUnavailable: W&B did not accept it.
        """
        if (end := RunFolder(folder).read_end()) is None:
            return False
        mark = folder / SENT
        known: dict[str, Any] = {"id": uuid.uuid4().hex[:8], "sent": None}
        if mark.exists():
            known = json.loads(mark.read_bytes())
        # The end that was sent may have been replaced since; earlier versions recorded only True.
        if known["sent"] not in (True, end.ended):
            write_whole(mark, json.dumps(known).encode())
            try:
                self._send(RunFolder(folder), end, known["id"])
            except (wandb.errors.Error, OSError) as error:
                raise TrackingUnavailable(f"Weights & Biases: {error}") from error
            write_whole(mark, json.dumps({**known, "sent": end.ended}).encode())
        return True

    def _send(self, folder: RunFolder, end: RunEnd, run_id: str) -> None:
        start = folder.read_start()
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
                console="off", silent=True, x_disable_stats=True, disable_git=True, save_code=False
            ),
        )
        for point in measures.new_points():
            run.log(_values(point), step=point[0].step)
        facts = {measure.name: measure.value for measure in [*measures.facts(), *measures.totals(end)]}
        run.summary.update({**facts, "state": str(end.state), "stop_reason": end.stop_reason})
        run.finish(exit_code=int(end.state is RunState.FAILED))

    def close(self, summary: StudySummary) -> None:
        """Do nothing: W&B has no place for the state of a study."""


def _values(point: list[Measure]) -> dict[str, float]:
    """Return a point's numbers, with its number of tokens as one of them, as W&B's axes are metrics."""
    tokens = [measure.step for measure in point if measure.name.endswith(BY_TOKENS)]
    values = {measure.name: measure.value for measure in point if not measure.name.endswith(BY_TOKENS)}
    return {**values, **({"train_tokens": tokens[0]} if tokens else {})}
