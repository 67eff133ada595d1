"""A trained run names the labels of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sweeplab.data.batches import Pairs, changed
from sweeplab.data.objectives import make_objective, objective_of
from sweeplab.errors import BadInput

if TYPE_CHECKING:
    from sweeplab.tracking.loading import LoadedRun


def classified(run: LoadedRun, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return of each text its label, and the probability of each label, the likeliest first.

    Raises:
        BadInput: the run finds no labels, or its tokenizer does not know a text.
    """
    import torch

    from sweeplab.model.transformer import among

    if objective_of(run.values).learns != "labels":
        raise BadInput(f"run {run.run_id} finds no labels: its objective is {run.values.objective}")
    try:
        tokens = [run.tokenizer.encode(text) for text in texts]
    except ValueError as error:
        raise BadInput(f"of the text, {error}") from error
    if empty := [text for text, own in zip(texts, tokens, strict=True) if not len(own)]:
        raise BadInput(f"the text {empty[0]!r} is empty")
    n_labels = run.values.n_labels or 0
    # Each with a label, for the objective lays out pairs; it is not read.
    parts = [part for own in tokens for part in (own, np.zeros(1, np.int64))]
    pairs = Pairs(np.concatenate(parts).astype(np.uint16), np.cumsum([len(each) for each in parts]), n_labels)
    found, weights = [], run.model.stacked
    with torch.no_grad():
        for batch in make_objective(pairs, run.values, run.own_special).evaluation():
            placed = changed(batch, lambda part: torch.from_numpy(part)[None])
            logits, targets = among(run.model.transformer.logits(weights, placed), placed.targets, n_labels)
            shares = logits[0].double().softmax(dim=-1)[targets.flatten() >= 0]
            found += shares.tolist()
    rows = []
    for text, own in zip(texts, found, strict=True):
        ranked = dict(sorted(zip(run.labels, own, strict=True), key=lambda each: -each[1]))
        rows.append({"text": text, "label": next(iter(ranked)), "probabilities": ranked})
    return rows
