"""The coordinate check: under muP activations after some steps do not depend on the width, under standard they grow."""

import math

import pytest

from sweeplab.model.layout import Weight
from sweeplab.train.coordinates import Coordinate, coordinates, growth

WIDTHS = (32, 64, 128, 256)
N_STEPS = 5


@pytest.fixture
def grown(values_of, tokens):
    """Return by which power of the width each layer's activations go: before the first step and after the last."""

    def of(parametrization, **changed):
        values = values_of(
            **{"mup_base_width": 32, "learning_rate": 2e-3, "weight_decay": 0.0, **changed},
            parametrization=parametrization,
        )
        slopes = growth(
            row
            for width in WIDTHS
            for row in coordinates(values.replace(n_embd=width), tokens, N_STEPS)
        )
        return tuple(
            {layer: slope for (_, at, layer), slope in slopes.items() if at == step}
            for step in (0, N_STEPS)
        )

    return of


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "head", "changed"),
    [
        ("adamw", "token_embedding", {}),
        ("adamw", "head.weight", {"tie_weights": False}),
        ("lion", "token_embedding", {"learning_rate": 5e-4}),
    ],
)
def test_flat_under_mup_and_growing_under_standard(optimizer, head, changed, grown):
    before, after = grown("standard", optimizer=optimizer, **changed)
    assert min(before.values()) > 0.4
    assert min(after.values()) > 0.4
    assert after[head] > 0.6
    before, after = grown("mup", optimizer=optimizer, **changed)
    # The head begins as its root falls, and what is learned makes up for it.
    assert before.pop(head) == pytest.approx(-0.5, abs=0.1)
    assert -0.45 < after.pop(head) < 0.1
    assert max(map(abs, before.values())) < 0.1
    assert max(map(abs, after.values())) < 0.25


def test_without_its_learning_rates_mup_grows(grown, monkeypatch):
    start = Weight.width_factors
    monkeypatch.setattr(
        Weight, "width_factors", lambda weight, ratio: (start(weight, ratio)[0], 1.0)
    )
    before, after = grown("mup")
    assert max(before.values()) < 0.1
    assert max(after.values()) > 0.5


def test_experts_are_one_layer(values_of, tokens):
    rows = coordinates(values_of(n_expert=4, n_expert_active=2, max_iters=1), tokens, n_steps=1)
    found = {row.layer for row in rows if row.layer.startswith("blocks.0.feed_forward")}
    assert found == {
        f"blocks.0.feed_forward.{part}.weight" for part in ("router", "up", "down")
    }


def test_growth_is_the_power():
    rows = [Coordinate("mup", width, 1, "head", 3.0 * width**0.5) for width in WIDTHS]
    assert growth(rows) == {("mup", 1, "head"): pytest.approx(0.5)}
    assert math.isnan(growth([*rows, rows[0]._replace(size=math.inf)])["mup", 1, "head"])
