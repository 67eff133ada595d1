"""What counting alone makes of an objective, without any network: the loss that a model has to go below.

A baseline knows what a model of the objective knows and no more: it is judged on the very batches that the study's
runs are evaluated on, sees of each row what they see, and has counted the training split. Its order is chosen on the
last tenth of that split.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from sweeplab.data.baselines.ngrams import Array, Examples, NGrams
from sweeplab.data.baselines.tasks import TASKS, Task
from sweeplab.data.batches import Batch
from sweeplab.data.cache import cache_folder
from sweeplab.data.dataset import Dataset
from sweeplab.data.objectives import SETTINGS, make_objective
from sweeplab.data.objectives.base import Values
from sweeplab.files import write_whole

FORMAT = 2  # part of every digest: raise it when the same data would give another loss
HELD_OUT = 10  # of so many parts of the training split the last one chooses
ROUNDS = 20
# What decides which targets there are, and on which of them runs are evaluated.
DECIDING = (*SETTINGS, "vocab_size", "batch_size", "eval_iters", "eval_full")


@dataclass(frozen=True)
class Baseline:
    """The loss of counts (nats a counted target, and bits a byte): `method` says of what, `order` how far they reach.

    `copied` is the weight of the source's own tokens in the mixture, and `n_counted` how many tokens were counted.
    """

    loss: float
    bits_per_byte: float
    method: str
    order: int
    copied: float
    n_counted: int


def find_baseline(dataset: Dataset, values: Values, cache: Path | None = None) -> Baseline | None:
    """Return the baseline of a run's objective, from the cache if it has it; None where there is none for it."""
    if values["objective"] not in TASKS:
        return None
    deciding = [FORMAT, dataset.token_digest, *(values[name] for name in DECIDING)]
    digest = hashlib.sha256(json.dumps(deciding).encode()).hexdigest()[:32]
    file = (cache or cache_folder()) / f"{digest}.baseline"
    try:
        return Baseline(**json.loads(file.read_text("utf-8")))
    except (OSError, ValueError, TypeError):  # not there, or not whole
        found = _found(dataset, values)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(asdict(found)).encode())
        return found


def _found(dataset: Dataset, values: Values) -> Baseline:
    task = TASKS[values["objective"]](dataset.train, values)
    examples = task.examples()
    n_seen = len(examples.tokens) - max(1, len(examples.tokens) // HELD_OUT)
    order, copied = _chosen(examples.part(slice(n_seen)), examples.part(slice(n_seen, None)), task)
    ngrams = NGrams(examples._replace(contexts=examples.contexts[: order - 1]), task.vocab_size)

    def find(wanted: Examples) -> Array:
        (*_, found) = ngrams.probabilities(wanted)
        return _mixed(found, copied, wanted.copied)

    total, n_targets = 0.0, 0
    for batch in _evaluated(dataset, values):
        total -= float(np.log(task.probability(batch, find)).sum())
        n_targets += batch.n_targets
    loss = total / n_targets
    per_byte = dataset.bits_per_byte(loss, values)
    return Baseline(loss, per_byte, task.method, order, copied, len(examples.tokens))


def _evaluated(dataset: Dataset, values: Values) -> Iterator[Batch]:
    objective = make_objective(dataset.val, values)
    return objective.whole() if values["eval_full"] else objective.evaluation(values["eval_iters"])


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
