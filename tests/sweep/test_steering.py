"""Trials that a person asks for: tried first, in full cells too; withdrawn, tried again; and what is refused."""

import json

import pytest
from tiny_study import claim_one, finish_all

from sweeplab.errors import BadInput
from sweeplab.expressions import Expression
from sweeplab.lab.studies import write_study
from sweeplab.study.inputs import describe_data
from sweeplab.study.spec import Budget
from sweeplab.study.values import Choices, Derived, Range
from sweeplab.sweep.steering import enqueue, stop_trial


@pytest.fixture
def kept(opened, dataset):
    """Return a function that keeps a study in a lab, as running it would, and opens its storage as a worker."""

    def keep(spec):
        given = {*spec.grid, *spec.search}
        fixed = {name: value for name, value in spec.fixed.items() if name not in given}
        spec = spec.model_copy(update={"fixed": fixed})
        folder, store = opened(spec)
        write_study(spec, folder, describe_data(spec, dataset))
        return folder, store

    return keep


SEARCH = {
    "learning_rate": Range(3e-4, 1e-2, log=True),
    "betas": Choices(((0.9, 0.95), (0.9, 0.99))),
    "warmup_iters": Derived(Expression("max_iters // 10")),
    "n_head": Choices((1, 2, 3, 4, 8)),
}


def test_enqueued_values_are_tried_next_and_the_rest_is_sampled(tiny, kept):
    folder, store = kept(tiny(grid={"n_embd": [16, 24]}, search=SEARCH))
    done = enqueue(folder, ["learning_rate=1e-3", "betas=[0.9, 0.99]", "n_embd=24", "n_head=3"])
    assert done.trials == [("n_embd=24", 0)]
    claim = claim_one(store)
    assert (claim.cell.key, claim.number) == ("n_embd=24", 0)
    assert claim.sampled == {"learning_rate": 1e-3, "betas": (0.9, 0.99), "n_head": 3}
    assert claim.enqueued == {
        "learning_rate": 1e-3,
        "betas": [0.9, 0.99],
        "n_embd": 24,
        "n_head": 3,
    }
    assert enqueue(folder, ["learning_rate=2e-3"]).trials == [
        ("n_embd=16", 0),
        ("n_embd=24", 1),
    ]
    claims = [claim_one(store), claim_one(store)]
    assert [each.sampled["learning_rate"] for each in claims] == [2e-3, 2e-3]
    assert claim_one(store).enqueued is None, "then the sampler proposes"


def test_what_a_person_asks_for_is_tried_in_a_full_cell_too(tiny, kept):
    folder, store = kept(tiny(budget=Budget(trials_per_cell=2)))
    finish_all(store)
    assert claim_one(store) is None and not store.has_room()
    done = enqueue(folder, ["learning_rate=1e-3"])
    assert "sweeplab resume tiny" in done.what and "stop tiny/all/2" in done.undo[0]
    assert store.has_room()
    (claim,) = finish_all(store)
    assert (claim.number, claim.sampled) == (2, {"learning_rate": 1e-3})
    assert store.tallies()[0].counted == 3 and not store.has_room()


def test_a_trial_that_has_not_begun_is_withdrawn_and_leaves_nothing(tiny, kept):
    folder, store = kept(tiny(budget=Budget(trials_per_cell=1)))
    enqueue(folder, ["learning_rate=1e-3"])
    done = stop_trial(folder, 0)
    assert "sweeplab enqueue tiny learning_rate=0.001" in done.undo[0]
    with pytest.raises(BadInput, match="has no trial 0; allowed: none yet"):
        stop_trial(folder, 0)
    (claim,) = finish_all(store)
    assert (claim.number, claim.enqueued) == (1, None)
    with pytest.raises(BadInput, match="trial 1 in cell all has ended: complete"):
        stop_trial(folder, 1)


def test_left_to_the_sampler_is_drawn_until_the_constraints_are_met(tiny, kept):
    search = {"learning_rate": Range(3e-4, 1e-2, log=True), "weight_decay": Range(0.0, 1.0)}
    folder, store = kept(tiny(search=search, constraints=["weight_decay > 0.8"]))
    enqueue(folder, ["learning_rate=1e-3"])
    claim = claim_one(store)
    assert claim.sampled["learning_rate"] == 1e-3 and claim.sampled["weight_decay"] > 0.8
    assert claim.enqueued and not claim_one(store).enqueued
    with pytest.raises(
        BadInput, match="no trial of cell all with these values meets 'weight_decay"
    ):
        enqueue(folder, ["weight_decay=0.5"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("learning_rat=1", "'learning_rat' is neither in the grid nor searched in this study; allowed: {all}; did"),
        ("learning_rate", "'learning_rate' lacks a value; allowed: name=value"),
        ("learning_rate=x", 'learning_rate is "x"; allowed: a number, above 0'),
        ("learning_rate=0.5", "learning_rate is 0.5; allowed: 0.0003 to 0.01"),
        ("n_embd=32", "n_embd is 32, which no cell of the study has; allowed: 16 | 24"),
        ("betas=[0.9,0.98]", "betas is [0.9, 0.98]; allowed: [0.9, 0.95] | [0.9, 0.99]"),
        ("warmup_iters=3", "'warmup_iters' is neither in the grid nor searched in this study; allowed: {all}"),
    ],
)  # fmt: skip
def test_refused(words, said, tiny, kept):
    search = {name: SEARCH[name] for name in ("learning_rate", "betas", "warmup_iters")}
    spec = tiny(grid={"n_embd": [16, 24]}, search=search)
    folder, store = kept(spec)
    with pytest.raises(BadInput) as refused:
        enqueue(folder, words.split())
    assert str(refused.value).startswith(said.replace("{all}", "n_embd, learning_rate, betas"))
    assert json.dumps([len(store.study(cell).get_trials()) for cell in store.cells]) == "[0, 0]"


def test_which_trial_is_meant(tiny, kept):
    folder, store = kept(tiny(grid={"n_embd": [16, 24]}))
    for _ in range(2):
        claim_one(store)
    with pytest.raises(
        BadInput, match="2 cells of study tiny have a trial 0; name one with --cell"
    ):
        stop_trial(folder, 0)
    with pytest.raises(
        BadInput, match="has no cell 'n_embd=25'; allowed: n_embd=16, n_embd=24; did you mean"
    ):
        stop_trial(folder, 0, "n_embd=25")
    assert stop_trial(folder, 0, "n_embd=24").trials == [("n_embd=24", 0)]
    assert store.poll_commands() and store.commands.state.stopped == {("n_embd=24", 0)}
