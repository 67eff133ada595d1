"""What a run loses by position, in sequences as long as those it was trained on and longer.

Legend: T positions of a sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from sweeplab.data.batches import NO_TARGET, Split, changed
from sweeplab.data.objectives import make_objective, objective_of
from sweeplab.data.objectives.span import Span
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.model.positions import POSITIONS
from sweeplab.model.transformer import Transformer

Values = Mapping[str, Any]


@dataclass(frozen=True)
class AtLength:
    """Losses in nats a token on sequences of `times` block_size: the mean, and by position [T].

    `counts` [T] are the targets that counted; a position without any has a loss of NaN.
    """

    times: int
    loss: float
    by_position: NDArray[np.float64]
    counts: NDArray[np.int64]


def why_not_longer(values: Values) -> str | None:
    """Say why a run cannot read sequences longer than it was trained on; None where it can."""
    kind = objective_of(Hyperparameters.of(values))
    if POSITIONS[values["positions"]].is_bounded:
        return f"{values['positions']} positions end at block_size: there is nothing for the places beyond"
    if kind.of_pairs:
        return "pairs are as long as they are, whatever block_size is"
    if kind is Span:
        return "block_size decides how many spans a text has, and which ids stand for them"
    return None


@torch.no_grad()
def losses_at(
    transformer: Transformer,
    weights: Mapping[str, Tensor],
    split: Split,
    values: Values,
    times: int,
    own_special: Mapping[str, int] | None = None,
) -> AtLength:
    """Return a lone run's losses on sequences of `times` block_size, on as many tokens as an evaluation reads.

    Raises:
        ValueError: the split is shorter than one sequence.
    """
    longer = Hyperparameters.of(values).replace(
        block_size=times * values["block_size"], batch_size=max(1, values["batch_size"] // times)
    )
    sums, counts = np.zeros(longer.block_size), np.zeros(longer.block_size, np.int64)
    for batch in make_objective(split, longer, own_special).evaluation(values["eval_iters"]):
        device = weights["token_embedding"].device
        placed = changed(batch, lambda part: torch.from_numpy(part)[None].to(device))  # noqa: B023
        logits = transformer.logits(weights, placed)[0].float()
        each = F.cross_entropy(logits, placed.targets.flatten(), reduction="none", ignore_index=NO_TARGET)
        length = batch.targets.shape[1]  # of spans and pairs less than block_size
        sums[:length] += each.view(-1, length).double().sum(dim=0).cpu().numpy()
        counts[:length] += (batch.targets != NO_TARGET).sum(axis=0)
    found = np.asarray(sums / np.where(counts, counts, np.nan))
    return AtLength(times, float(sums.sum() / counts.sum()), found, counts)
