"""A decoder as one writes it with torch's own modules: the reference that the stack is measured against."""

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        c = shape.n_embd
        self.n_head = shape.n_head
        self.attention_norm = nn.LayerNorm(c, bias=shape.bias)
        self.qkv = nn.Linear(c, 3 * c, bias=shape.has_qkv_bias)
        self.out = nn.Linear(c, c, bias=shape.bias)
        self.feed_forward_norm = nn.LayerNorm(c, bias=shape.bias)
        self.up = nn.Linear(c, 4 * c, bias=shape.bias)
        self.down = nn.Linear(4 * c, c, bias=shape.bias)
        self.activation = {"gelu": nn.GELU(), "relu": nn.ReLU()}[shape.activation]

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.attention_norm(x)).split(c, dim=2)
        q, k, v = (each.view(b, t, self.n_head, -1).transpose(1, 2) for each in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, c))
        return x + self.down(self.activation(self.up(self.feed_forward_norm(x))))


class PlainGPT(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.token_embedding = nn.Embedding(shape.vocab_size, shape.n_embd)
        self.position_embedding = nn.Embedding(shape.block_size, shape.n_embd)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.n_layer))
        self.final_norm = nn.LayerNorm(shape.n_embd, bias=shape.bias)
        self.head = nn.Linear(shape.n_embd, shape.vocab_size, bias=shape.has_head_bias)
        if shape.tie_weights:
            self.head.weight = self.token_embedding.weight

    def forward(self, tokens):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token_embedding(tokens) + self.position_embedding(positions)
        for block in self.blocks:
            x = block(x)
        return self.head(self.final_norm(x))

    def loss(self, tokens):
        return self.loss_of(tokens[:, :-1], tokens[:, 1:])

    def loss_of(self, inputs, targets):
        return F.cross_entropy(self(inputs).flatten(0, 1), targets.flatten(), ignore_index=-1)

    @torch.no_grad()
    def take(self, weights):
        """Copy the weights of one run of a stack, by name: matrices there are [in, out], here [out, in]."""
        ours = dict(self.named_parameters())
        for name, weight in weights.items():
            name = name.replace("attention.qkv", "qkv").replace("attention.out", "out")
            name = name.replace("feed_forward.up", "up").replace("feed_forward.down", "down")
            name = name.replace("norm.gain", "norm.weight")
            target = ours.pop(name if name in ours else f"{name}.weight")
            turned = (weight.ndim == 2 and target.shape != weight.shape) or any(
                part in name
                for part in ("qkv.weight", "out.weight", "up.weight", "down.weight")
            )
            target.copy_(weight.T if turned else weight)
        assert not ours, f"not given: {sorted(ours)}"

    def groups(self, weight_decay):
        """Return AdamW's parameter groups: decay on matrices and embeddings only, as nanoGPT."""
        parameters = list(self.parameters())
        return [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
