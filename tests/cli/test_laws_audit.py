"""`sweeplab laws audit`, and how every `laws` command counts, on a study that was really trained."""

import json
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sweeplab.analysis.cures import study_command
from sweeplab.analysis.studies import Studies, read_studies
from sweeplab.cli.laws import read_source
from sweeplab.errors import BadInput
from sweeplab.laws.columns import Conventions


def test_the_findings_of_a_study(cli, finished) -> None:
    said = cli("laws", "audit", "tiny", "--lab", finished.lab)
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("2 points; no law\nno law: 2 rows for the 3 parameters of power-n; ")
    assert "\nbetas: found: betas is (0.9, 0.95) in every run: " in said.out and "(all points)\n" in said.out
    assert "\nsettings that are clear: " in said.out and "learning-rate" in said.out.splitlines()[-1]


SWEEP = Path(__file__).parents[1] / "benchmarks/data/sweep_small.csv"


@pytest.mark.slow
def test_a_table_of_runs_is_split(cli) -> None:
    """Nine cells of an old studies/small.yaml: depth and width at equal parameters come first, then seeds."""
    said = cli("laws", "audit", SWEEP, "--json")
    audited = json.loads(said.out)
    assert [each["name"] for each in audited["causes"] if each["state"] == "named"] == ["shape", "seeds"]
    cures = {each["name"]: each["cure"] for each in audited["causes"]}
    assert cures["shape"]["words"].startswith("one depth: n_layer") and cures["shape"]["seconds"] > 60
    assert cures["shape"]["half_width"] < audited["number"]["half_width"]
    assert cures["what is left"]["command"].startswith(f"sweeplab laws next {SWEEP} --law power-n --flops ")
    shown = cli("laws", "audit", SWEEP, "--where", "n_layer > 1").out
    assert (
        "\ntokens and epochs cannot be split: " in shown
        and "a column epochs or unique_tokens would tell" in shown
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {"seeds": 2, "rows": [0]}, {"seeds": 1, "rows": [0, 1]}, {"n_layer": 2, "new": [24]},
        {"name": "learning_rate", "max": 0.1}, {"tokens_per_param": 2.5}, {"trials": 2},
    ],
    ids=str,
)  # fmt: skip
def test_the_command_of_a_cure_is_one_that_runs(cli, finished, change: dict) -> None:
    (spec,) = read_studies(finished.lab, ["tiny"]).specs.values()
    cells = [{"n_embd": value} for value in spec.grid["n_embd"]]
    command = study_command("tiny", spec, cells, change)
    program, *words = shlex.split(command or "")
    assert program == "sweeplab"
    if "trials" in change:
        assert words == ["study", "extend", "tiny", "--trials-per-cell", "4"]
        return
    said = cli(*words, "--dry-run", "--json", "--lab", finished.lab)
    assert said.code == 0, said.err


def test_a_study_in_bits_a_byte(finished) -> None:
    """Python's documentation has characters of several bytes, so a token may be a little more than one."""
    nats, bits, final = (
        read_source("tiny", None, count, finished.lab).points
        for count in (None, "loss=bits-per-byte", "at=final")
    )
    per_token = nats.columns["loss"] / np.log(2) / bits.columns["loss"]
    assert 1 <= per_token[0] < 1.05 and per_token[0] == pytest.approx(per_token[1])
    assert final.conventions["loss"].endswith("last evaluation of a run")


LOSSES = ("best_val_loss", "best_bits_per_byte", "best_whole_val_loss", "best_whole_bits_per_byte")


def two(finished, data: dict[str, str] | None = None, at: str = "best") -> Studies:
    """Return the study twice: as it is, and as another with these digests and objective."""
    one = read_studies(finished.lab, ["tiny"])
    spec = one.specs["tiny"]
    other = spec.model_copy(
        update={"name": "other", "objective": spec.objective.model_copy(update={"at": at})}
    )
    runs = pd.concat(
        [one.runs, one.runs.assign(study="other", **{name: 1.1 * one.runs[name] for name in LOSSES})]
    )
    return Studies(
        runs.reset_index(drop=True),
        {"tiny": spec, "other": other},
        {"tiny": one.data["tiny"], "other": one.data["tiny"] | (data or {})},
    )


