"""Laws of the shape: which law is chosen, the numbers that were planted, and what no design shows."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from laws.planted_shapes import GRIDS, TRUTHS, loss_of, params_of, plant_shapes, varied
from scipy.optimize import minimize_scalar

from sweeplab import laws
from sweeplab.analysis.studies import study_points
from sweeplab.analysis.table import validate
from sweeplab.errors import BadInput
from sweeplab.hyperparameters import TABLE, defaults
from sweeplab.laws.assessment import assess
from sweeplab.laws.choosing import choice_of
from sweeplab.laws.comparing import CellTrials
from sweeplab.laws.evidence import ONE_SEED
from sweeplab.laws.forms import LAWS
from sweeplab.laws.shape import BEST_EMBD, BEST_LAYER, DEPTH, NONE_DIFFERS, WORST, plane_of
from sweeplab.laws.shapes import shapes_of
from sweeplab.model.accounting import n_params
from sweeplab.model.shape import ModelShape, settled

FOUR = GRIDS[16]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("law", "rival"), [("shape", "width-depth"), ("width-depth", "shape"), ("power-n", "")]
)
def test_the_planted_form_is_chosen(law: str, rival: str) -> None:
    choice = choice_of(plant_shapes(law, 0.003, np.random.default_rng(3)))
    assert choice.law.name == law and choice.says
    if rival:
        assert f"{law} is chosen: it predicts larger runs better than power-n" in choice.says[0]
        assert choice.says[1] == f"{rival} is distinguished from it" and choice.doubt
    else:
        assert "do not predict larger runs better than power-n" in choice.says[0] and not choice.doubt


@pytest.mark.slow
def test_a_law_of_n_on_unlike_shapes_is_weak() -> None:
    points = plant_shapes("width-depth", 1e-4, layers=FOUR[0], widths=FOUR[1])
    alpha = {each.quantity.name: each for each in assess(points, LAWS["power-n"], others=()).estimates}[
        "alpha"
    ]
    assert alpha.verdict.verdict != "identified"


@pytest.mark.parametrize(
    ("layers", "widths", "family"),
    [
        ((2,), (16, 32, 64, 128), "n_layer 2 in all rows"),
        ((1, 2, 4, 8), (64,), "n_embd 64 in all rows"),
        ((1, 4), (16, 64), "cannot be compared with power-n"),
    ],
)
def test_the_family_along_which_a_law_of_n_holds(layers, widths, family: str) -> None:
    choice = choice_of(plant_shapes(layers=layers, widths=widths))
    assert choice.law.name == "power-n" and family in choice.reasons(choice.law)[0]
    assert bool(choice.doubt) == ("cannot" in family)
    said = shapes_of(plant_shapes(layers=layers, widths=widths))
    assert said.assessment is None and "is not identified" in said.says[0]
    json.dumps(said.as_dict())


@pytest.mark.slow
def test_the_best_shape_is_that_of_lowest_loss() -> None:
    """Found by hand among all shapes with as many parameters as the growth of N gives."""
    points, truth = plant_shapes("width-depth", 1e-5, layers=FOUR[0], widths=FOUR[1]), TRUTHS["width-depth"]
    found = shapes_of(points, 1e5)
    numbers, plane = found.as_dict()["derived"], plane_of(points)
    n = math.log(1e5) - plane.means["params"]

    def loss(layer: float) -> float:
        embd = math.exp(
            plane.means["n_embd"] + float(plane.embd(n, np.array(layer - plane.means["n_layer"])))
        )
        return loss_of("width-depth", truth, math.exp(layer), embd)

    best = minimize_scalar(loss, bounds=(-1, 3), method="bounded")
    assert numbers[BEST_LAYER]["value"] == pytest.approx(math.exp(best.x), rel=0.02)
    for name, other in (("half", -1), ("twice", 1)):
        cost = loss(best.x + other * math.log(2)) / best.fun
        assert numbers[f"{name} the best n_layer"]["value"] == pytest.approx(cost, rel=1e-3)
    sentences = " ".join(found.says)
    assert BEST_LAYER in sentences and BEST_EMBD in sentences and "at N = 100k the worst shape" in sentences
    beyond = shapes_of(points, 1e12).as_dict()["derived"][BEST_LAYER]
    assert beyond["value"] is None and "outside of those tried, 1 to 8" in beyond["why"]


@pytest.mark.slow
def test_a_product_is_best_at_an_end_and_flat_where_it_is() -> None:
    steep = shapes_of(plant_shapes(noise=1e-4))
    assert "the widest is the best: a product of powers is lowest at an end" in steep.says[-1]
    plane = plane_of(plant_shapes())
    flat = TRUTHS["shape"] | {"b": TRUTHS["shape"]["a"] * plane.p / plane.q}
    said = shapes_of(plant_shapes(noise=1e-4, truth=flat))
    assert "the loss is flat: shapes of n_layer" in said.says[-1]
    assert said.as_dict()["derived"][WORST]["high"] < 1.01


@pytest.mark.slow
def test_exponents_of_params_along_families() -> None:
    truth, plane = TRUTHS["width-depth"], plane_of(plant_shapes(layers=FOUR[0], widths=FOUR[1]))
    fit = assess(
        plant_shapes("width-depth", 1e-6, layers=FOUR[0], widths=FOUR[1]), LAWS["width-depth"], others=()
    )
    shown = fit.as_dict()["derived"]
    a, b, p, q = truth["a"], truth["b"], plane.p, plane.q
    assert shown["exponent of params, one n_layer"]["value"] == pytest.approx(a / q, rel=1e-2)
    assert shown["exponent of params, best shapes"]["value"] == pytest.approx(
        a * b / (q * b + p * a), rel=1e-2
    )
    one = shown["exponent of params, one n_embd / n_layer"]["value"]
    assert min(a, b) / (p + q) < one < max(a, b) / (p + q)


@pytest.mark.slow
def test_intervals_cover_the_planted_effect() -> None:
    held, random = [], np.random.default_rng(5)
    for _ in range(25):
        truth = varied("shape", random)
        points = plant_shapes("shape", 0.005, random, truth=truth)
        effects = assess(points, LAWS["shape"], others=()).estimates
        depth = next(each.interval for each in effects if each.quantity.name == DEPTH)
        plane = plane_of(points)
        ends = [
            loss_of("shape", truth, *(math.exp(x) for x in (layer, embd)))
            for layer, embd in (
                (plane.means["n_layer"] + side, plane.means["n_embd"] - side * plane.p / plane.q)
                for side in (math.log(2) / 2, -math.log(2) / 2)
            )
        ]
        held.append(depth.low <= math.log(ends[0] / ends[1]) <= depth.high)
    assert np.mean(held) >= 0.7


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_seeds", "sd", "verdict", "why"),
    [
        (1, 0.0, "weak", ONE_SEED),
        (3, 1.0, "weak", NONE_DIFFERS),
        (3, 1e-4, "identified", "its 90% interval ends"),
    ],
)
def test_a_study_says_of_depth_no_more_than_its_cells_do(
    n_seeds: int, sd: float, verdict: str, why: str
) -> None:
    """The fit alone calls the effect identified, whatever a seed does: its rows lie near the law by chance."""
    points, random = plant_shapes(layers=FOUR[0], widths=FOUR[1]), np.random.default_rng(1)
    losses = points.columns["loss"][:, None] + sd * random.standard_normal((points.n, n_seeds))
    tried = tuple(CellTrials([dict(enumerate(map(float, each)))], 1) for each in losses)
    found = shapes_of(replace(points, tried=tried)).as_dict()
    depth = found["derived"][DEPTH]
    assert depth["verdict"] == verdict and depth["why"].startswith(why)
    assert found["evidence"]["n_seeds"] == n_seeds
    assert (verdict == "identified") == found["says"][0].endswith("different")


@pytest.mark.slow
def test_the_frontier_is_the_brute_forces() -> None:
    points = plant_shapes(noise=0.05)
    found = shapes_of(points)
    for each in found.cells.itertuples():
        beaten = any(
            other.params <= each.params
            and other.loss <= each.loss
            and (other.params, other.loss) != (each.params, each.loss)
            for other in found.cells.itertuples()
        )
        assert each.on_frontier == (not beaten)


@pytest.mark.slow
def test_shapes_that_are_not_known_are_counted() -> None:
    points = plant_shapes(layers=FOUR[0], widths=FOUR[1])
    layer = points.shape["n_layer"].copy()
    layer[:3] = np.nan
    found = shapes_of(replace(points, shape=points.shape | {"n_layer": layer}))
    assert found.points.dropped == {"without a shape": 3} and len(found.cells) == 13
    with pytest.raises(BadInput, match="the shape needs n_layer and n_embd, which the table lacks"):
        shapes_of(replace(points, shape={}))


@pytest.mark.slow
def test_a_table_with_tokens_and_other_names() -> None:
    """The law of the shape has a term of tokens where they vary, and `predict` reads the table's own names."""
    random = np.random.default_rng(7)
    depth, width, tokens = (
        each.ravel()
        for each in np.meshgrid((1.0, 2, 4), (32.0, 64, 128, 256), (1e7, 4e7, 1.6e8), indexing="ij")
    )
    frame = pd.DataFrame(
        {"layers": depth, "d_model": width, "tokens": tokens, "params": params_of(depth, width)}
    )
    loss = 1.4 + 9 / (width**0.7 * depth**0.4) + 700 / tokens**0.45
    frame = frame.assign(loss=loss * np.exp(0.002 * random.standard_normal(len(loss))))
    law = laws.fit(frame, columns={"n_layer": "layers", "n_embd": "d_model"})
    assert law.assessment.fit.law.name == "shape-d" and law.numbers["t"]["value"] == pytest.approx(
        0.45, abs=0.1
    )
    assert law.assessment.points.conventions["n_layer"] == "column layers"
    seen = law.predict(frame.iloc[-1:])
    assert seen["low"].iloc[0] < loss[-1] < seen["high"].iloc[0]


