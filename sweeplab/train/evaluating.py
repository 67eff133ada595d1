"""What an evaluation measures of runs: their losses, and what else their task and their model are asked for.

Legend: K runs, B sequences, T positions, N = B*T, V vocab_size, L layers with experts, E n_expert.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from sweeplab.data.batches import NO_TARGET, Batch, Split, changed
from sweeplab.data.objectives import make_objective, objective_of
from sweeplab.data.objectives.base import Objective, rows_together
from sweeplab.data.objectives.span import Span
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.model.blocks import Weights
from sweeplab.model.positions import POSITIONS
from sweeplab.model.transformer import (
    Transformer,
    among,
    cross_entropy,
    log_probabilities,
    preference_losses,
    reward_margins,
    scores,
)

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from sweeplab.train.program import Program

# Of preferences, what runs are judged by: beta of each [K], and what each had for every sequence at its start [K, n].
Judged = tuple[Tensor, Tensor]
# Sequences in which one token alone is hidden: enough for a pseudo-perplexity within about a tenth of itself.
N_ALONE = 256


def dense_losses(transformer: Transformer, n_runs: int) -> tuple[Callable[..., tuple[Tensor]], list[Tensor]]:
    """Return the losses of an evaluation's batch as a function of weights and tokens, and such tensors of so many runs.

    Every position has a target.
    """
    layout, length = transformer.layout, transformer.shape.block_size
    names = [weight.name for weight in layout.weights]

    def losses(*given: Tensor) -> tuple[Tensor]:
        *weights, inputs, targets = given
        batch = Batch(inputs, targets)
        return (transformer.losses(dict(zip(names, weights, strict=True)), batch, dense=True),)

    weights = layout.views(torch.zeros(n_runs, layout.row_size))
    size = (rows_together(length), length)
    # Two tensors: what is given twice is traced as one input.
    inputs, targets = (torch.zeros(size, dtype=torch.int64).expand(n_runs, *size) for _ in range(2))
    return losses, [*(weights[name] for name in names), inputs, targets]


def compiled_losses(program: Program, transformer: Transformer) -> Callable[..., Tensor]:
    """Return a transformer's losses, by the program of its `dense_losses` where that is for a batch."""
    names, length = [weight.name for weight in transformer.layout.weights], transformer.shape.block_size
    size = (rows_together(length), length)

    def losses(weights: Weights, batch: Batch, dense: bool = False, candidates: int = 0) -> Tensor:
        if dense and not candidates and batch.source is None and batch.inputs.shape[1:] == size:
            return program([*(weights[name] for name in names), batch.inputs, batch.targets])[0]
        return transformer.losses(weights, batch, dense=dense, candidates=candidates)

    return losses


