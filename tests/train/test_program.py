"""A compiled step trains as torch's operations do, to the same bits in any stack; where it pays, it is taken."""

import getpass
import math
import os
import pickle
import stat
import subprocess
import sys
from contextlib import suppress

import psutil
import pytest
import torch
from terminal import wait_until
from train.test_stack import assert_same, train, train_in_stacks_of
from trained import stack_of

from sweeplab.errors import BadInput
from sweeplab.files import cache_folder
from sweeplab.train import program
from sweeplab.train.program import COMPILED_FROM_STEPS, compiling_pays, program_file
from sweeplab.train.run import TrainingRun
from sweeplab.train.stack import Stack

SHORT = {"max_iters": 24, "eval_interval": 12, "label_smoothing": 0.1}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_compiled_stack_equals_stacks_of_one_and_trains_as_operations_do(unlike, tokens):
    runs = unlike("P", compile=True, **SHORT)
    together = train_in_stacks_of(4, runs, tokens)
    step = program_file(runs[0].values, 1)
    assert step.exists() and program._losses_file(step).exists()
    for capacity in (1, 3):
        assert_same(
            together, train_in_stacks_of(capacity, runs, tokens), [run.key for run in runs]
        )
    plain = [TrainingRun(run.key, run.values.replace(compile=False)) for run in runs]
    for key, points in train_in_stacks_of(4, plain, tokens)[0].items():
        for (at, loss, losses), (also_at, also, also_losses) in zip(
            points, together[0][key], strict=True
        ):
            assert at == also_at
            assert also == pytest.approx(loss, abs=1e-4) and also_losses == pytest.approx(
                losses, abs=1e-4
            )


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_compiled_run_goes_on_beside_one_that_diverges(unlike, tokens):
    runs = unlike("P", compile=True, **SHORT)
    whole = train_in_stacks_of(1, [runs[2]], tokens)[1]["run2"]
    first = stack_of(runs, tokens)
    first.advance()
    first.advance()
    other = Stack(runs[0].values, tokens, tokens, capacity=2)
    other.admit(
        TrainingRun("broken", runs[1].values.replace(learning_rate=1e6, grad_clip=None))
    )
    other.admit(runs[2], first.snapshot("run2"))
    resumed = train(other)[1]["run2"]
    assert all(torch.equal(row, resumed[name]) for name, row in whole.items())


def compilers(process):
    """Return the processes that compile a step for a process."""
    with suppress(psutil.Error):  # one has ended between
        return [
            each
            for each in process.children(recursive=True)
            if program._COMPILING in each.cmdline()
        ]
    return []


WORKER = """
import pickle, sys
from pathlib import Path
from sweeplab.train.program import load_programs
load_programs(*pickle.loads(Path(sys.argv[1]).read_bytes()))
"""


@pytest.mark.slow
def test_the_compilers_of_a_killed_worker_end_with_it(values_of, tokens, monkeypatch, tmp_path):
    monkeypatch.setenv("SWEEPLAB_CACHE", str(tmp_path))
    given = tmp_path / "given"
    given.write_bytes(pickle.dumps((values_of(compile=True), tokens, tokens)))
    worker = psutil.Popen([sys.executable, "-c", WORKER, str(given)])
    (compiling,) = wait_until(lambda: compilers(worker))
    cpp = wait_until(
        lambda: [
            each for each in compiling.children(recursive=True) if "cc1plus" in each.name()
        ]
    )
    worker.kill()
    _, alive = psutil.wait_procs([compiling, *cpp], timeout=10)
    assert not [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]
    worker.wait()


TRAIN = """
import pickle, sys
from pathlib import Path
from sweeplab.train.run import TrainingRun
from sweeplab.train.stack import Stack
values, train, val = pickle.loads(Path(sys.argv[1]).read_bytes())
stack = Stack(values, train, val)
stack.admit(TrainingRun("0", values))
stack.advance()
stack.advance()
"""


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "muon"], ids=["a whole step", "losses alone"])
def test_programs_are_not_where_another_user_may_have_put_some(
    optimizer, values_of, tokens, tmp_path
):
    """torch's own folder for them lies in /tmp, and its name is known."""
    given, cache, temporary, other = (
        tmp_path / name for name in ("given", "cache", "tmp", "other")
    )
    values = values_of(compile=True, optimizer=optimizer, max_iters=2, eval_interval=1)
    given.write_bytes(pickle.dumps((values, tokens, tokens)))
    temporary.mkdir()
    other.mkdir()
    (temporary / f"torchinductor_{getpass.getuser()}").symlink_to(other)
    known = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TORCHIND", "TRITON"))
    }
    known |= {"TMPDIR": str(temporary), "SWEEPLAB_CACHE": str(cache)}
    subprocess.run([sys.executable, "-c", TRAIN, given], env=known, check=True)
    assert not [*other.iterdir()]
    programs = cache / ("programs" if optimizer == "adamw" else "inductor")
    assert [*programs.iterdir()] and (
        optimizer == "adamw" or stat.S_IMODE(programs.stat().st_mode) == 0o700
    )


def test_without_a_compiler_that_is_said_in_one_line(values_of, tokens, monkeypatch, tmp_path):
    monkeypatch.setenv("SWEEPLAB_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(
        BadInput,
        match=r"no C\+\+ compiler for compile: true on a CPU; set compile: false, or install",
    ):
        Stack(values_of(compile=True), tokens, tokens)


def test_auto_compiles_small_models_of_many_steps(values_of, monkeypatch, tmp_path):
    monkeypatch.setenv("SWEEPLAB_CACHE", str(tmp_path))
    monkeypatch.setattr(program, "compiler", lambda: "/usr/bin/g++")
    small, many = values_of(compile=True), COMPILED_FROM_STEPS
    assert [compiling_pays(small, steps) for steps in (many, many - 1, math.inf)] == [
        True,
        False,
        True,
    ]
    for changes in (
        {"n_embd": 512, "n_head": 8},
        {"n_expert": 2},
        {"optimizer": "muon"},
        {"grad_accum": 2},
    ):
        assert not compiling_pays(small.replace(**changes), many), changes
    monkeypatch.setattr(program, "compiler", lambda: None)
    assert not compiling_pays(small, many)
    file = program_file(small, 1)
    assert file.is_relative_to(cache_folder())
    assert len({file, program_file(small.replace(n_layer=3), 1), program_file(small, 2)}) == 3
