"""A model of one's own: a decoder of nanoGPT's shape, an nn.Module as Karpathy's nanoGPT writes it.

`fixed: {model: nanogpt, n_layer: 4, …}` trains it; `mlp_ratio` and `gate` are searched like any hyperparameter.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sweeplab.plugins import model


@dataclass
class Settings:
    """The rows that this model adds to the hyperparameter table."""

    mlp_ratio: int = field(default=4, metadata={"low": 1, "suggested": (2, 4)})
    gate: Literal["gelu", "silu"] = "gelu"


class Block(nn.Module):
    """Causal self-attention and an MLP, each after a norm."""

    def __init__(self, values: Any) -> None:
        super().__init__()
        c = values.n_embd
        self.n_head, self.dropout, self.gate = (
            values.n_head,
            values.dropout,
            getattr(F, values.gate),
        )
        self.ln_1, self.ln_2 = nn.LayerNorm(c), nn.LayerNorm(c)
        self.c_attn, self.c_proj = nn.Linear(c, 3 * c), nn.Linear(c, c)
        self.c_fc, self.mlp_proj = (
            nn.Linear(c, values.mlp_ratio * c),
            nn.Linear(values.mlp_ratio * c, c),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the stream [B, T, C] after the block."""
        parts = self.c_attn(self.ln_1(x)).chunk(3, dim=2)
        q, k, v = (part.unflatten(2, (self.n_head, -1)).transpose(1, 2) for part in parts)
        dropped = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropped, is_causal=True)
        x = x + F.dropout(
            self.c_proj(y.transpose(1, 2).flatten(2)), self.dropout, self.training
        )
        return x + F.dropout(
            self.mlp_proj(self.gate(self.c_fc(self.ln_2(x)))), self.dropout, self.training
        )


@model("nanogpt", Settings)
class GPT(nn.Module):
    """Token and position embeddings, blocks, a norm, and a head that has the token embeddings' weights."""

    def __init__(self, values: Any) -> None:
        super().__init__()
        self.wte = nn.Embedding(values.vocab_size, values.n_embd)
        self.wpe = nn.Embedding(values.block_size, values.n_embd)
        self.h = nn.ModuleList([Block(values) for _ in range(values.n_layer)])
        self.ln_f, self.drop = nn.LayerNorm(values.n_embd), nn.Dropout(values.dropout)
        self.head = nn.Linear(values.n_embd, values.vocab_size, bias=False)
        self.wte.weight = self.head.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                last = name.endswith("proj.weight")
                nn.init.normal_(
                    parameter, std=0.02 / (2 * values.n_layer) ** 0.5 if last else 0.02
                )

    def forward(self, idx: Tensor) -> Tensor:
        """Return logits [B, T, vocab_size] of token ids [B, T]."""
        x = self.drop(self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device)))
        for block in self.h:
            x = block(x)
        return self.head(self.ln_f(x))
