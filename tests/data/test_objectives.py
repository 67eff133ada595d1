import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trained import digest

from sweeplab.data.batches import NO_TARGET, Pairs, changed
from sweeplab.data.objectives import (
    OBJECTIVES,
    check_fits,
    make_objective,
    n_special,
    settled_objective,
    special_tokens,
)
from sweeplab.data.objectives.base import BOS, EOS, MASK, PAD, sentinel
from sweeplab.data.objectives.pairs import PairsObjective
from sweeplab.data.objectives.tokens import corruption
from sweeplab.errors import BadInput
from sweeplab.hyperparameters import Hyperparameters

N_SYMBOLS = 300
# No two tokens of a window are alike: where a token comes from is seen in it.
TEXT = (np.arange(20_000) % N_SYMBOLS).astype(np.uint16)


def values(objective, family=None, **changed):
    sizes = {"block_size": 32, "batch_size": 4, "mask_share": 0.15, "span_length": 3.0}
    family = family or OBJECTIVES[objective].families[0]
    labels = {"n_labels": 3} if OBJECTIVES[objective].learns == "labels" else {}
    found = Hyperparameters(objective=objective, family=family, **sizes | labels | changed)
    return (
        found
        if "vocab_size" in changed
        else found.replace(vocab_size=N_SYMBOLS + n_special(found))
    )


def pairs_of(lengths):
    ends = np.cumsum(np.array(lengths).ravel())
    return Pairs((np.arange(ends[-1]) % N_SYMBOLS).astype(np.uint16), ends)


PAIRS = pairs_of([(1 + i % 7, 1 + i * 5 % 9) for i in range(500)])
# Texts of 1 to 7 tokens, and the number of a label behind each.
LABELLED = [[*range(at % 90, at % 90 + 1 + at % 7), at % 3] for at in range(500)]
LABELS = Pairs(
    np.concatenate(LABELLED).astype(np.uint16),
    np.cumsum([size for each in LABELLED for size in (len(each) - 1, 1)]),
    n_labels=3,
    kind="labels",
)
OF_TEXT = [name for name, kind in OBJECTIVES.items() if kind.learns == "text"]
KINDS = [(name, family) for name, kind in OBJECTIVES.items() for family in kind.families]


def split_for(objective):
    splits = {"text": TEXT, "pairs": PAIRS, "labels": LABELS}
    return splits[OBJECTIVES[objective].learns]


