"""Claims, leases and endings: no trial is held twice or lost, whatever dies between two calls."""

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from itertools import repeat

import numpy as np
import postgres_server
import psutil
import pytest
from optuna.samplers._tpe.sampler import _split_trials
from optuna.trial import TrialState
from sqlalchemy.exc import IntegrityError, OperationalError
from terminal import wait_until
from tiny_study import claim_one, expire_leases, finish_all

from sweeplab.errors import StorageUnavailable
from sweeplab.expressions import Expression
from sweeplab.study.options import Pruner, Sampler
from sweeplab.study.rules import facts
from sweeplab.study.spec import Budget, ConditionalSeed
from sweeplab.study.values import Choices, Range
from sweeplab.sweep.trials.sharing import (
    OUTAGE_SECONDS,
    TABLES,
    Availability,
    Lease,
    LeaseLost,
    Owner,
    Report,
    renewing,
)
from sweeplab.sweep.trials.store import ENQUEUED, Store


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        ("complete", TrialState.COMPLETE), ("stopped", TrialState.COMPLETE), ("pruned", TrialState.PRUNED),
        ("diverged", TrialState.PRUNED), ("failed", TrialState.FAIL),
    ],
)  # fmt: skip
def test_optuna_hears_of_every_outcome_in_its_words(outcome, state, tiny, opened):
    _, store = opened(tiny())
    claim = claim_one(store)
    store.report_many([Report(claim, 0, 4.0)])
    store.report_many([Report(claim, 10, 3.5)])
    store.finish(claim, outcome, 3.5, {"train_flops": 7.0})
    (trial,) = store.trials(store.cells[0])
    assert trial.state == state
    assert trial.intermediate_values == {0: 4.0, 10: 3.5}
    assert trial.user_attrs["outcome"] == outcome
    assert trial.value == (None if outcome == "failed" else 3.5)


def test_a_sampler_prefers_every_pruned_trial_to_one_that_diverged(tiny, opened):
    _, store = opened(tiny())
    claims, outcomes = [claim_one(store) for _ in range(3)], ("pruned", "diverged", "pruned")
    for claim, iterations, outcome in zip(claims, (10, 20, 10), outcomes, strict=True):
        store.report_many([Report(claim, 0, 4.0)])
        store.report_many([Report(claim, iterations, 3.0)])
        store.finish(claim, outcome, None, {})
    study = store.study(store.cells[0])
    for n_best in (1, 2):
        best, _ = _split_trials(study, study.get_trials(), n_best)
        assert len(best) == n_best and 1 not in [trial.number for trial in best]
    assert study.get_trials()[1].constraints == {"diverged": 1.0}


def test_a_trial_given_back_goes_to_the_next_claim_as_it_was(tiny, opened):
    _, one = opened(tiny())
    _, two = opened(tiny())
    first, other, third = one.claim_many(3)
    one.requeue([first, other, third])
    assert claim_one(two, lambda cell: False) is None
    (again, *_) = held = two.claim_many(2)
    assert [claim.number for claim in held] == [first.number, other.number]
    assert (again.number, again.sampled, again.attempt) == (first.number, first.sampled, 1)
    assert claim_one(one).number == third.number, "the others are held again"
    with pytest.raises(LeaseLost):
        one.finish(first, "complete", 1.0, {})
    two.finish(again, "complete", 2.0, {})
    ended = two.trials(two.cells[0])[0]
    assert ended.value == 2.0 and two.seeds(two.cells[0], ended) == [0]


def test_the_same_study_draws_the_same_trials(tiny, tmp_path, dataset):
    search = {
        "learning_rate": Range(3e-4, 1e-2, log=True),
        "activation": Choices(("gelu", "relu")),
    }
    spec, drawn = tiny(budget=Budget(trials_per_cell=14), search=search), []
    for place in ("one", "two"):
        store = Store.create(spec, dataset.sizes, f"sqlite:///{tmp_path / place}.db")
        claims = finish_all(store, lambda claim: claim.sampled["learning_rate"] * 100)
        drawn.append([claim.sampled for claim in claims])
    assert len(drawn[0]) == 14  # ten to start from, and four by TPE
    assert drawn[0] == drawn[1]


