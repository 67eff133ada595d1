"""Trials from elsewhere: they come in once, inform the sampler, count for nothing, and say why they do not fit."""

import math
import statistics
from dataclasses import replace
from types import SimpleNamespace

import pytest
from optuna.trial import TrialState
from tiny_study import claim_one, finish_all

from sweeplab.errors import BadInput
from sweeplab.expressions import Expression
from sweeplab.lab.storage import WARM_START
from sweeplab.lab.studies import write_study
from sweeplab.records.runs import RunState
from sweeplab.study.inputs import describe_data
from sweeplab.study.options import Pruner, Sampler
from sweeplab.study.space import spaces_of
from sweeplab.study.spec import Budget
from sweeplab.study.values import Choices, Derived, Range
from sweeplab.sweep.loop import Loop
from sweeplab.sweep.planning import make_plan
from sweeplab.sweep.trials import warm_start
from sweeplab.sweep.trials.sharing import Report
from sweeplab.sweep.trials.warm_start import add_warm_starts, read_warm_starts

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def warm(opened, dataset):
    """Return a function that opens a study and brings its warm starts in, as running it does."""

    def start(spec):
        folder, store = opened(spec)
        sources = read_warm_starts(spec, folder, store.spaces, describe_data(spec, dataset))
        add_warm_starts(store, sources)
        return folder, store, sources

    return start


@pytest.fixture
def elsewhere(tiny, dataset, monkeypatch):
    """Return a function that says what a study has whose trials would fit, but for changed values of each; its name."""
    studies = {}
    monkeypatch.setattr(
        warm_start, "_finished_trials", lambda spec, lab, name, data: studies[name]
    )

    def make(*trials, name="other"):
        (space,), _ = spaces_of(tiny(), dataset.sizes)
        studies[name] = []
        for number, (changed, value, *ended) in enumerate(trials):
            outcome, iteration = ended or ("complete", 20)
            values = space.typical.replace(device="cpu", dtype="float32").as_dict() | changed
            ended = {"state": RunState(outcome), "value": value}
            ends = [SimpleNamespace(iteration=iteration)]
            place = {"cell": "all", "number": number}
            studies[name].append(SimpleNamespace(**place, **ended, ends=ends, values=values))
        return name

    return make


def known(store, cell=0):
    trials = store.study(store.cells[cell]).get_trials()
    return [trial for trial in trials if WARM_START in trial.user_attrs]


@pytest.mark.slow
def test_trials_of_another_study_are_known_and_count_for_nothing(tiny, opened, warm, dataset):
    fixed = {name: value for name, value in tiny().fixed.items() if name != "n_embd"}
    other = tiny(name="other", grid={"n_embd": [16, 32]}, budget=Budget(trials_per_cell=3))
    other = other.model_copy(update={"fixed": fixed})
    folder, store = opened(other)
    write_study(other, folder, describe_data(other, dataset))
    Loop(store, dataset, folder).run()
    spec = tiny(grid={"n_embd": [32, 64]}, warm_start=["other"])
    _, new, (source,) = warm(spec)
    assert len(source.fitting) == 3
    assert source.refused == [
        "3 (n_embd=16/0, n_embd=16/1, n_embd=16/2): no cell has n_embd=16"
    ]
    theirs = {trial.value: trial.params for trial in store.trials(store.cells[1])}
    assert {trial.value: trial.params for trial in known(new)} == theirs
    places = [trial.user_attrs[WARM_START]["place"] for trial in known(new)]
    assert places == [f"n_embd=32/{number}" for number in range(3)]
    assert [(each.counted, each.running()) for each in new.tallies()] == [(0, [])] * 2
    claims = [claim_one(new, lambda cell: cell.index == 0) for _ in range(5)]
    assert [claim and claim.number for claim in claims] == [3, 4, 5, 6, None], (
        "its budget is its own trials'"
    )
    new.finish(claims[0], "complete", 99.0, {})
    assert new.tallies()[0].counted == 1


@pytest.mark.slow
def test_whatever_is_interrupted_comes_in_once(tiny, warm, elsewhere):
    trials = [({"learning_rate": rate}, value) for rate, value in ((1e-3, 2.0), (2e-3, 2.1))]
    warm(tiny(warm_start=[elsewhere(*trials[:1])]))
    spec = tiny(warm_start=[elsewhere(*trials)])
    for _ in range(3):
        _, store, _ = warm(spec)
        assert sorted(trial.value for trial in known(store)) == [2.0, 2.1]
    store.finish(claim_one(store), "complete", 3.0, {})
    late = elsewhere(({"learning_rate": 3e-3}, 2.2), name="late")
    _, store, _ = warm(tiny(warm_start=["other", late]))
    assert len(known(store)) == 2, "a cell that has begun starts from nothing more"


def test_a_sampler_learns_from_them(tiny, warm, elsewhere):
    def loss(rate):
        return 2 + math.log(rate / 2e-3) ** 2

    rates = [3e-4 * (1e-2 / 3e-4) ** (k / 23) for k in range(24)]
    other = elsewhere(*(({"learning_rate": rate}, loss(rate)) for rate in rates))
    apart = {}
    for name, start in (("cold", []), ("warm", [other])):
        changes = {"budget": Budget(trials_per_cell=8), "sampler": Sampler(type="tpe")}
        _, store, _ = warm(tiny(name=name, warm_start=start, **changes))
        claims = finish_all(store, lambda claim: loss(claim.sampled["learning_rate"]))
        drawn = [claim.sampled["learning_rate"] for claim in claims]
        apart[name] = statistics.mean(abs(math.log(rate / 2e-3)) for rate in drawn)
    assert apart["warm"] < 0.6 * apart["cold"]


