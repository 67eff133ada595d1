"""A trained run for Python programs: its texts, its logits for a text or token ids, its labels and scores."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sweeplab.data.batches import NO_TARGET, Batch, Pairs, changed
from sweeplab.data.objectives import make_objective, objective_of
from sweeplab.data.objectives.pairs import PairsObjective
from sweeplab.errors import BadInput, Problem
from sweeplab.formatting import several
from sweeplab.model.accounting import n_params
from sweeplab.runs.generating import Writer, chosen, named
from sweeplab.tracking.models import LoadedRun
from sweeplab.train.evaluating import Evaluator, LossInputs


@dataclass(frozen=True, repr=False)
class Run(LoadedRun):
    """A trained run: it generates text, returns logits for texts or token ids, and predicts labels or scores."""

    @classmethod
    def of(cls, loaded: LoadedRun) -> Run:
        """Return a loaded run as a `Run`."""
        return cls(**vars(loaded))

    def __repr__(self) -> str:
        return f"<run {self.run_id}: {self.values.family}, {several(n_params(self.model.shape), 'parameter')}>"

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
        asked = {
            "max_new_tokens": max_new_tokens,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
        }
        writer = Writer(self, prompt, *chosen(self.values, asked, greedy), seed=seed)
        return "".join(writer.words(writer.tokens()))

    def logits(
        self, tokens: str | Sequence[int] | Sequence[Sequence[int]] | np.ndarray | Tensor
    ) -> Tensor:
        """Return logits [T, V] for a text or T token ids, [B, T, V] for B rows of ids.

        Raises:
            BadInput: a row has no tokens, or more than block_size.
        """
        if isinstance(tokens, str):
            tokens = self.tokenizer.encode(tokens)
        ids = torch.as_tensor(tokens).long()
        rows = ids if ids.dim() == 2 else ids[None]
        if not 0 < rows.shape[-1] <= self.values.block_size:
            allowed = f"1 to {self.values.block_size}, the run's block_size"
            raise BadInput(Problem(f"{several(rows.shape[-1], 'token')} in a row", allowed))
        return self.model.logits(rows).reshape(*ids.shape, -1)

    def predict(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """Return what `sweeplab predict` says of each text.

        A classifier gives the `label`, its `probability`, and the `probabilities` of all labels, the most probable
        first. A language model gives the `loss` in nats per token, `perplexity`, `bits_per_byte`, the text's
        `log_probability` and that of each of its `tokens`. A plug-in's objective has its own answer.

        Raises:
            BadInput: the run gives texts no probability, or its tokenizer cannot encode a text.
        """
        objective = objective_of(self.values)
        match objective.learns:
            case "text":
                return [self.likelihood(text, text) for text in texts]
            case "pairs":
                return [self.likelihood(text, *two_texts(text)) for text in texts]
            case "labels":
                return self._classify(texts)
            case _:
                return objective.predict(self, texts)

    def encoded(self, text: str) -> NDArray[Any]:
        """Return the tokens of a text.

        Raises:
            BadInput: it has none, or a character that the tokenizer does not know.
        """
        try:
            tokens = self.tokenizer.encode(text)
        except ValueError as error:
            raise BadInput(f"in the text, {error}") from error
        if not len(tokens):
            raise BadInput(f"the text {text!r} is empty")
        return tokens

    @torch.no_grad()
    def likelihood(self, text: str, first: str, second: str | None = None) -> dict[str, Any]:
        """Return how probable a text is, or the `second` given the first."""
        tokens = self.encoded(first)
        if second is not None:
            parts = [tokens, self.encoded(second)]
            pair = Pairs(np.concatenate(parts), np.cumsum([len(part) for part in parts]))
            PairsObjective.check("text", pair, self.values)
            batches = PairsObjective(pair, self.values, self.own_special).evaluation()
        else:
            batches = objective_of(self.values).likelihood(
                tokens, self.values, self.own_special
            )
        ids, probabilities = list[int](), list[float]()
        for batch in batches:
            placed = changed(batch, lambda part: torch.from_numpy(part)[None])
            logits = self.model.transformer.logits(self.model.stacked, placed)[0].double()
            targets = placed.targets.flatten()
            counted = targets != NO_TARGET
            of_targets = (
                logits[counted].log_softmax(dim=-1).gather(1, targets[counted, None])[:, 0]
            )
            ids += targets[counted].tolist()
            probabilities += of_targets.tolist()
        lengths = self.tokenizer.byte_lengths()
        n_bytes = sum(int(lengths[token]) for token in ids if token < len(lengths))
        total = math.fsum(probabilities)
        loss = -total / len(probabilities)
        return {
            "text": text,
            "loss": loss,
            "perplexity": math.exp(loss),
            "bits_per_byte": -total / math.log(2) / n_bytes,
            "log_probability": total,
            "tokens": [
                {"token": named(self, token), "id": token, "log_probability": probability}
                for token, probability in zip(ids, probabilities, strict=True)
            ],
        }

    def _classify(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        if not texts:
            return []
        # Each text gets a placeholder label, because the objective needs pairs; its value is not read.
        parts = [
            part for text in texts for part in (self.encoded(text), np.zeros(1, np.uint16))
        ]
        ends = np.cumsum([len(part) for part in parts])
        pairs = Pairs(np.concatenate(parts), ends, self.values.n_labels or 0, kind="labels")
        answers = list[dict[str, Any]]()
        for logits, batch in self.outputs(pairs):
            shares = logits[0].double().softmax(dim=-1)[batch.targets.flatten() != NO_TARGET]
            for row in shares.tolist():
                ranked = sorted(zip(self.labels, row, strict=True), key=lambda pair: -pair[1])
                label, probability = ranked[0]
                answers.append(
                    {
                        "text": texts[len(answers)],
                        "label": label,
                        "probability": probability,
                        "probabilities": dict(ranked),
                    }
                )
        return answers

    @torch.no_grad()
    def outputs(self, split: Pairs) -> Iterator[tuple[Tensor, Batch]]:
        """Yield each batch of a split's pairs, in their order, with the logits [1, N, V] of the candidates."""
        objective = make_objective(split, self.values, self.own_special)
        model = self.model.transformer
        evaluation = Evaluator(model, model.losses, objective, None)
        yield from evaluation.outputs(self.model.stacked, LossInputs((), None))


def two_texts(text: str) -> tuple[str, str]:
    """Return the texts before and after a tab.

    Raises:
        BadInput: there are no two.
    """
    first, _, second = text.partition("\t")
    if not first.strip() or not second.strip():
        raise BadInput(
            Problem(f"there are no two texts in {text!r}", "a tab between two texts")
        )
    return first, second
