"""Memory that does not suffice: stacks are halved, runs computed in more parts, and no bit or step is lost by it."""

import json
import os
import sys

import pytest
import torch
from terminal import captured

from sweeplab.lab.events import StudyNotice
from sweeplab.records.runs import DOES_NOT_FIT
from sweeplab.study.spec import Budget, Engine
from sweeplab.sweep.trials.sharing import Report
from sweeplab.train.stack import Stack
from sweeplab.train.step import TrainStep

pytestmark = pytest.mark.usefixtures("one_thread")

ERRORS = {
    "CUDA's allocator": torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB."
    ),
    "the CPU's": RuntimeError(
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."
    ),
    "Python's": MemoryError(),
}


def losses(folder):
    return {
        run.path.name: [
            (each.iteration, each.val_loss, each.train_loss) for each in run.points()
        ]
        for run in folder.runs()
    }


def holds(monkeypatch, n_runs, n_rows, error, after=0):
    """Let the device hold so many runs at a time, each with so many rows of a batch, from an iteration on."""
    real = TrainStep.differentiate

    def differentiate(step, inputs, buffers):
        rows = len(inputs.batch.targets[0]) // step.n_parts
        if inputs.columns["step"][0] > after and (
            len(inputs.numbers) > n_runs or rows > n_rows
        ):
            raise error
        return real(step, inputs, buffers)

    monkeypatch.setattr(TrainStep, "differentiate", differentiate)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "after"), [*zip(ERRORS.values(), (0, 13, 0), strict=True)], ids=ERRORS
)
def test_a_stack_is_halved_until_it_fits_and_no_bit_changes(
    error, after, tiny, work, monkeypatch
):
    budget, engine = Budget(trials_per_cell=8), Engine(stack=8)
    whole, _, _ = work(tiny(name="whole", budget=budget, engine=engine))
    holds(monkeypatch, 2, 4, error, after)
    folder, _, heard = work(tiny(name="halved", budget=budget, engine=engine))
    assert losses(folder) == losses(whole)
    notices = [event.message for event in heard if isinstance(event, StudyNotice)]
    assert ["stack of 8" in notices[0], "stack of 4" in notices[1], len(notices)] == [
        True,
        True,
        2,
    ]
    evaluated = [
        (each.claim.trial_id, each.iteration) for each in heard if isinstance(each, Report)
    ]
    assert len(evaluated) == len(set(evaluated)) == 8 * 3
    assert all(run.read_end().grad_accum is None for run in folder.runs())


@pytest.mark.slow
def test_a_run_alone_is_computed_in_more_parts_and_its_end_says_so(tiny, work, monkeypatch):
    spec = tiny(name="whole", budget=Budget(trials_per_cell=2), seeds=[0, 1])
    whole, _, _ = work(spec)
    holds(monkeypatch, 1, 1, ERRORS["Python's"], after=10)
    folder, _, heard = work(spec.model_copy(update={"name": "parts"}))
    for run in folder.runs():
        end, start = run.read_end(), run.read_start()
        assert (end.state, end.grad_accum, start.values.grad_accum) == ("complete", 4, 1)
    found, expected = losses(folder), losses(whole)
    for name, curve in expected.items():
        assert [each[0] for each in found[name]] == [each[0] for each in curve]
        assert found[name][2][1] == curve[2][1], "the bits up to iteration 10"
        assert found[name][-1][1] == pytest.approx(curve[-1][1], rel=1e-5)
    assert found != expected, "the last bits of gradients are other ones"
    said = [event.message for event in heard if isinstance(event, StudyNotice)]
    assert "continuing with grad_accum 4" in said[-1] and len(said) < 6, (
        "the second trial does not try again"
    )


def test_what_is_computed_in_parts_stays_so_where_it_goes_on(tiny, work, monkeypatch):
    spec = tiny(budget=Budget(trials_per_cell=1), values={"save_interval": 1000})
    holds(monkeypatch, 1, 2, ERRORS["Python's"])
    whole, _, _ = work(spec.model_copy(update={"name": "whole"}))
    left = iter(range(17))
    work(spec, lambda: next(left, None) is None)
    monkeypatch.undo()  # a worker with more memory
    folder, _, _ = work(spec)
    assert losses(folder) == losses(whole)
    assert [run.read_end().grad_accum for run in folder.runs()] == [2]


