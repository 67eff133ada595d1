import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeplab.data.batches import NO_TARGET, Batch, stacked
from sweeplab.data.generators import RandomStream, generator_key
from sweeplab.data.objectives.base import DRAWS_PER_CHUNK, STRETCH
from sweeplab.data.objectives.tokens import NextToken
from sweeplab.hyperparameters import Hyperparameters

# Token i is i: the first token of a window says where the window starts.
TOKENS = np.arange(60_000, dtype=np.uint16)


class Batches:
    """The next-token objective's batches as windows [B, T + 1], as they were before there were others."""

    def __init__(self, tokens: np.ndarray, block_size: int, batch_size: int) -> None:
        values = Hyperparameters(block_size=block_size, batch_size=batch_size, vocab_size=2**16)
        self._objective = NextToken(tokens, values)

    def training(self, seed: int, iteration: int) -> np.ndarray:
        return window(self._objective.training(seed, iteration))

    def evaluation(self, n_tokens: int | None = None) -> Iterator[Batch]:
        return self._objective.evaluation(n_tokens)


def found(batches: Iterable[Batch]) -> np.ndarray:
    """Return the targets that count, each of which is the token after its input."""
    batches = list(batches)
    inputs, targets = (np.concatenate([batch[part].ravel() for batch in batches]) for part in (0, 1))
    counts = targets != NO_TARGET
    assert (targets[counts] == inputs[counts] + 1).all()
    return targets[counts]


def window(batch: Batch) -> np.ndarray:
    np.testing.assert_array_equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    assert batch.source is batch.lengths is batch.source_lengths is None
    return np.concatenate([batch.inputs[:, :1], batch.targets], axis=1)


def digest(arrays: Iterable[np.ndarray]) -> str:
    found = hashlib.sha256()
    for array in arrays:
        found.update(f"{array.shape}".encode() + np.ascontiguousarray(array).astype("<i8").tobytes())
    return found.hexdigest()[:16]


def starts(seed: int, iterations: int = 64, batch_size: int = 64, tokens: np.ndarray = TOKENS) -> np.ndarray:
    batches = Batches(tokens, 16, batch_size)
    return np.concatenate([batches.training(seed, iteration)[:, 0] for iteration in range(iterations)])


def test_a_batch_holds_consecutive_tokens() -> None:
    batch = Batches(TOKENS, block_size=16, batch_size=4).training(seed=0, iteration=0)
    assert batch.shape == (4, 17)
    assert batch.dtype == np.int64
    assert (np.diff(batch, axis=1) == 1).all()


def test_batches_are_the_same_on_every_machine() -> None:
    """These numbers were made once: if they change, no earlier result can be had again."""
    batches = Batches(TOKENS, block_size=16, batch_size=4)
    assert batches.training(0, 0)[:, 0].tolist() == [55129, 29973, 1698, 51492]
    assert batches.training(7, 5000)[:, 0].tolist() == [4758, 49457, 48013, 16878]
    assert [batch.inputs[0, 0] for batch in batches.evaluation(3 * 1024)] == [9216, 29696, 49152]
    assert generator_key(0, "init") == 7885824881599989479


def test_draws_again_what_has_been_forgotten() -> None:
    batches = Batches(TOKENS, 2, DRAWS_PER_CHUNK)
    before = batches.training(0, 0)
    for seed in range(1, 600):
        batches.training(seed, 0)
    np.testing.assert_array_equal(batches.training(0, 0), before)


def test_every_iteration_and_seed_draws_anew() -> None:
    batches = Batches(TOKENS, 16, 64)
    distinct = {
        batches.training(seed, iteration)[:, 0].tobytes() for seed in range(5) for iteration in range(300)
    }
    assert len(distinct) == 5 * 300


def test_starts_are_uniform() -> None:
    drawn = np.concatenate([starts(seed, iterations=256) for seed in range(4)])
    counts, _ = np.histogram(drawn, bins=20, range=(0, len(TOKENS) - 16))
    chi_squared = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
    assert 4 < chi_squared < 45  # 19 degrees of freedom: outside of it once in 1,000 times


def test_every_start_is_drawn_the_first_and_the_last_too() -> None:
    assert set(starts(0, tokens=TOKENS[:26])) == set(range(10))


def test_seeds_are_decorrelated() -> None:
    drawn = np.stack([starts(seed) for seed in range(10)]).astype(float)
    correlation = np.corrcoef(drawn)[np.triu_indices(10, 1)]
    assert abs(correlation).max() < 5 / np.sqrt(drawn.shape[1])
    assert (drawn[:, :64].std(axis=0) > 0).all()


def test_iterations_are_decorrelated() -> None:
    drawn = starts(0, iterations=512).reshape(512, 64).astype(float)
    correlation = np.corrcoef(drawn[:-1].ravel(), drawn[1:].ravel())[0, 1]
    assert abs(correlation) < 5 / np.sqrt(drawn.size)


