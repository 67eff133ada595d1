"""Plan a study in its lab: check everything that can be checked before the first trial."""

from __future__ import annotations

import math
import shlex
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from sweeplab.data.corpora import user_files
from sweeplab.data.dataset import Dataset
from sweeplab.errors import BadInput, Problem
from sweeplab.formatting import bytes_in_words, several, several_named, without_password, yaml_text
from sweeplab.hyperparameters import AUTO, Hyperparameters
from sweeplab.lab.listing import read_trials, study_names
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import RunFolder
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
from sweeplab.study.problems import dotted
from sweeplab.study.search import SearchSpec
from sweeplab.study.space import Cell, cells, spaces_of
from sweeplab.study.spec import TABLE_SUFFIX, Algorithm, StudySpec
from sweeplab.sweep.measuring import (
    CORE_FLOPS,
    MOST_SHAPES,
    WORTH_SECONDS,
    BenchRow,
    Timed,
    Way,
    all_measured,
    bench,
    fastest_stack,
    known_seconds,
    may_be_mixed,
    settled_dtype,
    stack_rates,
)
from sweeplab.sweep.trials.warm_start import WarmStartSource, read_warm_starts
from sweeplab.tracking import mirror_in_words
from sweeplab.tracking.connection import artifact_location, database_file, tracking_uri
from sweeplab.train.devices import free_memory_bytes, settle_devices
from sweeplab.train.program import compiling_pays
from sweeplab.train.run import ShapeKey, row_flops, shape_key

# The samplers that learn from earlier trials.
LEARNING = ("tpe", "gp")
# How many earlier runs are needed to estimate a study's duration, and how many are read at most.
FEWEST_RUNS, MOST_RUNS = 3, 200
# A plan times no stack whose step has more FLOPs: a dozen such steps, and starting, take some 4 s.
MOST_PLANNED_FLOPS = 5e9
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
    n_copies = 2 if artifact_location(lab, tracking_uri(lab, spec.track.uri)) else 1  # one is tracking's
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
        reaches=[what for named in _reached(spec, lab).values() for what in named],
        mirror=mirror_in_words(spec.fixed),
    )
    return planned, found, dataset


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
    is_planned = (now.dtype, now.cells) == (planned.dtype, planned.cells)
    return (cell.cell, rows) if is_planned else bench_study(spec, lab)


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

    `done` counts the trials that use up the budget already. `seconds` estimates the remaining time: from `n_known`
    earlier runs of the lab on the same kind of device, or, if these are too few, from timed steps of `n_timed` cells,
    the smallest and the largest; None if neither is available, or if only time or FLOPs limit the study.
    """

    ranges: dict[str, Any]
    done: int
    seconds: float | None
    n_known: int
    free_bytes: int
    n_timed: int = 0


def look_ahead(spec: StudySpec, planned: plan.Plan, lab: Path) -> Outlook:
    """Return a plan's outlook in its lab."""
    folder = StudyFolder(lab, spec.name)
    ended = [(each.cell, each.ending) for each in read_trials(folder)] if folder.has_started else []
    done = Counter(cell for cell, how in ended if how and how.outcome.counts_towards_budget)
    names = sorted(study_names(lab), key=lambda name: name != spec.name)
    known, at_once = _earlier_runs(lab, names, planned.device, len(planned.workers))
    seconds, n_timed = None, 0
    if len(known) >= FEWEST_RUNS:
        seconds = _seconds_left(planned, done, known, at_once)
    elif planned.device == "cpu" and spec.engine.type == "local":
        seconds, n_timed = _timed_seconds(spec, planned, done)
    return Outlook(
        ranges={name: _as_written(entry) for name, entry in spec.search.items()},
        done=sum(done.values()),
        seconds=seconds,
        n_known=len(known),
        free_bytes=shutil.disk_usage(_existing(folder.path)).free,
        n_timed=n_timed,
    )