def test_the_first_trial_of_each_cell_is_where_the_study_says(tiny, opened):
    search = {"learning_rate": Range(1e-4, 1e-2, log=True), "dropout": Range(0.0, 0.4)}
    grid = {"n_layer": [1, 2]}
    for sampler in ("tpe", "random"):
        changes = {"search": search, "grid": grid, "first_trial": {"learning_rate": 3e-4}}
        _, store = opened(tiny(name=sampler, sampler=Sampler(type=sampler), **changes))
        for cell in store.cells:
            claims = []
            for _ in range(4):
                claims.append(claim_one(store, lambda other, cell=cell: other == cell))
                store.finish(claims[-1], "complete", 3.0, {})
            rates = [claim.sampled["learning_rate"] for claim in claims]
            assert rates[0] == 3e-4 and 3e-4 not in rates[1:]
            assert len({claim.sampled["dropout"] for claim in claims}) == 4


def test_a_cell_without_valid_samples_is_set_aside_and_said(tiny, opened):
    constraints = ["learning_rate > 1 or n_embd > 16"]
    _, store = opened(tiny(grid={"n_embd": [16, 32]}, constraints=constraints))
    claims = [claim_one(store) for _ in range(5)]
    assert [claim and claim.cell.key for claim in claims] == ["n_embd=32"] * 4 + [None]
    (notice,) = store.notices
    assert notice == "cell n_embd=16: found no new point that meets the constraints"
    assert len(store.study(store.cells[0]).get_trials()) == 100, "all that were drawn"
    assert claim_one(store) is None and store.notices == [notice]


def test_no_point_is_trained_twice(tiny, opened):
    conditional = Choices((1, 2, 3), when=Expression("activation == 'gelu'"))
    lists = {
        "activation": Choices(("relu", "gelu")),
        "n_head": Choices((1, 2, 3, 4)),
        "patience": conditional,
    }
    spec = tiny(search=lists, sampler=Sampler(type="tpe"), budget=Budget(trials_per_cell=20))
    _, store = opened(spec)
    claims = finish_all(store, lambda claim: 3.0 + claim.sampled["n_head"])
    points = [tuple(sorted(claim.sampled.items())) for claim in claims]
    assert len(points) == len(set(points)) == 3 * (1 + 3), "1, 2 and 4 divide 16"
    assert not store.awaits_results


def test_trials_are_asked_while_others_run_but_the_last_of_a_joint_search(tiny, opened):
    spec = tiny(
        sampler=Sampler(type="joint", options={"n_startup_trials": 2}), budget=Budget(trials_per_cell=8),
        search={"learning_rate": Range(1e-4, 1e-1, log=True)},
    )  # fmt: skip
    _, store = opened(spec)
    first = store.claim_many(3)
    for value, claim in enumerate(first):
        store.finish(claim, "complete", 3.0 + value, {})
    together = store.claim_many(8)
    assert len(together) == 4 and store.awaits_results, "all but the last"
    places = sorted(np.log10(claim.sampled["learning_rate"] / 1e-4) / 3 for claim in together)
    assert np.diff(places).min() >= 0.099, "a tenth of the range apart"
    for claim in together:
        store.finish(claim, "complete", 3.5, {})
    assert len(store.claim_many(8)) == 1


@pytest.mark.parametrize(("sampler", "n_claimed"), [("joint", 1), ("tpe", 2)])
def test_a_batch_bounds_trials_that_run_together(sampler, n_claimed, tiny, opened):
    search = {"learning_rate": Range(1e-4, 1e-1, log=True)}
    asked = Sampler.model_validate({"type": sampler, "batch": 1})
    grid, budget = {"n_embd": [8, 16]}, Budget(trials_per_cell=4)
    _, store = opened(tiny(sampler=asked, search=search, grid=grid, budget=budget))
    claims = store.claim_many(8)
    assert len(claims) == n_claimed and store.awaits_results, "of the study, or of each cell"
    store.finish(claims[0], "complete", 3.0, {})
    assert [claim.cell for claim in store.claim_many(8)] == [claims[0].cell]


