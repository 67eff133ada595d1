"""`sweeplab model`, as a person and as a program reads it."""

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


def test_params_of_several_models_stand_side_by_side(cli: Cli, folder: Path) -> None:
    said = cli("model", "params", "gpt2", "llama-7b", "mistral-7b")
    lines = {line.split()[0]: line.split()[1:] for line in said.out.splitlines() if line.strip()}
    assert lines["component"] == ["gpt2", "llama-7b", "mistral-7b"]
    assert lines["total"][::2] == ["124,439,808", "6,738,415,616", "7,241,732,096"]
    assert lines["head"] == ["131,072,000", "1.9%", "131,072,000", "1.8%"], "that of gpt2 is tied"
    (folder / "tiny.yaml").write_text(STUDY)
    found = json.loads(cli("model", "params", "tiny.yaml", "gpt2", "--json").out)
    assert [each["model"] for each in found["models"]] == ["n_embd=8", "n_embd=16", "gpt2"]
    assert json.loads(cli("model", "params", "gpt2", "--json").out)["total"] == 124_439_808


def test_params_say_what_experts_a_token_meets(cli: Cli) -> None:
    said = cli("model", "params", "-o", "n_expert=8", "-o", "n_expert_active=2")
    assert "of them active" in said.out and "is assumed here" in said.out


def test_trace_of_the_original_goes_through_encoder_and_decoder(cli: Cli) -> None:
    small = ["-o", "n_layer=1", "-o", "n_embd=16", "-o", "d_ff=32", "-o", "vocab_size=100"]
    asked = ["--preset", "transformer-base", *small, "--token=42", "--position=3", "--source-length=10"]
    said = cli("model", "trace", *asked)
    lines = {line.split()[0]: line.split()[1:] for line in said.out.splitlines() if " x " in line}
    assert lines["encoder.blocks.0.attention.weights"][:7] == ["1", "x", "8", "x", "10", "x", "10"]
    assert lines["blocks.0.cross.weights"][:7] == ["1", "x", "8", "x", "4", "x", "10"]
    assert lines["logits"][:5] == ["1", "x", "4", "x", "100"] and len(lines["logits"]) == 10
    found = json.loads(cli("model", "trace", *asked, "--values", "2", "--json").out)
    assert [step["name"] for step in found["steps"]] == list(lines)
    assert found["steps"][-1]["shape"] == [1, 4, 100] and len(found["steps"][-1]["values"]) == 2
    one = json.loads(cli("model", "trace", *asked, "--layer", "0", "--json").out)["steps"]
    assert [step["name"] for step in one] == [each for each in lines if "blocks.0." in each]
    assert cli("model", "trace", *asked, "--layer", "1").err.endswith(
        "there is no layer 1; allowed: 0 to 0\n"
    )
    other = json.loads(cli("model", "trace", *asked, "--seed", "1", "--values", "2", "--json").out)
    assert other["steps"][-1]["values"] != found["steps"][-1]["values"]


def test_a_trained_run_is_traced_and_drawn(cli: Cli, finished) -> None:
    asked = ["tiny", "--lab", finished.lab]
    said = cli("model", "trace", *asked, "--token", "5", "--position", "2")
    assert "its weights" in said.out and "final_norm" in said.out
    said = cli("model", "trace", *asked, "--prompt", "The print", "--values", "3")
    lines = said.out.splitlines()
    assert "'The print', its weights" in lines[0] and lines[-1].startswith("most probable tokens there: ")
    assert [line.split()[0] for line in lines if "attention.scores" in line or "attention.weights" in line]
    found = json.loads(cli("model", "trace", *asked, "--prompt", "The print", "--json").out)
    whole = json.loads(
        cli("model", "trace", *asked, "--prompt", "The print", "--values", "500", "--json").out
    )
    shares = whole["steps"][-1]["values"]
    assert whole["steps"][-1]["name"] == "probabilities" and sum(shares) == pytest.approx(1.0)
    assert [each["probability"] for each in found["likeliest"]] == sorted(shares, reverse=True)[:5]
    said = cli("model", "attention", *asked, "--prompt", "The print", "--output", "page.html", "--json")
    found = json.loads(said.out)
    assert Path(found["output"]).read_text().count('class="figure"') == len(found["maps"]) == 1
    assert found["maps"][0]["keys"] == list("The␣print")


@pytest.mark.slow
def test_coordinates_are_flat_under_mup_alone(cli: Cli, folder: Path) -> None:
    (folder / "tiny.yaml").write_text(STUDY)
    asked = ["--widths=16,32,64", "--steps=3", "-o", "mup_base_width=16", "-o", "learning_rate=2e-3"]
    said = cli("model", "coordinates", "tiny.yaml", *asked, "--output", "page.html", "--json")
    found = json.loads(said.out)
    last = {
        name: [
            each["power"] for each in found["powers"] if (each["parametrization"], each["step"]) == (name, 3)
        ]
        for name in ("standard", "mup")
    }
    assert min(last["standard"]) > 0.4 and max(map(abs, last["mup"][:-1])) < 0.25
    page = Path(found["output"]).read_text()
    assert page.count('class="figure"') == 2 and "Power of the width" in page
    said = cli("model", "coordinates", "tiny.yaml", *asked, "--output", "page.html")
    assert [line.split(":")[0] for line in said.out.splitlines()] == ["standard", "mup", "page.html written"]
    assert Path("page.html").read_text() == page
