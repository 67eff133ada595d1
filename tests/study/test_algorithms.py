import optuna
import pytest
from optuna.trial import TrialState
from tiny_study import study_of_parts as read

from sweeplab.data import DataSizes
from sweeplab.study.options import PRUNERS, SAMPLERS, Sampler, build
from sweeplab.study.plan import (
    make_sampler,
    n_startup_trials,
    promotes,
    rungs,
    settled_pruner,
    settled_sampler,
)
from sweeplab.study.space import spaces_of

COUNTABLE = {"top_k": {"min": 10, "max": 12}, "dropout": {"min": 0, "max": 0.2, "step": 0.1}}
OPEN = {
    "learning_rate": {"min": 1e-4, "max": 1e-2, "log": True},
    "dropout": {"min": 0, "max": 0.4},
    "activation": ["relu", "gelu"],
    "betas": "suggested",
}
# An option of each, beside what it cannot do without.
SAMPLER_OPTIONS = {
    "auto": {"n_startup_trials": 2},
    "joint": {"n_startup_trials": 2},
    "tpe": {"n_startup_trials": 2, "n_ei_candidates": 8},
    "gp": {"n_startup_trials": 2, "deterministic_objective": True},
    "cmaes": {"sigma0": 0.3, "with_margin": True},
    "qmc": {"qmc_type": "halton", "scramble": True},
    "random": {},
    "grid": {},
}
PRUNER_OPTIONS = {
    "none": {},
    "median": {"n_startup_trials": 1},
    "percentile": {"percentile": 25.0, "n_startup_trials": 1},
    "asha": {"min_iters": 10, "factor": 2, "early_stopping_rate": 0},
    "hyperband": {"min_iters": 10, "max_iters": 100, "factor": 2},
    "threshold": {"upper": 3.0},
}


def space_of(search, **parts):
    return spaces_of(read(search=search, **parts), DataSizes(65))[0][0]


def sampled(sampler, space, count, seed=1):
    """Ask and tell as a worker does: a sampler is made anew for every trial."""
    study = optuna.create_study()
    found = []
    for number in range(count):
        study.sampler = make_sampler(sampler, seed + number, space, seed)
        trial = study.ask()
        found.append(space.suggest(trial))
        study.tell(trial, found[-1].get("dropout", 0.0) + 0.01 * number)
    return found


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_fills_a_space(name):
    spec = read(sampler={"type": name, **SAMPLER_OPTIONS[name]}, search=COUNTABLE)
    space = space_of(COUNTABLE if name == "grid" else OPEN)
    found = sampled(spec.sampler, space, 6)
    assert all(
        each.keys() == found[0].keys() and space.broken(space.resolve(each, 0)) is None
        for each in found
    )
    assert len({str(each) for each in found}) > 3
    assert found == sampled(spec.sampler, space, 6)
    if name != "qmc":  # unscrambled points are the same whatever the seed
        assert found != sampled(spec.sampler, space, 6, seed=99)


def test_a_grid_has_every_point_once():
    space = space_of(COUNTABLE)
    found = sampled(Sampler(type="grid"), space, 9)
    assert space.n_points == len({tuple(each.values()) for each in found}) == 9


@pytest.mark.parametrize("name", PRUNERS)
def test_a_pruner_judges_trials(name):
    pruner = read(pruner={"type": name, **PRUNER_OPTIONS[name]}).pruner
    study = optuna.create_study(pruner=build(pruner))
    pruned = []
    for number in range(12):
        trial = study.ask()
        for iteration in range(0, 101, 10):
            loss = 1.0 + number + iteration / 1000
            trial.report(loss, iteration)
            if iteration and trial.should_prune():
                pruned.append(number)
                break
        ended = {"state": TrialState.PRUNED} if number in pruned else {"values": loss}
        study.tell(trial, **ended)
    assert 0 not in pruned
    assert bool(pruned) == (name != "none")


