"""Half precision and compilation change the bits, not what is learned."""

from __future__ import annotations

import pytest

from sweeplab.data.dataset import prepare
from sweeplab.data.objectives import n_special
from sweeplab.errors import BadInput
from sweeplab.train import devices
from sweeplab.train.devices import cuda_count, settle_devices
from sweeplab.train.run import Run
from sweeplab.train.stack import Stack


def losses(values, tokens) -> list[float]:
    stack = Stack(values, tokens, tokens, capacity=2)
    for seed in (0, 1):
        stack.admit(Run(str(seed), values.replace(seed=seed)))
    found = []
    while len(stack):
        for record in stack.advance():
            found.append(record.val_loss)
            if record.state != "running":
                stack.release(record.key)
    return found


def test_bfloat16_learns_the_same_with_an_odd_vocabulary(values_of, tokens) -> None:
    values = values_of(learning_rate=5e-3, dropout=0.0)
    half = losses(values.replace(dtype="bfloat16"), tokens)
    single = losses(values, tokens)
    assert half == pytest.approx(single, abs=0.05)
    assert half != single


def test_linear_attention_lives_in_bfloat16(values_of) -> None:
    """Where queries and keys grow, as they do here, elu + 1 rounds to nothing from -7 on, and that through itself."""
    data = prepare("reverse", "char")
    values = values_of(
        family="decoder", objective="pairs", attention="linear", dtype="bfloat16", n_head=8, head_dim=4, grad_clip=None,
        block_size=32, batch_size=16, learning_rate=0.03, warmup_iters=0, dropout=0.0, max_iters=200, eval_interval=100,
        seed=1,
    )  # fmt: skip
    values = values.replace(vocab_size=data.tokenizer.vocab_size + n_special(values))
    stack = Stack(values, data.train, data.val)
    stack.admit(Run("run", values))
    (before,), (after,) = stack.advance(), stack.advance()
    assert after.iteration == 100
    assert after.val_loss < before.val_loss


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_step_learns_the_same(values_of, tokens) -> None:
    values = values_of(learning_rate=5e-3, dropout=0.1)
    assert losses(values.replace(compile=True), tokens) == pytest.approx(losses(values, tokens), abs=1e-3)


def test_auto_compiles_long_runs_on_cuda_that_have_no_experts(values_of, monkeypatch) -> None:
    monkeypatch.setattr(devices, "cuda_count", lambda: 1)
    values = values_of(max_iters=5000).replace(device="auto", compile="auto")
    changes = ({}, {"max_iters": 100}, {"n_expert": 4})
    assert [settle_devices(values.replace(**each)).compile for each in changes] == [True, False, False]
    assert settle_devices(values.replace(n_expert=4, compile=True)).compile


@pytest.mark.skipif(cuda_count() > 0, reason="this machine has a CUDA device")
def test_without_cuda_auto_is_the_cpu_and_cuda_is_refused(values_of) -> None:
    values = values_of().replace(device="auto", dtype="auto", compile="auto")
    settled = settle_devices(values)
    assert (settled.device, settled.dtype, settled.compile) == ("cpu", "float32", False)
    with pytest.raises(BadInput, match="no CUDA device"):
        settle_devices(values.replace(device="cuda"))