def test_settings_without_numbers_are_not_pooled_silently() -> None:
    frame = pd.DataFrame(
        {"params": np.tile(np.geomspace(1e5, 1e7, 6), 2), "family": np.repeat(["decoder", "encoder"], 6)}
    )
    frame = frame.assign(
        loss=1.5 + 30 / frame["params"] ** 0.3 + 0.02 * frame["family"].eq("encoder"),
        note=[f"run {at}" for at in range(12)],
    )
    (pooled,) = [line for line in laws.fit(frame).warnings if "pooled" in line]
    assert pooled.startswith("decoder and encoder (family) are pooled into one law")
    one = laws.fit(frame, where="family == 'decoder'")
    assert not any("pooled" in line for line in one.warnings)


def test_a_studys_runs() -> None:
    """The best trial of each cell, its seeds averaged, with the parameters that are counted for real."""
    runs = []
    for n_layer in (1, 2, 4, 8):
        for n_embd in (16, 32, 64, 128):
            own = {
                "n_layer": n_layer,
                "n_embd": n_embd,
                "n_head": 2,
                "vocab_size": 64,
                "block_size": 32,
                "batch_size": 8,
            }
            on = {"device": "cpu", "dtype": "float32", "compile": False, "max_iters": 100}
            values = settled({**defaults(), **own, **on})
            n = n_params(ModelShape.named(values))
            for trial in range(2):
                for seed in range(2):
                    loss = (1 + 20 / n**0.2) * (n_embd / n_layer) ** 0.02 + 0.3 * trial + 0.001 * seed
                    runs.append(
                        {
                            **values,
                            "study": "planted",
                            "cell": f"n_layer={n_layer},n_embd={n_embd}",
                            "trial": trial,
                        }
                        | {
                            "seed": seed,
                            "state": "complete",
                            "best_val_loss": loss,
                            "final_val_loss": loss,
                            "value": loss,
                        }
                        | {
                            "n_params": n,
                            "n_params_active": n,
                            "n_params_non_embedding": n,
                            "train_tokens": 25600,
                            "train_flops": 1e9,
                        }
                        | {"wall_seconds": 1.0, "iterations": 100, "run_id": "x"}
                    )
    frame = pd.DataFrame(runs)
    pairs = {
        name: frame[name].astype(str) for name, row in TABLE.items() if row.kind == "floats" and name in frame
    }
    found = shapes_of(study_points(validate(frame.assign(**pairs)))).as_dict()
    assert found["n_shapes"] == 16 and all(each["weight"] == 2 for each in found["cells"])
    assert found["derived"][DEPTH]["value"] < 0.995, "deeper models were planted as better"
    assert "at equal parameters doubling the depth changes the loss by -" in found["says"][0]
