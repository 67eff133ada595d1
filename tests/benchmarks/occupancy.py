"""Measure how full stacks are in a study of 200 trials under ASHA: the share of slots with a run, over all steps.

Run: python tests/benchmarks/occupancy.py [trials]. Workers and stacks are as the study plans them; shape P.
"""

import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

from benchmarks.setting import print_table, setting

STUDY = """
name: occupancy
data: {{corpus: python-docs, tokenizer: char}}
fixed: {{n_layer: 2, n_embd: 32, n_head: 4, block_size: 16, batch_size: 4, max_iters: 600, eval_interval: 50,
  eval_iters: 2, dropout: 0.0, compile: false}}
search: {{learning_rate: {{min: 1e-4, max: 1e-1, log: true}}}}
budget: {{trials_per_cell: {n_trials}}}
sampler: {sampler}
pruner: {{type: asha, min_iters: 50, factor: 3}}
track: {{checkpoints: none}}
"""


def occupied(sampler, n_trials, folder):
    """Run a study; return its stacks' mean occupancy, what its runs came to, and how it was trained."""
    from sweeplab.analysis.table import runs_table
    from sweeplab.study.file.reading import read_study
    from sweeplab.study.plan import Plan
    from sweeplab.sweep.supervisor import run_study

    file = folder / "occupancy.yaml"
    file.write_text(STUDY.format(n_trials=n_trials, sampler=sampler))
    ending = run_study(read_study(file), folder / "lab")
    assert ending.status == "complete", ending
    runs = runs_table(folder / "lab", "occupancy")
    known = runs[runs["slot_steps"] > 0]
    found = float(known["iterations"].sum() / known["slot_steps"].sum())
    plan = Plan.from_dict(ending.folder.read(ending.folder.plan_file))
    came = ", ".join(f"{n} {state}" for state, n in runs["state"].value_counts().items())
    return found, came, f"{len(plan.workers)} workers, stacks of {plan.cells[0].stack}"


def main():
    """Print the share for each sampler."""
    n_trials = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    rows = []
    for sampler in ("joint", "random", "tpe"):
        with tempfile.TemporaryDirectory() as folder:
            share, came, how = occupied(sampler, n_trials, Path(folder))
        rows.append([sampler, how, came, f"{share:.1%}"])
    print(setting())
    print_table(["sampler", "trained by", f"{n_trials} trials", "occupied"], rows)


if __name__ == "__main__":
    main()
