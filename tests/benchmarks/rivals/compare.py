"""Whole sweeps and bare steps beside the strongest that others write, on the same frozen configurations.

Run: python tests/benchmarks/rivals/compare.py [rounds] [P B A] (pip install -e '.[test,rivals]'). The gate comes first:
all train the same thing. Whole sweeps: the product as it plans after `study bench`, which leaves its programs in the
cache; a serial loop of Optuna, MLflow and eager torch on all threads, and the same compiled; Ray Tune with an actor a
core. Bare steps, without tuner, tracker, evaluation and compilation: the product's stacks, a process a core; the eager
and the compiled loop; a jitted, vmapped population in JAX, on all cores and as a part on each core. Turn about; medians
of the rounds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[2]))
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
CORES = sorted(os.sched_getaffinity(0))
os.environ["OMP_NUM_THREADS"] = str(len(CORES))

import torch
from benchmarks.rivals import ray_tune
from benchmarks.rivals.population import Population, seconds_of_steps
from benchmarks.setting import print_table, setting
from benchmarks.shapes import COMMON, COMPILED, N_TRIALS, SHAPES, gate, product, rates_of, study_file
from references import serial_loop

from sweeplab.data.dataset import prepare
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.study.file.reading import read_study
from sweeplab.sweep.choosing import BenchRow
from sweeplab.sweep.planning import bench_study
from sweeplab.train.run import TrainingRun
from sweeplab.train.stack import Stack

# The largest difference of a validation loss that float32 sums in another order bring about.
TOLERANCE = 2e-3


def bare_loop(values: Hyperparameters, split, compiled: bool) -> float:
    """Return the seconds of one run's steps in the serial loop."""
    _, step = serial_loop.trainer(values, split, compiled)
    step(0)  # and compile
    started = time.perf_counter()
    for iteration in range(values.max_iters):
        step(iteration)
    return time.perf_counter() - started


def planned_way(name: str) -> BenchRow:
    """Time the ways to train a shape, and return the one that the plan takes."""
    with tempfile.TemporaryDirectory() as place:
        _, rows = bench_study(read_study(study_file(name, Path(place), True)), Path(place))
    return next(row for row in rows if row.taken)


def bare_stacks(
    values: Hyperparameters, rates: Sequence[float], split, n: int, go: Callable[[], None]
) -> float:
    """Return the seconds of the steps of runs in stacks of `n`."""
    values, seconds = values.replace(eval_interval=values.max_iters, eval_iters=1, eval_tokens="auto"), 0.0
    for at in range(0, len(rates), n):
        stack = Stack(values, split, split, n)
        for rate in rates[at : at + n]:
            stack.admit(TrainingRun(str(rate), values.replace(learning_rate=rate)))
        stack.advance()  # which evaluates at iteration 0
        if not at:
            go()
        started = time.perf_counter()
        stack.advance()
        seconds += time.perf_counter() - started
    return seconds


