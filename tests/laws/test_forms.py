"""What every form keeps: its formula, its derivatives, and the optimum that follows from it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from laws.planted_laws import GOOD
from scipy.optimize import minimize_scalar

from sweeplab.laws.fitting import fit
from sweeplab.laws.forms import LAWS, Law, loss_at, optimum_of, parameters_of
from sweeplab.laws.points import Points

CENTRE = {"params": math.log(1e7), "tokens": math.log(2e8), "flops": math.log(1e16)}
CENTRE |= {"n_layer": math.log(4), "n_embd": math.log(128)}
LETTERS = {name: name for name in CENTRE} | {"params": "N", "tokens": "D", "flops": "C"}


def vectors(law: Law, count: int = 4) -> np.ndarray:
    """Return vectors inside of the bounds: [count, p]."""
    random = np.random.default_rng(1)
    theta = random.uniform(0.2, 0.8, (count, len(law.parameters)))
    for name in law.parameters:
        if name == law.power:
            theta[:, law.index(name)] = random.uniform(0.3, 1.7, count)
    return theta


def centered(random: np.random.Generator) -> dict[str, np.ndarray]:
    return {name: random.normal(0, 1.5, 11) for name in CENTRE}


def slopes(function, theta: np.ndarray) -> np.ndarray:
    """Return central differences of a function of vectors, [S, p, …]."""
    steps = 1e-6 * np.eye(theta.shape[1])
    return np.stack([(function(theta + step) - function(theta - step)) / 2e-6 for step in steps], axis=1)


each_law = pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)


@each_law
def test_the_formula_is_what_is_computed(law: Law) -> None:
    logs = centered(np.random.default_rng(2))
    raw = {LETTERS[name]: np.exp(logs[name] + CENTRE[name]) for name in CENTRE}
    for theta in vectors(law):
        natural = dict(zip(law.parameters, theta, strict=True))
        for term in law.terms:
            shift = sum(natural[exponent] * CENTRE[column] for exponent, column in term.powers)
            natural[term.scale] = math.exp(natural[term.scale] + shift)
        by_formula = eval(law.formula.split(" = ")[1].replace("^", "**"), {}, natural | raw)
        np.testing.assert_allclose(np.exp(law.log_loss(theta[None], logs)[0]), by_formula, rtol=1e-10)


@each_law
def test_derivatives(law: Law) -> None:
    logs, theta = centered(np.random.default_rng(3)), vectors(law)
    value, jacobian = law.derivatives(theta, logs)
    np.testing.assert_array_equal(value, law.log_loss(theta, logs))
    np.testing.assert_allclose(
        jacobian, slopes(lambda at: law.log_loss(at, logs), theta), rtol=1e-6, atol=1e-8
    )


@each_law
def test_gradients_of_quantities(law: Law) -> None:
    theta = vectors(law)
    target = {name: 3 * math.exp(CENTRE[name]) for name in CENTRE}
    quantities = [*parameters_of(law, CENTRE), *optimum_of(law, CENTRE, 1e17, 6.0)]
    for quantity in (*quantities, loss_at(law, CENTRE, target)):
        gradient = quantity.measure(theta)[1]
        by_steps = slopes(lambda at, own=quantity: own.measure(at)[0], theta)
        np.testing.assert_allclose(gradient, by_steps, rtol=1e-5, atol=1e-6, err_msg=quantity.name)


@pytest.mark.parametrize("name", ["chinchilla", "tied", "kaplan", "joint"])
def test_the_optimum_is_where_the_loss_is_lowest(name: str) -> None:
    law = LAWS[name]
    for budget in (1e15, 1e19):
        found = {each.name: each for each in optimum_of(law, CENTRE, budget, 6.0)}
        for theta in vectors(law):
            total = math.log(budget / 6) - CENTRE["params"] - CENTRE["tokens"]

            def loss(n: float, theta=theta, total=total) -> float:
                logs = {"params": np.array([n]), "tokens": np.array([total - n])}
                return float(law.log_loss(theta[None], logs)[0, 0])

            best = minimize_scalar(loss, bounds=(-60, 60), method="bounded", options={"xatol": 1e-10})
            ratio = total - 2 * best.x + CENTRE["tokens"] - CENTRE["params"]
            assert found["tokens per parameter"].at(theta) == pytest.approx(ratio, abs=1e-3)
            assert found["loss at budget"].at(theta) == pytest.approx(best.fun, abs=1e-9)


def test_the_exponent_of_the_optimum_is_its_slope() -> None:
    law, theta = LAWS["joint"], vectors(LAWS["joint"])
    here, there = (
        {each.name: each.measure(theta)[0] for each in optimum_of(law, CENTRE, budget, 6.0)}
        for budget in (1e18, 1e18 * math.e)
    )
    moved = there["tokens per parameter"] - here["tokens per parameter"]
    np.testing.assert_allclose(moved, here["D_opt exponent"] - here["N_opt exponent"], rtol=1e-9)


@each_law
def test_a_law_recovers_itself_from_exact_losses(law: Law) -> None:
    n, d = GOOD["30 points, 6 x 5"]
    truth = {"E": 1.7, "A": 400.0, "alpha": 0.36, "B": 900.0, "beta": 0.31, "gamma": 1.3}
    columns = {"N": n, "D": d, "C": 6 * n * d}
    loss = eval(law.formula.split(" = ")[1].replace("^", "**"), {}, truth | columns)
    points = Points({"params": n, "tokens": d, "flops": columns["C"], "loss": loss}, np.ones(len(n)))
    found = fit(points, law)
    for name, value in found.minimizer().items():
        assert value == pytest.approx(truth[name], rel=1e-3), name
    np.testing.assert_allclose(found.predict(points.sizes), loss, rtol=1e-7)
    assert found.converged and not found.at_bound()
