"""Measure what storage and samplers cost a study: `python tests/benchmarks/control_plane.py [ROUNDS]`.

Trials are claimed, reported and ended in this process, without training. The first table has the CPU time of
joint proposals of studies/small.yaml, of which the first with a fit also imports what fits; the others that of a whole
trial with ten reports, in stacks of eight, the median of ROUNDS (five) times 24 trials after the first 100.
"""

import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # as workers have it
sys.path[0] = str(Path(__file__).parents[1])  # not this folder, which has a laws.py

from benchmarks.setting import STUDIES, print_table, setting

from sweeplab.records.runs import RunState
from sweeplab.study.file.reading import read_study
from sweeplab.sweep.planning import make_plan
from sweeplab.sweep.trials.sharing import Report
from sweeplab.sweep.trials.store import Store

STUDY = """
name: trials
data: {{corpus: python-docs, tokenizer: char}}
fixed: {{block_size: 16, batch_size: 4, max_iters: 100, n_layer: 1, n_head: 2, n_embd: 8, eval_interval: 10}}
search:
  learning_rate: {{min: 1e-4, max: 1e-1, log: true}}
  weight_decay: {{min: 1e-3, max: 1.0, log: true}}
  dropout: {{min: 0.0, max: 0.5}}
  grad_clip: {{min: 0.1, max: 10, log: true}}
budget: {{trials_per_cell: 100000}}
sampler: {sampler}
pruner: {pruner}
"""


def store_of(file, folder):
    """Create the storage of a study, without its workers."""
    spec = read_study(file)
    _, _, dataset = make_plan(spec, folder / "lab")
    return Store.create(spec, dataset.sizes, f"sqlite:///{folder}/{spec.name}.db")


def proposals(folder):
    """Return the milliseconds of CPU of each proposal, one trial at a time, their losses a parabola with noise."""
    store, drawn, found = store_of(STUDIES / "small.yaml", folder), random.Random(0), []
    while True:
        started = time.process_time()
        claims = store.claim_many(1)
        if not claims:
            return found
        found.append(1e3 * (time.process_time() - started))
        (claim,) = claims
        distance = math.log(claim.sampled["learning_rate"] / 0.03)
        loss = 2 + 0.05 * distance**2 + 0.01 * drawn.random()
        store.finish(claim, RunState.COMPLETE, loss, {})


class Trials:
    """Trials in stacks of eight, whose losses fall with each of ten reports."""

    def __init__(self, sampler, pruner, folder):
        file = folder / f"{sampler}.yaml"
        file.write_text(STUDY.format(sampler=sampler, pruner=pruner))
        self.store, self.drawn = store_of(file, folder), random.Random(0)
        self.held, self.iterations = [], Counter()

    def ended(self, n_trials):
        """Return the milliseconds of CPU a trial until so many have ended."""
        started, n_ended = time.process_time(), 0
        while n_ended < n_trials:
            self.held += self.store.claim_many(8 - len(self.held))
            reports = []
            for claim in self.held:
                self.iterations[claim.trial_id] += 10
                iteration = self.iterations[claim.trial_id]
                reports.append(
                    Report(claim, iteration, 3 + self.drawn.random() - iteration / 1e3)
                )
            behind = self.store.report_many(reports).behind
            for claim, iteration, loss in reports:
                if claim.trial_id in behind:
                    state = RunState.PRUNED
                elif iteration == 100:
                    state = RunState.COMPLETE
                else:
                    continue
                self.store.finish(claim, state, loss, {})
                self.held.remove(claim)
                n_ended += 1
        return 1e3 * (time.process_time() - started) / n_ended


def main(rounds=5):
    """Print both tables."""
    print(setting())
    with tempfile.TemporaryDirectory() as place:
        found = proposals(Path(place))
        again = statistics.quantiles(found, n=10)[-1]
        row = [f"{statistics.median(found):.1f}", f"{again:.1f}", f"{max(found):.0f}"]
        headings = [
            "joint proposal, CPU ms, median",
            "a tenth takes more: one in three fits a surrogate",
        ]
        print_table([*headings, "largest, the first with a fit"], [row])
        for sampler, pruner in (("random", "none"), ("tpe", "asha")):
            trials = Trials(sampler, pruner, Path(place))
            trials.ended(100)
            found = [trials.ended(24) for _ in range(rounds)]
            row = [sampler, pruner, f"{statistics.median(found):.1f}"]
            row.append(f"{min(found):.1f} to {max(found):.1f}")
            print_table(["sampler", "pruner", "a trial, CPU ms", "range"], [row])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