@dataclass(frozen=True)
class Evaluation:
    """Evaluates runs on one split, all of them on the same targets: about `n_tokens`, or all of them.

    `losses` are the transformer's own, as they may be compiled.
    """

    transformer: Transformer
    losses: Callable[..., Tensor]
    objective: Objective
    n_tokens: int | None

    def __call__(self, weights: Weights, judged: Judged | None = None) -> dict[str, list[float]]:
        """Return what the split says of each run [K], by the measure's name; `val_loss` is one."""
        batches = self.objective.evaluation(self.n_tokens)
        if judged:
            found = self._preferences(weights, batches, *judged)
        elif self.objective.n_candidates == 1:
            found = self._scores(weights, batches)
        elif self.objective.n_candidates:
            found = self._labels(weights, batches)
        else:
            found = self._means(weights, batches, self.objective.finds_whole)
        if alone := self.objective.alone(N_ALONE):
            found["pseudo_perplexity"] = self._means(weights, alone)["val_loss"].exp()
        if self.transformer.shape.n_expert > 1:
            found |= self._expert_use(weights)
        return {name: values.tolist() for name, values in found.items()}

    def loss(self, weights: Weights, judged: Judged | None = None) -> list[float]:
        """Return the loss of each run [K], and nothing else."""
        batches = self.objective.evaluation(self.n_tokens)
        means = self._preferences(weights, batches, *judged) if judged else self._means(weights, batches)
        found: list[float] = means["val_loss"].tolist()
        return found

    def _means(self, weights: Weights, batches: Iterator[Batch], whole: bool = False) -> dict[str, Tensor]:
        """Return the loss [K] over the counted targets of all batches, and the share [K] of sequences found whole."""
        losses, n_targets = torch.zeros((), dtype=torch.float64), 0
        matches, n_sequences = torch.zeros((), dtype=torch.float64), 0
        for each in batches:
            n_counted = each.n_targets
            if not n_counted:
                continue
            batch = _shared(each, weights)
            if whole:
                logits = self.transformer.logits(weights, batch)
                found = cross_entropy(logits, batch.targets)
                matches = matches + exact_matches(logits, batch.targets)
            else:
                dense = self.objective.dense and n_counted == each.targets.size
                found = self.losses(weights, batch, dense=dense, candidates=self.objective.n_candidates)
            losses = losses + found.double() * n_counted
            n_targets, n_sequences = n_targets + n_counted, n_sequences + len(each.targets)
        means = {"val_loss": losses / n_targets}
        return means | {"exact_match": matches / n_sequences} if whole else means

    def _labels(self, weights: Weights, batches: Iterator[Batch]) -> dict[str, Tensor]:
        """Return the loss [K], the accuracy, and the mean over labels of F1, the harmonic mean of precision and recall.

        The mean is over labels that are there or are found.
        """
        n_labels = self.objective.n_candidates
        losses: list[Tensor] = []
        # How often each label was found as which.
        counts = torch.zeros(1, n_labels, n_labels, dtype=torch.float64)
        for each in batches:
            batch = _shared(each, weights)
            logits, targets = among(self.transformer.logits(weights, batch), batch.targets, n_labels)
            losses.append(cross_entropy(logits, targets).double() * each.n_targets)
            wanted = F.one_hot(targets.flatten(1) + 1, n_labels + 1)[..., 1:].double()
            found = F.one_hot(logits.argmax(dim=-1), n_labels).double()
            counts = counts + (wanted.mT @ found).cpu()
        right, there, named = counts.diagonal(dim1=1, dim2=2), counts.sum(dim=2), counts.sum(dim=1)
        scores = 2 * right / (there + named).clamp(min=1)
        f1 = scores.sum(dim=1) / ((there + named) > 0).sum(dim=1)
        total = counts.sum(dim=(1, 2))
        loss = torch.stack(losses).sum(dim=0) / total.to(losses[0].device)
        return {"val_loss": loss, "accuracy": right.sum(dim=1) / total, "f1": f1}

    def _scores(self, weights: Weights, batches: Iterator[Batch]) -> dict[str, Tensor]:
        """Return the mean squared error [K], and two correlations of what is found with the scores.

        They are Pearson's and Spearman's; a correlation with what is everywhere the same is 0.
        """
        found, wanted = [], []
        for each in batches:
            batch = _shared(each, weights)
            logits, targets = among(self.transformer.logits(weights, batch), batch.targets, 1)
            found.append(scores(logits, targets).double().cpu())
            wanted.append(torch.from_numpy(each.reference).double())
        predicted, true = torch.cat(found, dim=1), torch.cat(wanted)
        by_rank = [torch.stack([*map(ranks, rows)]) for rows in (predicted, true[None])]
        return {
            "val_loss": (predicted - true).square().mean(dim=1),
            "pearson": _correlation(predicted, true[None]),
            "spearman": _correlation(*by_rank),
        }

    def _preferences(
        self, weights: Weights, batches: Iterator[Batch], beta: Tensor, reference: Tensor
    ) -> dict[str, Tensor]:
        """Return the mean loss [K], the share of preferences ranked right, and the mean margin of their rewards.

        What is ranked the same, as all is at a run's start, is half right.
        """
        found = []
        for each in batches:
            batch = _shared(each, weights)
            logits = self.transformer.logits(weights, batch)
            known = reference[:, each.reference].to(logits.device)
            found.append(reward_margins(logits, batch.targets, known, beta).double())
        margins = torch.cat(found, dim=1)
        return {
            "val_loss": preference_losses(margins).mean(dim=1),
            "reward_accuracy": (margins.sign() + 1).mean(dim=1) / 2,
            "reward_margin": margins.mean(dim=1),
        }

    def _expert_use(self, weights: Weights) -> dict[str, Tensor]:
        """Return how uneven the experts' use is in the worst layer, by the first batch.

        `expert_use_max` is the largest part of a layer's choices that one expert gets; `expert_use_entropy` the
        entropy of these parts over that of an even use: 1 where all are used alike, 0 where one has all.
        """
        batch = _shared(next(self.objective.evaluation(self.n_tokens)), weights)
        use = torch.stack([each.use for each in self.transformer.routings(weights, batch)])  # [L, K, E]
        entropy = -torch.xlogy(use, use).sum(dim=2) / math.log(use.shape[2])
        return {"expert_use_max": use.amax(dim=(0, 2)), "expert_use_entropy": entropy.amin(dim=0)}


