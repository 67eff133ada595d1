"""A tag for each word of a sentence, such as parts of speech or names, learned by an encoder.

The encoder reads `bos text eos` and predicts a word's tag at the word's first token, like BERT (Devlin et al. 2019,
section 5.3); the other tokens have no target. Files are .jsonl with lists of `tokens` and `tags`, or a .conll, in which
each line begins with a token and ends with its tag, and an empty line follows each sentence.

Where every tag is `O`, or B-, I-, E- or S- (or L- or U-) and a type, tags form spans, such as names. A span is then
found if its type and both its ends are (as conlleval of the CoNLL tasks counts them).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from sweeplab.data.batches import NO_TARGET, Batch, Ids, Pairs, RandomStream
from sweeplab.data.corpora import Pair, Targets
from sweeplab.data.formats import Format, Row, document
from sweeplab.data.objectives import Classification
from sweeplab.data.objectives.base import label
from sweeplab.errors import BadInput
from sweeplab.plugins import objective, pairs
from sweeplab.train.evaluating import label_measures

KEYS = ("tokens", "tags")
NO_TAG = 2**16 - 1  # the tag of a token that has none
# The places of a tag in a span; L and U are other names of E and S.
PLACES = {"O": 0, "B": 1, "I": 2, "E": 3, "S": 4, "L": 3, "U": 4}
OUTSIDE, BEGIN, _, END, SINGLE = range(5)
N_TYPES = 1024
DOCUMENT = "-DOCSTART-"  # begins a document in the files of the CoNLL tasks


def word_encoder(tokenizer: Any) -> Callable[[Sequence[str]], tuple[Ids, list[int]]]:
    """Return a function that encodes words separated by spaces: it returns their tokens, and each word's first index.

    Each word is encoded alone, so its tokens do not depend on its neighbors; only the first word of a text has no space
    before it. The function raises ValueError if a character, or a whole word, has no token.
    """

    @cache
    def encode_word(word: str, is_first: bool) -> tuple[Ids, int]:
        own = np.asarray(tokenizer.encode(word)).astype(np.int64)
        if not len(own):
            raise ValueError(f"{word!r} has no token")
        if is_first:
            return own, 0
        # If the space before a word has tokens of its own, the word starts after them.
        space = np.asarray(tokenizer.encode(" ")).astype(np.int64)
        whole = np.asarray(tokenizer.encode(f" {word}")).astype(np.int64)
        return whole, len(space) if np.array_equal(whole, np.append(space, own)) else 0

    def encode(words: Sequence[str]) -> tuple[Ids, list[int]]:
        parts = [encode_word(word, at == 0) for at, word in enumerate(words)]
        starts = np.cumsum([0, *(len(tokens) for tokens, _ in parts)])[:-1]
        first = [
            int(start) + n_before for start, (_, n_before) in zip(starts, parts, strict=True)
        ]
        return np.concatenate([np.empty(0, np.int64), *(tokens for tokens, _ in parts)]), first

    return encode


def encode(
    tokenizer: Any, sentence: str, tags: str, numbers: Mapping[str, int]
) -> tuple[Ids, Ids]:
    """Return the tokens of a sentence, and for each the number of its tag, or NO_TAG, followed by the tags' codes."""
    tokens, places = word_encoder(tokenizer)(sentence.split())
    numbered = np.full(len(tokens), NO_TAG)
    numbered[places] = [numbers[tag] for tag in tags.split()]
    return tokens, np.append(numbered, span_codes(tuple(numbers)))


@cache
def span_codes(names: Sequence[str]) -> Ids:
    """Return the place and the number of the type of each tag as one number; nothing if the tags form no spans."""
    parts = [name.partition("-") for name in names]
    if not all(place in PLACES and (place == "O") == (not kind) for place, _, kind in parts):
        return np.empty(0, np.int64)
    kinds = sorted({kind for _, _, kind in parts})
    return np.array([PLACES[place] * N_TYPES + kinds.index(kind) for place, _, kind in parts])


def spans(codes: Iterable[int]) -> set[tuple[int, int, int]]:
    """Return the spans that tags form, by their codes: first tag, end and type."""
    found, start, last = set[tuple[int, int, int]](), 0, (OUTSIDE, 0)
    for at, code in enumerate([*codes, OUTSIDE]):
        place, kind = divmod(code, N_TYPES)
        is_new = place in (BEGIN, SINGLE) or last[0] in (END, SINGLE) or kind != last[1]
        if last[0] != OUTSIDE and (is_new or place == OUTSIDE):
            found.add((start, at, last[1]))
        if is_new or last[0] == OUTSIDE:
            start = at
        last = place, kind
    return found


def sentences(file: Path, encoding: str) -> Iterator[Row]:
    """Yield the sentences of a file whose lines start with a token and end with its tag."""
    rows: list[list[str]] = []
    for number, line in enumerate([*document(file, encoding).split("\n"), ""], start=1):
        row = line.split()
        if len(row) == 1 and row[0] != DOCUMENT:
            allowed = "a token and its tag, an empty line between sentences"
            yield Row(number, {}, f"has no tag beside {row[0]!r}; allowed: {allowed}")
        elif row and row[0] != DOCUMENT:
            rows.append(row)
        elif rows:
            words, tags = [each[0] for each in rows], [each[-1] for each in rows]
            yield Row(number - len(rows), {"tokens": words, "tags": tags})
            rows = []


