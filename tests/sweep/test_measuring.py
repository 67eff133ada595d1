"""What is measured of this machine is real and kept; the precision of a study is never measured."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sweeplab.errors import BadInput
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.study.space import spaces_of
from sweeplab.study.spec import Budget, Engine
from sweeplab.sweep import choosing, planning
from sweeplab.sweep.choosing import Timed, Way, measured, precision
from sweeplab.sweep.planning import bench_study, look_ahead, make_plan
from sweeplab.sweep.progress import START_SECONDS
from sweeplab.sweep.trial import TrialRuns
from sweeplab.train import devices
from sweeplab.train.run import row_flops

TOKENS = (np.arange(5_000) * 7 % 65).astype(np.uint16)
SMALL = Hyperparameters.of({
    "n_layer": 1, "n_embd": 16, "n_head": 2, "block_size": 8, "batch_size": 4, "vocab_size": 65, "device": "cpu",
    "dtype": "float32", "compile": False,
})  # fmt: skip


@pytest.mark.slow
def test_steps_are_timed_once_and_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SWEEPLAB_CACHE", str(tmp_path))
    ways = [Timed(SMALL, TOKENS, Way(2, 1, stack, "float32", False)) for stack in (1, 8)]
    lone, stacked = measured(ways, TOKENS)
    assert stacked > 0 and lone > 0  # which is less is said by tests/benchmarks/shapes.py, of a quiet machine
    kept = [json.loads(file.read_bytes()) for file in (tmp_path / "steps").iterdir()]
    assert sorted(each["stack"] for each in kept) == [1, 8]
    monkeypatch.setattr(choosing, "_side_by_side", None)
    assert measured(ways, TOKENS) == [lone, stacked]


@pytest.mark.slow
def test_what_cannot_be_trained_is_said() -> None:
    broken = SMALL.replace(vocab_size=3)
    with pytest.raises(RuntimeError, match="IndexError"):
        measured([Timed(broken, TOKENS, Way(1, 1, 1, "float32", False))], TOKENS)


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
    flags: str, changed: dict, dtype: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "processor", lambda: f"some processor; {flags}")
    monkeypatch.setattr(choosing, "measured", lambda *given: pytest.fail("nothing is timed"))
    settled = precision(SMALL.replace(**changed))
    assert settled[0] == dtype and why in settled[1]


def test_a_plan_says_the_precision_and_why(tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "multiplies_bfloat16", lambda: True)
    monkeypatch.setattr(choosing, "multiplies_bfloat16", lambda: True)
    wide = {"n_embd": 128, "batch_size": 32, "n_head": 2, "max_iters": 2}
    planned, _, _ = make_plan(tiny(grid={"n_layer": [1, 2]}, values=wide), tmp_path)
    why = (
        "this processor multiplies bfloat16, and n_embd 128 is 64 or more, in n_layer=2, which has most FLOPs"
    )
    assert (planned.dtype, planned.dtype_by) == ("bfloat16", why)
    stated, _, _ = make_plan(tiny(values=wide | {"dtype": "float32"}), tmp_path)
    assert (stated.dtype, stated.dtype_by) == ("float32", "as the study says")


def test_a_plan_has_one_line_a_precision(tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "processor", lambda: "some processor; fma avx512f")
    unlike, _, _ = make_plan(tiny(grid={"dtype": ["float32", "bfloat16"]}), tmp_path)
    plain, slow = unlike.precisions()
    assert plain == "dtype=float32 in float32: as the study says"
    assert slow.startswith("dtype=bfloat16 in bfloat16: as the study says; 16 bits are slower (3.5 times")
    changes = [{}, {"norm": "rmsnorm"}, {"dtype": "bfloat16"}]
    several, _, _ = make_plan(tiny(cells=changes, values={"dtype": "float32"}), tmp_path)
    assert [line.partition(":")[0] for line in several.precisions()] == [
        "base, norm=rmsnorm in float32",
        "dtype=bfloat16 in bfloat16",
    ]
    alike, _, _ = make_plan(tiny(), tmp_path)
    why = "every cell trains in float32: this processor has no instructions for products in bfloat16"
    assert [line.startswith(why) for line in alike.precisions()] == [True]


def test_a_study_keeps_the_precision_that_it_began_with(tiny, opened, dataset) -> None:
    spec = tiny()
    folder, store = opened(spec)
    planned, _, _ = make_plan(spec, folder.lab)
    assert planned.dtype == "float32"
    folder.plan_file.write_text(json.dumps(planned.as_dict() | {"dtype": "bfloat16"}))
    again, _, _ = make_plan(spec, folder.lab)
    assert again.dtype == "bfloat16"
    (claim,) = store.claim_many(1)
    (training,) = TrialRuns.of_claim(claim, store.spaces[0], spec, dataset, folder).trainings.values()
    assert training.run.values.dtype == training.folder.read_start().values.dtype == "bfloat16"


def test_a_plan_says_how_long_a_study_takes_by_the_steps_of_its_smallest_and_largest_cell(
    tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(values: Hyperparameters) -> float:
        return 1e-3 + 1e-9 * row_flops(values) * values.batch_size

    timed: list[Hyperparameters] = []

    def planted(jobs: list[Timed], *_: object) -> list[float]:
        timed.extend(each.values for each in jobs)
        return [step(each.values) for each in jobs]

    monkeypatch.setattr(choosing, "measured", planted)
    fixed = {"eval_interval": 50, "eval_tokens": 192, "max_iters": 100}
    spec = tiny(grid={"n_embd": [8, 24, 16]}, budget=Budget(trials_per_cell=2), seeds=[0, 1])
    spec = spec.model_copy(update={"fixed": {**spec.fixed, **fixed}})
    planned, cells, dataset = make_plan(spec, tmp_path)
    ahead = look_ahead(spec, planned, tmp_path)
    assert [each.n_embd for each in timed] == [8, 24] and ahead.timed_by == "timed steps of 2 cells"
    # 2 trials by 2 seeds of each cell; three evaluations of 192 tokens at a third of a training token's cost.
    typical = [each.typical for each in spaces_of(spec, cells, dataset.sizes)]
    steps = [100 + 3 * 192 / 3 / (each.batch_size * each.block_size) for each in typical]
    seconds = START_SECONDS + 4 * sum(n * step(each) for n, each in zip(steps, typical, strict=True))
    assert ahead.seconds == pytest.approx(seconds, rel=0.25), "the last stack is not full"


def test_much_smaller_runs_tell_no_plan_how_long_it_takes(
    tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "measured", lambda jobs, *_: [1e-3 for _ in jobs])
    spec = tiny(budget=Budget(trials_per_cell=2))
    planned, _, _ = make_plan(spec, tmp_path)
    flops, seconds = planned.cells[0].train_flops, 3.0  # nearly all of it is overhead
    for share, by in ((0.01, "timed steps"), (0.5, "earlier runs")):
        known = [(share * flops, seconds)] * 5
        monkeypatch.setattr(planning, "_earlier_runs", lambda *_, known=known: (known, 1.0))
        ahead = look_ahead(spec, planned, tmp_path)
        assert by in ahead.timed_by and ahead.seconds < 2 * 2 * seconds / 0.5 + START_SECONDS


@pytest.mark.parametrize(
    ("most_flops", "is_here", "budget", "seconds"),
    [
        (math.inf, True, {"trials_per_cell": 2}, 600.0),
        (math.inf, True, {"flops": 1e9}, 600.0),
        (0.0, True, {"trials_per_cell": 2, "time": 600.0}, None),
        (math.inf, False, {"flops": 1e9, "time": 600.0}, None),
        (0.0, True, {"time": 600.0}, 600.0),
    ],
)
def test_a_plan_says_a_time_only_where_steps_are_timed_or_the_budget_is_one(
    most_flops: float, is_here: bool, budget: dict, seconds: float | None, tiny, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(choosing, "measured", lambda jobs, *_: [1e-2 for _ in jobs])
    monkeypatch.setattr(choosing, "known_seconds", lambda *_: None)
    monkeypatch.setattr(planning, "MOST_PLANNED_FLOPS", most_flops)
    spec = tiny(grid={"n_embd": [8, 24]}, budget=Budget(**budget))
    planned = replace(make_plan(spec, tmp_path)[0], is_here=is_here)
    ahead = look_ahead(spec, planned, tmp_path)
    if seconds is None:
        assert ahead.seconds is None and "once a step was timed" in ahead.in_words
    else:
        assert 0 < ahead.seconds <= seconds


@pytest.mark.slow
def test_a_bench_times_the_ways_of_a_study_and_says_which_one_the_plan_takes(
    tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "STACKS", (1, 8))
    spec = tiny(budget=Budget(trials_per_cell=64))  # enough for a worker a core
    cell, rows = bench_study(spec, tmp_path)
    assert cell == "all"
    (taken,) = [row for row in rows if row.taken]
    assert (taken.dtype, taken.compile) == ("float32", False)
    assert taken.stack == 8 and "a stack of 8, for " in taken.why
    speeds = {(row.workers, row.stack, row.compile): row.trial_steps_per_second for row in rows}
    assert list(speeds.values()) == sorted(speeds.values(), reverse=True)
    assert speeds[taken.workers, 8, True] > speeds[taken.workers, 1, False]


def test_a_bench_is_of_this_machines_cpu(tiny, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="engine slurm; bench times this machine's CPU"):
        bench_study(tiny(engine=Engine(type="slurm")), tmp_path)