@pytest.mark.parametrize(
    ("time", "seeds", "first"),
    [(None, 0, "n_embd=16"), (60.0, 0, "n_embd=8"), (None, 9, "n_embd=8")],
)
def test_the_longest_cells_come_first_unless_time_is_short(time, seeds, first, tiny, opened):
    more = [ConditionalSeed(seed=seed, when="n_embd == 8") for seed in range(1, 1 + seeds)]
    spec = tiny(
        grid={"n_embd": [8, 16]}, seeds=[0, *more], budget=Budget(trials_per_cell=2, time=time)
    )
    _, store = opened(spec)
    assert claim_one(store).cell.key == first
    assert claim_one(store, lambda cell: cell.key == first)
    store.study(next(cell for cell in store.cells if cell.key == first)).enqueue_trial(
        {"learning_rate": 1e-3}
    )
    assert claim_one(store, lambda cell: cell.key == first), (
        "one more than the cell has room for"
    )
    store.n_workers = 2
    assert store.share_left() == len(store.claim_many(4)) == 1, "half of what is left"
    assert claim_one(store) and not claim_one(store), (
        "nothing more in a cell that has one too many"
    )


def test_a_budget_of_flops_is_a_total_of_all_seeds_and_bounds_no_enqueued_trial(tiny, opened):
    _, store = opened(tiny(budget=Budget(flops=1e9), seeds=[0, 1]))
    claim = claim_one(store)
    (first,) = store.trials(store.cells[0])
    planned = first.user_attrs["planned_flops"]
    assert planned == 2 * facts(claim.values).train_flops
    store.finish(claim, "complete", 1.0, {"train_flops": planned})
    n_trials = 1
    while claim := claim_one(store):
        n_trials += 1
        store.finish(claim, "pruned", None, {"train_flops": planned / 2})
    assert n_trials == pytest.approx(2 * 1e9 / planned, abs=2)
    store.study(store.cells[0]).enqueue_trial({"learning_rate": 2e-3}, {ENQUEUED: {}})
    assert claim_one(store).enqueued is not None and not claim_one(store)


def test_a_lease_is_over_by_the_clock_and_at_once_where_its_process_is_known_to_be_gone():
    def is_dead(owner, is_over):
        return Lease(0, str(owner), 1, is_over).is_dead

    mine = Owner.of_this_process()
    assert Owner.read(str(mine)) == mine and not is_dead(mine, is_over=False)
    gone = replace(
        mine, pid=next(each for each in range(40_000, 50_000) if not psutil.pid_exists(each))
    )
    assert is_dead(gone, is_over=False)
    # What is no process here may be one there: on another machine, after a boot, in another container.
    for there in ({"host": "elsewhere"}, {"boot": "another"}, {"pid_namespace": "pid:[1]"}):
        assert not is_dead(replace(gone, **there), is_over=False)
        assert is_dead(replace(gone, **there), is_over=True)
    assert is_dead(mine, is_over=True), (
        "a process that was stopped can write nothing when it wakes up"
    )
    assert is_dead(replace(Owner.nobody(), host="elsewhere"), is_over=False)
    with subprocess.Popen(["true"]) as ended:
        process = psutil.Process(ended.pid)
        wait_until(lambda: process.status() == psutil.STATUS_ZOMBIE)
        assert is_dead(replace(mine, pid=ended.pid), is_over=False), (
            "nobody has asked how it ended"
        )


