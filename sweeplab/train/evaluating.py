"""Evaluate runs: their losses, and the measures of their task and model.

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
    candidate_logits,
    cross_entropy,
    log_probabilities,
    preference_losses,
    reward_margins,
    scores,
)

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from sweeplab.train.program import Program

# For preferences: beta [K], and each sequence's log-probability under the runs' initial weights [K, n].
PreferenceInputs = tuple[Tensor, Tensor]
# The number of sequences with one masked token: enough for a pseudo-perplexity that is exact to about a tenth.
N_MASKED_SEQUENCES = 256


def dense_losses(transformer: Transformer, n_runs: int) -> tuple[Callable[..., tuple[Tensor]], list[Tensor]]:
    """Return a function of weights and tokens that computes a batch's losses, and example inputs for n_runs runs.

    Every position of the batch has a target.
    """
    layout, length = transformer.layout, transformer.shape.block_size
    names = [weight.name for weight in layout.weights]

    def losses(*given: Tensor) -> tuple[Tensor]:
        *weights, inputs, targets = given
        batch = Batch(inputs, targets)
        return (transformer.losses(dict(zip(names, weights, strict=True)), batch, dense=True),)

    weights = layout.views(torch.zeros(n_runs, layout.row_size))
    size = (rows_together(length), length)
    # Two tensors, because the same tensor twice would be traced as one input.
    inputs, targets = (torch.zeros(size, dtype=torch.int64).expand(n_runs, *size) for _ in range(2))
    return losses, [*(weights[name] for name in names), inputs, targets]


def compiled_losses(program: Program, transformer: Transformer) -> Callable[..., Tensor]:
    """Return a replacement for a transformer's `losses` that uses the compiled `dense_losses` where a batch fits."""
    names, length = [weight.name for weight in transformer.layout.weights], transformer.shape.block_size
    size = (rows_together(length), length)

    def losses(weights: Weights, batch: Batch, dense: bool = False, candidates: int = 0) -> Tensor:
        if dense and not candidates and batch.source is None and batch.inputs.shape[1:] == size:
            return program([*(weights[name] for name in names), batch.inputs, batch.targets])[0]
        return transformer.losses(weights, batch, dense=dense, candidates=candidates)

    return losses


