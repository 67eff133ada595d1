"""The runs of one trial, one per seed: their records on disk, the trial's value, and how it ends."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from sweeplab.data.dataset import Dataset
from sweeplab.data.objectives import wholly
from sweeplab.records import runs
from sweeplab.records.folders import StudyFolder
from sweeplab.records.gradients import GradientPoint, append_gradients
from sweeplab.records.runs import RunEnd, RunFolder, RunStart, RunState, TrialEnding
from sweeplab.study.rules import facts
from sweeplab.study.space import Space
from sweeplab.study.spec import StudySpec
from sweeplab.sweep.trials.store import Claim
from sweeplab.train.checkpoint import remove_snapshots
from sweeplab.train.devices import settle_devices
from sweeplab.train.member import Record
from sweeplab.train.run import Run, metric_value, train_flops, train_tokens
from sweeplab.train.stack import Stack

WHOLE = ("whole_val_loss", "whole_bits_per_byte")


class SeedCurves:
    """The losses of a trial's runs; a run that has ended keeps its last loss in later means.

    `worth` turns a mean loss and its iteration into the value that is reported.
    """

    def __init__(
        self, seeds: Iterable[int], worth: Callable[[float, int], float] = lambda loss, iteration: loss
    ) -> None:
        self._worth = worth
        self._losses: dict[int, dict[int, float]] = {seed: {} for seed in seeds}
        self._ended: set[int] = set()
        self.means: dict[int, float] = {}

    def add(self, seed: int, iteration: int, loss: float, ended: bool = False) -> list[tuple[int, float]]:
        """Add a loss; return the iterations whose mean it completes, each with its value, in order."""
        self._losses[seed][iteration] = loss
        if ended:
            self._ended.add(seed)
        new = []
        for each in sorted({i for losses in self._losses.values() for i in losses} - set(self.means)):
            losses = [self._at(seed, each) for seed in self._losses]
            if any(loss is None for loss in losses):
                break
            mean = sum(loss for loss in losses if loss is not None) / len(losses)
            self.means[each] = self._worth(mean, each)
            new.append((each, self.means[each]))
        return new

    def _at(self, seed: int, iteration: int) -> float | None:
        losses = self._losses[seed]
        if iteration in losses or seed not in self._ended:
            return losses.get(iteration)
        last = max(losses)
        return losses[last] if last < iteration else None

    def value(self, at: Literal["best", "final"]) -> float | None:
        """Return the trial's value: its lowest mean, or the last one."""
        return self.means[self._valued_at(at)] if self.means else None

    def valued(self, seed: int, at: Literal["best", "final"]) -> float | None:
        """Return a run's loss at the iteration that gives the trial its value."""
        return self._at(seed, self._valued_at(at)) if self.means else None

    def _valued_at(self, at: Literal["best", "final"]) -> int:
        return min(self.means, key=self.means.__getitem__) if at == "best" else max(self.means)


@dataclass(frozen=True, eq=False)
class Training:
    """One run of a trial, and the folder of its records."""

    run: Run
    folder: RunFolder


