"""The runs of one trial, one per seed: their records on disk, the trial's value, and how it ends."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from sweeplab.data.dataset import Dataset
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import (
    CurvePoint,
    GradientPoint,
    RunEnd,
    RunFolder,
    RunStart,
    RunState,
    TrialEnding,
    append_gradients,
    run_key,
)
from sweeplab.study.rules import facts
from sweeplab.study.spec import StudySpec
from sweeplab.sweep.trials.sharing import Claim
from sweeplab.train.checkpoint import read_snapshot, remove_snapshots
from sweeplab.train.devices import settle_devices
from sweeplab.train.member import Record
from sweeplab.train.run import (
    ShapeKey,
    TrainingRun,
    shape_key,
    train_flops,
    train_tokens,
)


def metrics_of(spec: StudySpec) -> list[str]:
    """Return the names of the metrics of a study's plugins."""
    return [name for plugin in spec.plugins for name in plugin.provides.get("metric", ())]


class SeedCurves:
    """The losses of a trial's runs; a run that has ended keeps its last loss in later means.

    The value that is reported is the mean loss, or minus it if that `is_maximized`.
    """

    def __init__(self, seeds: Iterable[int], is_maximized: bool = False) -> None:
        self._is_maximized = is_maximized
        self._losses: dict[int, dict[int, float]] = {seed: {} for seed in seeds}
        self._ended: set[int] = set()
        self.means: dict[int, float] = {}

    def add(
        self, seed: int, iteration: int, loss: float, ended: bool = False
    ) -> list[tuple[int, float]]:
        """Add a loss; return the iterations whose mean it completes, each with its value, in order."""
        self._losses[seed][iteration] = loss
        if ended:
            self._ended.add(seed)
        new = []
        for at in sorted(
            {at for curve in self._losses.values() for at in curve} - set(self.means)
        ):
            so_far = [self._at(of, at) for of in self._losses]
            losses = [loss for loss in so_far if loss is not None]
            if len(losses) < len(self._losses):
                break
            mean = sum(losses) / len(losses)
            self.means[at] = -mean if self._is_maximized else mean
            new.append((at, self.means[at]))
        return new

    def _at(self, seed: int, iteration: int) -> float | None:
        losses = self._losses[seed]
        if iteration in losses or seed not in self._ended:
            return losses.get(iteration)
        last = max(losses)
        return losses[last] if last < iteration else None

    def value(self, at: Literal["best", "final"]) -> float | None:
        """Return the trial's value: its lowest mean, or the last one."""
        return self.means.get(self.valued_at(at))

    def valued_at(self, at: Literal["best", "final"]) -> int:
        """Return the iteration that gives the trial its value; -1 if none does."""
        if at == "final":
            return max(self.means, default=-1)
        return min(self.means, key=self.means.__getitem__, default=-1)


@dataclass(frozen=True, eq=False)
class Training:
    """One run of a trial, and the folder of its records."""

    run: TrainingRun
    folder: RunFolder

    @property
    def shape(self) -> ShapeKey:
        """Return what a run's stack has to share with it."""
        return shape_key(self.run.values)