def test_a_lease_is_its_owner_s_at_one_attempt_and_lasts_by_the_database_s_clock(tiny, opened):
    _, store = opened(tiny())
    _, other = opened(tiny())
    began, trial, mine, its = time.time(), claim_one(store).trial_id, store.leases, other.leases
    with store.storage.engine.begin() as connection:
        lease = mine.all(connection)[trial]
        for wrong in ({"attempt": 2}, {"holder": str(its.owner)}, {"trial_id": 0}):
            stale = lease._replace(**wrong)
            assert its.take_over(connection, stale.trial_id, stale) is None
        for leases, attempt in ((its, 1), (mine, 2)):
            leases.give_back(connection, trial, attempt)
            assert not leases.drop(connection, trial, attempt)
            assert not leases.held(connection, {trial: attempt})
        assert mine.all(connection) == {trial: lease}
    assert not its.renew([trial]) and mine.renew([trial, 0]) == {trial}
    for attempt in (1, 2):
        with store.storage.engine.begin() as connection:
            lease = mine.all(connection)[trial]
            expires = connection.exec_driver_sql(
                "SELECT expires FROM sweeplab_lease"
            ).scalar_one()
            assert began + 14.9 < expires < time.time() + 15.1 and not lease.is_over
            assert (
                lease.attempt == attempt
                and its.take_over(connection, trial, lease) == attempt + 1
            )
    for table in TABLES.tables.values():
        row = dict.fromkeys(table.columns.keys(), 9)
        for rows in ([row, row], *([row | {name: None}] for name in list(row)[1:])):
            with pytest.raises(IntegrityError), store.storage.engine.begin() as connection:
                connection.execute(table.insert(), rows)


def test_leases_are_renewed_until_the_end_and_sooner_after_a_failure(monkeypatch):
    waits = []

    class Event(threading.Event):
        def wait(self, timeout=None):
            if timeout is None:  # for the thread to begin
                return super().wait()
            waits.append(timeout)
            return len(waits) > 3

    def renew():
        if len(waits) == 2:
            raise OperationalError("UPDATE", {}, Exception("lost"))

    monkeypatch.setattr(threading, "Event", Event)
    with renewing(renew):
        pass
    assert waits == [4.0, 4.0, 0.5, 4.0]


def test_a_worker_whose_lease_ran_out_writes_nothing_when_it_wakes_up(tiny, opened):
    _, one = opened(tiny(pruner=Pruner(type="median")))
    _, two = opened(tiny(pruner=Pruner(type="median")))
    first = claim_one(one)
    one.report_many([Report(first, 0, 4.0)])
    expire_leases(one)
    again = claim_one(two)
    assert (again.number, again.attempt, again.reported) == (first.number, 2, {0})
    verdicts = one.report_many([Report(first, 10, 1.0)])
    assert (verdicts.behind, verdicts.lost) == (set(), {first.trial_id})
    with pytest.raises(LeaseLost):
        one.finish(first, "complete", 1.0, {})
    one.requeue([first])
    assert two.renew() == {again.trial_id}
    two.report_many([Report(again, 10, 3.0)])
    two.finish(again, "complete", 3.0, {})
    assert one.trials(one.cells[0])[0].intermediate_values == {0: 4.0, 10: 3.0}


def test_a_report_is_judged_once_and_an_end_that_was_told_stands(tiny, opened):
    _, store = opened(tiny(pruner=Pruner(type="threshold", options={"upper": 3.5})))
    claim = claim_one(store)
    reports = [Report(claim, 0, 3.0), Report(claim, 10, 4.0)]
    behind = [store.report_many([each]).behind for each in reports * 2]
    assert behind == [set(), {claim.trial_id}] * 2, (
        "what repeats the first is not judged by the last"
    )
    for _ in range(2):  # as where the answer was lost
        store.finish(claim, "pruned", None, {"train_flops": 2.0})
    with pytest.raises(LeaseLost):
        store.finish(claim, "pruned", None, {"train_flops": 3.0})


