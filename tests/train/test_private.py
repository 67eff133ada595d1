"""The public ways of torch come to what its private parts come to."""

import pytest
from train.test_stack import train_in_stacks_of

from sweeplab.processes import VARIABLE
from sweeplab.train.run import TrainingRun


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
@pytest.mark.timeout(1800)
def test_without_programs_the_losses_are_compiled(unlike, tokens, monkeypatch):
    monkeypatch.setenv(VARIABLE, "1")
    runs = unlike("P", compile=True, max_iters=24, eval_interval=12)
    plain = [TrainingRun(run.key, run.values.replace(compile=False)) for run in runs]
    curves, compiled = (train_in_stacks_of(4, each, tokens)[0] for each in (plain, runs))
    for key, points in curves.items():
        for (at, loss, _), (also_at, also, _) in zip(points, compiled[key], strict=True):
            assert at == also_at and also == pytest.approx(loss, abs=1e-4)
