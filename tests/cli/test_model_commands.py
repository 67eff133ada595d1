"""`plan --layers`, `plan --coordinates` and `trace`, as a person and as a program reads them."""

from collections import defaultdict
from pathlib import Path

import pytest
from cli.conftest import STUDY

from sweeplab.runs.models import STEPS


def test_layers_reproduce_the_lectures_table(cli):
    said = cli("plan", "transformer-base", "--layers", "-o", "vocab_size=30000")
    lines = [" ".join(line.split()) for line in said.out.splitlines()]
    assert "token_embedding 15,360,000 1 15,360,000 25.8%" in lines
    assert "attention encoder 1,048,576 6 6,291,456 10.6%" in lines
    assert "feed_forward encoder 2,099,712 6 12,598,272 21.2%" in lines
    assert "The lecture slips" in said.out and "4,608 less" in said.out


def test_a_trained_run_is_traced_and_drawn(cli, json_of, finished):
    asked = ["tiny", "--lab", finished.lab]
    asked += ["--prompt", "The print"]
    assert "final_norm" in cli("trace", *asked).out
    found = json_of("trace", *asked, "--top", "999")
    assert found["steps"][-1]["name"] == "probabilities"
    likely = [token["probability"] for token in found["next"][0]]
    assert sum(likely) == pytest.approx(1.0) and likely == sorted(likely, reverse=True)
    drawn = json_of("trace", *asked, "--page", "page.html")
    assert (
        Path(drawn["page"]).read_text().count('class="figure"') == len(drawn["attention"]) == 1
    )
    assert drawn["attention"][0]["keys"] == list("The␣print")


@pytest.mark.slow
def test_coordinates_are_flat_under_mup_alone(json_of, folder):
    (folder / "tiny.yaml").write_text(STUDY)
    asked = ["--coordinates", "-o", "mup_base_width=16", "-o", "learning_rate=2e-3"]
    found = json_of("plan tiny.yaml", *asked)
    last = defaultdict(list)
    for each in found["powers"]:
        if each["step"] == STEPS - 1:
            last[each["parametrization"]].append(each["power"])
    assert min(last["standard"]) > 0.4 and max(map(abs, last["mup"][:-1])) < 0.25
