"""The feed-forward part of a block: one, or several experts of which a router gives each token a few.

Legend: N tokens, C n_embd, E n_expert.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from references.numpy_model.functions import (
    ACTIVATIONS,
    GATES,
    Array,
    Mask,
    Step,
    chain,
    log_sum_exp,
    normalize,
    same,
    softmax,
)
from references.numpy_model.passes import Pass


def hidden(p: Pass, name: str, x: Array) -> Step:
    """Return a(up x), or gated a(gate x) * up x: of a product, each factor's gradient is dy times the other."""
    up, back_up = p.linear(f"{name}.up", x)
    if p.shape.activation in ACTIVATIONS:
        y, back_activation = ACTIVATIONS[p.shape.activation](up)
        return y, lambda dy: back_up(back_activation(dy))
    gate, back_gate = chain(x, partial(p.linear, f"{name}.gate"), GATES[p.shape.activation])
    return gate * up, lambda dy: back_up(dy * gate) + back_gate(dy * up)


def feed_forward(p: Pass, name: str, x: Array) -> Step:
    """Widen, bend, and narrow again: down(hidden(x)), for each token by itself."""
    return chain(
        x, partial(hidden, p, name), partial(p.noted, f"{name}.hidden"), partial(p.linear, f"{name}.down")
    )


def experts(p: Pass, name: str, present: Mask, x: Array) -> Step:
    """Return the sum of the experts' answers, weighed by the router; one without a share learns nothing.

    All experts answer every token here, which a program that counts its operations avoids.
    """
    tokens = x.reshape(-1, x.shape[-1])
    counted = np.broadcast_to(present[:, 0, 0], x.shape[:2]).reshape(-1, 1)
    shares, back_shares = route(p, f"{name}.router", counted / counted.sum(), tokens)
    answers, back_answers = feed_forward(p, name, np.broadcast_to(tokens, (p.shape.n_expert, *tokens.shape)))

    def back(dy: Array) -> Array:
        dy = dy.reshape(tokens.shape)
        dx = back_shares(np.einsum("nc,enc->ne", dy, answers))
        dx += back_answers(shares.T[:, :, None] * dy).sum(0)
        return dx.reshape(x.shape)

    return np.einsum("ne,enc->nc", shares, answers).reshape(x.shape), back


def route(p: Pass, name: str, part: Array, x: Array) -> Step:
    """Return each token's shares of its n_expert_active best experts [N, E]: their softmax, normalized anew.

    (A lone one's softmax is kept: normalized it would be one, and have no gradient.) Two losses keep a router
    sound, means over the tokens that are no padding (`part` of each [N, 1]), and their gradients join here.
    Balance (Fedus et al., Switch): E sum_e f_e P_e, f_e the share of choices that expert e got, P_e its mean
    softmax; f_e is a count and has no derivative. z (Zoph et al., ST-MoE): the mean square of log sum exp.
    """
    active, n_expert = p.shape.n_expert_active, p.shape.n_expert
    scores, back_scores = p.linear(name, x)
    given, back_given = softmax(scores)
    best = np.argsort(-scores, axis=-1, kind="stable")[:, :active]
    chosen = np.zeros(scores.shape)
    np.put_along_axis(chosen, best, 1.0, axis=-1)
    shares, back_shares = (normalize if active > 1 else same)(given * chosen)
    log_sum, back_log_sum = log_sum_exp(scores)
    uneven = n_expert / active * (part * chosen).sum(0)
    p.side_loss += p.router_balance * float(((part * given).sum(0) * uneven).sum())
    p.side_loss += p.router_z * float((part * log_sum**2).sum())

    def back(dy: Array) -> Array:
        d_given = chosen * back_shares(dy) + p.router_balance * part * uneven
        d_log_sum = p.router_z * part * 2.0 * log_sum
        return back_scores(back_given(d_given) + back_log_sum(d_log_sum))

    return p.note(f"{name}.shares", shares), back
