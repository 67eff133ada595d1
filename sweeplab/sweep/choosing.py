"""How a study trains on this machine's CPU: the ways in which it can, how fast each is, which is chosen, and why.

The ways are a table: workers, threads, runs in a stack, precision, compiled or not. `measuring.py` times its rows where
that saves more than it takes. Times decide only what leaves a run's numbers as they are: the precision follows from the
sizes and the processor.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from sweeplab.data.batches import Split
from sweeplab.data.dataset import Dataset
from sweeplab.formatting import several
from sweeplab.hyperparameters import AUTO, TRANSFORMER, Hyperparameters
from sweeplab.model.accounting import has_large_product, n_params
from sweeplab.model.shape import ModelShape
from sweeplab.records.folders import StudyFolder
from sweeplab.study import plan
from sweeplab.study.spec import StudySpec
from sweeplab.sweep import measuring
from sweeplab.sweep.measuring import Product, Way
from sweeplab.train.devices import free_memory_bytes, multiplies_bfloat16
from sweeplab.train.program import compiling_pays, program_file
from sweeplab.train.run import ShapeKey, row_flops, shape_key, state_bytes

# bfloat16 is chosen from this n_embd on. Steps in it took, of the time in float32, 0.75 to 1.05 on a Xeon with matrix
# units at 64 wide, the least in stacks and compiled, and 0.55 at 192; on an EPYC without them 0.73 at 64, 0.6 at 256.
MIXED_FROM_WIDTH = 64
# A step of more FLOPs is not timed: a dozen of them would take longer than anyone waits for a plan.
MOST_STEP_FLOPS = 1e11
# The stacks that are timed, and the most FLOPs of a stack's step and bytes of its state. In larger stacks more runs
# begin before any has ended, so samplers and pruners have fewer results to learn from.
STACKS, MOST_FLOPS, MOST_BYTES = (1, 2, 4, 8, 16), 2e11, 2**28
# The smallest stack that reaches this share of the fastest one's speed is chosen: its runs end earlier.
WITHIN = 0.97
# A shape's stacks are timed if its runs would take longer than this in all, at the peak rate of a CPU core; of a study,
# no more shapes than MOST_SHAPES, as the user waits for the plan.
WORTH_SECONDS, STEP_SECONDS, CORE_FLOPS = 300.0, 5e-4, 1e11
MOST_SHAPES = 4


@dataclass(frozen=True)
class BenchRow(Way):
    """A way of training a cell: its trial-steps per second, and their share of the machine's bound.

    The bound is the rate at which all cores multiply large square matrices in the way's precision. `taken` marks the
    way that the plan chooses, and `why` is the reason.
    """

    trial_steps_per_second: float
    share_of_bound: float
    taken: bool
    why: str


def step_flops(values: Hyperparameters) -> float:
    """Return the FLOPs of a step of one run."""
    return row_flops(values) * values.batch_size


# ---------------------------------------------------------------------- the table


def _ways_of(values: Hyperparameters, n_cpus: int) -> list[Way]:
    """Return the ways in which all cores of this machine's CPU can train runs like `values`."""
    dtypes = [*dict.fromkeys(("float32", precision(values)[0]))]
    stacks, like = _stacks_timed(values), values.replace(device="cpu", compile=True)
    compiles = [False] + [True] * compiling_pays(like, math.inf)
    ways = [Way(n_cpus, 1, stack, dtype, done) for dtype in dtypes for done in compiles for stack in stacks]
    return ways + [Way(1, n_cpus, stacks[-1], dtype, False) for dtype in dtypes if n_cpus > 1]


def precision(values: Hyperparameters) -> tuple[str, str]:
    """Return the precision in which such a run trains on this machine's CPU, and why: by its sizes and the processor.

    No measurement decides, so that equal machines train alike.
    """
    if values.model != TRANSFORMER:
        return "float32", f"model {values.model} is a plugin's"
    if not multiplies_bfloat16():
        return "float32", "this processor has no instructions for products in bfloat16"
    if values.n_embd < MIXED_FROM_WIDTH:
        return "float32", f"n_embd {values.n_embd} is below {MIXED_FROM_WIDTH}"
    n_rows = values.batch_size // values.grad_accum * values.block_size
    if not has_large_product(ModelShape.of(values), n_rows):
        return "float32", f"{several(n_rows, 'token')} at once are too few for products in bfloat16"
    return (
        "bfloat16",
        f"this processor multiplies bfloat16, and n_embd {values.n_embd} is {MIXED_FROM_WIDTH} or more",
    )


