"""A population of decoders in JAX: one jitted step, vmapped over the runs, many steps a call.

The model and the step are those of tests/references/serial_loop.py.
"""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from references.serial_loop import plain_model, windows

from sweeplab.data.objectives import make_objective
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.train.schedule import learning_rate

Tree = dict[str, Any]


class Population:
    """Runs that differ in their learning rates, trained together."""

    def __init__(self, values: Hyperparameters, rates: list[float], dtype: str = "float32") -> None:
        self.values, self.rates, self.dtype = values, rates, jnp.dtype(dtype)
        one = {name: np.asarray(each.detach()) for name, each in plain_model(values).named_parameters()}
        self.weights = {name: jnp.stack([jnp.asarray(each)] * len(rates)) for name, each in one.items()}
        self.moments = [jax.tree.map(jnp.zeros_like, self.weights) for _ in range(2)]
        self.decay = {name: values.weight_decay if each.ndim > 1 else 0.0 for name, each in one.items()}
        self.iteration = 0
        self._steps = jax.jit(self._scanned, donate_argnums=(0, 1))
        self._evaluated = jax.jit(jax.vmap(self._losses, (0, None, None)))

    def _product(self, x: jax.Array, weight: jax.Array) -> jax.Array:
        """Multiply by a matrix [out, in], summing in float32."""
        return jnp.matmul(
            x.astype(self.dtype), weight.T.astype(self.dtype), preferred_element_type=jnp.float32
        )

    def _loss(self, weights: Tree, tokens: jax.Array) -> jax.Array:
        return self._losses(weights, tokens[:, :-1], tokens[:, 1:]).mean()

    def _losses(self, weights: Tree, inputs: jax.Array, targets: jax.Array) -> jax.Array:
        """Return the loss of each target."""
        b, t = inputs.shape
        x = weights["token_embedding.weight"][inputs] + weights["position_embedding.weight"][:t]
        for at in range(self.values.n_layer):
            own = {
                name.removeprefix(f"blocks.{at}."): each
                for name, each in weights.items()
                if name.startswith(f"blocks.{at}.")
            }
            qkv = self._product(_norm(x, own, "attention_norm"), own["qkv.weight"]) + own.get("qkv.bias", 0)
            q, k, v = (each.reshape(b, t, self.values.n_head, -1) for each in jnp.split(qkv, 3, axis=-1))
            mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(b, t, -1)
            x = x + self._product(mixed, own["out.weight"]) + own.get("out.bias", 0)
            up = self._product(_norm(x, own, "feed_forward_norm"), own["up.weight"]) + own.get("up.bias", 0)
            activate = {"gelu": lambda each: jax.nn.gelu(each, approximate=False), "relu": jax.nn.relu}
            x = (
                x
                + self._product(activate[self.values.activation](up), own["down.weight"])
                + own.get("down.bias", 0)
            )
        logits = self._product(_norm(x, weights, "final_norm"), weights["head.weight"]) + weights.get(
            "head.bias", 0
        )
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)[..., 0]

    def _scanned(
        self, weights: Tree, moments: list[Tree], first: int, rates: jax.Array, tokens: jax.Array
    ) -> Any:
        def step(carry: Any, given: Any) -> Any:
            weights, (means, squares), at = carry
            rate, batch = given
            losses, gradients = jax.vmap(jax.value_and_grad(self._loss), (0, None))(weights, batch)
            norm = jnp.sqrt(
                sum(jnp.sum(each**2, axis=tuple(range(1, each.ndim))) for each in gradients.values())
            )
            scale = jnp.minimum(1.0, self.values.grad_clip / (norm + 1e-6))
            (one, two), count = self.values.betas, at + 1
            for name, gradient in gradients.items():
                spread = (-1,) + (1,) * (gradient.ndim - 1)
                gradient = gradient * scale.reshape(spread)
                means[name] = one * means[name] + (1 - one) * gradient
                squares[name] = two * squares[name] + (1 - two) * gradient**2
                mean, square = means[name] / (1 - one**count), squares[name] / (1 - two**count)
                kept = weights[name] * (1 - rate.reshape(spread) * self.decay[name])
                weights[name] = kept - rate.reshape(spread) * mean / (jnp.sqrt(square) + self.values.eps)
            return (weights, [means, squares], at + 1), losses

        (weights, moments, _), losses = jax.lax.scan(step, (weights, moments, first), (rates, tokens))
        return weights, moments, losses

    def advance(self, split: np.ndarray, n_steps: int) -> None:
        """Train for some steps."""
        objective = make_objective(split, self.values)
        at = range(self.iteration, self.iteration + n_steps)
        tokens = np.stack([np.asarray(windows(objective.training(self.values.seed, each))) for each in at])
        of = [
            [learning_rate(self.values.replace(learning_rate=rate), each) for rate in self.rates]
            for each in at
        ]
        rates = jnp.asarray(np.array(of, dtype=np.float32))
        given = (float(self.iteration), rates, jnp.asarray(tokens))
        self.weights, self.moments, losses = self._steps(self.weights, self.moments, *given)
        losses.block_until_ready()
        self.iteration += n_steps

    def evaluate(self, split: np.ndarray) -> list[float]:
        """Return the validation losses of all runs: where windows overlap a target counts once."""
        objective, total, count = make_objective(split, self.values), np.zeros(len(self.rates)), 0
        for batch in objective.evaluation(self.values.evaluated_tokens):
            counted = batch.targets >= 0
            losses = self._evaluated(self.weights, batch.inputs, np.maximum(batch.targets, 0))
            total += np.asarray(losses)[:, counted].sum(axis=1, dtype=np.float64)
            count += counted.sum()
        return [float(each) for each in total / count]


def _norm(x: jax.Array, weights: Tree, name: str) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return scaled * weights[f"{name}.weight"] + weights.get(f"{name}.bias", 0)


def seconds_of_steps(
    values: Hyperparameters, rates: list[float], split: np.ndarray, dtype: str, go: Any
) -> float:
    """Return how long all steps take once they are compiled, from when `go` returns."""
    n_steps, population = values.eval_interval, Population(values, rates, dtype)
    population.advance(split, n_steps)  # and compile
    go()
    started = time.perf_counter()
    while population.iteration < values.max_iters + n_steps:
        population.advance(split, n_steps)
    return time.perf_counter() - started
