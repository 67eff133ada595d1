"""What of a study's data, objective and sizes goes together is said before the first trial."""

import random

import pytest

from sweeplab.data import DataSizes
from sweeplab.data.objectives import n_special
from sweeplab.study.space import spaces_of
from sweeplab.study.spec import DataSpec


def data(corpus="python-docs", tokenizer="char", **more):
    return DataSpec(corpus=corpus, tokenizer=tokenizer, **more)


@pytest.mark.parametrize("family", ["decoder", "encoder", "encoder_decoder"])
@pytest.mark.parametrize("corpus", ["python-docs", "addition"])
def test_auto_gives_every_family_an_objective_and_a_vocabulary(tiny, corpus, family):
    spec = tiny(data=data(corpus), values={"family": family})
    (space,), _ = spaces_of(spec, DataSizes(50))
    resolved = space.resolve({"learning_rate": 1e-3}, 0)
    expected = {"decoder": "next_token", "encoder": "masked", "encoder_decoder": "span"}[family]
    assert resolved.objective == (expected if corpus == "python-docs" else "pairs")
    assert resolved.vocab_size == 50 + n_special(resolved)
    assert (n_special(resolved) == 0) == (resolved.objective == "next_token")


def test_text_that_is_trained_on_and_validated_with_is_told_and_warned_of(planned, tmp_path):
    draw = random.Random(0)

    def paragraph():
        return "".join(draw.choices("abcdefghij ", k=200)) + "\n\n"

    stock = [paragraph() for _ in range(5)]
    for name, n_shared in (("clean", 0), ("leaking", 2)):
        folder = tmp_path / name
        folder.mkdir()
        # No document is a copy of another: what they have in common is said.
        for number in range(120):
            parts = [
                draw.choice(stock) if each < n_shared else paragraph() for each in range(12)
            ]
            (folder / f"{number}.txt").write_text("".join(parts))
        (folder / "copy.txt").write_text((folder / "0.txt").read_text())
        plan = planned(data=data("text", path=f"{folder}/*.txt"))
        assert plan.data.n_duplicates == 1
        assert plan.data.train_tokens > 7 * plan.data.test_tokens > 0
        warned = [
            each for each in plan.warnings if "occur verbatim in the training split" in each
        ]
        assert len(warned) == n_shared
        for found in (plan.data.val_overlap, plan.data.test_overlap):
            assert abs(found - n_shared / 12 * (200 - 63) / 200) < 0.03
        assert type(plan).from_dict(plan.as_dict()).data == plan.data
