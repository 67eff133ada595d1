"""What training reads and computes, against real batches; what it holds, against a stack's buffers."""

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from trained import begun

from sweeplab.data.batches import Pairs, changed
from sweeplab.data.objectives import OBJECTIVES, make_objective, n_special
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.model.accounting import n_params
from sweeplab.model.shape import ModelShape
from sweeplab.model.transformer import Transformer
from sweeplab.train.run import (
    row_flops,
    train_flops,
    train_memory_bytes,
    train_tokens,
    with_more_accumulation,
)

N_SYMBOLS = 20
TEXT = (np.arange(4000) * 7 % N_SYMBOLS).astype(np.uint16)
# Sources of 9 tokens and targets of 6: a row of block_size 16 has room for `source bos target` exactly.
PAIRS = Pairs(np.resize(TEXT, 15 * 50), np.cumsum([9, 6] * 50))
KINDS = [(name, family) for name, kind in OBJECTIVES.items() for family in kind.families]
SMALL = {
    "n_layer": 1, "n_embd": 16, "n_head": 2, "block_size": 16, "batch_size": 4, "max_iters": 9, "dropout": 0.0,
    "bias": False, "eval_iters": 1, "device": "cpu", "dtype": "float32", "compile": False,
}  # fmt: skip


def values_of(objective, family, **changed):
    labels = {"n_labels": 3} if OBJECTIVES[objective].learns == "labels" else {}
    found = Hyperparameters.of(
        SMALL | labels | {"objective": objective, "family": family} | changed
    )
    return found.replace(vocab_size=N_SYMBOLS + n_special(found))


def split_for(objective):
    if OBJECTIVES[objective].learns == "labels":
        return Pairs(np.resize(TEXT % 3, 15 * 50), np.cumsum([14, 1] * 50), 3)
    return TEXT if OBJECTIVES[objective].learns == "text" else PAIRS


@pytest.mark.parametrize("attention", ["full", "local"])
@pytest.mark.parametrize(("objective", "family"), KINDS)
def test_a_batch_is_as_many_tokens_and_flops_as_is_said(objective, family, attention):
    values = values_of(
        objective, family, attention=attention, attention_window=4, positions="rotary"
    )
    numbers = make_objective(split_for(objective), values).training(0, 0)
    batch = changed(numbers, lambda part: torch.from_numpy(part[None]))._replace(lengths=None)
    model = Transformer(ModelShape.of(values))
    leaves = model.layout.views(model.layout.initial_row(0)[None])
    leaves = {name: leaf.requires_grad_() for name, leaf in leaves.items()}
    # torch does not count the CPU's attention kernel; the plain products under it are the same ones.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        torch.autograd.grad(model.losses(leaves, batch).sum(), list(leaves.values()))
    n_read = numbers.inputs.size + (0 if numbers.source is None else numbers.source.size)
    # Whose rows are as long as the longest pair needs.
    if OBJECTIVES[objective].learns != "text":
        assert n_read <= train_tokens(values, 1)
        assert counter.get_total_flops() <= train_flops(values, 1)
    else:
        assert n_read == train_tokens(values, 1)
        assert counter.get_total_flops() == train_flops(values, 1) == 4 * row_flops(values)


@pytest.mark.parametrize("beside", [{"grad_accum": 2}, {"grad_accum": 4}])
def test_copies_of_the_weights_are_a_stacks_buffers(beside):
    plain = values_of("next_token", "decoder")
    more = held_bytes(plain.replace(**beside)) - held_bytes(plain)
    changed = train_memory_bytes(plain.replace(**beside, batch_size=0))
    copies = changed - train_memory_bytes(plain.replace(batch_size=0))
    assert copies == 4 * len(beside) * n_params(ModelShape.of(plain))
    assert copies <= more < copies + len(beside) * 4 * 1024  # a row is whole blocks
    assert held_bytes(plain) < train_memory_bytes(plain)


@pytest.mark.parametrize(
    ("per_loss", "rows", "numbers"), [(1, 6, (2, 3, 6)), (2, 6, (3,)), (1, 9, (3, 9))]
)
def test_accumulation_grows_to_the_rows_that_share_a_loss(per_loss, rows, numbers, monkeypatch):
    monkeypatch.setattr(OBJECTIVES["next_token"], "per_loss", per_loss)
    values = values_of("next_token", "decoder", batch_size=rows)
    for n_parts in numbers:
        values = with_more_accumulation(values)
        assert values.grad_accum == n_parts
    assert with_more_accumulation(values) is None


def test_activations_of_half_the_precision_take_half_the_memory_on_a_gpu():
    plain, sizes = values_of("next_token", "decoder"), []
    for device, dtype in (
        ("cpu", "float32"),
        ("cpu", "bfloat16"),
        ("cuda", "float32"),
        ("cuda", "bfloat16"),
    ):
        run = plain.replace(device=device, dtype=dtype)
        sizes.append(train_memory_bytes(run) - train_memory_bytes(run.replace(batch_size=0)))
    assert sizes[0] == sizes[1] == sizes[2] == 2 * sizes[3]


def held_bytes(values):
    """Return the bytes of all tensors that a stack of one holds between steps."""
    stack = begun(values, TEXT)
    stack.advance()
    held = [*stack._rows.values(), *stack._way.buffers]
    return sum(tensor.untyped_storage().nbytes() for tensor in held)