class TrialRuns:
    """The runs of one trial, by key; each run's start is written into its folder."""

    def __init__(
        self, spec: StudySpec, dataset: Dataset, starts: Iterable[tuple[RunFolder, RunStart]]
    ) -> None:
        self.spec, self.dataset = spec, dataset
        self.promoted: int | None = None  # the iteration from which a pruned trial continues
        self.error: str | None = None  # a traceback, or another reason for the failure
        self.is_stopped = False  # by the study's owner
        self.states: dict[int, RunState] = {}  # of the runs that ended by themselves, by seed
        self.trainings: dict[str, Training] = {}
        self._unwritten: dict[RunFolder, list[runs.CurvePoint]] = {}  # points of the curves
        self._unwritten_gradients: dict[RunFolder, list[GradientPoint]] = {}
        for folder, start in starts:
            folder.write_start(start)
            self.trainings[start.key] = Training(Run(start.key, start.values), folder)
        metric, values = spec.objective.metric, next(iter(self.trainings.values())).run.values
        self._asked_parts = values.grad_accum
        seeds = [each.folder.seed for each in self.trainings.values()]
        self.curves = SeedCurves(seeds, lambda loss, iteration: metric_value(metric, loss, iteration, values))

    def write_points(self) -> None:
        """Append the points of the curves that are not written yet.

        Raises:
            OSError: they cannot be written; they are kept for the next call.
        """
        for folder in [*self._unwritten_gradients]:
            append_gradients(folder, self._unwritten_gradients[folder])
            del self._unwritten_gradients[folder]
        for folder in [*self._unwritten]:
            folder.append(self._unwritten[folder])
            del self._unwritten[folder]

    @property
    def folders(self) -> list[RunFolder]:
        """Return the folders of its runs."""
        return [each.folder for each in self.trainings.values()]

    @property
    def has_unwritten(self) -> bool:
        """Return whether points of the curves could not be written."""
        return bool(self._unwritten)

    def accumulate(self, key: str, n_parts: int) -> Training:
        """Let a run compute its batches in `n_parts` parts from now on; return the changed run."""
        training = self.trainings[key]
        values = training.run.values.replace(grad_accum=n_parts)
        self.trainings[key] = replace(training, run=Run(key, values))
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

    def take_in(self, record: Record, whole_loss: float | None = None) -> list[tuple[int, float]]:
        """Add a record to its run's curve; return the iterations whose mean it completes, each with its value.

        `whole_loss` is the loss on the whole validation split, given with a run's last record.
        """
        training = self.trainings[record.key]
        values, seed = training.run.values, training.folder.seed
        points: dict[int, dict[str, Any]] = {int(point["iteration"]): dict(point) for point in record.points}
        flow = {at: point.pop("layers") for at, point in points.items() if "layers" in point}
        if flow:
            found = [GradientPoint(at, layers) for at, layers in flow.items()]
            self._unwritten_gradients.setdefault(training.folder, []).extend(found)
        points.setdefault(record.iteration, {"iteration": record.iteration}).update(
            wall_seconds=record.wall_seconds,
            eval_seconds=record.eval_seconds,
            slot_steps=record.slot_steps,
            val_loss=record.val_loss,
            bits_per_byte=self.dataset.bits_per_byte(record.val_loss, values),
            **record.measures,
        )
        if whole_loss is not None:
            bits = self.dataset.bits_per_byte(whole_loss, wholly(values))
            points[record.iteration].update(whole_val_loss=whole_loss, whole_bits_per_byte=bits)
        new = [
            runs.CurvePoint(**point, train_tokens=train_tokens(values, iteration))
            for iteration, point in sorted(points.items())
        ]
        self._unwritten.setdefault(training.folder, []).extend(new)
        has_ended = record.state != "running"
        if has_ended:
            self.states[seed] = RunState(record.state)
        if record.state == "diverged":
            return []
        try:
            return self.curves.add(seed, record.iteration, record.val_loss, has_ended)
        except Exception as error:  # whatever a user's metric may raise
            self.error = "".join(traceback.format_exception(error))
            return []

    def restore_curve(self, training: Training, until: float = math.inf) -> None:
        """Take in a run's losses up to an iteration that an earlier worker has written."""
        for point in training.folder.points():
            if point.iteration <= until and point.val_loss is not None:
                self.curves.add(training.folder.seed, point.iteration, point.val_loss)

    def ending(self, outcome: RunState) -> TrialEnding:
        """Return the trial's ending: its outcome and value, and each seed's own state."""
        cut_short = RunState.PRUNED if outcome is RunState.DIVERGED else outcome
        seeds = [training.folder.seed for training in self.trainings.values()]
        states = {seed: self.states.get(seed, cut_short) for seed in seeds}
        # Optuna uses the last report as the value of a pruned trial.
        value = self.curves.value("final" if cut_short is RunState.PRUNED else self.spec.objective.at)
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
            remove_snapshots(training.folder.path, but_last=ends[0].ending.outcome is RunState.PRUNED)
        return ends

    def _end(self, training: Training, ending: TrialEnding) -> RunEnd:
        points = training.folder.points()
        evaluated = [(each.val_loss, each) for each in points if each.val_loss is not None]
        best = min(evaluated, key=lambda each: each[0])[1] if evaluated else None
        last = points[-1] if points else runs.CurvePoint(iteration=0, train_tokens=0, wall_seconds=0.0)
        state, n_parts = ending.states[training.folder.seed], training.run.values.grad_accum
        return RunEnd(
            state=state,
            stop_reason=self._stop_reason(state, last.iteration),
            is_asked_for=self.is_stopped,
            ended=time.time(),
            iteration=last.iteration,
            best_val_loss=best.val_loss if best else None,
            best={name: value for name in runs.MEASURES if (value := getattr(best, name, None)) is not None},
            final_val_loss=evaluated[-1][0] if evaluated else None,
            valued_val_loss=self.curves.valued(training.folder.seed, self.spec.objective.at),
            **{f"{self.spec.objective.at}_{name}": getattr(last, name) for name in WHOLE},
            train_tokens=last.train_tokens,
            train_flops=float(train_flops(training.run.values, last.iteration)),
            wall_seconds=last.wall_seconds,
            slot_steps=last.slot_steps,
            grad_accum=n_parts if n_parts != self._asked_parts else None,
            value=ending.value,
            error=ending.error,
            ending=ending,
        )

    def _stop_reason(self, state: RunState, iteration: int) -> str:
        at = f"at iteration {iteration}"
        why = "asked to stop" if self.is_stopped else "no improvement within its patience"
        return {
            RunState.COMPLETE: "reached max_iters",
            RunState.STOPPED: f"{why}, {at}",
            RunState.PRUNED: f"behind the other trials of its cell, or ended with another seed, {at}",
            RunState.DIVERGED: f"loss not finite, or far above its start, {at}",
            RunState.FAILED: f"an error after iteration {iteration}",
        }[state]


