"""What a plan refuses of a training's choices, and how many tokens are counted of one."""

import pytest
from tiny_study import study_of_parts

from sweeplab.errors import BadInput
from sweeplab.study.space import cells
from sweeplab.study.spec import Budget
from sweeplab.sweep.loop import Loop
from sweeplab.train.optimizers import OPTIMIZERS
from sweeplab.train.run import MUP_OPTIMIZERS, train_tokens


def points(**parts) -> list[dict]:
    """Return the cells of a study and check that each of the others has a reason."""
    kept, left_out = cells(study_of_parts(**parts), 65)
    assert all(reason for _, reason in left_out)
    return [cell.values for cell in kept]


def test_parts_that_do_not_divide_the_batch_are_refused() -> None:
    grid = {"grad_accum": [1, 3, 4, 5]}
    assert points(fixed={"batch_size": 12}, grid=grid) == [{"grad_accum": n} for n in (1, 3, 4)]
    with pytest.raises(
        BadInput, match=r"no cell meets 'batch_size % grad_accum == 0' where batch_size is 48"
    ):
        points(fixed={"grad_accum": 5})


def test_mup_goes_with_optimizers_that_follow_the_width() -> None:
    found = points(grid={"parametrization": ["standard", "mup"], "optimizer": list(OPTIMIZERS)})
    chosen = {each["optimizer"] for each in found if each["parametrization"] == "mup"}
    assert chosen == set(MUP_OPTIMIZERS)
    assert len(found) == len(OPTIMIZERS) + len(chosen)
    with pytest.raises(BadInput, match=r'where optimizer is "sgd", parametrization is "mup"'):
        points(fixed={"parametrization": "mup", "optimizer": "sgd"})


def test_a_study_of_all_of_them_counts_what_its_plan_says(tiny, opened, dataset) -> None:
    spec = tiny(
        values={
            "optimizer": "muon",
            "grad_accum": 2,
            "scheduler_type": "wsd",
        },
        budget=Budget(trials_per_cell=2),
    )
    folder, store = opened(spec)
    Loop(spec, store, dataset, folder, lambda event: None, lambda: False).run()
    runs = list(folder.runs())
    assert len(runs) == 2
    for run in runs:
        start, end = run.read_start(), run.read_end()
        assert end.state == "complete"
        assert end.train_tokens == start.facts["train_tokens"]
        assert all(
            train_tokens(start.values, point.iteration) == point.train_tokens for point in run.points()
        )
