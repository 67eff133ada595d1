"""A trial in a worker's hands: one training a seed, their common value, and how they end."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sweeplab.hyperparameters import Hyperparameters
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import (
    MEASURES,
    CurvePoint,
    RunEnd,
    RunFolder,
    RunStart,
    RunState,
    TrialEnding,
    run_key,
)
from sweeplab.study.space import facts
from sweeplab.study.spec import StudySpec
from sweeplab.sweep.trials.store import Claim
from sweeplab.sweep.work.curves import SeedCurves
from sweeplab.train.checkpoint import read_snapshot, remove_snapshot
from sweeplab.train.counting import train_flops, train_tokens
from sweeplab.train.metrics import worth
from sweeplab.train.run import Run
from sweeplab.train.stack import Record, Snapshot


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
        values_of: Callable[[int], Mapping[str, Any]],
    ) -> None:
        self.spec, self.claim = spec, claim
        shared = values_of(seeds[0])
        self.curves = SeedCurves(
            seeds, lambda loss, iteration: worth(spec.objective.metric, loss, iteration, shared)
        )
        self.error: str | None = None  # raised by the metric
        self.states: dict[int, RunState] = {}
        self.is_stopped = False  # by the study's owner
        self.trainings: dict[str, Training] = {}
        for seed in seeds:
            values = values_of(seed)
            key = run_key(claim.cell.key, claim.number, seed)
            run_folder = folder.run(claim.cell.key, claim.number, seed)
            self.trainings[key] = Training(seed, Run(key, values), run_folder)
            run_folder.write_start(self._start(key, seed, values))

    def _start(self, key: str, seed: int, values: Mapping[str, Any]) -> RunStart:
        return RunStart(
            study=self.spec.name,
            key=key,
            cell=self.claim.cell.key,
            trial=self.claim.number,
            seed=seed,
            values=Hyperparameters.of(values),
            sampled=self.claim.sampled,
            **self.claim.asked,
            facts=facts(values),
            threads=torch.get_num_threads(),  # on which the last bits of a larger model rest
            started=time.time(),
        )

    @property
    def place(self) -> tuple[str, int]:
        """Return the trial's cell and number."""
        return self.claim.cell.key, self.claim.number

    @property
    def has_ended(self) -> bool:
        """Say whether every seed's run has come to its own end."""
        return len(self.states) == len(self.trainings)

    def recorded_ending(self) -> TrialEnding | None:
        """Return the ending that an earlier worker wrote down and may not have told, or None."""
        ends = (training.folder.read_end() for training in self.trainings.values())
        return next((end.ending for end in ends if end), None)

    def recall(self, key: str, until: int) -> None:
        """Take in a run's losses up to an iteration, as an earlier worker wrote them down."""
        training = self.trainings[key]
        for point in training.folder.points():
            if point.iteration <= until and point.val_loss is not None:
                self.curves.add(training.seed, point.iteration, point.val_loss)

    def write_down(self, record: Record) -> list[tuple[int, float]]:
        """Append a record to its run's traces; return the iterations at which the trial's mean is now known."""
        training = self.trainings[record.key]
        values = training.run.values
        points: dict[int, dict[str, Any]] = {int(point["iteration"]): dict(point) for point in record.points}
        points.setdefault(record.iteration, {"iteration": record.iteration}).update(
            wall_seconds=record.wall_seconds,
            eval_seconds=record.eval_seconds,
            val_loss=record.val_loss,
            **record.measures,
        )
        training.folder.append(
            CurvePoint(**point, train_tokens=train_tokens(values, iteration))
            for iteration, point in sorted(points.items())
        )
        if record.state != "running":
            self.states[training.seed] = RunState(record.state)
        if record.state == "diverged":
            return []
        try:
            return self.curves.add(
                training.seed, record.iteration, record.val_loss, record.state != "running"
            )
        except Exception as error:  # whatever the user's own metric may raise
            self.error = "".join(traceback.format_exception(error))
            return []

    def ending(self, outcome: RunState, error: str | None = None) -> TrialEnding:
        """Return how the trial ends: its outcome and value, and each seed's own state."""
        cut_short = RunState.PRUNED if outcome is RunState.DIVERGED else outcome
        states = {each.seed: self.states.get(each.seed, cut_short) for each in self.trainings.values()}
        # Optuna values what was cut short by its last report.
        is_cut_short = outcome in (RunState.PRUNED, RunState.DIVERGED)
        value = self.curves.value("final" if is_cut_short else self.spec.objective.at)
        return TrialEnding(outcome, value, states, error)

    def close(self, ending: TrialEnding) -> dict[str, float]:
        """Write every run's end.json and return what the storage keeps of the trial besides its value."""
        totals = {"train_flops": 0.0, "wall_seconds": 0.0}
        for training in self.trainings.values():
            end = training.folder.read_end() or self._run_end(training, ending)
            training.folder.write_end(end)
            remove_snapshot(training.folder.path)
            totals["train_flops"] += end.train_flops
            totals["wall_seconds"] += end.wall_seconds
        return totals

    def _run_end(self, training: Training, ending: TrialEnding) -> RunEnd:
        points = training.folder.points()
        evaluated = [(each.val_loss, each) for each in points if each.val_loss is not None]
        best = min(evaluated, key=lambda each: each[0])[1] if evaluated else None
        last = points[-1] if points else CurvePoint(iteration=0, train_tokens=0, wall_seconds=0.0)
        state = ending.states[training.seed]
        return RunEnd(
            state=state,
            stop_reason=self._stop_reason(state, last.iteration),
            is_asked_for=self.is_stopped,
            ended=time.time(),
            iteration=last.iteration,
            best_val_loss=best.val_loss if best else None,
            **{f"best_{name}": getattr(best, name, None) for name in MEASURES},
            final_val_loss=evaluated[-1][0] if evaluated else None,
            train_tokens=last.train_tokens,
            train_flops=float(train_flops(training.run.values, last.iteration)),
            wall_seconds=last.wall_seconds,
            value=ending.value,
            error=ending.error,
            ending=ending,
        )

    def _stop_reason(self, state: RunState, iteration: int) -> str:
        at = f"at iteration {iteration}"
        why = "asked to stop" if self.is_stopped else "no improvement within its patience"
        reasons = {
            RunState.COMPLETE: "reached max_iters",
            RunState.STOPPED: f"{why}, {at}",
            RunState.PRUNED: f"behind the other trials of its cell, or ended with another seed, {at}",
            RunState.DIVERGED: f"loss not finite, or far above its start, {at}",
            RunState.FAILED: f"an error after iteration {iteration}",
        }
        return reasons[state]
