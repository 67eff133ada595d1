"""Evaluate runs: their losses, and the measures of their task and model.

Legend: K runs, B sequences, T positions, N = B*T, V vocab_size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from sweeplab.data.batches import NO_TARGET, Batch, changed, generator_key
from sweeplab.data.objectives.base import Objective, rows_together
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.model.blocks import Weights
from sweeplab.model.transformer import Transformer, candidate_logits, cross_entropy
from sweeplab.train.run import METRICS

if TYPE_CHECKING:
    from jaxtyping import Float

    from sweeplab.train.member import Record
    from sweeplab.train.program import Program

    PerRun = Float[Tensor, "K"]


class LossInputs(NamedTuple):
    """What a loss of an objective's own takes besides the batch.

    Its hyperparameters, each [K], and the values that the runs' initial weights give to each sequence [K, n], if the
    objective reads them.
    """

    columns: Sequence[Tensor]
    starts: Tensor | None


def dense_losses(
    transformer: Transformer, n_runs: int
) -> tuple[Callable[..., tuple[Tensor]], list[Tensor]]:
    """Return a function of weights and tokens that computes a batch's losses, and example inputs for n_runs runs.

    Every position of the batch has a target.
    """
    layout, length = transformer.layout, transformer.shape.block_size
    names = [weight.name for weight in layout.weights]

    def losses(*tensors: Tensor) -> tuple[Tensor]:
        *weights, inputs, targets = tensors
        batch = Batch(inputs, targets)
        return (transformer.losses(dict(zip(names, weights, strict=True)), batch, dense=True),)

    weights = layout.views(torch.zeros(n_runs, layout.row_size))
    size = (rows_together(length), length)
    # Two tensors, because the same tensor twice would be traced as one input.
    inputs, targets = (
        torch.zeros(size, dtype=torch.int64).expand(n_runs, *size) for _ in range(2)
    )
    return losses, [*(weights[name] for name in names), inputs, targets]


def compiled_losses(program: Program, transformer: Transformer) -> Callable[..., Tensor]:
    """Return a replacement for a transformer's `losses` that uses the compiled `dense_losses` where a batch fits."""
    names = [weight.name for weight in transformer.layout.weights]
    length = transformer.shape.block_size
    size = (rows_together(length), length)

    def losses(
        weights: Weights, batch: Batch, dense: bool = False, candidates: int = 0, **further: Any
    ) -> Tensor:
        if dense and not candidates and batch.source is None and batch.inputs.shape[1:] == size:
            return program([*(weights[name] for name in names), batch.inputs, batch.targets])[0]
        return transformer.losses(weights, batch, dense=dense, candidates=candidates, **further)

    return losses


@dataclass(frozen=True)
class Evaluator:
    """Evaluates all runs on the same targets of one split: about `n_tokens`, or all if it is None.

    `losses` computes the transformer's losses; it may be compiled.
    """

    transformer: Transformer
    losses: Callable[..., Tensor]
    objective: Objective
    n_tokens: int | None

    def __call__(self, weights: Weights, inputs: LossInputs) -> dict[str, list[float]]:
        """Return each measure of the runs [K] by its name; `val_loss` is always one of them."""
        objective = self.objective
        if objective.has_own("measures"):
            measures = objective.measures(self.outputs(weights, inputs), *inputs.columns)
        elif objective.n_candidates:
            measures = label_measures(self.outputs(weights, inputs), objective.n_candidates)
        elif objective.finds_whole:
            measures = sequence_measures(self.outputs(weights, inputs))
        else:
            measures = {"val_loss": self.loss(weights, inputs)}
        return {name: values.tolist() for name, values in measures.items()}

    def loss(self, weights: Weights, inputs: LossInputs) -> PerRun:
        """Return only the loss of each run."""
        further: dict[str, Any] = {"candidates": self.objective.n_candidates}
        if self.objective.has_own("loss"):
            further |= {"loss": self.objective.loss, "hyperparameters": inputs.columns}
        total, n_targets = torch.zeros((), dtype=torch.float64), 0
        for batch, made in self._placed(weights, inputs):
            n_counted = int(self.objective.n_losses(made))
            if n_counted:
                dense = self.objective.dense and n_counted == made.targets.size
                total = (
                    total
                    + self.losses(weights, batch, dense=dense, **further).double() * n_counted
                )
                n_targets += n_counted
        return total / n_targets

    def _placed(self, weights: Weights, inputs: LossInputs) -> Iterator[tuple[Batch, Batch]]:
        """Yield each batch for all runs, and the same as NumPy arrays."""
        for made in self.objective.evaluation(self.n_tokens):
            batch = _for_all_runs(made, weights)
            if inputs.starts is not None:
                batch = batch._replace(
                    reference=inputs.starts[:, made.reference].to(batch.inputs.device)
                )
            yield batch, made

    def outputs(self, weights: Weights, inputs: LossInputs) -> Iterator[tuple[Tensor, Batch]]:
        """Yield the logits of the candidates of each batch, with its targets numbered from the first one."""
        for batch, _ in self._placed(weights, inputs):
            logits = self.transformer.logits(weights, batch)
            logits, targets = candidate_logits(
                logits, batch.targets, self.objective.n_candidates
            )
            yield logits, batch._replace(targets=targets)