@dataclass(frozen=True)
class Evaluation:
    """Evaluates all runs on the same targets of one split: about `n_tokens`, or all if it is None.

    `losses` computes the transformer's losses; it may be compiled.
    """

    transformer: Transformer
    losses: Callable[..., Tensor]
    objective: Objective
    n_tokens: int | None

    def __call__(self, weights: Weights, prefs: PreferenceInputs | None = None) -> dict[str, list[float]]:
        """Return each measure of the runs [K] by its name; `val_loss` is always one of them."""
        batches = self.objective.evaluation(self.n_tokens)
        if prefs:
            found = self._preferences(weights, batches, *prefs)
        elif self.objective.n_candidates == 1:
            found = self._scores(weights, batches)
        elif self.objective.n_candidates:
            found = self._labels(weights, batches)
        else:
            found = self._means(weights, batches, self.objective.finds_whole)
        if masked := self.objective.alone(N_MASKED_SEQUENCES):
            found["pseudo_perplexity"] = self._means(weights, masked)["val_loss"].exp()
        if self.transformer.shape.n_expert > 1:
            found |= self._expert_use(weights)
        return {name: values.tolist() for name, values in found.items()}

    def loss(self, weights: Weights, prefs: PreferenceInputs | None = None) -> list[float]:
        """Return only the loss of each run [K]."""
        batches = self.objective.evaluation(self.n_tokens)
        means = self._preferences(weights, batches, *prefs) if prefs else self._means(weights, batches)
        found: list[float] = means["val_loss"].tolist()
        return found

    def _means(self, weights: Weights, batches: Iterator[Batch], matching: bool = False) -> dict[str, Tensor]:
        """Return the mean loss [K] over all counted targets, and with `matching` the share [K] of exact matches."""
        losses, n_targets = torch.zeros((), dtype=torch.float64), 0
        matches, n_sequences = torch.zeros((), dtype=torch.float64), 0
        for each in batches:
            n_counted = each.n_targets
            if not n_counted:
                continue
            batch = _for_all_runs(each, weights)
            if matching:
                logits = self.transformer.logits(weights, batch)
                found = cross_entropy(logits, batch.targets)
                matches = matches + exact_matches(logits, batch.targets)
            else:
                dense = self.objective.dense and n_counted == each.targets.size
                found = self.losses(weights, batch, dense=dense, candidates=self.objective.n_candidates)
            losses = losses + found.double() * n_counted
            n_targets, n_sequences = n_targets + n_counted, n_sequences + len(each.targets)
        means = {"val_loss": losses / n_targets}
        return means | {"exact_match": matches / n_sequences} if matching else means

    def _labels(self, weights: Weights, batches: Iterator[Batch]) -> dict[str, Tensor]:
        """Return the loss, the accuracy and the macro F1, all [K].

        F1 is the harmonic mean of precision and recall. Labels that neither occur nor are predicted are left out.
        """
        n_labels = self.objective.n_candidates
        losses: list[Tensor] = []
        confusion = torch.zeros(1, n_labels, n_labels, dtype=torch.float64)  # true label x predicted label
        for each in batches:
            batch = _for_all_runs(each, weights)
            logits = self.transformer.logits(weights, batch)
            logits, targets = candidate_logits(logits, batch.targets, n_labels)
            losses.append(cross_entropy(logits, targets).double() * each.n_targets)
            true = F.one_hot(targets.flatten(1) + 1, n_labels + 1)[..., 1:].double()
            predicted = F.one_hot(logits.argmax(dim=-1), n_labels).double()
            confusion = confusion + (true.mT @ predicted).cpu()
        correct = confusion.diagonal(dim1=1, dim2=2)
        n_true, n_predicted = confusion.sum(dim=2), confusion.sum(dim=1)
        scores = 2 * correct / (n_true + n_predicted).clamp(min=1)
        f1 = scores.sum(dim=1) / ((n_true + n_predicted) > 0).sum(dim=1)
        total = confusion.sum(dim=(1, 2))
        loss = torch.stack(losses).sum(dim=0) / total.to(losses[0].device)
        return {"val_loss": loss, "accuracy": correct.sum(dim=1) / total, "f1": f1}

    def _scores(self, weights: Weights, batches: Iterator[Batch]) -> dict[str, Tensor]:
        """Return the mean squared error, and Pearson's and Spearman's correlation with the true scores, all [K].

        The correlation with a constant is 0.
        """
        found, known = [], []
        for each in batches:
            batch = _for_all_runs(each, weights)
            logits, targets = candidate_logits(self.transformer.logits(weights, batch), batch.targets, 1)
            found.append(scores(logits, targets).double().cpu())
            known.append(torch.from_numpy(each.reference).double())
        predicted, true = torch.cat(found, dim=1), torch.cat(known)
        by_rank = [torch.stack([*map(ranks, rows)]) for rows in (predicted, true[None])]
        return {
            "val_loss": (predicted - true).square().mean(dim=1),
            "pearson": _correlation(predicted, true[None]),
            "spearman": _correlation(*by_rank),
        }

    def _preferences(
        self, weights: Weights, batches: Iterator[Batch], beta: Tensor, reference: Tensor
    ) -> dict[str, Tensor]:
        """Return the mean loss, the share of preferences ranked correctly, and the mean reward margin, all [K].

        Equal rewards, as at the start of every run, count as half correct.
        """
        found = []
        for each in batches:
            batch = _for_all_runs(each, weights)
            logits = self.transformer.logits(weights, batch)
            initial = reference[:, each.reference].to(logits.device)
            found.append(reward_margins(logits, batch.targets, initial, beta).double())
        margins = torch.cat(found, dim=1)
        return {
            "val_loss": preference_losses(margins).mean(dim=1),
            "reward_accuracy": (margins.sign() + 1).mean(dim=1) / 2,
            "reward_margin": margins.mean(dim=1),
        }

    def _expert_use(self, weights: Weights) -> dict[str, Tensor]:
        """Return how unevenly the experts are used in the worst layer, measured on the first batch.

        `expert_use_max` is the largest share of a layer's choices that one expert gets. `expert_use_entropy` is the
        entropy of the shares divided by that of uniform use: 1 if all experts are used equally, 0 if one gets all.
        """
        batch = _for_all_runs(next(self.objective.evaluation(self.n_tokens)), weights)
        use = torch.stack([each.use for each in self.transformer.routings(weights, batch)])  # [L, K, E]
        entropy = -torch.xlogy(use, use).sum(dim=2) / math.log(use.shape[2])
        return {"expert_use_max": use.amax(dim=(0, 2)), "expert_use_entropy": entropy.amin(dim=0)}


