"""`sweeplab model`, as a person and as a program reads it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.conftest import STUDY, Said

Cli = Callable[..., Said]


def test_params_reproduces_the_lectures_table(cli: Cli) -> None:
    said = cli("model", "params", "--preset", "transformer-base", "-o", "vocab_size=30000")
    lines = [line.split() for line in said.out.splitlines()]
    assert ["token_embedding", "V*C", "15,360,000", "1", "15,360,000"] in lines
    assert ["attention", "encoder", "C*(H+2*G)*D", "+", "H*D*C", "1,048,576", "6", "6,291,456"] in lines
    assert ["feed_forward", "encoder", "2*C*F", "+", "F", "+", "C", "2,099,712", "6", "12,598,272"] in lines
    assert "The lecture slips" in said.out and "4,608 less" in said.out


@pytest.mark.parametrize("preset", ["gpt2", "bert-base", "t5-small", "minimal"])
def test_params_for_programs_add_up(cli: Cli, preset: str) -> None:
    found = json.loads(cli("model", "params", "--preset", preset, "--json").out)
    assert found["total"] == sum(found["components"].values())
    assert found["total"] == sum(part["each"] * part["layers"] for part in found["parts"])
    letters = {letter: size for letter, (_, size) in found["letters"].items()}
    for part in found["parts"]:
        assert eval(part["formula"], {}, letters) == part["each"]


def test_params_of_a_study_are_those_of_its_cells(cli: Cli, folder: Path) -> None:
    (folder / "tiny.yaml").write_text(STUDY)
    cells = json.loads(cli("model", "params", "tiny.yaml", "--json").out)["cells"]
    assert [each["model"] for each in cells] == ["n_embd=8", "n_embd=16"]
    one = cli("model", "params", "tiny.yaml", "--cell", "n_embd=8")
    assert f"n_embd=8: {cells[0]['total']:,} parameters" in one.out
    both = cli("model", "params", "tiny.yaml").out
    assert all(f"{each['total']:,}" in both for each in cells)


def test_params_say_what_experts_a_token_meets(cli: Cli) -> None:
    said = cli("model", "params", "-o", "n_expert=8", "-o", "n_expert_active=2")
    assert "of them active" in said.out and "stands for it here" in said.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--preset", "gpt3"], "did you mean 'gpt2'?"),
        (["tiny.yaml", "--preset", "gpt2"], "a file and a preset"),
        (["--cell", "n_embd=8"], "FILE --cell CELL"),
        (["tiny.yaml", "--cell", "n_embd=9"], "allowed: n_embd=8 | n_embd=16"),
        (["-o", "n_kv_head=4"], "-o n_kv_head=4: no cell meets 'n_kv_head divides n_head"),
        (["-o", "grid.n_layer=[1, 2]"], "these are 2 models"),
    ],
)
def test_params_refuse_in_one_line(cli: Cli, folder: Path, arguments: list[str], words: str) -> None:
    (folder / "tiny.yaml").write_text(STUDY)
    said = cli("model", "params", *arguments)
    assert said.code == 2 and said.out == ""
    assert words in said.err and len(said.err.splitlines()) == 1
