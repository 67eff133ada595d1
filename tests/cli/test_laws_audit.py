"""`sweeplab laws audit`, and how every `laws` command counts, on a study that was really trained."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sweeplab.analysis.studies import Studies, read_studies
from sweeplab.cli.laws.source import read_source
from sweeplab.errors import BadInput
from sweeplab.laws.conventions import Conventions

NAMES = [
    "embeddings", "head", "warm-up", "decay", "learning-rate", "batch-size", "betas", "learning-rate-edge",
    "batch-size-edge", "betas-edge", "cut-short", "best-before-end", "epochs", "chosen-among", "seeds",
]  # fmt: skip


def test_the_findings_of_a_study(cli, finished) -> None:
    said = cli("laws", "audit", "tiny", "--lab", finished.lab)
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("2 points; exponents of no law: the points allow none\n")
    assert "\nbetas: found: betas is (0.9, 0.95) in every run: " in said.out
    assert "\nlearning-rate: clear: every size tried 2 values" in said.out and "  points: all 2\n" in said.out
    assert "no exponents: 2 rows for the 3 parameters" in said.out


def test_json(cli, finished) -> None:
    found = json.loads(cli("laws", "audit", "tiny", "--lab", finished.lab, "--json").out)
    assert [each["name"] for each in found["findings"]] == NAMES
    assert (found["law"], found["n_points"]) == (None, 2)
    states = {each["name"]: each["state"] for each in found["findings"]}
    assert states["embeddings"] == states["seeds"] == states["batch-size"] == "found"
    assert states["warm-up"] == states["decay"] == states["cut-short"] == "clear"
    counted = cli(
        "laws", "audit", "tiny", "--lab", finished.lab, "--json", "--count", "params=non-embedding,flops=6nd"
    )
    states = {each["name"]: each["state"] for each in json.loads(counted.out)["findings"]}
    assert (states["embeddings"], states["head"]) == ("clear", "found")


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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fit", "tiny,runs.csv"], "'runs.csv' is a file; allowed: studies, with commas between them"),
        (["fit", "tiny,tinny"], "no study 'tinny' in "),
        (
            ["fit", "tiny", "--count", "params=all"],
            "--count params=all; allowed: total, active, non-embedding, with-head",
        ),
        (
            ["fit", "runs.csv", "--count", "params=with-head"],
            "runs.csv: --count params=with-head needs a study's runs",
        ),
        (["fit", "none.csv"], "none.csv: no row can be used: 2 not finite"),
        (["audit", "tinny"], "no study 'tinny' in "),
        (["audit", "runs.csv"], "'runs.csv' is a file; allowed: studies, with commas between them"),
    ],
)
def test_bad_input(arguments: list[str], said: str, cli, folder: Path, finished) -> None:
    (folder / "runs.csv").write_text("params,tokens,loss\n1e6,2e7,3\n2e6,4e7,2.8\n")
    (folder / "none.csv").write_text("params,tokens,loss\n1e6,2e7,\n2e6,4e7,nan\n")
    found = cli("laws", *arguments, "--lab", finished.lab)
    assert (found.code, found.out) == (2, "")
    assert said in found.err and len(found.err.splitlines()) == 1


def test_the_studies_settle_what_is_counted(finished) -> None:
    studies = read_studies(finished.lab, ["tiny"])
    assert studies.settled() == Conventions(at="best")
    assert studies.settled(Conventions(at="final")) == Conventions(at="final")
    assert set(studies.designs) == {"tiny"}
    assert studies.design.grid == ("n_embd",) and list(studies.design.search) == ["learning_rate"]
