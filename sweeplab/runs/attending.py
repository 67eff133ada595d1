"""What a trained run attends to in a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sweeplab.data.batches import Batch
from sweeplab.data.objectives import objective_of
from sweeplab.data.prompts import check_room
from sweeplab.errors import BadInput, Problem
from sweeplab.runs.generating import Writer, fills_holes, named

if TYPE_CHECKING:
    from sweeplab.tracking.loading import LoadedRun

# Blanks and what else a label would not show.
_VISIBLE = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"})


@dataclass(frozen=True)
class AttentionMap:
    """The weights [heads, queries, keys] of one layer's attention, and the tokens that attend and are attended to.

    `place` is encoder, decoder or cross, from decoder to encoder.
    """

    place: str
    layer: int
    heads: Sequence[int]
    queries: Sequence[str]
    keys: Sequence[str]
    weights: Any

    @property
    def title(self) -> str:
        """Return the name of the layer."""
        return f"{self.place.capitalize()}{'-attention' if self.place == 'cross' else ''}, layer {self.layer}"


def attention_maps(
    run: LoadedRun, text: str, layer: int | None = None, head: int | None = None
) -> list[AttentionMap]:
    """Return the attention of each layer, or of one layer or head, over a prompt.

    Where the run finds a target from a source, the prompt is followed by the target that it finds, greedily.

    Raises:
        BadInput: the run cannot read the prompt, or has no such layer or head.
    """
    from sweeplab.model.generation import Sampling
    from sweeplab.model.tracing import attention_weights

    shape = run.model.shape
    _check("head", head, shape.n_head)
    _check("layer", layer, max(map(shape.layers, shape.of_family.sides)))
    writer = Writer(run, text, Sampling(greedy=True), max_new_tokens=run.values.block_size)
    prompt = writer.prompt
    check_room(prompt.start, run.values)
    tokens = list(prompt.start)
    if prompt.source is not None or (objective_of(run.values).of_pairs and not fills_holes(run)):
        tokens = [*tokens, *writer.tokens()][: run.values.block_size]
    inputs = np.array([tokens])
    source = None if prompt.source is None else np.array([prompt.source])
    found = attention_weights(shape, run.model.weights, Batch(inputs, inputs, source))
    words = {"": _words(run, tokens), "encoder.": _words(run, prompt.source or ())}
    heads = range(shape.n_head) if head is None else [head]
    maps = []
    for side in shape.of_family.sides:
        own = words[side.prefix]
        for index in range(shape.layers(side)) if layer is None else [layer]:
            name = f"{side.prefix}blocks.{index}"
            for part, place, keys in (
                ("attention", "decoder" if side.causal else "encoder", own),
                ("cross", "cross", words["encoder."]),
            ):
                if (weights := found.get(f"{name}.{part}")) is not None:
                    maps.append(AttentionMap(place, index, heads, own, keys, weights[list(heads)]))
    return maps


def _check(what: str, number: int | None, count: int) -> None:
    if number is not None and not 0 <= number < count:
        raise BadInput(Problem(f"there is no {what} {number}", f"0 to {count - 1}"))


def _words(run: LoadedRun, tokens: Sequence[int]) -> list[str]:
    return [named(run, token).translate(_VISIBLE) for token in tokens]
