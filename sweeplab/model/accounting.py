"""Parameters and floating-point operations of a model, in closed form (no torch: a plan reads it too).

Legend: V vocab_size, T block_size, L n_layer, C n_embd.

FLOPs are counted as torch.utils.flop_counter counts them: matrix products only, 2mnk each, and attention
over the whole T x T square although half of it is masked. Kaplan et al. 2020 (appendix of "Scaling laws for
neural language models") count 2N + 2LTC forward; ours has the head's 2VC a token besides (they leave the
embeddings out) and twice their attention term, because a kernel that skips the masked half is not assumed.
Backward is twice forward: every product has two gradients, the first layer's too, for the embeddings learn.
Left out is what a step does once and not for every token: a norm's bias, carried through the next product.
"""

from __future__ import annotations

from sweeplab.model.shape import ModelShape

FEED_FORWARD_RATIO = 4
# Copies of its weights that a training run takes: themselves, the best, two moments, two gradients, and what an
# update needs for a moment.
ROWS = 9


def parameters(shape: ModelShape) -> dict[str, int]:
    """Return the number of parameters by component; their sum is the size of a run's weights."""
    v, t, n, c = shape.vocab_size, shape.block_size, shape.n_layer, shape.n_embd
    hidden = FEED_FORWARD_RATIO * c
    bias = int(shape.bias)
    return {
        "token_embedding": v * c,
        "position_embedding": t * c,
        "attention": n * (4 * c * c + 3 * c * shape.has_qkv_bias + c * bias),
        "feed_forward": n * (2 * c * hidden + (hidden + c) * bias),
        "norms": (2 * n + 1) * c * (1 + bias),
        "head": (0 if shape.tie_weights else v * c) + v * shape.has_head_bias,
    }


def n_params(shape: ModelShape) -> int:
    """Return the number of parameters in all; tied weights count once."""
    return sum(parameters(shape).values())


def n_params_non_embedding(shape: ModelShape) -> int:
    """Return the parameters without token and position embeddings (and without a head tied to them)."""
    return n_params(shape) - shape.vocab_size * shape.n_embd - shape.block_size * shape.n_embd


def forward_flops_per_token(shape: ModelShape) -> int:
    """Return the FLOPs of one token's forward pass in a sequence of block_size tokens."""
    v, t, n, c = shape.vocab_size, shape.block_size, shape.n_layer, shape.n_embd
    projections = 2 * (4 * c * c + 2 * FEED_FORWARD_RATIO * c * c)
    scores_and_mix = 2 * 2 * t * c
    return n * (projections + scores_and_mix) + 2 * v * c


def train_flops_per_token(shape: ModelShape) -> int:
    """Return the FLOPs of one token's forward and backward pass."""
    return 3 * forward_flops_per_token(shape)


def train_memory_bytes(shape: ModelShape, batch_size: int, value_bytes: int = 4) -> int:
    """Estimate the memory one run takes in a stack: its rows (weights, best, moments, gradients) and activations.

    An estimate to choose K and to warn by; `value_bytes` is the size of an activation.
    """
    c, t = shape.n_embd, shape.block_size
    kept_per_token = shape.n_layer * (16 * c + 2 * FEED_FORWARD_RATIO * c + 2 * shape.n_head * t)
    kept_per_token += 3 * shape.vocab_size
    return 4 * ROWS * n_params(shape) + batch_size * t * kept_per_token * value_bytes
