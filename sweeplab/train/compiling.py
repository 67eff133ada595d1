"""Compile a stack's step and its losses: `python -m sweeplab.train.compiling GIVEN STEP LOSSES`, by `program.py`.

Both are traced once with a number of runs that is left open, so that one program serves every stack of the shape, and a
run's bits are the same in each.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from sweeplab.train.evaluating import dense_losses
from sweeplab.train.run import Run
from sweeplab.train.stack import Stack

# Runs of the stack that is traced: no size of a model, which would be taken to be this number.
N_TRACED = 5
# Up to this block_size attention is products and a softmax: torch's kernel takes longer to begin than such a square.
MOST_PLAIN = 32


def compile_function(function: Callable[..., Any], given: Sequence[Tensor], threads: int, plain: bool) -> str:
    """Compile what a function does to the tensors of N_TRACED runs and return where the library is.

    With `plain` attention is traced as products and a softmax.
    """
    from torch._dispatch.python import enable_python_dispatcher
    from torch._dynamo.source import ConstantSource
    from torch._inductor.compile_fx import compile_fx_aot
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    assert len({*map(id, given)}) == len(given), "a tensor that is given twice would be traced as one input"
    mode = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=False, allow_non_fake_inputs=True)

    def fake(index: int, tensor: Tensor) -> Tensor:
        """Return a tensor without numbers whose first size is open where that is the number of runs."""
        first = DimDynamic.DUCK if tensor.shape[0] == N_TRACED else DimDynamic.STATIC
        sizes = [first] + [DimDynamic.STATIC] * (tensor.ndim - 1)
        context: Any = StatelessSymbolicContext(dynamic_sizes=sizes)
        return mode.from_tensor(tensor, symbolic_context=context, source=ConstantSource(f"given{index}"))

    inputs = [fake(index, tensor) for index, tensor in enumerate(given)]
    attention: Any = sdpa_kernel(SDPBackend.MATH) if plain else nullcontext()
    with mode, attention, enable_python_dispatcher():
        traced = make_fx(function)(*inputs)
    settings = {"aot_inductor.package": False, "cpp.threads": threads}
    library = compile_fx_aot(traced, [*inputs], config_patches=settings)
    return str(library)


def _end_with_parent() -> None:
    """Wait until nobody holds our input open any more, and end this process' group: whoever waited for it is gone."""
    while os.read(0, 1):  # not by sys.stdin, whose lock a process that ends would wait for
        pass
    os.killpg(0, signal.SIGKILL)


def main(given: Path, step: Path, losses: Path) -> None:
    """Compile the step and the losses of the shape that a file has."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    values, train, val, threads = pickle.loads(given.read_bytes())  # our own parent's
    torch.set_num_threads(threads)
    stack = Stack(values.replace(compile=False), train, val, N_TRACED)
    for seed in range(N_TRACED):
        stack.admit(Run(str(seed), values.replace(compile=False, seed=seed)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = values.block_size <= MOST_PLAIN
        shutil.copyfile(compile_function(stack.traceable(), stack.staged(), threads, plain), step)
        if stack.is_dense:
            traced = dense_losses(stack.transformer, N_TRACED)
            shutil.copyfile(compile_function(*traced, threads, plain), losses)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
