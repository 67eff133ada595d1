"""The plan of a study, computed without training: its cells with sizes and costs, totals, workers, and algorithms.

A sampler and a pruner are settled by what follows from the budget and the evaluation interval: how many of a cell's
trials are spread evenly before a sampler models them, and at which iterations a halving pruner decides.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median_low
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from sweeplab.data import TASK, have_one_task
from sweeplab.errors import BadInput
from sweeplab.formatting import bytes_in_words, several
from sweeplab.hyperparameters import AUTO, TABLE, Hyperparameters, is_number
from sweeplab.model.accounting import n_params
from sweeplab.model.shape import ModelShape
from sweeplab.records.folders import DataDescription
from sweeplab.study.options import (
    JOINT,
    PROMOTE,
    PRUNERS,
    SAMPLERS,
    Pruner,
    Sampler,
    as_written,
    build,
)
from sweeplab.study.problems import Problems
from sweeplab.study.rules import facts
from sweeplab.study.space import Space, unmet
from sweeplab.study.spec import Budget, Engine, StudySpec
from sweeplab.study.values import Choices, Range, SearchSpec, stored_values
from sweeplab.train.devices import (
    cuda_count,
    free_memory_bytes,
    memory_bytes,
    n_cores,
    settle_devices,
)
from sweeplab.train.run import row_flops, state_bytes, train_memory_bytes

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

# At most this share of a cell's trials is spread evenly, before the sampler models their results.
STARTUP_SHARE = 0.25
JOINT_STARTUP = 2
# Halving first decides when this share of a run's iterations is done, rounded up to an evaluation.
FIRST_RUNG_SHARE = 0.2
# How many points of a cell's space are sampled to estimate the share of valid trials and the model sizes.
MOST_SAMPLES, FEWEST_SAMPLES = 64, 16
SAMPLES_IN_ALL = 9 * MOST_SAMPLES

# On a CPU a step of a small model is mostly interpreter overhead, which a stack shares; a larger model fills
# the caches by itself. Measured on two cores: 8 runs of 27k parameters train 1.9 times as fast, of 200k no faster.
CPU_STACK = 8
CPU_STACK_BELOW_PARAMS = 100_000
# A step with this many FLOPs keeps a GPU busy; more runs only make the step longer.
CUDA_STEP_FLOPS = 2e11
CUDA_MOST = 256
# Attention folds runs, batch and heads into one grid dimension of the kernel.
MOST_FOLDED = 65_535
MEMORY_SHARE = 0.5
MOST_SHOWN = 12
# The memory that a plan assumes for remote machines; each worker checks its own once it runs.
MEMORY_ELSEWHERE = 64 * 2**30
# The most remote workers that are requested by default; on ray those that find no room wait for nodes that join.
MOST_ELSEWHERE = {"slurm": 16, "ray": 256}
# The hyperparameters that make a model large, the likeliest first.
SIZES = ("n_embd", "n_layer", "d_ff", "n_expert", "vocab_size", "block_size")


@dataclass(frozen=True)
class WorkerResources:
    """The resources of one worker: threads, and the index of its GPU if it has one."""

    threads: int
    gpu: int | None = None


def stack_capacity(
    wanted: int | str, values: Hyperparameters, n_seeds: int, memory_bytes: float
) -> int:
    """Return K, the number of runs per stack, for runs like `values`: as wanted, or what pays on the device.

    K is limited by the device's memory. The seeds of a trial share a stack where memory allows.
    """
    shape = ModelShape.of(values)
    if shape.is_plugin:
        return 1
    at_once = values.batch_size // values.grad_accum
    room = int(memory_bytes * MEMORY_SHARE / train_memory_bytes(values))
    fits = max(1, min(room, MOST_FOLDED // (at_once * shape.n_head)))
    if wanted != "auto":
        return min(int(wanted), fits)
    pays = 1
    if values.device == "cuda":
        pays = min(CUDA_MOST, max(1, round(CUDA_STEP_FLOPS / (row_flops(values) * at_once))))
    elif n_params(shape) < CPU_STACK_BELOW_PARAMS:
        pays = CPU_STACK
    return min(fits, max(pays, n_seeds))


@dataclass(frozen=True)
class CellPlan:
    """The plan of one cell; sizes and costs are per run, for the median valid sample.

    `max_iters` and `epochs` are None where trials differ in them; `n_points`, the number of different trials, where
    they cannot be counted. `rungs` are the iterations at which halving decides, in a run of typical length.
    """

    cell: str
    values: dict[str, Any]
    n_params: int
    n_params_non_embedding: int
    max_iters: int | None
    train_tokens: int
    train_flops: float
    memory_bytes: int
    stack: int
    valid_share: float
    seeds: list[int]
    n_points: int | None
    rungs: list[int]
    epochs: float | None = None
    compile: bool = False

    def n_trials(self, per_cell: int) -> int:
        """Return the number of trials of the cell under a budget: at most its points."""
        if self.n_points is None:
            return per_cell
        return min(per_cell, self.n_points)


@dataclass(frozen=True)
class WarmStart:
    """A source of earlier trials: how many fit the study, and why others do not."""

    source: Annotated[str, Field(alias="from")]
    trials: int
    refused: list[str]


@dataclass(frozen=True)
class Plan:
    """The plan of a study; `trials` and `runs` are None if only time or FLOPs end it.

    `reaches` lists what the study file uses outside its own folder and the lab: resolved files, and tracking.
    `mirror` describes where else the runs are sent; empty if nowhere. `is_here` means that the workers are processes
    of this machine. `dtype_by` is the reason for the precision on a CPU.
    """

    name: str
    cells: list[CellPlan]
    excluded: list[dict[str, Any]]
    warnings: list[str]
    trials: int | None
    runs: int | None
    train_tokens: float | None
    train_flops: float | None
    device: str
    dtype: str
    workers: list[WorkerResources]
    budget: Budget
    sampler: str
    pruner: str
    metric: str
    data: DataDescription
    checkpoint_bytes: int
    warm_start: list[WarmStart] = field(default_factory=list)
    reaches: list[str] = field(default_factory=list)
    mirror: str = ""
    is_here: bool = True
    dtype_by: str = ""

    def __repr__(self) -> str:
        lines = [f"<plan of {self.name}: {several(len(self.cells), 'cell')}"]
        if self.trials is not None:
            lines[0] += f", {several(self.trials, 'trial')}, {several(self.runs or 0, 'run')}"
        for cell in self.cells[:MOST_SHOWN]:
            size = several(cell.n_params, "parameter")
            lines.append(f"  {cell.cell}: {size}, {cell.train_flops:.2e} FLOPs a run")
        return "\n".join([*lines, *(f"  warning: {each}" for each in self.warnings)]) + ">"

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain data for JSON."""
        return {
            **TypeAdapter(Plan).dump_python(self, by_alias=True),
            "data": self.data.as_dict(),
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Plan:
        """Return the plan from its JSON data."""
        return TypeAdapter(cls).validate_python(plain)

    def with_budget(self, budget: Budget) -> Plan:
        """Return the plan under another budget."""
        return replace(self, budget=budget, **totals(self.cells, budget.trials_per_cell))


def totals(plans: Sequence[CellPlan], per_cell: int | None) -> dict[str, Any]:
    """Return trials, runs, tokens and FLOPs of a whole study; None each if no number of trials ends it."""
    if per_cell is None:
        return dict.fromkeys(("trials", "runs", "train_tokens", "train_flops"))
    runs = [(plan, plan.n_trials(per_cell) * len(plan.seeds)) for plan in plans]
    return {
        "trials": sum(plan.n_trials(per_cell) for plan in plans),
        "runs": sum(count for _, count in runs),
        "train_tokens": float(sum(plan.train_tokens * count for plan, count in runs)),
        "train_flops": float(sum(plan.train_flops * count for plan, count in runs)),
    }


def has_cuda(engine: Engine) -> bool:
    """Return whether an engine's workers have a GPU; of remote machines only the requested GPUs are known."""
    if engine.type == "local":
        return cuda_count() > 0
    return engine.gpus_per_worker > 0


def worker_resources(
    spec: StudySpec, cells: Sequence[CellPlan], device: str
) -> list[WorkerResources]:
    """Return the resources of each worker: a share of this machine, or what the engine requests of remote ones.

    This machine has one worker per GPU, else one per core with a single thread. With fewer stacks than cores there is
    one worker per stack and they share all cores: a single run gets all.
    """
    n_cpus, engine, per_cell = n_cores(), spec.engine, spec.budget.trials_per_cell
    is_here = engine.type == "local"
    n_gpus = cuda_count() if is_here and device == "cuda" else 0
    count = n_gpus or MOST_ELSEWHERE.get(engine.type, n_cpus)
    if engine.workers != AUTO:
        count = int(engine.workers)
    elif per_cell is not None:
        n_stacks = sum(
            -(-cell.n_trials(per_cell) * len(cell.seeds) // cell.stack) for cell in cells
        )
        count = min(n_stacks, count)
    threads = engine.threads_elsewhere
    if is_here and engine.threads == AUTO:
        threads = max(1, n_cpus // count)
    return [
        WorkerResources(threads, index % n_gpus if n_gpus else None) for index in range(count)
    ]


def memory_shortage(
    cells: Sequence[CellPlan], workers: Sequence[WorkerResources], device: str
) -> str:
    """Describe by how much the largest runs of workers that share a memory exceed it; empty if they fit."""
    n_sharing = max(Counter(worker.gpu for worker in workers).values())
    needed, there = n_sharing * max(cell.memory_bytes for cell in cells), memory_bytes(device)
    if needed <= there:
        return ""
    runs = (
        "a run takes"
        if n_sharing == 1
        else f"runs of {several(n_sharing, 'worker')} at once take"
    )
    return f"{runs} about {bytes_in_words(needed)} of memory, but there are only {bytes_in_words(there)}"


def check_task(runs: Sequence[Hyperparameters]) -> None:
    """Refuse runs of different tasks.

    Raises:
        BadInput: their losses cannot be compared.
    """
    if not have_one_task(runs):
        what = f"the trials learn different tasks, by their {' or '.join(TASK)}: their losses cannot be compared"
        raise BadInput(f"{what}; give each task a study of its own")


def check_memory(spec: StudySpec, cells: Sequence[Samples]) -> None:
    """Refuse a run whose weights, gradients and moments need more memory than its device has."""
    if spec.engine.type != "local":
        return
    for cell in cells:
        needed, there = (
            state_bytes(cell.median),
            memory_bytes(settle_devices(cell.median).device),
        )
        if needed > there:
            takes = (
                f"needs {bytes_in_words(needed)} for its weights, gradients and moments alone"
            )
            what = f"a run of cell {cell.space.cell.key} {takes}, but there are only {bytes_in_words(there)} of memory"
            raise BadInput(
                spec.problem(spec.place(*SIZES), what, "a smaller model, or another machine")
            )


@dataclass(frozen=True)
class Samples:
    """Samples of a cell's space that meet its rules, and their share among all drawn samples."""

    space: Space
    share: float
    valid: list[Hyperparameters]

    @cached_property
    def median(self) -> Hyperparameters:
        """Return the sample with the median number of parameters."""
        return sorted(self.valid, key=lambda values: n_params(ModelShape.of(values)))[
            len(self.valid) // 2
        ]


def sample_cell(spec: StudySpec, space: Space, count: int) -> Samples:
    """Draw samples of a cell's space, always the same ones; all of its trials if there are at most `count`.

    Raises:
        BadInput: none meets the rules; the message says which rules they break.
    """
    is_small = space.n_points is not None and space.n_points <= count
    drawn = list(space.trials() if is_small else space.draws(count))
    broken = [space.broken(values) for values in drawn]
    valid = [values for values, rule in zip(drawn, broken, strict=True) if rule is None]
    if not valid:
        rules = {rule.text: rule for rule in broken if rule}
        what = f"trial of cell {space.cell.key}"
        raise BadInput(*(unmet(spec, rule, what) for rule in rules.values()))
    return Samples(space, len(valid) / len(drawn), valid)


def sample_cells(spec: StudySpec, spaces: Sequence[Space]) -> list[Samples]:
    """Draw samples of every cell, fewer if there are many cells, so that a plan takes seconds."""
    count = max(FEWEST_SAMPLES, min(MOST_SAMPLES, SAMPLES_IN_ALL // len(spaces)))
    return [sample_cell(spec, space, count) for space in spaces]


def plan_cell(spec: StudySpec, samples: Samples) -> CellPlan:
    """Return the plan of a cell: what each of its runs takes."""
    space = samples.space
    settled = settle_devices(samples.median, has_cuda(spec.engine))
    known = [facts(values) for values in samples.valid]
    sizes = facts(settled)
    free = (
        free_memory_bytes(settled.device) if spec.engine.type == "local" else MEMORY_ELSEWHERE
    )
    every, last = space.typical.eval_interval, space.typical.max_iters
    return CellPlan(
        cell=space.cell.key,
        values=dict(space.cell.values),
        n_params=sizes.n_params,
        n_params_non_embedding=sizes.n_params_non_embedding,
        max_iters=_only({values.max_iters for values in samples.valid}),
        train_tokens=median_low(each.train_tokens for each in known),
        train_flops=float(median_low(each.train_flops for each in known)),
        memory_bytes=train_memory_bytes(settled),
        stack=stack_capacity(spec.engine.stack, settled, len(space.seeds), free),
        valid_share=samples.share,
        seeds=list(space.seeds),
        n_points=space.n_points,
        rungs=rungs(settled_pruner(spec.pruner, every, last), every, last),
        epochs=_only({values.epochs for values in samples.valid}),
        compile=settled.compile,
    )


def _only(values: set[Any]) -> Any:
    if len(values) == 1:
        return values.pop()
    return None


def warnings(spec: StudySpec, cells: Sequence[Samples]) -> Iterator[str]:
    """Yield warnings of what the user may not have intended, from samples of every cell."""

    fewest = min(cell.space.n_points or math.inf for cell in cells)
    if fewest < (spec.budget.trials_per_cell or math.inf):
        points = several(int(fewest), "point")
        yield f"a cell has only {points}, and none is trained twice: more seeds measure the noise"
    runs = [run for cell in cells for run in cell.valid]
    sizes = [
        name
        for name in sorted(spec.search)
        if TABLE[name].shape
        and TABLE[name].kind == "int"
        and any(len({getattr(run, name) for run in cell.valid}) > 1 for cell in cells)
    ]
    if sizes:
        yield f"{', '.join(sizes)} searched: sampling and pruning compare different sizes in a cell"
    if any(run.warmup_iters >= run.max_iters for run in runs):
        yield "warmup_iters is not below max_iters: the learning rate never reaches its peak"


# ------------------------------------------------------------------ the sampler and the pruner


def settled_sampler(spec: StudySpec) -> Sampler:
    """Return a study's sampler, chosen where it is `auto`."""
    if spec.sampler.type != AUTO:
        return spec.sampler
    has_cells = spec.n_points > 1 and any(map(_has_numbers, spec.search.values()))
    return Sampler(type=JOINT if has_cells else "tpe", options=spec.sampler.options)


def _has_numbers(entry: SearchSpec) -> bool:
    if isinstance(entry, Choices):
        return all(map(is_number, entry.choices))
    return isinstance(entry, Range)


def n_startup_trials(spec: StudySpec, trials_per_cell: int | None) -> int:
    """Return how many trials of a cell are spread evenly before the sampler models any; 0 where it models none.

    The number that the study gives; else Optuna's default, but at most STARTUP_SHARE of the cell's trials, at least 1.
    All cells of a joint search together spread JOINT_STARTUP trials for each searched value, and as many more.
    """
    name, sampler = "n_startup_trials", settled_sampler(spec)
    if name in sampler.options:
        return int(sampler.options[name])
    if sampler.type == JOINT:
        shared = JOINT_STARTUP * (len(spec.search) + 1)
        return max(1, min(math.ceil(shared / spec.n_points), (trials_per_cell or shared) // 2))
    most = int(SAMPLERS[sampler.type].optuna_defaults.get(name, 0))
    if trials_per_cell is None or not most:
        return most
    return max(1, min(most, math.floor(STARTUP_SHARE * trials_per_cell)))


def make_sampler(sampler: Sampler, seed: int, space: Space, cell_seed: int) -> BaseSampler:
    """Return Optuna's sampler for a cell.

    `seed` may differ from trial to trial; `cell_seed` is the same for all trials of a cell and is used by samplers that
    go through a sequence.

    Raises:
        ValueError: Optuna refuses an option, or a grid is infinite.
    """
    if sampler.type == "grid":
        from optuna.samplers import GridSampler

        class AskedGrid(GridSampler):
            """A grid for ask and tell: Optuna's own stops the loop of `optimize`, which is not used here."""

            def after_trial(self, *_: Any) -> None:
                pass

        return AskedGrid(
            {name: [*stored_values(each)] for name, each in space.parameters.items()}, cell_seed
        )
    unasked: dict[str, Any] = {"seed": cell_seed if sampler.type == "qmc" else seed}
    if sampler.type == "tpe" and space.conditional:
        unasked["group"] = True
    return build(sampler, **unasked)  # type: ignore[no-any-return]


def settled_pruner(pruner: Pruner, eval_interval: int, max_iters: int) -> Pruner:
    """Return the pruner with its first rung set, which Optuna would otherwise guess from the first trials.

    By default Optuna takes a hundredth of a run (a single iteration for Hyperband); the first evaluation comes later
    and would then decide several rungs at once, on one value.
    """
    options = dict(pruner.options)
    if PRUNERS[pruner.type].halves:
        if options.get("min_resource", "auto") == "auto":
            share = math.ceil(FIRST_RUNG_SHARE * max_iters / eval_interval)
            options["min_resource"] = min(max_iters, share * eval_interval)
        if pruner.type == "hyperband" and options.get("max_resource", "auto") == "auto":
            options["max_resource"] = max_iters
    return Pruner(type=pruner.type, options=options)


def rungs(pruner: Pruner, eval_interval: int, max_iters: int) -> list[int]:
    """Return the iterations before the end at which a settled pruner halves, each one that of an evaluation.

    An evaluation occurs once per rung that it decides: twice where two rungs lie between it and the one before.
    """
    row = PRUNERS[pruner.type]
    if not row.halves:
        return []
    options = {"min_early_stopping_rate": 0, **row.optuna_defaults, **pruner.options}
    factor = int(options["reduction_factor"])
    rung = int(options["min_resource"]) * factor ** int(options["min_early_stopping_rate"])
    at_evaluations = []
    while (at := math.ceil(rung / eval_interval) * eval_interval) < max_iters:
        at_evaluations.append(at)
        rung *= factor
    return at_evaluations


def promotes(pruner: Pruner) -> bool:
    """Return whether pruned trials continue if budget is left when all others have ended."""
    return bool(pruner.options.get(PROMOTE))


def with_algorithms(spec: StudySpec, sampler: Any, pruner: Any) -> StudySpec:
    """Return a study with another sampler or pruner, if they are not None: as in a study file, or Optuna's.

    Raises:
        BadInput: there is no such sampler or pruner here, or it cannot be made again from what is known of it.
    """
    problems, changed = Problems(), dict[str, Any]()
    for key, model, algorithm in (("sampler", Sampler, sampler), ("pruner", Pruner, pruner)):
        if algorithm is not None:
            try:
                changed[key] = model.model_validate(as_written(algorithm))
            except ValidationError as error:
                problems.retell(error, (key,))
    problems.refuse()
    return spec.model_copy(update=changed)