def in_processes(
    kind: str, values: Hyperparameters, rates: list[float], split: bool, **asked: object
) -> float:
    """Return the seconds of the slowest process: one of all runs on all cores, or a part on each core."""
    n_parts = len(CORES) if split else 1
    environment = os.environ | {"OMP_NUM_THREADS": str(len(CORES) // n_parts)}
    processes = []
    for part in range(n_parts):
        cores = [CORES[part]] if split else CORES
        given = {
            "kind": kind,
            "values": values.as_dict(),
            "rates": rates[part::n_parts],
            "cores": cores,
            **asked,
        }
        command = [sys.executable, __file__, "--part", json.dumps(given)]
        processes.append(
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                env=environment,
            )
        )  # fmt: skip
    for process in processes:
        assert process.stdout and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    return max(float(process.communicate()[0]) for process in processes)


def work(given: str) -> None:
    """Do a part in a process of its own, and print its seconds."""
    asked = json.loads(given)
    os.sched_setaffinity(0, asked["cores"])  # before JAX counts them
    data, values = prepare("python-docs", "char"), Hyperparameters.of(asked["values"])

    def go() -> None:
        print("ready", flush=True)
        sys.stdin.readline()

    if asked["kind"] == "stacks":
        torch.set_num_threads(len(asked["cores"]))
        print(bare_stacks(values, asked["rates"], data.train, asked["stack"], go))
    else:
        print(seconds_of_steps(values, asked["rates"], data.train, asked["dtype"], go))


def check(name: str, values: Hyperparameters, data) -> list[str]:
    """Return the largest differences of validation losses from the serial loop's: the product's, and JAX's."""

    population = Population(values, [values.learning_rate])
    found = [population.evaluate(data.val)]
    while population.iteration < values.max_iters:
        population.advance(data.train, values.eval_interval)
        found.append(population.evaluate(data.val))
    theirs = serial_loop.train(values, data.train, data.val)
    differences = (
        gate(values.replace(compile=name in COMPILED), data),
        max(abs(ours[0] - each) for ours, each in zip(found, theirs, strict=True)),
    )
    assert max(differences) < TOLERANCE, f"{name}: they do not train the same thing: {differences}"
    return [f"{each:.0e}" for each in differences]


def ways(name: str, values: Hyperparameters, data) -> dict[str, Callable[[Path], float]]:
    """Return what is timed, by its name; the first of each kind is what the others are held against."""
    rates, given, way = rates_of(name), (data.train, data.val), planned_way(name)
    ours = values.replace(dtype=way.dtype, compile=way.compile)

    def population(dtype: str, split: bool) -> Callable[[Path], float]:
        return lambda _: in_processes("population", values, rates, split, dtype=dtype)

    return {
        "sweep: serial loop": lambda at: serial_loop.run(values, rates, *given, at),
        "sweep: serial loop, compiled": lambda at: serial_loop.run(values, rates, *given, at, compiled=True),
        "sweep: Ray Tune, an actor a core": lambda at: ray_tune.run(values, rates, *given, at),
        "sweep: sweeplab": lambda at: product(study_file(name, at, True)),
        "steps: serial loop": lambda _: len(rates) * bare_loop(values, data.train, False),
        "steps: serial loop, compiled": lambda _: len(rates) * bare_loop(values, data.train, True),
        "steps: JAX, one population": population("float32", False),
        "steps: JAX, a population a core": population("float32", True),
        "steps: JAX in bfloat16, a population a core": population("bfloat16", True),
        f"steps: sweeplab's stacks of {way.stack}, a process a core": lambda _: in_processes(
            "stacks", ours, rates, True, stack=way.stack
        ),
    }


def main(n_rounds: int, names: Sequence[str]) -> None:
    print(setting(), f"jax {version('jax')}, ray {version('ray')}", flush=True)
    torch.set_num_threads(len(CORES))
    data = prepare("python-docs", "char")
    for name in names:
        values = Hyperparameters.of(COMMON | SHAPES[name] | {"vocab_size": data.tokenizer.vocab_size})
        ours, jax = check(name, values, data)
        timed = ways(name, values, data)
        seconds: dict[str, list[float]] = {each: [] for each in timed}
        for _ in range(n_rounds):
            for each, run in timed.items():
                with tempfile.TemporaryDirectory() as place:
                    seconds[each].append(run(Path(place)))
                print(f"# {name}, {each}: {seconds[each][-1]:.1f} s", file=sys.stderr, flush=True)
        steps = N_TRIALS[name] * values.max_iters
        serial = seconds["sweep: serial loop"]
        rows = []
        for each, took in seconds.items():
            ratios = [one / other for one, other in zip(serial, took, strict=True)]
            spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
            rows.append([each, f"{1e3 * median(took) / steps:.3g} ms", f"{median(ratios):.2f}", spread])
        print(f"\nshape {name}; losses differ from the serial loop's by {ours}, JAX's by {jax}\n")
        print_table(["way", "a trial-step", "speed over the serial loop's sweep", "range"], rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--part"]:
        work(sys.argv[2])
    else:
        rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
        main(rounds, sys.argv[2:] or list(SHAPES))
