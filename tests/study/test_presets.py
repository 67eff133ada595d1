"""Presets: the published models, their totals, and what a study makes of them."""

from pathlib import Path

import pytest
from tiny_study import problem_of

from sweeplab.hyperparameters import defaults
from sweeplab.model.accounting import n_params
from sweeplab.runs.models import model_of, models_of
from sweeplab.study.file.reading import read_study
from sweeplab.study.spec import preset_names

PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "gpt3": 174_604_259_328,
    "llama-7b": 6_738_415_616,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "bert-base": 109_514_298,
    "bert-large": 335_174_458,
    "roberta-base": 124_695_897,
    "distilbert-base": 66_985_530,
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "bart-large": 406_287_360,
    "transformer-base": 63_045_632,
    "transformer-big": 214_171_648,
    "nanogpt-char": 10_745_088,
}
STUDY = """\
name: ours
data: {corpus: python-docs, tokenizer: byte}
preset: nanogpt-char
fixed: {vocab_size: auto, n_embd: 96}
grid: {n_layer: [1, 2]}
search: {learning_rate: suggested}
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "ours.yaml").write_text(STUDY)
    return tmp_path / "ours.yaml"


def test_these_are_all_presets():
    assert set(preset_names()) == PUBLISHED.keys() | {"table"}


@pytest.mark.parametrize("name", PUBLISHED)
def test_totals_are_the_published_ones_and_said(name):
    found = model_of(name)
    assert n_params(found.shape) == PUBLISHED[name]
    assert any(f"{PUBLISHED[name]:,} parameters" in note for note in found.notes)


def test_the_tables_presets_are_the_table():
    table = {name: value for name, value in defaults().items() if name != "seed"}
    assert read_preset("table").fixed == table


def read_preset(name):
    text = f"name: a\ndata: {{corpus: python-docs, tokenizer: char}}\npreset: {name}\n"
    return read_study(Path("a.yaml"), text=text)


def test_what_the_file_says_wins(file):
    spec = read_study(file)
    assert spec.fixed["n_embd"] == 96 and spec.fixed["block_size"] == 256
    assert "n_layer" not in spec.fixed and "learning_rate" not in spec.fixed
    assert read_study(file, ["n_embd=60", "n_layer=3"]).fixed["n_layer"] == 3
    assert read_study(file, ["preset=gpt2"]).fixed["block_size"] == 1024


def test_a_study_has_a_model_a_cell(file):
    one, two = models_of(file)
    assert (one.name, one.shape.n_layer, one.shape.vocab_size) == ("n_layer=1", 1, 256)
    assert n_params(two.shape) > n_params(one.shape)
    assert models_of(file, cell="n_layer=2") == [two]


@pytest.mark.parametrize(
    ("line", "place", "words"),
    [
        ("preset: gpt2-smal", "a.yaml:3:1", "did you mean 'gpt2-xl'?"),
        ("preset: [gpt2]", "a.yaml:3:1", "allowed: a string"),
        (
            "preset: nanogpt-char\nfixed: {n_embd: 100}",
            "a.yaml:3:1",
            "n_embd is 100, n_head is 6",
        ),
    ],
)
def test_what_is_wrong_is_said_at_its_line(line, place, words):
    text = f"name: a\ndata: {{corpus: python-docs, tokenizer: byte}}\n{line}\n"
    problem = problem_of(lambda: read_study(Path("a.yaml"), text=text))
    assert problem.startswith(place) and words in problem
