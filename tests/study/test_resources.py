import pytest

from sweeplab.study.plan import WorkerResources, divide_machine


@pytest.mark.parametrize(
    ("workers", "n_stacks", "n_cpus", "n_gpus", "expected"),
    [
        # One-thread workers, one a core.
        ("auto", 36, 2, 0, [WorkerResources(1)] * 2),
        ("auto", 36, 16, 0, [WorkerResources(1)] * 16),
        # Fewer stacks than cores: as many workers as stacks, and a lone run gets all cores.
        ("auto", 1, 2, 0, [WorkerResources(2)]),
        ("auto", 3, 16, 0, [WorkerResources(5)] * 3),
        # As many as asked for, whatever there is to do.
        (1, 36, 2, 0, [WorkerResources(2)]),
        (4, 1, 2, 0, [WorkerResources(1)] * 4),
        # One a GPU, with its share of the cores; more are spread over the GPUs.
        ("auto", 36, 16, 2, [WorkerResources(8, 0), WorkerResources(8, 1)]),
        ("auto", 1, 16, 4, [WorkerResources(16, 0)]),
        (
            4,
            36,
            16,
            2,
            [WorkerResources(4, 0), WorkerResources(4, 1), WorkerResources(4, 0), WorkerResources(4, 1)],
        ),
    ],
)
def test_the_machine_is_divided(workers, n_stacks, n_cpus, n_gpus, expected) -> None:
    assert divide_machine(workers, n_stacks, n_cpus, n_gpus) == expected


def test_no_more_threads_than_cores_where_the_number_is_left_open() -> None:
    for n_cpus in range(1, 33):
        for n_stacks in range(1, 40):
            given = divide_machine("auto", n_stacks, n_cpus, 0)
            assert 1 <= len(given) <= n_stacks
            assert sum(each.threads for each in given) <= n_cpus
