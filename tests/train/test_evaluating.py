"""What evaluations find besides the loss, against plain loops."""

import numpy as np
from trained import begun

from sweeplab.data.batches import NO_TARGET
from sweeplab.data.objectives import make_objective


def test_a_checkpoint_scores_the_same_whatever_batch_size_and_accumulation(values_of, tokens):
    found = set()
    for batching in (
        {"batch_size": 4},
        {"batch_size": 32},
        {"batch_size": 24, "grad_accum": 3},
    ):
        values = values_of(**batching)
        stack = begun(values, tokens)
        (record,) = stack.advance()
        assert record.iteration == 0
        found.add(record.val_loss)
    assert len(found) == 1


def test_longer_contexts_find_the_same_targets(values_of, tokens):
    counts = set()
    for block_size in (16, 48, 64, 256):
        objective = make_objective(tokens, values_of(block_size=block_size))
        targets = [
            batch.targets[batch.targets != NO_TARGET]
            for batch in objective.evaluation(4 * 1024)
        ]
        counts.add(tuple(np.bincount(np.concatenate(targets)).tolist()))
    assert len(counts) == 1


def test_the_training_split_is_evaluated_on_fixed_targets_without_dropout(values_of, tokens):
    """What an evaluation of a stack whose validation split is the training split says; and nothing else changes."""
    train, val = tokens[:40_000], tokens[40_000:][::-1].copy()

    def records(train, val, **changed):
        values = values_of(dropout=0.3, **changed)
        stack = begun(values, train, val)
        return [each for _ in range(3) for each in stack.advance()]

    both, of_train = records(train, val, eval_train=True), records(train, train)
    assert [each.measures for each in both] == [
        {"eval_train_loss": each.val_loss} for each in of_train
    ]
    plain = records(train, val)
    assert [each.val_loss for each in both] == [each.val_loss for each in plain]
    assert [each.measures for each in plain] == [{}] * 3
