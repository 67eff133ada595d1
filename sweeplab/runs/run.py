"""A trained run for Python programs: its texts, its logits for a text or token ids, its labels and scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sweeplab.data.batches import LABELLED, NO_TAG, SCORE_SIZE, Pairs, changed
from sweeplab.data.objectives import make_objective, objective_of
from sweeplab.data.tokenizers import word_encoder
from sweeplab.errors import BadInput, Problem
from sweeplab.model.accounting import n_params
from sweeplab.model.transformer import candidate_logits, scores
from sweeplab.runs.generating import Writer, chosen
from sweeplab.tracking.loading import LoadedRun


@dataclass(frozen=True, repr=False)
class Run(LoadedRun):
    """A trained run: it generates text, returns logits for texts or token ids, and predicts labels or scores."""

    @classmethod
    def of(cls, loaded: LoadedRun) -> Run:
        """Return a loaded run as a `Run`."""
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
        """Generate text as `sweeplab generate` does, and return it; settings that are None are the run's own.

        Raises:
            BadInput: the tokenizer cannot encode a character, or a value is out of range.
        """
        names = ("max_new_tokens", "temperature", "top_k", "top_p")
        given = dict(zip(names, (max_new_tokens, temperature, top_k, top_p), strict=True))
        writer = Writer(self, prompt, *chosen(self.values, given, greedy), seed=seed)
        return "".join(writer.words(writer.tokens()))

    def logits(self, tokens: str | Sequence[int] | Sequence[Sequence[int]] | np.ndarray | Tensor) -> Tensor:
        """Return logits [T, V] for a text or T token ids, [B, T, V] for B rows of ids.

        Raises:
            BadInput: a row has no tokens, or more than block_size.
        """
        ids = self.tokenizer.encode(tokens) if isinstance(tokens, str) else tokens
        found = torch.as_tensor(ids).long()
        rows = found if found.dim() == 2 else found[None]
        if not 0 < rows.shape[-1] <= self.values.block_size:
            allowed = f"1 to {self.values.block_size}, the run's block_size"
            raise BadInput(Problem(f"{rows.shape[-1]} tokens in a row", allowed))
        logits = self.model.logits(rows)
        return logits if found.dim() == 2 else logits[0]

    def classify(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """Return each text's label and the probability of every label, the most probable first; for a tagger, `tags`.

        Those hold, for each word of the text (between blanks), its label with its probability, or None if the word is
        beyond block_size.

        Raises:
            BadInput: the run predicts no labels, or its tokenizer cannot encode a text.
        """
        kind = objective_of(self.values).learns
        if kind not in LABELLED:
            raise BadInput(f"run {self.run_id} predicts no labels: its objective is {self.values.objective}")
        if not texts:
            return []
        encode, parts = word_encoder(self.tokenizer), list[NDArray[Any]]()
        for text in texts:
            try:
                tokens, places = (
                    encode(text.split()) if kind == "tags" else (self.tokenizer.encode(text), list[int]())
                )
            except ValueError as error:
                raise BadInput(f"in the text, {error}") from error
            if not len(tokens):
                raise BadInput(f"the text {text!r} is empty")
            # Each text gets placeholder labels, because the objective needs pairs; their values are not read.
            tags = np.where(np.isin(np.arange(len(tokens)), places), 0, NO_TAG)
            parts += [tokens, tags if kind == "tags" else np.zeros(1, np.int64)]
        n_labels, ends = self.values.n_labels or 0, np.cumsum([len(each) for each in parts])
        pairs = Pairs(np.concatenate(parts).astype(np.uint16), ends, n_labels, of=kind)
        found: list[list[dict[str, float]]] = []
        for logits, targets in self._outputs(pairs, n_labels):
            shares = logits[0].double().softmax(dim=-1).view(*targets.shape[1:], n_labels)
            for own, wanted in zip(shares, targets[0], strict=True):
                named = (zip(self.labels, each, strict=True) for each in own[wanted >= 0].tolist())
                found.append([dict(sorted(each, key=lambda share: -share[1])) for each in named])
        return [
            _told(text, own[0]) if kind == "labels" else {"text": text, "tags": _tags(text, own)}
            for text, own in zip(texts, found, strict=True)
        ]

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
        """Return the score of each pair of texts.

        Raises:
            BadInput: the run predicts no scores, or its tokenizer cannot encode a text.
        """
        if objective_of(self.values).learns != "scores":
            raise BadInput(f"run {self.run_id} predicts no scores: its objective is {self.values.objective}")
        if not pairs:
            return []
        try:
            parts = [part for pair in pairs for part in map(self.tokenizer.encode, pair)]
        except ValueError as error:
            raise BadInput(f"in the text, {error}") from error
        none = np.zeros(SCORE_SIZE, np.uint16)
        rows = [np.append(part, none) if at % 2 else part for at, part in enumerate(parts)]
        split = Pairs(
            np.concatenate(rows).astype(np.uint16), np.cumsum([len(each) for each in rows]), of="scores"
        )
        found = [each for output in self._outputs(split, 1) for each in scores(*output)[0].tolist()]
        return [
            {"sentence1": first, "sentence2": second, "score": score}
            for (first, second), score in zip(pairs, found, strict=True)
        ]

    @torch.no_grad()
    def _outputs(self, pairs: Pairs, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the logits and targets of batches of texts, for `count` labels or one score."""
        for batch in make_objective(pairs, self.values, self.own_special).evaluation():
            placed = changed(batch, lambda part: torch.from_numpy(part)[None])
            logits = self.model.transformer.logits(self.model.stacked, placed)
            yield candidate_logits(logits, placed.targets, count)


def _told(text: str, ranked: dict[str, float]) -> dict[str, Any]:
    return {"text": text, "label": next(iter(ranked)), "probabilities": ranked}


def _tags(text: str, found: Sequence[dict[str, float]]) -> list[dict[str, Any]]:
    best = [next(iter(ranked.items())) for ranked in found]
    return [
        {"word": word, "label": label, "probability": probability}
        for word, (label, probability) in zip_longest(text.split(), best, fillvalue=(None, None))
    ]
