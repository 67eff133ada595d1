"""Measure what the store of trials costs: transactions, statements and CPU per trial, and many workers.

Run: python tests/benchmarks/store.py [--postgres URL] [--seconds S]. A trial has ten reports and does not train; its
stack has eight members, all of one cell with a tuned learning rate, weight decay, warm-up and dropout. CPU is that of
store, sampler and pruner together, medians over stacks. Where workers are counted, each trains one trial at a time, and
a report stands for 40 ms of training. With the URL of a PostgreSQL database the same is counted there, in a schema that
is dropped afterwards.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import sqlalchemy as sql

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.setting import print_table, setting
from optuna.trial import TrialState, create_trial

from sweeplab.study.options import Pruner, Sampler
from sweeplab.study.search import Range
from sweeplab.study.spec import Budget, DataSpec, StudySpec
from sweeplab.sweep.trials.sharing import Report
from sweeplab.sweep.trials.store import Store

VOCAB_SIZE, STACK, N_REPORTS = 103, 8, 10
SEARCH = {
    "learning_rate": Range(3e-4, 1e-2, log=True),
    "weight_decay": Range(1e-3, 1.0, log=True),
    "warmup_iters": Range(0, 50),
    "dropout": Range(0.0, 0.3),
}
FIXED = {"n_layer": 1, "n_embd": 16, "n_head": 2, "block_size": 16, "batch_size": 4, "max_iters": 100}
FIXED |= {"eval_interval": 10, "device": "cpu"}
TRAINING_SECONDS = 0.04


def study(sampler, pruner):
    return StudySpec(
        name="store",
        data=DataSpec(corpus="python-docs", tokenizer="char"),
        fixed=FIXED,
        grid={},
        search=SEARCH,
        budget=Budget(trials_per_cell=1_000_000),
        sampler=Sampler(type=sampler),
        pruner=Pruner(type=pruner),
    )


def opened(url, spec):
    return Store.create(spec, VOCAB_SIZE, url)


def fill(store, n_trials):
    """Give every cell so many finished trials of ten reports."""
    with store.storage.transaction():
        for cell in store.cells:
            space, study_id = store.spaces[cell.index], store.study(cell)._study_id
            there = len(store.storage.cell(study_id).trials)
            for number in range(there, n_trials):
                point = space.quasi_random([(number * step) % 1 for step in (0.618, 0.414, 0.732, 0.236)])
                reports = {10 * each: 4 - each * point["dropout"] / 10 for each in range(1, N_REPORTS + 1)}
                outcome = {"outcome": "complete", "train_flops": 1e9, "wall_seconds": 1.0}
                done = {"state": TrialState.COMPLETE, "value": reports[100], "intermediate_values": reports}
                given = {"params": point, "distributions": space.distributions(), "user_attrs": outcome}
                store.storage.create_new_trial(study_id, create_trial(**done, **given))


def train_stack(store, n_members=STACK, training_seconds=0.0):
    """Do with the store what a worker does with a stack; return the number of trials."""
    claims = store.claim_many(n_members)
    n_trials = len(claims)
    for each in range(1, N_REPORTS + 1):
        time.sleep(training_seconds)
        values = {claim.trial_id: 4 - each * claim.sampled["dropout"] / 10 for claim in claims}
        store.poll_commands()
        verdicts = store.report_many([Report(claim, 10 * each, values[claim.trial_id]) for claim in claims])
        for claim in [claim for claim in claims if claim.trial_id in verdicts.behind]:
            finish(store, claim, "pruned")
            claims.remove(claim)
    for claim in claims:
        finish(store, claim, "complete")
    return n_trials


def finish(store, claim, outcome):
    store.finish(claim, outcome, 3.0, {"train_flops": 1e9, "wall_seconds": 1.0})


class Counts:
    """Counts the transactions and statements of an engine."""

    def __init__(self, engine):
        self.transactions = self.statements = 0
        sql.event.listen(engine, "begin", self._begin)
        sql.event.listen(engine, "before_cursor_execute", self._execute)

    def _begin(self, _connection):
        self.transactions += 1

    def _execute(self, *said):
        self.statements += not str(said[2]).startswith("BEGIN")


def count_calls(url):
    """Count what a trial takes that enters a stack of eight alone, as slots come free: nothing is shared."""
    store = opened(url, study("tpe", "asha"))
    fill(store, 40)
    store.claim_many(1)
    counts, n_trials = Counts(store.storage.engine), 0
    claims = store.claim_many(STACK)
    reported = dict.fromkeys((claim.trial_id for claim in claims), 0)
    # Each evaluation of the stack one member ends, in turn, and another takes its slot: ten reports each.
    for step in range(10 * STACK * 2):
        store.poll_commands()
        for claim in claims:
            reported[claim.trial_id] += 1
        reports = [Report(claim, 10 * reported[claim.trial_id], 3.0 - step / 1e3) for claim in claims]
        store.report_many(reports)
        for claim in [claim for claim in claims if reported[claim.trial_id] >= N_REPORTS]:
            finish(store, claim, "complete")
            claims.remove(claim)
            n_trials += 1
        if len(claims) < STACK:
            for claim in store.claim_many(STACK - len(claims)):
                claims.append(claim)
                reported[claim.trial_id] = (step * 3) % N_REPORTS if step < STACK else 0  # out of step
    return [str(n_trials), f"{counts.transactions / n_trials:.1f}", f"{counts.statements / n_trials:.1f}"]


def cpu_rows(url, sizes):
    for sampler, pruner in (("random", "none"), ("tpe", "none"), ("tpe", "asha")):
        with fresh(url) as own:
            store = opened(own, study(sampler, pruner))
            for size in sizes:
                fill(store, size)
                took = []
                for _ in range(3):
                    started = time.process_time()
                    took.append((time.process_time() - started, train_stack(store))[1])
                    took[-1] = (time.process_time() - started) / max(1, took[-1])
                yield [sampler, pruner, f"{size:,}", f"{1e3 * median(took):.1f} ms"]


def throughput(url, n_workers, seconds):
    """Return trials a second of so many processes."""
    with fresh(url) as own:
        store = opened(own, study("random", "median"))
        command = [sys.executable, __file__, "--worker", own, str(seconds)]
        workers = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(n_workers)
        ]
        for worker in workers:
            assert worker.stdout and worker.stdout.readline() == "ready\n"
        for worker in workers:
            assert worker.stdin
            worker.stdin.write("go\n")
            worker.stdin.flush()
        n_trials = sum(int(worker.communicate()[0]) for worker in workers)
        assert store.counts()[0].counted == n_trials, "every trial once"
    return n_trials / seconds


def work(url, seconds):
    spec = study("random", "median")
    store = Store(spec, VOCAB_SIZE, url)
    store.counts()
    print("ready", flush=True)
    sys.stdin.readline()
    n_before = sum(trial.state.is_finished() for trial in store.trials(store.cells[0]))
    assert n_before == 0
    ends, mine = time.monotonic() + seconds, 0
    finished = store.finish

    def counted(*given):
        nonlocal mine
        finished(*given)  # type: ignore[arg-type]
        mine += 1

    store.finish = counted  # type: ignore[method-assign,assignment]
    while time.monotonic() < ends:
        train_stack(store, 1, TRAINING_SECONDS)
    print(mine)


@contextmanager
def fresh(url):
    """Yield the URL of an empty storage."""
    if url == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:///{folder}/trials.db"
        return
    schema = f"bench_{uuid.uuid4().hex[:8]}"
    plain = sql.make_url(url).set(drivername="postgresql+psycopg")
    engine = sql.create_engine(plain)
    with engine.begin() as connection:
        connection.execute(sql.schema.CreateSchema(schema))
    try:
        own = plain.update_query_dict({"options": f"-csearch_path={schema}"})
        yield own.render_as_string(hide_password=False)
    finally:
        with engine.begin() as connection:
            connection.execute(sql.schema.DropSchema(schema, cascade=True))
        engine.dispose()


def main(postgres, sizes, seconds):
    print(setting())
    places = {"SQLite": "sqlite"} | ({"PostgreSQL": postgres} if postgres else {})
    print("\na trial of ten reports, its stack of eight refilled one by one, TPE and ASHA\n")
    rows = []
    for name, url in places.items():
        with fresh(url) as own:
            rows.append([name, *count_calls(own)])
    print_table(["storage", "trials", "transactions a trial", "statements a trial"], rows)
    print("\nCPU a trial in stacks of eight, by how many trials the cell has\n")
    print_table(["sampler", "pruner", "trials before", "CPU a trial"], [*cpu_rows("sqlite", sizes)])
    print(f"\ntrials a second, a report for {1e3 * TRAINING_SECONDS:.0f} ms of training\n")
    rows = []
    for name, url in places.items():
        speeds = {n: throughput(url, n, seconds) for n in (1, 4, 16)}
        shown = [f"{each:.1f}" for each in speeds.values()]
        rows.append([name, *shown, f"{speeds[16] / speeds[1]:.1f}"])
    print_table(["storage", "1 worker", "4 workers", "16 workers", "16 against 1"], rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--postgres", default=os.environ.get("SWEEPLAB_STORAGE"))
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1_000, 20_000])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--worker", nargs=2)
    chosen = parser.parse_args()
    if chosen.worker:
        work(chosen.worker[0], float(chosen.worker[1]))
    else:
        main(chosen.postgres, chosen.sizes, chosen.seconds)
