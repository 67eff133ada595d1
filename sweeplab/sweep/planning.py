"""Plan a study in its lab: check everything that can be checked before the first trial."""

from __future__ import annotations

import math
import shlex
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sweeplab.data.corpora import user_files
from sweeplab.data.dataset import Dataset
from sweeplab.errors import BadInput, Problem
from sweeplab.formatting import bytes_in_words, several, several_named, without_password, yaml_text
from sweeplab.hyperparameters import AUTO, Hyperparameters
from sweeplab.lab.listing import read_trials
from sweeplab.permissions import (
    allow,
    allow_address,
    check_address,
    is_allowed,
    is_given,
    name_address,
    place_of,
)
from sweeplab.records.folders import StudyFolder
from sweeplab.study import plan
from sweeplab.study.inputs import (
    check_rows,
    check_start,
    describe_data,
    overlap_warnings,
    placed_dataset,
    read_start,
)
from sweeplab.study.plugins import check_imported
from sweeplab.study.problems import Location, dotted
from sweeplab.study.search import SearchSpec
from sweeplab.study.space import Cell, Space, cells, spaces_of
from sweeplab.study.spec import TABLE_SUFFIX, Algorithm, StudySpec
from sweeplab.sweep.measuring import (
    CORE_FLOPS,
    MOST_SHAPES,
    WORTH_SECONDS,
    BenchRow,
    Way,
    bench,
    fastest_stack,
    may_be_mixed,
    settled_dtype,
    stack_rates,
)
from sweeplab.sweep.remaining import Interval, Remaining
from sweeplab.sweep.timing import with_durations
from sweeplab.sweep.trials.warm_start import WarmStartSource, read_warm_starts
from sweeplab.tracking import mirror_in_words
from sweeplab.tracking.connection import artifact_location, database_file, planned_uri
from sweeplab.train.devices import free_memory_bytes, settle_devices
from sweeplab.train.program import compiling_pays
from sweeplab.train.run import ShapeKey, shape_key

# The samplers that learn from earlier trials.
LEARNING = ("tpe", "gp")
SHORT_CURE = "use fewer workers, a smaller batch_size or a larger grad_accum"


def make_plan(spec: StudySpec, lab: Path) -> tuple[plan.Plan, list[Cell], Dataset]:
    """Check a study against its data and this machine and return what it would do.

    Raises:
        BadInput: with every reason why the study cannot start.
    """
    check_imported(spec)
    folder = StudyFolder(lab, spec.name)
    dataset = _checked_dataset(spec, folder)
    found, excluded = cells(spec, dataset.sizes)
    spaces = spaces_of(spec, found, dataset.sizes)
    plan.check_grid_sampler(spec, spaces)
    samples = plan.sample_cells(spec, spaces)
    valid = [values for cell in samples for values in cell.valid]
    cut = check_rows(spec, dataset, valid)
    check_start(spec, read_start(spec), valid)
    plan.check_memory(spec, samples)
    plans = [plan.plan_cell(spec, cell) for cell in samples]
    data = describe_data(spec, dataset)
    sources = read_warm_starts(spec, folder, spaces, data)
    settled = settle_devices(valid[0], plan.has_cuda(spec.engine))
    n_copies = 2 if artifact_location(lab, planned_uri(lab, spec.track.uri)) else 1  # one is tracking's
    checkpoint_bytes = _checkpoint_bytes(spec, plans, n_copies, [cell.median for cell in samples])
    _check_disk(spec, folder, checkpoint_bytes, n_copies)
    workers = plan.worker_resources(spec, plans, settled.device)
    is_here = spec.engine.type == "local"
    shortage = plan.memory_shortage(plans, workers, settled.device) if is_here else ""
    dtype = settled.dtype
    if settled.device == "cpu" and is_here:
        plans = _compiled_here(spec, folder, samples, plans, dtype)
        if valid[0].dtype == AUTO:
            dtype = _dtype_here(folder, dataset, samples, plans, workers)
        if spec.engine.stack == AUTO:
            plans = _stacked_here(spec, dataset, samples, plans, dtype)
            workers = plan.worker_resources(spec, plans, settled.device)
    planned = plan.Plan(
        name=spec.name,
        cells=plans,
        excluded=[{**point, "reason": reason} for point, reason in excluded],
        warnings=[
            *plan.warnings(spec, samples),
            *cut,
            *([f"{shortage}: {SHORT_CURE}"] if shortage else []),
            *overlap_warnings(data),
            *_warm_start_warnings(spec, sources),
        ],
        **plan.totals(plans, spec.budget.trials_per_cell),
        device=settled.device,
        dtype=dtype,
        workers=workers,
        budget=spec.budget,
        sampler=_in_words(spec.sampler),
        pruner=_in_words(spec.pruner),
        metric=spec.objective.metric,
        data=data,
        checkpoint_bytes=checkpoint_bytes,
        warm_start=[plan.WarmStart(each.name, len(each.fitting), each.refused) for each in sources],
        reaches=[
            *(file for named in _reached(spec, lab).values() for file in named),
            *(place_of(address) for _, _, address in spec.addresses if not database_file(address)),
        ],
        mirror=mirror_in_words(spec.fixed),
        is_here=is_here,
    )
    return with_durations(planned, _typical(spaces), dataset, lab, may_time=False), found, dataset


