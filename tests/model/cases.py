"""Small models of every legal choice of parts, and batches for them."""

import itertools

import torch

from sweeplab.data.batches import Batch
from sweeplab.hyperparameters import TABLE
from sweeplab.model.attention import why_not
from sweeplab.model.blocks import Dropout, mask_inputs
from sweeplab.model.layout import Layout
from sweeplab.model.shape import ModelShape

ATTENTION, POSITIONS = TABLE["attention"].choices, TABLE["positions"].choices
VOCABULARY, LENGTH, SOURCE = 11, 10, 7
PARTS = ("family", "positions", "norm", "norm_position", "activation", "attention")
# What else a model may have: each of the legal combinations of parts gets one of these, in turn.
EXTRAS = (
    {},
    {"n_kv_head": 1, "out_bias": False},
    {"qk_norm": True, "head_dim": 6, "tie_scale": True, "attention_scale": "n_embd"},
    {"bias": False, "tie_weights": False, "final_norm": False},
    {"final_norm": True, "head_bias": True, "init": "torch"},
    {"n_expert": 3, "n_expert_active": 2},
    {"parallel_block": True},
    {"parallel_block": True, "shared_norm": False, "rotary_share": 0.5},
    {"embedding_norm": True, "scale_embedding": True, "qkv_bias": False, "ff_bias": False},
    {"share_embeddings": False, "n_token_types": 2, "init": "xavier", "norm_eps": 0.1},
    {"n_expert": 2, "tie_weights": False, "head_bias": True, "d_ff": 9},
    {"n_encoder_layer": 2, "relative_buckets": 6, "relative_max_distance": 8},
    {"n_kv_head": 1, "qk_norm": True, "attention_window": 1},
    {"n_layer": 3, "full_attention_interval": 2},
)


def shape_of(**changed):
    """Return a small model's shape, with changes."""
    sizes = {
        "vocab_size": VOCABULARY,
        "block_size": LENGTH,
        "n_layer": 1,
        "n_head": 2,
        "n_embd": 8,
    }
    small = {"attention_window": 4}
    return ModelShape(**{**sizes, **small, **changed})


def random_weights(shape, seed):
    """Return the initial weights of a run with this seed, by name."""
    layout = Layout(shape)
    views = layout.views(layout.initial_row(seed)[None])
    return {name: view[0].numpy() for name, view in views.items()}


def legal_shapes(**fixed):
    """Yield a model for every legal combination of parts, with some of them fixed."""
    choices = [(fixed[name],) if name in fixed else TABLE[name].choices for name in PARTS]
    for index, values in enumerate(itertools.product(*choices)):
        shape = shape_of(**dict(zip(PARTS, values, strict=True)))
        if why_not(shape):
            continue
        extras = (EXTRAS[(index + turn) % len(EXTRAS)] for turn in range(len(EXTRAS)))
        with_extra = (
            shape_of(**dict(zip(PARTS, values, strict=True)), **extra) for extra in extras
        )
        yield next(each for each in with_extra if not why_not(each))


def batch_of(shape, n_runs, n_sequences=2, seed=1):
    """Return random tokens for a family: with padding and with targets that do not count, where it has them."""
    generator = torch.Generator().manual_seed(seed)

    def tokens(length):
        size = (n_runs, n_sequences, length)
        return torch.randint(0, shape.vocab_size, size, generator=generator)

    inputs, targets = tokens(LENGTH), tokens(LENGTH)
    if shape.family == "decoder":
        return Batch(inputs, targets)
    lengths = torch.arange(n_runs * n_sequences).view(n_runs, n_sequences) % 3 + LENGTH - 3
    targets[torch.arange(LENGTH).expand_as(targets) >= lengths[:, :, None]] = -1
    if shape.family == "encoder":
        targets[:, :, ::2] = -1
        return Batch(inputs, targets, lengths=lengths)
    return Batch(inputs, targets, tokens(SOURCE), lengths, lengths - 4)


def run_of(batch, run):
    """Return one run's part of a batch, as a stack of one."""
    return Batch(*(None if each is None else each[run : run + 1] for each in batch))


def rows_of(model, n_runs):
    """Return initial rows with every weight moved off its start, so that no gain is 1 and no bias 0."""
    rows = torch.stack([model.layout.initial_row(seed) for seed in range(n_runs)])
    noise = torch.randn(rows.shape, generator=torch.Generator().manual_seed(9)) * 0.05
    noise[:, model.layout.n_params :] = 0
    return rows + noise


def losses_and_gradients(model, rows, batch, **beside):
    """Return losses [K] and gradients [K, row_size]."""
    leaves = {
        name: view.requires_grad_() for name, view in model.layout.views(rows.detach()).items()
    }
    losses = model.losses(leaves, batch, **beside)
    pieces = torch.autograd.grad(losses.sum(), list(leaves.values()))
    gradient = torch.zeros_like(rows)
    model.layout.gather(pieces, out=gradient)
    return losses.detach(), gradient


def dropout_of(seeds, iterations, rates, sites, elements):
    """Return the dropout of runs with these seeds, iterations and rates by kind of site."""
    dropped = {
        name: site for name, site in sites.items() if any(run.get(site.kind) for run in rates)
    }
    return (
        Dropout(mask_inputs(seeds, iterations, rates, dropped.values()), dropped, elements)
        if dropped
        else None
    )
