"""The metrics of plugins that see the model: measured on the batches of an evaluation, and what they are called.

Legend: B sequences, T positions, V vocab_size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sweeplab.data.batches import Batch, changed
from sweeplab.data.generators import generator_key
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.model.transformer import Transformer
from sweeplab.train.run import METRICS, ModelMetric

if TYPE_CHECKING:
    from jaxtyping import Float

    from sweeplab.train.member import Record


@dataclass(frozen=True)
class MeasuredModel:
    """A run's model as a metric sees it: its logits, its hyperparameters, and copies of its weights by name."""

    values: Hyperparameters
    weights: Mapping[str, Tensor]
    transformer: Transformer

    def logits(self, batch: Batch | Tensor) -> Float[Tensor, "B T V"]:
        """Return the logits of a batch, or of token ids [B, T], without dropout."""
        if isinstance(batch, Tensor):
            batch = Batch(batch, batch)
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
    devices = [weight.device for weight in model.weights.values() if weight.device.type == "cuda"][:1]
    for name in names:
        metric = METRICS[name]
        assert isinstance(metric, ModelMetric)
        with torch.random.fork_rng(devices):
            torch.manual_seed(generator_key(model.values.seed, f"{name} {record.iteration}"))
            result = metric.measure(model, batches, record)
        numbers = result if isinstance(result, Mapping) else {name: result}
        for key, number in numbers.items():
            try:
                measures[key if key == name else f"{name}_{key}"] = float(number)
            except (TypeError, ValueError):
                what = f"metric {name} returned {number!r}"
                raise TypeError(f"{what}; allowed: a number, or numbers by name") from None
    return measures