def test_two_studies_as_one(finished) -> None:
    points = two(finished).points()
    assert points.n == 4 and [name.split("/")[0] for name in points.names] == ["tiny"] * 2 + ["other"] * 2
    bits = two(finished).points(None, Conventions(loss="bits-per-byte"))
    np.testing.assert_allclose(bits.columns["loss"] / points.columns["loss"], 1 / np.log(2), rtol=0.05)


@pytest.mark.parametrize(
    ("data", "loss", "said"),
    [
        ({"text_digest": "0", "token_digest": "0"}, "", "tiny and other were trained on different text: losses"),
        ({"text_digest": "0", "token_digest": "0"}, "bits-per-byte", "on different text"),
        ({"token_digest": "0"}, "", "different tokens: losses in nats/token cannot be compared; of one text, --count"),
    ],
)  # fmt: skip
def test_studies_whose_losses_cannot_be_compared(
    data: dict[str, str], loss: str, said: str, finished
) -> None:
    with pytest.raises(BadInput, match=said):
        two(finished, data).points(None, Conventions(loss=loss))


def test_studies_that_are_valued_differently(finished) -> None:
    studies = two(finished, at="final")
    with pytest.raises(
        BadInput, match="value a run by different evaluations; allowed: --count at=best or at=final"
    ):
        studies.points()
    with pytest.raises(
        BadInput, match=r"differently: tiny by val_loss \(best\), other by val_loss \(final\)"
    ):
        studies.check_comparable()
    final = studies.points(None, Conventions(at="final"))
    assert (final.n, final.dropped["duplicate"]) == (2, 2), (
        "the last losses were not changed: the same runs twice"
    )
    with pytest.raises(BadInput, match="'tiny' is named twice"):
        read_studies(finished.lab, ["tiny", "tiny"])


@pytest.mark.slow
def test_what_is_left_is_cured_by_a_command_that_runs_on_the_table_as_it_is_read(cli, folder: Path) -> None:
    random, sizes = np.random.default_rng(2), np.geomspace(1e6, 1e8, 9)
    losses = (1.5 + 400 / sizes**0.35) * np.exp(0.02 * random.standard_normal(9))
    table = pd.DataFrame({"size": sizes, "tokens": 1e10, "score": losses, "other": 1.0, "run": range(9)})
    table.to_csv(folder / "bent.csv", index=False)
    options = ("--columns", "params=size,loss=score", "--where", "run != 4", "--tuned", "each")
    audited = json.loads(cli("laws", "audit", "bent.csv", *options, "--json").out)
    (command,) = (each["cure"]["command"] for each in audited["causes"] if each["name"] == "what is left")
    program, *words = shlex.split(command)
    assert program == "sweeplab" and set(options) <= set(words)
    said = cli(*words, "--json")
    assert said.code == 0, said.err
    assert json.loads(said.out)["quantity"] == audited["number"]["name"]


@pytest.mark.slow
def test_an_exported_table_is_audited_as_its_study(cli, finished, folder: Path) -> None:
    assert cli("study", "export", "tiny", "--lab", finished.lab, "--output", "tiny.csv").code == 0
    of_table, of_study = (
        cli("laws", "audit", *of) for of in (("tiny.csv",), ("tiny", "--lab", finished.lab))
    )
    assert (of_table.code, of_table.err) == (0, "")
    assert of_table.out.splitlines()[:2] == of_study.out.splitlines()[:2]


def test_the_studies_settle_what_is_counted(finished) -> None:
    studies = read_studies(finished.lab, ["tiny"])
    assert studies.settled() == Conventions(at="best")
    assert studies.settled(Conventions(at="final")) == Conventions(at="final")
    assert set(studies.designs) == {"tiny"}
    assert studies.design.grid == ("n_embd",) and list(studies.design.search) == ["learning_rate"]
