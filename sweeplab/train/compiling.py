"""Compile a stack's step and losses; `program.py` runs `python -m sweeplab.train.compiling GIVEN STEP LOSSES`.

Both are traced once with a symbolic number of runs, so that one program serves every stack of the shape, and a run has
the same bits in each.
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

# The number of runs in the traced stack. Models have no such size; it would be traced as the number of runs.
N_TRACED = 5
# Up to this block_size attention is traced as products and a softmax, because torch's kernel has a longer start-up.
MAX_MATH_ATTENTION = 32


def compile_function(function: Callable[..., Any], inputs: Sequence[Tensor], threads: int, math: bool) -> str:
    """Compile a function, traced with the tensors of N_TRACED runs, and return the path of the library.

    With `math`, attention is traced as products and a softmax (SDPBackend.MATH).
    """
    from torch._dispatch.python import enable_python_dispatcher
    from torch._dynamo.source import ConstantSource
    from torch._inductor.compile_fx import compile_fx_aot
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    assert len({*map(id, inputs)}) == len(inputs), "the same tensor twice would be traced as one input"
    mode = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=False, allow_non_fake_inputs=True)

    def fake(index: int, tensor: Tensor) -> Tensor:
        """Return a fake tensor whose first size is symbolic if it is the number of runs."""
        first = DimDynamic.DUCK if tensor.shape[0] == N_TRACED else DimDynamic.STATIC
        sizes = [first] + [DimDynamic.STATIC] * (tensor.ndim - 1)
        context: Any = StatelessSymbolicContext(dynamic_sizes=sizes)
        return mode.from_tensor(tensor, symbolic_context=context, source=ConstantSource(f"given{index}"))

    fakes = [fake(index, tensor) for index, tensor in enumerate(inputs)]
    attention: Any = sdpa_kernel(SDPBackend.MATH) if math else nullcontext()
    with mode, attention, enable_python_dispatcher():
        traced = make_fx(function)(*fakes)
    settings = {"aot_inductor.package": False, "cpp.threads": threads}
    library = compile_fx_aot(traced, [*fakes], config_patches=settings)
    return str(library)


def _end_with_parent() -> None:
    """Wait until standard input is closed, and kill this process group: the parent process no longer waits for it."""
    while os.read(0, 1):  # not sys.stdin, whose lock would block the exit of this process
        pass
    os.killpg(0, signal.SIGKILL)


def main(given: Path, step: Path, losses: Path) -> None:
    """Compile the step and the losses of the stack that the file `given` describes."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    values, train, val, threads = pickle.loads(given.read_bytes())  # safe: our parent process wrote it
    torch.set_num_threads(threads)
    stack = Stack(values.replace(compile=False), train, val, N_TRACED)
    for seed in range(N_TRACED):
        stack.admit(Run(str(seed), values.replace(compile=False, seed=seed)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        math = values.block_size <= MAX_MATH_ATTENTION
        shutil.copyfile(compile_function(stack.traceable(), stack.staged(), threads, math), step)
        if stack.is_dense:
            traced = dense_losses(stack.transformer, N_TRACED)
            shutil.copyfile(compile_function(*traced, threads, math), losses)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
