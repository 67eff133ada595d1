"""Positional encodings, and attention, full and local. Imports torch only inside functions.

Legend: K runs, B sequences, H query heads, G key-value heads, C n_embd, D head_dim, T queries, S keys, W width of the
values, n K runs or 1. The batch dimension is K*B. A distance is query position minus key position.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from sweeplab.errors import BadInput
from sweeplab.model.shape import GENERAL, ModelShape, Requirement, Side

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    Weights = Mapping[str, Tensor]
    RunRows = Float[Tensor, "Kn *rest"]
    Added = Float[Tensor, "n 1 T C"]
    Query = Float[Tensor, "KB H T D"]
    Key = Float[Tensor, "KB H S D"]
    Value = Float[Tensor, "KB H S W"]
    Unrepeated = Float[Tensor, "KB G S D"]
    New = Float[Tensor, "KB G T D"]  # a key or value that is not cached yet
    Out = Float[Tensor, "KB H T W"]
    Blocks = Float[Tensor, "KB H n width D"]

# The cache of a causal side's earlier positions, and the dropout of attention weights.
Cached = tuple["Tensor", ...]
Drop = Callable[["Tensor"], "Tensor"] | None

SINUSOIDAL_BASE = 10_000.0
# A multiple of the elements in one vector register of any CPU.
LANES = 64


def by_run(function: Callable[[Tensor], Tensor], x: RunRows, n_runs: int) -> RunRows:
    """Apply an elementwise function to x [K * n, ...] so that the bits of a run do not depend on its row.

    A kernel computes the elements after the last whole vector with other instructions: exp and erf then differ in the
    last bit. So each run is padded to whole vectors.
    """
    missing = -(x.numel() // n_runs) % LANES
    if not missing:
        return function(x)
    import torch

    flat = torch.nn.functional.pad(x.reshape(n_runs, -1), (0, missing))
    return function(flat)[:, :-missing].reshape(x.shape)


# ------------------------------------------------------------------ positional encodings


class Turns(NamedTuple):
    """The rotation of a sequence: the factors of each column [L], and of the columns `half` after and before it.

    L is the number of elements of a sequence's queries and keys. The factors of columns that do not rotate are 1 and 0.
    """

    own: Float[Tensor, "L"]
    after: Float[Tensor, "L"]
    before: Float[Tensor, "L"]
    half: int


# learned: an embedding for each position of the context, as in GPT-2 and BERT.
# sinusoidal (Vaswani et al., 2017): sines in even columns, cosines in odd ones; nothing is learned.
# relative (Raffel et al., "T5", 2020): each head learns a bias for each bucket of distances. Half of the buckets hold
# one distance each. The others grow logarithmically up to relative_max_distance. An encoder has half of all buckets for
# each direction. The layers of a side share one table.
# rotary (Su et al., "RoFormer", 2021): rotates queries and keys by angles proportional to the position. A pair is a
# column in the first half of a head and the same column in its second half, as in Llama; the columns after rotary_share
# of a head stay as they are, as in GPT-NeoX.
# alibi (Press et al., "Train short, test long", 2022): each head subtracts its own slope times the distance.
# The encodings with weights of each side: their component, and the hyperparameters with its rows and columns.
POSITION_TABLES = {
    "learned": ("position_embedding", "block_size", "n_embd"),
    "relative": ("relative_bias", "relative_buckets", "n_head"),
}


def added_positions(
    w: Weights, shape: ModelShape, prefix: str, positions: range, like: Tensor
) -> Added | None:
    """Return the vectors to add to embeddings like `like`; None if the model adds none."""
    import torch

    if shape.positions == "learned":
        return w[f"{prefix}position_embedding"][:, None, positions.start : positions.stop]
    if shape.positions != "sinusoidal":
        return None
    column = torch.arange(shape.n_embd, device=like.device)
    position = torch.arange(
        positions.start, positions.stop, device=like.device, dtype=torch.float64
    )
    angles = position[:, None] * SINUSOIDAL_BASE ** (
        -(column - column % 2).double() / shape.n_embd
    )
    return torch.where(column % 2 == 0, angles.sin(), angles.cos()).to(like.dtype)[None, None]


def rotation(shape: ModelShape, positions: range, like: Tensor) -> Turns:
    """Return the factors that rotate the queries and keys of a sequence like `like`."""
    import torch

    half, n_turned = shape.rotary_columns // 2, shape.n_head + shape.n_kv_head
    position = torch.arange(
        positions.start, positions.stop, device=like.device, dtype=torch.float64
    )
    pair = torch.arange(half, device=like.device, dtype=torch.float64)
    angles = (position[:, None] * shape.rotary_base ** (-pair / half))[:, None]
    cos, sin = angles.cos().to(like.dtype), angles.sin().to(like.dtype)
    factors = like.new_ones(len(positions), n_turned, shape.head_dim)
    after, before = torch.zeros_like(factors), torch.zeros_like(factors)
    factors[..., :half] = factors[..., half : 2 * half] = cos
    after[..., :half] = -sin
    before[..., half : 2 * half] = sin
    return Turns(factors.flatten(), after.flatten(), before.flatten(), half)


def slopes(n_head: int) -> list[float]:
    """Return each head's slope as published: a geometric sequence, or parts of two if n_head is no power of two."""
    power = 2 ** math.floor(math.log2(n_head))
    of_power = [2.0 ** (-8.0 * (head + 1) / power) for head in range(power)]
    of_next_power = [2.0 ** (-4.0 * (head + 1) / power) for head in range(2 * power)]
    return of_power + of_next_power[::2][: n_head - power]


