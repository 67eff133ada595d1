"""A trial in a worker's hands: one training a seed, their common value, and how they end."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sweeplab.hyperparameters import Hyperparameters
from sweeplab.records.folders import RunFolder, StudyFolder, run_key
from sweeplab.records.tracked import MEASURES
from sweeplab.study.space import facts
from sweeplab.study.spec import StudySpec
from sweeplab.sweep.trials.store import Claim, Outcome
from sweeplab.sweep.work.curves import SeedCurves
from sweeplab.train.checkpoint import read_snapshot, remove_snapshot
from sweeplab.train.member import Record, Snapshot
from sweeplab.train.run import Run, train_flops, train_tokens, worth


@dataclass(frozen=True)
class Training:
    """One seed of a trial: the run to train and the folder it leaves its traces in."""

    seed: int
    run: Run
    folder: RunFolder

    def snapshot(self) -> Snapshot | None:
        """Return where an earlier worker left the run, if it left anything."""
        return read_snapshot(self.folder.path)


class ClaimedTrial:
    """A claimed trial; `values_of(seed)` gives the effective hyperparameters of one of its runs."""

    def __init__(
        self,
        spec: StudySpec,
        folder: StudyFolder,
        claim: Claim,
        seeds: Sequence[int],
        values_of: Callable[[int], Hyperparameters],
    ) -> None:
        self.spec, self.claim = spec, claim
        shared = values_of(seeds[0])
        self.curves = SeedCurves(
            seeds, lambda loss, iteration: worth(spec.objective.metric, loss, iteration, shared)
        )
        self.error: str | None = None  # raised by the metric
        self.states: dict[int, str] = {}
        self.is_stopped = False  # by the study's owner
        self.trainings: dict[str, Training] = {}
        for seed in seeds:
            values = values_of(seed)
            key = run_key(claim.cell.key, claim.number, seed)
            run_folder = folder.run(claim.cell.key, claim.number, seed)
            self.trainings[key] = Training(seed, Run(key, values), run_folder)
            run_folder.start(self._describe(key, seed, values))

    def _describe(self, key: str, seed: int, values: Hyperparameters) -> dict[str, Any]:
        return {
            "study": self.spec.name,
            "key": key,
            "cell": self.claim.cell.key,
            "trial": self.claim.number,
            "seed": seed,
            "values": values.as_dict(),
            "sampled": self.claim.sampled,
            **self.claim.asked,
            "facts": facts(values),
            "threads": torch.get_num_threads(),  # on which the last bits of a larger model rest
            "started": time.time(),
        }

    @property
    def place(self) -> tuple[str, int]:
        """Return the trial's cell and number."""
        return self.claim.cell.key, self.claim.number

    @property
    def has_ended(self) -> bool:
        """Say whether every seed's run has come to its own end."""
        return len(self.states) == len(self.trainings)

    def recorded_ending(self) -> dict[str, Any] | None:
        """Return the ending that an earlier worker wrote down and may not have told, or None."""
        outcomes = (training.folder.outcome for training in self.trainings.values())
        return next((outcome["ending"] for outcome in outcomes if outcome), None)

    def recall(self, key: str, until: int) -> None:
        """Take in a run's losses up to an iteration, as an earlier worker wrote them down."""
        training = self.trainings[key]
        for point in training.folder.points():
            if point["iteration"] <= until and point.get("val_loss") is not None:
                self.curves.add(training.seed, point["iteration"], point["val_loss"])

    def write_down(self, record: Record) -> list[tuple[int, float]]:
        """Append a record to its run's traces; return the iterations at which the trial's mean is now known."""
        training = self.trainings[record.key]
        values = training.run.values
        points: dict[int, dict[str, Any]] = {point["iteration"]: {**point} for point in record.points}
        at_evaluation = {"iteration": record.iteration, "wall_seconds": record.wall_seconds}
        at_evaluation["eval_seconds"] = record.eval_seconds
        points.setdefault(record.iteration, {}).update(
            at_evaluation, val_loss=record.val_loss, **record.measures
        )
        training.folder.append(
            point | {"train_tokens": train_tokens(values, iteration)}
            for iteration, point in sorted(points.items())
        )
        if record.state != "running":
            self.states[training.seed] = record.state
        if record.state == "diverged":
            return []
        try:
            return self.curves.add(
                training.seed, record.iteration, record.val_loss, record.state != "running"
            )
        except Exception as error:  # whatever the user's own metric may raise
            self.error = "".join(traceback.format_exception(error))
            return []

    def ending(self, outcome: Outcome, error: str | None = None) -> dict[str, Any]:
        """Return how the trial ends: its outcome and value, and each seed's own state."""
        cut_short = "pruned" if outcome == "diverged" else outcome
        states = {str(each.seed): self.states.get(each.seed, cut_short) for each in self.trainings.values()}
        # Optuna values what was cut short by its last report.
        value = self.curves.value("final" if outcome in ("pruned", "diverged") else self.spec.objective.at)
        return {"outcome": outcome, "value": value, "states": states, "error": error}

    def close(self, ending: Mapping[str, Any]) -> dict[str, Any]:
        """Write every run's end.json and return what the storage keeps of the trial besides its value."""
        totals = {"train_flops": 0.0, "wall_seconds": 0.0}
        for training in self.trainings.values():
            outcome = training.folder.outcome or self._outcome(training, ending)
            training.folder.end(outcome)
            remove_snapshot(training.folder.path)
            for name in totals:
                totals[name] += outcome[name]
        return totals

    def _outcome(self, training: Training, ending: Mapping[str, Any]) -> dict[str, Any]:
        points = training.folder.points()
        evaluations = [each for each in points if each.get("val_loss") is not None]
        best = min(evaluations, key=lambda each: each["val_loss"], default={})
        last = points[-1] if points else {"iteration": 0, "train_tokens": 0, "wall_seconds": 0.0}
        state = ending["states"][str(training.seed)]
        return {
            "state": state,
            "stop_reason": self._stop_reason(state, int(last["iteration"])),
            "is_asked_for": self.is_stopped,
            "ended": time.time(),
            "iteration": last["iteration"],
            "best_val_loss": best.get("val_loss"),
            **{f"best_{name}": best[name] for name in MEASURES if name in best},
            "final_val_loss": evaluations[-1]["val_loss"] if evaluations else None,
            "train_tokens": last["train_tokens"],
            "train_flops": float(train_flops(training.run.values, int(last["iteration"]))),
            "wall_seconds": last["wall_seconds"],
            "value": ending["value"],
            "error": ending["error"],
            "ending": dict(ending),
        }

    def _stop_reason(self, state: str, iteration: int) -> str:
        why = "asked to stop" if self.is_stopped else "no improvement within its patience"
        reasons = {
            "complete": "reached max_iters",
            "stopped": f"{why}, at iteration {iteration}",
            "pruned": f"behind the other trials of its cell, or ended with another seed, at iteration {iteration}",
            "diverged": f"loss not finite, or far above its start, at iteration {iteration}",
            "failed": f"an error after iteration {iteration}",
        }
        return reasons[state]
