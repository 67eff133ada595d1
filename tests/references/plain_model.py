"""Every model in plain PyTorch in float64: one run, operation by operation, written to be read.

The tests hold the stacked models to these numbers, and these numbers to torch's own layers. A pass notes the value of
each step.

Legend: B sequences, T queries, S keys, N tokens, C n_embd, H query heads, D head_dim, E n_expert, V vocab_size.
"""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from sweeplab.data.batches import changed
from sweeplab.model.attention import query_factor

# ------------------------------------------------------------------ functions


def gelu(x):
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def gelu_tanh(x):
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS = {
    "relu": lambda x: x * (x > 0),
    "relu2": lambda x: (x * (x > 0)) ** 2,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
}
GATES = {"swiglu": lambda x: x / (1.0 + torch.exp(-x)), "geglu": gelu, "geglu_tanh": gelu_tanh}


def softmax(x):
    """Return exp x by its sum over the last axis; -inf has no share, and a row of nothing else gives zeros."""
    highest = x.detach().amax(-1, keepdim=True)
    exponential = torch.exp(x - highest.masked_fill(highest.isinf(), 0.0))
    total = exponential.sum(-1, keepdim=True)
    return exponential / total.masked_fill(total == 0, 1.0)


def cross_entropy(logits, targets, smoothing=0.0):
    """Return the mean cross-entropy in nats over the counted targets (not -1).

    `smoothing` moves that share of what is wanted from the target to all symbols evenly.
    """
    log_given = logits - logits.logsumexp(-1, keepdim=True)
    right = log_given.gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    losses = -(1.0 - smoothing) * right - smoothing * log_given.mean(-1)
    return losses[targets >= 0].sum() / max(int((targets >= 0).sum()), 1)


class Pass:
    """The weights of one run, and the steps of its forward pass in order; `side_loss` is what routers add to the loss.

    A bias that is not among the weights is none.
    """

    def __init__(
        self,
        shape,
        weights,
        router_balance=0.0,
        router_z=0.0,
    ):
        self.shape, self.router_balance, self.router_z = shape, router_balance, router_z
        self.weights = {
            name: torch.tensor(np.asarray(weight), dtype=torch.float64, requires_grad=True)
            for name, weight in weights.items()
        }
        self.steps = []
        self.side_loss = 0.0

    def note(self, name, value):
        self.steps.append((name, value))
        return value

    def linear(self, name, x):
        """Return x W + b; a weight [E, in, out] is one of each expert, for x [E, N, in]."""
        return self.note(
            name, x @ self.weights[f"{name}.weight"] + self.weights.get(f"{name}.bias", 0.0)
        )

    def norm(self, name, x, kind=""):
        """Return gain * norm(x) + bias: less its mean (layernorm), divided by the root of the mean square."""
        if (kind or self.shape.norm) == "layernorm":
            x = x - x.mean(-1, keepdim=True)
        x = x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.shape.norm_eps)
        gain, bias = self.weights[f"{name}.gain"], self.weights.get(f"{name}.bias", 0.0)
        return self.note(name, x * gain + bias)


# ------------------------------------------------------------------ positions


def sinusoids(n_positions, width):
    """Return Vaswani et al.'s table [n_positions, width]: sines in even columns, cosines in odd ones."""
    column = torch.arange(width)
    angle = torch.arange(n_positions).double()[:, None] / 10000.0 ** (
        (column - column % 2) / width
    )
    return torch.where(column % 2 == 0, torch.sin(angle), torch.cos(angle))


def rotate(x, base, share):
    """Turn each pair (column i, column i + R/2) of x [..., T, D] by position * base^(-2i/R) (Su et al., as Llama).

    R is this share of D; the columns after R stay as they are.
    """
    half = int(x.shape[-1] * share) // 2
    angle = torch.arange(x.shape[-2]).double()[:, None] * base ** (
        -torch.arange(half).double() / half
    )
    cos, sin = torch.cos(angle), torch.sin(angle)
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


