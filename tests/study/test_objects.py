"""Samplers and pruners given as Optuna's objects are written as a study file has them."""

import warnings
from functools import partial

import pytest
from optuna import pruners, samplers

from sweeplab.errors import BadInput
from sweeplab.study.options import as_written
from sweeplab.study.plan import with_algorithms


def quiet(kind, **arguments):
    """Return an object without Optuna's warnings that it is experimental."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kind(**arguments)


WRITTEN = [
    (samplers.TPESampler(n_startup_trials=5, seed=3), {"type": "tpe", "n_startup_trials": 5}),
    (samplers.TPESampler, {"type": "tpe"}),
    (
        partial(samplers.GPSampler, deterministic_objective=True),
        {"type": "gp", "deterministic_objective": True},
    ),
    (pruners.MedianPruner(n_warmup_steps=10), {"type": "median", "n_warmup_steps": 10}),
    (
        pruners.ThresholdPruner(upper=4.0),
        {"type": "threshold", "upper": 4.0, "n_warmup_steps": 0, "interval_steps": 1},
    ),
    ({"type": "tpe"}, {"type": "tpe"}),
]


@pytest.mark.parametrize(("given", "written"), WRITTEN, ids=lambda part: str(part)[:30])
def test_an_object_is_written_by_its_class_and_arguments(given, written, tiny):
    assert as_written(given) == written
    is_pruner = "Pruner" in repr(given)
    spec = with_algorithms(tiny(), None if is_pruner else given, given if is_pruner else None)
    read = spec.pruner if is_pruner else spec.sampler
    assert read.type == (written if isinstance(written, str) else written["type"])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            samplers.BruteForceSampler,
            "a BruteForceSampler cannot be made in each worker; allowed: CmaEsSampler, ",
        ),
        (
            quiet(samplers.GPSampler, deterministic_objective=True),
            "this GPSampler does not tell the argument behind its ",
        ),
        (quiet(samplers.TPESampler, gamma=lambda n: 3), "gamma"),
        (7, "sampler is 7; allowed: auto | joint | tpe"),
    ],
    ids=lambda given: str(given)[:30],
)
def test_what_a_worker_cannot_make_is_one_line(given, said, tiny):
    with pytest.raises(BadInput) as error:
        with_algorithms(tiny(), given, None)
    assert said in str(error.value) and "\n" not in str(error.value)
