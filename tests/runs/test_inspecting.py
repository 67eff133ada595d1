"""What a run attends to in a text, for every family; and the page of it."""

import numpy as np
import pytest

from sweeplab.data.objectives import n_special
from sweeplab.data.tokenizers import TOKENIZERS
from sweeplab.errors import BadInput
from sweeplab.hyperparameters import Hyperparameters, defaults
from sweeplab.model.layout import Layout
from sweeplab.model.shape import ModelShape, settled
from sweeplab.report.models import write_attention
from sweeplab.runs.inspecting import AttentionMap, attention_maps
from sweeplab.tracking.models import LoadedRun, Model

SYMBOLS = "abcdef \n"
SIZES = {"n_layer": 2, "n_head": 2, "n_embd": 8, "block_size": 12}


def run_of(**changed):
    """Return an untrained run of a small model."""
    values = Hyperparameters.of(settled({**defaults(), **SIZES, **changed}))
    values = values.replace(vocab_size=len(SYMBOLS) + n_special(values))
    layout = Layout(ModelShape.of(values))
    weights = {
        name: view[0] for name, view in layout.views(layout.initial_row(0)[None]).items()
    }
    return LoadedRun(
        "mine", Model(values, weights), TOKENIZERS["char"].train(SYMBOLS), values, {}
    )


DECODER = run_of(objective="next_token")
ENCODER = run_of(family="encoder", objective="masked")
BOTH = run_of(family="encoder_decoder", objective="pairs", n_encoder_layer=1, n_decoder_layer=2)


def test_a_decoders_maps_see_what_came_before():
    first, second = attention_maps(DECODER, "ab\nc d")
    assert (first.title, second.layer, first.weights.shape) == (
        "Decoder, layer 0",
        1,
        (2, 6, 6),
    )
    assert first.queries == first.keys == list("ab⏎c␣d")
    assert np.triu(first.weights, 1).max() == 0.0
    np.testing.assert_allclose(first.weights.sum(-1), 1.0)


def test_an_encoder_sees_both_ways_and_special_tokens_have_names():
    maps = attention_maps(ENCODER, "ab[MASK]d")
    assert {each.place for each in maps} == {"encoder"}
    assert maps[0].keys == ["a", "b", "<mask>", "d"]
    assert maps[0].weights.min() > 0.0


def test_an_encoder_decoder_has_cross_attention_to_what_it_read():
    maps = attention_maps(BOTH, "abc")
    assert [(each.place, each.layer) for each in maps] == [
        ("encoder", 0), ("decoder", 0), ("cross", 0), ("decoder", 1), ("cross", 1)
    ]  # fmt: skip
    cross = maps[2]
    assert cross.title == "Cross-attention, layer 0"
    assert cross.keys == ["a", "b", "c"] and cross.queries[0] == "<bos>"
    assert cross.weights.shape == (2, len(cross.queries), 3) and 1 < len(cross.queries) <= 12


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("abz",), "character 'z' at 2"),
        (("a" * 13,), "13 tokens; allowed: 1 to 12 tokens"),
    ],
)
def test_what_is_not_there_is_refused(arguments, words):
    with pytest.raises(BadInput, match=words):
        attention_maps(DECODER, *arguments)


def test_a_page_of_too_many_weights_is_refused(tmp_path):
    words = ["a"] * 400
    large = AttentionMap("decoder", 0, words, words, np.ones((2, 400, 400)))
    with pytest.raises(
        BadInput, match="a page of 320,000 attention weights; allowed: at most 200,000"
    ):
        write_attention("mine", "a", [large], tmp_path / "page.html")
    assert not list(tmp_path.iterdir())
