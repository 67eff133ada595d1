"""Extractive question answering: where in a context the answer to a question begins and ends, learned by an encoder.

The encoder reads `bos question eos context eos`. Two tokens, `start` and `end`, have a logit at each token of the
context; a softmax over these places gives the probability of each end of the answer (Devlin et al. 2019, section 4.2).
The answer is the span from a start to a later or equal end of which both together are most probable. An answer that
begins or ends inside a token is widened to whole tokens. block_size must hold every question with its context.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from sweeplab.data.batches import NO_TARGET, Batch, Ids, Pairs, RandomStream
from sweeplab.data.corpora import Pair, Targets
from sweeplab.data.objectives import Classification
from sweeplab.data.objectives.base import BOS, EOS, PAD
from sweeplab.errors import BadInput, Problem
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.plugins import objective, pairs

ENDS = ("start", "end")  # the tokens of which the logits say where an answer begins and ends
N_SPECIAL = 3  # bos, and an eos after either text


def n_same(one: Ids, other: Ids) -> int:
    """Return with how many equal tokens two texts begin."""
    length = min(len(one), len(other))
    differs = np.flatnonzero(one[:length] != other[:length])
    return int(np.append(differs, length)[0])


def encode(
    tokenizer: Any, source: str, target: str, numbers: Mapping[str, int]
) -> tuple[Ids, Ids]:
    """Return the tokens of the question, and those of the context followed by the first and the last of the answer."""
    question, _, context = source.partition("\t")
    start, end = target.split()

    def tokens_of(text: str) -> Ids:
        return np.asarray(tokenizer.encode(text)).astype(np.int64)

    tokens = tokens_of(context)
    first = n_same(tokens, tokens_of(context[: int(start)]))
    last = len(tokens) - 1 - n_same(tokens[::-1], tokens_of(context[int(end) :])[::-1])
    return tokens_of(question), np.append(tokens, [first, max(first, last)])


@pairs(
    "questions",
    "Your questions, each with a context that has its answer",
    ("question", "context", "answer", "answer_start"),
    targets=Targets(encode, text=lambda target: ""),
)
def questions(question: str, context: str, answer: str, answer_start: str) -> list[Pair]:
    """Return question, tab and context as source; the target is where the answer starts and ends."""
    if "\t" in question:
        raise ValueError("has a tab in its question; allowed: spaces")
    if not answer_start.isdecimal() or not context[int(answer_start) :].startswith(answer):
        allowed = f"the number of characters before {answer!r} in its context"
        raise ValueError(f"has {answer_start!r} as its answer_start; allowed: {allowed}")
    start = int(answer_start)
    return [Pair(f"{question}\t{context}", f"{start} {start + len(answer)}", group=context)]


@objective
@final
class Answers(Classification):
    """The targets are the first and the last token of the answer, each among all tokens of the context."""

    name = "answers"
    meaning = "The answer to a question, as a part of a context that has it"
    families = ("encoder",)
    learns = "questions"
    unit = "nats/answer"
    shortest_block = N_SPECIAL + 2
    special_tokens = (PAD, BOS, EOS, *ENDS)
    no_prompt = "the run finds answers and generates no text: `sweeplab predict RUN TEXT`"

    @classmethod
    def special_names(cls, values: Hyperparameters) -> tuple[str, ...]:
        """Return the tokens around the texts, and those whose logits are of the answer's ends."""
        return cls.special_tokens

    @classmethod
    def task(cls, values: Hyperparameters) -> str:
        """Describe the task."""
        return cls.meaning.lower()

    @classmethod
    def share_cut(cls, split: Pairs, values: Hyperparameters) -> float:
        """Return 0: no text is cut."""
        return 0.0

    @classmethod
    def check(cls, name: str, split: Pairs, values: Hyperparameters) -> None:
        """Refuse a block_size without room for the longest question and context."""
        needed = int(split.lengths.sum(axis=1).max()) - len(ENDS) + N_SPECIAL
        if values.block_size < needed:
            what = f"block_size {values.block_size} is too short for a question and its context in the {name} split"
            raise BadInput(Problem(what, allowed=f"at least {needed}"))

    @classmethod
    def predict(cls, run: Any, texts: Sequence[str]) -> list[dict[str, Any]]:
        """Return the answer to a question, and its probability; a tab is between question and context."""
        from sweeplab.runs.run import two_texts

        both = [two_texts(text) for text in texts]
        none = np.zeros(len(ENDS), np.uint16)
        parts = [
            part
            for two in both
            for part in (run.encoded(two[0]), np.append(run.encoded(two[1]), none))
        ]
        ends = np.cumsum([len(part) for part in parts])
        split = Pairs(np.concatenate(parts).astype(np.uint16), ends, kind=cls.learns)
        cls.check("given", split, run.values)
        rows: list[dict[str, Any]] = []
        for logits, batch in run.outputs(split):
            shares = log_shares(logits.double(), batch)[0]
            for share, tokens, (first, last) in zip(
                shares, batch.inputs[0], best_spans(shares), strict=True
            ):
                question, _ = both[len(rows)]
                answer = run.tokenizer.decode(tokens[first : last + 1].numpy()).strip()
                probability = float((share[first, 0] + share[last, 1]).exp())
                rows.append(
                    {"question": question, "answer": answer, "probability": probability}
                )
        return rows

    @property
    def n_candidates(self) -> int:
        """Return 2: the last ids have the logits of the answer's ends."""
        return len(ENDS)

    def n_losses(self, batch: Batch) -> Any:
        """Return the number of questions."""
        return batch.targets.shape[-2]

    def loss(
        self, logits: Tensor, batch: Batch, smoothing: Tensor | None, *own: Tensor
    ) -> Tensor:
        """Return the mean over questions of the cross-entropies of both ends."""
        return losses(log_shares(logits, batch), batch).mean(dim=1)

    def measures(
        self, outputs: Iterator[tuple[Tensor, Batch]], *own: Tensor
    ) -> dict[str, Tensor]:
        """Return the loss, the share of answers found exactly, and the mean F1 of found and true answers' tokens.

        Departure from SQuAD (Rajpurkar et al. 2016): tokens count by their places, not by their text, so an equal text
        elsewhere in the context is no match, and letter case, articles and punctuation count.
        """
        found: dict[str, list[Tensor]] = {"val_loss": [], "exact_match": [], "f1": []}
        for logits, batch in outputs:
            shares, (first, last) = log_shares(logits, batch), batch.reference.unbind(dim=-1)
            spans = best_spans(shares.flatten(0, 1)).view_as(batch.reference)
            starts, ends = spans.unbind(dim=-1)
            common = (torch.minimum(ends, last) - torch.maximum(starts, first) + 1).clamp(min=0)
            found["val_loss"].append(losses(shares, batch))
            found["exact_match"].append((spans == batch.reference).all(dim=-1))
            found["f1"].append(2 * common / (ends - starts + last - first + 2))
        return {
            name: torch.cat(parts, dim=1).double().mean(dim=1) for name, parts in found.items()
        }

    def _load(self, split: Any) -> int:
        self._tokens, self._starts = np.asarray(split.tokens), split.starts
        self._both = split.lengths - [0, len(ENDS)]
        ends = self._tokens[split.ends[1::2, None] - len(ENDS) + np.arange(len(ENDS))].astype(
            np.int64
        )
        self._answers = ends + self._both[:, :1] + 2  # places in the sequence
        self._lengths = self._both[:, 0]
        self._width = int(self._both.sum(axis=1).max()) + 1
        return int(split.n_pairs)

    def _batch(self, items: Ids, random: RandomStream) -> Batch:
        first, second = self._both[items].T[:, :, None]
        first_start, second_start = self._starts[items].T[:, :, None]
        position, end = np.arange(self._width + 2), first + second + 2
        in_second = position - first - 2
        index = np.where(
            position <= first, first_start + position - 1, second_start + in_second
        )
        inputs = self._tokens.take(index, mode="clip").astype(np.int64)
        inputs = np.where(
            (position == first + 1) | (position == end), self.special[EOS], inputs
        )
        inputs = np.where(position > end, self.special[PAD], inputs)
        inputs[:, 0] = self.special[BOS]
        in_context = (in_second >= 0) & (position < end)
        targets = np.where(in_context, self.special[ENDS[0]], NO_TARGET)
        return Batch(inputs, targets, lengths=end[:, 0] + 1, reference=self._answers[items])


def log_shares(logits: Tensor, batch: Batch) -> Tensor:
    """Return the log-probability of each place as the start and as the end of the answer [K, B, T, 2]."""
    found = logits if logits.dtype == torch.float64 else logits.float()
    found = found.view(*batch.targets.shape, len(ENDS))
    smallest = torch.finfo(found.dtype).min
    return found.masked_fill((batch.targets == NO_TARGET)[..., None], smallest).log_softmax(
        dim=2
    )


def losses(shares: Tensor, batch: Batch) -> Tensor:
    """Return the negative log-probability of each answer [K, B]."""
    return -shares.gather(2, batch.reference[:, :, None].long()).sum(dim=(2, 3))


def best_spans(shares: Tensor) -> Tensor:
    """Return the most probable first and last token of each answer [n, 2], from log-probabilities [n, T, 2]."""
    length = shares.shape[1]
    both = shares[:, :, None, 0] + shares[:, None, :, 1]
    is_before = torch.ones(length, length, dtype=torch.bool, device=shares.device).tril(-1)
    best = both.masked_fill(is_before, -torch.inf).flatten(1).argmax(dim=1)
    return torch.stack([best // length, best % length], dim=1)
