"""The three families, put together from their parts; and what is asked of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial, reduce
from typing import Any

import numpy as np
from references.numpy_model.attention import (
    ENCODED,
    Memory,
    Sight,
    cross_attention,
    self_attention,
    sight,
)
from references.numpy_model.feed_forward import experts, feed_forward
from references.numpy_model.functions import (
    ACTIVATIONS,
    Array,
    Back,
    Function,
    Step,
    add,
    chain,
    cross_entropy,
    gelu,
    same,
    softmax,
)
from references.numpy_model.passes import Pass
from references.numpy_model.positions import sinusoids

from sweeplab.data.batches import Batch
from sweeplab.model.shape import ModelShape


def residual(p: Pass, name: str, sublayer: Function, x: Array) -> Step:
    """Return x + sublayer(norm x), or norm(x + sublayer x) where norms come after.

    The gradient by a sum goes to both its terms: past the sublayer, and through it.
    """
    norm, after = partial(p.norm, f"{name}_norm"), p.shape.norm_position == "post"

    def update(x: Array) -> Step:
        return sublayer(x) if after else chain(x, norm, sublayer)

    last = [norm] if after else []
    return chain(x, lambda x: add(x, same, update), partial(p.noted, f"{name}.added"), *last)


def block(p: Pass, name: str, kind: str, seen: Sight, memory: Memory | None, x: Array) -> Step:
    """Attend, attend to the source if there is one, feed forward: each added to the stream x [B, T, C]."""
    parts: dict[str, Function] = {"attention": partial(self_attention, p, f"{name}.attention", kind, seen)}
    if memory:
        parts["cross"] = partial(cross_attention, p, f"{name}.cross", kind, memory)
    parts["feed_forward"] = partial(feed_forward, p, f"{name}.feed_forward")
    if p.shape.n_expert > 1:
        parts["feed_forward"] = partial(experts, p, f"{name}.feed_forward", seen.present)
    if p.shape.parallel_block and not p.shape.shared_norm:
        branches = [
            partial(
                lambda norm, compute, x: chain(x, norm, compute),
                partial(p.norm, f"{name}.{part}_norm"),
                sublayer,
            )
            for part, sublayer in parts.items()
        ]
        return chain(x, lambda x: add(x, same, *branches), partial(p.noted, f"{name}.attention.added"))
    if p.shape.parallel_block:
        return residual(p, f"{name}.attention", lambda x: add(x, *parts.values()), x)
    return chain(x, *(partial(residual, p, f"{name}.{part}", sublayer) for part, sublayer in parts.items()))


def embed(p: Pass, prefix: str, tokens: Any) -> tuple[Array, Back]:
    """Look up the tokens [B, T]: their vectors [B, T, C] and where they stand, summed (and normed)."""
    shape = p.shape
    own = "source_embedding" if prefix and not shape.share_embeddings else "token_embedding"
    scale = math.sqrt(shape.n_embd) if shape.scale_embedding else 1.0
    terms = {"token_embedding": p.rows(own, tokens, scale)}
    if shape.positions == "learned":
        places = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
        terms["position_embedding"] = p.rows(f"{prefix}position_embedding", places)
    if shape.positions == "sinusoidal":
        terms["position_embedding"] = same(sinusoids(tokens.shape[1], shape.n_embd))
    if shape.n_token_types:  # nothing tells them apart yet: all are of the first
        terms["token_type_embedding"] = p.rows(f"{prefix}token_type_embedding", np.zeros_like(tokens))
    x = p.note(
        f"{prefix}embedding", reduce(np.add, (p.note(prefix + name, y) for name, (y, _) in terms.items()))
    )
    x, back_norm = p.norm(f"{prefix}embedding_norm", x) if shape.embedding_norm else same(x)

    def back(dy: Array) -> Array:
        dy = back_norm(dy)
        for _, back_term in terms.values():
            back_term(dy)
        return dy

    return x, back


def stack(p: Pass, prefix: str, n_layer: int, tokens: Any, seen: Sight, memory: Memory | None = None) -> Step:
    """Embed tokens [B, T] and take them through all blocks of an encoder or a decoder, to [B, T, C]."""
    functions: list[Function] = [
        partial(block, p, f"{prefix}blocks.{layer}", p.shape.attention_of(layer), seen, memory)
        for layer in range(n_layer)
    ]
    if p.shape.final_norm:
        functions.append(partial(p.norm, f"{prefix}final_norm"))
    x, back_embed = embed(p, prefix, tokens)
    x, back = chain(x, *functions)
    return x, lambda dy: back_embed(back(dy))


def head(p: Pass, x: Array) -> Step:
    """Return logits [B, T, V]: how alike each token's vector is to each symbol's."""
    shape = p.shape
    functions: list[Function] = []
    if shape.family == "encoder":
        functions = [
            partial(p.linear, "head.transform"),
            ACTIVATIONS.get(shape.activation, gelu),
            partial(p.norm, "head.norm"),
        ]
    return chain(x, *functions, partial(likeness, p))


def likeness(p: Pass, x: Array) -> Step:
    """Return x Eᵀ + b, E being the embedding itself where they are tied; divided by √C if the model says so.

    Under muP it is divided by the width too.
    """
    shape = p.shape
    name = "token_embedding" if shape.tie_weights else "head.weight"
    scale = (shape.n_embd**-0.5 if shape.tie_scale else 1.0) / shape.width_ratio
    weight, bias = p.weights[name], p.weights.get("head.bias", np.zeros(1))

    def back(dy: Array) -> Array:
        rows = dy.reshape(-1, dy.shape[-1])
        p.learn(name, scale * rows.T @ x.reshape(-1, x.shape[-1]))
        if "head.bias" in p.weights:
            p.learn("head.bias", rows.sum(0))
        return scale * dy @ weight

    logits = p.note("logits", scale * (x @ weight.T) + bias)
    p.note("probabilities", softmax(logits)[0])
    return logits, back


def model(p: Pass, batch: Batch) -> tuple[Array, Back]:
    """Return the logits [B, T, V] of a batch, and what takes their gradient back to every weight."""
    shape, memory = p.shape, None
    n_layer = shape.n_layer
    if shape.family == "encoder_decoder":
        seen = sight(p, "encoder.", batch.source, batch.source_lengths, causal=False)
        encoded, back_encoder = stack(p, "encoder.", shape.n_encoder_layer, batch.source, seen)
        memory = Memory(encoded, seen.present)
        n_layer = shape.n_decoder_layer
    seen = sight(p, "", batch.inputs, batch.lengths, causal=shape.family != "encoder")
    x, back_stack = stack(p, "", n_layer, batch.inputs, seen, memory)
    y, back_head = head(p, x)

    def back(dy: Array) -> Array:
        dx = back_stack(back_head(dy))
        return back_encoder(p.gradients.pop(ENCODED)) if memory else dx

    return y, back


def logits(shape: ModelShape, weights: Mapping[str, Any], batch: Batch) -> Array:
    """Return the logits [B, T, V] of a batch."""
    return model(Pass(shape, weights), batch)[0]


def trace(shape: ModelShape, weights: Mapping[str, Any], batch: Batch) -> list[tuple[str, Array]]:
    """Return the steps of a forward pass in their order, each with its name and value."""
    p = Pass(shape, weights)
    model(p, batch)
    return p.steps


def scored(p: Pass, batch: Batch, smoothing: float) -> tuple[float, Callable[[], Array]]:
    """Return the loss of a batch, and what takes its gradient back through the model."""
    given, back = model(p, batch)
    value, gradient = cross_entropy(given, np.asarray(batch.targets), smoothing)
    return value + p.side_loss, lambda: back(gradient)


def loss(
    shape: ModelShape,
    weights: Mapping[str, Any],
    batch: Batch,
    smoothing: float = 0.0,
    router_balance: float = 0.0,
    router_z: float = 0.0,
) -> float:
    """Return the mean cross-entropy in nats over the counted targets.

    Where there are experts, the routers' two losses are added, weighed by `router_balance` and `router_z`.
    """
    return scored(Pass(shape, weights, router_balance, router_z), batch, smoothing)[0]


def loss_and_gradients(
    shape: ModelShape,
    weights: Mapping[str, Any],
    batch: Batch,
    smoothing: float = 0.0,
    router_balance: float = 0.0,
    router_z: float = 0.0,
) -> tuple[float, dict[str, Array]]:
    """Return the loss, and its gradient by every weight."""
    p = Pass(shape, weights, router_balance, router_z)
    value, back = scored(p, batch, smoothing)
    back()
    return value, {name: p.gradients.get(name, np.zeros_like(weight)) for name, weight in p.weights.items()}