def _for_all_runs(batch: Batch, weights: Mapping[str, Tensor]) -> Batch:
    """Return the batch as tensors on the device of the weights, expanded to all of their runs."""
    like = weights["token_embedding"]
    return changed(batch, lambda part: torch.from_numpy(part).to(like.device).expand(len(like), *part.shape))


def ranks(values: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    """Return the rank of each value, starting at 1; equal values get the mean of their ranks."""
    _, place, counts = torch.unique(values, return_inverse=True, return_counts=True)
    found: Tensor = (counts.cumsum(0) - (counts - 1) / 2).double()[place]
    return found


def _correlation(one: Float[Tensor, "K n"], other: Float[Tensor, "1 n"]) -> Float[Tensor, "K"]:
    one, other = (each - each.mean(dim=1, keepdim=True) for each in (one, other))
    sizes = (one.square().sum(dim=1) * other.square().sum(dim=1)).sqrt()
    return (one * other).sum(dim=1) / torch.where(sizes > 0, sizes, 1.0)


def exact_matches(logits: Float[Tensor, "K N V"], targets: Int[Tensor, "K B T"]) -> Int[Tensor, "K"]:
    """Return, for each run, the number of sequences whose most likely tokens equal all counted targets.

    For a decoder this equals the exact matches of greedy decoding over all tokens, special ones too: here it reads the
    true tokens, and greedy decoding reads the same tokens until its first mistake. An encoder predicts all tokens at
    once, and is given their number.
    """
    is_correct = logits.argmax(dim=-1).view(targets.shape) == targets
    return (is_correct | (targets == NO_TARGET)).all(dim=2).sum(dim=1)


@torch.no_grad()
def references(transformer: Transformer, row: Float[Tensor, "P"], objective: Objective) -> Float[Tensor, "n"]:
    """Return the log-probability of each sequence's targets under a row of weights, in the split's order.

    The row is computed alone and always in the same batches, so the bits do not depend on the stack.
    """
    weights = transformer.layout.views(row[None])
    batches = (_for_all_runs(each, weights) for each in objective.evaluation())
    found = (log_probabilities(transformer.logits(weights, each), each.targets) for each in batches)
    return torch.cat([each[0].cpu() for each in found])


@dataclass(frozen=True)
class LengthLosses:
    """Losses in nats per token on sequences of `times` block_size: the mean, and by position [T].

    `counts` [T] has the number of counted targets; a position without targets has a loss of NaN.
    """

    times: int
    loss: float
    by_position: NDArray[np.float64]
    counts: NDArray[np.int64]


def why_not_longer(values: Hyperparameters) -> str | None:
    """Return why a run cannot read longer sequences than it was trained on; None if it can."""
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
) -> LengthLosses:
    """Return a single run's losses on sequences of `times` block_size, on as many tokens as an evaluation reads.

    Raises:
        ValueError: the split is shorter than one sequence.
    """
    block_size = times * values.block_size
    longer = make_objective(split, values.replace(block_size=block_size), own_special)
    sums, counts = np.zeros(block_size), np.zeros(block_size, np.int64)
    for batch in longer.evaluation(values.evaluated_tokens):
        placed = _for_all_runs(batch, weights)
        logits = transformer.logits(weights, placed)
        logits, targets = candidate_logits(logits, placed.targets, longer.n_candidates)
        each = F.cross_entropy(logits[0].float(), targets.flatten(), reduction="none", ignore_index=NO_TARGET)
        length = batch.targets.shape[1]  # less than block_size for spans and pairs
        sums[:length] += each.view(-1, length).double().sum(dim=0).cpu().numpy()
        counts[:length] += (batch.targets != NO_TARGET).sum(axis=0)
    found = np.asarray(sums / np.where(counts, counts, np.nan))
    return LengthLosses(times, float(sums.sum() / counts.sum()), found, counts)