def _dtype_here(
    folder: StudyFolder,
    dataset: Dataset,
    samples: Sequence[plan.Samples],
    plans: Sequence[plan.CellPlan],
    workers: Sequence[plan.WorkerResources],
) -> str:
    """Return a study's precision on this machine's CPU: the one that it began with, else the faster one.

    All of its trials share it; the cell with most FLOPs decides. With bfloat16, small products still use float32.
    """
    if folder.plan_file.exists():
        return str(folder.read(folder.plan_file)["dtype"])
    largest, planned = max(zip(samples, plans, strict=True), key=lambda each: each[1].train_flops)
    values = largest.median.replace(compile=planned.compile)
    train = dataset.training(values)
    return settled_dtype(values, train, dataset.val, planned.stack, workers[0].threads, len(workers))


def _compiled_here(
    spec: StudySpec,
    folder: StudyFolder,
    samples: Sequence[plan.Samples],
    plans: Sequence[plan.CellPlan],
    dtype: str,
) -> list[plan.CellPlan]:
    """Return the cells with `compile` set for this machine's CPU: as the study began, else where compiling pays off."""
    begun = folder.read(folder.plan_file)["cells"] if folder.plan_file.exists() else []
    known = {each["cell"]: bool(each.get("compile", False)) for each in begun}

    def compiles(cell: plan.Samples, planned: plan.CellPlan) -> bool:
        like = cell.median.replace(device="cpu", dtype=dtype, compile=True)
        if spec.fixed.get("compile", AUTO) != AUTO or len({shape_key(each) for each in cell.valid}) > 1:
            return planned.compile  # with several shapes, each would have to be compiled
        n_trials = planned.n_trials(spec.budget.trials_per_cell or 1)
        n_steps = n_trials * len(planned.seeds) * cell.median.max_iters
        return compiling_pays(like, n_steps)

    return [
        replace(each, compile=known.get(each.cell, compiles(cell, each)))
        for cell, each in zip(samples, plans, strict=True)
    ]


