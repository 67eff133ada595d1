"""Laws on planted tables: what they recover, what their intervals hold, and what is refused."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from laws.planted_laws import GOOD, of_law, plant, plant_law, values_of
from scipy.optimize import minimize_scalar

from sweeplab.errors import BadInput
from sweeplab.laws.core import interval
from sweeplab.laws.fitting import fit, groups_of
from sweeplab.laws.forms import LAWS, optimum_of
from sweeplab.laws.points import points_of_frame
from sweeplab.laws.reading import read_frame

CHINCHILLA = LAWS["chinchilla"]
PUBLISHED = Path(__file__).parents[3] / "shared/data/chinchilla.csv"


@pytest.mark.parametrize("law", LAWS.values(), ids=list(LAWS))
def test_a_law_recovers_itself_from_exact_losses(law):
    n, d = GOOD["30 points, 6 x 5"]
    truth = of_law(law, "steep")
    columns = {"N": n, "D": d, "C": 6 * n * d}
    loss = eval(law.formula.split(" = ")[1].replace("^", "**"), {}, truth | columns)
    points = plant("steep", (n, d), 0.0, np.random.default_rng(0)).with_column("loss", loss)
    found = fit(points, law)
    for name, draws in found.values.items():
        assert np.median(draws) == pytest.approx(truth[name], rel=1e-3), name
    np.testing.assert_allclose(np.median(found.loss(points.columns), 0), loss, rtol=1e-4)


def held(law, truth, design, n_tables, shared=0.0):
    """Return the share of tables whose 90% interval holds each parameter."""
    inside = []
    for seed in range(n_tables):
        random = np.random.default_rng([seed, 77])
        if law is CHINCHILLA:
            points = plant(truth, GOOD[design], 0.01, random, shared)
        else:
            points = plant_law(law, truth, GOOD[design], 0.01, random)
        found, true = fit(points, law), of_law(law, truth)
        ends = [interval(found.values[name])[1:] for name in law.parameters]
        inside.append(
            [
                low < true[name] < high
                for name, (low, high) in zip(law.parameters, ends, strict=True)
            ]
        )
    return np.mean(inside, axis=0)


def test_intervals_cover():
    shares = held(CHINCHILLA, "steep", "12 points, 4 x 3", 30)
    assert (shares >= 0.73).all() and shares.mean() > 0.85


@pytest.mark.slow
def test_intervals_allow_for_errors_that_a_size_shares():
    assert held(CHINCHILLA, "hoffmann", "30 points, 6 x 5", 40, shared=0.36).mean() >= 0.8


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in LAWS if name != "chinchilla"])
def test_intervals_of_every_law_cover(name):
    assert held(LAWS[name], "steep", "30 points, 6 x 5", 30).mean() >= 0.78


@pytest.mark.skipif(not PUBLISHED.exists(), reason="the table is not here")
@pytest.mark.parametrize("first", [0, 5], ids=["all rows", "without the five outliers"])
def test_240_published_runs_hold_what_a_replication_found(first):
    """Besiroglu et al. 2024, Chinchilla scaling: a replication attempt."""
    points = points_of_frame(read_frame(PUBLISHED), "chinchilla.csv")
    found = fit(points.only(np.arange(points.n) >= first), CHINCHILLA)
    for name, value in {"alpha": 0.347, "beta": 0.367, "E": 1.817}.items():
        middle, low, high = interval(found.values[name])
        assert low < value < high, (name, low, middle, high)


def test_the_optimum_is_where_the_loss_is_lowest():
    for name, budget in (("chinchilla", 1e15), ("chinchilla", 1e19), ("tied", 1e17)):
        law = LAWS[name]
        values = values_of(of_law(law, "hoffmann"))
        numbers = {
            each.name: float(each.measure(values)[0]) for each in optimum_of(law, budget, 6.0)
        }
        log_nd = math.log(budget / 6)

        def loss(log_n, values=values, law=law, log_nd=log_nd):
            sizes = {"params": np.exp([log_n]), "tokens": np.exp([log_nd - log_n])}
            return float(law.loss(values, sizes)[0, 0])

        best = minimize_scalar(loss, bounds=(0, 60), method="bounded", options={"xatol": 1e-9})
        assert numbers["tokens per parameter"] == pytest.approx(log_nd - 2 * best.x, abs=1e-3)
        assert numbers["loss at budget"] == pytest.approx(math.log(best.fun), abs=1e-9)


def test_rows_of_a_size_share_an_error():
    grid, scattered = (
        plant("steep", GOOD[name], 0.01, np.random.default_rng(0))
        for name in ("12 points, 4 x 3", "245 scattered")
    )
    assert len(set(groups_of(grid))) == 4 and groups_of(scattered) is None


@pytest.mark.parametrize(
    ("law", "change", "said"),
    [
        (
            "chinchilla",
            lambda table, n: {k: c[:5] for k, c in table.items()},
            "5 rows for the 5 parameters",
        ),
        (
            "power-n",
            lambda table, n: table | {"params": np.full(n, 1e6)},
            "all rows have params 1e+06",
        ),
        ("power-d", lambda table, n: table | {"loss": np.full(n, 3.0)}, "all losses are 3"),
        (
            "tied",
            lambda table, n: {k: c for k, c in table.items() if k != "tokens"},
            "tied needs 'tokens'",
        ),
    ],
)
def test_what_is_refused(law, change, said):
    points = plant("steep", GOOD["9 points, 3 x 3"], 0.01, np.random.default_rng(0))
    table = change(points.columns, points.n)
    with pytest.raises(BadInput, match=said.replace("+", r"\+")):
        fit(replace(points, columns=table, weights=np.ones(len(table["loss"]))), LAWS[law])
