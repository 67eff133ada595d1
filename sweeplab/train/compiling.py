"""Compile a stack's step and losses; `program.py` runs `python -m sweeplab.train.compiling ARGUMENTS STEP LOSSES`.

Both are traced once with a symbolic number of runs, so that one program serves every stack of the shape, and a run has
the same bits in each.
"""

from __future__ import annotations

import pickle
import shutil
import sys
import warnings
from pathlib import Path

import torch

from sweeplab.processes import end_with_parent
from sweeplab.train.evaluating import dense_losses
from sweeplab.train.program import N_TRACED, compile_ahead
from sweeplab.train.run import TrainingRun
from sweeplab.train.stack import Stack

# Up to this block_size attention is traced as products and a softmax, because torch's kernel has a longer start-up.
MAX_MATH_ATTENTION = 32


def main(arguments: Path, step: Path, losses: Path) -> None:
    """Compile the step and the losses of the stack that the file `arguments` describes."""
    end_with_parent()
    # Safe: our parent process wrote it.
    values, train, val, threads = pickle.loads(arguments.read_bytes())
    torch.set_num_threads(threads)
    stack = Stack(values.replace(compile=False), train, val, N_TRACED)
    for seed in range(N_TRACED):
        stack.admit(TrainingRun(str(seed), values.replace(compile=False, seed=seed)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        math = values.block_size <= MAX_MATH_ATTENTION
        shutil.copyfile(compile_ahead(*stack.traced(), threads, math), step)
        if stack.is_dense:
            traced = dense_losses(stack.transformer, N_TRACED)
            shutil.copyfile(compile_ahead(*traced, threads, math), losses)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
