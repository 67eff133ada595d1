"""The trainer: a stack of runs of one shape, trained as one program.

Start reading at `Stack.advance`, the training loop, and `Stack._step`, one step. Live runs are the first rows of every
tensor. When a run leaves, the last run takes its row; a new run is added after the last.

Legend: K live runs, P the row size, B sequences, T positions.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial, reduce
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sweeplab.data.batches import NO_TARGET, Batch, Split, changed, stacked
from sweeplab.data.generators import generator_key
from sweeplab.data.objectives import make_objective, wholly
from sweeplab.data.objectives.base import Objective
from sweeplab.data.objectives.pairs import Preference
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.model.dropout import Dropout, MaskInputs, element_hashes
from sweeplab.model.layout import BLOCK
from sweeplab.model.shape import ModelShape
from sweeplab.model.transformer import Transformer
from sweeplab.train.evaluating import Evaluation, PreferenceInputs, compiled_losses, references
from sweeplab.train.member import Member, Record, Snapshot
from sweeplab.train.optimizers import OPTIMIZERS
from sweeplab.train.optimizers.base import Rates, Rows
from sweeplab.train.program import Program, compiles_whole, load_programs
from sweeplab.train.run import Run, dropout_rates, shape_key
from sweeplab.train.scaling import initial_scale, unscale_, update_finite, update_scale_
from sweeplab.train.schedule import rows_used
from sweeplab.train.staging import StagedStep

if TYPE_CHECKING:
    from jaxtyping import Float, Int

# Whether steps on a GPU are captured as CUDA graphs; off, because no speed-up has been measured yet.
CAPTURES = False

# The arguments of the training loss besides the batch: label smoothing, the two weights of router losses, beta.
LossArgs = tuple[Tensor | None, tuple[Tensor, Tensor] | None, Tensor | None]


class Stack:
    """Up to `capacity` runs of one shape on one device; `like` has the effective hyperparameters of any of them.

    With `tracks_gradients`, points of the training curves have the norms of each layer. A step with a point then takes
    one more forward and backward pass; the weights keep the same bits.

    Raises:
        Paused: `pause` returned true while the step was being compiled.
    """

    def __init__(
        self,
        like: Hyperparameters,
        train: Split,
        val: Split,
        capacity: int = 1,
        tracks_gradients: bool = False,
        pause: Callable[[], bool] = lambda: False,
    ) -> None:
        self.key = shape_key(like)
        self.capacity, self._tracks = capacity, tracks_gradients
        mixed = like.device == "cpu" and like.dtype == "bfloat16"
        self.transformer = Transformer(ModelShape.of(like), mixed)
        self.device = torch.device(like.device)
        self._objective = make_objective(train, like)
        self._precision: Callable[[], AbstractContextManager[Any]] = nullcontext
        if like.dtype != "float32" and not mixed:
            self._precision = partial(torch.autocast, self.device.type, getattr(torch, like.dtype))
        self._scales = like.dtype == "float16"
        self._drops = any(rate > 0 for rate in dropout_rates(like).values())
        self._smooths, self._routes = like.label_smoothing > 0, like.n_expert > 1
        self._prefers = isinstance(self._objective, Preference)
        # The keys are digests of the reference weights.
        self._references: dict[str, tuple[Tensor, Tensor]] = {}
        self._losses = evaluated = self.transformer.losses
        self._program: Program | None = None
        self._on_device: StagedStep | None = None  # made by the first step, from its runs
        # Experts are not staged, because they read from the device how many tokens each gets.
        self._is_staged = self.device.type != "cpu" and like.n_expert == 1
        if like.compile and compiles_whole(like):
            self._program, *others = load_programs(like, train, val, pause)
            evaluated = compiled_losses(others[0], self.transformer) if others else evaluated
        elif like.compile:
            torch.compiler.reset()  # programs of earlier shapes count towards a common limit
            self._losses = evaluated = torch.compile(self._losses)
        val_objective = make_objective(val, like)
        self._evaluation = Evaluation(self.transformer, evaluated, val_objective, like.evaluated_tokens)
        self._train_eval = replace(self._evaluation, objective=self._objective) if like.eval_train else None
        self._full_eval = replace(self._evaluation, n_tokens=wholly(like).evaluated_tokens)
        self._n_parts: int = like.grad_accum
        part_size = like.batch_size // self._n_parts
        n_elements = self.transformer.max_mask_size(part_size) if self._drops else 0
        self._elements = element_hashes(n_elements, self.device)
        self._members: list[Member] = []
        self.is_whole = True  # False while a step writes to the rows; an error in the step leaves it False
        size = self.transformer.layout.row_size
        self._optimizer = OPTIMIZERS[like.optimizer](self.transformer.layout)
        self._evaluated = "mean" if like.ema > 0 else "weights"  # the rows that evaluations use
        self._initial = ("weights", "best", self._evaluated)  # the rows that start as the initial weights
        # "loss" and "norm" are sums since the last point. They stay on the device so that a step does not wait.
        sizes = dict.fromkeys(self._initial, size) | self._optimizer.buffers() | {"loss": 1, "norm": 1}
        sizes |= {"scale": 2} if self._scales else {}
        self._rows = {name: torch.zeros(capacity, n, device=self.device) for name, n in sizes.items()}
        self._stepped = [name for name in self._rows if name != "best"]  # the rows that a step changes
        self._gradient = torch.zeros(capacity, size, device=self.device)
        self._part = torch.zeros(capacity if self._n_parts > 1 else 0, size, device=self.device)

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
        self, run: Run, snapshot: Snapshot | None = None, start: Mapping[str, Tensor] | None = None
    ) -> None:
        """Add a run that starts from its seed, from weights by name (`start`), or from a snapshot.

        Weights in `start` that are missing or NaN are drawn from the seed. A run that learns preferences needs `start`
        also with a snapshot, for its reference; without `start` all answers are equally likely under the reference.
        """
        if len(self._members) == self.capacity or shape_key(run.values) != self.key:
            raise ValueError(f"cannot admit {run.key}: the stack is full or has another shape")
        layout, key = self.transformer.layout, generator_key(run.values.seed, "init")
        if snapshot:
            begin = snapshot.rows
        else:
            initial = layout.initial_row(key) if start is None else layout.row_of(start, key)
            begin = {name: initial if name in self._initial else torch.zeros(()) for name in self._rows}
            begin["scale"] = initial_scale()
        for name, rows in self._rows.items():
            rows[len(self._members)].copy_(begin[name])
        self._members.append(member := Member.of(run, snapshot.numbers if snapshot else {}))
        if self._prefers:
            member.references = self._log_probs(None if start is None else layout.row_of(start, key))

    def _log_probs(self, row: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of both splits' sequences under this row of weights; computed only once."""
        digest = "" if row is None else hashlib.sha256(row.numpy().tobytes()).hexdigest()
        if digest not in self._references:

            def of(objective: Objective) -> Tensor:
                if row is None:
                    return torch.zeros(objective.n_sequences)
                with self._precision():
                    return references(self.transformer, row.to(self.device), objective)

            self._references[digest] = of(self._objective), of(self._evaluation.objective)
        return self._references[digest]

    def _preference_inputs(self, rows: Sequence[int], is_train: bool = False) -> PreferenceInputs | None:
        """Return beta and the references on a split for the runs of these rows; None unless they learn preferences."""
        if not self._prefers:
            return None
        members = [self._members[row] for row in rows]
        beta = torch.tensor([each.run.values.beta for each in members], device=self.device)
        found = [each.references[0 if is_train else 1] for each in members if each.references]
        return beta, torch.stack(found)

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
        """Return copies of a run's weights by name, as evaluations use them: the current or the best ones."""
        row = self._rows["best" if best else self._evaluated][self.keys.index(key)]
        views = self.transformer.layout.views(row[None])
        return {name: view[0].cpu().clone() for name, view in views.items()}

    @torch.no_grad()
    def whole_losses(self, keys: Sequence[str], best: bool) -> list[float]:
        """Return the losses of runs on the whole validation split, with the current or their best weights.

        The stack does not change. At most about MOST_WHOLE targets of the split are evaluated.
        """
        chosen = [self.keys.index(key) for key in keys]
        rows = self._rows["best" if best else self._evaluated][chosen]
        with self._precision():
            return self._full_eval.loss(self.transformer.layout.views(rows), self._preference_inputs(chosen))

    def advance(self, pause: Callable[[], bool] = lambda: False) -> list[Record]:
        """Train until some runs are due for evaluation and return their records; none if `pause` returns true."""
        while self._members:
            if due := [row for row, member in enumerate(self._members) if member.is_due()]:
                return self._evaluate(due)
            if pause():
                return []
            self._step()
        return []

    def _step(self) -> None:
        started = time.perf_counter()
        members = self._members
        tracked = [row for row, member in enumerate(members) if self._tracks and member.has_point(ahead=1)]
        before = self._layer_gradients(tracked) if tracked else {}
        if self._program:
            inputs = self.staged()
            self.is_whole = False
            self._program(inputs)
        elif self._is_staged:
            self._step_on_device()
        else:
            self._step_eagerly()
        for member in members:
            member.iteration += 1
            member.counted += 1
            member.slot_steps += self.capacity / len(members)
        self.is_whole = True
        ended = [row for row, member in enumerate(members) if member.has_point()]
        all_sums = torch.cat([self._rows["loss"], self._rows["norm"]], dim=1).tolist() if ended else []
        sums = {row: all_sums[row] for row in ended}
        seconds = time.perf_counter() - started  # after reading the sums, which waits for the device
        for member in members:
            member.wall_seconds += seconds
        for row, (loss, norm) in sums.items():
            members[row].add_point(loss, norm)
            if row in before:
                gradients, weights = before[row]
                norms = self.transformer.layout.layer_norms
                updates, sizes = norms(self._rows["weights"][row] - weights), norms(weights)
                members[row].points[-1]["layers"] = {
                    name: (own, updates[name], sizes[name]) for name, own in gradients.items()
                }
            self._rows["loss"][row].zero_()
            self._rows["norm"][row].zero_()

    def _layer_gradients(self, rows: Sequence[int]) -> dict[int, tuple[dict[str, float], Tensor]]:
        """Return, for each of these rows, the norm of each layer's gradient in the next step, and the current weights.

        This takes an extra backward pass, because a step clips and overwrites its gradient, and a program hides it.
        """
        n = len(self._members)
        weights, gradient = self._rows["weights"][:n], self._gradient[:n]
        self._differentiate(weights, self._batches(), gradient)
        if self._scales:
            unscale_(gradient, self._rows["scale"][:n])
        norms = self.transformer.layout.layer_norms
        return {row: (norms(gradient[row]), weights[row].clone()) for row in rows}

    def _step_eagerly(self) -> None:
        """Take a step in eager mode."""
        members, n = self._members, len(self._members)
        weights, gradient = self._rows["weights"][:n], self._gradient[:n]
        losses = self._differentiate(weights, self._batches(), gradient)
        rates = [member.rates() for member in members]

        def update(rows: Mapping[str, Tensor], live: Sequence[int]) -> None:
            limits = [members[row].run.values.grad_clip for row in live]
            clip_(rows["gradient"], rows["norms"], limits)
            state = {name: rows[name] for name in self._optimizer.buffers()}
            self._optimizer.update_(rows["weights"], rows["gradient"], state, [rates[row] for row in live])
            if "mean" in rows:
                decays = [decay_at(members[row].run.values.ema, members[row].iteration) for row in live]
                average_(rows["mean"], rows["weights"], decays)

        with torch.no_grad():
            finite = unscale_(gradient, self._rows["scale"][:n]) if self._scales else None
            norms = gradient_norms(gradient)
            changing = {name: self._rows[name][:n] for name in ("weights", *self._optimizer.buffers())}
            changing |= {"mean": self._rows["mean"][:n]} if self._evaluated == "mean" else {}
            changing |= {"gradient": gradient, "norms": norms}
            self.is_whole = False
            if finite is None:
                update(changing, range(n))
            else:
                update_finite(finite, changing, update)
                update_scale_(self._rows["scale"][:n], finite)
                norms = torch.where(finite, norms, 0.0)
            self._rows["loss"][:n] += losses[:, None]
            self._rows["norm"][:n] += norms[:, None]

    def _step_on_device(self) -> None:
        """Take a step on a GPU with one copy to the device, without waiting for it."""
        if self._on_device is None:
            self._on_device = StagedStep(self.traceable(), self.device, CAPTURES)
        parts, fixed = self._parts()
        rows = [self._rows[name] for name in self._stepped]
        self.is_whole = False
        self._on_device(rows, parts, fixed, self.capacity)

    def staged(self) -> list[Tensor]:
        """Return the inputs of a compiled step: rows, batch, numbers of the runs, dropout's mask inputs."""
        parts, fixed = self._parts()
        return [*(self._rows[name][: len(self._members)] for name in self._stepped), *parts, *fixed]

    def _parts(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the inputs that change in every step, on the host [K, …], and those that never change."""
        batch = stacked([self._batch(each) for each in self._members])
        parts = [torch.from_numpy(part) for part in batch if part is not None] + [self._hyperparameters()]
        found = [dropout for part in range(self._n_parts) if (dropout := self._dropout(part, on_host=True))]
        return [*parts, *chain(*(each.mask_inputs() for each in found))], [self._elements] if found else []

    def traceable(self) -> Callable[..., tuple[Tensor]]:
        """Return a step as a function of the staged inputs; it changes the rows in place and returns the losses."""
        n_rows = len(self._stepped)
        present = [part is not None for part in self._batch(self._members[0])]
        sites = dropout.sites if (dropout := self._dropout(0, on_host=True)) else []

        def step(*inputs: Tensor) -> tuple[Tensor]:
            left = iter(inputs)
            rows = dict(zip(self._stepped, islice(left, n_rows), strict=True))
            batch = Batch(*(next(left) if each else None for each in present))
            *of_rates, limits, decays, smoothing, beta = next(left).unbind(1)
            masks: list[Dropout | None] = [None] * self._n_parts
            if sites:
                mask_inputs = [MaskInputs(*islice(left, 3)) for _ in masks]
                masks = [Dropout.of(each, sites, inputs[-1]) for each in mask_inputs]
            smoothed = smoothing.float() if self._smooths else None
            loss_args = smoothed, None, beta.float() if self._prefers else None
            passes = self._passes(rows["weights"].detach(), batch, masks, loss_args, rows.get("scale"))
            gathered = self.transformer.layout.gathered
            parts = [(found, gathered(pieces)) for found, pieces in passes]
            with torch.no_grad():
                losses, gradient = (reduce(torch.add, each) for each in zip(*parts, strict=True))
                finite = unscale_(gradient, rows["scale"]) if self._scales else None
                before = {} if finite is None else {name: each.clone() for name, each in rows.items()}
                norms = gradient_norms(gradient)
                clip_(gradient, norms, limits.float())
                state = {name: rows[name] for name in self._optimizer.buffers()}
                self._optimizer.update_(rows["weights"], gradient, state, Rates(*of_rates))
                if "mean" in rows:
                    average_(rows["mean"], rows["weights"], decays.float())
                if finite is not None:
                    for name, saved in before.items():
                        rows[name].copy_(torch.where(finite[:, None], rows[name], saved))
                    update_scale_(rows["scale"], finite)
                    norms = torch.where(finite, norms, 0.0)
                rows["loss"].add_(losses[:, None])
                rows["norm"].add_(norms[:, None])
            return (losses,)

        return step

    def _hyperparameters(self) -> Float[Tensor, "K n"]:
        """Return each run's hyperparameters for a step; without clipping the limit of the norm is infinity."""
        rows = []
        for member in self._members:
            values = member.run.values
            limit = math.inf if values.grad_clip is None else values.grad_clip
            decay = decay_at(values.ema, member.iteration)
            rows.append((*member.rates(), limit, decay, values.label_smoothing, values.beta))
        return torch.tensor(rows, dtype=torch.float64)

    def _batches(self) -> Batch:
        """Return the next batches of all runs, stacked."""
        return changed(
            stacked([self._batch(each) for each in self._members]),
            lambda part: torch.from_numpy(part).to(self.device, non_blocking=True),
        )

    def _differentiate(self, weights: Rows, batch: Batch, gradient: Rows) -> Float[Tensor, "K"]:
        """Write the gradient of each run's loss into its row and return the losses."""
        masks = [self._dropout(part) for part in range(self._n_parts)]
        scale = self._rows["scale"][: len(weights)] if self._scales else None
        layout = self.transformer.layout
        found: list[Tensor] = []
        for losses, pieces in self._passes(weights, batch, masks, self._loss_args(), scale):
            layout.gather(pieces, out=self._part[: len(gradient)] if found else gradient)
            if found:
                gradient.add_(self._part[: len(gradient)])
            found.append(losses)
        return reduce(torch.add, found)

    def _passes(
        self, weights: Rows, batch: Batch, masks: Sequence[Dropout | None], args: LossArgs, scale: Rows | None
    ) -> Iterator[tuple[Float[Tensor, "K"], Sequence[Tensor]]]:
        """Yield, for each micro-batch, the runs' losses and their gradients by weight, times the loss scale.

        Losses are weighted by the number of targets, so that their sum equals the loss of the whole batch. Only the
        routers' balance loss differs, because it is a product of means within each micro-batch.
        """
        views = self.transformer.layout.views(weights)
        leaves = {name: view.requires_grad_() for name, view in views.items()}
        dense, candidates = self._objective.dense, self._objective.n_candidates
        n_losses = self._n_losses(batch) if self._n_parts > 1 else None
        for part, dropout in enumerate(masks):
            some = changed(batch, lambda each: each.chunk(self._n_parts, dim=1)[part])  # noqa: B023
            with self._precision():
                losses = self._losses(leaves, some, dropout, *args, dense=dense, candidates=candidates)
            if n_losses is not None:
                losses = losses * (self._n_losses(some) / n_losses)
            scaled = losses if scale is None else losses * scale[:, 0]
            yield losses.detach(), torch.autograd.grad(scaled.sum(), list(leaves.values()))

    @torch.no_grad()
    def _evaluate(self, due: list[int]) -> list[Record]:
        started = time.perf_counter()
        rows = self._rows[self._evaluated][: len(self._members)]
        weights = self.transformer.layout.views(rows if len(due) == len(rows) else rows[due])
        with self._precision():
            found = self._evaluation(weights, self._preference_inputs(due))
            if self._train_eval:
                prefs = self._preference_inputs(due, is_train=True)
                found["eval_train_loss"] = self._train_eval.loss(weights, prefs)
        seconds = time.perf_counter() - started
        records = []
        for index, row in enumerate(due):
            measures = {name: values[index] for name, values in found.items()}
            records.append(record := self._members[row].record(measures, seconds))
            if math.isfinite(record.val_loss) and record.best[1] == record.iteration:
                self._rows["best"][row].copy_(self._rows[self._evaluated][row])
        return records

    def _batch(self, member: Member) -> Batch:
        """Return a run's next batch; while the batch size warms up, its first rows are repeated."""
        values = member.run.values
        batch = self._objective.training(values.seed, member.iteration)
        if member.references:
            batch = batch._replace(reference=member.references[0].numpy()[batch.reference])
        n_used, n_rows = rows_used(values, member.iteration), len(batch.targets)
        return batch if n_used == n_rows else changed(batch, lambda each: each[np.arange(n_rows) % n_used])

    def _dropout(self, part: int, on_host: bool = False) -> Dropout | None:
        if not self._drops:
            return None
        return Dropout(
            [member.dropout_key for member in self._members],
            [member.iteration * self._n_parts + part for member in self._members],
            [member.dropout_rates for member in self._members],
            self.transformer.sites,
            self._elements.new_empty(0, device="cpu") if on_host else self._elements,
        )

    def _loss_args(self) -> LossArgs:
        """Return the arguments of the training loss besides the batch."""

        def column(name: str) -> Float[Tensor, "K"]:
            found = [getattr(member.run.values, name) for member in self._members]
            return torch.tensor(found, device=self.device)

        smoothing = column("label_smoothing") if self._smooths else None
        routers = (column("router_balance"), column("router_z")) if self._routes else None
        return smoothing, routers, column("beta") if self._prefers else None

    def _n_losses(self, batch: Batch) -> Int[Tensor, "K"]:
        """Return the number of losses that a run's loss averages: of counted targets, or of preferences."""
        n_runs, n_sequences = batch.targets.shape[:2]
        if self._prefers:
            return torch.full((n_runs,), n_sequences // 2, device=batch.targets.device)
        return torch.sum(batch.targets != NO_TARGET, dim=(1, 2))


def gradient_norms(gradient: Rows) -> Float[Tensor, "K"]:
    """Return the norm of each row of a gradient, computed block by block.

    Over a whole row, a float32 sum would lose several digits, and its bits would depend on the other rows.
    """
    blocks = torch.linalg.vector_norm(gradient.view(gradient.shape[0], -1, BLOCK), dim=2)
    norms: Tensor = torch.linalg.vector_norm(blocks, dim=1)
    return norms


def clip_(
    gradient: Rows, norms: Float[Tensor, "K"], largest: Sequence[float | None] | Float[Tensor, "K"]
) -> None:
    """Scale the rows whose norm is above their own `largest` down to it; None leaves a row unchanged."""
    limits = largest
    if not isinstance(limits, Tensor):
        if all(limit is None for limit in limits):
            return
        known = [torch.inf if each is None else each for each in limits]
        limits = torch.tensor(known, device=gradient.device)
    gradient.mul_((limits / (norms + 1e-6)).clamp_(max=1.0)[:, None])


def decay_at(ema: float, iteration: int) -> float:
    """Return the decay of the weights' exponential moving average in the step from `iteration` to the next.

    Evaluations use the average instead of the weights (Polyak and Juditsky's averaging, in the exponential form of
    Szegedy et al. 2016 and Karras et al. 2024). The decay is (1 + t) / (10 + t) at step t, at most `ema`, as in
    TensorFlow's ExponentialMovingAverage. With a constant decay, the average of a short run would still contain its
    random initial weights.
    """
    return min(ema, (1.0 + iteration) / (10.0 + iteration))


def average_(mean: Rows, weights: Rows, decays: Sequence[float] | Float[Tensor, "K"]) -> None:
    """Update the moving average of the weights in place, each row with its own decay."""
    kept = decays if isinstance(decays, Tensor) else torch.tensor(decays, device=mean.device)
    kept = kept[:, None]
    mean.mul_(kept).add_(weights * (1.0 - kept))