def _stacked_here(
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
    alone = plan.worker_resources(spec, [replace(each, stack=1) for each in plans], "cpu")
    n_runs: dict[frozenset[ShapeKey], float] = defaultdict(float)
    flops: dict[frozenset[ShapeKey], float] = defaultdict(float)
    shapes = [frozenset(map(shape_key, cell.valid)) for cell in samples]
    for shape, each in zip(shapes, plans, strict=True):
        per_cell = math.inf if budget.trials_per_cell is None else each.n_trials(budget.trials_per_cell)
        n_runs[shape] += per_cell * len(each.seeds)
        flops[shape] += each.train_flops * len(each.seeds)
    one_shape = [shape for shape in flops if len(shape) == 1]  # of several shapes each would have to be timed
    largest = sorted(one_shape, key=lambda shape: -flops[shape])[:MOST_SHAPES]

    def timed(cell: plan.Samples, planned: plan.CellPlan, shape: frozenset[ShapeKey]) -> plan.CellPlan:
        like = cell.median.replace(device="cpu", dtype=dtype, compile=planned.compile)
        machine = (len(alone), alone[0].threads)
        rates = stack_rates(like, dataset.training(like), dataset.val, *machine, n_runs[shape])
        if not rates:
            return planned
        stack = max(fastest_stack(rates), len(planned.seeds))
        fits = plan.stack_capacity(stack, like, len(planned.seeds), free_memory_bytes("cpu"))
        return replace(planned, stack=fits, stack_rates=rates)

    return [
        timed(*each) if each[-1] in largest else each[1] for each in zip(samples, plans, shapes, strict=True)
    ]


def bench_study(spec: StudySpec, lab: Path, again: bool = False) -> tuple[str, list[BenchRow]]:
    """Time the ways to train the cell with most of a study's FLOPs on this machine; return its key and the ways.

    `again` repeats measurements that are in the cache, and plans with the new ones.

    Raises:
        BadInput: the study cannot start, or does not train on this machine's CPU.
    """
    planned, _, dataset = make_plan(spec, lab)
    if planned.device != "cpu" or spec.engine.type != "local":
        raise BadInput(
            f"{spec.name} trains on {planned.device}, engine {spec.engine.type}; bench times this machine's CPU"
        )
    spaces = spaces_of(spec, cells(spec, planned.data.vocab_size)[0], planned.data.vocab_size)
    samples = {each.space.cell.key: each for each in plan.sample_cells(spec, spaces)}
    cell = max(planned.cells, key=lambda each: each.train_flops)
    values, threads = samples[cell.cell].median, planned.workers[0].threads
    taken = Way(len(planned.workers), threads, cell.stack, planned.dtype, cell.compile)
    own = {name: spec.fixed.get(name, AUTO) != AUTO for name in ("dtype", "compile")}
    timed = "by timed steps" if may_be_mixed(values) else "without matrix units or large products"
    why = [
        f"{several(taken.workers, 'worker')} of {several(threads, 'thread')}",
        f"a stack of {taken.stack}, {_why_stack(spec, cell)}",
        f"{taken.dtype}, {'as the study says' if own['dtype'] else timed}",
        f"{'compiled' if taken.compile else 'not compiled'}, "
        f"{'as the study says' if own['compile'] else 'by the number of planned steps'}",
    ]
    rows = bench(values, dataset.training(values), dataset.val, taken, "; ".join(why), again)
    # A step compiled for the first time, or new times, may change the plan.
    now = make_plan(spec, lab)[0]
    settled = [
        (each.dtype, [(cell.stack, cell.compile, cell.stack_rates) for cell in each.cells])
        for each in (now, planned)
    ]
    return (cell.cell, rows) if settled[0] == settled[1] else bench_study(spec, lab)


def _why_stack(spec: StudySpec, cell: plan.CellPlan) -> str:
    if spec.engine.stack != AUTO:
        return "as the study says"
    if not cell.stack_rates:
        return f"for {cell.n_params:,} parameters: timing other stacks could take longer than it saves"
    rates = ", ".join(f"{rate:,.4g} of {stack}" for stack, rate in cell.stack_rates.items())
    return f"by timed steps ({rates} trial-steps/s)"


@dataclass(frozen=True)
class Outlook:
    """A plan's outlook in its lab: the search ranges as the file writes them, trials done, and time still needed.

    `done` counts the trials that use up the budget already. `seconds` is the likeliest time that the rest takes, and
    below `low_seconds` and above `high_seconds` it is unlikely; `timed_by` says from what they come.
    """

    ranges: dict[str, Any]
    done: int
    seconds: float
    low_seconds: float
    high_seconds: float
    timed_by: str
    free_bytes: int

    @property
    def left(self) -> Interval:
        """Return the time that the rest takes."""
        return Interval(self.low_seconds, self.seconds, self.high_seconds)


def look_ahead(spec: StudySpec, planned: plan.Plan, lab: Path) -> Outlook:
    """Return a plan's outlook in its lab; if no time is known, time a few steps, which takes some seconds, once."""
    folder = StudyFolder(lab, spec.name)
    ended = [(each.cell, each.ending) for each in read_trials(folder)] if folder.has_started else []
    done = Counter(cell for cell, how in ended if how and how.outcome.counts_towards_budget)
    dataset = placed_dataset(spec)
    spaces = spaces_of(spec, cells(spec, dataset.sizes)[0], dataset.sizes)
    timed = with_durations(planned, _typical(spaces), dataset, lab, may_time=True)
    left = Remaining(timed, math.inf).left(0.0, done, folder.elapsed_seconds)
    return Outlook(
        ranges={name: _as_written(entry) for name, entry in spec.search.items()},
        done=sum(done.values()),
        seconds=left.likely,
        low_seconds=left.low,
        high_seconds=left.high,
        timed_by=timed.timed_by,
        free_bytes=shutil.disk_usage(_existing(folder.path)).free,
    )


def _typical(spaces: Sequence[Space]) -> dict[str, Hyperparameters]:
    return {space.cell.key: space.typical for space in spaces}


def _as_written(entry: SearchSpec) -> Any:
    said = entry.written()
    return said["choices"] if said.keys() == {"choices"} else said


def check_reach(spec: StudySpec, lab: Path) -> None:
    """Refuse paths and addresses outside of the study file's folder and the lab that only a file names, and name them.

    The file, or the lab of a study that is continued, may come from somebody else. Allowed is what the command line
    names, and what it named for an earlier run, which is remembered: a file together with the addresses to which what
    is learned from it goes.

    Raises:
        BadInput: with every place of the file that names such a path or address.
    """
    goes_to = ("->", *(place_of(address) for _, _, address in spec.addresses))
    problems: list[Problem] = []
    for place, named in _reached(spec, lab).items():
        is_named = spec.source is None or spec.is_overridden(place)
        if named and not is_named and not is_allowed(*named, *goes_to):
            name, value = dotted(place), spec.as_written()[str(place[0])]
            value = value[str(place[1])] if isinstance(value, dict) else value
            said = shlex.quote(f"{name}={value if isinstance(value, str) else yaml_text(value)}")
            what = f"{name} names {several_named(named)}, outside of this file's folder and of the lab"
            problems.append(spec.problem(place, what, f"-o {said}, by which you allow it"))
    for place, kind, address in spec.addresses:
        if spec.source is None or spec.is_overridden(place):
            name_address(address)
        try:
            _check_tracking(lab, spec.track.uri)
        except BadInput:  # said with all else that is wrong, when the study is planned
            continue
        try:
            with spec.blaming(place):
                if not database_file(address):
                    check_address(kind, address)
        except BadInput as error:
            problems += error.problems
    if problems:
        raise BadInput(*problems)
    # From the lab the study goes on without its file's folder.
    for named in (*_reached(spec, lab).values(), *_reached(spec, lab, in_folder=False).values()):
        if named:
            allow(*named, *goes_to)
    for _, kind, address in spec.addresses:
        if database_file(address) or is_given(kind, address):
            allow_address(kind, address)


def _reached(spec: StudySpec, lab: Path, in_folder: bool = True) -> dict[Location, list[str]]:
    """Return the files outside of the lab, by the key that names them; with `in_folder` without the study file's."""
    folder = [spec.source.absolute().parent] if spec.source and in_folder else []
    own = [each.resolve() for each in (lab, *folder)]
    start, database = spec.init_folder, database_file(spec.track.uri or "")
    files: dict[Location, Sequence[Path]] = {("data", "path"): ()}
    with suppress(BadInput):  # said of the data, with its place
        files["data", "path"] = user_files(spec.data_path) if spec.data_path else ()
    files |= {
        ("init_from",): (start / "model.json",) if start else (),
        ("warm_start",): [Path(each) for each in spec.warm_starts if each.endswith(TABLE_SUFFIX)],
        ("track", "uri"): [database] if database else [],
    }
    found: dict[Location, list[str]] = {}
    for place, named in files.items():
        resolved = dict.fromkeys(each.resolve() for each in named)
        found[place] = [str(each) for each in resolved if not any(map(each.is_relative_to, own))]
    return found


def _warm_start_warnings(spec: StudySpec, sources: Sequence[WarmStartSource]) -> list[str]:
    found = [f"warm start: of {source.name}, {each}" for source in sources for each in source.refused]
    if sources and spec.sampler.type not in LEARNING:
        learning = ", ".join(LEARNING)
        found.append(f"warm start: sampler {spec.sampler.type} learns nothing from it; {learning} do")
    return found


def _checked_dataset(spec: StudySpec, folder: StudyFolder) -> Dataset:
    """Check that this machine has what the study needs, and return its data; report all problems at once."""
    problems: list[Problem] = []
    place = spec.place_of("device", "cuda")
    if place and "cuda" in spec.devices and not plan.has_cuda(spec.engine):
        where = "here" if spec.engine.type == "local" else "for its workers: engine.gpus_per_worker is 0"
        what = f"device is cuda, but there is no CUDA device {where}"
        problems.append(spec.problem(place, what, "cpu, or auto for the best that a machine has"))
    try:
        with spec.blaming(("track", "uri") if spec.track.uri else None):
            _check_tracking(folder.lab, spec.track.uri)
    except BadInput as error:
        problems += error.problems
    try:
        tempfile.TemporaryFile(dir=_existing(folder.path)).close()  # leaves nothing behind
    except OSError as error:
        what = f"{folder.lab} cannot be written ({error.strerror or error})"
        problems.append(Problem(f"{what}; --lab or SWEEPLAB_LAB name another folder"))
    try:
        dataset = placed_dataset(spec)
    except BadInput as error:
        problems += error.problems
    if problems:
        raise BadInput(*problems)
    return dataset


def _check_tracking(lab: Path, uri: str | None) -> None:
    if uri and uri != without_password(uri):
        what = "track.uri contains a password, which the lab and tracking would store"
        allowed = "an address without a password; MLFLOW_TRACKING_URI may give the same address with it"
        raise BadInput(Problem(what, allowed))
    planned_uri(lab, uri)


def _checkpoint_bytes(
    spec: StudySpec, plans: Sequence[plan.CellPlan], n_copies: int, typical: Sequence[Hyperparameters]
) -> int:
    """Return the disk space in bytes of all checkpoints and pruned trials' snapshots, and of snapshots while training.

    A snapshot is four times the size of the weights, and a training run has two snapshots.
    """

    def n_values(per_cell: int) -> int:
        return sum(each.n_params * each.n_trials(per_cell) * len(each.seeds) for each in plans)

    per_cell = spec.budget.trials_per_cell or 1
    n_kept = n_copies if spec.track.checkpoints != "none" else 0
    models = sum(each.n_params for each in plans) if n_kept > 1 else 0  # of each cell's best run, in tracking
    if spec.track.checkpoints == "all":  # plus the series of checkpoints, which stays in the lab
        n_kept += max(2 + like.max_iters // max(like.save_interval, like.eval_interval) for like in typical)
    checkpoints = n_kept * n_values(per_cell) + models
    pruned = 0 if spec.pruner.type == "none" else n_values(min(per_cell, spec.track.snapshots))
    return 4 * (checkpoints + 4 * pruned + 2 * 4 * max(each.n_params for each in plans))


def _check_disk(spec: StudySpec, folder: StudyFolder, needed: int, n_copies: int) -> None:
    kept = sum(file.stat().st_size for file in folder.path.glob("runs/*/*/*/*.safetensors"))
    free, missing = shutil.disk_usage(_existing(folder.path)).free, needed - n_copies * kept
    if free < missing:
        what = f"has {bytes_in_words(free)} of free space, checkpoints need {bytes_in_words(missing)}"
        keep = "" if spec.track.checkpoints == "none" else "track: {checkpoints: none} keeps none, "
        cure = f"{keep}--lab or SWEEPLAB_LAB name another folder"
        raise BadInput(f"{folder.lab} {what}; {cure}")


def _existing(path: Path) -> Path:
    return next(each for each in (path, *path.parents) if each.exists())


def _in_words(algorithm: Algorithm) -> str:
    options = ", ".join(f"{key}={value}" for key, value in algorithm.options.items())
    return f"{algorithm.type}({options})" if options else algorithm.type