def test_what_a_person_leaves_open_is_drawn_until_it_meets_the_rules(tiny, opened):
    _, store = opened(
        tiny(search={"learning_rate": Range(3e-4, 1e-2), "n_head": Choices((2, 3))})
    )
    asked = {"learning_rate": 1e-3}
    for _ in range(4):
        store.study(store.cells[0]).enqueue_trial(asked, {ENQUEUED: asked})
    claims = store.claim_many(4)
    assert [(claim.sampled, claim.enqueued) for claim in claims] == [
        (asked | {"n_head": 2}, asked)
    ] * 4
    assert store.n_held() == 4


def test_a_claim_that_fails_leaves_nothing(tiny, opened, monkeypatch):
    _, store = opened(tiny())
    store.finish(claim_one(store), "complete", 3.0, {})
    drawn = store.spaces[0].suggest
    monkeypatch.setattr(store.spaces[0], "suggest", lambda trial: drawn(trial) and 1 / 0)
    with pytest.raises(ZeroDivisionError):
        claim_one(store)
    monkeypatch.undo()
    (ended,) = store.trials(store.cells[0])
    assert ended.value == 3.0 and store.tallies()[0].running() == []
    assert claim_one(store) and len(store.trials(store.cells[0])) == 2


def test_an_outage_is_waited_for_ever_longer_and_its_length_is_said(monkeypatch):
    waits, said, failures = [], [], iter([True] * 8 + [False])
    monkeypatch.setattr("time.sleep", waits.append)
    monkeypatch.setattr("time.monotonic", lambda: 100.0 + sum(waits))

    def call():
        if next(failures):
            raise OSError("no answer")
        return "answer"

    assert Availability("tiny", OUTAGE_SECONDS, said.append).retry(call) == "answer"
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])
    assert (
        said[0].endswith("retries for 10m") and said[1].endswith("after 16s") and len(said) == 2
    )
    waits.clear()
    failures = repeat(True, 50)
    for availability in (
        Availability("tiny", 6.0),
        Availability("tiny", say=said.append),
        Availability("tiny", 9.0, stopping=lambda: len(waits) > 7),
    ):
        with pytest.raises(StorageUnavailable, match="study tiny does not answer: no answer"):
            availability.retry(call)
    assert len(waits) == 6 + 2 and len(said) == 2


def test_reports_that_the_database_did_not_take_are_sent_with_the_next_ones(
    tiny, opened, monkeypatch
):
    _, store = opened(tiny())
    said = []
    store.availability.limit, store.availability.say = 60.0, said.append
    claim = claim_one(store)
    lost = OperationalError("UPDATE", {}, Exception("lost"))
    monkeypatch.setattr(store.storage, "_write", lambda: (_ for _ in ()).throw(lost))
    assert store.report_many([Report(claim, 0, 4.0)]) == (set(), set())
    monkeypatch.undo()
    store.report_many([Report(claim, 10, 3.0)])
    assert store.trials(store.cells[0])[0].intermediate_values == {0: 4.0, 10: 3.0}
    assert len(said) == 2, "of the outage, and of its end"


# ------------------------------------------------------------------ promotion

PROMOTING = Pruner(
    type="asha", options={"min_resource": 10, "reduction_factor": 2, "promote": True}
)
HOUR = Budget(trials_per_cell=2, time=3600.0)


def prune(store, claim, value):
    store.report_many([Report(claim, 10, value)])
    store.finish(claim, "pruned", None, {"train_flops": 1.0})