def _as_written(entry: SearchSpec) -> Any:
    said = entry.written()
    return said["choices"] if said.keys() == {"choices"} else said


def _earlier_runs(
    lab: Path, names: Sequence[str], device: str, n_workers: int
) -> tuple[list[tuple[float, float]], float]:
    """Return FLOPs and seconds of the lab's runs, and how many runs this number of workers trains at once.

    A run's seconds are its stack's: the other runs of the stack trained in the same time.
    """
    found: list[tuple[float, float]] = []
    trained = elapsed = 0.0
    for name in names:
        folder = StudyFolder(lab, name)
        if len(found) >= MOST_RUNS:
            break
        try:
            started = folder.read(folder.plan_file)
            ended = (RunFolder(file.parent).read_end() for file in islice(_ends(folder), MOST_RUNS))
            ends = [end for end in ended if end]
            if started["device"] != device or not ends:
                continue
            own = [(end.train_flops, end.wall_seconds) for end in ends]
            elapsed += folder.elapsed_seconds * len(started["workers"]) / n_workers
        except (BadInput, OSError, ValueError, KeyError, TypeError):
            continue  # `doctor` reports what is wrong with it
        trained += sum(seconds for _, seconds in own)
        found += [(flops, seconds) for flops, seconds in own if flops > 0 and seconds > 0]
    return found, max(1.0, trained / elapsed) if elapsed else 1.0


def _ends(folder: StudyFolder) -> Iterator[Path]:
    return folder.path.glob("runs/*/*/end.json")


def _seconds_left(
    planned: plan.Plan, done: Mapping[str, int], known: Sequence[tuple[float, float]], at_once: float
) -> float | None:
    """Return how long the remaining trials take: each at the median speed of the earlier runs nearest in FLOPs."""

    def of_run(cell: plan.CellPlan) -> float:
        near = sorted(known, key=lambda run: abs(math.log(run[0] / cell.train_flops)))[:FEWEST_RUNS]
        return cell.train_flops * median(seconds / flops for flops, seconds in near) / at_once

    return _of_what_is_left(planned, done, of_run)


def _of_what_is_left(
    planned: plan.Plan, done: Mapping[str, int], of_run: Callable[[plan.CellPlan], float]
) -> float | None:
    """Return how long the remaining runs take, from the time of one run per cell; at most the budget's time."""
    per_cell, limit = planned.budget.trials_per_cell, planned.budget.time
    if per_cell is None:
        return None
    left = (
        max(0, each.n_trials(per_cell) - done.get(each.cell, 0)) * len(each.seeds) for each in planned.cells
    )
    total = sum(count * of_run(cell) for count, cell in zip(left, planned.cells, strict=True))
    return min(total, math.inf if limit is None else limit)