def test_an_update_that_breaks_off_is_not_gone_on_from(tiny, work, monkeypatch):
    whole, _, _ = work(
        tiny(name="whole", budget=Budget(trials_per_cell=2), engine=Engine(stack=2))
    )
    real, broken = Stack.step, []

    def step(stack):
        real(stack)
        if not broken and stack._members[0].iteration == 14:
            broken.append(True)
            stack._rows["weights"].mul_(1.5)
            raise MemoryError

    monkeypatch.setattr(Stack, "step", step)
    folder, _, _ = work(
        tiny(name="torn", budget=Budget(trials_per_cell=2), engine=Engine(stack=2))
    )
    assert losses(folder) == losses(whole)


def test_a_run_that_does_not_fit_fails_once_with_the_sizes_and_spares_smaller_ones(
    tiny, work, monkeypatch
):
    holds(monkeypatch, 1, 0, ERRORS["the CPU's"])
    folder, _, _ = work(tiny(budget=Budget(trials_per_cell=5), engine=Engine(stack=1)))
    ends = [run.read_end().ending for run in folder.runs()]
    assert [end.outcome for end in ends] == ["failed"] * 3, "a cell gives up after three"
    for end in ends:
        assert end.error.startswith(DOES_NOT_FIT + ": ") and "\n" not in end.error
        assert "one run alone, row by row, needs " in end.error and " kB, " in end.error
        assert " GB are free (DefaultCPUAllocator: can't allocate memory" in end.error
    assert not list(folder.path.rglob("state*"))


# A worker of its own, whose memory is limited while it trains: by so many bytes beyond what it has at an evaluation.
TIGHT = """\
import json, resource, sys
import psutil, torch
from sweeplab.records.folders import StudyFolder
from sweeplab.study.file.reading import read_study
from sweeplab.study.inputs import study_dataset
from sweeplab.sweep.trials.store import Store
from sweeplab.sweep.loop import Loop
from pathlib import Path

torch.set_num_threads(1)
at, spare = int(sys.argv[2]), float(sys.argv[3])
spec = read_study(Path("tight.yaml"), [*sys.argv[4:], "--name " + sys.argv[1]])
dataset = study_dataset(spec)
folder = StudyFolder(Path("lab"), spec.name)
folder.path.mkdir(parents=True)
store = Store.create(spec, dataset.sizes, folder.storage_url)
said, report_many = [], store.report_many

def report(reports):
    verdicts = report_many(reports)
    global spare
    if spare and at in [each.iteration for each in reports]:
        used, spare = psutil.Process().memory_info().vms + 1e6 * spare, 0
        resource.setrlimit(resource.RLIMIT_AS, (int(used),) * 2)
    return verdicts

store.report_many = report
Loop(store, dataset, folder, lambda notice: said.append(notice.message)).run()
print(json.dumps(said))
"""
STUDY = """\
name: tight
data: {corpus: python-docs, tokenizer: char}
fixed: {block_size: 128, batch_size: 16, max_iters: 4, n_layer: 2, n_head: 2, n_embd: 64, dropout: 0.0,
        eval_interval: 2, eval_tokens: 512, warmup_iters: 1, device: cpu}
search: {learning_rate: {min: 3e-4, max: 1e-2, log: true}}
budget: {trials_per_cell: 4}
sampler: random
pruner: none
engine: {stack: 4}
"""


@pytest.mark.faults
def test_a_worker_whose_memory_is_limited_trains_all_the_same(tmp_path):
    from sweeplab.records.folders import StudyFolder

    (tmp_path / "tight.yaml").write_text(STUDY)
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}

    def train(name, at, megabytes, *changes):
        command = [sys.executable, "-c", TIGHT, name, str(at), str(megabytes), *changes]
        ended = captured(command, cwd=tmp_path, env=environment)
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout), StudyFolder(tmp_path / "lab", name)

    none, whole = train("whole", 0, 0)
    assert none == []
    said, folder = train("middle", 2, 50)
    assert said == ["cell all: not enough memory for a stack of 4; continuing with 2 runs"]
    assert losses(folder) == losses(whole)
    said, folder = train("alone", 2, 10)
    ends = [run.read_end() for run in folder.runs()]
    assert "; continuing with grad_accum" in said[-1]
    assert [end.state for end in ends] == ["complete"] * 4 and all(
        end.grad_accum for end in ends
    )
    said, folder = train("never", 0, 12, "batch_size=1", "block_size=4096")
    errors = [run.read_end().error for run in folder.runs()]
    assert errors and all(error.startswith(f"{DOES_NOT_FIT}: ") for error in errors)
