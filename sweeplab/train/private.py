"""The private part of torch that training uses, with a public way behind the same call.

The compiler ahead of time makes one library of a whole step for all numbers of runs; publicly, `torch.compile` compiles
the losses alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeplab.processes import switched_off

if TYPE_CHECKING:
    from torch import Tensor

Program = Callable[[Sequence["Tensor"]], list["Tensor"]]

# The number of runs in a traced stack. Models have no such size; it would be traced as the number of runs.
N_TRACED = 5
# The files of torch that compiling ahead of time needs, and the names in them.
_COMPILER = {
    "_dispatch/python.py": "enable_python_dispatcher",
    "_dynamo/source.py": "ConstantSource",
    "_inductor/compile_fx.py": "compile_fx_aot",
    "_subclasses/fake_tensor.py": "FakeTensorMode",
    "_C/_aoti.pyi": "AOTIModelContainerRunnerCpu",
}


def why_no_programs() -> str:
    """Return why no step is compiled ahead of time; empty where it can be."""
    return switched_off() or _lacking()


@cache
def _lacking() -> str:
    """Return which names of the compiler's files this torch lacks; importing it takes seconds."""
    spec = find_spec("torch")
    assert spec is not None and spec.origin is not None
    lacking = []
    for file, name in _COMPILER.items():
        path = Path(spec.origin).parent / file
        if not path.exists() or name not in path.read_text(encoding="utf-8"):
            lacking.append(name)
    if lacking:
        return f"this version of torch has no {', '.join(lacking)}"
    return ""


def compile_ahead(function: Callable[..., Any], inputs: Sequence[Tensor], threads: int, math: bool) -> str:
    """Compile a function, traced with the tensors of N_TRACED runs, and return the path of the library.

    With `math`, attention is traced as products and a softmax (SDPBackend.MATH).
    """
    from torch._dispatch.python import enable_python_dispatcher
    from torch._dynamo.source import ConstantSource
    from torch._inductor.compile_fx import compile_fx_aot
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
    from torch.nn.attention import SDPBackend, sdpa_kernel

    assert len({*map(id, inputs)}) == len(inputs), "the same tensor twice would be traced as one input"
    mode = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=False, allow_non_fake_inputs=True)

    def fake(index: int, tensor: Tensor) -> Tensor:
        first = DimDynamic.DUCK if tensor.shape[0] == N_TRACED else DimDynamic.STATIC
        sizes = [first] + [DimDynamic.STATIC] * (tensor.ndim - 1)
        context: Any = StatelessSymbolicContext(dynamic_sizes=sizes)
        return mode.from_tensor(tensor, symbolic_context=context, source=ConstantSource(f"given{index}"))

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
