"""`sweeplab generate` and `sweeplab trace`, on runs of every family, and on one that was trained here."""

import json
import re

import pytest
from trained import run_in

FAMILIES = {
    "text": {},
    "masked": {"family": "encoder"},
    "span": {"family": "encoder_decoder", "block_size": 64, "mask_share": 0.3},
    "pairs": {"family": "encoder_decoder", "kind": "pairs"},
    "pairs-decoder": {"kind": "pairs"},
    "pairs-encoder": {"family": "encoder", "kind": "pairs"},
}


@pytest.fixture
def runs(folder):
    """Write a run of every family where the command line is."""
    for name, changed in FAMILIES.items():
        run_in(folder / name, **changed)
    return folder


@pytest.mark.parametrize(
    ("run", "prompt", "said"),
    [
        ("text", "the cat", r"the cat[a-z ]{5}"),
        ("masked", "the [MASK] s[MASK]t", r"the [a-z ] s[a-z ]t"),
        ("span", "the cat", r"the cat[a-z ]{0,5}"),
        ("span", "the [MASK] sat", r"the [a-z ]{0,5} sat"),
        ("pairs", "the cat", r"[a-z ]{0,5}"),
        ("pairs-decoder", "the cat", r"[a-z ]{0,5}"),
        ("pairs-encoder", "the[MASK][MASK]", r"[a-z ]{0,3}"),
    ],
)
def test_every_family_writes_and_its_json_says_the_same(run, prompt, said, runs, cli):
    command = ("generate", run, "--prompt", prompt, "--max-new-tokens", "5", "--seed", "7")
    found = cli(*command)
    assert (found.code, found.err) == (0, "")
    assert re.fullmatch(said + "\n", found.out), found.out
    plain = json.loads(cli(*command, "--json").out)
    assert (plain["run"], plain["prompt"], plain["seed"]) == (run, prompt, 7)
    assert plain["text"] == found.out[:-1]
    assert len(plain["tokens"]) <= 5


def test_a_seed_and_the_settings_decide_what_is_written(runs, cli):
    def text(*options):
        return cli("generate", "text", "--prompt", "a", "--max-new-tokens", "20", *options).out

    assert text() == text("--seed", "0") != text("--seed", "1")
    greedy = text("--greedy")
    assert greedy == text("--top-k", "1") == text("--top-p", "1e-9") != text()
    assert greedy == text("--temperature", "1e-9") == text("--temperature", "0", "--seed", "1")
    assert greedy == text("--beams", "1")


def test_beams_are_ranked_and_a_contrast_writes_other_text(runs, cli):
    command = ("generate", "pairs", "--prompt", "cat", "--max-new-tokens", "4")
    beams = json.loads(cli(*command, "--beams", "3", "--json").out)["beams"]
    assert [set(beam) for beam in beams] == [{"tokens", "log_probability", "score", "text"}] * 3
    assert [beam["score"] for beam in beams] == sorted(
        (beam["score"] for beam in beams), reverse=True
    )
    assert cli(*command, "--beams", "3").out == beams[0]["text"] + "\n"
    run_in(runs / "smaller", n_embd=4)
    alone = ("generate", "text", "--prompt", "cat", "--greedy")
    assert cli(*alone).out != cli(*alone, "--contrast", "smaller").out
