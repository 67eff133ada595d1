"""What a study would do, without training: cells, sizes, costs, search space, and what would run where.

All that can be known before the first trial is checked here, so that it is an error before the first trial.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from sweeplab.data.dataset import Dataset, WrongVocabulary
from sweeplab.data.objectives import task_of
from sweeplab.errors import BadInput, Problem
from sweeplab.formatting import bytes_in_words
from sweeplab.hyperparameters import SHAPE, TABLE, Hyperparameters
from sweeplab.lab.listing import TASK
from sweeplab.records.folders import StudyFolder
from sweeplab.study.cells import cells, unmet
from sweeplab.study.datasets import cut_warning, describe_data, distinct, study_dataset
from sweeplab.study.packing import free_memory_bytes, stack_capacity
from sweeplab.study.places import Location
from sweeplab.study.plugins import check_imported
from sweeplab.study.space import Cell, Space, facts
from sweeplab.study.starting import check_start, read_start
from sweeplab.sweep.trials.known import Source, read_warm_starts
from sweeplab.sweep.work.engines import Allotment, allot
from sweeplab.tracking.connection import artifact_location, tracking_uri
from sweeplab.train.run import cuda_count, settle_devices, train_memory_bytes

if TYPE_CHECKING:
    from sweeplab.study.spec import StudySpec

# So many points of a cell's space are looked at: which share is valid, and how large its models are.
# Fewer where there are many cells, so that a plan takes seconds.
MOST_PROBES, FEWEST_PROBES = 128, 16
PROBES_IN_ALL = 9 * MOST_PROBES
# The samplers that learn from whatever trials there are.
LEARNING = ("tpe", "gp")


@dataclass(frozen=True)
class CellPlan:
    """One cell as it would be trained; sizes and costs are those of the median valid sample, of one run.

    `max_iters` is None where trials differ in it.
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
    budget: dict[str, Any]
    sampler: str
    pruner: str
    metric: str
    data: dict[str, Any]
    checkpoint_bytes: int
    warm_start: list[dict[str, Any]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain data for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Plan:
        """Return a plan that was written as JSON."""
        return cls(**{**plain, "cells": [CellPlan(**cell) for cell in plain["cells"]]})

    def with_budget(self, budget: Mapping[str, Any]) -> Plan:
        """Return the plan under another budget."""
        return replace(self, budget=dict(budget), **_totals(self.cells, budget["trials_per_cell"]))


def make_plan(spec: StudySpec, lab: Path) -> tuple[Plan, list[Cell], Dataset]:
    """Check a study against its data and this machine and return what it would do.

    Raises:
        BadInput: with every reason why the study cannot start.
    """
    check_imported(spec)
    folder = StudyFolder(lab, spec.name)
    dataset = _checked_dataset(spec, folder)
    vocab_size = dataset.tokenizer.vocab_size
    found, excluded = cells(spec, vocab_size)
    spaces = [Space(spec, cell, vocab_size) for cell in found]
    check_grid_sampler(spec, spaces)
    n_probes = max(FEWEST_PROBES, min(MOST_PROBES, PROBES_IN_ALL // len(spaces)))
    probes = [probe(spec, space, n_probes) for space in spaces]
    cuts = distinct(values for _, valid in probes for values in valid)
    cut = []
    for values in sorted(cuts, key=lambda each: -each["block_size"]):
        with _placing(spec, _given(spec, "block_size", values["block_size"]) or ("data",)):
            dataset.check_fits(values)
            cut.append(cut_warning(spec, dataset, values))
    check_start(spec, read_start(spec), (values for _, valid in probes for values in valid))
    plans = [_plan_cell(spec, space, *probe) for space, probe in zip(spaces, probes, strict=True)]
    data = describe_data(spec, dataset)
    sources = warm_starts(spec, folder, spaces, data)
    settled = settle_devices(Hyperparameters.of(probes[0][1][0]))
    n_copies = 2 if artifact_location(lab, tracking_uri(lab, spec.track.uri)) else 1  # one is tracking's
    checkpoint_bytes = _checkpoint_bytes(spec, plans, n_copies)
    _check_room(folder, checkpoint_bytes, n_copies)
    plan = Plan(
        name=spec.name,
        cells=plans,
        excluded=[{**point, "reason": reason} for point, reason in excluded],
        warnings=[
            *_warnings(spec.search.keys(), [valid for _, valid in probes]),
            *dict.fromkeys(filter(None, cut)),
            *_unheeded(spec, sources),
        ],
        **_totals(plans, spec.budget.trials_per_cell),
        device=settled["device"],
        dtype=settled["dtype"],
        workers=[asdict(each) for each in allotments(spec, plans, settled["device"])],
        budget=spec.budget.model_dump(),
        sampler=_named(spec.sampler.type, spec.sampler.options),
        pruner=_named(spec.pruner.type, spec.pruner.options),
        metric=spec.objective.metric,
        data=data,
        checkpoint_bytes=checkpoint_bytes,
        warm_start=[source.as_dict() for source in sources],
    )
    return plan, found, dataset


def warm_starts(
    spec: StudySpec, folder: StudyFolder, spaces: Sequence[Space], data: Mapping[str, Any]
) -> list[Source]:
    """Return what the study starts from; what it took in before and is gone by now is left out.

    Raises:
        BadInput: as `read_warm_starts` does.
    """
    taken: set[str] = set()
    if folder.warm_start_file.exists():
        cells = json.loads(folder.warm_start_file.read_text(encoding="utf-8"))
        taken = {source for sources in cells.values() for source in sources}
    return read_warm_starts(spec, folder.lab, spaces, data, taken)


def _unheeded(spec: StudySpec, sources: Sequence[Source]) -> list[str]:
    """Return what of a warm start comes to nothing."""
    found = [f"warm start: of {source.name}, {each}" for source in sources for each in source.refused]
    if sources and spec.sampler.type not in LEARNING:
        found.append(
            f"warm start: sampler {spec.sampler.type} learns nothing from it; {', '.join(LEARNING)} do"
        )
    return found


def _totals(plans: list[CellPlan], per_cell: int | None) -> dict[str, Any]:
    """Return trials, runs, tokens and FLOPs of a whole study; None where no number of trials ends it."""
    if per_cell is None:
        return dict.fromkeys(("trials", "runs", "train_tokens", "train_flops"))

    def total(of: str) -> float:
        return float(sum(getattr(plan, of) * per_cell * len(plan.seeds) for plan in plans))

    return {
        "trials": per_cell * len(plans),
        "runs": per_cell * sum(len(plan.seeds) for plan in plans),
        "train_tokens": total("train_tokens"),
        "train_flops": total("train_flops"),
    }


def allotments(spec: StudySpec, plans: list[CellPlan], device: str) -> list[Allotment]:
    """Return what each worker would get on this machine."""
    n_cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    per_cell = spec.budget.trials_per_cell
    n_stacks = n_cpus
    if per_cell is not None:
        n_stacks = sum(-(-per_cell * len(plan.seeds) // plan.stack) for plan in plans)
    found = allot(spec.engine.workers, n_stacks, n_cpus, cuda_count() if device == "cuda" else 0)
    threads = spec.engine.threads
    return found if threads == "auto" else [replace(each, threads=int(threads)) for each in found]


@contextmanager
def _gathering(problems: list[Problem]) -> Iterator[None]:
    """Take note of what is wrong and go on, so that all of it is said at once."""
    try:
        yield
    except BadInput as error:
        problems += error.problems


@contextmanager
def _placing(spec: StudySpec, place: Location | None) -> Iterator[None]:
    """Say what is wrong of the study's line that is to blame, None where none is; of data's own lines as it is."""
    try:
        yield
    except BadInput as error:
        if place is None or any(each.file for each in error.problems):
            raise
        placed = [spec.problem(place, each.what, each.allowed, each.nearest) for each in error.problems]
        raise BadInput(*placed) from error


def _checked_dataset(spec: StudySpec, folder: StudyFolder) -> Dataset:
    """Return the study's data, once it is clear that what it needs of this machine is there."""
    problems: list[Problem] = []
    with _gathering(problems):
        _check_devices(spec)
    with _gathering(problems), _placing(spec, ("track", "uri") if spec.track.uri else None):
        tracking_uri(folder.lab, spec.track.uri)
    with _gathering(problems):
        _check_writable(folder)
    with _gathering(problems):
        dataset = placed_dataset(spec)
    if problems:
        raise BadInput(*problems)
    return dataset


def placed_dataset(spec: StudySpec) -> Dataset:
    """Return the study's data.

    Raises:
        BadInput: there are none, said of the line that names them.
    """
    try:
        return study_dataset(spec)
    except BadInput as error:
        name = "path" if spec.data.path else "corpus"
        with _placing(spec, ("data", "vocab_size" if isinstance(error, WrongVocabulary) else name)):
            raise


def _given(spec: StudySpec, name: str, value: Any) -> Location | None:
    """Return where the study gives a hyperparameter this value, or None where the table does."""
    if value in spec.grid.get(name, ()):
        return ("grid", name, spec.grid[name].index(value))
    for index, changes in enumerate(spec.cells):
        if name in changes and changes[name] == value:
            return ("cells", index, name)
    return next(
        (part for part in (("fixed", name), ("search", name)) if name in getattr(spec, part[0])), None
    )


def _check_devices(spec: StudySpec) -> None:
    place = _given(spec, "device", "cuda")
    asked = (spec.fixed.get("device"), *spec.grid.get("device", ()), *spec.changed.get("device", ()))
    if place and "cuda" in asked and not cuda_count():
        what = "device is cuda, but there is no CUDA device here"
        raise BadInput(spec.problem(place, what, "cpu, or auto for the best that a machine has"))


def check_grid_sampler(spec: StudySpec, spaces: list[Space]) -> None:
    """Refuse more trials of a cell than its grid of searched values has points: the rest would be repetitions."""
    if spec.sampler.type != "grid":
        return
    fewest = min(space.n_valid or space.n_points or 1 for space in spaces)
    asked = spec.budget.trials_per_cell
    if asked is None or asked > fewest:
        what = f"the grid sampler has {fewest} valid points a cell, but trials_per_cell is {asked or 'not given'}"
        raise BadInput(spec.problem(("budget", "trials_per_cell"), what, f"1 to {fewest}"))


def probe(spec: StudySpec, space: Space, count: int) -> tuple[float, list[dict[str, Any]]]:
    """Return which share of a cell's space meets the rules, and effective values of the samples that do.

    Raises:
        BadInput: none does; says which rules they break.
    """
    values = list(space.draws(count if space.parameters else 1))
    broken = [space.broken_rule(each) for each in values]
    valid = [each for each, rule in zip(values, broken, strict=True) if rule is None]
    if not valid:
        rules = {rule.text: rule for rule in broken if rule}
        what = f"trial of cell {space.cell.key}"
        raise BadInput(*(unmet(spec, rule, what, space.vocab_size) for rule in rules.values()))
    return len(valid) / len(values), valid


def middle(valid: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the values of the sample that is in the middle by its number of parameters."""
    return sorted(valid, key=lambda values: facts(values)["n_params"])[len(valid) // 2]


def _plan_cell(spec: StudySpec, space: Space, share: float, valid: list[dict[str, Any]]) -> CellPlan:
    settled = settle_devices(Hyperparameters.of(middle(valid)))
    known = facts(settled)
    free = free_memory_bytes(settled["device"])
    iterations = {values["max_iters"] for values in valid}
    return CellPlan(
        cell=space.cell.key,
        values=dict(space.cell.values),
        n_params=known["n_params"],
        n_params_non_embedding=known["n_params_non_embedding"],
        max_iters=iterations.pop() if len(iterations) == 1 else None,
        train_tokens=int(median(facts(values)["train_tokens"] for values in valid)),
        train_flops=float(median(facts(values)["train_flops"] for values in valid)),
        memory_bytes=train_memory_bytes(settled),
        stack=stack_capacity(spec.engine.stack, settled, len(space.seeds), free),
        valid_share=share,
        seeds=list(space.seeds),
        search={name: str(each) for name, each in space.distributions().items()},
    )


def _warnings(searched: Set[str], cells: list[list[dict[str, Any]]]) -> list[str]:
    """Return what a person may not have meant, from samples of every cell."""
    found = []
    varying = {
        name for name in searched & set(SHAPE) if any(len({v[name] for v in cell}) > 1 for cell in cells)
    }
    if any(len({task_of(values) for values in cell}) > 1 for cell in cells):
        tasks = ", ".join(sorted(varying & {*TASK}))
        found.append(f"{tasks} searched: sampling and pruning compare losses of unlike tasks")
    if sizes := sorted(name for name in varying - {*TASK} if TABLE[name].kind == "int"):
        found.append(f"{', '.join(sizes)} searched: sampling and pruning compare unlike sizes inside a cell")
    values = [each for cell in cells for each in cell]
    if any(each["warmup_iters"] >= each["max_iters"] for each in values):
        found.append("warmup_iters reaches max_iters: the learning rate never gets to its peak")
    if any(each["lr_decay"] and each["min_lr"] > each["learning_rate"] for each in values):
        found.append("min_lr is above learning_rate: such runs keep their learning rate")
    return found


def _checkpoint_bytes(spec: StudySpec, plans: list[CellPlan], n_copies: int) -> int:
    """Return what checkpoints take when all is done, and snapshots (three rows more) while it trains."""
    n_kept = 0 if spec.track.checkpoints == "none" else (spec.budget.trials_per_cell or 1)
    largest = max(plan.n_params for plan in plans)
    return 4 * (n_copies * n_kept * sum(plan.n_params * len(plan.seeds) for plan in plans) + 4 * largest)


def _check_writable(folder: StudyFolder) -> None:
    """Refuse a study whose folder cannot be written, or made; leaves nothing behind."""
    try:
        with tempfile.TemporaryFile(dir=_existing(folder.path)):
            return
    except OSError as error:
        reason = error.strerror or error
        what = f"{folder.lab} cannot be written ({reason}); --lab or SWEEPLAB_LAB name another folder"
        raise BadInput(what) from error


def _check_room(folder: StudyFolder, needed: int, n_copies: int) -> None:
    kept = sum(file.stat().st_size for file in folder.path.glob("runs/*/*/*/*.safetensors"))
    free = shutil.disk_usage(_existing(folder.path)).free
    missing = needed - n_copies * kept
    if free < missing:
        raise BadInput(
            f"{folder.lab} has room for {bytes_in_words(free)}, checkpoints need {bytes_in_words(missing)}; "
            "track: {checkpoints: none} keeps none, --lab or SWEEPLAB_LAB name another folder"
        )


def _existing(path: Path) -> Path:
    return next(each for each in (path, *path.parents) if each.exists())


def _named(name: str, options: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value}' for key, value in options.items())})" if options else name