def alibi_slopes(n_head):
    """Return a slope a head (Press et al.): 2^(-8/n), its square, its cube …, n being a power of two.

    Otherwise those of the next lower power of two, then every second one of the next higher.
    """
    lower = 2 ** int(math.log2(n_head))
    slopes = 2.0 ** (-8.0 / lower * torch.arange(1, lower + 1).double())
    between = 2.0 ** (-4.0 / lower * torch.arange(1, 2 * lower + 1, 2).double())
    return torch.cat([slopes, between])[:n_head]


def relative_buckets(distance, causal, n_buckets, max_distance):
    """Return the bucket of each key's distance behind its query (Raffel et al., T5).

    Half of the buckets hold one distance each, the others ranges that grow logarithmically up to max_distance.
    Where a query sees what follows it, the keys after it have the upper half of all buckets to themselves.
    """
    after = torch.zeros_like(distance)
    if causal:
        distance = distance.clamp(min=0)
    else:
        n_buckets //= 2
        after, distance = n_buckets * (distance < 0), distance.abs()
    exact = n_buckets // 2
    share = torch.log(distance.clamp(min=exact) / exact) / math.log(max_distance / exact)
    far = (exact + (share * (n_buckets - exact)).long()).clamp(max=n_buckets - 1)
    return after + torch.where(distance < exact, distance, far)


# ------------------------------------------------------------------ attention


@dataclass(frozen=True)
class Sight:
    """What queries see of their own sequence.

    present: which keys are no padding, [B or 1, 1, 1, T];
    visible: which of those the kind of attention sees, [B or 1, 1, T, T]; whole: which full attention sees;
    bias: what positions add to the scores, [H or 1, T, T].
    """

    present: Tensor
    visible: Tensor
    whole: Tensor
    bias: Tensor


def sight(p, prefix, tokens, lengths, causal):
    """Work out what tokens [B, T] of these lengths [B] (None: all of T) see of each other."""
    shape, places = p.shape, torch.arange(tokens.shape[1])
    distance, bias = places[:, None] - places, torch.zeros(1, 1, 1)
    ends = torch.tensor([len(places)]) if lengths is None else torch.as_tensor(lengths)
    present = places < ends[:, None, None, None]
    whole = present & ~(causal & (distance < 0))
    near = distance.abs() < shape.attention_window
    if shape.positions == "alibi":
        bias = -alibi_slopes(shape.n_head)[:, None, None] * distance.abs()
    if shape.positions == "relative":
        bucket = relative_buckets(
            distance, causal, shape.relative_buckets, shape.relative_max_distance
        )
        bias = p.weights[f"{prefix}relative_bias"][bucket].permute(2, 0, 1)
    return Sight(present, whole & near if shape.attention == "local" else whole, whole, bias)


