"""What is forecast: a point that a person names, or every cell of a study file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sweeplab.analysis.ledger.digest import study_digest
from sweeplab.analysis.ledger.sizes import Counting, same_point, sizes_of
from sweeplab.analysis.points import Points
from sweeplab.errors import BadInput

if TYPE_CHECKING:
    from sweeplab.study.spec import StudySpec

_DRAWS = 64  # of a cell's space, to see whether its size depends on what is searched


@dataclass(frozen=True)
class Place:
    """The studies that a run may belong to, with the digest of each, and how their runs are counted."""

    studies: Mapping[str, str]
    counting: Counting


@dataclass(frozen=True)
class Target:
    """A point to forecast, by role; where its run will be, if it is a study's, and the cells that are there.

    `seeds` is of how many runs the loss will be the mean.
    """

    at: Mapping[str, float]
    place: Place | None = None
    cells: tuple[str, ...] = ()
    seeds: int = 1

    @property
    def words(self) -> str:
        """Return the point as a person reads it."""
        roles = [role for role in ("params", "tokens") if role in self.at] or ["flops"]
        numbers = ", ".join(f"{role} {self.at[role]:.6g}" for role in roles)
        return f"{self.cells[0]} ({numbers})" if self.cells else numbers


@dataclass(frozen=True)
class CellTargets:
    """The cells of a study file as targets, and why others are none, by cell."""

    targets: tuple[Target, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)


def point_target(points: Points, asked: Mapping[str, float | None], place: Place | None) -> Target:
    """Return the target that a person names by its numbers; C is that of the table's rows unless it is given.

    Raises:
        BadInput: a number that is not positive; a study's run that is not named by both N and D.
    """
    at = {role: float(number) for role, number in asked.items() if number is not None}
    wrong = [
        f"--{role} {number:g} is no size of a run; it takes a positive number"
        for role, number in at.items()
        if not 0 < number < math.inf
    ]
    if not wrong and place and not {"params", "tokens"} <= at.keys():
        wrong.append("which run of the study? --params and --tokens together say it, or --study FILE")
    if not wrong and not at:
        wrong.append("which run? --params and --tokens say it, or --study FILE")
    if wrong:
        raise BadInput(*wrong)
    if "flops" not in at and {"params", "tokens"} <= at.keys() & points.columns.keys():
        at["flops"] = points.flops_per_param_token * at["params"] * at["tokens"]
    return Target(at, place, seeds=round(float(np.median(points.weights))))


def cell_targets(spec: StudySpec, lab: Path, counting: Counting) -> CellTargets:
    """Return the points of a study's cells; left out are those whose size is known only once a trial is sampled.

    Cells that differ only in what is tuned, such as the learning rate, are one point: the law is of the best.

    Raises:
        BadInput: the study could not start, or another of its name stands in the lab.
    """
    from sweeplab.lab.identity import check_same_study
    from sweeplab.records.folders import StudyFolder
    from sweeplab.study.plan import make_plan
    from sweeplab.study.space import Space, facts

    plan, cells, dataset = make_plan(spec, lab)
    check_same_study(spec, StudyFolder(lab, spec.name), plan.data)
    place = Place({spec.name: study_digest(spec, plan.data["text_digest"])}, counting)
    targets: list[Target] = []
    left_out = {}
    for cell in cells:
        space = Space(spec, cell, dataset.tokenizer.vocab_size)
        drawn = space.draws(_DRAWS if space.parameters else 1)
        sizes = sizes_of([each | facts(each) for each in drawn if space.broken(each) is None], counting)
        varying = [role for role in sizes[0] if len({each[role] for each in sizes}) > 1] if sizes else []
        if not sizes or varying:
            left_out[cell.key] = (
                f"its {' and '.join(varying) or 'size'} is known only once a trial is sampled"
            )
            continue
        new = Target(sizes[0], place, (cell.key,), len(space.seeds))
        at = next((k for k, known in enumerate(targets) if same_point(known.at, new.at)), None)
        if at is None:
            targets.append(new)
        else:
            cells_there = (*targets[at].cells, cell.key)
            targets[at] = Target(new.at, place, cells_there, min(new.seeds, targets[at].seeds))
    return CellTargets(tuple(targets), left_out)
