"""What a plan says of a study, and what it refuses before the first trial."""

import json
import shutil
from types import SimpleNamespace

import pytest

from sweeplab.errors import BadInput
from sweeplab.formatting import bytes_in_words
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.model.accounting import forward_flops, n_params
from sweeplab.model.shape import ModelShape
from sweeplab.study import plan as study_plan
from sweeplab.study.options import Sampler
from sweeplab.study.plan import (
    WorkerResources,
    stack_capacity,
    worker_resources,
)
from sweeplab.study.spec import Budget, DataSpec, Engine, Track
from sweeplab.study.values import Choices, Range
from sweeplab.sweep.planning import make_plan
from sweeplab.train import devices
from sweeplab.train.run import COPIES, row_flops, train_memory_bytes


def test_cells_have_the_sizes_and_costs_of_their_runs(tiny, tmp_path, dataset):
    spec = tiny(
        grid={"n_layer": [1, 2], "n_embd": [16, 32]},
        seeds=[0, 1],
        budget=Budget(trials_per_cell=3),
    )
    plan, spaces, data = make_plan(spec, tmp_path / "lab")
    assert data.text_digest == dataset.text_digest == plan.data.text_digest
    assert [cell.cell for cell in plan.cells] == [space.cell.key for space in spaces]
    assert (plan.trials, plan.runs) == (4 * 3, 4 * 3 * 2)
    for space, each in zip(spaces, plan.cells, strict=True):
        values = space.resolve({"learning_rate": 1e-3}, 0)
        shape = ModelShape.of(values)
        assert each.n_params == n_params(shape)
        assert each.max_iters == 20
        assert each.train_tokens == 20 * 4 * 16
        assert each.train_flops == 20 * 4 * 3 * forward_flops(shape, 16)
        assert each.valid_share == 1
    assert plan.train_tokens == plan.runs * 20 * 4 * 16
    assert plan.train_flops == pytest.approx(sum(each.train_flops for each in plan.cells) * 6)
    assert repr(plan).startswith("<plan of tiny: 4 cells, 12 trials, 24 runs\n") and repr(
        plan
    ).endswith(">")
    assert json.loads(json.dumps(plan.as_dict())) == plan.as_dict() | {
        "budget": spec.budget.model_dump()
    }


def test_a_seed_with_a_condition_is_trained_where_it_holds(planned):
    seeds = [0, {"seed": 7, "when": "n_embd > 20"}, {"seed": 8, "when": "n_params > 1e9"}]
    plan = planned(grid={"n_embd": [16, 32]}, seeds=seeds, budget=Budget(trials_per_cell=3))
    assert {each.cell: each.seeds for each in plan.cells} == {
        "n_embd=16": [0],
        "n_embd=32": [0, 7],
    }
    assert (plan.trials, plan.runs) == (6, 3 + 6)
    with pytest.raises(BadInput, match="depends on learning_rate, which varies within a cell"):
        planned(seeds=[0, {"seed": 7, "when": "learning_rate > 0"}])


def test_a_grid_of_searched_values_has_no_more_trials_than_points_that_meet_the_rules(planned):
    asked = {
        "search": {
            "learning_rate": Choices((1e-3, 1e-2, 2e-2)),
            "dropout": Choices((0.0, 0.1)),
        },
        "constraints": ["learning_rate > 0.005"],
        "sampler": Sampler(type="grid"),
    }
    plan = planned(**asked, budget=Budget(trials_per_cell=6))
    assert (
        plan.trials == 4
        and "a cell has only 4 points, and none is trained twice" in plan.warnings[0]
    )


def test_a_cell_in_which_nothing_is_valid_is_refused_by_name(planned):
    with pytest.raises(
        BadInput, match=r"no trial of cell n_embd=32 meets 'learning_rate \* n_embd < 0\.1'"
    ):
        planned(
            grid={"n_embd": [16, 32]},
            search={"learning_rate": Range(5e-3, 1e-2)},
            constraints=["learning_rate * n_embd < 0.1"],
        )


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"search": {"n_layer": Choices((1, 2))}, "budget": Budget(trials_per_cell=2)},
            "n_layer searched: sampling and pruning compare different sizes",
        ),
        ({"values": {"warmup_iters": 20}}, "warmup_iters is not below max_iters"),
    ],
)
def test_what_is_unwise_is_warned_of(changed, said, planned):
    (warning,) = planned(**changed).warnings
    assert warning.startswith(said)


def test_all_problems_are_said_at_once_and_nothing_is_written(tiny, tmp_path):
    (tmp_path / "lab").touch()
    data = DataSpec(corpus="text", tokenizer="char", path=str(tmp_path / "nowhere.txt"))
    with pytest.raises(BadInput) as refused:
        make_plan(tiny(data=data, track=Track(uri="ftp://x")), tmp_path / "lab")
    tracking, lab, corpus = map(str, refused.value.problems)
    assert "'ftp://x' is unknown to MLflow" in tracking
    assert lab.startswith(f"{tmp_path / 'lab'} cannot be written (Not a directory)")
    assert corpus == f"there is no file {tmp_path / 'nowhere.txt'}"
    assert [path.name for path in tmp_path.iterdir()] == ["lab"]


