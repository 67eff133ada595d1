import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeplab.data.batches import NO_TARGET, RandomStream
from sweeplab.data.objectives.base import STRETCH
from sweeplab.data.objectives.tokens import NextToken
from sweeplab.hyperparameters import Hyperparameters

# Token i is i: the first token of a window says where the window starts.
TOKENS = np.arange(60_000, dtype=np.uint16)


def objective(tokens=TOKENS, block_size=16, batch_size=64):
    values = Hyperparameters(block_size=block_size, batch_size=batch_size, vocab_size=2**16)
    return NextToken(tokens, values)


def found(batches):
    """Return the targets that count, each of which is the token after its input."""
    batches = list(batches)
    inputs, targets = (
        np.concatenate([batch[part].ravel() for batch in batches]) for part in (0, 1)
    )
    counts = targets != NO_TARGET
    assert (targets[counts] == inputs[counts] + 1).all()
    return targets[counts]


def starts(seed, iterations=64):
    batches = objective()
    return np.concatenate(
        [batches.training(seed, each).inputs[:, 0] for each in range(iterations)]
    )


def test_starts_are_uniform():
    drawn = np.concatenate([starts(seed, iterations=256) for seed in range(4)])
    counts, _ = np.histogram(drawn, bins=20, range=(0, len(TOKENS) - 16))
    chi_squared = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
    assert 4 < chi_squared < 45  # 19 degrees of freedom: outside of it once in 1,000 times


@settings(max_examples=50)
@given(
    n_tokens=st.none() | st.integers(1, 20_000),
    n_split=st.integers(2, 20_000),
    shapes=st.lists(
        st.tuples(st.integers(1, STRETCH), st.integers(1, 99)), min_size=2, max_size=2
    ),
)
def test_every_batch_size_and_block_size_finds_the_same_targets_once(n_tokens, n_split, shapes):
    tokens = TOKENS[: max(n_split, max(block_size for block_size, _ in shapes) + 1)]
    one, other = (found(objective(tokens, *shape).evaluation(n_tokens)) for shape in shapes)
    np.testing.assert_array_equal(np.sort(one), np.sort(other))
    assert len(np.unique(one)) == len(one)
    if n_tokens is None:
        np.testing.assert_array_equal(one, tokens[1:])
    else:
        assert len(one) <= max(n_tokens + STRETCH / 2, min(STRETCH, len(tokens) - 1))
        assert len(one) >= min(n_tokens, len(tokens) - 1) - STRETCH


def test_a_stream_goes_on_where_it_was_and_another_one_is_apart():
    random = RandomStream(7, 2)
    np.testing.assert_array_equal(
        np.append(random.words(3), random.words(4)), RandomStream(7, 2).words(7)
    )
    assert not set(RandomStream(7, 3).words(50)) & set(RandomStream(7, 2).words(50))
    assert not set(RandomStream(8, 2).words(50)) & set(RandomStream(7, 2).words(50))


def test_seeds_and_iterations_are_decorrelated():
    drawn = np.stack([starts(seed) for seed in range(10)]).astype(float)
    correlation = np.corrcoef(drawn)[np.triu_indices(10, 1)]
    assert abs(correlation).max() < 5 / np.sqrt(drawn.shape[1])
    by_iteration = drawn.reshape(10, 64, 64)
    correlation = np.corrcoef(by_iteration[:, :-1].ravel(), by_iteration[:, 1:].ravel())[0, 1]
    assert abs(correlation) < 5 / np.sqrt(drawn.size)


@given(
    n_rows=st.integers(1, 5),
    length=st.integers(1, 40),
    share=st.floats(0, 1),
    key=st.integers(0, 2**63 - 1),
)
def test_chooses_as_many_places_of_every_row_as_it_is_asked_for(n_rows, length, share, key):
    chosen = round(share * length)
    places = RandomStream(key).choose(n_rows, length, chosen)
    assert places.shape == (n_rows, length)
    assert (places.sum(axis=1) == chosen).all()


def test_every_place_is_as_likely_as_any_other():
    counts = RandomStream(3).choose(20_000, 10, 3).sum(axis=0)
    assert abs(counts - 6000).max() < 5 * np.sqrt(20_000 * 0.3 * 0.7)
