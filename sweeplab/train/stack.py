"""The trainer: a stack of runs of one shape, trained as one program.

Start reading at `Stack.advance`, the training loop; a step is `TrainStep` in `step.py`. Live runs are the first rows of
every tensor. When a run leaves, the last run takes its row; a new run is added after the last.

Legend: K live runs, P the row size, B sequences, T positions.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from sweeplab.data.batches import Batch, Split, changed, generator_key, stacked
from sweeplab.data.objectives import make_objective
from sweeplab.files import cache_folder, unsafe
from sweeplab.hyperparameters import TRANSFORMER, Hyperparameters
from sweeplab.model.blocks import element_hashes, mask_inputs
from sweeplab.model.transformer import model_of
from sweeplab.train.evaluating import (
    Evaluator,
    LossInputs,
    MeasuredModel,
    compiled_losses,
    measured,
    values_at_start,
)
from sweeplab.train.member import Member, Record, Snapshot
from sweeplab.train.optimizers import fused_adam_rows_, make_optimizer
from sweeplab.train.program import compiles_whole, load_programs
from sweeplab.train.run import TrainingRun, dropout_rates, shape_key
from sweeplab.train.step import (
    EagerStep,
    LayerNorms,
    StagedStep,
    StepInputs,
    StepWay,
    TrainingLoss,
    TrainStep,
    autocast_of,
)

# The rows that start as the initial weights.
_INITIAL = ("weights", "best")


class Stack:
    """Up to `capacity` runs of one shape on one device; `like` has the effective hyperparameters of any of them.

    With `tracks_gradients`, points of the training curves have the norms of each layer. A step with a point then takes
    one more forward and backward pass; the weights keep the same bits. `metrics` are names of those that see the model.
    """

    def __init__(
        self,
        like: Hyperparameters,
        train: Split,
        val: Split,
        capacity: int = 1,
        tracks_gradients: bool = False,
        metrics: Sequence[str] = (),
    ) -> None:
        self._like, self._metrics = like, metrics
        self.key, self.capacity = shape_key(like), capacity
        on_cpu = like.device == "cpu"
        self.transformer = model_of(like, mixed=on_cpu and like.dtype == "bfloat16")
        layout, self.device = self.transformer.layout, torch.device(like.device)
        self._objective, self._autocast = make_objective(train, like), autocast_of(like)
        programs = (
            load_programs(like, train, val) if like.compile and compiles_whole(like) else []
        )
        losses = evaluated = self.transformer.losses
        if like.compile and not programs:
            losses = evaluated = _compiled(losses)
        if programs[1:]:
            evaluated = compiled_losses(programs[1], self.transformer)
        self._evaluation = Evaluator(
            self.transformer, evaluated, make_objective(val, like), like.evaluated_tokens
        )
        self._at_start: dict[str, Sequence[Tensor]] = {}  # by the digest of the weights
        rates, n_elements = dropout_rates(like), 0
        self._sites = {
            name: site
            for name, site in self.transformer.sites.items()
            if rates.get(site.kind, 1.0) > 0
        }
        if self._sites:
            n_elements = self.transformer.max_mask_size(like.batch_size // like.grad_accum)
        self._elements = element_hashes(n_elements, self.device)
        self._members: list[Member] = []
        optimizer = make_optimizer(like, layout)
        if on_cpu:
            optimizer.adam_step_ = fused_adam_rows_
        # "loss" and "norm" are sums since the last point. They stay on the device so that a step does not wait.
        sizes = (
            dict.fromkeys(_INITIAL, layout.row_size)
            | optimizer.buffers()
            | {"loss": 1, "norm": 1}
        )
        self._rows = {
            name: torch.zeros(capacity, size, device=self.device)
            for name, size in sizes.items()
        }
        loss = TrainingLoss(losses, self._objective, like)
        self._step = TrainStep(layout, optimizer, loss, self._autocast, like.grad_accum)
        self._way: StepWay = EagerStep(self._step, self._rows)
        if programs:
            self._way = lambda inputs: programs[0](inputs.tensors())
        # Experts are not staged, because they read from the device how many tokens each gets; a plugin's may read too.
        elif not on_cpu and like.n_expert == 1 and like.model == TRANSFORMER:
            self._way = StagedStep(self._step, self._rows)
        self._norms = LayerNorms(self._step, self._rows) if tracks_gradients else None

    def __len__(self) -> int:
        return len(self._members)

    @property
    def is_dense(self) -> bool:
        """Return whether every position has a target, except where windows overlap."""
        return self._objective.dense

    @property
    def keys(self) -> list[str]:
        """Return the keys of the live runs."""
        return [member.run.key for member in self._members]

    def admit(
        self,
        run: TrainingRun,
        snapshot: Snapshot | None = None,
        start: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Add a run that starts from its seed, from weights by name (`start`), or from a snapshot.

        Weights in `start` that are missing or NaN are drawn from the seed. A run whose objective reads the start
        needs it also with a snapshot; without `start` every sequence has the value 0 there.
        """
        if len(self._members) == self.capacity or shape_key(run.values) != self.key:
            raise ValueError(f"cannot admit {run.key}: the stack is full or has another shape")
        layout, key = self.transformer.layout, generator_key(run.values.seed, "init")
        row = None if start is None else layout.row_of(start, key)
        if snapshot is None:
            initial = layout.initial_row(key) if row is None else row
            rows = dict.fromkeys(self._rows, torch.zeros(())) | dict.fromkeys(_INITIAL, initial)
            snapshot = Snapshot(rows, {})
        for name, all_rows in self._rows.items():
            all_rows[len(self._members)].copy_(snapshot.rows[name])
        self._members.append(Member.of(run, snapshot.numbers, self._values_at_start(row)))

    def _values_at_start(self, row: Tensor | None) -> Sequence[Tensor]:
        """Return what objectives that read the start compute of both splits' sequences from a row of weights, once."""
        if not self._objective.reads_start:
            return ()
        objectives = (self._objective, self._evaluation.objective)
        if row is None:
            return [torch.zeros(objective.n_sequences) for objective in objectives]
        digest = hashlib.sha256(row.numpy().tobytes()).hexdigest()
        if digest not in self._at_start:
            placed = row.to(self.device)
            with self._autocast():
                values = [
                    values_at_start(self.transformer, placed, objective)
                    for objective in objectives
                ]
            self._at_start[digest] = values
        return self._at_start[digest]

    def release(self, key: str) -> None:
        """Remove a run; the last run moves to its row."""
        row, last = self.keys.index(key), len(self._members) - 1
        for rows in self._rows.values():
            rows[row].copy_(rows[last])
        self._members[row] = self._members[last]
        self._members.pop()

    def snapshot(self, key: str) -> Snapshot:
        """Return a copy of all that the run needs to continue in any stack; call it between steps."""
        row = self.keys.index(key)
        rows = {name: rows[row].to("cpu", copy=True) for name, rows in self._rows.items()}
        return Snapshot(rows, self._members[row].numbers())

    def weights(self, key: str, best: bool = False) -> dict[str, Tensor]:
        """Return copies of a run's weights by name: the current or the best ones."""
        row = self._rows["best" if best else "weights"][self.keys.index(key)]
        views = self.transformer.layout.views(row[None])
        return {name: view[0].cpu().clone() for name, view in views.items()}

    def advance(self, pause: Callable[[], bool] = lambda: False) -> list[Record]:
        """Train until some runs are due for evaluation and return their records; none if `pause` returns true."""
        while self._members:
            if due := [row for row, member in enumerate(self._members) if member.is_due()]:
                return self._evaluate(due)
            if pause():
                return []
            self.step()
        return []

    def step(self) -> None:
        """Take one step of all runs, and add points to the curves that are due."""
        started = time.perf_counter()
        members, inputs = self._members, self._inputs()
        ending = [row for row, member in enumerate(members) if member.has_point_ahead()]
        if self._norms and ending:
            self._norms.before(inputs, ending)
        self._way(inputs)
        for member in members:
            member.iteration += 1
            member.counted += 1
            member.slot_steps += self.capacity / len(members)
        sums = (
            torch.cat([self._rows["loss"], self._rows["norm"]], dim=1).tolist()
            if ending
            else []
        )
        # After reading the sums, which waits for the device.
        seconds = time.perf_counter() - started
        for member in members:
            member.wall_seconds += seconds
        points = {row: members[row].add_point(*sums[row]) for row in ending}
        if self._norms and ending:
            self._norms.after(points)
        for name in ("loss", "norm"):
            self._rows[name][ending] = 0.0

    def traced(self) -> tuple[Callable[..., tuple[Tensor]], list[Tensor]]:
        """Return the next step as a function of tensors, and the tensors; it changes the rows among them in place.

        The function returns the losses. It calls no kernel that works row by row, so that it can be compiled.
        """
        inputs = self._inputs()
        step = replace(
            self._step, optimizer=type(self._step.optimizer)(self.transformer.layout)
        )
        return lambda *tensors: (step(inputs.with_tensors(tensors)),), inputs.tensors()

    def _inputs(self) -> StepInputs:
        members, n_parts = self._members, self._step.n_parts
        numbers = [member.step_numbers(self._step.loss.names) for member in members]
        masks = []
        if self._sites:
            keys = [member.dropout_key for member in members]
            rates = [member.dropout_rates for member in members]
            for part in range(n_parts):
                iterations = [member.iteration * n_parts + part for member in members]
                masks.append(mask_inputs(keys, iterations, rates, self._sites.values()))
        return StepInputs(
            # A step changes all rows but the best weights.
            rows={
                name: rows[: len(members)]
                for name, rows in self._rows.items()
                if name != "best"
            },
            batch=changed(
                stacked([self._batch(member) for member in members]), torch.from_numpy
            ),
            names=list(numbers[0]),
            numbers=torch.tensor([[*row.values()] for row in numbers], dtype=torch.float64),
            masks=masks,
            sites=list(self._sites),
            elements=self._elements,
        )

    @torch.no_grad()
    def _evaluate(self, due: list[int]) -> list[Record]:
        started = time.perf_counter()
        rows = self._rows["weights"][: len(self._members)]
        if len(due) < len(rows):
            rows = rows[due]  # a copy
        weights = self.transformer.layout.views(rows)
        with self._autocast():
            measures = self._evaluation(weights, self._loss_inputs(due, 1))
            if self._like.eval_train:
                of_training = replace(self._evaluation, objective=self._objective)
                measures["eval_train_loss"] = of_training.loss(
                    weights, self._loss_inputs(due, 0)
                ).tolist()
        seconds = time.perf_counter() - started
        records = []
        for index, row in enumerate(due):
            record = self._members[row].record(
                {name: runs[index] for name, runs in measures.items()}, seconds
            )
            if math.isfinite(record.val_loss) and record.best[1] == record.iteration:
                self._rows["best"][row].copy_(self._rows["weights"][row])
            records.append(record)
            if self._metrics and record.state != "diverged":
                self._measure(row, record)
        return records

    def _measure(self, row: int, record: Record) -> None:
        """Add to a record what metrics measure of the run."""
        started, member, objective = (
            time.perf_counter(),
            self._members[row],
            self._evaluation.objective,
        )
        batches = [
            changed(made, lambda part: torch.from_numpy(part).to(self.device))
            for made in objective.evaluation(self._evaluation.n_tokens)
        ]
        views = self.transformer.layout.views(self._rows["weights"][row].clone()[None])
        weights = {name: view[0] for name, view in views.items()}
        model = MeasuredModel(member.run.values, weights, self.transformer)
        with self._autocast():
            record.measures |= measured(self._metrics, model, batches, record)
        seconds = time.perf_counter() - started
        member.wall_seconds += seconds
        record.wall_seconds += seconds
        member.point_seconds += seconds
        record.eval_seconds += seconds

    def _batch(self, member: Member) -> Batch:
        batch = self._objective.training(member.run.values.seed, member.iteration)
        if not member.at_start:
            return batch
        return batch._replace(reference=member.at_start[0].numpy()[batch.reference])

    def _loss_inputs(self, rows: Sequence[int], split: int) -> LossInputs:
        members = [self._members[row] for row in rows]
        starts = [member.at_start[split] for member in members if member.at_start]
        columns = [
            torch.tensor(
                [getattr(member.run.values, name) for member in members], device=self.device
            )
            for name in self._objective.hyperparameters
        ]
        return LossInputs(columns, torch.stack(starts) if starts else None)


def _compiled(losses: Callable[..., Tensor]) -> Callable[..., Tensor]:
    # By default programs, and always compiled headers, are in a folder in /tmp that another user may have made.
    named = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if named is None or unsafe(Path(named).absolute(), "."):
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache_folder("inductor"))
    torch.compiler.reset()  # programs of earlier shapes count towards a common limit
    return torch.compile(losses, options={"cpp_cache_precompile_headers": False})