def heads(p, name, role, x, turned=False):
    """Cut q, k or v into heads [B, H, T, D]; norm, turn and scale those of q and k as the model's parts say."""
    shape = p.shape
    x = x.unflatten(-1, (-1, shape.head_dim)).transpose(1, 2)
    if role in "qk" and shape.qk_norm:
        x = p.norm(f"{name}.{role}_norm", x, "rmsnorm")
    if role in "qk" and turned:
        x = rotate(x, shape.rotary_base, shape.rotary_share)
    if role == "q":  # under muP scores are divided by D, not by its root; or by that of C
        x = x * query_factor(shape)
    else:
        x = x.repeat_interleave(shape.n_head // shape.n_kv_head, dim=1)
    return p.note(f"{name}.{role}.heads", x)


def attend(p, name, q, k, v, visible, bias=0.0):
    """Return each query's mean of the visible values, weighed by softmax(q kᵀ / √D + bias), projected."""
    scores = (q @ k.mT / math.sqrt(q.shape[-1]) + bias).masked_fill(~visible, -math.inf)
    weights = p.note(f"{name}.weights", softmax(p.note(f"{name}.scores", scores)))
    mixed = p.note(f"{name}.mixed", weights @ v)
    return p.linear(f"{name}.out", mixed.transpose(1, 2).flatten(2))


def self_attention(p, name, kind, seen, x):
    """Let each token of x [B, T, C] attend to those of its own sequence that it sees."""
    shape, turned = p.shape, p.shape.positions == "rotary"
    widths = [
        count * shape.head_dim for count in (shape.n_head, shape.n_kv_head, shape.n_kv_head)
    ]
    q, k, v = p.linear(f"{name}.qkv", x).split(widths, dim=-1)
    q, k, v = (
        heads(p, name, "q", q, turned),
        heads(p, name, "k", k, turned),
        heads(p, name, "v", v),
    )
    return attend(p, name, q, k, v, seen.whole if kind == "full" else seen.visible, seen.bias)


def cross_attention(p, name, encoded, visible, x):
    """Let each token of x [B, T, C] attend to what the encoder makes of its source [B, S, C]."""
    q = heads(p, name, "q", p.linear(f"{name}.q", x))
    k, v = p.linear(f"{name}.kv", encoded).chunk(2, dim=-1)
    return attend(p, name, q, heads(p, name, "k", k), heads(p, name, "v", v), visible)


# ------------------------------------------------------------------ feed-forward layers


def feed_forward(p, name, x):
    """Return down(a(up x)), or gated down(a(gate x) * up x), for each token by itself."""
    up, activation = p.linear(f"{name}.up", x), p.shape.activation
    if activation in ACTIVATIONS:
        hidden = ACTIVATIONS[activation](up)
    else:
        hidden = GATES[activation](p.linear(f"{name}.gate", x)) * up
    return p.linear(f"{name}.down", p.note(f"{name}.hidden", hidden))


def experts(p, name, present, x):
    """Return the sum of the experts' answers, weighed by the router. All experts answer every token here."""
    tokens = x.flatten(0, 1)
    counted = present[:, 0, 0].expand(x.shape[:2]).reshape(-1, 1).double()
    shares = route(p, f"{name}.router", counted / counted.sum(), tokens)
    answers = feed_forward(p, name, tokens.expand(p.shape.n_expert, *tokens.shape))
    return torch.einsum("ne,enc->nc", shares, answers).view(x.shape)


def route(p, name, part, x):
    """Return each token's shares of its n_expert_active best experts [N, E]: their softmax, normalized anew.

    (A lone one's softmax is kept: normalized it would be one, and have no gradient.) Two losses keep a router
    sound, means over the tokens that are no padding (`part` of each [N, 1]). Balance (Fedus et al., Switch):
    E sum_e f_e P_e, f_e the share of choices that expert e got, P_e its mean softmax.
    z (Zoph et al., ST-MoE): the mean square of log sum exp.
    """
    active, n_expert = p.shape.n_expert_active, p.shape.n_expert
    scores = p.linear(name, x)
    given = softmax(scores)
    best = (-scores).argsort(dim=-1, stable=True)[:, :active]
    chosen = torch.zeros_like(scores).scatter(1, best, 1.0)
    shares = given * chosen
    if active > 1:
        shares = shares / shares.sum(-1, keepdim=True)
    uneven = n_expert / active * (part * chosen).sum(0)
    p.side_loss += p.router_balance * ((part * given).sum(0) * uneven).sum()
    p.side_loss += p.router_z * (part * scores.logsumexp(-1, keepdim=True) ** 2).sum()
    return p.note(f"{name}.shares", shares)


# ------------------------------------------------------------------ models


def block(p, name, kind, seen, memory, x):
    """Attend, attend to the source if there is one, feed forward: each added to the stream x [B, T, C]."""
    shape = p.shape
    parts = {"attention": partial(self_attention, p, f"{name}.attention", kind, seen)}
    if memory:
        parts["cross"] = partial(cross_attention, p, f"{name}.cross", *memory)
    parts["feed_forward"] = partial(feed_forward, p, f"{name}.feed_forward")
    if shape.n_expert > 1:
        parts["feed_forward"] = partial(experts, p, f"{name}.feed_forward", seen.present)
    if shape.parallel_block:
        normed = p.norm(f"{name}.attention_norm", x)
        total = x + parts["attention"](normed)
        if not shape.shared_norm:
            normed = p.norm(f"{name}.feed_forward_norm", x)
        return p.note(f"{name}.attention.added", total + parts["feed_forward"](normed))
    for part, compute in parts.items():
        norm = partial(p.norm, f"{name}.{part}_norm")
        if shape.norm_position == "post":
            x = norm(p.note(f"{name}.{part}.added", x + compute(x)))
        else:
            x = p.note(f"{name}.{part}.added", x + compute(norm(x)))
    return x


def embed(p, prefix, tokens):
    """Look up the tokens [B, T]: their vectors [B, T, C] and where they stand, summed (and normed)."""
    shape, length = p.shape, tokens.shape[1]
    own = "source_embedding" if prefix and not shape.share_embeddings else "token_embedding"
    x = p.weights[own][tokens] * (math.sqrt(shape.n_embd) if shape.scale_embedding else 1.0)
    p.note(f"{prefix}token_embedding", x)
    if shape.positions == "learned":
        x = x + p.note(
            f"{prefix}position_embedding",
            p.weights[f"{prefix}position_embedding"][:length].expand_as(x),
        )
    if shape.positions == "sinusoidal":
        x = x + p.note(
            f"{prefix}position_embedding", sinusoids(length, shape.n_embd).expand_as(x)
        )
    if shape.n_token_types:  # all tokens are of the first type
        name = f"{prefix}token_type_embedding"
        x = x + p.note(name, p.weights[name][0].expand_as(x))
    p.note(f"{prefix}embedding", x)
    return p.norm(f"{prefix}embedding_norm", x) if shape.embedding_norm else x


def stack(
    p,
    prefix,
    n_layer,
    tokens,
    seen,
    memory=None,
):
    """Embed tokens [B, T] and take them through all blocks of an encoder or a decoder, to [B, T, C]."""
    x = embed(p, prefix, tokens)
    for layer in range(n_layer):
        interval = p.shape.full_attention_interval
        kind = "full" if interval and (layer + 1) % interval == 0 else p.shape.attention
        x = block(p, f"{prefix}blocks.{layer}", kind, seen, memory, x)
    return p.norm(f"{prefix}final_norm", x) if p.shape.final_norm else x


def model(p, batch):
    """Return the logits [B, T, V] of a batch: how alike each token's vector is to each symbol's."""
    shape, memory, n_layer = p.shape, None, p.shape.n_layer
    batch = changed(batch, torch.as_tensor)
    if shape.family == "encoder_decoder":
        seen = sight(p, "encoder.", batch.source, batch.source_lengths, causal=False)
        memory = stack(p, "encoder.", shape.n_encoder_layer, batch.source, seen), seen.present
        n_layer = shape.n_decoder_layer
    seen = sight(p, "", batch.inputs, batch.lengths, causal=shape.family != "encoder")
    x = stack(p, "", n_layer, batch.inputs, seen, memory)
    if shape.family == "encoder":
        x = ACTIVATIONS.get(shape.activation, gelu)(p.linear("head.transform", x))
        x = p.norm("head.norm", x)
    weight = p.weights["token_embedding" if shape.tie_weights else "head.weight"]
    scale = (shape.n_embd**-0.5 if shape.tie_scale else 1.0) / shape.width_ratio
    logits = p.note("logits", scale * (x @ weight.T) + p.weights.get("head.bias", 0.0))
    p.note("probabilities", softmax(logits))
    return logits


def logits(shape, weights, batch):
    """Return the logits [B, T, V] of a batch."""
    return model(Pass(shape, weights), batch).detach().numpy()


def trace(shape, weights, batch):
    """Return the steps of a forward pass in their order, each with its name and value."""
    p = Pass(shape, weights)
    model(p, batch)
    return [(name, value.detach().numpy()) for name, value in p.steps]


def loss_and_gradients(
    shape,
    weights,
    batch,
    smoothing=0.0,
    router_balance=0.0,
    router_z=0.0,
):
    """Return the mean cross-entropy over the counted targets with the routers' losses, and its gradient by weight."""
    p = Pass(shape, weights, router_balance, router_z)
    loss = (
        cross_entropy(model(p, batch), torch.as_tensor(batch.targets), smoothing) + p.side_loss
    )
    gradients = torch.autograd.grad(
        loss, [*p.weights.values()], allow_unused=True, materialize_grads=True
    )
    found = {
        name: gradient.numpy() for name, gradient in zip(p.weights, gradients, strict=True)
    }
    return loss.item(), found
