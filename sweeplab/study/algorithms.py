"""How a study's sampler and pruner are settled: defaults that follow from its budget and its evaluation interval.

They are how many of a cell's trials are spread evenly before a sampler models them, and at which iterations a halving
pruner decides.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from sweeplab.errors import BadInput
from sweeplab.hyperparameters import AUTO, is_number
from sweeplab.study.options import JOINT, PROMOTE, PRUNERS, SAMPLERS, Pruner, Sampler, as_written, build
from sweeplab.study.problems import Problems
from sweeplab.study.spec import StudySpec
from sweeplab.study.values import Choices, Range, SearchSpec, stored_values

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

    from sweeplab.study.space import Space


# At most this share of a cell's trials is spread evenly, before the sampler models their results.
STARTUP_SHARE = 0.25
JOINT_STARTUP = 2
# Halving first decides when this share of a run's iterations is done, rounded up to an evaluation.
FIRST_RUNG_SHARE = 0.2


def settled_sampler(spec: StudySpec) -> Sampler:
    """Return a study's sampler, chosen where it is `auto`."""
    if spec.sampler.type != AUTO:
        return spec.sampler
    has_cells = _n_points(spec) > 1 and any(map(_has_numbers, spec.search.values()))
    return Sampler(type=JOINT if has_cells else "tpe", options=spec.sampler.options)


def _has_numbers(entry: SearchSpec) -> bool:
    if isinstance(entry, Choices):
        return all(map(is_number, entry.values))
    return isinstance(entry, Range)


def _n_points(spec: StudySpec) -> int:
    return max(1, len(spec.cells)) * math.prod(map(len, spec.grid.values()))


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
        return max(1, min(math.ceil(shared / _n_points(spec)), (trials_per_cell or shared) // 2))
    defaults = SAMPLERS[sampler.type].optuna_defaults
    most = int(defaults.get(name, 0))
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

        return AskedGrid({name: [*stored_values(each)] for name, each in space.parameters.items()}, cell_seed)
    if sampler.type == "qmc":
        seed = cell_seed
    unasked: dict[str, Any] = {"seed": seed}
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
    if problems.found:
        raise BadInput(*problems.found)
    return spec.model_copy(update=changed)
