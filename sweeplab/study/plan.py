"""What a study would do, without training: cells, sizes, costs, search space, and what would run where.

All that can be known before the first trial is checked here, so that it is an error before the first trial.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from sweeplab.data.dataset import Dataset, check_length, prepare
from sweeplab.errors import BadInput, Problem
from sweeplab.hyperparameters import SHAPE
from sweeplab.model.accounting import train_memory_bytes
from sweeplab.model.shape import ModelShape
from sweeplab.study.engines import Allotment, allot
from sweeplab.study.packing import free_memory_bytes, stack_capacity
from sweeplab.study.space import Cell, Space, cells, facts
from sweeplab.train.devices import cuda_count, settle_devices

if TYPE_CHECKING:
    from sweeplab.study.spec import StudySpec

# So many points of a cell's space are looked at: which share is valid, and how large its models are.
N_PROBES = 128


@dataclass(frozen=True)
class CellPlan:
    """One cell as it would be trained; sizes and costs are those of the median valid sample, of one run."""

    cell: str
    values: dict[str, Any]
    n_params: int
    n_params_non_embedding: int
    train_tokens: int
    train_flops: float
    memory_bytes: int
    stack: int
    valid_share: float
    search: dict[str, str]


@dataclass(frozen=True)
class Plan:
    """A study's preview; `trials` and `runs` are None where only time or FLOPs end it."""

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
    workers: list[dict[str, Any]]
    sampler: str
    pruner: str
    data: dict[str, Any]
    checkpoint_bytes: int

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain data for JSON."""
        return asdict(self)


def make_plan(spec: StudySpec, lab: Path) -> tuple[Plan, list[Cell], Dataset]:
    """Check a study against its data and this machine and return what it would do.

    Raises:
        BadInput: with every reason why the study cannot start.
    """
    dataset = prepare(spec.data.corpus, spec.data.tokenizer, spec.data_path)
    vocab_size = dataset.tokenizer.vocab_size
    found, excluded = cells(spec, vocab_size)
    spaces = [Space(spec, cell, vocab_size) for cell in found]
    probes = [_probe(space) for space in spaces]
    _check_samples(spec, found, probes)
    for block_size in {values["block_size"] for _, valid in probes for values in valid}:
        check_length(dataset, block_size)
    if {values["vocab_size"] < vocab_size for _, valid in probes for values in valid} == {True}:
        raise BadInput(f"vocab_size is smaller than the tokenizer's {vocab_size}; allowed: auto, or at least that")
    plans = [_plan_cell(spec, space, *probe) for space, probe in zip(spaces, probes, strict=True)]
    per_cell = spec.budget.trials_per_cell
    n_trials = None if per_cell is None else per_cell * len(plans)
    n_runs = None if n_trials is None else n_trials * len(spec.seeds)

    def total(of: str) -> float | None:
        each = None if per_cell is None else per_cell * len(spec.seeds)
        return None if each is None else float(sum(getattr(plan, of) * each for plan in plans))

    settled = settle_devices(probes[0][1][0])
    checkpoint_bytes = _checkpoint_bytes(spec, plans)
    _check_disk(lab, checkpoint_bytes)
    plan = Plan(
        name=spec.name,
        cells=plans,
        excluded=[{**point, "reason": reason} for point, reason in excluded],
        warnings=_warnings(spec, [values for _, valid in probes for values in valid]),
        trials=n_trials,
        runs=n_runs,
        train_tokens=total("train_tokens"),
        train_flops=total("train_flops"),
        device=settled["device"],
        dtype=settled["dtype"],
        workers=[asdict(each) for each in allotments(spec, plans, settled["device"])],
        sampler=_named(spec.sampler.type, spec.sampler.options),
        pruner=_named(spec.pruner.type, spec.pruner.options),
        data=describe_data(spec, dataset),
        checkpoint_bytes=checkpoint_bytes,
    )
    return plan, found, dataset


def allotments(spec: StudySpec, plans: list[CellPlan], device: str) -> list[Allotment]:
    """Return what each worker would get on this machine."""
    n_cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    per_cell = spec.budget.trials_per_cell
    n_stacks = n_cpus
    if per_cell is not None:
        n_stacks = sum(-(-per_cell * len(spec.seeds) // plan.stack) for plan in plans)
    return allot(spec.engine.workers, n_stacks, n_cpus, cuda_count() if device == "cuda" else 0)


def describe_data(spec: StudySpec, dataset: Dataset) -> dict[str, Any]:
    """Return what a study records of its data."""
    return {
        "corpus": spec.data.corpus,
        "tokenizer": spec.data.tokenizer,
        "vocab_size": dataset.tokenizer.vocab_size,
        "train_tokens": len(dataset.train),
        "val_tokens": len(dataset.val),
        "text_digest": dataset.text_digest,
        "token_digest": dataset.token_digest,
    }


def _probe(space: Space) -> tuple[float, list[dict[str, Any]]]:
    """Return which share of a cell's space meets the rules, and effective values of the samples that do."""
    values = list(space.draws(N_PROBES if space.distributions() else 1))
    valid = [each for each in values if not space.broken(each)]
    return len(valid) / len(values), valid


