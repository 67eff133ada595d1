"""The feed-forward sub-layer: dense, or a mixture of experts.

Legend: K runs, N tokens of a run, C n_embd, F d_ff, E n_expert, A n_expert_active.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from sweeplab.model.activations import ACTIVATIONS, by_run
from sweeplab.model.passes import Normed, Pass, Routing

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


def feed_forward(p: Pass, name: str, read: Normed) -> Float[Tensor, "K N C"]:
    """Up-project, activate and down-project each token."""
    hidden = _hidden(p.shape.activation, p.n_runs, lambda part: p.linear(f"{name}.{part}", read))
    return p.linear(f"{name}.down", Normed(p.note(f"{name}.hidden", hidden)))


def _hidden(activation: str, n_runs: int, project: Callable[[str], Tensor]) -> Tensor:
    """Return a(up x), or gated a(gate x) * up x, of a token's projections."""
    part = ACTIVATIONS[activation]
    hidden = by_run(part.apply, project("gate" if part.gated else "up"), n_runs)
    return hidden * project("up") if part.gated else hidden


def experts(p: Pass, name: str, present: Bool[Tensor, "KB T"] | None, read: Normed) -> Float[Tensor, "K N C"]:
    """Give each token to A of E feed-forward layers and add what they return, weighed by the router.

    `present` is False on padding. No token is dropped. Each expert of each run is a product of its own over the tokens
    that it got: their number depends on no neighbor, and only what is chosen is computed.
    """
    x = read.whole()
    shares, chosen = _route(p, name, present, x)
    active = p.shape.n_expert_active
    # Each run's choices sorted by expert: their tokens lie together, and `back` undoes it.
    order = chosen.flatten(1).argsort(dim=1, stable=True)
    back = order.argsort(dim=1)
    # How many tokens each expert gets: what a layer waits for the device once for, whatever the number of runs.
    counts = F.one_hot(chosen, p.shape.n_expert).sum(dim=(1, 2)).tolist()
    updates = []
    for run, tokens in enumerate(x.unbind()):
        given = torch.split(tokens.repeat_interleave(active, dim=0)[order[run]], counts[run])
        answers = torch.cat([_answer(p, name, run, expert, each) for expert, each in enumerate(given)])
        taken = answers[back[run]].view(-1, active, x.shape[-1])
        updates.append((taken * shares[run][:, :, None]).sum(dim=1))
    return torch.stack(updates)


def _answer(p: Pass, name: str, run: int, expert: int, x: Float[Tensor, "n C"]) -> Float[Tensor, "n C"]:
    """Return one expert's feed-forward of the tokens that it got."""

    def weight(part: str) -> Tensor:
        return p.w[f"{name}.{part}.weight"][run, expert]

    hidden = _hidden(p.shape.activation, 1, lambda part: torch.mm(x, weight(part)))
    return torch.mm(hidden, weight("down"))


def _route(
    p: Pass, name: str, present: Bool[Tensor, "KB T"] | None, x: Float[Tensor, "K N C"]
) -> tuple[Float[Tensor, "K N A"], Int[Tensor, "K N A"]]:
    """Return each token's shares of its best experts and which they are; note the router's losses.

    The chosen ones' probabilities are made to sum to one; a lone one's is kept as it is, for else the router would
    learn nothing from it. The losses are over what is no padding. Balance (Fedus et al., "Switch transformers",
    2021): E sum_e f_e P_e, of the part of the choices that an expert got and its mean probability. z (Zoph et al.,
    "ST-MoE", 2022): the mean square of the logits' log-sum-exp.
    """
    logits = p.linear(f"{name}.router", Normed(x))
    logits = logits if logits.dtype == torch.float64 else logits.float()
    given = logits.softmax(dim=-1)
    shares, chosen = given.topk(p.shape.n_expert_active, dim=-1)
    if p.shape.n_expert_active > 1:
        shares = shares / shares.sum(dim=-1, keepdim=True)
    counted = torch.ones_like(given[:, :, :1])
    if present is not None:
        counted = counted * present.view(p.n_runs, -1, 1)
    part = counted / counted.sum(dim=1, keepdim=True)
    use = (F.one_hot(chosen, p.shape.n_expert).sum(dim=2) * part).sum(dim=1) / p.shape.n_expert_active
    balance = p.shape.n_expert * (use * (given * part).sum(dim=1)).sum(dim=1)
    z = ((logits - logits.log_softmax(dim=-1))[:, :, :1].square() * part).sum(dim=(1, 2))
    p.routings.append(Routing(balance, z, use))
    p.routed(name, x, shares, chosen)
    return shares, chosen
