"""Scaling laws from Python: the numbers of the command line, forecasts of rows, a figure."""

import json
import sys

import numpy as np
import pandas as pd
import pytest
from laws.planted_laws import GOOD, TRUTHS, losses
from terminal import captured

from sweeplab import laws
from sweeplab.errors import BadInput

TRUE = TRUTHS["steep"]


@pytest.fixture(scope="module")
def frame():
    n, d = GOOD["30 points, 6 x 5"]
    noise = np.exp(0.003 * np.random.default_rng(0).standard_normal(30))
    return pd.DataFrame(
        {
            "N": n,
            "D_B": d / 1e9,
            "val_loss": losses(TRUE, n, d) * noise,
            "source": np.tile([0, 1], 15),
        }
    )


@pytest.fixture(scope="module")
def law(frame):
    return laws.fit(frame, tuned="each", count={"params": "total"})


def test_numbers_and_verdicts(law):
    for name in ("E", "alpha", "beta"):
        each = law.numbers[name]
        assert each["low"] < TRUE[name] < each["high"]
    assert law.numbers["alpha"]["verdict"] == law.numbers["beta"]["verdict"] == "identified"
    assert not [each for each in law.warnings if "doubt" in each]


def test_a_file_gives_what_the_command_line_prints(law, frame, tmp_path, monkeypatch, capfd):
    from sweeplab.cli import main

    frame.to_csv(tmp_path / "runs.tsv", sep="\t", index=False)
    ours = laws.fit(tmp_path / "runs.tsv", where="source == 0", count={"rows": "all"}, tuned="each")  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["sweeplab", "laws", "fit", str(tmp_path / "runs.tsv"), "--json",
        "--where", "source == 0", "--count", "rows=all", "--tuned", "each"])  # fmt: skip
    with pytest.raises(SystemExit):
        main()
    theirs = json.loads(capfd.readouterr().out)
    assert theirs["parameters"] == {name: ours.numbers[name] for name in theirs["parameters"]}
    assert (
        theirs["dropped"]
        == ours.assessment.as_dict()["dropped"]
        == {"not where source == 0": 15}
    )


def test_a_table_that_does_not_say_the_unit_of_its_tokens_is_weak_at_best(frame):
    table = frame.assign(N=frame["N"] / 10, D=frame["D_B"] * 1e9)
    asked, told = (
        laws.fit(table, columns={"tokens": name}, tuned="each", count={"params": "total"})
        for name in ("D", "D*1")
    )
    assert "--columns tokens=D*1 says" in str(asked.warnings)
    verdicts = [law.numbers["alpha"]["verdict"] for law in (asked, told)]
    assert verdicts == ["weak", "identified"]


def test_rows_are_predicted_with_their_intervals(law):
    n, d = np.array([2e8, 4e8, 1e9]), np.array([4e9, 8e9, 2e10])
    found = law.predict(pd.DataFrame({"params": n, "tokens": d}, index=list("abc")))
    true = losses(TRUE, n, d)
    assert ((found["low"] < true) & (true < found["high"])).all() and list(found.index) == [
        "a",
        "b",
        "c",
    ]
    np.testing.assert_allclose(found["loss"], true, rtol=0.025)
    assert found["verdict"].isin(["identified", "weak"]).all()
    assert set(law.predict(pd.DataFrame({"params": n}))["why"]) == {
        "chinchilla needs tokens too"
    }


@pytest.mark.slow
def test_along_a_path_only_rows_on_it_have_a_loss():
    n = np.geomspace(1e6, 1e9, 12)
    along = laws.fit(pd.DataFrame({"N": n, "D": 20 * n, "L": 1.8 + 480 / n**0.35}))
    rows = pd.DataFrame({"params": [2e9, 2e9], "tokens": [4e10, 4e9]})
    on, off = along.predict(rows).to_dict("records")
    assert on["verdict"] != "not identified" and on["low"] < on["loss"] < on["high"]
    assert (
        off["verdict"] == "not identified"
        and pd.isna(off["loss"])
        and "lies off it" in off["why"]
    )
    assert along.predict(rows[["params"]]).loc[0, "loss"] == on["loss"], (
        "without tokens they follow params"
    )


def test_a_figure(law):
    figure = law.plot()
    assert len(figure.data) > 1 and figure.layout.yaxis.title.text


def test_refused(frame):
    with pytest.raises(
        BadInput, match=r"columns has no 'parms'; allowed: .* did you mean 'params'"
    ):
        laws.fit(frame, columns={"parms": "N"})
    with pytest.raises(BadInput, match="the table: which column is the loss"):
        laws.fit(frame.drop(columns="val_loss"))


@pytest.mark.slow
def test_laws_need_neither_torch_nor_optuna_nor_mlflow(frame, tmp_path):
    frame.to_csv(tmp_path / "runs.csv", index=False)
    program = (
        "import sys; sys.modules |= dict.fromkeys(['torch', 'optuna', 'mlflow', 'plotly', 'sqlalchemy'])\n"
        "import sweeplab; how = {'where': 'source < 2', 'tuned': 'each', 'count': {'params': 'total'}}\n"
        "law = sweeplab.laws.fit('runs.csv', **how)\n"
        "rows = law.predict(__import__('pandas').DataFrame({'params': [2e8], 'tokens': [8e9]}))\n"
        "print(law.numbers['alpha']['verdict'], law.assessment.points.n, rows['verdict'][0])"
    )
    shown = captured([sys.executable, "-c", program], cwd=tmp_path, check=True)
    assert shown.stdout.split() == ["identified", "30", "identified"]
