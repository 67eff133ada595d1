"""How documents are cut into three splits: planted near-duplicates, passages and repetitions."""

import random

import pytest

from sweeplab.data.corpora import splits
from sweeplab.data.corpora.splits import TENTHS, WINDOW, deal, overlaps, without_near_duplicates

SPLITS = ("train", "val", "test")


def words(seed, count):
    draw = random.Random(seed)
    return " ".join(
        "".join(draw.choices("abcdefghijklmnop", k=draw.randint(2, 9))) for _ in range(count)
    )


def paragraphs(seed, count):
    return "".join(f"{words(1000 * seed + each, 40)}.\n\n" for each in range(count))


def test_a_near_duplicate_goes_and_the_longer_of_two_stays():
    first, second = words(1, 3_000), words(2, 3_000)
    edited = first.replace(" a", " the a", 30)[:-500]  # changed all over, and shorter
    assert len(first) > 15_000
    kept = without_near_duplicates([edited, first, second, second, words(3, 100)])
    assert kept == [first, second, words(3, 100)]
    quoting = f"{first[:3_000]} {second[:3_000]} {words(4, 3_000)}"
    assert without_near_duplicates([quoting, first, second]) == [quoting, first, second]


@pytest.mark.parametrize("chunk", [splits._CHUNK, 1000])
def test_overlap_is_the_share_that_was_planted(chunk, monkeypatch):
    monkeypatch.setattr(splits, "_CHUNK", chunk)
    train, fresh = words(1, 4_000), words(2, 4_000)
    planted = train[5_000 : 5_000 + 2_000]
    held_out = fresh[:8_000] + planted
    n_windows = len(held_out) - WINDOW + 1
    n_planted = len(planted) - WINDOW + 1
    copied, own, short = overlaps([train], [held_out], [fresh], ["short"])
    assert copied == pytest.approx(n_planted / n_windows, abs=1e-3)
    assert (own, short) == (0, 0)


@pytest.mark.parametrize(
    "documents",
    [
        pytest.param([paragraphs(seed, 1 + seed % 7) for seed in range(200)], id="many"),
        pytest.param(
            [paragraphs(0, 300), *(paragraphs(seed, 2) for seed in range(1, 60))], id="one long"
        ),
        pytest.param([paragraphs(0, 600)], id="a single one"),
        pytest.param([words(0, 20_000).replace(" ", "")], id="without boundaries"),
    ],
)
def test_splits_have_their_shares_from_all_over_the_corpus(documents):
    found = deal(documents, TENTHS)
    sizes = {split: len(found[split]) for split in SPLITS}
    for split, tenths in zip(SPLITS, (8, 1, 1), strict=True):
        assert sizes[split] / sum(sizes.values()) == pytest.approx(tenths / 10, abs=0.02)
    assert max(overlaps([found["train"]], [found["val"]], [found["test"]])) < 0.01
    whole = "\n\n".join(documents)
    for split in ("val", "test"):
        pieces = [found[split][at : at + 100] for at in range(0, sizes[split] - 100, 100)]
        places = [whole.find(piece) / len(whole) for piece in pieces]
        tenths_met = {int(10 * place) for place in places if place >= 0}
        assert len(tenths_met) >= 8


def test_every_character_of_a_document_is_dealt_once_and_in_order():
    numbered = "".join(f"line {number}\n" + "\n" * (number % 7 == 0) for number in range(5_000))
    found = deal([numbered], TENTHS)
    lines = {split: [line for line in found[split].split("\n") if line] for split in SPLITS}
    dealt = sorted(
        (line for own in lines.values() for line in own), key=lambda line: int(line[5:])
    )
    assert dealt == [line for line in numbered.split("\n") if line]
    for own in lines.values():
        assert own == sorted(own, key=lambda line: int(line[5:]))
    assert sum(map(len, found.values())) == len(numbered)