def _check_samples(
    spec: StudySpec, found: list[Cell], probes: list[tuple[float, list[dict[str, Any]]]]
) -> None:
    lost = [cell.key for cell, (_, valid) in zip(found, probes, strict=True) if not valid]
    if lost:
        what = f"nothing in the search space meets the constraints in cell {', '.join(lost)}"
        raise BadInput(Problem(f"{what}: {'; '.join(spec.constraints) or 'n_head must divide n_embd'}", file=spec.source))


def _plan_cell(spec: StudySpec, space: Space, share: float, valid: list[dict[str, Any]]) -> CellPlan:
    middle = sorted(valid, key=lambda values: facts(values)["n_params"])[len(valid) // 2]
    settled = settle_devices(middle)
    known = facts(settled)
    value_bytes = 2 if settled["dtype"] == "bfloat16" else 4
    memory = train_memory_bytes(ModelShape.of(settled), settled["batch_size"], value_bytes)
    free = free_memory_bytes(settled["device"])
    return CellPlan(
        cell=space.cell.key,
        values=dict(space.cell.values),
        n_params=known["n_params"],
        n_params_non_embedding=known["n_params_non_embedding"],
        train_tokens=int(median(facts(values)["train_tokens"] for values in valid)),
        train_flops=float(median(facts(values)["train_flops"] for values in valid)),
        memory_bytes=memory,
        stack=stack_capacity(spec.engine.stack, settled, len(spec.seeds), free),
        valid_share=share,
        search={name: str(each) for name, each in space.distributions().items()},
    )


def _warnings(spec: StudySpec, values: list[dict[str, Any]]) -> list[str]:
    found = []
    sizes = sorted(set(spec.search) & set(SHAPE) - {"activation", "bias", "tie_weights"})
    if sizes:
        found.append(f"{', '.join(sizes)} searched: sampling and pruning compare unlike sizes inside a cell")
    if any(each["warmup_iters"] >= each["max_iters"] for each in values):
        found.append("warmup_iters reaches max_iters: the learning rate never gets to its peak")
    if any(each["lr_decay"] and each["min_lr"] > each["learning_rate"] for each in values):
        found.append("min_lr is above learning_rate: such runs keep their learning rate")
    return found


def _checkpoint_bytes(spec: StudySpec, plans: list[CellPlan]) -> int:
    """Return what checkpoints take when all is done, and snapshots (three rows more) while it trains."""
    kept = 0 if spec.track.checkpoints == "none" else (spec.budget.trials_per_cell or 1) * len(spec.seeds)
    largest = max(plan.n_params for plan in plans)
    return 4 * (kept * sum(plan.n_params for plan in plans) + 4 * largest)


def _check_disk(lab: Path, needed: int) -> None:
    existing = next(folder for folder in (lab, *lab.parents) if folder.exists())
    if not os.access(existing, os.W_OK) or not existing.is_dir():
        raise BadInput(f"{lab} cannot be written; --lab or SWEEPLAB_LAB name another folder")
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise BadInput(
            f"{lab} has room for {free / 1e9:.1f} GB, but checkpoints take {needed / 1e9:.1f} GB; "
            "allowed: track: {checkpoints: none}, or another --lab"
        )


def _named(name: str, options: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value}' for key, value in options.items())})" if options else name

