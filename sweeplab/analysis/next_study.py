"""A study's next runs: its cells and larger ones as candidates, and the study that grows by the chosen ones."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from sweeplab.analysis.studies import run_to_come, sizes_of
from sweeplab.data import Sizes
from sweeplab.errors import BadInput
from sweeplab.formatting import several
from sweeplab.hyperparameters import AUTO
from sweeplab.laws.columns import COUNTS, PLAIN, Counting
from sweeplab.laws.next_runs import Candidates

if TYPE_CHECKING:
    from sweeplab.lab.studies import Done
    from sweeplab.laws.points import Points
    from sweeplab.records.folders import StudyFolder
    from sweeplab.study.spec import StudySpec

AXES = ("n_layer", "n_embd", "block_size", "batch_size", "max_iters")
MOST = 2_000  # candidates
STEPS_UP = 3  # beyond the study's largest value of an axis, as far apart as its values are


def study_candidates(folder: StudyFolder, counting: Counting, points: Points) -> Candidates:
    """Return the cells of a study, those between them and larger ones; of the points' depth where they have one."""
    depths = sorted(
        {round(depth) for depth in points.columns.get("n_layer", ()) if depth == depth}
    )
    return cell_candidates(candidate_study(folder, depths), folder.data.sizes, counting)


def grow_by_law(folder: StudyFolder) -> Done:
    """Add to a study the runs, on further seeds or of further sizes, that tell most about its law.

    They take half of the FLOPs that its points took.

    Raises:
        BadInput: the study is running, or its points are too few for a law.
    """
    from sweeplab.analysis.studies import read_studies
    from sweeplab.laws.assessment import assess, law_for
    from sweeplab.laws.next_runs import next_runs
    from sweeplab.sweep.steering import grow

    points = read_studies(folder.lab, [folder.name]).points()
    assessed = assess(points, law_for(points, AUTO))
    chosen = next_runs(assessed, study_candidates(folder, PLAIN, assessed.points)).as_dict()
    half = chosen["half_width"]
    sign = "within a factor" if half["is_factor"] else "to about +-"
    runs = [(run["cell"], run["times"]) for run in chosen["runs"]]
    return grow(folder, runs, f"{chosen['quantity']} {sign}{half['then']:.2g}")


def candidate_study(folder: StudyFolder, depths: Sequence[int] = ()) -> StudySpec:
    """Return a study with the grid of candidates, and as many seeds as every cell of it has.

    The grid has the study's own sizes and lengths with values between and above; of `depths` only one, it has that one.

    Raises:
        BadInput: there is nothing to vary, or there are too many cells.
    """
    from sweeplab.lab.listing import read_spec
    from sweeplab.study.file.reading import read_study
    from sweeplab.study.spec import DEFAULT_TRIALS_PER_CELL, ConditionalSeed

    spec = read_spec(folder)
    grid = {name: _extended(spec.grid[name]) for name in AXES if name in spec.grid}
    if len(depths) == 1 and "n_layer" in grid:
        grid["n_layer"] = list(depths)
    if not grid:
        raise BadInput(f"the grid of {spec.name} has no size to vary")
    count = math.prod(len(values) for values in (spec.grid | grid).values())
    if count > MOST:
        raise BadInput(f"{several(count, 'cell')} are too many: at most {MOST:,}")
    each_cell = sum(not isinstance(each, ConditionalSeed) for each in spec.seeds)
    trials = spec.budget.trials_per_cell or (DEFAULT_TRIALS_PER_CELL if spec.search else 1)
    overrides = [f"grid.{name}={json.dumps(values)}" for name, values in grid.items()]
    overrides.append(f"seeds={[*range(each_cell)]}")
    overrides.append(f"budget={json.dumps({'trials_per_cell': trials})}")
    return read_study(folder.canonical_file, overrides)


def cell_candidates(spec: StudySpec, sizes: Sizes, counting: Counting) -> Candidates:
    """Return the cells of a study with N, D and C counted like the points, and the FLOPs of all runs of each.

    Cells whose size depends on what is searched are left out.

    Raises:
        BadInput: no cell is left; a column that is unknown before a run has ended.
    """
    from sweeplab.study.space import spaces_of

    rows, kept = [], []
    for space in spaces_of(spec, sizes)[0]:
        run = run_to_come(space)
        if run:
            rows.append(run)
            kept.append(space.cell.values)
    if not rows:
        raise BadInput(f"no cell of {spec.name} has a size before its trials are sampled")
    counted = sizes_of(rows, counting)
    columns = {role: np.array([each[role] for each in counted]) for role in COUNTS}
    runs = len(spec.seeds) * (spec.budget.trials_per_cell or 1)
    cost = runs * np.array([float(row["train_flops"]) for row in rows])
    return Candidates(columns, cost, tuple(kept), weight=len(spec.seeds))


def _extended(values: Iterable[int]) -> list[int]:
    """An axis with a value between each two and some above the last, all multiples of their common divisor."""
    distinct = sorted(set(values))
    if len(distinct) < 2:
        return distinct
    unit = math.gcd(*distinct)
    step = (distinct[-1] / distinct[0]) ** (1 / (len(distinct) - 1))
    between = [math.sqrt(low * high) for low, high in pairwise(distinct)]
    above = [distinct[-1] * step**power for power in range(1, STEPS_UP + 1)]
    return sorted(
        {*distinct, *(max(unit, round(each / unit) * unit) for each in (*between, *above))}
    )