def _shared(batch: Batch, weights: Mapping[str, Tensor]) -> Batch:
    """Return the batch as tensors beside the weights, for all of their runs to share."""
    like = weights["token_embedding"]
    return changed(batch, lambda part: torch.from_numpy(part).to(like.device).expand(len(like), *part.shape))


def ranks(values: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    """Return the rank of each value from 1 on; equal values share the mean of theirs."""
    _, place, counts = torch.unique(values, return_inverse=True, return_counts=True)
    found: Tensor = (counts.cumsum(0) - (counts - 1) / 2).double()[place]
    return found


def _correlation(one: Float[Tensor, "K n"], other: Float[Tensor, "1 n"]) -> Float[Tensor, "K"]:
    one, other = (each - each.mean(dim=1, keepdim=True) for each in (one, other))
    sizes = (one.square().sum(dim=1) * other.square().sum(dim=1)).sqrt()
    return (one * other).sum(dim=1) / torch.where(sizes > 0, sizes, 1.0)


def exact_matches(logits: Float[Tensor, "K N V"], targets: Int[Tensor, "K B T"]) -> Int[Tensor, "K"]:
    """Return of each run how many sequences have the likeliest token at every counted target.

    A decoder reads the true tokens before each position; up to its first mistake greedy decoding reads the same ones,
    so that it finds a target whole exactly where this does, if the likeliest token may be any, special ones too. An
    encoder finds all tokens at once, and knows how many there are.
    """
    is_right = logits.argmax(dim=-1).view(targets.shape) == targets
    return (is_right | (targets == NO_TARGET)).all(dim=2).sum(dim=1)


@torch.no_grad()
def references(transformer: Transformer, row: Float[Tensor, "P"], objective: Objective) -> Float[Tensor, "n"]:
    """Return the log-probability of every sequence's targets for a run with this row of weights, in the split's order.

    The run is alone, and the sequences go together in the same way each time: so the bits do not depend on its stack.
    """
    weights = transformer.layout.views(row[None])
    batches = (_shared(each, weights) for each in objective.evaluation())
    found = (log_probabilities(transformer.logits(weights, each), each.targets) for each in batches)
    return torch.cat([each[0].cpu() for each in found])


@dataclass(frozen=True)
class AtLength:
    """Losses in nats a token on sequences of `times` block_size: the mean, and by position [T].

    `counts` [T] are the targets that counted; a position without any has a loss of NaN.
    """

    times: int
    loss: float
    by_position: NDArray[np.float64]
    counts: NDArray[np.int64]


def why_not_longer(values: Hyperparameters) -> str | None:
    """Return why a run cannot read sequences longer than it was trained on; None if it can."""
    kind = objective_of(values)
    if kind.learns == "preferences":
        return "a preference has one loss, not one per position"
    if kind.learns == "scores":
        return "a pair of texts has one score, not one per position"
    if POSITIONS[values.positions].is_bounded:
        return f"{values.positions} positions end at block_size and are not defined beyond it"
    if kind.learns != "text":
        return "the length of pairs does not depend on block_size"
    if kind is Span:
        return "block_size determines how many spans a text has, and which ids represent them"
    return None


@torch.no_grad()
def losses_at(
    transformer: Transformer,
    weights: Mapping[str, Tensor],
    split: Split,
    values: Hyperparameters,
    times: int,
    own_special: Mapping[str, int] | None = None,
) -> AtLength:
    """Return a lone run's losses on sequences of `times` block_size, on as many tokens as an evaluation reads.

    Raises:
        ValueError: the split is shorter than one sequence.
    """
    block_size = times * values.block_size
    longer = make_objective(split, values.replace(block_size=block_size), own_special)
    sums, counts = np.zeros(block_size), np.zeros(block_size, np.int64)
    for batch in longer.evaluation(values.evaluated_tokens):
        placed = _shared(batch, weights)
        logits, targets = among(transformer.logits(weights, placed), placed.targets, longer.n_candidates)
        each = F.cross_entropy(logits[0].float(), targets.flatten(), reduction="none", ignore_index=NO_TARGET)
        length = batch.targets.shape[1]  # of spans and pairs less than block_size
        sums[:length] += each.view(-1, length).double().sum(dim=0).cpu().numpy()
        counts[:length] += (batch.targets != NO_TARGET).sum(axis=0)
    found = np.asarray(sums / np.where(counts, counts, np.nan))
    return AtLength(times, float(sums.sum() / counts.sum()), found, counts)
