"""A trained run in Python's hands: what it writes, and its logits for a text or for token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from numpy import ndarray
from torch import Tensor

from sweeplab.errors import BadInput, Problem
from sweeplab.model.accounting import n_params
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

    def logits(self, tokens: str | Sequence[int] | Sequence[Sequence[int]] | ndarray | Tensor) -> Tensor:
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