def _stacks_timed(values: Hyperparameters) -> list[int]:
    if values.model != TRANSFORMER:
        return [1]
    largest = min(MOST_FLOPS / step_flops(values), MOST_BYTES / state_bytes(values))
    return [stack for stack in STACKS if stack <= max(1, largest)]


def bench(
    values: Hyperparameters, train: Split, val: Split, taken: Way, why: str, again: bool
) -> list[BenchRow]:
    """Time the table for runs like `values`, with the way that a plan has taken; return it, the fastest first."""
    n_cpus = taken.workers * taken.threads
    ways = [*dict.fromkeys([*_ways_of(values, n_cpus), taken])]
    products = [Product(n_cpus, 1, dtype) for dtype in dict.fromkeys(way.dtype for way in ways)]
    seconds = measuring.measured(values, train, val, [*products, *ways], again)
    rates = {
        product.dtype: 2 * product.size**3 / took for product, took in zip(products, seconds, strict=False)
    }
    rows = []
    for way, took in zip(ways, seconds[len(products) :], strict=True):
        share = step_flops(values) / took / rates[way.dtype]
        rows.append(
            BenchRow(
                **asdict(way),
                trial_steps_per_second=1.0 / took,
                share_of_bound=share,
                taken=way == taken,
                why=why * (way == taken),
            )
        )
    return sorted(rows, key=lambda row: -row.trial_steps_per_second)


# ---------------------------------------------------------------------- the choice


def choose(
    spec: StudySpec,
    folder: StudyFolder,
    dataset: Dataset,
    samples: Sequence[plan.Samples],
    plans: Sequence[plan.CellPlan],
    dtype: str,
) -> tuple[list[plan.CellPlan], str, str]:
    """Return the cells with the way in which each trains on this machine's CPU, the precision of all of them, and why.

    `dtype` is the precision if the study says which. A study that has begun keeps its precision and what it compiles.
    With bfloat16, small products still use float32.
    """
    begun = folder.read(folder.plan_file) if folder.plan_file.exists() else {}
    compiled = {cell["cell"]: bool(cell.get("compile", False)) for cell in begun.get("cells", ())}
    ways = list[plan.CellPlan]()
    for cell, planned in zip(samples, plans, strict=True):
        compiles = compiled.get(planned.cell)
        if compiles is None:
            compiles = _compiles(spec, cell, planned, dtype)
        ways.append(replace(planned, compile=compiles))
    why = "as the study says"
    if samples[0].valid[0].dtype == AUTO and begun:
        dtype, why = str(begun["dtype"]), "as it began"
    elif samples[0].valid[0].dtype == AUTO:  # the cell with most FLOPs decides
        largest, planned = max(zip(samples, ways, strict=True), key=lambda pair: pair[1].train_flops)
        dtype, why = precision(largest.median)
        if len(ways) > 1:
            why += f", in {planned.cell}, which has most FLOPs"
    if spec.engine.stack == AUTO:
        ways = _stacked(spec, dataset, samples, ways, dtype)
    return ways, dtype, why


def _compiles(spec: StudySpec, cell: plan.Samples, planned: plan.CellPlan, dtype: str) -> bool:
    if spec.fixed.get("compile", AUTO) != AUTO or len({shape_key(values) for values in cell.valid}) > 1:
        return planned.compile  # with several shapes, each would have to be compiled
    n_runs = planned.n_trials(spec.budget.trials_per_cell or 1) * len(planned.seeds)
    like = cell.median.replace(device="cpu", dtype=dtype, compile=True)
    return compiling_pays(like, n_runs * cell.median.max_iters)


