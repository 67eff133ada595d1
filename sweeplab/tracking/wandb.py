"""Show a study's runs in Weights & Biases: one group per study, one run per training.

A run is sent when it has ended, whole and once: W&B merges no two halves of a run that was offline. Its id is
written beside it before W&B hears of it, so what a kill cut short is sent again as the same run.
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
from sweeplab.tracking.tracker import BY_TOKENS, Description, Measure, Mirror, RunMeasures, Summary, run_name

SENT = "wandb.json"  # in a run's folder: its id in W&B, and whether all of it is there


class WandbMirror(Mirror):
    """Send one study to a project of W&B's; without a login, to files that `wandb sync` sends later."""

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
            TrackingUnavailable: W&B could not take it.
        """
        if (end := RunFolder(folder).read_end()) is None:
            return False
        mark = folder / SENT
        known: dict[str, Any] = {"id": uuid.uuid4().hex[:8], "sent": None}
        if mark.exists():
            known = json.loads(mark.read_bytes())
        # Another end may have been taken back since; earlier versions did not say which one was sent.
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
            # Only what the run itself wrote: neither this process' output nor its machine's load.
            settings=wandb.Settings(
                console="off", silent=True, x_disable_stats=True, disable_git=True, save_code=False
            ),
        )
        for point in measures.new_points():
            run.log(_values(point), step=point[0].step)
        facts = {measure.name: measure.value for measure in [*measures.facts(), *measures.totals(end)]}
        run.summary.update({**facts, "state": str(end.state), "stop_reason": end.stop_reason})
        run.finish(exit_code=int(end.state is RunState.FAILED))

    def close(self, summary: Summary) -> None:
        """Do nothing: W&B has no place for a study's own state."""


def _values(point: list[Measure]) -> dict[str, float]:
    """Return a line's numbers; how many tokens it stands at is one of them, as W&B's axes are metrics."""
    tokens = [measure.step for measure in point if measure.name.endswith(BY_TOKENS)]
    values = {measure.name: measure.value for measure in point if not measure.name.endswith(BY_TOKENS)}
    return {**values, **({"train_tokens": tokens[0]} if tokens else {})}
