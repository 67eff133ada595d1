"""The n-gram baseline of each objective: the loss that a model has to go below.

A baseline knows what a model of the objective knows and no more: it is judged on the very batches that the study's
runs are evaluated on, sees of each row what they see, and has counted the training split. Its order is chosen on the
last tenth of that split."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np

from sweeplab.data.batches import NO_TARGET, Batch
from sweeplab.data.dataset import Dataset, Scored
from sweeplab.data.generators import Noise, generator_key
from sweeplab.data.ngrams import NONE, Array, Examples, Ids, NGrams
from sweeplab.data.objectives import evaluated_on, make_objective, special_tokens
from sweeplab.data.objectives.base import Objective
from sweeplab.data.objectives.labels import Classification, Tagging
from sweeplab.data.objectives.pairs import FORMS, PairsObjective
from sweeplab.data.objectives.span import Span
from sweeplab.data.objectives.tokens import HIDDEN, REPLACED, Masked, NextToken
from sweeplab.data.prompts import BOS, MASK, label
from sweeplab.files import cache_folder, write_whole
from sweeplab.hyperparameters import Hyperparameters

LONGEST = 10  # the highest order that is tried
# Of a longer text the last so many tokens are counted: a model that is trained for minutes sees fewer.
MOST_COUNTED = 2**22
MOST_BATCHES = 2_000  # of pairs

Find = Callable[[Examples], Array]


class Task(ABC):
    """An objective as a counter sees it; `method` says so in a few words."""

    method: ClassVar[str]

    def __init__(self, train: Any, values: Hyperparameters) -> None:
        self.train, self.values = train, values
        self.special = special_tokens(values)
        self.vocab_size: int = values.vocab_size

    def examples(self) -> Examples:
        """Return what is counted of the training split: each token of the text with those before it."""
        text = self._text()
        return _at(slice(None), _before(text), text)

    @abstractmethod
    def probability(self, batch: Batch, find: Find) -> Array:
        """Return the probability of each counted target of a batch, in order, by what is found of examples."""

    def _text(self) -> Ids:
        """Return the running text that is counted, as one row."""
        return np.asarray(self.train[-MOST_COUNTED:]).astype(np.int64)[None]

    def _joined(self, of: Callable[[Batch], Examples]) -> Examples:
        """Return the examples of the first batches of the training split."""
        batches = islice(make_objective(self.train, self.values).evaluation(), MOST_BATCHES)
        contexts, tokens, copied = zip(*map(of, batches), strict=True)
        whole = None if copied[0] is None else np.concatenate(copied)
        return Examples([*map(np.concatenate, zip(*contexts, strict=True))], np.concatenate(tokens), whole)


def shifted(rows: Ids, by: int) -> Ids:
    """Return of each place what stands so many places before it in its row; after it where `by` is negative."""
    width = rows.shape[1]
    padded = np.pad(rows, ((0, 0), (max(by, 0), max(-by, 0))), constant_values=NONE)
    return padded[:, :width] if by > 0 else padded[:, -width:]


def _before(rows: Ids) -> list[Ids]:
    return [shifted(rows, by) for by in range(1, LONGEST)]


def _around(rows: Ids) -> list[Ids]:
    """Return a place's neighbors by their distance, one from each side."""
    return [shifted(rows, side * by) for by in range(1, LONGEST // 2 + 1) for side in (1, -1)]


def _at(places: Any, columns: list[Ids], tokens: Ids) -> Examples:
    return Examples([each[places].ravel() for each in columns], tokens[places].ravel())


@final
class NextTokenTask(Task):
    """The tokens before, as far as the row has them."""

    method = "n-grams"

    def probability(self, batch: Batch, find: Find) -> Array:
        """Return that of each next token."""
        rows = np.concatenate([batch.inputs, batch.targets[:, -1:]], axis=1)
        return find(_at((slice(None), slice(1, None)), _before(rows), rows))


@final
class MaskedTask(Task):
    """The neighbors on both sides as they are shown, and the token itself where it is not hidden."""

    method = "n-grams of both sides' neighbors"

    def examples(self) -> Examples:
        """Return each token of the text with its neighbors, of which as many are hidden as a model's are."""
        text, share = self._text(), self.values.mask_share
        noise = Noise(generator_key(0, "baseline"))
        fate = noise.integers(text.size, 2**31).reshape(text.shape) / 2**31 / share * 10
        others = noise.integers(text.size, self.special.n_ordinary).reshape(text.shape)
        shown = np.where(fate < HIDDEN, self.special[MASK], np.where(fate < HIDDEN + REPLACED, others, text))
        return _at(slice(None), _around(shown), text)

    def probability(self, batch: Batch, find: Find) -> Array:
        """Return that of each hidden token; of one that is shown, by Bayes' rule from how often one is kept."""
        chosen = batch.targets != NO_TARGET
        wanted = _at(chosen, _around(batch.inputs), batch.targets)
        found, shown = find(wanted), batch.inputs[chosen]
        is_shown = shown != self.special[MASK]
        as_shown = find(wanted._replace(tokens=np.where(is_shown, shown, wanted.tokens)))
        kept, replaced = 10 - HIDDEN - REPLACED, REPLACED / self.special.n_ordinary
        seen = found * (kept * (shown == wanted.tokens) + replaced) / (kept * as_shown + replaced)
        return np.where(is_shown, seen, found)


@final
class PairsTask(Task):
    """The target's tokens before, mixed with the tokens of the source; of what is found all at once, the places.

    Where the masks stand tells how far each is from the target's start and from its end.
    """

    method = "n-grams of targets, mixed with their sources' tokens"

    def examples(self) -> Examples:
        """Return each target's tokens, with those before and their shares of the source."""
        return self._joined(self._of)

    def probability(self, batch: Batch, find: Find) -> Array:
        """Return that of each token of the targets."""
        return find(self._of(batch))

    def _of(self, batch: Batch) -> Examples:
        chosen = batch.targets != NO_TARGET
        copied = self._copied(batch, chosen)
        if FORMS[self.values.family].is_ahead:
            begun = np.pad(np.where(chosen, batch.targets, NONE), ((0, 0), (1, 0)), constant_values=NONE)
            np.put_along_axis(begun, chosen.argmax(axis=1)[:, None], self.special[BOS], axis=1)
            columns = [each[:, 1:] for each in _before(begun)]
        else:
            from_start = np.cumsum(chosen, axis=1)
            columns = [from_start, from_start[:, -1:] - from_start]
            # What ends a target is seen to stand there, and nothing of the source is.
            copied = np.where(columns[1][chosen] == 0, 1.0, copied)
        return _at(chosen, columns, batch.targets)._replace(copied=copied)

    def _copied(self, batch: Batch, chosen: Any) -> Array:
        """Return which share of the source each target token has."""
        if batch.source is not None:
            source, lengths = batch.source, batch.source_lengths
        else:  # in the one sequence it stands before `bos`
            source, lengths = batch.inputs, (batch.inputs == self.special[BOS]).argmax(axis=1)
        n_source = np.full(len(source), source.shape[1]) if lengths is None else np.asarray(lengths)
        source = np.where(np.arange(source.shape[1]) < n_source[:, None], source, NONE)
        row, _ = np.nonzero(chosen)
        matches = (source[row] == batch.targets[chosen][:, None]).sum(axis=1)
        return np.asarray(matches / np.maximum(n_source[row], 1))


@final
class SpanTask(Task):
    """The text to the left of a span and what of it has been found; where a span ends, by what is left to find."""

    method = "n-grams of the text before"

    def probability(self, batch: Batch, find: Find) -> Array:
        """Return that of each hidden token, and of each span's end."""
        ends = self._is_marker(batch.targets)
        ending = span_ends(ends)
        text, order = self._filled(batch)
        tokens = find(_at(slice(None), _before(text), text)).reshape(text.shape)
        found = np.take_along_axis(tokens, np.argsort(order, axis=1), axis=1)[:, -ends.shape[1] :]
        return np.where(ends, ending, (1 - ending) * found).ravel()

    def _is_marker(self, tokens: Ids) -> Any:
        return tokens >= self.special.n_ordinary

    def _filled(self, batch: Batch) -> tuple[Ids, Ids]:
        """Return source and target as one text, and from where each token of it was taken.

        Sentinels come last, where nothing is before or after them that counts.
        """
        source: Any = batch.source
        parts: list[Ids] = [source, batch.targets]
        both = np.concatenate(parts, axis=1)
        is_text = ~self._is_marker(both)
        n_spans = [np.cumsum(self._is_marker(part), axis=1) for part in parts]
        segment = np.concatenate([2 * n_spans[0], 2 * n_spans[1] - 1], axis=1)
        order = np.argsort(np.where(is_text, segment, segment.max() + 1), axis=1, kind="stable")
        return np.take_along_axis(np.where(is_text, both, NONE), order, axis=1), order


def span_ends(markers: Any) -> Array:
    """Return the chance of a marker (a sentinel, or the end) at each place of targets, by where markers stand [B, T].

    Every window hides as many tokens in as many spans, and every way to share them out is as likely: of n tokens that
    are left to find and k spans to come, k / n of the ways end the span here.
    """
    n_markers, n_tokens = (np.cumsum(each[:, ::-1], axis=1)[:, ::-1] for each in (markers, ~markers))
    ending = np.where(n_tokens == 0, 1.0, (n_markers - 1) / np.maximum(n_tokens, 1))
    # A target begins with a marker, and no span is empty.
    return np.choose(shifted(markers.astype(np.int64), 1) + 1, [1.0, ending, 0.0])


class LabelsTask(Task):
    """How often each label is, whatever the text."""

    method = "how often each label is"

    def __init__(self, train: Any, values: Hyperparameters) -> None:
        super().__init__(train, values)
        self.vocab_size = values.n_labels or train.n_labels

    def examples(self) -> Examples:
        """Return the labels of the training split, with nothing around them."""
        return Examples([], self.train.tokens[self.train.starts[:, 1]].astype(np.int64))

    def probability(self, batch: Batch, find: Find) -> Array:
        """Return that of each text's label."""
        return find(Examples([], batch.targets[batch.targets != NO_TARGET] - self.special[label(0)]))


@final
class TagsTask(LabelsTask):
    """How often each label is at a token, and after those before it."""

    method = "n-grams of tokens and their tags"

    def examples(self) -> Examples:
        """Return the tags of the training split, each with its token and those before it."""
        return self._joined(self._of)

    def probability(self, batch: Batch, find: Find) -> Array:
        """Return that of each tag."""
        return find(self._of(batch))

    def _of(self, batch: Batch) -> Examples:
        columns = [batch.inputs, *_before(batch.inputs)[: LONGEST - 2]]
        return _at(batch.targets != NO_TARGET, columns, batch.targets - self.special[label(0)])


TASKS: dict[str, type[Task]] = {
    NextToken.name: NextTokenTask,
    Masked.name: MaskedTask,
    PairsObjective.name: PairsTask,
    Span.name: SpanTask,
    Classification.name: LabelsTask,
    Tagging.name: TagsTask,
}


FORMAT = 6  # part of every digest: raise it when the same data would give another loss
HELD_OUT = 10  # of so many parts of the training split the last one chooses
ROUNDS = 20


@dataclass(frozen=True)
class Baseline:
    """The loss of counts (in its `unit`, and bits a byte, None of labels).

    `method` says of what, `order` how far they reach. `by_order` has the losses of the orders from 1 to `order`,
    `copied` is the weight of the source's own tokens in the mixture, and `n_counted` how many tokens were counted.
    """

    loss: float
    bits_per_byte: float | None
    method: str
    order: int
    copied: float
    n_counted: int
    by_order: Sequence[float]
    unit: str = Objective.unit


def find_baseline(
    dataset: Dataset, values: Hyperparameters, cache: Path | None = None, split: Scored = "val"
) -> Baseline | None:
    """Return the baseline of a run's objective, from the cache if it has it; None where there is none for it."""
    if values.objective not in TASKS:
        return None
    deciding = [FORMAT, split, dataset.token_digest, *evaluated_on(values)]
    deciding += [] if values.data_limit is None else [values.data_limit]
    digest = hashlib.sha256(json.dumps(deciding).encode()).hexdigest()[:32]
    file = (cache or cache_folder()) / f"{digest}.baseline"
    try:
        return Baseline(**json.loads(file.read_text("utf-8")))
    except (OSError, ValueError, TypeError):  # not there, or not whole
        found = _found(dataset, values, split)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(asdict(found)).encode())
        return found


def _found(dataset: Dataset, values: Hyperparameters, split: Scored) -> Baseline:
    task = TASKS[values.objective](dataset.training(values), values)
    examples = task.examples()
    n_seen = len(examples.tokens) - max(1, len(examples.tokens) // HELD_OUT)
    order, copied = _chosen(examples.part(slice(n_seen)), examples.part(slice(n_seen, None)), task)
    ngrams = NGrams(examples._replace(contexts=examples.contexts[: order - 1]), task.vocab_size)

    objective = make_objective(dataset.scored(split), values)
    totals, n_targets = np.zeros(order), 0
    for batch in objective.evaluation(values.evaluated_tokens):
        for at in range(order):

            def find(wanted: Examples, at: int = at) -> Array:
                found = next(islice(ngrams.probabilities(wanted), at, None))
                return _mixed(found, copied, wanted.copied)

            totals[at] -= float(np.log(task.probability(batch, find)).sum())
        n_targets += batch.n_targets
    losses = (totals / n_targets).tolist()
    per_byte = dataset.bits_per_byte(losses[-1], values, split)
    counted = len(examples.tokens)
    return Baseline(losses[-1], per_byte, task.method, order, copied, counted, losses, objective.unit)


def _chosen(seen: Examples, held_out: Examples, task: Task) -> tuple[int, float]:
    """Return the order, and the weight of what may be copied, that suit what was held out best."""
    by_order = list(NGrams(seen, task.vocab_size).probabilities(held_out))
    weights = [_weight(each, held_out.copied) for each in by_order]
    mixed = (_mixed(each, weight, held_out.copied) for each, weight in zip(by_order, weights, strict=True))
    best = int(np.argmax([np.log(each).mean() for each in mixed]))
    return best + 1, weights[best]


def _mixed(counted: Array, weight: float, copied: Array | None) -> Array:
    return counted if copied is None else (1 - weight) * counted + weight * copied


def _weight(counted: Array, copied: Array | None) -> float:
    """Return the weight of what may be copied at which both explain the tokens best, by expectation maximization."""
    if copied is None:
        return 0.0
    weight = 0.5
    for _ in range(ROUNDS):
        weight = float(np.mean(weight * copied / _mixed(counted, weight, copied)))
    return weight
