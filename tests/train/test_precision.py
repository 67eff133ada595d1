"""Half precision and compilation change the bits, not what is learned."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from trained import begun

from sweeplab.errors import BadInput
from sweeplab.train import devices, stack, step
from sweeplab.train.devices import cuda_count, settle_devices
from sweeplab.train.run import TrainingRun
from sweeplab.train.stack import Stack


def losses(values, tokens) -> list[float]:
    stack = Stack(values, tokens, tokens, capacity=2)
    for seed in (0, 1):
        stack.admit(TrainingRun(str(seed), values.replace(seed=seed)))
    found = []
    while len(stack):
        for record in stack.advance():
            found.append(record.val_loss)
            if record.state != "running":
                stack.release(record.key)
    return found


# The least at which a product is large enough for bfloat16 on a CPU, the head's odd vocabulary too.
LARGE = {"n_embd": 96, "batch_size": 16}


@pytest.mark.slow
def test_bfloat16_learns_the_same_with_an_odd_vocabulary(values_of, tokens) -> None:
    values = values_of(learning_rate=5e-3, dropout=0.0, **LARGE)
    half = losses(values.replace(dtype="bfloat16"), tokens)
    single = losses(values, tokens)
    assert half == pytest.approx(single, abs=0.05)
    assert half != single


def test_on_a_cpu_large_products_alone_are_of_bfloat16(values_of, tokens) -> None:
    """Attention, norms, softmax, loss and update stay float32, and so does a model of small products."""
    some = {"n_embd": 72, "batch_size": 16}  # of attention's and the feed-forward layer's, not the head's
    single = (
        "_scaled_dot_product_flash_attention_for_cpu",
        "native_layer_norm",
        "_log_softmax",
        "_fused_adamw_",
    )
    seen: dict[str, set[torch.dtype]] = {}

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            given = {
                each.dtype for each in args if isinstance(each, torch.Tensor) and each.is_floating_point()
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
    planned = {"dtype": "bfloat16", "compile": True}
    found = settle_devices(values, decided=planned)
    assert (found.dtype, found.compile) == ("bfloat16", True), "what the study's plan found"
    asked = settle_devices(values.replace(dtype="float32"), decided=planned)
    assert asked.dtype == "float32", "what the study file says"
    with pytest.raises(BadInput, match="no CUDA device"):
        settle_devices(values.replace(device="cuda"))


@pytest.mark.slow
def test_float16_learns_the_same_with_a_scaled_loss(values_of, tokens, monkeypatch) -> None:
    values = values_of(learning_rate=5e-3, dropout=0.0)
    half = losses(values.replace(dtype="float16"), tokens)
    assert half == pytest.approx(losses(values, tokens), abs=0.05)
    monkeypatch.setattr(stack, "INITIAL_SCALE", 2.0**-20)  # gradients that are too small for float16 are lost
    unscaled = losses(values.replace(dtype="float16"), tokens)
    assert max(abs(one - other) for one, other in zip(half, unscaled, strict=True)) > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_gradient_that_is_not_finite_is_no_step_and_no_neighbors_matter(
    optimizer: str, values_of, tokens
) -> None:
    """Of three runs one overflows: it stays as it is until its scale fits, and the others are as they are alone."""
    values = values_of(
        learning_rate=5e-3, max_iters=40, eval_interval=20, optimizer=optimizer, dtype="float16", ema=0.9
    )

    def trained(seeds: list[int]) -> dict[str, tuple[float, dict[str, torch.Tensor]]]:
        stack = Stack(values, tokens, tokens, capacity=len(seeds))
        for seed in seeds:
            stack.admit(TrainingRun(str(seed), values.replace(seed=seed)))
            if seed == 1:
                stack._rows["scale"][len(stack) - 1, 0] = 2.0**40
        before = stack._rows["weights"].clone()
        stack.advance()
        stack.step()
        moved = (stack._rows["weights"] != before).any(dim=1)
        assert moved.tolist() == [seed != 1 for seed in seeds]
        stack.advance()
        return {each.key: (each.val_loss, stack.snapshot(each.key).rows) for each in stack.advance()}

    together = trained([0, 1, 2])
    for seed in (0, 1, 2):
        ((key, (loss, rows)),) = trained([seed]).items()
        # Some CPUs multiply float16 otherwise where matrices stand beside them.
        assert together[key][0] == pytest.approx(loss, rel=1e-4) and loss < 4.1
        assert all(
            torch.allclose(together[key][1][name], each, rtol=0, atol=0.05) for name, each in rows.items()
        )
    assert together["1"][1]["scale"][0] < 2.0**30, "it came down until the gradient fitted"


def test_a_scale_follows_torchs_own(monkeypatch) -> None:
    """The two scales of a stack, and each that of a GradScaler which saw the same gradients."""
    monkeypatch.setattr(step, "GROWTH_INTERVAL", 4)
    seen = [[True, True, False, False, True] * 3, [False, True] * 7 + [True]]
    kept = torch.tensor([[step.INITIAL_SCALE, 0.0]] * 2)
    own = [torch.amp.GradScaler("cpu", growth_interval=4) for _ in seen]
    for at in range(15):
        finite = torch.tensor([is_finite[at] for is_finite in seen])
        step.update_scale_(kept, finite)
        for scaler, is_finite in zip(own, finite.tolist(), strict=True):
            weight = torch.zeros(1, requires_grad=True)
            scaler.scale((weight * (1.0 if is_finite else torch.inf)).sum()).backward()
            scaler.step(torch.optim.SGD([weight], lr=1.0))
            scaler.update()
        assert kept[:, 0].tolist() == [each.get_scale() for each in own]
