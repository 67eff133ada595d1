"""A whole training step of a stack as one compiled CPU program: forward, backward, clipping, update and curve sums.

A second program computes the losses of evaluation batches. `compiling.py` traces both once for all numbers of runs, and
AOTInductor compiles them into libraries, which a process then loads without compiling. They are cached by shape,
sources, versions, processor and threads.

This is the only file with private parts of torch. Publicly, `torch.compile` compiles the losses alone.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeplab.data.batches import Split
from sweeplab.data.objectives import objective_of
from sweeplab.data.objectives.base import rows_together
from sweeplab.errors import BadInput
from sweeplab.files import cache_folder, write_whole
from sweeplab.hyperparameters import TRANSFORMER, Hyperparameters
from sweeplab.model.accounting import n_params
from sweeplab.model.shape import ModelShape
from sweeplab.processes import python, python_environment, switched_off
from sweeplab.train.devices import processor
from sweeplab.train.run import shape_key

if TYPE_CHECKING:
    from torch import Tensor

Program = Callable[[Sequence["Tensor"]], list["Tensor"]]

# The optimizers with elementwise updates; only these can be traced.
COMPILED = ("adamw", "adam", "sgd", "lion")
COMPILER_CURE = (
    "set compile: false, or install g++ (Debian's package g++), or name another compiler in CXX"
)
_COMPILING = "sweeplab.train.compiling"

# Limits for `compile: auto`. A cell needs this many steps over all trials: compiling takes as long as 130,000 steps
# with 27k parameters save. A compiled step takes 0.5 of the time with 27k parameters, 0.75 with 0.2M in bfloat16, 0.98
# with 1.4M. A cached program changes nothing, because a study file must always train the same way.
COMPILED_BELOW_PARAMS, COMPILED_FROM_STEPS = 1_000_000, 150_000

# A step does not depend on the evaluation, so values that differ only in these share a program.
_NO_EVALUATION: dict[str, Any] = {
    "eval_tokens": 1,
    "eval_iters": 1,
    "eval_full": False,
    "eval_train": False,
}


def compiles_whole(values: Hyperparameters) -> bool:
    """Return whether a CPU program can compute the whole step of such a run; otherwise only the loss is compiled."""
    # A plug-in's own loss is unknown to the process that compiles.
    return (
        values.device == "cpu"
        and values.model == TRANSFORMER
        and values.n_expert == values.grad_accum == 1
        and values.optimizer in COMPILED
        and not objective_of(values).has_own("loss")
        and not switched_off()
    )


def compiling_pays(values: Hyperparameters, n_steps: float) -> bool:
    """Return whether `compile: auto` compiles the step on this machine's CPU, for `n_steps` steps over all runs."""
    if not compiles_whole(values) or n_params(ModelShape.of(values)) >= COMPILED_BELOW_PARAMS:
        return False
    return n_steps >= COMPILED_FROM_STEPS and compiler() is not None


def compiler() -> str | None:
    """Return the path of the C++ compiler, or None if there is none."""
    return shutil.which(os.environ.get("CXX", "g++"))


def program_file(values: Hyperparameters, threads: int) -> Path:
    """Return the path of a shape's compiled step in the cache; the file need not exist."""
    shape = shape_key(values.replace(**_NO_EVALUATION))
    evaluated = rows_together(values.block_size)
    key = (shape, evaluated, threads, processor(), _sources(), version("torch"))
    return (
        cache_folder("programs") / f"{hashlib.sha256(repr(key).encode()).hexdigest()[:32]}.so"
    )


def load_programs(values: Hyperparameters, train: Split, val: Split) -> list[Program]:
    """Return the compiled step of a shape and, for dense text, its losses; compile them if they are not cached.

    Raises:
        BadInput: there is no compiler.
        RuntimeError: the step cannot be compiled; the message has the output of the compiling process.
    """
    import torch

    file = program_file(values, torch.get_num_threads())
    if not file.exists():
        _compile(file, (values, train, val, torch.get_num_threads()))
    return [load_program(library) for library in (file, _losses_file(file)) if library.exists()]