@pairs(
    "tags",
    "Your sentences with a tag for each token",
    KEYS,
    (".jsonl", ".conll"),
    targets=Targets(encode, labels=str.split, text=lambda tags: ""),
    formats=[Format("conll", (".conll",), sentences)],
    are_texts=False,
)
def tags(tokens: Any, tags: Any) -> list[Pair]:
    """Return a sentence and its tags, each joined by spaces."""
    for key, words in zip(KEYS, (tokens, tags), strict=True):
        if (
            not isinstance(words, list)
            or not words
            or not all(isinstance(each, str) for each in words)
        ):
            raise ValueError(f"has {key} that are not a list of strings")
        if odd := next((each for each in words if len(each.split()) != 1), None):
            raise ValueError(f"has {odd!r} among its {key}; allowed: strings without spaces")
        if "" in words:
            raise ValueError(f"has an empty string among its {key}")
    if len(tokens) != len(tags):
        raise ValueError(
            f"has {len(tokens)} tokens and {len(tags)} tags; allowed: a tag for each token"
        )
    sentence = " ".join(tokens)
    return [Pair(sentence, " ".join(tags), group=sentence)]


@objective
@final
class Tagging(Classification):
    """The targets are the labels of a text's words; loss, accuracy and F1 are those of classification."""

    name = "tagging"
    meaning = "The label of each word of a text, from all of it"
    families = ("encoder",)
    learns = "tags"
    unit = "nats/tag"

    @classmethod
    def predict(cls, run: Any, texts: Sequence[str]) -> list[dict[str, Any]]:
        """Return the `words` of each text, each with its label and the label's probability.

        A word beyond block_size has none.
        """
        parts = []
        for text in texts:
            try:
                tokens, places = word_encoder(run.tokenizer)(text.split())
            except ValueError as error:
                raise BadInput(f"in the text, {error}") from error
            # Placeholders, as the values of tags are not read.
            parts += [tokens, np.where(np.isin(np.arange(len(tokens)), places), 0, NO_TAG)]
        ends = np.cumsum([len(part) for part in parts])
        split = Pairs(
            np.concatenate(parts).astype(np.uint16), ends, len(run.labels), kind=cls.learns
        )
        rows: list[list[tuple[str, float]]] = []
        for logits, batch in run.outputs(split):
            shares = logits[0].double().softmax(dim=-1).view(*batch.targets.shape[1:], -1)
            for text_shares, targets in zip(shares, batch.targets[0], strict=True):
                best = text_shares[targets != NO_TARGET].max(dim=-1)
                names = [run.labels[at] for at in best.indices.tolist()]
                rows.append([*zip(names, best.values.tolist(), strict=True)])
        return [
            {
                "text": text,
                "words": [
                    {"word": word, "label": label, "probability": probability}
                    for word, (label, probability) in zip_longest(
                        text.split(), row, fillvalue=(None, None)
                    )
                ],
            }
            for text, row in zip(texts, rows, strict=True)
        ]

    def _load(self, split: Any) -> int:
        n_pairs = super()._load(split)
        self._tag_starts = split.starts[:, 1]
        length, n_numbers = split.lengths[0]
        self._codes = self._tokens[
            split.ends[1] - (n_numbers - length) : split.ends[1]
        ].tolist()
        self._n_tagged = int(np.count_nonzero(self._tags(np.arange(n_pairs)) != NO_TARGET))
        return n_pairs

    def evaluation(self, n_tokens: int | None = None) -> Iterator[Batch]:
        """Yield texts with about `n_tokens` tags, evenly spread over the split; or all texts."""
        n_texts = (
            None
            if n_tokens is None
            else max(1, round(n_tokens * self._n_items / self._n_tagged))
        )
        return super().evaluation(n_texts)

    def measures(
        self, outputs: Iterator[tuple[Tensor, Batch]], *own: Tensor
    ) -> dict[str, Tensor]:
        """Return loss, accuracy and F1 of single tags; where tags form spans, also the micro F1 of the spans found."""
        both = [*outputs]
        measured = label_measures(both, self.n_candidates)
        if self._codes:
            counts = torch.tensor(sum(self._counts(*output) for output in both))
            measured["span_f1"] = 2 * counts[:, 0].double() / counts[:, 1].clamp(min=1)
        return measured

    def _counts(self, logits: Tensor, batch: Batch) -> Ids:
        """Return for each run how many true spans of a batch are found, and how many are true or predicted [K, 2]."""
        codes, counts = np.array(self._codes), []
        best = logits.argmax(dim=-1).view(batch.targets.shape).cpu().numpy()
        for of_run, targets_of_run in zip(best, batch.targets.cpu().numpy(), strict=True):
            n_found = n_spans = 0
            for row, targets in zip(of_run, targets_of_run, strict=True):
                is_tag = targets != NO_TARGET
                predicted, true = (
                    spans(codes[tags[is_tag]].tolist()) for tags in (row, targets)
                )
                n_found, n_spans = (
                    n_found + len(predicted & true),
                    n_spans + len(predicted) + len(true),
                )
            counts.append((n_found, n_spans))
        return np.array(counts)

    def _tags(self, items: Ids) -> Ids:
        """Return the token id of each position's label [B, width], NO_TARGET where there is none."""
        position = np.arange(self._width)
        tags = self._tokens.take(
            self._tag_starts[items][:, None] + position, mode="clip"
        ).astype(np.int64)
        is_tag = (position < self._lengths[items][:, None]) & (tags != NO_TAG)
        return np.where(is_tag, self.special[label(0)] + tags, NO_TARGET)

    def _batch(self, items: Ids, random: RandomStream) -> Batch:
        batch = super()._batch(items, random)
        targets = np.pad(self._tags(items), ((0, 0), (1, 1)), constant_values=NO_TARGET)
        return batch._replace(targets=targets)
