"""What only a GPU can show: the table's own configuration in bfloat16, compiled, learns what a CPU learns."""

import numpy as np
import pytest
import torch
from train.test_stack import train
from trained import stack_of

from sweeplab.data.dataset import prepare
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.model.layout import Layout
from sweeplab.model.shape import ModelShape
from sweeplab.train.devices import settle_devices
from sweeplab.train.optimizers import OPTIMIZERS, Rates
from sweeplab.train.run import TrainingRun
from sweeplab.train.stack import Stack

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]


def final_losses(values, data, n_runs):
    stack = Stack(values, data.train, data.val, capacity=n_runs)
    for seed in range(n_runs):
        stack.admit(TrainingRun(str(seed), values.replace(seed=seed)))
    found, _ = train(stack)
    return [found[str(seed)][-1][1] for seed in range(n_runs)]


def test_auto_is_cuda_with_bfloat16():
    settled = settle_devices(Hyperparameters(max_iters=5000))
    assert (settled.device, settled.dtype, settled.compile) == ("cuda", "bfloat16", True)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("compiled", [False, True])
def test_the_tables_configuration_reaches_the_cpus_loss(compiled):
    data = prepare("python-docs", "char")
    values = Hyperparameters(vocab_size=data.tokenizer.vocab_size, patience=None)
    on_cuda = values.replace(device="cuda", dtype="bfloat16", compile=compiled)
    on_cpu = values.replace(device="cpu", dtype="float32", compile=False)
    assert final_losses(on_cuda, data, 1) == pytest.approx(
        final_losses(on_cpu, data, 1), abs=0.02
    )


def test_a_stack_on_cuda_learns_what_each_run_learns_alone():
    data = prepare("python-docs", "char")
    values = Hyperparameters.of({
        "vocab_size": data.tokenizer.vocab_size, "n_layer": 2, "n_embd": 64, "n_head": 4, "block_size": 32,
        "batch_size": 16, "device": "cuda", "dtype": "float32", "compile": False,
    })  # fmt: skip
    together = final_losses(values, data, 4)
    assert together[:1] == pytest.approx(final_losses(values, data, 1), abs=0.01)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_takes_the_cpus_steps(name):
    layout = Layout(ModelShape(vocab_size=37, block_size=11, n_layer=2, n_head=3, n_embd=21))
    optimizer, found = OPTIMIZERS[name](layout), []
    for device in ("cpu", "cuda"):
        generator = torch.Generator().manual_seed(0)
        weights = torch.stack([layout.initial_row(seed) for seed in range(3)]).to(device)
        state = {
            key: torch.zeros(3, size, device=device)
            for key, size in optimizer.buffers().items()
        }
        for step in range(1, 6):
            gradient = torch.randn(3, layout.row_size, generator=generator)
            gradient[:, layout.n_params :] = 0.0
            usual = {
                "weight_decay": 0.1,
                "beta1": 0.9,
                "beta2": 0.95,
                "eps": 1e-8,
                "momentum": 0.9,
            }
            rates = [
                Rates.at(learning_rate=1e-2 / (row + 1), step=step, **usual) for row in range(3)
            ]
            columns = torch.tensor(rates, dtype=torch.float64, device=device).unbind(1)
            optimizer.update_(weights, gradient.to(device), state, Rates(*columns))
        found.append(weights.cpu())
    assert (found[0] - found[1]).abs().max() < 1e-4


def small(**changed):
    return Hyperparameters.of({
        "vocab_size": 65, "n_layer": 2, "n_embd": 32, "n_head": 4, "block_size": 16, "batch_size": 4, "max_iters": 40,
        "eval_interval": 20, "log_interval": 20, "dropout": 0.1, "device": "cuda", "dtype": "float32", "compile": False,
    } | changed)  # fmt: skip


TOKENS = (np.arange(50_000) * 7 % 65).astype(np.uint16)


@pytest.mark.parametrize("changed", [{}, {"dtype": "bfloat16"}, {"grad_accum": 2}], ids=str)
def test_no_step_waits_for_the_gpu(changed):
    values = small(**changed, eval_interval=40, log_interval=40)
    runs = [TrainingRun(str(seed), values.replace(seed=seed)) for seed in range(3)]
    stack = stack_of(runs, TOKENS, capacity=4)
    left = iter(range(5))
    stack.advance()
    stack.advance(lambda: next(left, None) is None)  # libraries are set up, buffers made
    left = iter(range(10))
    torch.cuda.set_sync_debug_mode("error")
    try:
        stack.advance(lambda: next(left, None) is None)
    finally:
        torch.cuda.set_sync_debug_mode("default")