def _losses_file(step: Path) -> Path:
    return step.with_name(f"{step.stem}-losses.so")


def _compile(file: Path, args: tuple[Hyperparameters, Split, Split, int]) -> None:
    """Compile a program in a separate process, so that its memory is freed."""
    from filelock import FileLock

    if compiler() is None:
        raise BadInput(f"there is no C++ compiler for compile: true on a CPU; {COMPILER_CURE}")
    with FileLock(file.with_suffix(".lock")), tempfile.TemporaryDirectory() as folder:
        if file.exists():  # another worker has compiled it
            return
        arguments, output, step, losses = (
            Path(folder) / name for name in ("arguments", "output", "step", "losses")
        )
        arguments.write_bytes(pickle.dumps(args))
        # Inductor's other files are not needed once the library exists, but for its compiled headers: these it keeps
        # in the folder for temporary files, where another user could have put some.
        variables = python_environment(
            TORCHINDUCTOR_CACHE_DIR=folder, TMPDIR=str(cache_folder("inductor"))
        )
        command = python("-m", _COMPILING, arguments, step, losses)
        # Its own process group, which it kills once its input is closed, so that no C++ compiler is left.
        with (
            output.open("w") as log,
            subprocess.Popen(
                command,
                env=variables,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            ) as process,
        ):
            process.wait()
        if process.returncode:
            why = output.read_text(errors="replace").strip()[-2000:]
            raise RuntimeError(f"the step cannot be compiled: {why}")
        if losses.exists():
            write_whole(_losses_file(file), losses.read_bytes())
        # Last: if this file exists, all files are complete.
        write_whole(file, step.read_bytes())


@cache
def _sources() -> str:
    digest = hashlib.sha256()
    for package in ("model", "train"):
        for source in sorted((Path(__file__).parents[1] / package).rglob("*.py")):
            digest.update(source.read_bytes())
    return digest.hexdigest()


# ------------------------------------------------------------------ private parts of torch

# The number of runs in a traced stack. Models have no such size; it would be traced as the number of runs.
N_TRACED = 5


def compile_ahead(
    function: Callable[..., Any], inputs: Sequence[Tensor], threads: int, math: bool
) -> str:
    """Compile a function, traced with the tensors of N_TRACED runs, and return the path of the library.

    With `math`, attention is traced as products and a softmax (SDPBackend.MATH).
    """
    from torch._dispatch.python import enable_python_dispatcher
    from torch._dynamo.source import ConstantSource
    from torch._inductor.compile_fx import compile_fx_aot
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import (
        DimDynamic,
        ShapeEnv,
        StatelessSymbolicContext,
    )
    from torch.nn.attention import SDPBackend, sdpa_kernel

    mode = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=False, allow_non_fake_inputs=True)

    def fake(index: int, tensor: Tensor) -> Tensor:
        first = DimDynamic.DUCK if tensor.shape[0] == N_TRACED else DimDynamic.STATIC
        sizes = [first] + [DimDynamic.STATIC] * (tensor.ndim - 1)
        context: Any = StatelessSymbolicContext(dynamic_sizes=sizes)
        return mode.from_tensor(
            tensor, symbolic_context=context, source=ConstantSource(f"given{index}")
        )

    fakes = [fake(index, tensor) for index, tensor in enumerate(inputs)]
    attention: Any = sdpa_kernel(SDPBackend.MATH) if math else nullcontext()
    with mode, attention, enable_python_dispatcher():
        traced = make_fx(function)(*fakes)
    settings = {"aot_inductor.package": False, "cpp.threads": threads}
    return str(compile_fx_aot(traced, [*fakes], config_patches=settings))


def load_program(library: Path) -> Program:
    """Return the function of a library that `compile_ahead` made."""
    import torch

    runner = torch._C._aoti.AOTIModelContainerRunnerCpu(str(library), 1)

    def program(tensors: Sequence[Tensor]) -> list[Tensor]:
        outputs: list[Tensor] = runner.run(list(tensors))
        return outputs

    return program
