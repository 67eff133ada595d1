"""One forward pass: reads weights by name, notes what each step gives, collects gradients on the way back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from references.numpy_model.functions import NORMS, Array, Indices, Step, same

from sweeplab.model.shape import ModelShape


class Pass:
    """The weights of one run, the gradients by them as they come in, and the steps of the forward pass in order.

    A bias that is not among the weights is none. `side_loss` is what routers add to the loss.
    """

    def __init__(
        self,
        shape: ModelShape,
        weights: Mapping[str, Any],
        router_balance: float = 0.0,
        router_z: float = 0.0,
    ) -> None:
        self.shape = shape
        self.weights = {name: np.asarray(weight, np.float64) for name, weight in weights.items()}
        self.gradients: dict[str, Array] = {}
        self.steps: list[tuple[str, Array]] = []
        self.router_balance, self.router_z = router_balance, router_z
        self.side_loss = 0.0

    def note(self, name: str, value: Array) -> Array:
        """Note the value of a step, and return it."""
        self.steps.append((name, value))
        return value

    def noted(self, name: str, x: Array) -> Step:
        """Note x on its way, and hand it on."""
        return same(self.note(name, x))

    def learn(self, name: str, gradient: Array) -> None:
        """Add to the gradient by a weight: one that is read twice has the sum."""
        self.gradients[name] = self.gradients.get(name, 0.0) + gradient

    def linear(self, name: str, x: Array) -> Step:
        """Return x W + b: the gradient by x is dy Wᵀ, by W it is xᵀ dy, by b the sum of dy.

        A weight [E, in, out] is one of each expert, for x [E, N, in].
        """
        weight, bias = self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias")

        def back(dy: Array) -> Array:
            rows, dy_rows = (each.reshape(*weight.shape[:-2], -1, each.shape[-1]) for each in (x, dy))
            self.learn(f"{name}.weight", rows.swapaxes(-1, -2) @ dy_rows)
            if bias is not None:
                self.learn(f"{name}.bias", dy_rows.sum(-2))
            return dy @ weight.swapaxes(-1, -2)

        return self.note(name, x @ weight if bias is None else x @ weight + bias), back

    def norm(self, name: str, x: Array, kind: str | None = None) -> Step:
        """Return gain * norm(x) + bias, of the model's kind of norm unless another is asked for."""
        gain, bias = self.weights[f"{name}.gain"], self.weights.get(f"{name}.bias")
        normed, back_norm = NORMS[kind or self.shape.norm](x, self.shape.norm_eps)

        def back(dy: Array) -> Array:
            others = tuple(range(dy.ndim - 1))
            self.learn(f"{name}.gain", (dy * normed).sum(others))
            if bias is not None:
                self.learn(f"{name}.bias", dy.sum(others))
            return back_norm(dy * gain)

        return self.note(name, normed * gain if bias is None else normed * gain + bias), back

    def rows(self, name: str, indices: Indices, scale: float = 1.0) -> Step:
        """Look rows of a table up; a row's gradient is the sum over where it was read."""
        table = self.weights[name]

        def back(dy: Array) -> Array:
            gradient = np.zeros_like(table)
            np.add.at(gradient, indices, scale * dy)
            self.learn(name, gradient)
            return dy

        return table[indices] * scale, back
