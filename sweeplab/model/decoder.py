"""The decoder-only language model, as a stack: every weight has a leading run dimension.

Legend: K runs, B sequences a batch, T positions, C n_embd, H heads, D head width, V vocabulary, N = B*T.
A lone run is a stack of one. Nothing a run computes depends on its neighbours, its row or K: products are
batched over K, attention folds K into its batch, losses are means within a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from sweeplab.model.dropout import Dropout
from sweeplab.model.layout import Layout
from sweeplab.model.shape import ModelShape

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": F.gelu, "relu": F.relu}
# bfloat16 products with odd sizes can be many times slower: the head's columns are padded to a multiple of this.
PADDED_VOCABULARY = 8
NORM_EPS = 1e-5


class Decoder:
    """Computes logits and losses of a stack of runs from their rows; keeps no weights itself."""

    def __init__(self, shape: ModelShape) -> None:
        self.shape = shape
        self.layout = Layout(shape)

    @property
    def n_dropout_sites(self) -> int:
        """Return how many masks a step takes: one for the embeddings and three a block."""
        return 1 + 3 * self.shape.n_layer

    def losses(self, flat: Tensor, tokens: Tensor, dropout: Dropout | None = None) -> Tensor:
        """Return each run's mean cross-entropy [K] in nats a token.

        `flat` is [K, row_size], `tokens` [K, B, T + 1]; the target of a position is the token after it.
        """
        n_runs = tokens.shape[0]
        logits = self.logits(flat, tokens[:, :, :-1], dropout)
        targets = tokens[:, :, 1:].reshape(-1)
        each = F.cross_entropy(logits.view(targets.numel(), -1).float(), targets, reduction="none")
        return each.view(n_runs, -1).mean(dim=1)

    def logits(self, flat: Tensor, tokens: Tensor, dropout: Dropout | None = None) -> Tensor:
        """Return logits [K, B*T, V] for tokens [K, B, T], T at most block_size."""
        w = self.layout.views(flat)
        n_runs, n_sequences, length = tokens.shape
        x = self._embed(w, tokens)
        if dropout:
            x = dropout(x, site=0)
        for layer in range(self.shape.n_layer):
            block, site = f"blocks.{layer}", 1 + 3 * layer
            update = _norm(w, f"{block}.attention_norm", x)
            update = self._attention(w, f"{block}.attention", update, n_sequences, dropout, site)
            x = x + (dropout(update, site + 1) if dropout else update)
            update = _norm(w, f"{block}.feed_forward_norm", x)
            update = self._feed_forward(w, f"{block}.feed_forward", update)
            x = x + (dropout(update, site + 2) if dropout else update)
        return self._head(w, _norm(w, "final_norm", x))

    def _embed(self, w: dict[str, Tensor], tokens: Tensor) -> Tensor:
        n_runs, n_sequences, length = tokens.shape
        c, v = self.shape.n_embd, self.shape.vocab_size
        row = torch.arange(0, n_runs * v, v, device=tokens.device).view(n_runs, 1, 1)
        x = F.embedding(tokens + row, w["token_embedding"].reshape(n_runs * v, c))
        x = x + w["position_embedding"][:, None, :length]
        return x.view(n_runs, n_sequences * length, c)

    def _attention(
        self, w: dict[str, Tensor], name: str, x: Tensor, n_sequences: int, dropout: Dropout | None, site: int
    ) -> Tensor:
        n_runs, n_tokens, c = x.shape
        heads, width = self.shape.n_head, self.shape.head_dim
        split = _linear(w, f"{name}.qkv", x).view(n_runs * n_sequences, -1, 3, heads, width)
        q, k, v = split.permute(2, 0, 3, 1, 4)  # each [K*B, H, T, D]
        if dropout:
            mixed = _attend_with_dropout(q, k, v, dropout, site)
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return _linear(w, f"{name}.out", mixed.transpose(1, 2).reshape(n_runs, n_tokens, c))

    def _feed_forward(self, w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
        hidden = ACTIVATIONS[self.shape.activation](_linear(w, f"{name}.up", x))
        return _linear(w, f"{name}.down", hidden)

    def _head(self, w: dict[str, Tensor], x: Tensor) -> Tensor:
        weight = w["token_embedding"] if self.shape.tie_weights else w["head.weight"]
        v = self.shape.vocab_size
        missing = -v % PADDED_VOCABULARY if torch.is_autocast_enabled(x.device.type) else 0
        if missing:
            weight = F.pad(weight, (0, 0, 0, missing))
        logits = torch.bmm(x, weight.transpose(1, 2))[:, :, :v]
        if self.shape.has_head_bias:
            logits = logits + w["head.bias"][:, None]
        return logits.contiguous()


def _linear(w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    bias = w.get(f"{name}.bias")
    if bias is None:
        return torch.bmm(x, w[f"{name}.weight"])
    return torch.baddbmm(bias[:, None], x, w[f"{name}.weight"])


def _norm(w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    normed = F.layer_norm(x, x.shape[-1:], eps=NORM_EPS)
    gain, bias = w[f"{name}.gain"][:, None], w.get(f"{name}.bias")
    return normed * gain if bias is None else torch.addcmul(bias[:, None], normed, gain)


def _attend_with_dropout(q: Tensor, k: Tensor, v: Tensor, dropout: Dropout, site: int) -> Tensor:
    """Attend as the kernel would, with our masks on the weights: the kernel draws its own from one generator."""
    length = q.shape[2]
    future = torch.ones(length, length, dtype=torch.bool, device=q.device).triu_(1)
    scores = torch.matmul(q, k.transpose(2, 3)).mul_(1.0 / math.sqrt(q.shape[3]))
    weights = scores.masked_fill_(future, -math.inf).softmax(dim=-1)
    return cast(Tensor, torch.matmul(dropout(weights, site), v))