@settings(max_examples=50)
@given(
    n_tokens=st.none() | st.integers(1, 20_000),
    n_split=st.integers(2, 20_000),
    shapes=st.lists(st.tuples(st.integers(1, STRETCH), st.integers(1, 99)), min_size=2, max_size=2),
)
def test_every_batch_size_and_block_size_finds_the_same_targets_once(
    n_tokens: int | None, n_split: int, shapes: list[tuple[int, int]]
) -> None:
    tokens = TOKENS[: max(n_split, max(block_size for block_size, _ in shapes) + 1)]
    one, other = (found(Batches(tokens, *shape).evaluation(n_tokens)) for shape in shapes)
    np.testing.assert_array_equal(np.sort(one), np.sort(other))
    assert len(np.unique(one)) == len(one)
    if n_tokens is None:
        np.testing.assert_array_equal(one, tokens[1:])
    else:
        assert len(one) <= max(n_tokens + STRETCH / 2, min(STRETCH, len(tokens) - 1))
        assert len(one) >= min(n_tokens, len(tokens) - 1) - STRETCH


def test_an_evaluation_is_spread_over_the_split() -> None:
    targets = found(Batches(TOKENS, 64, 8).evaluation(10 * STRETCH))
    assert len(targets) == 10 * STRETCH
    counts, _ = np.histogram(targets, bins=10, range=(0, len(TOKENS)))
    assert abs(counts - STRETCH).max() <= STRETCH / 2


def test_a_mapped_file_gives_plain_arrays_that_may_be_written(tmp_path: Path) -> None:
    TOKENS.tofile(tmp_path / "tokens")
    batches = Batches(np.memmap(tmp_path / "tokens", np.uint16, "r"), 16, 4)
    batch = batches.training(0, 0)
    assert type(batch) is np.ndarray
    batch[:] = 0
    assert batches.training(0, 0).any()


def test_refuses_fewer_tokens_than_one_window() -> None:
    assert len(list(Batches(TOKENS[:17], 16, 4).evaluation())) == 1
    assert (Batches(TOKENS[:17], 16, 4).training(3, 3) == TOKENS[:17]).all()
    with pytest.raises(ValueError, match="16 tokens have no window of 17"):
        Batches(TOKENS[:16], 16, 4)


def test_keys_differ_by_seed_and_purpose_and_fit_63_bits() -> None:
    purposes = ("init", "batches", "masks", "dropout", "evaluation")
    keys = {generator_key(seed, purpose) for seed in range(1000) for purpose in purposes}
    assert len(keys) == 5000
    assert 0 <= min(keys) < max(keys) < 2**63
    assert max(keys) > 2**62


def test_a_stack_holds_each_runs_batch_and_no_part_that_none_has() -> None:
    batches = [Batch(np.full((2, 3), k), np.full((2, 3), -k), lengths=np.array([k, k])) for k in (1, 2)]
    found = stacked(batches)
    assert found.inputs.shape == found.targets.shape == (2, 2, 3)
    assert found.inputs[:, 0, 0].tolist() == [1, 2] and found.targets[:, 0, 0].tolist() == [-1, -2]
    assert found.lengths.tolist() == [[1, 1], [2, 2]]
    assert found.source is None and found.source_lengths is None


def test_counts_the_targets_there_are() -> None:
    assert Batch(np.zeros((2, 3)), np.array([[4, -1, 0], [-1, -1, 2]])).n_targets == 3


@given(
    n_rows=st.integers(1, 5), length=st.integers(1, 40), share=st.floats(0, 1), key=st.integers(0, 2**63 - 1)
)
def test_chooses_as_many_places_of_every_row_as_it_is_asked_for(
    n_rows: int, length: int, share: float, key: int
) -> None:
    chosen = round(share * length)
    places = RandomStream(key).choose(n_rows, length, chosen)
    assert places.shape == (n_rows, length)
    assert (places.sum(axis=1) == chosen).all()


def test_every_place_is_as_likely_as_any_other() -> None:
    counts = RandomStream(3).choose(20_000, 10, 3).sum(axis=0)
    assert abs(counts - 6000).max() < 5 * np.sqrt(20_000 * 0.3 * 0.7)


def test_a_stream_goes_on_where_it_was_and_another_one_is_apart() -> None:
    random = RandomStream(7, 2)
    np.testing.assert_array_equal(np.append(random.words(3), random.words(4)), RandomStream(7, 2).words(7))
    assert not set(RandomStream(7, 3).words(50)) & set(RandomStream(7, 2).words(50))
    assert not set(RandomStream(8, 2).words(50)) & set(RandomStream(7, 2).words(50))


@pytest.mark.parametrize(
    ("block_size", "batch_size", "training"),
    [
        (16, 4, "e53c0be155f3a4f6"),
        (192, 48, "c3743400c7c3aa54"),
        (1, 1, "278438c28655657f"),
        (33, 5000, "43bfa8babb732fbb"),
    ],
)
def test_batches_are_those_from_before_there_were_other_objectives(
    block_size: int, batch_size: int, training: str
) -> None:
    batches = Batches(TOKENS, block_size, batch_size)
    asked = [(0, 0), (7, 5000), (2**31 - 1, 10**6)]
    assert digest(batches.training(*each) for each in asked) == training