@pytest.mark.parametrize(
    "pruner",
    [
        Pruner(type="asha", options={"min_resource": 10, "reduction_factor": 2}),
        Pruner(type="median", options={"n_startup_trials": 1}),
    ],
)
def test_pruners_do_not_judge_by_them(pruner, tiny, warm, elsewhere):
    states = ["complete", "pruned"] * 6
    trials = [
        ({"learning_rate": (k + 4) * 1e-4}, 1.0, state, 20) for k, state in enumerate(states)
    ]
    _, store, _ = warm(tiny(pruner=pruner, warm_start=[elsewhere(*trials)]))
    pruned = [trial for trial in known(store) if trial.state == TrialState.PRUNED]
    assert [trial.intermediate_values for trial in pruned] == [{20: 1.0}] * 6
    claim = claim_one(store)
    assert not any(
        store.report_many([Report(claim, iteration, 5.0)]).behind for iteration in (0, 10, 20)
    )


FITS = [
    ([({"learning_rate": 0.5}, 2.0)], "all/0: learning_rate lies outside of 0.0003 to 0.01"),
    ([({}, None), ({}, math.nan)], "2 (all/0, all/1): no finite value"),
    ([({}, 2.0, "failed", 20)], "all/0: not finished (state failed)"),
    ([({"dtype": "bfloat16"}, 2.0)], 'all/0: dtype is "bfloat16" there and "float32" here'),
    ([({"betas": (0.9, 0.99)}, 2.0)], "all/0: betas is [0.9, 0.99] there and [0.9, 0.95]"),
    (
        [({"dropout": 0.0}, 2.0), ({"dropout": 0.1}, 2.5)],
        "all/1: dropout is 0.1 there and 0.0 here",
    ),
    ([({"warmup_iters": 3}, 2.0)], "all/0: warmup_iters is 3 there and 2 here"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("trials", "reason"), FITS)
def test_trials_that_do_not_fit_say_why(trials, reason, tiny, warm, elsewhere):
    good = elsewhere(({"learning_rate": 1e-3}, 1.5), name="good")
    spec = tiny(warm_start=[good, elsewhere(*trials)])
    try:
        refused = warm(spec)[2][1].refused
    except BadInput as error:
        assert "other fits: " in str(error)
        refused = [str(error).partition(" fits: ")[2]]
    assert len(refused) == 1 and refused[0].startswith(reason)


def test_conditions_and_derived_values_are_followed(tiny, warm, elsewhere):
    fixed = {
        name: each
        for name, each in tiny().fixed.items()
        if name not in ("n_head", "warmup_iters")
    }
    search = {
        "lr_decay": Choices((True, False)),
        "min_lr": Range(1e-6, 1e-4, log=True, when=Expression("lr_decay")),
        "n_head": Choices((1, 2, 4)),
        "warmup_iters": Derived(Expression("max_iters // 10")),
    }
    found = (
        (True, 1e-5, 2, 2.0),
        (False, 1e-5, 4, 2.1),
        (False, 1e-5, 3, 2.2),
        (False, 1e-6, 4, 2.3),
    )
    trials = []
    for decays, lowest, n_head, loss in found:
        changed = {"lr_decay": decays, "min_lr": lowest, "n_head": n_head, "n_kv_head": n_head}
        trials.append((changed | {"learning_rate": 3e-4, "head_dim": 16 // n_head}, loss))
    other = elsewhere(*trials)
    spec = tiny(search=search).model_copy(update={"fixed": fixed, "warm_start": [other]})
    _, store, (source,) = warm(spec)
    assert [trial.params for trial in known(store)] == [
        {"lr_decay": True, "min_lr": 1e-5, "n_head": 2},
        {"lr_decay": False, "n_head": 4},
        {"lr_decay": False, "n_head": 4},  # without decay any min_lr is the same
    ]
    assert source.refused == ["all/2: n_head lies outside of 1 | 2 | 4"]


@pytest.mark.parametrize(
    ("source", "said"),
    [("tiny", "a study cannot start from itself"), ("nowhere", "no study 'nowhere' in ")],
)
def test_what_is_no_source(source, said, tiny, tmp_path):
    with pytest.raises(BadInput) as error:
        make_plan(tiny(warm_start=[source]), tmp_path / "lab")
    (problem,) = error.value.problems
    assert said in str(problem) and "\n" not in str(problem)


def test_studies_that_cannot_be_compared(tiny, opened, tmp_path, dataset):
    other = tiny(name="other")
    folder, _ = opened(other)
    described = describe_data(other, dataset)
    write_study(other, folder, replace(described, token_digest="another"))
    with pytest.raises(BadInput, match="study other was trained on other tokens"):
        make_plan(tiny(warm_start=["other"]), folder.lab)
    write_study(other, folder, described)
    final = tiny(warm_start=["other"], objective={"at": "final"})
    with pytest.raises(
        BadInput, match="values trials by val_loss, best, this study by val_loss, final"
    ):
        make_plan(final, folder.lab)