def scored(
    stack: Stack, records: list[Record], at: Literal["best", "final"]
) -> tuple[list[Record], dict[str, float]]:
    """Score ended runs on the whole validation split; return the records with that time added, and the losses.

    Pruning, checkpoints and values still use the sampled evaluations, by which every trial is judged.
    """
    ended = [record.key for record in records if RunState(record.state).has_value]
    if not ended:
        return records, {}
    started = time.perf_counter()
    losses = stack.whole_losses(ended, best=at == "best")
    took = time.perf_counter() - started
    return [
        replace(each, wall_seconds=each.wall_seconds + took, eval_seconds=each.eval_seconds + took)
        if each.key in ended
        else each
        for each in records
    ], dict(zip(ended, losses, strict=True))


class ClaimedTrial(TrialRuns):
    """A trial whose lease this worker holds."""

    def __init__(
        self, spec: StudySpec, dataset: Dataset, folder: StudyFolder, claim: Claim, space: Space
    ) -> None:
        self.claim, self.place = claim, (claim.cell.key, claim.number)
        started = time.time()
        starts, decided = [], folder.decided(claim.cell.key)
        for seed in space.seeds:
            values = settle_devices(space.resolve(claim.sampled, seed), decided=decided)
            start = RunStart(
                study=spec.name,
                key=runs.run_key(*self.place, seed),
                cell=claim.cell.key,
                trial=claim.number,
                seed=seed,
                values=values,
                grid=[*claim.cell.values],
                sampled=claim.sampled,
                **claim.asked,
                facts=facts(values)._asdict(),
                threads=torch.get_num_threads(),  # the last bits of a larger model depend on it
                started=started,
            )
            starts.append((folder.run(*self.place, seed), start))
        super().__init__(spec, dataset, starts)
        self.promoted = claim.promoted

    def read_ends(self) -> list[RunEnd]:
        """Return the ends that an earlier worker wrote; remove those with which a promoted trial was pruned."""
        found = (each.folder.take_back_end(self.promoted) for each in self.trainings.values())
        return [end for end in found if end]