def _timed_seconds(spec: StudySpec, planned: plan.Plan, done: Mapping[str, int]) -> tuple[float | None, int]:
    """Estimate how long the remaining trials take from timed steps; return it, and the number of cells timed.

    A step's time is assumed linear in its FLOPs between the smallest and the largest cell; evaluating a token takes a
    third of the FLOPs of training on it. Steps that take long, or have to be compiled first, are only looked up:
    `study bench` times them.
    """
    per_cell = planned.budget.trials_per_cell
    if per_cell is None:
        return None, 0
    dataset = placed_dataset(spec)
    spaces = spaces_of(spec, cells(spec, dataset.sizes)[0], dataset.sizes)
    typical = {space.cell.key: space.typical for space in spaces}
    flops = {key: row_flops(values) * values.batch_size for key, values in typical.items()}
    by_flops = sorted(planned.cells, key=lambda each: flops[each.cell])
    jobs = []
    for cell in {each.cell: each for each in (by_flops[0], by_flops[-1])}.values():
        values = typical[cell.cell]
        stack = min(cell.stack, cell.n_trials(per_cell) * len(cell.seeds))
        ways = [
            Way(len(planned.workers), planned.workers[0].threads, stack, planned.dtype, compiled)
            for compiled in dict.fromkeys((cell.compile, False))
        ]
        known = [way for way in ways if known_seconds(values, way) is not None]
        if not known and stack * flops[cell.cell] > MOST_PLANNED_FLOPS:
            return None, 0
        jobs.append(Timed(values, dataset.training(values), (known or ways[-1:])[0]))
    try:
        took = all_measured(jobs, dataset.val)
    except RuntimeError:  # such as for a plugin's activation, which the timing processes do not know
        return None, 0
    least, most = flops[by_flops[0].cell], flops[by_flops[-1].cell]
    slope = (took[-1] - took[0]) / (most - least) if len(jobs) > 1 and most > least else 0.0

    def of_run(cell: plan.CellPlan) -> float:
        values, n_val = typical[cell.cell], planned.data.val_tokens
        n_tokens = min(n_val, values.evaluated_tokens or n_val) * (2 if values.eval_train else 1)
        n_evaluated = n_tokens * (1 + values.max_iters // values.eval_interval)
        n_steps = values.max_iters + n_evaluated / 3 / (values.batch_size * values.block_size)
        return n_steps * (took[0] + slope * (flops[cell.cell] - least))

    return _of_what_is_left(planned, done, of_run), len(jobs)


def check_reach(spec: StudySpec, lab: Path) -> None:
    """Refuse paths and addresses outside of the study file's folder and the lab that only the study file names.

    The file may come from somebody else: data that it names goes into checkpoints, and these are sent to the tracking
    that it names. Allowed is what the command line names, and what a study of this lab was run with before.

    Raises:
        BadInput: with every place of the file that names such a path or address.
    """
    # Without a file, or with that of a study that was run, there is nothing to refuse.
    if spec.source in (None, StudyFolder(lab, spec.name).canonical_file):
        return
    problems = []
    studies = [StudyFolder(lab, name) for name in study_names(lab)]
    plans = [each.read(each.plan_file) for each in studies if each.plan_file.exists()]
    known = {what for each in plans for what in each.get("reaches", ())}
    for place, named in _reached(spec, lab).items():
        new = [what for what in named if what not in known and Path(what).is_absolute()]
        if new and not spec.is_overridden(place):
            name, value = dotted(place), spec.as_written()[place[0]]
            value = value[place[1]] if isinstance(value, dict) else value
            said = shlex.quote(f"{name}={value if isinstance(value, str) else yaml_text(value)}")
            what = f"{name} names {several_named(new)}, outside of this file's folder and of the lab"
            problems.append(spec.problem(place, what, f"-o {said}, by which you allow it"))
    if problems:
        raise BadInput(*problems)


def _reached(spec: StudySpec, lab: Path) -> dict[tuple[str, ...], list[str]]:
    """Return the paths and addresses outside of the study file's folder and the lab, by the key that names them."""
    own = [each.resolve() for each in (lab, *([spec.source.absolute().parent] if spec.source else ()))]
    start, uri = spec.init_folder, spec.track.uri
    files: dict[tuple[str, ...], Sequence[Path]] = {
        ("data", "path"): user_files(spec.data_path) if spec.data_path else (),
        ("init_from",): (start / "model.json",) if start else (),
        ("warm_start",): [Path(each) for each in spec.warm_starts if each.endswith(TABLE_SUFFIX)],
    }
    found: dict[tuple[str, ...], list[str]] = {}
    database = database_file(uri) if uri else None
    if database:
        files["track", "uri"] = (database,)
    elif uri:
        found["track", "uri"] = [without_password(uri)]
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
            _check_without_password(spec.track.uri or "")
            tracking_uri(folder.lab, spec.track.uri)
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


def _check_without_password(uri: str) -> None:
    if uri != without_password(uri):
        what = "track.uri contains a password, which the lab and tracking would store"
        allowed = "an address without a password; MLFLOW_TRACKING_URI may give the same address with it"
        raise BadInput(Problem(what, allowed))


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
