"""The decoder-only language model, as a stack: every weight has a leading run dimension.

Legend: K runs, B sequences a batch, T positions, C n_embd, H heads, D head width, V vocabulary, N = B*T.
A lone run is a stack of one. Nothing a run computes depends on its neighbours, its row or K: products are
batched over K, attention folds K into its batch, losses are means within a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from sweeplab.data.batches import NO_TARGET, Batch
from sweeplab.model.dropout import Dropout
from sweeplab.model.layout import Layout
from sweeplab.model.shape import ModelShape

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": F.gelu, "relu": F.relu}
# bfloat16 products with odd sizes can be many times slower: the head's columns are padded to a multiple of this.
PADDED_VOCABULARY = 8
NORM_EPS = 1e-5

Weights = Mapping[str, Tensor]


class Decoder:
    """Computes logits and losses of a stack of runs from their weights; keeps none itself."""

    def __init__(self, shape: ModelShape) -> None:
        self.shape = shape
        self.layout = Layout(shape)

    @property
    def n_dropout_sites(self) -> int:
        """Return how many masks a step takes: one for the embeddings and three a block."""
        return 1 + 3 * self.shape.n_layer

    def most_dropped(self, n_sequences: int) -> int:
        """Return the most elements that one mask of a run has: activations, or attention weights."""
        length = self.shape.block_size
        return n_sequences * length * max(self.shape.n_embd, self.shape.n_head * length)

    def losses(self, w: Weights, batch: Batch, dropout: Dropout | None = None) -> Tensor:
        """Return each run's mean cross-entropy [K] in nats a counted target.

        `w` are the layout's views; inputs and targets of the batch are [K, B, T].
        """
        n_runs = batch.targets.shape[0]
        logits = self.logits(w, batch, dropout)
        targets: Tensor = batch.targets.reshape(-1)
        logits = logits.view(targets.numel(), -1).float()
        each = F.cross_entropy(logits, targets, reduction="none", ignore_index=NO_TARGET).view(n_runs, -1)
        if batch.lengths is None:  # a decoder's batch without padding has a target at every position
            return each.mean(dim=1)
        return each.sum(dim=1) / (targets != NO_TARGET).view(n_runs, -1).sum(dim=1)

    def logits(self, w: Weights, batch: Batch, dropout: Dropout | None = None) -> Tensor:
        """Return logits [K, B*T, V] for inputs [K, B, T], T at most block_size; padding on the right is not seen."""
        n_sequences = batch.inputs.shape[1]
        x = self._embed(w, batch.inputs)
        if dropout:
            x = dropout(x, site=0)
        for layer in range(self.shape.n_layer):
            block, site = f"blocks.{layer}", 1 + 3 * layer
            update = self._attention(w, block, x, n_sequences, dropout, site)
            x = x + (dropout(update, site + 1) if dropout else update)
            update = self._feed_forward(w, block, x)
            x = x + (dropout(update, site + 2) if dropout else update)
        return self._head(w, x)

    def _embed(self, w: Weights, tokens: Tensor) -> Tensor:
        n_runs, n_sequences, length = tokens.shape
        c, v = self.shape.n_embd, self.shape.vocab_size
        row = torch.arange(0, n_runs * v, v, device=tokens.device).view(n_runs, 1, 1)
        x = F.embedding(tokens + row, w["token_embedding"].reshape(n_runs * v, c))
        x = x + w["position_embedding"][:, None, :length]
        return x.view(n_runs, n_sequences * length, c)

    def _attention(
        self, w: Weights, block: str, x: Tensor, n_sequences: int, dropout: Dropout | None, site: int
    ) -> Tensor:
        n_runs, n_tokens, c = x.shape
        heads, width = self.shape.n_head, self.shape.head_dim
        into = f"{block}.attention.qkv"
        split = _norm_linear(w, f"{block}.attention_norm", w[f"{into}.weight"], w.get(f"{into}.bias"), x)
        split = split.view(n_runs * n_sequences, -1, 3, heads, width)
        q, k, v = split.permute(2, 0, 3, 1, 4)  # each [K*B, H, T, D]
        if dropout:
            mixed = _attend_with_dropout(q, k, v, dropout, site)
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return _linear(w, f"{block}.attention.out", mixed.transpose(1, 2).reshape(n_runs, n_tokens, c))

    def _feed_forward(self, w: Weights, block: str, x: Tensor) -> Tensor:
        into = f"{block}.feed_forward.up"
        hidden = _norm_linear(w, f"{block}.feed_forward_norm", w[f"{into}.weight"], w.get(f"{into}.bias"), x)
        return _linear(w, f"{block}.feed_forward.down", ACTIVATIONS[self.shape.activation](hidden))

    def _head(self, w: Weights, x: Tensor) -> Tensor:
        weight = w["token_embedding"] if self.shape.tie_weights else w["head.weight"]
        v = self.shape.vocab_size
        missing = -v % PADDED_VOCABULARY if torch.is_autocast_enabled(x.device.type) else 0
        if missing:
            weight = F.pad(weight, (0, 0, 0, missing))
        logits = _norm_linear(w, "final_norm", weight.transpose(1, 2), None, x)[:, :, :v]
        if self.shape.has_head_bias:
            logits = logits + w["head.bias"][:, None]
        return logits.contiguous()


def _linear(w: Weights, name: str, x: Tensor) -> Tensor:
    bias = w.get(f"{name}.bias")
    if bias is None:
        return torch.bmm(x, w[f"{name}.weight"])
    return torch.baddbmm(bias[:, None], x, w[f"{name}.weight"])


def _norm_linear(w: Weights, norm: str, weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    """Normalise x [K, N, C] and multiply by weight [K, C, O].

    The norm's gain and bias are moved into the product, (x g + b) W = x (g W) + b W: there are fewer weights than
    activations, and a step spends less on them.
    """
    # Gains of one: torch's kernel for none at all gives the same bits in 1.7 times the time.
    normed = F.layer_norm(x, x.shape[-1:], x.new_ones(x.shape[-1]), eps=NORM_EPS)
    if (shift := w.get(f"{norm}.bias")) is not None:
        shift = shift[:, None]
        bias = torch.bmm(shift, weight) if bias is None else torch.baddbmm(bias[:, None], shift, weight)
    elif bias is not None:
        bias = bias[:, None]
    weight = w[f"{norm}.gain"][:, :, None] * weight
    return torch.bmm(normed, weight) if bias is None else torch.baddbmm(bias, normed, weight)


def _attend_with_dropout(q: Tensor, k: Tensor, v: Tensor, dropout: Dropout, site: int) -> Tensor:
    """Attend as the kernel would, with our masks on the weights: the kernel draws its own from one generator."""
    length = q.shape[2]
    future = torch.ones(length, length, dtype=torch.bool, device=q.device).triu_(1)
    scores = torch.matmul(q, k.transpose(2, 3)).mul_(1.0 / math.sqrt(q.shape[3]))
    weights = scores.masked_fill_(future, -math.inf).softmax(dim=-1)
    return torch.matmul(dropout(weights, site), v)
