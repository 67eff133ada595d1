"""A prompt is laid out as the sequences are that the model has learned from."""

from itertools import pairwise

import numpy as np
import pytest

from sweeplab.data.batches import NO_TARGET, Pairs
from sweeplab.data.objectives import OBJECTIVES, make_objective, n_special
from sweeplab.errors import BadInput
from sweeplab.hyperparameters import Hyperparameters

N_TEXT = 20
TOKENS = np.random.default_rng(0).integers(0, N_TEXT, 200).astype(np.uint16)
# What finds labels takes no prompt.
CASES = [
    (name, family)
    for name, kind in OBJECTIVES.items()
    for family in kind.families
    if kind.learns != "labels"
]


def learned(name, family):
    """Return an objective of a small split, and its values."""
    shares = {"mask_share": 0.25, "span_length": 2.0}
    values = Hyperparameters(
        objective=name, family=family, block_size=24, batch_size=3, **shares
    )
    values = values.replace(vocab_size=N_TEXT + n_special(values))
    split = Pairs(TOKENS, np.arange(1, 41) * 5) if OBJECTIVES[name].learns != "text" else TOKENS
    return make_objective(split, values), values


def beginning(name, family, batch):
    """Return what a user would write of the first sequence: pieces, with a hole between two."""
    inputs, targets = batch.inputs[0].tolist(), batch.targets[0]
    if name == "next_token":
        return [inputs[: len(inputs) // 2]]
    if name == "masked":
        text = np.where(targets == NO_TARGET, inputs, targets).tolist()
        holes = [-1, *np.flatnonzero(targets != NO_TARGET), len(text)]
        return [text[one + 1 : other] for one, other in pairwise(holes)]
    if name == "span":
        pieces = [[]]
        for token in batch.source[0][:-1].tolist():
            if token < N_TEXT:
                pieces[-1].append(token)
            else:
                pieces.append([])
        return pieces
    holes = [[]] * 5 if family == "encoder" else []
    return [TOKENS[:5].tolist(), *holes]


@pytest.mark.parametrize(("name", "family"), CASES)
def test_the_beginning_of_a_split_as_a_prompt_is_what_its_first_batch_has(name, family):
    objective, values = learned(name, family)
    batch = next(objective.evaluation())
    prompt = OBJECTIVES[name].prompt(beginning(name, family, batch), objective.special, values)
    inputs, targets = batch.inputs[0].tolist(), batch.targets[0]
    if name == "masked":
        assert len(prompt.holes) == np.sum(targets != NO_TARGET) > 0
        text = np.where(targets == NO_TARGET, inputs, targets)
        shown = [place for place in range(len(inputs)) if place not in prompt.holes]
        assert [prompt.start[place] for place in shown] == text[shown].tolist()
        assert {prompt.start[place] for place in prompt.holes} == {objective.special["mask"]}
    else:
        assert [*prompt.start] == inputs[: len(prompt.start)]
    if batch.source is not None:
        length = (
            batch.source.shape[1] if batch.source_lengths is None else batch.source_lengths[0]
        )
        assert [*prompt.source] == batch.source[0][:length].tolist()
    if prompt.end is not None:
        counted = targets[targets != NO_TARGET]
        assert counted[-1] == prompt.end and counted[0] != prompt.end
        assert set(counted[counted >= N_TEXT]) <= set(prompt.markers)
        if prompt.holes:
            assert len(prompt.holes) == len(counted), "one for each token, and one for the end"
        else:
            assert prompt.room == 24 + 1 - len(prompt.start)


@pytest.mark.parametrize(
    ("name", "family", "pieces", "said"),
    [
        ("next_token", "decoder", [[]], "the prompt is empty"),
        ("next_token", "decoder", [[1], [2]], "MASK. is for models that attend to both sides"),
        ("masked", "encoder", [[1, 2]], "the prompt has no .MASK."),
        ("masked", "encoder", [[1] * 20, [1] * 4], "takes 25 tokens; allowed: 1 to 24 tokens"),
        ("span", "encoder_decoder", [[1]] * 9, "MASK. 8 times; allowed: at most"),
        ("span", "encoder_decoder", [[1] * 23], "takes 25 tokens"),
        ("pairs", "decoder", [[1], []], "MASK. is for an encoder"),
        ("pairs", "encoder", [[1], [2]], "needs the length of the target"),
        ("pairs", "encoder", [[1] * 21, [], []], "takes 21 tokens; allowed: 1 to 20 tokens"),
        ("pairs", "encoder", [[1], *[[]] * 40], "no room for the prompt in the block_size of 24; allowed: at least 19"),
        ("pairs", "encoder_decoder", [[1] * 25], "takes 25 tokens"),
    ],
)  # fmt: skip
def test_a_prompt_that_cannot_be_read_is_refused(name, family, pieces, said):
    objective, values = learned(name, family)
    with pytest.raises(BadInput, match=said):
        OBJECTIVES[name].prompt(pieces, objective.special, values)
