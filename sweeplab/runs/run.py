"""A trained run in Python's hands: what it writes, its logits for a text or for token ids, the labels it finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sweeplab.data.batches import Pairs, changed
from sweeplab.data.objectives import make_objective, objective_of
from sweeplab.errors import BadInput, Problem
from sweeplab.model.accounting import n_params
from sweeplab.model.transformer import among
from sweeplab.runs.generating import Writer, chosen
from sweeplab.tracking.loading import LoadedRun


@dataclass(frozen=True, repr=False)
class Run(LoadedRun):
    """A trained run to be used: it generates text, and gives logits for whatever it is asked in."""

    @classmethod
    def of(cls, loaded: LoadedRun) -> Run:
        """Return a run that was loaded, to be used."""
        return cls(**vars(loaded))

    def __repr__(self) -> str:
        return f"<run {self.run_id}: {self.values.family}, {n_params(self.model.shape):,} parameters>"

    def generate(
        self,
        prompt: str,
        *,
        max_new_tokens: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        greedy: bool = False,
        seed: int = 0,
    ) -> str:
        """Return the text that the run writes, as `sweeplab generate` prints it; what is None is the run's own.

        Raises:
            BadInput: the tokenizer does not know a character, or a value is out of range.
        """
        names = ("max_new_tokens", "temperature", "top_k", "top_p")
        given = dict(zip(names, (max_new_tokens, temperature, top_k, top_p), strict=True))
        writer = Writer(self, prompt, *chosen(self.values, given, greedy), seed=seed)
        return "".join(writer.words(writer.tokens()))

    def logits(self, tokens: str | Sequence[int] | Sequence[Sequence[int]] | np.ndarray | Tensor) -> Tensor:
        """Return logits [T, V] for a text or T token ids, [B, T, V] for B rows of ids.

        Raises:
            BadInput: there are none, or more than block_size in a row.
        """
        ids = self.tokenizer.encode(tokens) if isinstance(tokens, str) else tokens
        found = torch.as_tensor(ids).long()
        rows = found if found.dim() == 2 else found[None]
        if not 0 < rows.shape[-1] <= self.values.block_size:
            allowed = f"1 to {self.values.block_size}, the run's block_size"
            raise BadInput(Problem(f"{rows.shape[-1]} tokens in a row", allowed))
        logits = self.model.logits(rows)
        return logits if found.dim() == 2 else logits[0]


def classified(run: LoadedRun, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return of each text its label, and the probability of each label, the likeliest first.

    Raises:
        BadInput: the run finds no labels, or its tokenizer does not know a text.
    """
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
