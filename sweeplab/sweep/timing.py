"""How long each run of a plan takes: by earlier runs of the lab, by timed steps, or by FLOPs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import median

from sweeplab.data.dataset import Dataset
from sweeplab.errors import BadInput
from sweeplab.formatting import several
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.lab.listing import study_names
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import RunFolder
from sweeplab.study.plan import CellPlan, Plan
from sweeplab.sweep.measuring import Product, Timed, Way, all_measured, known_seconds
from sweeplab.train.run import row_flops

# How many earlier runs are needed to estimate a study's duration, and how many are read at most.
FEWEST_RUNS, MOST_RUNS = 3, 200
# A run tells how long others take if their FLOPs are within this factor: in a smaller one most time is overhead.
LIKE = 4.0
# The standard deviations of the logarithm of a run's duration: by earlier runs, by timed steps, and by a timed product
# of matrices; of the last, steps reach about this share.
BY_RUNS, BY_STEPS, BY_PRODUCT, SHARE_OF_PRODUCT = 0.3, 0.35, 0.6, 0.4
# A plan times no stack whose step has more FLOPs, but a product of matrices: a dozen such steps, and starting, take
# some 4 s.
MOST_PLANNED_FLOPS = 5e9


def with_durations(
    planned: Plan, typical: Mapping[str, Hyperparameters], dataset: Dataset, lab: Path, may_time: bool
) -> Plan:
    """Return the plan with the seconds by which a run of each cell prolongs the study.

    They come from earlier runs of about as many FLOPs on the same kind of device, the study's own first; else from
    steps of the smallest and of the largest cell, of which new ones are timed only where that `may_time` and takes
    seconds, else from a timed product of matrices. Where nothing is measured FLOPs alone tell, roughly.
    """
    names = sorted(study_names(lab), key=lambda name: name != planned.name)
    known, at_once = _earlier_runs(lab, names, planned.device, len(planned.workers))
    if len(known) >= FEWEST_RUNS and all(_has_like(cell, known) for cell in planned.cells):
        by = f"{several(len(known), 'earlier run')} of this lab"
        return _with(planned, by, BY_RUNS, lambda cell: _as_earlier(cell, known) / at_once)
    if planned.device != "cpu" or not planned.is_here:
        return planned
    return _by_steps(planned, typical, dataset, may_time) or (
        _by_product(planned, typical, dataset) if may_time else planned
    )


def _with(planned: Plan, by: str, spread: float, seconds: Callable[[CellPlan], float]) -> Plan:
    cells = [replace(cell, run_seconds=seconds(cell)) for cell in planned.cells]
    return replace(planned, cells=cells, timed_by=by, spread=spread)


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


def _has_like(cell: CellPlan, known: Sequence[tuple[float, float]]) -> bool:
    return any(1 / LIKE <= flops / cell.train_flops <= LIKE for flops, _ in known)


def _as_earlier(cell: CellPlan, known: Sequence[tuple[float, float]]) -> float:
    """Return the seconds of a run at the median speed of the earlier runs nearest in FLOPs."""
    near = sorted(known, key=lambda run: abs(math.log(run[0] / cell.train_flops)))[:FEWEST_RUNS]
    return cell.train_flops * median(seconds / flops for flops, seconds in near)


def _by_steps(
    planned: Plan, typical: Mapping[str, Hyperparameters], dataset: Dataset, may_time: bool
) -> Plan | None:
    """Return the plan by timed steps; None where they take long, have to be compiled first or may not be timed.

    A step's time is assumed linear in its FLOPs between the smallest and the largest cell; evaluating a token takes a
    third of the FLOPs of training on it.
    """
    flops = {key: row_flops(values) * values.batch_size for key, values in typical.items()}
    by_flops = sorted(planned.cells, key=lambda cell: flops[cell.cell])
    per_cell = planned.budget.trials_per_cell or max(cell.stack for cell in planned.cells)
    jobs = []
    for cell in {cell.cell: cell for cell in (by_flops[0], by_flops[-1])}.values():
        values, stack = typical[cell.cell], min(cell.stack, cell.n_trials(per_cell) * len(cell.seeds))
        ways = [
            Way(len(planned.workers), planned.workers[0].threads, stack, planned.dtype, compiled)
            for compiled in dict.fromkeys((cell.compile, False))
        ]
        known = [way for way in ways if known_seconds(values, way) is not None]
        if not known and not (may_time and stack * flops[cell.cell] <= MOST_PLANNED_FLOPS):
            return None
        jobs.append(Timed(values, dataset.training(values), (known or ways[-1:])[0]))
    try:
        took = all_measured(jobs, dataset.val)
    except RuntimeError:  # such as for a plugin's activation, which the timing processes do not know
        return None
    least, most = flops[by_flops[0].cell], flops[by_flops[-1].cell]
    slope = (took[-1] - took[0]) / (most - least) if len(jobs) > 1 and most > least else 0.0

    def seconds(cell: CellPlan) -> float:
        values, n_val = typical[cell.cell], planned.data.val_tokens
        n_tokens = min(n_val, values.evaluated_tokens or n_val) * (2 if values.eval_train else 1)
        n_evaluated = n_tokens * (1 + values.max_iters // values.eval_interval)
        n_steps = values.max_iters + n_evaluated / 3 / (values.batch_size * values.block_size)
        rate = cell.stack_rates.get(cell.stack)
        return n_steps * (1 / rate if rate else took[0] + slope * (flops[cell.cell] - least))

    return _with(planned, f"timed steps of {several(len(jobs), 'cell')}", BY_STEPS, seconds)


def _by_product(planned: Plan, typical: Mapping[str, Hyperparameters], dataset: Dataset) -> Plan:
    """Return the plan by the FLOPs of its runs and the rate at which all workers multiply large matrices."""
    values = next(iter(typical.values()))
    product = Product(len(planned.workers), planned.workers[0].threads, planned.dtype)
    (seconds,) = all_measured([Timed(values, dataset.training(values), product)], dataset.val)
    per_flop = seconds / (2 * product.size**3 * SHARE_OF_PRODUCT)
    by = "FLOPs and a timed product of matrices, roughly; study bench times steps"
    return _with(planned, by, BY_PRODUCT, lambda cell: cell.train_flops * per_flop)