class TrialRuns:
    """The runs of one trial, by key; each run's start is written into its folder."""

    claim: Claim  # of a trial that a worker trains
    promoted: int | None = None  # the iteration from which a pruned trial continues

    def __init__(
        self, spec: StudySpec, dataset: Dataset, starts: Iterable[tuple[RunFolder, RunStart]]
    ) -> None:
        self.spec = spec
        self.dataset = dataset
        self.error: str | None = None  # a traceback, or another reason for the failure
        self.is_stopped = False  # by the study's owner
        self.states: dict[int, RunState] = {}  # of the runs that ended by themselves, by seed
        self.trainings: dict[str, Training] = {}
        self.unwritten: dict[RunFolder, list[CurvePoint]] = {}  # points of the curves
        self._unwritten_gradients: dict[RunFolder, list[GradientPoint]] = {}
        for folder, start in starts:
            folder.write_start(start)
            self.trainings[start.key] = Training(TrainingRun(start.key, start.values), folder)
        trainings = [*self.trainings.values()]
        self._asked_parts = trainings[0].run.values.grad_accum
        seeds = [training.folder.seed for training in trainings]
        self.curves = SeedCurves(seeds, spec.objective.goal == "maximize")

    @classmethod
    def of_claim(
        cls, claim: Claim, spec: StudySpec, dataset: Dataset, folder: StudyFolder
    ) -> TrialRuns:
        """Return the runs of a trial that this worker has claimed, begun in their folders."""
        starts = []
        decided = folder.decided(claim.cell.key)
        started = time.time()
        for seed in claim.seeds:
            values = settle_devices(claim.values.replace(seed=seed), decided=decided)
            start = RunStart(
                study=spec.name,
                key=run_key(claim.cell.key, claim.number, seed),
                cell=claim.cell.key,
                trial=claim.number,
                seed=seed,
                values=values,
                grid=[*claim.cell.values],
                sampled=claim.sampled,
                enqueued=claim.enqueued,
                facts=facts(values)._asdict(),
                threads=torch.get_num_threads(),  # the last bits of a larger model depend on it
                started=started,
            )
            starts.append((folder.run(claim.cell.key, claim.number, seed), start))
        trial = cls(spec, dataset, starts)
        trial.claim = claim
        trial.promoted = claim.promoted
        return trial

    def _compared(self, loss: float, measures: Mapping[str, float]) -> float | None:
        """Return the number of an evaluation that the trial's value is computed from; None if it is not measured there.

        Raises:
            ValueError: the metric has not measured it, or it is not finite.
        """
        name = self.spec.objective.metric
        if name == "val_loss":
            return loss
        if name not in measures and self.is_stopped:
            return None
        if not math.isfinite(measures.get(name, math.nan)):
            raise ValueError(
                f"metric {name} is {measures.get(name)}; allowed: a finite number of this name"
            )
        return measures[name]

    @property
    def place(self) -> tuple[str, int]:
        """Return the key of the trial's cell, and its number."""
        return self.claim.cell.key, self.claim.number

    def write_points(self) -> None:
        """Append the points of the curves that are not written yet.

        Raises:
            OSError: they cannot be written; they are kept for the next call.
        """
        for folder in [*self._unwritten_gradients]:
            append_gradients(folder, self._unwritten_gradients[folder])
            del self._unwritten_gradients[folder]
        for folder in [*self.unwritten]:
            folder.append(self.unwritten[folder])
            del self.unwritten[folder]

    def accumulate(self, key: str, n_parts: int) -> Training:
        """Let a run compute its batches in `n_parts` parts from now on; return the changed run."""
        training = self.trainings[key]
        values = training.run.values.replace(grad_accum=n_parts)
        self.trainings[key] = replace(training, run=TrainingRun(key, values))
        return self.trainings[key]

    @property
    def outcome(self) -> RunState | None:
        """Return the trial's outcome from the states of its runs; None while they train."""
        states = self.states.values()
        if self.error:
            return RunState.FAILED
        if RunState.DIVERGED in states:
            return RunState.DIVERGED
        if self.is_stopped:  # before all seeds have started there is no mean, and no value
            return RunState.STOPPED if self.curves.means else RunState.PRUNED
        if len(states) < len(self.trainings):
            return None
        return RunState.COMPLETE if RunState.COMPLETE in states else RunState.STOPPED

    def take_in(self, record: Record) -> list[tuple[int, float]]:
        """Add a record to its run's curve; return the iterations whose mean it completes, each with its value."""
        training = self.trainings[record.key]
        values = training.run.values
        seed = training.folder.seed
        points: dict[int, dict[str, Any]] = {
            int(point["iteration"]): dict(point) for point in record.points
        }
        flow = {at: point.pop("layers") for at, point in points.items() if "layers" in point}
        if flow:
            gradients = [GradientPoint(at, layers) for at, layers in flow.items()]
            self._unwritten_gradients.setdefault(training.folder, []).extend(gradients)
        points.setdefault(record.iteration, {"iteration": record.iteration}).update(
            wall_seconds=record.wall_seconds,
            eval_seconds=record.eval_seconds,
            slot_steps=record.slot_steps,
            val_loss=record.val_loss,
            bits_per_byte=self.dataset.bits_per_byte(record.val_loss, values),
            **record.measures,
        )
        new = [
            CurvePoint.from_json(point | {"train_tokens": train_tokens(values, iteration)})
            for iteration, point in sorted(points.items())
        ]
        self.unwritten.setdefault(training.folder, []).extend(new)
        has_ended = record.state != "running"
        if has_ended:
            self.states[seed] = RunState(record.state)
        if record.state == "diverged":
            return []
        try:
            seen = self._compared(record.val_loss, record.measures)
            return (
                [] if seen is None else self.curves.add(seed, record.iteration, seen, has_ended)
            )
        except Exception as error:  # whatever a user's metric may raise
            self.error = "".join(traceback.format_exception(error))
            return []

    def restore(self, parts: Callable[[Hyperparameters], int]) -> tuple[list[RunEnd], bool]:
        """Go on where an earlier worker left the trial; return the ends that it wrote, and whether it left a snapshot.

        `parts` returns the gradient accumulation with which a run fits the memory.
        """
        # The ends with which a promoted trial was pruned are removed.
        written = [
            training.folder.take_back_end(self.promoted) for training in self.trainings.values()
        ]
        ends = [end for end in written if end]
        has_snapshot = False
        # A failed trial has nothing left to report, and its metric may be what failed.
        iterations = [
            end.iteration for end in ends if end.ending.outcome is not RunState.FAILED
        ]
        for key, training in [*self.trainings.items()]:
            snapshot = read_snapshot(training.folder.path)
            known = iterations.copy()
            n_parts = 1
            if snapshot:
                has_snapshot = True
                n_parts = snapshot.numbers.get("grad_accum", 1)
                known.append(snapshot.numbers["evaluated"])
            self.accumulate(key, max(n_parts, parts(training.run.values)))
            if known:
                self.restore_curve(training, until=max(known))
        return ends, has_snapshot

    def restore_curve(self, training: Training, until: float = math.inf) -> None:
        """Take in a run's losses up to an iteration that an earlier worker has written."""
        for point in training.folder.points():
            if point.iteration <= until and point.val_loss is not None:
                seen = self._compared(point.val_loss, point.extra)
                if seen is not None:
                    self.curves.add(training.folder.seed, point.iteration, seen)

    def ending(self, outcome: RunState) -> TrialEnding:
        """Return the trial's ending: its outcome and value, and each seed's own state."""
        cut_short = RunState.PRUNED if outcome is RunState.DIVERGED else outcome
        seeds = [training.folder.seed for training in self.trainings.values()]
        states = {seed: self.states.get(seed, cut_short) for seed in seeds}
        # Optuna uses the last report as the value of a pruned trial.
        value = self.curves.value(
            "final" if cut_short is RunState.PRUNED else self.spec.objective.at
        )
        return TrialEnding(outcome, value, states, self.error)

    def write_ends(self, ending: TrialEnding) -> list[RunEnd]:
        """Write and return the end of every run; an ending that another worker wrote first holds for all."""
        self.write_points()
        ends: list[RunEnd] = []
        for training in self.trainings.values():
            written = training.folder.take_back_end(self.promoted)
            end = written or self._end(training, ends[0].ending if ends else ending)
            ends.append(training.folder.write_end(end, self.promoted))
        for training in self.trainings.values():
            remove_snapshots(
                training.folder.path, but_last=ends[0].ending.outcome is RunState.PRUNED
            )
        return ends

    def _end(self, training: Training, ending: TrialEnding) -> RunEnd:
        points = training.folder.points()
        seed = training.folder.seed
        nothing = CurvePoint(iteration=0, train_tokens=0, wall_seconds=0.0)
        evaluated = [point for point in points if point.val_loss is not None] or [nothing]
        best = min(evaluated, key=lambda point: point.val_loss or 0.0)
        last = points[-1] if points else nothing
        state = ending.states[seed]
        n_parts = training.run.values.grad_accum
        valued_at = self.curves.valued_at(self.spec.objective.at)
        valued = [point.val_loss for point in evaluated if point.iteration <= valued_at]
        where = f"at iteration {last.iteration}"
        why = "asked to stop" if self.is_stopped else "no improvement within its patience"
        reasons = {
            RunState.COMPLETE: "reached max_iters",
            RunState.STOPPED: f"{why}, {where}",
            RunState.PRUNED: f"behind the other trials of its cell, or ended with another seed, {where}",
            RunState.DIVERGED: f"loss not finite, or far above its start, {where}",
            RunState.FAILED: f"an error after iteration {last.iteration}",
        }
        return RunEnd(
            state=state,
            stop_reason=reasons[state],
            is_asked_for=self.is_stopped,
            ended=time.time(),
            iteration=last.iteration,
            best_val_loss=best.val_loss,
            best={**last.extra, **best.measures},  # a metric may be measured at the end alone
            final_val_loss=evaluated[-1].val_loss,
            valued_val_loss=valued[-1] if valued else None,
            train_tokens=last.train_tokens,
            train_flops=float(train_flops(training.run.values, last.iteration)),
            wall_seconds=last.wall_seconds,
            slot_steps=last.slot_steps,
            grad_accum=n_parts if n_parts != self._asked_parts else None,
            value=ending.value,
            error=ending.error,
            ending=ending,
        )