def _for_all_runs(batch: Batch, weights: Mapping[str, Tensor]) -> Batch:
    like = next(iter(weights.values()))
    return changed(
        batch,
        lambda part: torch.from_numpy(part).to(like.device).expand(len(like), *part.shape),
    )


def label_measures(outputs: Iterable[tuple[Tensor, Batch]], n_labels: int) -> dict[str, PerRun]:
    """Return the loss, the accuracy and the macro F1 of labels, from logits [K, N, n_labels] and targets.

    F1 is the harmonic mean of precision and recall. Labels that neither occur nor are predicted are left out.
    """
    losses: list[Tensor] = []
    # True label x predicted label.
    confusion = torch.zeros(1, n_labels, n_labels, dtype=torch.float64)
    for logits, batch in outputs:
        targets = batch.targets
        n_counted = (targets != NO_TARGET).sum(dim=(1, 2))
        losses.append(cross_entropy(logits, targets).double() * n_counted)
        true = F.one_hot(targets.flatten(1) + 1, n_labels + 1)[..., 1:].double()
        predicted = F.one_hot(logits.argmax(dim=-1), n_labels).double()
        confusion = confusion + (true.mT @ predicted).cpu()
    correct, total = confusion.diagonal(dim1=1, dim2=2), confusion.sum(dim=(1, 2))
    counts = confusion.sum(dim=2) + confusion.sum(dim=1)
    f1 = (2 * correct / counts.clamp(min=1)).sum(dim=1) / (counts > 0).sum(dim=1)
    loss = torch.stack(losses).sum(dim=0) / total.to(losses[0].device)
    return {"val_loss": loss, "accuracy": correct.sum(dim=1) / total, "f1": f1}


def sequence_measures(outputs: Iterable[tuple[Tensor, Batch]]) -> dict[str, PerRun]:
    """Return the loss, and the share of sequences whose most likely tokens equal all counted targets.

    For a decoder this equals the exact matches of greedy decoding over all tokens, special ones too: here it reads the
    true tokens, and greedy decoding reads the same tokens until its first mistake. An encoder predicts all tokens at
    once, and is given their number.
    """
    losses = matches = torch.zeros((), dtype=torch.float64)
    n_targets, n_sequences = torch.zeros((), dtype=torch.int64), 0
    for logits, batch in outputs:
        targets = batch.targets
        n_counted = (targets != NO_TARGET).sum(dim=(1, 2))
        losses = losses + cross_entropy(logits, targets).double() * n_counted
        is_correct = logits.argmax(dim=-1).view(targets.shape) == targets
        matches = matches + (is_correct | (targets == NO_TARGET)).all(dim=2).sum(dim=1)
        n_targets, n_sequences = n_targets + n_counted, n_sequences + targets.shape[1]
    return {"val_loss": losses / n_targets, "exact_match": matches / n_sequences}


@torch.no_grad()
def values_at_start(
    transformer: Transformer, row: Float[Tensor, "P"], objective: Objective
) -> Float[Tensor, "n"]:
    """Return what an objective computes of each sequence from a row of weights, in the split's order.

    The row is computed alone and always in the same batches, so the bits do not depend on the stack.
    """
    weights = transformer.layout.views(row[None])
    batches = (_for_all_runs(batch, weights) for batch in objective.evaluation())
    values = (
        objective.at_start(transformer.logits(weights, batch), batch) for batch in batches
    )
    return torch.cat([value[0].cpu() for value in values])


@dataclass(frozen=True)
class MeasuredModel:
    """A run's model as a metric sees it: its logits, its hyperparameters, and copies of its weights by name."""

    values: Hyperparameters
    weights: Mapping[str, Tensor]
    transformer: Transformer

    def logits(self, batch: Batch) -> Float[Tensor, "B T V"]:
        """Return the logits of a batch, without dropout."""
        stacked = {name: weight[None] for name, weight in self.weights.items()}
        logits = self.transformer.logits(stacked, changed(batch, lambda part: part[None]))
        return logits[0].view(*batch.inputs.shape, -1)


def measured(
    names: Iterable[str], model: MeasuredModel, batches: Sequence[Batch], record: Record
) -> dict[str, float]:
    """Return what the metrics of these names measure of a run; what they draw depends on its seed and iteration alone.

    A metric that returns several numbers by name gives NAME_KEY for each, or NAME for the one of its own name.

    Raises:
        TypeError: a metric returns something else than numbers.
    """
    measures = dict[str, float]()
    devices = {weight.device for weight in model.weights.values() if weight.is_cuda}
    for name in names:
        with torch.random.fork_rng(devices):
            torch.manual_seed(generator_key(model.values.seed, f"{name} {record.iteration}"))
            result = METRICS[name](model, batches, record)
        numbers = result if isinstance(result, Mapping) else {name: result}
        for key, number in numbers.items():
            try:
                measures[key if key == name else f"{name}_{key}"] = float(number)
            except (TypeError, ValueError):
                what = f"metric {name} returned {number!r}"
                raise TypeError(f"{what}; allowed: a number, or numbers by name") from None
    return measures
