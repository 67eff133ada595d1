"""Measure how often sealed 90% forecast intervals hold, on the larger cells of several studies.

Run: python tests/benchmarks/sealed.py [FOLDER] [--law kaplan]. Each study trains models of 4,320 to 120,576 parameters
(at two layers) on up to 3.6 million tokens, three learning rates at each size and budget. Cells of the five smallest
widths and the three smallest budgets run first; their law forecasts the other cells, which run afterwards, and `laws
verify` scores the forecasts. Studies stay in FOLDER where it is given, and a second call continues from there.
"""

import argparse
import json
import math
import os
import sys
import tempfile
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

from benchmarks.setting import print_table, setting, sweeplab

STUDY = """\
name: {name}
data: {{corpus: python-source, tokenizer: byte}}
fixed: {{{fixed}, block_size: 64, batch_size: 16, dropout: 0.0, eval_tokens: 65536, device: cpu}}
grid: {{max_iters: {budgets}, n_embd: {widths}}}
constraints: ["train_flops <= 1.5e12"]
search:
  learning_rate: [3e-3, 6e-3, 1.2e-2]
  n_head: {{expr: "max(1, n_embd // 16)"}}
  warmup_iters: {{expr: max_iters // 20}}
  min_lr: {{expr: learning_rate / 10}}
  eval_interval: {{expr: max_iters // 4}}
  save_interval: {{expr: max_iters}}
budget: {{trials_per_cell: 3}}
sampler: grid
pruner: none
seeds: [{seed}]
engine: {{workers: 1}}
track: {{checkpoints: none}}
"""
STUDIES = {
    "two-layers": ("n_layer: 2", 0),
    "two-layers-again": ("n_layer: 2", 1),
    "one-layer": ("n_layer: 1", 2),
    "llama": ("n_layer: 2, positions: rotary, activation: swiglu, norm: rmsnorm", 3),
}
BUDGETS, WIDTHS = [150, 500, 1250, 3500], [8, 12, 16, 24, 32, 48, 64]
FITTED, WHOLE = (BUDGETS[:-1], WIDTHS[:-2]), (BUDGETS, WIDTHS)


def scored(name, folder, law):
    """Run the smaller cells, seal forecasts of the larger, run these and return what `laws verify` says of each."""
    fixed, seed = STUDIES[name]
    fitted, whole = folder / f"{name}-fitted.yaml", folder / f"{name}.yaml"
    for file, (budgets, widths) in ((fitted, FITTED), (whole, WHOLE)):
        file.write_text(
            STUDY.format(name=name, fixed=fixed, seed=seed, budgets=budgets, widths=widths)
        )
    lab = ("--lab", folder / name)
    if not (folder / name / "ledger.jsonl").exists():
        sweeplab("run", fitted, *lab)
        sweeplab("laws", "predict", name, "--law", law, "--targets", whole, "--seal", *lab)
    sweeplab("run", whole, *lab)
    verified = json.loads(sweeplab("laws", "verify", name, "--json", *lab))["forecasts"]
    # Those of cells that had run before are late, and count no more.
    found = [each for each in verified if each["state"] == "scored"]
    assert len(found) + sum(each["state"] == "late" for each in verified) == len(verified), (
        verified
    )
    return found


def row(name, found):
    predicted = [each["forecast"]["predicted"] for each in found]
    widths = [math.log(each["high"] / each["low"]) / 2 for each in predicted]
    errors = [abs(each["error"]) for each in found]
    held = sum(each["held"] for each in found)
    flagged = sum(each["forecast"]["fit"]["form"] == "flagged" for each in found)
    return [
        *(name, str(len(found)), f"{held} ({held / len(found):.0%})", f"±{median(widths):.1%}"),
        *(f"{median(errors):.1%}", f"{max(errors):.1%}", str(flagged)),
    ]


def main(folder, law):
    print(setting())
    print(f"\nforecasts by {law}, sealed before their cells ran\n")
    told = {name: scored(name, folder, law) for name in STUDIES}
    rows = [row(name, found) for name, found in told.items()]
    rows.append(row("all", [each for found in told.values() for each in found]))
    headings = [
        "study",
        "cells",
        "90% intervals that hold",
        "median width",
        "median error",
        "largest error",
    ]
    print_table([*headings, "form flagged"], rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--law", default="chinchilla")
    chosen = parser.parse_args()
    if chosen.folder:
        chosen.folder.mkdir(parents=True, exist_ok=True)
        main(chosen.folder, chosen.law)
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary), chosen.law)
