"""Losses by position and at other lengths, against plain loops."""

import numpy as np
import pytest
import torch
from trained import begun

from sweeplab.data.batches import changed
from sweeplab.data.objectives import make_objective, n_special
from sweeplab.model.shape import ModelShape
from sweeplab.model.transformer import Transformer
from sweeplab.train.evaluating import losses_at, why_not_longer


@pytest.fixture
def longer(values_of):
    """Return effective values of a run that can read longer sequences, with changes."""

    def values(**changed):
        found = values_of(**{"objective": "next_token", "positions": "rotary", "dropout": 0.0, **changed})
        return found.replace(vocab_size=65 + n_special(found))

    return values


@pytest.mark.parametrize(("family", "objective"), [("decoder", "next_token"), ("encoder", "masked")])
def test_at_its_own_length_the_loss_is_evaluations(family: str, objective: str, longer, tokens) -> None:
    values = longer(family=family, objective=objective)
    stack = begun(values, tokens)
    (record,) = stack.advance()
    weights = stack.transformer.layout.views(stack._rows["weights"])
    found = losses_at(stack.transformer, weights, tokens, values, 1)
    assert found.loss == pytest.approx(record.val_loss, rel=1e-6)
    assert found.by_position.shape == (16,)
    assert np.nansum(found.by_position * found.counts) / found.counts.sum() == pytest.approx(found.loss)


@pytest.mark.parametrize("positions", ["rotary", "alibi", "relative", "sinusoidal", "none"])
def test_longer_sequences_are_read_as_they_are(positions: str, longer, tokens) -> None:
    values = longer(positions=positions)
    assert why_not_longer(values) is None
    model = Transformer(ModelShape.of(values))
    weights = model.layout.views(10 * model.layout.initial_row(3)[None])
    found = losses_at(model, weights, tokens, values, 4)
    total = torch.zeros(64, dtype=torch.float64)
    for numbers in make_objective(tokens, values.replace(block_size=64)).evaluation(values.evaluated_tokens):
        batch = changed(numbers, lambda part: torch.from_numpy(part)[None])
        logits = model.logits(weights, batch)[0]
        losses = torch.nn.functional.cross_entropy(logits, batch.targets.flatten(), reduction="none")
        total += losses.view(-1, 64).double().sum(dim=0)
    np.testing.assert_allclose(found.by_position, total.numpy() / found.counts, rtol=1e-5)
    # A causal model finds the first tokens of a longer sequence as it would those of its own length.
    short = losses_at(model, weights, tokens, values.replace(block_size=64), 1)
    np.testing.assert_array_equal(short.by_position[:16], found.by_position[:16])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"positions": "learned"}, "positions end at block_size"),
        ({"objective": "pairs"}, "the length of pairs"),
        ({"objective": "span", "family": "encoder_decoder"}, "how many spans"),
    ],
)
def test_why_nothing_longer_can_be_read(changed: dict[str, str], said: str, longer) -> None:
    assert said in str(why_not_longer(longer(**changed)))


def test_a_split_without_a_longer_sequence_is_refused(longer, tokens) -> None:
    values = longer()
    model = Transformer(ModelShape.of(values))
    weights = model.layout.views(model.layout.initial_row(0)[None])
    with pytest.raises(ValueError, match="40 tokens have no window of 65"):
        losses_at(model, weights, tokens[:40], values, 4)