def assert_same(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        for part, same in zip(one, other, strict=True):
            np.testing.assert_array_equal(part, same)


@pytest.mark.parametrize(("name", "family"), KINDS)
class TestObjectiveContract:
    """What any registered objective does, for every family that can learn it."""

    def make(self, name, family, **changed):
        return make_objective(split_for(name), values(name, family, **changed))

    def test_batches_depend_on_seed_and_iteration_only(self, name, family):
        asked = [(0, 0), (5, 123), (0, 1), (2**31 - 1, 10**9)]
        one, other = self.make(name, family), self.make(name, family)
        forward = [one.training(*each) for each in asked]
        found = [*other.evaluation(3_000)]
        assert_same(reversed(forward), (other.training(*each) for each in reversed(asked)))
        assert_same(found, one.evaluation(3_000))
        assert len({digest(batch) for batch in forward}) == len(asked)

    def test_an_evaluation_does_not_depend_on_batch_size(self, name, family):
        for n_tokens in (2_000, None):
            assert_same(
                *(
                    self.make(name, family, batch_size=size).evaluation(n_tokens)
                    for size in (3, 64)
                )
            )

    def test_shapes_stay_and_ids_lie_in_the_vocabulary(self, name, family):
        objective, size, is_text = (
            self.make(name, family),
            values(name, family).vocab_size,
            name in OF_TEXT,
        )
        batches = [objective.training(0, iteration) for iteration in range(5)]
        batches += [
            changed(batch, lambda part: part[:4]) for batch in objective.evaluation(3_000)
        ]
        shapes = {
            tuple(None if part is None else part.shape for part in batch[:5])
            for batch in batches
        }
        ((inputs, targets, source, lengths, source_lengths),) = shapes
        n_source = source[1] if source else 0
        most = OBJECTIVES[name].lengths(values(name, family))
        assert (
            inputs == targets == (4, inputs[1])
            and lengths in (None, (4,))
            and source_lengths in (None, (4,))
        )
        assert inputs[1] <= most[0] <= 32 and n_source <= most[1] <= 32
        assert not is_text or (inputs[1], n_source) == most
        assert (source is not None) == (family == "encoder_decoder")
        for batch in batches:
            for read in (batch.inputs, batch.source):
                assert read is None or (
                    read.dtype == np.int64 and read.min() >= 0 and read.max() < size
                )
            assert batch.targets.min() >= NO_TARGET and batch.targets.max() < size
            is_dense = bool((batch.targets != NO_TARGET).all())
            assert is_dense == objective.dense if is_text else is_dense >= objective.dense
        for batch in batches[:5]:
            assert (batch.targets != NO_TARGET).any(axis=1).all(), "each sequence has a target"


GOLDEN = {
    ("next_token", "decoder"): "746c2fccb60a08e5",
    ("masked", "encoder"): "4c2ec3fbee21d747",
    ("span", "encoder_decoder"): "9c94efda846a04a6",
    ("pairs", "decoder"): "ff50c9da97e95107",
    ("pairs", "encoder"): "19ba39405c0e2469",
    ("pairs", "encoder_decoder"): "aae26cdea6d1a9c2",
    ("classification", "encoder"): "94c2763fd664a347",
    ("classification", "decoder"): "add22ac94eb302cf",
    ("classification", "encoder_decoder"): "0600e88399d1cccf",
}


@pytest.mark.parametrize(("name", "family"), KINDS)
def test_batches_are_the_same_on_every_machine(name, family):
    """These numbers were made once: if they change, no earlier result can be had again."""
    objective = make_objective(split_for(name), values(name, family))
    batches = [
        objective.training(0, 0),
        objective.training(7, 5000),
        *objective.evaluation(2_000),
    ]
    assert digest(*batches) == GOLDEN[name, family]


# ------------------------------------------------------------------ masked


def test_masked_hides_eight_of_ten_replaces_one_and_keeps_one():
    given = values("masked", block_size=100, batch_size=1000)
    batch = make_objective(TEXT, given).training(0, 0)
    chosen = batch.targets != NO_TARGET
    read, true, n = batch.inputs[chosen], batch.targets[chosen], chosen.sum()
    assert n == 15_000
    hidden = read == special_tokens(given)[MASK]
    replaced, kept = ~hidden & (read != true), read == true
    for share, found in (
        (0.8, hidden),
        (0.1 * (1 - 1 / N_SYMBOLS), replaced),
        (0.1 + 0.1 / N_SYMBOLS, kept),
    ):
        assert abs(found.sum() - share * n) < 5 * np.sqrt(n * share * (1 - share))
    assert read[replaced].max() < N_SYMBOLS, "a token of the text, and no special one"
    assert len(set(read[replaced].tolist())) > 290, "any of them"


# ------------------------------------------------------------------ span


def put_together(batch, row, special):
    """Fill the source's sentinels with the target's spans."""
    source, target = batch.source[row].tolist(), batch.targets[row].tolist()
    assert source[-1] == target[-1] == special[EOS]
    spans = {}
    for token in target[:-1]:
        if token >= special[sentinel(0)]:
            spans[token] = []
        else:
            spans[list(spans)[-1]].append(token)
    assert (
        list(spans)
        == sorted(spans)
        == [token for token in source if token >= special[sentinel(0)]]
    )
    assert all(spans.values())
    return [each for token in source[:-1] for each in spans.get(token, [token])]


@given(
    block_size=st.integers(3, 90),
    share=st.floats(0.01, 0.95),
    span=st.floats(1, 12),
    seed=st.integers(0, 99),
)
def test_span_target_and_source_make_the_text(block_size, share, span, seed):
    given = values("span", block_size=block_size, mask_share=share, span_length=span)
    counts = corruption(given)
    batch = make_objective(TEXT, given).training(seed, 0)
    assert batch.source.shape == (4, counts.source_length)
    assert batch.targets.shape == (4, counts.target_length)
    assert max(counts.source_length, counts.target_length) <= block_size
    special = special_tokens(given)
    assert (batch.inputs[:, 0] == special[BOS]).all()
    np.testing.assert_array_equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    for row in range(4):
        text = put_together(batch, row, special)
        assert len(text) == counts.window
        assert ((np.array(text) - text[0]) % N_SYMBOLS == np.arange(counts.window)).all()


def test_span_lengths_are_t5s():
    """At 512 tokens T5's own `random_spans_helper` takes 568 tokens of text, with a target of 114."""
    counts = corruption(values("span", block_size=512))
    assert (counts.window, counts.source_length, counts.target_length) == (568, 512, 114)
    assert (counts.n_hidden, counts.n_spans) == (85, 28)


# ------------------------------------------------------------------ pairs

TINY = pairs_of([(3, 2), (1, 4)])  # 0 1 2 -> 3 4, 5 -> 6 7 8 9


def first(family, pairs, **changed):
    return next(make_objective(pairs, values("pairs", family, **changed)).evaluation())


PAD_ID, BOS_ID, EOS_ID = (special_tokens(values("pairs"))[name] for name in (PAD, BOS, EOS))
LONG = pairs_of([(9, 2)])


@pytest.mark.parametrize(
    ("family", "pairs", "changed", "inputs", "targets", "lengths", "source"),
    [
        ("decoder", TINY, {}, [[0, 1, 2, BOS_ID, 3, 4], [5, BOS_ID, 6, 7, 8, 9]],
         [[-1, -1, -1, 3, 4, EOS_ID], [-1, 6, 7, 8, 9, EOS_ID]], [6, 6], None),
        ("decoder", pairs_of([(3, 2), (1, 1)]), {}, [[0, 1, 2, BOS_ID, 3, 4], [5, BOS_ID, 6, PAD_ID, PAD_ID, PAD_ID]],
         [[-1, -1, -1, 3, 4, EOS_ID], [-1, 6, EOS_ID, -1, -1, -1]], [6, 3], None),
        ("encoder_decoder", TINY, {}, [[BOS_ID, 3, 4, PAD_ID, PAD_ID], [BOS_ID, 6, 7, 8, 9]],
         [[3, 4, EOS_ID, -1, -1], [6, 7, 8, 9, EOS_ID]], [3, 5], [[0, 1, 2], [5, PAD_ID, PAD_ID]]),
        # A source is cut at its end, a target never.
        ("decoder", LONG, {"block_size": 6}, [[0, 1, 2, BOS_ID, 9, 10]], [[-1, -1, -1, 9, 10, EOS_ID]], [6], None),
        ("encoder_decoder", LONG, {"block_size": 6}, [[BOS_ID, 9, 10]], [[9, 10, EOS_ID]], [3], [[0, 1, 2, 3, 4, 5]]),
    ],
)  # fmt: skip
def test_pairs_are_laid_out(family, pairs, changed, inputs, targets, lengths, source):
    batch = first(family, pairs, **changed)
    assert (batch.inputs.tolist(), batch.targets.tolist()) == (inputs, targets)
    assert batch.lengths.tolist() == lengths
    assert (batch.source is None) == (source is None)
    if batch.source is not None:
        assert batch.source.tolist() == source
        assert batch.source_lengths.tolist() == [
            sum(id != PAD_ID for id in row) for row in source
        ]


def test_the_share_of_sources_that_are_cut_is_known():
    assert (
        PairsObjective.share_cut(pairs_of([(9, 2), (1, 2)]), values("pairs", block_size=6))
        == 0.5
    )


@pytest.mark.parametrize(
    ("family", "needed"), [("decoder", 6), ("encoder", 7), ("encoder_decoder", 5)]
)
def test_a_block_size_without_room_for_a_target_is_refused(family, needed):
    check_fits({"training": TINY}, values("pairs", family, block_size=needed))
    make_objective(TINY, values("pairs", family, block_size=needed)).training(0, 0)
    with pytest.raises(BadInput, match=f"longest target: 4 tokens; allowed: at least {needed}"):
        check_fits({"training": TINY}, values("pairs", family, block_size=needed - 1))


# ------------------------------------------------------------------ what follows from what


@pytest.mark.parametrize(
    ("family", "kind", "objective"),
    [
        ("decoder", "text", "next_token"), ("encoder", "text", "masked"), ("encoder_decoder", "text", "span"),
        ("encoder", "pairs", "pairs"), ("encoder", "labels", "classification"),
    ],
)  # fmt: skip
def test_auto_is_what_suits_family_and_corpus(family, kind, objective):
    assert (
        settled_objective(Hyperparameters(objective="auto", family=family), kind) == objective
    )
    assert (
        settled_objective(Hyperparameters(objective="masked", family=family), kind) == "masked"
    )


@pytest.mark.parametrize(
    ("objective", "most"), [("next_token", 9), ("masked", 10), ("span", 10)]
)
def test_a_context_longer_than_the_data_is_refused_with_the_longest_that_fits(objective, most):
    splits = {"training": TEXT[:90], "validation": TEXT[:10]}
    check_fits(splits, values(objective, block_size=most))
    make_objective(TEXT[:10], values(objective, block_size=most)).training(0, 0)
    with pytest.raises(
        BadInput, match=rf"validation split has 10 tokens; allowed: at most {most}$"
    ):
        check_fits(splits, values(objective, block_size=most + 1))
    with pytest.raises(ValueError, match="10 tokens have no window"):
        make_objective(TEXT[:10], values(objective, block_size=most + 1))
