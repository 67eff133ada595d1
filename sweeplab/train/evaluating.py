"""What an evaluation finds of runs: their losses, and what else their task and their model are asked for.

Legend: K runs, L layers with experts, E n_expert.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from sweeplab.data.batches import Batch
from sweeplab.data.objectives.base import Objective
from sweeplab.model.transformer import Transformer, cross_entropy
from sweeplab.train.matching import exact_matches

Weights = Mapping[str, Tensor]
# Sequences of which a token is hidden alone: enough for a pseudo-perplexity within about a tenth of itself.
N_ALONE = 256


class Evaluation:
    """Evaluates runs on one split, all of them on the same batches; all of the split without `n_batches`.

    `losses` are the transformer's own, as they may be compiled; `place(batch, K)` puts a batch on the device for K
    runs to share.
    """

    def __init__(
        self,
        transformer: Transformer,
        losses: Callable[..., Tensor],
        objective: Objective,
        n_batches: int | None,
        place: Callable[[Batch, int], Batch],
    ) -> None:
        self._transformer, self._losses, self._objective = transformer, losses, objective
        self._n_batches, self._place = n_batches, place

    def __call__(self, weights: Weights, n_runs: int) -> dict[str, list[float]]:
        """Return what the split says of each run [K], by the measure's name; `val_loss` is one."""
        if self._objective.finds_whole:
            found = self._loss_and_share_whole(weights, n_runs)
        else:
            found = {"val_loss": self._mean_loss(weights, n_runs, self._batches())}
        if alone := self._objective.alone(N_ALONE):
            found["pseudo_perplexity"] = self._mean_loss(weights, n_runs, alone).exp()
        if self._transformer.shape.n_expert > 1:
            found |= self._expert_use(weights, n_runs)
        return {name: values.tolist() for name, values in found.items()}

    def _batches(self) -> Iterator[Batch]:
        if self._n_batches is None:
            return self._objective.whole()
        return self._objective.evaluation(self._n_batches)

    def _mean_loss(self, weights: Weights, n_runs: int, batches: Iterator[Batch]) -> Tensor:
        """Return the mean cross-entropy [K] over the counted targets of all batches."""
        losses, n_targets = torch.zeros((), dtype=torch.float64), 0
        for each in batches:
            batch, n_counted = self._place(each, n_runs), each.n_targets
            found = self._losses(weights, batch, dense=self._objective.dense)
            losses = losses + found.double() * n_counted
            n_targets += n_counted
        return losses / n_targets

    def _loss_and_share_whole(self, weights: Weights, n_runs: int) -> dict[str, Tensor]:
        """Return the mean cross-entropy [K], and of the same logits the share [K] of sequences found whole."""
        losses, n_targets = torch.zeros((), dtype=torch.float64), 0
        matches, n_sequences = torch.zeros((), dtype=torch.float64), 0
        for each in self._batches():
            batch, n_counted = self._place(each, n_runs), each.n_targets
            logits = self._transformer.logits(weights, batch)
            losses = losses + cross_entropy(logits, batch.targets).double() * n_counted
            matches = matches + exact_matches(logits, batch.targets)
            n_targets, n_sequences = n_targets + n_counted, n_sequences + len(each.targets)
        return {"val_loss": losses / n_targets, "exact_match": matches / n_sequences}

    def _expert_use(self, weights: Weights, n_runs: int) -> dict[str, Tensor]:
        """Return how uneven the experts' use is in the worst layer, by the first batch.

        `expert_use_max` is the largest part of a layer's choices that one expert gets; `expert_use_entropy` the
        entropy of these parts over that of an even use: 1 where all are used alike, 0 where one has all.
        """
        batch = self._place(next(self._batches()), n_runs)
        use = torch.stack([each.use for each in self._transformer.routings(weights, batch)])  # [L, K, E]
        entropy = -torch.xlogy(use, use).sum(dim=2) / math.log(use.shape[2])
        return {"expert_use_max": use.amax(dim=(0, 2)), "expert_use_entropy": entropy.amin(dim=0)}