def test_the_best_pruned_trial_of_the_cell_with_the_fewest_promoted_continues(tiny, opened):
    budget = Budget(trials_per_cell=3, time=3600.0)
    _, store = opened(tiny(grid={"n_embd": [16, 32]}, pruner=PROMOTING, budget=budget))
    claims = [claim_one(store) for _ in range(6)]
    values = dict(
        zip([claim.trial_id for claim in claims], (4.0, 3.0, 5.0, 8.0, 7.0, 6.0), strict=True)
    )
    for claim in claims[:5]:
        prune(store, claim, values[claim.trial_id])
    assert claim_one(store) is None and store.awaits_results, "one has not ended"
    prune(store, claims[5], 6.0)
    best = {
        cell.key: sorted(values[c.trial_id] for c in claims if c.cell == cell)
        for cell in store.cells
    }
    one, two = claim_one(store), claim_one(store)
    assert [one.cell, two.cell] == store.cells, "one of each cell, though the first trains"
    assert [values[each.trial_id] for each in (one, two)] == [
        best[each.cell.key][0] for each in (one, two)
    ]
    assert (one.promoted, one.reported) == (10, {10}) and one.sampled, "it keeps what it was"
    store.finish(one, "complete", 3.0, {"train_flops": 1.0})
    store.requeue([two])
    assert claim_one(store).trial_id == two.trial_id
    three = claim_one(store)
    assert (three.cell.index, values[three.trial_id]) == (0, best[three.cell.key][1])
    assert claim_one(store).cell.index == 1, "one has ended in the other, and one trains"
    store.finish(three, "complete", 3.0, {"train_flops": 1.0})
    assert [claim_one(store).cell.index for _ in range(2)] == [0, 1]
    assert claim_one(store) is None and not store.awaits_results
    assert store.has_room() and not store.tally(store.cells[0]).pruned


def test_of_two_who_promote_a_trial_at_once_one_does_and_both_know_it(tiny, opened):
    spec = tiny(pruner=PROMOTING, budget=HOUR)
    stores = [opened(spec)[1] for _ in range(2)]
    claim_one(stores[0])
    prune(stores[0], claim_one(stores[0]), 4.0)
    pruned = [store.trials(store.cells[0])[1] for store in stores]
    done = []
    for store, trial in zip(stores, pruned, strict=True):
        with store.storage.transaction() as connection:
            done.append(store.promote(connection, store.cells[0], trial))
    assert done == [True, False]
    for store in stores:
        assert [trial.state for trial in store.trials(store.cells[0])] == [
            TrialState.RUNNING
        ] * 2
        assert store.trials(store.cells[0])[1].intermediate_values == {10: 4.0}


def test_a_worker_promotes_no_trial_that_it_trains_under_a_lease_that_it_lost(tiny, opened):
    spec = tiny(pruner=PROMOTING, budget=Budget(trials_per_cell=1, time=3600.0))
    _, one = opened(spec)
    _, two = opened(spec)
    first = claim_one(one)
    expire_leases(one)
    prune(two, claim_one(two), 4.0)
    assert claim_one(one) is None, "it trains the trial yet, and would twice"
    assert one.report_many([Report(first, 10, 4.0)]).lost == {first.trial_id}
    promoted = claim_one(one)
    assert (promoted.trial_id, promoted.promoted) == (first.trial_id, 10)


@pytest.mark.parametrize(
    "budget", [{"trials_per_cell": 1}, {"trials_per_cell": 1, "flops": 2.0}]
)
def test_a_pruner_promotes_nothing_without_a_budget_that_is_left(budget, tiny, opened):
    _, store = opened(tiny(pruner=PROMOTING, budget=Budget(trials_per_cell=1)))
    claim = claim_one(store)
    store.finish(claim, "pruned", None, {"train_flops": 2.0})
    store.budget = Budget(**budget)
    assert not store.has_room() and claim_one(store) is None


def test_what_is_not_finite_is_never_reported(tiny, opened):
    _, store = opened(tiny())
    claim = claim_one(store)
    for iteration, value in enumerate([3.0, float("nan"), float("inf"), float("-inf")]):
        store.report_many([Report(claim, iteration, value)])
    store.finish(claim, "diverged", None, {})
    assert store.trials(store.cells[0])[0].intermediate_values == {0: 3.0}
    assert store.trials(store.cells[0])[0].value == 3.0