def buckets(distances: Int[Tensor, "*n"], shape: ModelShape, causal: bool) -> Int[Tensor, "*n"]:
    """Return T5's bucket of each distance."""
    import torch

    count, first = shape.relative_buckets, torch.zeros_like(distances)
    if causal:
        steps = distances.clamp(min=0)
    else:
        count //= 2
        first, steps = torch.where(distances < 0, count, 0), distances.abs()
    exact = count // 2
    # In float32 as in T5, because the boundaries of the buckets depend on the precision.
    share = (steps.clamp(min=1).float() / exact).log() / math.log(
        shape.relative_max_distance / exact
    )
    far = (exact + (share * (count - exact)).long()).clamp(max=count - 1)
    return first + torch.where(steps < exact, steps, far)


def position_bias(
    w: Weights,
    shape: ModelShape,
    prefix: str,
    causal: bool,
    distances: Int[Tensor, "*distances"],
) -> Float[Tensor, "n H *distances"]:
    """Return the bias of scores for distances [...], with alibi or relative positions."""
    if shape.positions == "alibi":
        slope = (
            w["token_embedding"]
            .new_tensor(slopes(shape.n_head))
            .view(-1, *[1] * distances.ndim)
        )
        return (-slope * distances.abs())[None]
    table = w[f"{prefix}relative_bias"]
    rows = buckets(distances, shape, causal).flatten()
    return table[:, rows].transpose(1, 2).reshape(len(table), shape.n_head, *distances.shape)