def _stacked(
    spec: StudySpec,
    dataset: Dataset,
    samples: Sequence[plan.Samples],
    plans: Sequence[plan.CellPlan],
    dtype: str,
) -> list[plan.CellPlan]:
    """Return the cells with the fastest stack size on this machine's CPU, where timing steps is worthwhile.

    Of many shapes, those whose runs take most FLOPs in total are timed.
    """
    budget = spec.budget
    if min(budget.time or math.inf, (budget.flops or math.inf) / CORE_FLOPS) < WORTH_SECONDS:
        return list(plans)
    alone = plan.worker_resources(spec, [replace(planned, stack=1) for planned in plans], "cpu")
    n_runs: dict[frozenset[ShapeKey], float] = defaultdict(float)
    flops: dict[frozenset[ShapeKey], float] = defaultdict(float)
    shapes = [frozenset(map(shape_key, cell.valid)) for cell in samples]
    for shape, planned in zip(shapes, plans, strict=True):
        per_cell = math.inf if budget.trials_per_cell is None else planned.n_trials(budget.trials_per_cell)
        n_runs[shape] += per_cell * len(planned.seeds)
        flops[shape] += planned.train_flops * len(planned.seeds)
    one_shape = [shape for shape in flops if len(shape) == 1]  # of several shapes each would have to be timed
    largest = sorted(one_shape, key=lambda shape: -flops[shape])[:MOST_SHAPES]
    stacked = []
    for cell, planned, shape in zip(samples, plans, shapes, strict=True):
        like = cell.median.replace(device="cpu", dtype=dtype, compile=planned.compile)
        rates = dict[int, float]()
        if shape in largest:
            train, machine = dataset.training(like), (len(alone), alone[0].threads)
            rates = stack_rates(like, train, dataset.val, *machine, n_runs[shape])
        if rates:
            n_seeds = len(planned.seeds)
            stack = max(fastest_stack(rates), n_seeds)
            fits = plan.stack_capacity(stack, like, n_seeds, free_memory_bytes("cpu"))
            planned = replace(planned, stack=fits, stack_rates=rates)
        stacked.append(planned)
    return stacked


def stack_rates(
    values: Hyperparameters, train: Split, val: Split, workers: int, threads: int, n_runs: float
) -> dict[int, float]:
    """Return trial-steps per second by stack size, on this machine's CPU, in the precision and compilation of `values`.

    Empty if the bits of a larger model would depend on its stack, as they do with several threads. Unless the rates are
    known from an earlier plan or `study bench`, also empty if timing could take longer than it saves, or if the step
    would have to be compiled first. Stacks that would leave some workers without runs are left out.
    """
    if threads > 1 and n_params(ModelShape.of(values)) >= plan.CPU_STACK_BELOW_PARAMS:
        return {}
    stacks = [stack for stack in _stacks_timed(values) if stack == 1 or stack * workers <= n_runs]
    ways = [Way(workers, threads, stack, values.dtype, values.compile) for stack in stacks]
    if any(measuring.known_seconds(values, way) is None for way in ways):
        flops = step_flops(values)
        seconds = n_runs * values.max_iters * max(STEP_SECONDS, flops / CORE_FLOPS) / workers
        must_compile = values.compile and not program_file(values, threads).exists()
        if seconds < WORTH_SECONDS or flops > MOST_STEP_FLOPS or must_compile:
            return {}
    times = measuring.measured(values, train, val, ways)
    return {stack: 1.0 / seconds for stack, seconds in zip(stacks, times, strict=True)}


def fastest_stack(rates: Mapping[int, float]) -> int:
    """Return the smallest stack whose rate is within measurement noise (WITHIN) of the highest."""
    return min(stack for stack, rate in rates.items() if rate >= WITHIN * max(rates.values()))


# ---------------------------------------------------------------------- the reason


def reason(spec: StudySpec, cell: plan.CellPlan, values: Hyperparameters, taken: Way) -> str:
    """Say in words why a plan has taken a way to train a cell."""
    stack = "as the study says"
    if spec.engine.stack == AUTO and cell.stack_rates:
        rates = ", ".join(f"{rate:,.4g} of {stack}" for stack, rate in cell.stack_rates.items())
        stack = f"by timed steps ({rates} trial-steps/s)"
    elif spec.engine.stack == AUTO:
        stack = (
            f"for {several(cell.n_params, 'parameter')}: timing other stacks could take longer than it saves"
        )
    why = {"dtype": precision(values)[1], "compile": "by the number of planned steps"}
    why |= {name: "as the study says" for name in why if spec.fixed.get(name, AUTO) != AUTO}
    return "; ".join(
        [
            f"{several(taken.workers, 'worker')} of {several(taken.threads, 'thread')}",
            f"a stack of {taken.stack}, {stack}",
            f"{taken.dtype}, {why['dtype']}",
            f"{'not ' * (not taken.compile)}compiled, {why['compile']}",
        ]
    )