@pytest.mark.parametrize(
    ("sampler", "per_cell", "expected"),
    [
        ("tpe", 1, 1), ("tpe", 39, 9), ("tpe", 400, 10), ("tpe", None, 10), ("random", 10, 0),
        ({"type": "tpe", "n_startup_trials": 7}, 8, 7),
    ],
)  # fmt: skip
def test_trials_spread_evenly_are_at_most_a_quarter(sampler, per_cell, expected):
    assert n_startup_trials(read(sampler=sampler), per_cell) == expected


@pytest.mark.parametrize(
    ("grid", "search", "expected"),
    [
        ({"n_embd": [32, 64]}, OPEN, "joint"),
        ({"n_embd": [32, 64]}, {"n_head": [2, 4]}, "joint"),
        ({"n_embd": [32, 64]}, {"activation": ["relu", "gelu"]}, "tpe"),
        ({}, OPEN, "tpe"),
    ],
)
def test_several_cells_with_numbers_to_search_are_searched_together(grid, search, expected):
    heads = {} if "n_head" in search else {"fixed": {"n_head": 2}}
    assert settled_sampler(read(grid=grid, search=search, **heads)).type == expected
    assert (
        settled_sampler(read(grid=grid, search=search, sampler="random", **heads)).type
        == "random"
    )


@pytest.mark.parametrize(
    ("n_cells", "per_cell", "expected"),
    [(9, 4, 1), (2, 100, 4), (1, 100, 8)],
)
def test_all_cells_of_a_joint_search_share_its_first_points(n_cells, per_cell, expected):
    search = {name: OPEN[name] for name in ("learning_rate", "dropout", "activation")}
    grid = {"n_embd": [16 * (index + 1) for index in range(n_cells)]}
    spec = read(search=search, grid=grid, sampler="joint", fixed={"n_head": 1})
    assert n_startup_trials(spec, per_cell) == expected


@pytest.mark.parametrize("name", [name for name, row in PRUNERS.items() if row.halves])
@pytest.mark.parametrize(("every", "last"), [(50, 300), (500, 500), (7, 100)])
def test_halving_decides_one_rung_at_an_evaluation(name, every, last):
    pruner = settled_pruner(read(pruner=name).pruner, every, last)
    study = optuna.create_study(pruner=build(pruner))
    trial = study.ask()
    decided = []
    for iteration in [*range(0, last, every), last]:
        before = len(trial.storage.get_trial_system_attrs(trial._trial_id))
        trial.report(1 / (1 + iteration), iteration)
        assert not trial.should_prune()
        decided += [iteration] * (
            len(trial.storage.get_trial_system_attrs(trial._trial_id)) - before
        )
    assert len(decided) == len(set(decided))
    expected = rungs(pruner, every, last)
    own = [each for each in decided if each < last]
    assert own == expected[len(expected) - len(own) :], (
        "a bracket of Hyperband leaves early rungs out"
    )


def test_rungs_that_a_study_gives_stay_and_are_said_at_their_evaluations():
    given = settled_pruner(
        read(pruner={"type": "asha", "min_iters": 30, "factor": 2}).pruner, 50, 300
    )
    assert given.options == {"min_resource": 30, "reduction_factor": 2}
    assert rungs(given, 50, 300) == [50, 100, 150, 250]
    later = given.model_copy(update={"options": given.options | {"min_early_stopping_rate": 1}})
    assert rungs(later, 50, 300) == [100, 150, 250]
    assert rungs(settled_pruner(read(pruner="median").pruner, 50, 300), 50, 300) == []
    longer = given.model_copy(update={"type": "hyperband", "options": {"max_resource": 900}})
    assert settled_pruner(longer, 50, 300).options == {"max_resource": 900, "min_resource": 100}


def test_a_pruner_promotes_if_it_says_so():
    assert promotes(read(pruner={"type": "asha", "promote": True}).pruner) and not promotes(
        read().pruner
    )
