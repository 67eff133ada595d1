"""The coordinate check: under muP activations after some steps do not depend on the width, under standard they grow."""

from __future__ import annotations

import pytest

from sweeplab.train.coordinates import Coordinate, coordinates, growth

WIDTHS = (32, 64, 128, 256)
N_STEPS = 4


@pytest.fixture
def grown(values_of, tokens):
    """Return by which power of the width each layer's activations go, by parametrization."""

    def of(**changed) -> dict[str, dict[tuple[int, str], float]]:
        found: dict[str, dict] = {"standard": {}, "mup": {}}
        for way in found:
            values = values_of(
                learning_rate=1e-2, parametrization=way, mup_base_width=32, weight_decay=0.0, **changed
            )
            slopes = growth(coordinates(values, WIDTHS, tokens, N_STEPS))
            found[way] = {(step, layer): slope for (_, step, layer), slope in slopes.items()}
        return found

    return of


@pytest.mark.parametrize("tied", [True, False])
def test_flat_under_mup_and_growing_under_standard(tied: bool, grown) -> None:
    found = grown(tie_weights=tied)
    head = "token_embedding" if tied else "head.weight"
    for slopes in found.values():
        print({key: round(slope, 2) for key, slope in slopes.items() if key[0] in (0, N_STEPS)})
    assert found["standard"][N_STEPS, head] > 0.5
    assert max(abs(slope) for (step, _), slope in found["mup"].items() if step == N_STEPS) < 0.25


def test_rows_say_every_layer_step_and_width(values_of, tokens) -> None:
    rows = coordinates(values_of(parametrization="mup"), (16, 32), tokens, n_steps=2)
    assert all(isinstance(row, Coordinate) and row.size > 0 for row in rows)
    layers = {"token_embedding"} | {
        f"blocks.{layer}.{part}.weight"
        for layer in range(2)
        for part in ("attention.qkv", "attention.out", "feed_forward.up", "feed_forward.down")
    }
    assert {(row.n_embd, row.step, row.layer) for row in rows} == {
        (width, step, layer) for width in (16, 32) for step in range(3) for layer in layers
    }


def test_growth_is_the_power() -> None:
    rows = [Coordinate("mup", width, 1, "head", 3.0 * width**0.5) for width in WIDTHS]
    assert growth(rows) == {("mup", 1, "head"): pytest.approx(0.5)}
