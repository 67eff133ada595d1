"""The public ways of torch come to what its private parts come to."""

import pytest
from train.test_stack import train_in_stacks_of

from sweeplab.processes import VARIABLE
from sweeplab.train import program
from sweeplab.train.program import compiles_whole
from sweeplab.train.run import TrainingRun


def test_a_compiler_that_lacks_a_part_is_not_used(unlike, monkeypatch):
    values = unlike("P", compile=True, device="cpu")[0].values
    assert compiles_whole(values) and program.why_no_programs() == ""
    monkeypatch.setattr(
        program, "_COMPILER", {"_inductor/compile_fx.py": "compile_fx_ahead_of_all"}
    )
    program._lacking.cache_clear()
    assert program.why_no_programs() == "this version of torch has no compile_fx_ahead_of_all"
    assert not compiles_whole(values)
    program._lacking.cache_clear()


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
