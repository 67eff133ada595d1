"""One token on its way through a model: what every step makes of it, in the numbers of the NumPy reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from sweeplab.data.batches import Batch
from sweeplab.errors import BadInput, Problem
from sweeplab.model.reference import trace
from sweeplab.model.shape import ModelShape

# Sources are this long unless it is said, or longer where the token stands further back.
SOURCE_LENGTH = 10


class TracedStep(NamedTuple):
    """A step of a forward pass: its name, the shape of its value, and the first numbers of the token's own row."""

    name: str
    shape: tuple[int, ...]
    values: list[float]


def random_weights(shape: ModelShape, seed: int) -> dict[str, Any]:
    """Return the weights that a run of this seed starts from."""
    from sweeplab.model.layout import Layout

    layout = Layout(shape)
    return {name: view[0].numpy() for name, view in layout.views(layout.initial_row(seed)[None]).items()}


def trace_token(
    shape: ModelShape,
    weights: Mapping[str, Any],
    token: int,
    position: int,
    source_length: int | None = None,
    seed: int = 0,
    n_values: int = 5,
) -> list[TracedStep]:
    """Return the steps of a pass over a sequence that has the token at a position; the seed draws the others.

    A decoder's sequence ends with the token. An encoder_decoder has it in the source too, at the same position. The
    numbers of a step with heads or experts are the first one's.

    Raises:
        BadInput: the model has no such token, position or source.
    """
    length = _source_length(shape, position, source_length)
    _check("token", token, shape.vocab_size, "vocab_size")
    _check("position", position, shape.block_size, "block_size")
    drawn = np.random.default_rng(seed)

    def tokens(n: int) -> Any:
        found = drawn.integers(0, shape.vocab_size, (1, n))
        found[0, position] = token
        return found

    inputs = tokens(position + 1 if shape.of_family.sides[-1].causal else length)
    source = tokens(length) if shape.of_family.reads_source else None
    # A row is a position in every step: of tokens, of queries, or of the keys that a source gives.
    return [
        TracedStep(name, value.shape, value[(0,) * (value.ndim - 2)][position, :n_values].tolist())
        for name, value in trace(shape, weights, Batch(inputs, inputs, source))
    ]


def _source_length(shape: ModelShape, position: int, asked: int | None) -> int:
    if asked is None:
        return min(shape.block_size, max(position + 1, SOURCE_LENGTH))
    if shape.family == "decoder":
        raise BadInput(
            Problem("a decoder reads no source", "a source's length for an encoder, encoder_decoder")
        )
    if not position < asked <= shape.block_size:
        what = f"a source of {asked} tokens"
        raise BadInput(Problem(what, f"{position + 1} (position {position} is in it) to {shape.block_size}"))
    return asked


def _check(what: str, number: int, end: int, name: str) -> None:
    if not 0 <= number < end:
        raise BadInput(Problem(f"{what} {number}", f"0 to {end - 1}, for {name} is {end}"))