def test_checkpoints_are_weighed_against_the_disk(planned, tmp_path):
    free = shutil.disk_usage(tmp_path).free
    (cell,) = planned().cells
    # Each is kept twice: in the run's folder, and by tracking.
    fit = int(free / (2 * 4 * cell.n_params))
    assert planned(budget=Budget(trials_per_cell=fit // 2)).checkpoint_bytes < free
    with pytest.raises(BadInput, match=r"has .* of free space, checkpoints need "):
        planned(budget=Budget(trials_per_cell=fit * 2))
    assert planned(budget=Budget(trials_per_cell=fit * 2), track=Track(checkpoints="none"))
    # With a server in place of the lab's own tracking there is one of each.
    assert planned(
        budget=Budget(trials_per_cell=fit // 2 * 3), track=Track(uri="http://localhost:1")
    )


@pytest.fixture
def memory(tmp_path, monkeypatch):
    """Return a function that says, as a container does, how many bytes there are."""

    def limit(n_bytes):
        (tmp_path / "memory.max").write_text(f"{n_bytes}\n")
        monkeypatch.setattr(devices, "CGROUP", tmp_path)

    return limit


def test_a_run_that_exceeds_the_memory_is_said_or_refused_before_training(planned, memory):
    assert not any("of memory" in each for each in planned().warnings)
    needed = planned().cells[0].memory_bytes
    memory(2 * needed)
    assert not any("of memory" in each for each in planned().warnings)
    memory(2 * needed - 1)
    (warning,) = [each for each in planned().warnings if "of memory" in each]
    assert warning.startswith(
        f"runs of 2 workers at once take about {bytes_in_words(2 * needed)} of memory, but there are only"
    )
    memory(needed - 1)
    (warning,) = [
        each for each in planned(engine=Engine(workers=1)).warnings if "of memory" in each
    ]
    there = bytes_in_words(needed - 1)
    assert warning.startswith(
        f"a run takes about {bytes_in_words(needed)} of memory, but there are only {there}: use fewer"
    )
    memory(4 * COPIES * planned().cells[0].n_params - 1)
    with pytest.raises(
        BadInput,
        match=r"a run of cell all needs .* for its weights.* alone, but there are only",
    ):
        planned()


@pytest.mark.parametrize(
    ("workers", "n_stacks", "n_cpus", "n_gpus", "expected"),
    [
        # One-thread workers, one a core.
        ("auto", 36, 2, 0, [WorkerResources(1)] * 2),
        # Fewer stacks than cores: as many workers as stacks, and a lone run gets all cores.
        ("auto", 1, 2, 0, [WorkerResources(2)]),
        # As many as asked for, whatever there is to do.
        (1, 36, 2, 0, [WorkerResources(2)]),
        (4, 1, 2, 0, [WorkerResources(1)] * 4),
        # One a GPU, with its share of the cores; more are spread over the GPUs.
        ("auto", 36, 16, 2, [WorkerResources(8, 0), WorkerResources(8, 1)]),
    ],
)
def test_the_machine_is_divided(
    workers, n_stacks, n_cpus, n_gpus, expected, planned, monkeypatch
):
    (cell,) = planned().cells
    monkeypatch.setattr(study_plan, "n_cores", lambda: n_cpus)
    monkeypatch.setattr(study_plan, "cuda_count", lambda: n_gpus)
    budget = Budget(trials_per_cell=n_stacks * cell.stack)
    spec = SimpleNamespace(engine=Engine(workers=workers), budget=budget)
    device = "cuda" if n_gpus else "cpu"
    assert worker_resources(spec, [cell], device) == expected


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        (Engine(type="slurm", workers=3, threads=2), [WorkerResources(2)] * 3),
        (Engine(type="ray"), [WorkerResources(1)] * 2),
    ],
)
def test_workers_elsewhere_are_as_many_as_asked_for_or_as_there_are_stacks(
    engine, expected, planned
):
    (cell,) = planned().cells
    spec = SimpleNamespace(engine=engine, budget=Budget(trials_per_cell=2 * cell.stack))
    assert worker_resources(spec, [cell], "cpu") == expected


def test_a_stack_is_as_wide_as_pays_and_as_fits():
    small = Hyperparameters(
        n_layer=1, n_embd=16, n_head=2, vocab_size=65, batch_size=8, device="cpu"
    )
    wide, run = small.replace(n_embd=512, n_layer=4), 2 * train_memory_bytes(small)
    many, gpu = small.replace(batch_size=1024, grad_accum=2), wide.replace(device="cuda")
    given = [
        ("auto", small, 1, 1e15), ("auto", wide, 1, 1e15), ("auto", small, 12, 1e15), (3, small, 12, 1e15),
        ("auto", small, 1, 5 * run), (9, small, 1, 0), (9999, many, 1, 1e15), ("auto", gpu, 1, 1e15),
    ]  # fmt: skip
    pays = round(2e11 / (row_flops(gpu) * 8))
    assert [stack_capacity(*each) for each in given] == [
        8,
        1,
        12,
        3,
        5,
        1,
        65535 // (512 * 2),
        pays,
    ]
