"""Whatever may be searched is sampled as it is written."""

import json
import math

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_study import study_of_parts as study

from sweeplab.hyperparameters import TABLE
from sweeplab.study.problems import LENGTHS
from sweeplab.study.rules import rules
from sweeplab.study.search import is_searched
from sweeplab.study.space import Space, cells


def space_of(vocab_size=65, **parts) -> Space:
    spec = study(**parts)
    return Space(spec, cells(spec, vocab_size)[0][0], vocab_size)


def _ranges(row):
    low = row.low if row.low is not None else row.above + 1e-9
    high = min(row.high if row.high is not None else (row.below or 1e6) - 1e-3, 1e6)
    number = st.integers(math.ceil(low), int(high)) if row.kind == "int" else st.floats(low, high)
    ends = st.tuples(number, number).filter(lambda ends: ends[0] != ends[1]).map(sorted)

    def written(ends):
        base = {"min": ends[0], "max": ends[1]}
        forms = [st.just(base)]
        if ends[0] > 0:
            forms.append(st.just(base | {"log": True}))
        if row.kind == "int":
            divisors = [n for n in range(1, 40) if (ends[1] - ends[0]) % n == 0]
            forms.append(st.sampled_from(divisors).map(lambda step: base | {"step": step}))
        return st.one_of(forms)

    return ends.flatmap(written)


def _entries(row):
    forms = [st.just("suggested")] if row.suggested is not None else []
    if row.kind in ("int", "float"):
        forms.append(_ranges(row))
    if row.kind == "bool":
        forms.append(st.just([True, False]))
    if row.choices:
        forms.append(st.lists(st.sampled_from(row.choices), min_size=1, unique=True))
    if row.kind == "floats":
        pair = st.tuples(st.floats(0, 0.99), st.floats(0, 0.99)).map(list)
        forms.append(st.lists(pair, min_size=1, max_size=4, unique_by=tuple))
    return st.one_of(forms)


# Not what some rule holds against another row: drawn at random few go together. What divides what is tested above.
# Of these any value goes with the others' defaults. Epochs stand in the place of max_iters.
_WITH_DEFAULTS = {"block_size", "batch_size", "mask_share", "span_length", "optimizer"}
_TOGETHER = set().union(*(rule.names for rule in rules(study(), 65) if len(rule.names) > 1)) - _WITH_DEFAULTS
_FREE = [
    row
    for row in TABLE.values()
    if is_searched(row) and row.name not in {"wandb_project", *LENGTHS[1:]} | _TOGETHER
]
_SEARCHES = st.lists(st.sampled_from(_FREE), min_size=1, max_size=6, unique_by=lambda row: row.name).flatmap(
    lambda rows: st.fixed_dictionaries({row.name: _entries(row) for row in rows})
)


@pytest.mark.slow
@given(_SEARCHES, st.integers(0, 2**31), st.data())
@settings(max_examples=60)
def test_whatever_is_searched_is_sampled_as_written(search, seed, data):
    space = space_of(search=search)
    distributions = space.distributions()
    point = data.draw(st.lists(st.floats(0, 1), min_size=len(distributions), max_size=len(distributions)))
    enqueued = space.quasi_random(point)
    assert json.loads(json.dumps(enqueued)) == enqueued
    for name, distribution in distributions.items():
        assert distribution._contains(distribution.to_internal_repr(enqueued[name]))
    trials = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed % 2**31))
    trials.enqueue_trial(enqueued)
    for _ in range(3):
        trial = trials.ask()
        sampled = space.suggest(trial)
        values = space.resolve(sampled, 0)
        assert space.broken(values) is None
        for name, value in sampled.items():
            assert TABLE[name].check(value) == value
            assert type(value) is type(TABLE[name].check(value))
            written = search[name]
            if isinstance(written, dict):
                assert written["min"] <= value <= written["max"]
                assert (value - written["min"]) % written.get("step", value - written["min"] or 1) == 0
            elif isinstance(written, list):
                assert value in [tuple(each) if isinstance(each, list) else each for each in written]
