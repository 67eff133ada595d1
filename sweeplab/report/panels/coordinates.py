"""How large activations are in models of several widths: the coordinate check."""

from __future__ import annotations

from dataclasses import dataclass

from pandas import DataFrame

from sweeplab.report.panels.base import Axis, Panel, TablePanel
from sweeplab.runs.coordinates import CoordinateCheck

_METHOD = (
    (
        "The coordinate check",
        "Models of several widths start alike and train for a few steps at the full learning rate, without dropout "
        "and warm-up. Behind each layer the mean absolute activation is taken on one fixed batch. Where the "
        "parametrization is right, it does not depend on the width after those steps, and a learning rate that is "
        "best in a small model is best in a large one; where it grows, the best learning rate falls with the width. "
        "Under muP the head's output falls as the root of the width before the first step, as it should. "
        "Yang, Hu et al., Tensor programs V (2022), appendix D.1.",
    ),
)
# At most so many steps have a field: the start, powers of two, and the last.
MOST_FIELDS = 6


@dataclass(frozen=True, kw_only=True)
class CoordinatesPanel(Panel):
    """Sizes over the width under one parametrization: a field for each of `steps`, a line a layer.

    `data` has a row a width, step and layer; `y` reaches over all parametrizations, from `low` to `high`.
    """

    x: Axis
    y: Axis
    low: float
    high: float
    steps: tuple[int, ...]


def coordinates_panels(found: CoordinateCheck) -> list[Panel]:
    """Return the table of powers, and a figure a parametrization."""
    data = DataFrame(found.rows)
    sizes = data.loc[data["size"].between(0, float("inf"), inclusive="neither"), "size"]
    doubled = [2**power for power in range(MOST_FIELDS - 2) if 2**power < found.n_steps]
    figures = [
        CoordinatesPanel(
            title=f"{name}: size of activations over the width",
            data=data[data["parametrization"] == name],
            method=_METHOD,
            x=Axis("n_embd", "n_embd", True, tuple(map(float, found.widths))),
            y=Axis("size", "mean absolute activation", True),
            low=float(sizes.min()),
            high=float(sizes.max()),
            steps=(0, *doubled, found.n_steps),
        )
        for name in found.parametrizations
    ]
    return [*figures, _powers(found)]


def _powers(found: CoordinateCheck) -> Panel:
    columns = {
        f"{name}, {when}": [found.powers[name, step, layer] for layer in found.layers]
        for name in found.parametrizations
        for when, step in (("at the start", 0), (f"after step {found.n_steps}", found.n_steps))
    }
    return TablePanel(
        title="Power of the width by which activations go",
        data=DataFrame({"layer": found.layers, **columns}),
        notes=("0 is flat; 0.5 doubles the activations where the width is four times as large.",),
    )