@dataclass
class AttentionMask:
    """The keys that the queries of one side may attend to, in every layer of each run.

    present: [K*B, S], False on padding; None without padding.
    bias: maps distances (query position minus key position) [...] to biases of the scores [K or 1, H, ...].
    """

    causal: bool
    present: Bool[Tensor, "KB S"] | None = None
    bias: Callable[[Tensor], Tensor] | None = None
    _near_bias: Tensor | None = None
    _additive_masks: dict[int | None, Tensor] = field(default_factory=dict)

    @property
    def visible(self) -> Bool[Tensor, "KB S"] | None:
        """Return `present`, or None for a causal side, where padding comes after all keys that a token attends to."""
        return None if self.causal else self.present

    def additive_mask(
        self,
        window: int | None,
        n: int,
        distances: Int[Tensor, "T S"],
        hidden: Bool[Tensor, "T S"] | None,
    ) -> Float[Tensor, "n H T S"]:
        """Return the biases of scores [n, H, T, S], -inf for hidden keys and padding; layers share them."""
        if window not in self._additive_masks:
            assert self.bias is not None
            bias = self.bias(distances)
            if hidden is not None:
                bias = bias.masked_fill(hidden, -math.inf)
            mask = bias[:, None].expand(-1, n // len(bias), -1, -1, -1).flatten(0, 1)
            if self.visible is not None:
                mask = mask.masked_fill(~self.visible[:, None, None], -math.inf)
            self._additive_masks[window] = mask
        return self._additive_masks[window]

    def add_near_bias(
        self, scores: Float[Tensor, "KB H blocks T S"], distances: Int[Tensor, "T S"]
    ) -> Float[Tensor, "KB H blocks T S"]:
        """Add the bias of these distances to the scores of every block; layers share it."""
        if self.bias is None:
            return scores
        if self._near_bias is None:
            self._near_bias = self.bias(distances)
        bias = self._near_bias[:, None, :, None]  # [K or 1, 1, H, 1, T, S]
        return (scores.view(len(bias), -1, *scores.shape[1:]) + bias).flatten(0, 1)


def attend(
    q: Query,
    k: Unrepeated,
    v: Float[Tensor, "KB G S W"],
    mask: AttentionMask,
    window: int | None = None,
    drop: Drop = None,
) -> Out:
    """Return the sums of values, weighted by attention; `drop` is the dropout of the weights, or None.

    Positions that are `window` or more away are not attended to; None is full attention. Key and value heads are
    repeated for all query heads that share them.
    """
    k, v = repeat_kv(k, q.shape[1]), repeat_kv(v, q.shape[1])
    if window is None:
        return _attend_to_all(q, k, v, mask, drop)
    return _attend_nearby(q, k, v, mask, window, drop)


def attend_cached(
    q: Query, k: New, v: New, mask: AttentionMask, window: int | None, cached: Cached | None
) -> tuple[Out, Cached]:
    """Attend from new positions of a causal side; return the output and the new cache.

    The output equals the last rows of `attend` on the whole sequence. Keys and values are cached before they are
    repeated for the query heads.
    """
    import torch

    if cached is None:
        output = attend(q, k, v, mask, window)
    else:
        k, v = (torch.cat(pair, dim=2) for pair in zip(cached, (k, v), strict=True))
        repeated = repeat_kv(k, q.shape[1])
        distances, allowed = distance_matrix(q, repeated), None
        if q.shape[2] > 1:  # else the query attends to all cached keys
            allowed = (distances >= 0) & (distances < (window or k.shape[2]))
        if mask.bias:
            allowed = mask.additive_mask(
                window, len(q), distances, None if allowed is None else ~allowed
            )
        kernel = torch.nn.functional.scaled_dot_product_attention
        output = kernel(q, repeated, repeat_kv(v, q.shape[1]), attn_mask=allowed)
    if window is not None:
        first = max(0, k.shape[2] - window + 1)
        k, v = k[:, :, first:], v[:, :, first:]
    return output, (k, v)


def n_weights(n_queries: int, n_keys: int, causal: bool, window: int | None = None) -> int:
    """Return the number of attention weights per sequence and head that are in memory at once."""
    if window is None:
        return n_queries * n_keys
    width = min(window, n_queries)
    n_blocks = -(-n_queries // width)
    if n_blocks == 1:
        return width * width
    return n_blocks * width * width * (2 if causal else 3)


def repeat_kv(
    x: Float[Tensor, "KB G *rest"], n_head: int
) -> Float[Tensor, "KB {n_head} *rest"]:
    """Repeat each key or value head for all query heads that share it."""
    if x.shape[1] == n_head:
        return x
    return x.repeat_interleave(n_head // x.shape[1], dim=1)


def distance_matrix(
    q: Float[Tensor, "KB H T D"], k: Float[Tensor, "KB H S D"]
) -> Int[Tensor, "T S"]:
    """Return each query position minus each key position; the last query has the position of the last key."""
    import torch

    n_queries, n_keys = q.shape[2], k.shape[2]
    positions = torch.arange(n_keys, device=q.device)
    return positions[n_keys - n_queries :, None] - positions


def scores(q: Float[Tensor, "*n T D"], k: Float[Tensor, "*n S D"]) -> Float[Tensor, "*n T S"]:
    """Return the products of queries and keys, divided by sqrt(D)."""
    return q.matmul(k.transpose(-1, -2)).mul_(1.0 / math.sqrt(q.shape[-1]))


def softmax_(
    scores: Float[Tensor, "*n T S"], hidden: Bool[Tensor, "..."] | None
) -> Float[Tensor, "*n T S"]:
    """Return the softmax over the scores that are not hidden; overwrites the scores.

    Hidden scores become the smallest finite number: with -inf, rows in which padding hides all keys would be NaN.
    """
    import torch

    if hidden is not None:
        scores.masked_fill_(hidden, torch.finfo(scores.dtype).min)
    return scores.softmax(dim=-1)


def _attend_to_all(q: Query, k: Key, v: Value, mask: AttentionMask, drop: Drop) -> Out:
    """Attend to the whole sequence, with torch's kernel where possible."""
    import torch

    kernel = torch.nn.functional.scaled_dot_product_attention
    visible = None if mask.visible is None else mask.visible[:, None, None]
    if drop is None and mask.bias is None:
        return kernel(q, k, v, attn_mask=visible, is_causal=mask.causal)
    distances = distance_matrix(q, k)
    hidden = distances < 0 if mask.causal else None
    if mask.bias:
        additive = mask.additive_mask(None, len(q), distances, hidden)
        # The kernel is not faster with a mask that needs a gradient.
        if drop is None and not additive.requires_grad:
            return kernel(q, k, v, attn_mask=additive)
        weights = (scores(q, k) + additive).softmax(dim=-1)
    else:
        weights = softmax_(scores(q, k), hidden if visible is None else ~visible)
    # The kernel cannot apply our dropout masks: it draws its own from one generator.
    return torch.matmul(drop(weights) if drop else weights, v)


def _attend_nearby(
    q: Query, k: Key, v: Value, mask: AttentionMask, window: int, drop: Drop
) -> Out:
    """Attend to positions less than `window` away (Beltagy et al., "Longformer", 2020), at a cost of O(T).

    It is computed in blocks as wide as the window. The queries of a block attend to the keys of their own block and of
    the block before it (and after it, without a causal mask).
    """
    import torch

    length = q.shape[2]
    width = min(window, length)
    fill = (0, 0, 0, -length % width)  # zeros after the last block
    q, k, v = (
        torch.nn.functional.pad(heads, fill).view(*heads.shape[:2], -1, width, heads.shape[3])
        for heads in (q, k, v)
    )
    n = q.shape[-3]
    products = scores(q, _with_neighbors(k, mask.causal))
    keys = torch.arange(products.shape[-1], device=q.device)
    if n > 1:
        keys = keys - width
    distances = torch.arange(width, device=q.device)[:, None] - keys
    positions = width * torch.arange(n, device=q.device)[:, None] + keys
    absent = (positions < 0) | (positions >= length)
    hidden = (distances.abs() >= width) | absent[:, None]
    if mask.causal:
        hidden = hidden | (distances < 0)
    if mask.visible is not None:
        present = mask.visible[:, positions.clamp(0, length - 1)]
        hidden = hidden | ~present[:, None, :, None]
    weights = softmax_(mask.add_near_bias(products, distances), hidden)
    if drop:
        weights = drop(weights)
    return weights.matmul(_with_neighbors(v, mask.causal)).flatten(2, 3)[:, :, :length]


def _with_neighbors(x: Blocks, causal: bool) -> Float[Tensor, "KB H n near D"]:
    """Join each block with the one before (and after) it: `near` is 2 or 3 times the width, or 1 time for one block."""
    import torch
    from torch.nn import functional as F

    if x.shape[-3] == 1:
        return x
    blocks = [F.pad(x, (0, 0, 0, 0, 1, -1)), x]
    if not causal:
        blocks.append(F.pad(x, (0, 0, 0, 0, -1, 1)))
    return torch.cat(blocks, dim=-2)


# ------------------------------------------------------------------ the attention of a model

ATTENTION = ("full", "local")
KNOWN_KINDS = "attention must be full or local: strided and linear are removed, their runs are shown from their records"
# All conditions on a model's shape.
SHAPE_REQUIREMENTS = (
    *GENERAL,
    Requirement(
        KNOWN_KINDS, "attention", lambda shape: shape.is_plugin or shape.attention in ATTENTION
    ),
    Requirement(
        "relative positions need an even relative_buckets, and relative_max_distance above half of it",
        "positions relative_buckets relative_max_distance",
        lambda shape: (
            shape.positions != "relative"
            or (
                shape.relative_buckets % 2 == 0
                and shape.relative_max_distance > shape.relative_buckets // 2
            )
        ),
    ),
    Requirement(
        "rotary positions rotate pairs of a head's columns: head_dim must be even, and so must its rotary_share",
        "positions head_dim rotary_share n_embd n_head",
        lambda shape: (
            shape.positions != "rotary"
            or (shape.rotary_columns > 0 and shape.rotary_columns % 2 == 0)
        ),
    ),
)


def windows(shape: ModelShape, side: Side) -> list[int | None]:
    """Return the window of each block of a side; None is full attention. Cross-attention is always full.

    With a full_attention_interval of n, block n, block 2n … have full attention (Gemma Team, "Gemma 3", 2025, where n
    is 6).

    Raises:
        BadInput: the run is of an older version, with a kind that this one does not have.
    """
    if shape.attention not in ATTENTION:
        raise BadInput(f"attention is {shape.attention}; {KNOWN_KINDS}")
    widths: list[int | None] = []
    for number in range(1, shape.layers(side) + 1):
        width = shape.attention_window if shape.attention == "local" else None
        if shape.full_attention_interval and number % shape.full_attention_interval == 0:
            width = None
        widths.append(width)
    return widths


def query_factor(shape: ModelShape) -> float:
    """Return the factor of the queries; besides it, scores are divided by sqrt(head_dim).

    With it, muP divides scores by head_dim over the root of mup_base_head_dim; else attention_scale names the divisor.
    """
    if shape.parametrization == "mup":
        return math.sqrt(shape.mup_base_head_dim / shape.head_dim)
    return (
        math.sqrt(shape.head_dim / shape.n_embd) if shape.attention_scale == "n_embd" else 1.0
    )


def why_not(shape: ModelShape) -> str | None:
    """Return why a model of this shape is impossible, or None."""
    return next(
        (condition.text for condition in SHAPE_REQUIREMENTS if not condition.holds(shape)), None
    )
