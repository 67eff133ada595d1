"""What is measured of this machine is real and kept; the precision of a study is never measured."""

import json

import pytest

from sweeplab.hyperparameters import Hyperparameters
from sweeplab.study.spec import Budget
from sweeplab.sweep import choosing
from sweeplab.sweep.choosing import precision
from sweeplab.sweep.planning import bench_study, make_plan
from sweeplab.sweep.trial import TrialRuns
from sweeplab.train import devices

SMALL = Hyperparameters.of({
    "n_layer": 1, "n_embd": 16, "n_head": 2, "block_size": 8, "batch_size": 4, "vocab_size": 65, "device": "cpu",
    "dtype": "float32", "compile": False,
})  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "changed", "dtype", "why"),
    [
        ("fma avx512f", {"n_embd": 128, "batch_size": 64}, "float32", "no instructions for products in bfloat16"),
        ("avx512_bf16", {"n_embd": 32, "batch_size": 64}, "float32", "n_embd 32 is below 64"),
        ("avx512_bf16", {"n_embd": 128, "batch_size": 2}, "float32", "too few"),
        ("avx512_bf16", {"n_embd": 128, "batch_size": 64}, "bfloat16", "n_embd 128 is 64 or more"),
        ("avx512_bf16 amx_bf16 amx_tile", {"n_embd": 256, "batch_size": 64}, "bfloat16", "n_embd 256"),
    ],
)  # fmt: skip
def test_the_precision_follows_from_sizes_and_the_processor_alone(
    flags, changed, dtype, why, monkeypatch
):
    monkeypatch.setattr(devices, "processor", lambda: f"some processor; {flags}")
    monkeypatch.setattr(choosing, "_speeds", None)  # nothing is timed
    settled = precision(SMALL.replace(**changed))
    assert settled[0] == dtype and why in settled[1]


def test_a_study_keeps_the_precision_that_it_began_with(tiny, opened, dataset):
    spec = tiny()
    folder, store = opened(spec)
    planned, _, _ = make_plan(spec, folder.lab)
    assert planned.dtype == "float32"
    folder.plan_file.write_text(json.dumps(planned.as_dict() | {"dtype": "bfloat16"}))
    again, _, _ = make_plan(spec, folder.lab)
    assert again.dtype == "bfloat16"
    (claim,) = store.claim_many(1)
    (training,) = TrialRuns.of_claim(claim, spec, dataset, folder).trainings.values()
    assert training.run.values.dtype == training.folder.read_start().values.dtype == "bfloat16"


@pytest.mark.slow
def test_a_bench_times_the_ways_of_a_study_and_says_which_one_the_plan_takes(
    tiny, tmp_path, monkeypatch
):
    monkeypatch.setattr(choosing, "STACKS", (1, 8))
    spec = tiny(budget=Budget(trials_per_cell=64))  # enough for a worker a core
    cell, rows = bench_study(spec, tmp_path)
    assert cell == "all"
    (taken,) = [row for row in rows if row.taken]
    assert (taken.dtype, taken.compile) == ("float32", False)
    assert taken.stack == 8
    speeds = {(row.workers, row.stack, row.compile): row.trial_steps_per_second for row in rows}
    assert list(speeds.values()) == sorted(speeds.values(), reverse=True)
    assert speeds[taken.workers, 8, True] > speeds[taken.workers, 1, False]
