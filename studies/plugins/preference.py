"""Preferences between two answers to a prompt: direct preference optimization (Rafailov et al. 2023).

A trained run, given by `init_from`, learns which of two answers is chosen. Sequences are those of pairs; a batch has
the chosen and the rejected answer of each prompt in turn. A line of a file has a prompt and both answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.nn import functional as F

from sweeplab.data.batches import NO_TARGET, Batch, Ids, RandomStream
from sweeplab.data.corpora import Pair, Targets
from sweeplab.data.objectives import PairsObjective
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.plugins import hyperparameter, metric, objective, pairs

hyperparameter(
    "beta",
    0.1,
    "DPO's beta: how strongly a run is kept close to the model it starts from",
    above=0.0,
    suggested={"min": 0.01, "max": 1.0, "log": True},
)


@pairs(
    "preferences",
    "Your prompts, each with a chosen and a rejected answer",
    ("prompt", "chosen", "rejected"),
    targets=Targets(per_source=2),
)
def preferences(prompt: str, chosen: str, rejected: str) -> list[Pair]:
    """Return two pairs: the prompt with each of the two answers."""
    if chosen == rejected:
        raise ValueError("has the same answer as chosen and rejected")
    return [Pair(prompt, answer, group=prompt) for answer in (chosen, rejected)]


@objective
@final
class Preference(PairsObjective):
    """A trained model learns to prefer the chosen of two answers to a prompt to the rejected one.

    The loss is in nats, log 2 at the start. `label_smoothing` is the share of preferences assumed to be swapped
    (Mitchell 2023, conservative DPO).
    """

    name = "preference"
    meaning = (
        "Which of two answers to a prompt is chosen, by direct preference optimization (DPO)"
    )
    families = ("decoder", "encoder_decoder")
    learns = "preferences"
    unit = "nats/pair"
    per_loss = 2
    finds_whole = False
    hyperparameters: ClassVar[tuple[str, ...]] = ("beta",)
    reads_start = True

    @classmethod
    def task(cls, values: Hyperparameters) -> str:
        """Describe the task."""
        return "which of two answers to a prompt is chosen"

    @classmethod
    def predict(cls, run: Any, texts: Sequence[str]) -> list[dict[str, Any]]:
        """Return how probable an answer is after a prompt; a tab is between the two."""
        from sweeplab.runs.run import two_texts

        return [run.likelihood(text, *two_texts(text)) for text in texts]

    def _batch(self, items: Ids, random: RandomStream) -> Batch:
        rows = (items[:, None] * 2 + [0, 1]).ravel()
        return super()._batch(rows, random)._replace(reference=rows)

    def at_start(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return each answer's log-probability."""
        return log_probabilities(logits, batch.targets)

    def loss(
        self, logits: Tensor, batch: Batch, smoothing: Tensor | None, *own: Tensor
    ) -> Tensor:
        """Return the mean of -log sigmoid(margin) (eq. 7)."""
        return losses(margins(logits, batch, *own), smoothing).mean(dim=1)

    def measures(
        self, outputs: Iterator[tuple[Tensor, Batch]], *own: Tensor
    ) -> dict[str, Tensor]:
        """Return the mean loss, the share of preferences ranked correctly, the mean reward margin, and two log-ratios.

        Equal rewards, as at the start of every run, count as half correct. The log-ratios say how much more probable
        than at the start the chosen and the rejected answers are, in nats an answer. A margin may grow while both
        fall: a chosen answer's far below 0 shows a model that is damaged (Pal et al. 2024, DPO-Positive).
        """
        (beta,) = own
        rewards = torch.cat(
            [rewards_of(logits, batch, beta).double() for logits, batch in outputs], dim=1
        )
        chosen, rejected = rewards[:, 0::2], rewards[:, 1::2]
        return {
            "val_loss": losses(chosen - rejected).mean(dim=1),
            "reward_accuracy": ((chosen - rejected).sign() + 1).mean(dim=1) / 2,
            "reward_margin": (chosen - rejected).mean(dim=1),
            "chosen_log_ratio": chosen.mean(dim=1) / beta,
            "rejected_log_ratio": rejected.mean(dim=1) / beta,
        }


@metric("kept_loss")
def kept_loss(model: Any, batches: Any, record: Any) -> float:
    """Return the loss, plus what chosen answers have lost in probability since the start, in nats an answer."""
    return float(record.val_loss) + max(0.0, -record.measures.get("chosen_log_ratio", 0.0))


def log_probabilities(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the sum of the log-probabilities of each sequence's targets [K, B], from logits [K, B*T, V]."""
    rows = logits.flatten(0, 1)
    shares = (rows if rows.dtype == torch.float64 else rows.float()).log_softmax(dim=-1)
    each = F.nll_loss(shares, targets.reshape(-1), reduction="none", ignore_index=NO_TARGET)
    return -each.view(targets.shape).sum(dim=2)


def rewards_of(logits: Tensor, batch: Batch, beta: Tensor) -> Tensor:
    """Return the reward of each answer, chosen and rejected in turn [K, B].

    It is beta times the increase of an answer's log-probability over the run's initial weights (eq. 5).
    """
    return beta[:, None] * (log_probabilities(logits, batch.targets) - batch.reference)


def margins(logits: Tensor, batch: Batch, beta: Tensor) -> Tensor:
    """Return the reward of each chosen answer minus that of its rejected answer, the next sequence [K, B/2]."""
    rewards = rewards_of(logits, batch, beta)
    return rewards[:, 0::2] - rewards[:, 1::2]


def losses(margins: Tensor, smoothing: Tensor | None = None) -> Tensor:
    """Return the negative log-likelihoods of the choices under a Bradley-Terry model with these rewards."""
    found = -F.logsigmoid(margins)
    return found if smoothing is None else found + smoothing[:, None] * margins
