"""Depth against width: planted effects are found at equal parameters, and none is claimed where none can be seen."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from sweeplab.analysis.points import study_points
from sweeplab.analysis.table import validate
from sweeplab.errors import BadInput
from sweeplab.hyperparameters import TABLE, defaults
from sweeplab.laws.comparing import CellTrials
from sweeplab.laws.compute_optimal.shape import MEANINGS, NONE_DIFFERS, shape_of
from sweeplab.laws.evidence import ONE_SEED
from sweeplab.laws.points import Points
from sweeplab.model.accounting import n_params
from sweeplab.model.shape import ModelShape, settled

LAYERS, WIDTHS = (1, 2, 4, 8), (32, 64, 128, 256)


def plant(
    effect=0.0, bend=0.0, noise=0.001, seed=0, layers=LAYERS, widths=WIDTHS, tokens=(1e7,), best=32.0
) -> Points:
    """Return a grid of shapes whose loss falls with N, and by exp(effect) as the aspect ratio grows by e."""
    random = np.random.default_rng(seed)
    layer, embd, d = (
        each.ravel().astype(float) for each in np.meshgrid(layers, widths, tokens, indexing="ij")
    )
    n = 12 * layer * embd**2 + 100 * embd
    aspect = np.log(embd / layer / best)
    own = random.normal(0, noise, (len(layers), len(widths), 1)).repeat(len(tokens), 2).ravel()
    loss = (1 + 20 / n**0.2) * (d / 1e7) ** -0.05 * np.exp(effect * aspect + bend * aspect**2 + own)
    shape = {"n_layer": layer, "n_embd": embd}
    return Points({"params": n, "tokens": d, "flops": 6 * n * d, "loss": loss}, np.ones(len(n)), shape=shape)


@pytest.mark.parametrize("effect", [-0.02, 0.0, 0.015])
def test_the_planted_effect_at_equal_parameters(effect: float) -> None:
    found = shape_of(plant(effect))
    p, q = found.growth or (0, 0)
    assert 0.8 < p < 1.1 and 1.5 < q < 2.1, "the embedding's parameters grow slower"
    depth, width = (found.numbers[f"{name} at equal parameters"] for name in ("depth", "width"))
    assert depth.value == pytest.approx(-(1 + p / q) * math.log(2) * effect, abs=1e-3)
    assert width.value == pytest.approx((1 + q / p) * math.log(2) * effect, abs=2e-3)
    assert depth.low < depth.value < depth.high and depth.high - depth.low < 2e-3
    assert depth.verdict.verdict == "identified"
    assert ("an interval that includes zero" in found.says) == (depth.low <= 0 <= depth.high)


@pytest.mark.parametrize(
    ("n_seeds", "sd", "verdict", "why"),
    [
        (1, 0.0, "weak", ONE_SEED),
        (3, 1.0, "weak", NONE_DIFFERS),
        (3, 1e-4, "identified", "its 90% interval ends a factor 1 from the value"),
    ],
)
def test_a_study_says_of_depth_no_more_than_its_cells_do(
    n_seeds: int, sd: float, verdict: str, why: str
) -> None:
    """The fit alone calls the effect identified, whatever a seed does: its rows lie near the curve by chance."""
    points, random = plant(0.05), np.random.default_rng(1)
    losses = points.columns["loss"][:, None] + sd * random.standard_normal((points.n, n_seeds))
    tried = tuple(CellTrials([dict(enumerate(map(float, each)))], 1) for each in losses)
    found = shape_of(replace(points, tried=tried))
    depth = found.numbers["depth at equal parameters"]
    assert depth.verdict.verdict == verdict and depth.verdict.reason == why
    assert found.evidence.n_seeds == n_seeds
    assert found.says.endswith(found.evidence.in_words()) and (verdict == "identified") == (
        "different" in found.says
    )
    assert found.as_dict()["evidence"]["verdict"] == found.evidence.verdict


def test_its_interval_covers() -> None:
    held = []
    for seed in range(100):
        found = shape_of(plant(0.01, noise=0.003, seed=seed))
        p, q = found.growth or (0, 0)
        depth = found.numbers["depth at equal parameters"]
        held.append(depth.low <= -(1 + p / q) * math.log(2) * 0.01 <= depth.high)
    assert 0.8 <= np.mean(held) <= 0.98


def test_runs_of_one_shape_are_one_row() -> None:
    """Five lengths of training share what a shape does: the interval is that of 16 shapes, not of 80 points."""
    held = []
    for seed in range(60):
        found = shape_of(plant(0.01, noise=0.003, seed=seed, tokens=(3e6, 1e7, 3e7, 1e8, 3e8)))
        p, q = found.growth or (0, 0)
        depth = found.numbers["depth at equal parameters"]
        held.append(depth.low <= -(1 + p / q) * math.log(2) * 0.01 <= depth.high)
    assert found.n_shapes == 16 and len(found.cells) == 80
    assert 0.78 <= np.mean(held) <= 0.99


def test_the_best_aspect_ratio() -> None:
    found = shape_of(plant(bend=0.01))
    best = found.numbers["best aspect ratio"]
    assert best.identified and math.exp(best.value) == pytest.approx(32, rel=0.05)
    assert best.low < best.value < best.high
    assert "the best aspect ratio is about" in found.says
    straight = shape_of(plant(effect=0.02)).as_dict()["numbers"]["best aspect ratio"]
    assert (straight["value"], straight["verdict"]) == (None, "not identified")
    edge = shape_of(plant(bend=0.01, best=3000.0)).numbers["best aspect ratio"]
    assert not edge.identified


@pytest.mark.parametrize(
    ("layers", "widths"),
    [((1,), WIDTHS), ((1, 2), (32, 256)), ((4,), (64,))],
    ids=["one depth", "no overlap", "one shape"],
)
def test_what_the_design_does_not_show_gets_no_number(layers, widths) -> None:
    found = shape_of(plant(0.05, layers=layers, widths=widths))
    said = found.as_dict()["numbers"]
    for name in ("depth at equal parameters", "width at equal parameters", "best aspect ratio"):
        assert (said[name]["value"], said[name]["verdict"]) == (None, "not identified")
    assert "shape cannot be separated from that of size" in said["depth at equal parameters"]["why"]
    assert found.says.startswith("the effect of depth or width at equal parameters is not identified")
    json.dumps(found.as_dict())


def test_sizes_and_shapes_on_one_line_are_not_told_apart() -> None:
    """Every larger model is also deeper: nothing varies at equal parameters."""
    layer, embd = np.array([1.0, 2, 4, 8, 12, 16]), np.array([32.0, 64, 128, 256, 384, 512])
    n = 12 * layer * embd**2
    points = Points({"params": n, "loss": 20 / n**0.1}, np.ones(6), shape={"n_layer": layer, "n_embd": embd})
    found = shape_of(points)
    assert not any(found.numbers[name].identified for name in MEANINGS)


def test_each_with_the_other_fixed() -> None:
    """On a pure power law in both, the regression has its exponents."""
    layer, embd = (
        each.ravel().astype(float) for each in np.meshgrid((1, 2, 4), (32, 64, 128), indexing="ij")
    )
    loss = 9 * layer**-0.03 * embd**-0.08 * np.exp(np.random.default_rng(2).normal(0, 1e-4, 9))
    points = Points(
        {"params": 12 * layer * embd**2, "loss": loss}, np.ones(9), shape={"n_layer": layer, "n_embd": embd}
    )
    found = shape_of(points)
    for name, power in (("depth at equal n_embd", -0.03), ("width at equal n_layer", -0.08)):
        at = found.numbers[name]
        assert at.low <= power * math.log(2) <= at.high and at.high - at.low < 2e-3
    one = shape_of(plant(layers=(2,))).as_dict()["numbers"]
    assert one["depth at equal n_embd"]["why"] == "all shapes have n_layer 2"
    assert one["width at equal n_layer"]["value"] is not None


def test_losses_at_equal_parameters_differ_by_the_shape_alone() -> None:
    found = shape_of(plant(0.02, noise=0.0, tokens=(1e7, 1e8)))
    logs = np.array([math.log(each.loss_at_equal_params) for each in found.cells.itertuples()])
    aspect = np.array([math.log(each.n_embd / each.n_layer) for each in found.cells.itertuples()])
    slope, at = np.polyfit(aspect, logs, 1)
    assert slope == pytest.approx(0.02, abs=0.003)
    assert (
        np.abs(logs - at - slope * aspect).max()
        < 0.01
        < np.ptp([math.log(each.loss) for each in found.cells.itertuples()])
    )


def test_the_frontier_is_the_brute_forces() -> None:
    found = shape_of(plant(0.03, noise=0.01, tokens=(1e7, 1e8)))
    for each in found.cells.itertuples():
        beaten = any(
            other.tokens == each.tokens
            and other.params <= each.params
            and other.loss <= each.loss
            and (other.params, other.loss) != (each.params, each.loss)
            for other in found.cells.itertuples()
        )
        assert each.on_frontier == (not beaten)
    for tokens in (1e7, 1e8):
        losses = [each["loss"] for each in found.as_dict()["frontier"] if each["tokens"] == tokens]
        assert losses == sorted(losses, reverse=True) and len(losses) > 2


def test_lines_with_the_other_fixed() -> None:
    found = shape_of(plant(tokens=(1e7, 1e8)))
    lines = found.as_dict()["fixed"]
    assert len(lines) == 16
    (line,) = [
        each for each in lines if each["over"] == "n_layer" and each["fixed"] == {"n_embd": 64, "tokens": 1e8}
    ]
    assert line["x"] == list(LAYERS) and line["loss"] == sorted(line["loss"], reverse=True)


def test_shapes_that_are_not_known_are_counted() -> None:
    points = plant()
    layer = points.shape["n_layer"].copy()
    layer[:3] = np.nan
    found = shape_of(replace(points, shape=points.shape | {"n_layer": layer}))
    assert found.dropped == {"without a shape": 3} and len(found.cells) == 13


def test_refused() -> None:
    with pytest.raises(BadInput, match="the shape needs n_layer and n_embd, which the table lacks"):
        shape_of(replace(plant(), shape={}))


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
    import pandas as pd

    frame = pd.DataFrame(runs)
    pairs = {
        name: frame[name].astype(str) for name, row in TABLE.items() if row.kind == "floats" and name in frame
    }
    found = shape_of(study_points(validate(frame.assign(**pairs))))
    assert found.n_shapes == 16 and all(each.weight == 2 for each in found.cells.itertuples())
    depth = found.numbers["depth at equal parameters"]
    p, q = found.growth or (0, 0)
    assert depth.identified and depth.value == pytest.approx(-(1 + p / q) * math.log(2) * 0.02, abs=0.006)
    assert "at equal parameters doubling the depth changes the loss by -" in found.says