# A process of its own with a store; `argv` has its address, the values that the study fixes and the vocabulary's size.
STORE = """
import json, os, signal, sys
import optuna
from sweeplab.data import DataSizes
from sweeplab.study.values import Range
from sweeplab.study.options import Pruner
from sweeplab.study.spec import Budget, DataSpec, StudySpec
from sweeplab.sweep.trials.sharing import Leases, Report, renewing
from sweeplab.sweep.trials.storage import TrialStorage
from sweeplab.sweep.trials.store import Store
spec = StudySpec(name="tiny", data=DataSpec(corpus="python-docs", tokenizer="char"), fixed=json.loads(sys.argv[2]),
    search={"learning_rate": Range(3e-4, 1e-2, log=True)}, budget=Budget(trials_per_cell=int(sys.argv[4])),
    pruner=Pruner(type="none"))
store = Store(spec, DataSizes(int(sys.argv[3])), sys.argv[1])
claim_one = lambda store: next(iter(store.claim_many(1)), None)
"""
CLAIM_AND_DIE = """
die = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)
where = sys.argv[5]
if where == "asked":
    Leases.take = die
elif where == "suggesting":
    optuna.trial.Trial.suggest_float = die
elif where == "writing":
    TrialStorage._write = die
claim = claim_one(store)
if where == "telling":
    TrialStorage._write = die
if where in ("telling", "told"):
    store.finish(claim, "complete", 1.0, {})
die()
"""
WORK = """
numbers = []
with renewing(store.renew):  # on a busy machine the others take longer to begin than a lease lasts
    while claim := claim_one(store):
        if not numbers:
            print("ready", flush=True)
            sys.stdin.readline()
        if not store.report_many([Report(claim, 0, 4.0)]).lost:  # while it waited the others may have kept its lease
            store.finish(claim, "complete", 3.0, {})
            numbers.append(claim.number)
print(json.dumps(numbers))
"""


def child(code, url, tiny, dataset, trials, *words):
    """Return the command of a process that runs code with a store."""
    known = (url, json.dumps(tiny().fixed), str(dataset.tokenizer.vocab_size), str(trials))
    return [sys.executable, "-c", STORE + code, *known, *words]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["told", "asked", "suggesting", "writing", "held", "telling"])
def test_a_worker_killed_anywhere_loses_and_doubles_nothing(where, tiny, opened, dataset):
    folder, store = opened(tiny())
    command = child(CLAIM_AND_DIE, folder.storage_url, tiny, dataset, 4, where)
    assert subprocess.run(command, stderr=subprocess.PIPE).returncode == -9
    numbers = [claim.number for claim in finish_all(store)]
    assert numbers == ([1, 2, 3] if where == "told" else [0, 1, 2, 3])
    states = Counter(trial.state.name for trial in store.study(store.cells[0]).get_trials())
    assert states == {"COMPLETE": 4}


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def storage_url(request, tmp_path):
    """Yield the address of an empty storage."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/trials.db"
        return
    if not postgres_server.IS_INSTALLED:
        pytest.skip("PostgreSQL's programs or psycopg are not installed")
    with postgres_server.started() as server:
        yield server.url


@pytest.mark.slow
def test_four_processes_share_sixty_trials_each_exactly_once(storage_url, tiny, dataset):
    store = Store.create(tiny(), dataset.sizes, storage_url)
    store.storage.engine.dispose()
    command = child(WORK, storage_url, tiny, dataset, 60)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen(command, **pipes) for _ in range(4)]
    for worker in workers:
        assert worker.stdout.readline() == "ready\n"
    # Go on together, each with a trial: one alone is done before another has begun.
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    shares = [json.loads(worker.communicate()[0]) for worker in workers]
    assert sorted(number for share in shares for number in share) == list(range(60))
    assert all(shares)


def test_an_interrupted_trial_is_taken_up_though_the_flops_are_planned(tiny, opened):
    _, one = opened(tiny(budget=Budget(flops=1.0)))
    claim = claim_one(one)
    one.requeue([claim])
    _, two = opened(tiny(budget=Budget(flops=1.0)))
    assert claim_one(two).number == claim.number
    assert claim_one(two) is None
