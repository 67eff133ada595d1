"""What is counted as found whole is what greedy decoding finds."""

import numpy as np
import pytest
import torch
from trained import begun

from sweeplab.data.batches import NO_TARGET, Batch, Pairs
from sweeplab.data.objectives import make_objective
from sweeplab.model.shape import ModelShape
from sweeplab.model.transformer import Transformer
from sweeplab.train.evaluating import sequence_measures

N_SYMBOLS = 12


@pytest.fixture(scope="module")
def pairs():
    """Return pairs of one to four symbols, each target its source read backwards."""
    draw = np.random.default_rng(3)
    sources = [draw.integers(0, N_SYMBOLS, draw.integers(1, 5)) for _ in range(300)]
    texts = [text for source in sources for text in (source, source[::-1])]
    return Pairs(
        np.concatenate(texts).astype(np.uint16), np.cumsum([len(text) for text in texts])
    )


@pytest.fixture
def of_pairs(values_of):
    """Return effective values of a small run on pairs, with changes."""
    return lambda **changed: values_of(objective="pairs", vocab_size=N_SYMBOLS + 4, **changed)


def test_agrees_with_greedy_decoding():
    """Half of the targets are what the model says when it is asked token by token; the other half are not."""
    shape = ModelShape(vocab_size=20, block_size=12, n_layer=2, n_head=2, n_embd=16)
    decoder = Transformer(shape)
    weights = decoder.layout.views(decoder.layout.initial_row(4)[None] * 20)
    source = torch.randint(0, 20, (1, 8, 5), generator=torch.Generator().manual_seed(1))
    said = source
    for _ in range(4):
        logits = decoder.logits(weights, Batch(said, said)).view(8, -1, 20)
        said = torch.cat([said, logits[None, :, -1].argmax(-1, keepdim=True)], dim=2)
    wrong = said.clone()
    wrong[0, ::2, 6] = (wrong[0, ::2, 6] + 1) % 20
    targets = wrong[:, :, 1:].clone()
    targets[:, :, :4] = NO_TARGET
    logits = decoder.logits(weights, Batch(wrong[:, :, :-1], targets))
    batch = Batch(wrong[:, :, :-1], targets)
    assert sequence_measures([(logits, batch)])["exact_match"].tolist() == [4 / 8]


def test_an_evaluation_weighs_every_target_alike_and_counts_what_is_found_whole(
    of_pairs, pairs
):
    values = of_pairs(eval_full=True, max_iters=1, batch_size=7)
    stack = begun(values, pairs)
    (record,) = stack.advance()
    weights = stack.transformer.layout.views(stack._rows["weights"])
    total, count, whole = 0.0, 0, 0
    for batch in make_objective(pairs, values).evaluation():
        for row, found in zip(
            torch.from_numpy(batch.inputs), torch.from_numpy(batch.targets), strict=True
        ):
            logits = stack.transformer.logits(weights, Batch(row[None, None], row[None, None]))[
                0
            ]
            counted = found != NO_TARGET
            losses = torch.nn.functional.cross_entropy(
                logits[counted], found[counted], reduction="sum"
            )
            total, count = total + losses.item(), count + int(counted.sum())
            whole += bool((logits.argmax(-1) == found)[counted].all())
    assert record.val_loss == pytest.approx(total / count, rel=1e-5)
    assert record.measures == {"exact_match": whole / pairs.n_pairs}
