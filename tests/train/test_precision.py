"""Half precision and compilation change the bits, not what is learned."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from train.test_stack import train
from trained import begun, stack_of

from sweeplab.errors import BadInput
from sweeplab.train import devices
from sweeplab.train.devices import cuda_count, settle_devices
from sweeplab.train.run import TrainingRun


def losses(values, tokens):
    runs = [TrainingRun(str(seed), values.replace(seed=seed)) for seed in (0, 1)]
    found, _ = train(stack_of(runs, tokens))
    return [val_loss for curve in found.values() for _, val_loss, _ in curve]


# The least at which a product is large enough for bfloat16 on a CPU, the head's odd vocabulary too.
LARGE = {"n_embd": 96, "batch_size": 16}


@pytest.mark.slow
def test_bfloat16_learns_the_same_with_an_odd_vocabulary(values_of, tokens):
    values = values_of(learning_rate=5e-3, dropout=0.0, **LARGE)
    half = losses(values.replace(dtype="bfloat16"), tokens)
    single = losses(values, tokens)
    assert half == pytest.approx(single, abs=0.05)
    assert half != single


def test_on_a_cpu_large_products_alone_are_of_bfloat16(values_of, tokens):
    """Attention, norms, softmax, loss and update stay float32, and so does a model of small products."""
    # Of attention's and the feed-forward layer's, not the head's.
    some = {"n_embd": 72, "batch_size": 16}
    single = (
        "_scaled_dot_product_flash_attention_for_cpu",
        "native_layer_norm",
        "_log_softmax",
        "_fused_adamw_",
    )
    seen = {}

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            given = {
                each.dtype
                for each in args
                if isinstance(each, torch.Tensor) and each.is_floating_point()
            }
            seen.setdefault(func.__name__.partition(".")[0], set()).update(given)
            return func(*args, **kwargs or {})

    for changes, products in ((some, {torch.float32, torch.bfloat16}), ({}, {torch.float32})):
        stack = begun(values_of(dtype="bfloat16", dropout=0.0, bias=False, **changes), tokens)
        stack.advance()
        seen.clear()
        with Seen():
            stack.step()
        assert seen["bmm"] == products
        assert all(seen[name] <= {torch.float32} for name in single)
        assert {each.dtype for each in stack.snapshot("run").rows.values()} == {torch.float32}


def test_auto_compiles_long_runs_on_cuda_that_have_no_experts(values_of, monkeypatch):
    monkeypatch.setattr(devices, "cuda_count", lambda: 1)
    values = values_of(max_iters=5000).replace(device="auto", compile="auto")
    changes = ({}, {"max_iters": 100}, {"n_expert": 4})
    assert [settle_devices(values.replace(**each)).compile for each in changes] == [
        True,
        False,
        False,
    ]
    assert settle_devices(values.replace(n_expert=4, compile=True)).compile


@pytest.mark.skipif(cuda_count() > 0, reason="this machine has a CUDA device")
def test_without_cuda_auto_is_the_cpu_and_cuda_is_refused(values_of):
    values = values_of().replace(device="auto", dtype="auto", compile="auto")
    settled = settle_devices(values)
    assert (settled.device, settled.dtype, settled.compile) == ("cpu", "float32", False)
    planned = {"dtype": "bfloat16", "compile": True}
    found = settle_devices(values, decided=planned)
    assert (found.dtype, found.compile) == ("bfloat16", True), "what the study's plan found"
    asked = settle_devices(values.replace(dtype="float32"), decided=planned)
    assert asked.dtype == "float32", "what the study file says"
    with pytest.raises(BadInput, match="no CUDA device"):
        settle_devices(values.replace(device="cuda"))
